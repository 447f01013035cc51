from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import training
from experiments.networks import build
from experiments.training import parts_of, train
from lehr import data
from lehr.errors import Diverged, InvalidValue, StoreError
from tests.experiments.made_up_jobs import tiny

FIELDS = {
    *("accuracy", "loss", "per_class", "candidates", "accepted", "ended", "trajectory", "parameters", "seconds"),
    *("epsilon_proven", "epsilon_published", "epsilon_of_candidates_drawn"),
}
EPSILONS = ("epsilon_proven", "epsilon_published", "epsilon_of_candidates_drawn")


def test_an_outcome_has_its_scores_its_costs_and_one_share_for_each_class() -> None:
    found = train(tiny(evaluate_every=2), device="cpu", data_dir=None)
    assert set(found) == FIELDS
    assert [row[:2] for row in found["trajectory"]] == [[2, 2], [4, 4]]
    assert found["trajectory"][-1][2:] == [found["accuracy"], found["loss"]]
    assert found["epsilon_proven"] == found["epsilon_of_candidates_drawn"] < found["epsilon_published"]
    counts = torch.bincount(data.load("digits").test.targets).tolist()
    whole = sum(share * count for share, count in zip(found["per_class"], counts, strict=True)) / sum(counts)
    assert math.isclose(whole, found["accuracy"], abs_tol=1e-6)


def test_by_its_papers_rule_acceptance_sees_what_is_scored_and_both_epsilons_are_told() -> None:
    job = tiny(method="sa-dpsgd", scored_on="seen", settings={"accounting": "published"}, evaluate_every=3)
    found = train(job, device="cpu", data_dir=None)
    assert found["accepted"] == 4
    assert found["trajectory"][-1][:2] == [found["candidates"], 4]
    assert [row[0] for row in found["trajectory"][:-1]] == list(range(3, found["candidates"], 3))
    # Eleven candidates may be drawn for each that is accepted, and all of them cost.
    assert found["epsilon_proven"] > found["epsilon_of_candidates_drawn"]


def test_the_live_model_is_what_is_scored_where_acceptance_sees_all() -> None:
    job = tiny(method="sa-dpsgd", scored_on="seen", evaluate_every=1, steps=3, settings={"learning_rate": 5.0})
    rows = train(job, device="cpu", data_dir=None)["trajectory"]
    assert len({row[3] for row in rows}) == 1 + sum(row[1] > before[1] for before, row in itertools.pairwise(rows))


def test_a_method_without_noise_has_no_epsilon_of_any_kind() -> None:
    found = train(tiny(method="plain-sgd", noise_multiplier=None), device="cpu", data_dir=None)
    assert [found[name] for name in EPSILONS] == [None] * 3


def test_a_simulation_proves_nothing_and_its_own_noise_is_worth_less_than_what_it_stands_for() -> None:
    real = train(tiny(expected_batch_size=128, steps=2), device="cpu", data_dir=None)
    cheap = train(tiny(expected_batch_size=128, steps=2, simulated_batch_size=8), device="cpu", data_dir=None)
    assert [cheap[name] for name in EPSILONS] == [None] * 3
    assert cheap["epsilon_simulated"] > 10 * real["epsilon_proven"]
    assert "epsilon_simulated" not in real


def test_of_fewer_records_a_batch_is_a_larger_share_and_costs_more() -> None:
    few = train(tiny(records=200, steps=2), device="cpu", data_dir=None)
    assert few["epsilon_proven"] > train(tiny(steps=2), device="cpu", data_dir=None)["epsilon_proven"]


def test_a_run_that_diverges_has_no_outcome() -> None:
    job = tiny(method="plain-sgd", noise_multiplier=None, settings={"learning_rate": 1e38})
    with pytest.raises(Diverged):
        train(job, device="cpu", data_dir=None)


def test_the_seed_decides_the_halves_and_the_first_weights_and_leaves_torchs_generator_alone() -> None:
    known, before = data.load("digits"), torch.get_rng_state()
    one, again, other = (parts_of(tiny(seed=seed, scored_on="half"), known, looks=True) for seed in (3, 3, 4))
    assert one.public is not None
    assert torch.equal(one.scored.inputs, again.scored.inputs)
    assert not torch.equal(one.scored.inputs, other.scored.inputs)
    assert len(one.public) + len(one.scored) == len(known.test)
    not_looking = parts_of(tiny(seed=3, scored_on="half"), known, looks=False)  # both of a pair: on the same half
    assert torch.equal(one.scored.inputs, not_looking.scored.inputs)
    assert not_looking.public is None
    train(tiny(steps=1), device="cpu", data_dir=None)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fair_score_on_all_records_is_refused_where_acceptance_looks_at_some() -> None:
    with pytest.raises(InvalidValue, match="scored_on"):
        train(tiny(method="sa-dpsgd"), device="cpu", data_dir=None)


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


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def filled(*, seed: int = 0, **changed: Any) -> torch.nn.Module:
    model = build("small_cnn")
    training.fill(model, {**SHORT, **changed}, seed=seed, device=CPU, data_dir=None)
    return model


def first_layer(model: torch.nn.Module) -> torch.Tensor:
    return model.get_parameter("0.weight").detach().clone()


def test_the_part_is_trained_and_nothing_else_is_changed() -> None:
    torch.manual_seed(5)
    untouched = build("small_cnn")
    torch.manual_seed(5)
    model = filled()
    assert not torch.equal(first_layer(model), first_layer(untouched))
    assert torch.equal(model.get_parameter("3.weight"), untouched.get_parameter("3.weight"))
    torch.manual_seed(0)
    assert not torch.equal(first_layer(model), first_layer(build("small_cnn")))


def test_runs_of_one_seed_share_what_was_trained_and_others_do_not() -> None:
    first = first_layer(filled())
    assert torch.equal(first_layer(filled()), first)
    assert not torch.equal(first_layer(filled(seed=1)), first)
    assert not torch.equal(first_layer(filled(steps=3)), first)


def test_a_damaged_file_in_the_cache_is_trained_again() -> None:
    place = training.Pretraining.from_json(SHORT).place(0)
    place.parent.mkdir(parents=True)
    place.write_bytes(b"no weights")
    filled()
    assert place.stat().st_size > 500


def test_a_private_run_starts_from_the_part_that_was_trained_on_public_records() -> None:
    outcome = train(tiny(pretrained=SHORT, steps=2, evaluate_every=1), device="cpu", data_dir=None)
    assert [row[0] for row in outcome["trajectory"]] == [1, 2]
    assert outcome["epsilon_proven"] < outcome["epsilon_published"]
    assert training.Pretraining.from_json(SHORT).place(0).is_file()


def test_without_the_public_records_it_says_what_is_missing(tmp_path: Path) -> None:
    model = build("alexnet_like", frozen_convolutions=True)
    with pytest.raises(StoreError, match="cifar-100 is not on this machine"):
        training.fill(model, ON_CIFAR_100, seed=0, device=CPU, data_dir=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("part, channels", [("nothing", 1), ("1.weight", 1), ("0", 3)])
def test_a_part_that_the_network_lacks_or_has_in_another_shape_is_refused(part: str, channels: int) -> None:
    with pytest.raises(InvalidValue, match="pretrained must be"):
        training.fill(
            build("small_cnn", in_channels=channels), {**SHORT, "part": part}, seed=0, device=CPU, data_dir=None
        )
