from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch

from lehr import networks
from lehr.data import known
from lehr.data.known import CIFAR_10, CIFAR_100, KnownDataSet, KnownFile, Layout
from lehr.errors import InvalidValue, StoreError
from lehr.papers import pretrained
from lehr.papers.job import Training
from lehr.papers.training import train

TRAIN, TEST = 40, 20
SHORT: dict[str, Any] = {
    "part": "0",
    "network": "small_cnn",
    "arguments": {},
    "data": "digits",
    "steps": 2,
    "expected_batch_size": 8,
    "learning_rate": 0.05,
    "augmentation": "none",
}
ON_CIFAR_100 = {
    **SHORT,
    "part": "convolutions",
    "network": "alexnet_like",
    "arguments": {"num_classes": 100},
    "data": "cifar-100",
}
CPU = torch.device("cpu")


def binary(count: int, *, labels: tuple[int, ...]) -> bytes:
    """Records of noise in the layout of CIFAR, with the bytes of their labels in front; each label below its number."""
    generator = torch.Generator().manual_seed(count)
    columns = [torch.randint(0, below, (count, 1), generator=generator, dtype=torch.uint8) for below in labels]
    pixels = torch.randint(0, 256, (count, 3 * 32 * 32), generator=generator, dtype=torch.uint8)
    return torch.cat([*columns, pixels], dim=1).numpy().tobytes()


def small(whole: KnownDataSet, folder: Path, *, labels: tuple[int, ...]) -> KnownDataSet:
    """The data set with few records, whose files are written here."""
    place = folder / whole.layouts[0].folders[0]
    place.mkdir(parents=True)
    parts = {"train.bin": binary(TRAIN, labels=labels), "test.bin": binary(TEST, labels=labels)}
    files = []
    for name, content in parts.items():
        (place / name).write_bytes(content)
        files.append(KnownFile(name=name, num_bytes=len(content)))
    layout = Layout(
        reader=whole.layouts[0].reader, folders=whole.layouts[0].folders, train=(files[0],), test=(files[1],)
    )
    return replace(whole, records=TRAIN, test_records=TEST, layouts=(layout,))


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def generated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small CIFAR-10 and a small CIFAR-100, made up."""
    folder = tmp_path / "data"
    sets = (small(CIFAR_10, folder, labels=(10,)), small(CIFAR_100, folder, labels=(20, 100)))
    monkeypatch.setattr(known, "KNOWN", MappingProxyType({each.name: each for each in sets}))
    return folder


def filled(*, seed: int = 0, **changed: Any) -> torch.nn.Module:
    model = networks.build("small_cnn")
    pretrained.fill(model, {**SHORT, **changed}, seed=seed, device=CPU, data_dir=None)
    return model


def first_layer(model: torch.nn.Module) -> torch.Tensor:
    return model.get_parameter("0.weight").detach().clone()


def test_the_part_is_trained_and_nothing_else_is_changed() -> None:
    torch.manual_seed(5)
    untouched = networks.build("small_cnn")
    torch.manual_seed(5)
    model = filled()
    assert not torch.equal(first_layer(model), first_layer(untouched))
    assert torch.equal(model.get_parameter("3.weight"), untouched.get_parameter("3.weight"))
    torch.manual_seed(0)
    assert not torch.equal(first_layer(model), first_layer(networks.build("small_cnn")))


def test_runs_of_one_seed_share_what_was_trained_and_others_do_not() -> None:
    first = first_layer(filled())
    assert torch.equal(first_layer(filled()), first)
    assert not torch.equal(first_layer(filled(seed=1)), first)
    assert not torch.equal(first_layer(filled(steps=3)), first)


def test_a_damaged_file_in_the_cache_is_trained_again() -> None:
    place = pretrained.Pretraining.from_json(SHORT).place(0)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"no weights")
    filled()
    assert place.stat().st_size > 500


def test_a_private_run_on_cifar_10_has_convolutions_from_cifar_100(generated: Path) -> None:
    job = Training(
        data="cifar-10",
        network=("alexnet_like", {"frozen_convolutions": True}),
        method="adadp",
        seed=0,
        expected_batch_size=8,
        noise_multiplier=4.0,
        steps=2,
        evaluate_every=1,
        pretrained=ON_CIFAR_100,
    )
    outcome = train(job, device="cpu", data_dir=str(generated))
    assert outcome["parameters"] == 1_649_098
    assert [row[0] for row in outcome["trajectory"]] == [1, 2]
    assert outcome["epsilon_proven"] < outcome["epsilon_published"]
    assert pretrained.Pretraining.from_json(ON_CIFAR_100).place(0).is_file()


def test_without_the_public_records_it_says_what_is_missing(tmp_path: Path) -> None:
    model = networks.build("alexnet_like", frozen_convolutions=True)
    with pytest.raises(StoreError, match="cifar-100 is not on this machine"):
        pretrained.fill(model, ON_CIFAR_100, seed=0, device=CPU, data_dir=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("part", ["nothing", "1.weight"])
def test_a_part_that_the_network_lacks_is_refused(part: str) -> None:
    with pytest.raises(InvalidValue, match="pretrained must be"):
        filled(part=part)


def test_a_part_of_another_shape_is_refused() -> None:
    with pytest.raises(InvalidValue, match="pretrained must be"):
        pretrained.fill(networks.build("small_cnn", in_channels=3), SHORT, seed=0, device=CPU, data_dir=None)


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"learning_rate": float("nan")}, {"speed": 1}], ids=str)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        pretrained.Pretraining.from_json({**SHORT, **wrong})
