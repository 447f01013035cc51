from __future__ import annotations

import itertools
import math

import pytest
import torch

from lehr import data
from lehr.errors import Diverged, InvalidValue
from lehr.papers.training import parts_of, train
from tests.papers.made_up_jobs import tiny

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


def test_without_a_rhythm_the_end_alone_is_scored() -> None:
    assert [row[0] for row in train(tiny(), device="cpu", data_dir=None)["trajectory"]] == [4]


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
    train(tiny(steps=1), device="cpu", data_dir=None)
    assert torch.equal(torch.get_rng_state(), before)


def test_both_of_a_pair_are_scored_on_the_same_half() -> None:
    known, job = data.load("digits"), tiny(scored_on="half")
    looking, not_looking = (parts_of(job, known, looks=looks) for looks in (True, False))
    assert torch.equal(looking.scored.inputs, not_looking.scored.inputs)
    assert not_looking.public is None


def test_a_fair_score_on_all_records_is_refused_where_acceptance_looks_at_some() -> None:
    with pytest.raises(InvalidValue, match="scored_on"):
        train(tiny(method="sa-dpsgd"), device="cpu", data_dir=None)
