"""A plan from whatever public numbers there are."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lehr import accounting
from lehr.accounting.events import Gaussian, NonPrivate, PoissonSampled, Repeated, counted, together
from lehr.errors import InvalidValue
from lehr.methods.adadp import adadp
from lehr.methods.dpsgd import dpsgd, plain_sgd
from lehr.methods.dpsur import dpsur
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.planning.plan import Plan
from lehr.planning.recommendation import PASSES
from lehr.training.public_plan import EVALUATIONS, MOST_CANDIDATES, evaluate_every, plan_for


def planned(**said: Any) -> Plan:
    return plan_for(**{"records": 400, "delta": 1e-3, **said})


def test_epsilon_alone_gives_a_plan() -> None:
    plan = planned(epsilon=4.0)
    assert plan.expected_batch_size == 80
    assert plan.steps == PASSES * 400 / 80
    assert 3.9 < plan.bound().epsilon <= 4.0


def test_given_numbers_are_kept() -> None:
    plan = planned(epsilon=4.0, steps=7, expected_batch_size=10)
    assert (plan.steps, plan.expected_batch_size) == (7, 10)
    plan = planned(noise_multiplier=2.0, steps=7)
    assert (plan.noise_multiplier, plan.steps, plan.expected_batch_size) == (2.0, 7, 80)


def test_batch_size_is_found_if_all_else_is_given() -> None:
    plan = planned(epsilon=1.0, steps=10, noise_multiplier=1.0)
    assert plan.expected_batch_size != 80
    assert 0.99 < plan.bound().epsilon <= 1.0


def test_epsilon_includes_side_events() -> None:
    beside = Repeated(Gaussian(5.0), 4)
    plan = planned(epsilon=3.0, steps=10, expected_batch_size=20, beside=beside)
    whole = together(plan.event, beside)
    assert 2.97 < accounting.bound(whole, delta=1e-3, adjacency=plan.adjacency).epsilon <= 3.0
    assert plan.bound().epsilon < 3.0


def test_batch_is_at_most_all_records() -> None:
    assert plan_for(records=5, delta=0.1, noise_multiplier=1.0, steps=2).expected_batch_size == 5


@pytest.mark.parametrize(
    "said, name",
    [
        ({}, "epsilon"),
        ({"steps": 5}, "epsilon"),
        ({"noise_multiplier": 1.0}, "epsilon"),
        ({"epsilon": 3.0, "expected_batch_size": 0}, "expected_batch_size"),
        ({"epsilon": 3.0, "expected_batch_size": -2.0}, "expected_batch_size"),
        ({"epsilon": 3.0, "expected_batch_size": float("nan")}, "expected_batch_size"),
        ({"epsilon": float("nan"), "steps": 2}, "epsilon"),
        ({"epsilon": 3.0, "records": 0}, "records"),
        ({"epsilon": 3.0, "records": 400.0}, "records"),
    ],
)
def test_invalid_numbers(said: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        planned(**said)
    assert caught.value.name == name


@pytest.mark.parametrize("steps", [1, 19, 20, 21, 40, 41, 1000, 1001])
def test_most_evaluations(steps: int) -> None:
    every = evaluate_every(steps)
    assert every >= 1
    assert -(-steps // every) <= EVALUATIONS
    assert every == 1 or -(-steps // (every - 1)) > EVALUATIONS


ASKING = dpsur(test_batch_size=40, test_noise_multiplier=2.0)


def test_epsilon_includes_the_methods_queries() -> None:
    plan = planned(epsilon=3.0, steps=4, expected_batch_size=20, method=ASKING)
    assert plan.asked == PoissonSampled(0.1, Gaussian(2.0))
    assert 2.97 < plan.bound().epsilon <= 3.0
    plain = planned(epsilon=3.0, steps=4, expected_batch_size=20, method=dpsgd())
    assert plain.noise_multiplier < plan.noise_multiplier


@pytest.mark.parametrize("threshold", [1, 10])
def test_published_plans_have_enough_candidates(threshold: int) -> None:
    method = sa_dpsgd(rejection_threshold=threshold, accounting="published")
    plan = planned(noise_multiplier=1.0, steps=7, method=method)
    assert (plan.stops_at_accepted, plan.steps) == (7, 7 * (threshold + 1))
    assert planned(noise_multiplier=1.0, steps=7, method=sa_dpsgd()).stops_at_accepted is None


def test_candidates_are_limited_if_rejections_are_not() -> None:
    published = dpsur(test_batch_size=40, accounting="published")
    plan = planned(noise_multiplier=1.0, steps=7, method=published)
    assert (plan.stops_at_accepted, plan.steps) == (7, 7 * MOST_CANDIDATES)
    assert counted(plan.event)[PoissonSampled(0.1, Gaussian(1.0))] == 70


def test_queries_without_noise_are_not_private() -> None:
    plan = planned(noise_multiplier=1.0, steps=7, method=adadp(accounting="published"))
    assert any(isinstance(atom, NonPrivate) for atom in counted(plan.event))
    assert plan.bound().epsilon == math.inf
    assert math.isfinite(planned(noise_multiplier=1.0, steps=7, method=adadp()).bound().epsilon)


def test_plan_without_privacy() -> None:
    plan = planned(steps=7, method=plain_sgd())
    assert (plan.steps, plan.noise_multiplier) == (7, 0.0)
    assert plan.bound().epsilon == math.inf
