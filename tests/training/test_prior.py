"""Priors: made again from their description, resumed, checked when loaded, and used and stated by a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import lehr
from lehr import networks
from lehr.certificates import release, released_model
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.run.folder import read_config
from lehr.training import prior as module
from lehr.training.prior import CHECKPOINT, DESCRIPTION, WEIGHTS, Prior, PriorSettings, make_prior

NETWORK: dict[str, Any] = {"widths": [8, 8, 8], "in_channels": 1}
TINY: dict[str, Any] = {
    "arguments": NETWORK,
    "image_side": 16,
    "channels": 1,
    "kinds": ["oriented", "dead-leaves"],
    "images": 20,
    "steps": 4,
    "batch_size": 8,
}


def made(where: Path, **changed: Any) -> Prior:
    return make_prior(PriorSettings(**{**TINY, **changed}), to=where)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("priors") / "prior"
    made(where)
    return where


def test_the_same_settings_give_the_same_weights(folder: Path, tmp_path: Path) -> None:
    assert made(tmp_path / "again").description == Prior.load(folder).description
    assert made(tmp_path / "other", seed=1).description["weights"] != Prior.load(folder).description["weights"]


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    losses: list[float] = []
    settings = PriorSettings(**{**TINY, "steps": 30, "batch_size": 32, "images": 40})
    make_prior(settings, to=tmp_path / "prior", report=lambda step, steps, loss: losses.append(loss))
    assert sum(losses[-5:]) < sum(losses[:5])


def test_all_layers_but_the_last_are_put_into_a_model(folder: Path) -> None:
    prior, model = Prior.load(folder), networks.build("resnet9", **NETWORK)
    head = model.get_parameter("head.weight").clone()
    prior.put_into(model)
    assert not any(name.startswith("head") for name in prior.weights)
    assert {*prior.weights, "head.weight", "head.bias"} == {*model.state_dict()}
    assert all(
        torch.equal(value, prior.weights[name]) for name, value in model.state_dict().items() if "head" not in name
    )
    assert torch.equal(model.get_parameter("head.weight"), head)


def test_a_stopped_prior_is_continued(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    where, steps = tmp_path / "prior", []
    with pytest.raises(KeyboardInterrupt):
        make_prior(PriorSettings(**TINY), to=where, report=stop)
    assert (where / CHECKPOINT).exists()
    with pytest.raises(InvalidValue) as error:
        made(where, seed=1)  # another prior in the same folder
    assert error.value.name == "settings"
    resumed = make_prior(PriorSettings(**TINY), to=where, report=lambda step, *_: steps.append(step))
    assert steps == [3, 4]
    assert resumed.description["weights"] == Prior.load(folder).description["weights"]
    assert not (where / CHECKPOINT).exists()


def test_a_finished_prior_is_not_replaced(folder: Path) -> None:
    with pytest.raises(StoreError):
        made(folder)


def test_other_weights_than_those_described_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "prior"
    made(other, seed=1)
    (other / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    with pytest.raises(DamagedFile):
        Prior.load(other)


@pytest.mark.parametrize("text", ["{}", "[", '{"format": "other"}'])
def test_damaged_descriptions_are_refused(text: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes())
    (tmp_path / DESCRIPTION).write_text(text)
    with pytest.raises(StoreError):
        Prior.load(tmp_path)


def test_a_model_of_another_shape_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidValue) as error:
        Prior.load(folder).put_into(networks.build("resnet9", widths=[8, 8, 16], in_channels=1))
    assert error.value.name == "prior"


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"kinds": ["photographs"]}, "kinds"),
        ({"kinds": []}, "kinds"),
        ({"batch_size": 1}, "batch_size"),
        ({"steps": 0}, "steps"),
        ({"network": "nothing"}, "network"),
        ({"network": "vision_transformer", "arguments": {}}, "network"),
        ({"channels": 3}, "arguments"),
    ],
)
def test_bad_settings_are_refused(changed: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as error:
        made(tmp_path / "prior", **changed)
    assert error.value.name == name
    assert not (tmp_path / "prior").exists()


def test_a_run_starts_from_a_prior_and_states_it(folder: Path, tmp_path: Path) -> None:
    """The prior names the network, so that nothing else must; it stands in the certificate as public."""
    images = torch.rand(60, 1, 16, 16), torch.arange(60) % 3
    options: dict[str, Any] = {"records": 60, "num_classes": 3, "epsilon": 3, "delta": 1e-3, "steps": 2}
    run = lehr.fit(
        None,
        images,
        **options,
        prior=folder,
        batch_size=20,
        phases=[{"trained": ["head"]}],
        settings_chosen_on="fixed",
        directory=tmp_path / "run",
        quiet=True,
        compiled=False,
    )
    prior = Prior.load(folder)
    weights = prior.description["weights"]
    assert all(torch.equal(run.model.state_dict()[name], value) for name, value in prior.weights.items())
    assert read_config(run.directory)["prior"]["weights"] == weights
    assert run.certificate is not None
    assert any(weights[:12] in stated for stated in run.certificate.stated.treated_as_public)
    release.release(run.directory, tmp_path / "model")
    released_model.load(tmp_path / "model")


def test_networks_without_a_linear_last_layer_have_no_body() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(InvalidValue):
        module._body(network, PriorSettings())
