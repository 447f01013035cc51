from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import training
from experiments.networks import build
from experiments.training import split_test_records, train
from lehr import data
from lehr.errors import Diverged, InvalidValue, StoreError
from tests.experiments.made_up_jobs import tiny

EPSILONS = ("epsilon_proven", "epsilon_published", "epsilon_of_candidates_drawn")
SCORES = ("accuracy", "loss", "per_class", "candidates", "accepted", "ended", "trajectory", "parameters", "seconds")


def outcome(**changed: Any) -> dict[str, Any]:
    return train(tiny(**changed), device="cpu", data_dir=None)


def test_an_outcome_has_scores_and_costs() -> None:
    state = torch.get_rng_state()
    found = outcome(evaluate_every=2)
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is left alone
    assert set(found) == {*SCORES, *EPSILONS}
    assert [row[:2] for row in found["trajectory"]] == [[2, 2], [4, 4]]
    assert found["trajectory"][-1][2:] == [found["accuracy"], found["loss"]]
    assert found["epsilon_proven"] == found["epsilon_of_candidates_drawn"] < found["epsilon_published"]
    counts = torch.bincount(data.load("digits").test.targets).tolist()
    whole = sum(share * count for share, count in zip(found["per_class"], counts, strict=True)) / sum(counts)
    assert math.isclose(whole, found["accuracy"], abs_tol=1e-6)
    assert outcome(records=200)["epsilon_proven"] > found["epsilon_proven"]  # a batch is a larger share of fewer


def test_a_papers_rule_scores_the_live_model_on_records_that_acceptance_sees() -> None:
    settings = {"accounting": "published", "learning_rate": 5.0}
    found = outcome(method="sa-dpsgd", scored_on="seen", settings=settings, evaluate_every=1)
    rows = found["trajectory"]
    assert found["accepted"] == 4
    assert rows[-1][:2] == [found["candidates"], 4]
    assert [row[0] for row in rows] == list(range(1, found["candidates"] + 1))
    changes = sum(row[1] > before[1] for before, row in itertools.pairwise(rows))
    assert len({row[3] for row in rows}) == 1 + changes
    # Eleven candidates may be drawn for each that is accepted, and all of them cost.
    assert found["epsilon_proven"] > found["epsilon_of_candidates_drawn"]


def test_only_private_runs_have_a_proven_epsilon() -> None:
    plain = outcome(method="plain-sgd", noise_multiplier=None, steps=1)
    simulated = outcome(simulated_batch_size=4, steps=1)
    for found in (plain, simulated):
        assert [found[name] for name in EPSILONS] == [None] * 3
    assert simulated["epsilon_simulated"] > 10 * outcome(steps=1)["epsilon_proven"]
    assert "epsilon_simulated" not in plain


def test_a_diverging_run_has_no_outcome() -> None:
    with pytest.raises(Diverged):
        outcome(method="plain-sgd", noise_multiplier=None, settings={"learning_rate": 1e38})


def test_the_seed_decides_the_halves_of_the_test_records() -> None:
    known = data.load("digits")
    one, again, other = (split_test_records(tiny(seed=seed, scored_on="half"), known, looks=True) for seed in (3, 3, 4))
    assert one.public is not None
    assert torch.equal(one.scored.inputs, again.scored.inputs)
    assert not torch.equal(one.scored.inputs, other.scored.inputs)
    assert len(one.public) + len(one.scored) == len(known.test)
    not_looking = split_test_records(tiny(seed=3, scored_on="half"), known, looks=False)  # scored on the same half
    assert torch.equal(one.scored.inputs, not_looking.scored.inputs)
    assert not_looking.public is None
    with pytest.raises(InvalidValue, match="scored_on"):  # a fair score needs records that acceptance has not seen
        split_test_records(tiny(method="sa-dpsgd"), known, looks=True)


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
CPU = torch.device("cpu")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of pretrained weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def load_part(model: torch.nn.Module, *, seed: int = 0, **changed: Any) -> torch.Tensor:
    training.load_pretrained(model, **{**SHORT, **changed}, seed=seed, device=CPU, data_dir=None)
    return model.get_parameter("0.weight").detach().clone()


def test_a_part_is_pretrained_once_per_seed_and_setting(cache: Path) -> None:
    model = build("small_cnn")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    first = load_part(model)
    assert not torch.equal(first, before["0.weight"])
    assert torch.equal(model.get_parameter("3.weight"), before["3.weight"])  # nothing else is changed
    assert torch.equal(load_part(build("small_cnn")), first)
    assert not torch.equal(load_part(build("small_cnn"), seed=1), first)
    assert not torch.equal(load_part(build("small_cnn"), steps=3), first)
    files = [*cache.rglob("*.safetensors")]
    assert len(files) == 3
    for file in files:
        file.write_bytes(b"damaged")
    load_part(build("small_cnn"))
    assert sorted(file.stat().st_size > 500 for file in files) == [False, False, True]


def test_a_private_run_starts_from_a_pretrained_part(cache: Path) -> None:
    found = outcome(pretrained=SHORT, steps=1)
    assert found["epsilon_proven"] < found["epsilon_published"]
    assert len([*cache.rglob("*.safetensors")]) == 1


def test_missing_public_records_are_named(cache: Path) -> None:
    with pytest.raises(StoreError, match="cifar-100"):
        load_part(build("small_cnn"), data="cifar-100", arguments={"num_classes": 100})


@pytest.mark.parametrize("part, channels", [("nothing", 1), ("1.weight", 1), ("0", 3)])
def test_a_part_that_does_not_fit_is_refused(part: str, channels: int, cache: Path) -> None:
    with pytest.raises(InvalidValue, match="pretrained"):
        load_part(build("small_cnn", in_channels=channels), part=part)
