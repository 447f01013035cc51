"""The step attack at small sizes; at full size, on every method: tests/attacks/test_subjects.py."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lehr import make_plan
from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.attacks import canaries as planting
from lehr.attacks import step_attack
from lehr.attacks.canaries import NUM_CLASSES, PRESENT, REPLACED, ZEROED, CoordinateCanaries, SignCanaries
from lehr.attacks.harness import observed, plan_run, train_in_temporary_folder
from lehr.attacks.step_attack import RunScores, attack, attack_once, canaries_for
from lehr.auditing import Scores, Verdict
from lehr.auditing.bounds import clopper_pearson, epsilon_from_mu, mu_from_epsilon
from lehr.errors import InvalidValue
from lehr.gradients.precision import margin
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.by_name import named
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.schedules import StepDecay
from tests.attacks.sabotage import SABOTAGES, keys_of, scale_noise

KEY = RunKey(bytes(32))
PLAN = make_plan(epsilon=8.0, delta=1e-5, records=1000, expected_batch_size=100, steps=30)
METHODS = ("dpsgd", "dpsgd-per-layer", "auto-s", "adadp", "dpopt", "sa-dpsgd")


@cache
def scores_of(name: str, plan: Plan = PLAN, *, num_canaries: int = 512) -> RunScores:
    method = named(name)
    return attack_once(method, plan, canaries=canaries_for(method, plan, num_canaries=num_canaries), key=KEY)


@pytest.mark.parametrize("name", METHODS)
def test_canaries_saturate_the_clip_and_only_those_present_stand_out(name: str) -> None:
    found, q = scores_of(name), PLAN.sampling_probability
    precision = (found.member_std**2 - 1) / (q * (1 - q))
    # A clip by norms leaves room for rounding, as much as its margin.
    room = 0 if named(name).clipping.needs_coordinates else margin(torch.float32)
    assert math.isclose(1 / math.sqrt(precision), PLAN.noise_multiplier * (1 + room), rel_tol=1e-3)
    others, members = found.by_mean.others, found.by_mean.members
    assert abs(others.mean()) < 5 / math.sqrt(len(others))
    assert abs(others.std() - 1) < 5 / math.sqrt(2 * len(others))
    expected = q * math.sqrt(PLAN.steps) / PLAN.noise_multiplier
    assert abs(members.mean() - expected) < 5 * found.member_std / math.sqrt(len(members))


def test_rejected_candidates_are_seen_too() -> None:
    found = scores_of("sa-dpsgd")
    assert found.steps_seen == PLAN.steps
    assert 0 < found.run.end.accepted < PLAN.steps


def test_rejected_gradients_that_stay_in_the_momentum_are_charged_and_show_no_more() -> None:
    audit = attack(named("sa-dpsgd", keeps_momentum=True), PLAN, num_canaries=2048, keys=keys_of("kept momentum"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.decisive.epsilon > 2.5  # of the 8 that are charged: all candidates are seen, rejected ones too


def test_the_bounds_of_adadp_come_to_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = []
    observe = step_attack.Adversary.observe

    def noting(self: step_attack.Adversary, private: PrivateSum, released: ReleasedSum) -> None:
        if private.bounds is not None:
            bounds = torch.cat([bound.flatten() for bound in private.bounds.values()])
            ratios.append(float(bounds.max() / bounds.min()))
        observe(self, private, released)

    monkeypatch.setattr(step_attack.Adversary, "observe", noting)
    scores_of("adadp", replace(PLAN, steps=60), num_canaries=2048)
    assert len(ratios) > 30
    assert max(ratios) > 1.5


@pytest.mark.parametrize("name", ["dpsgd", "adadp"])
def test_canaries_that_were_never_there_certify_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_attack, "_records", lambda canaries, *_: canaries.public())
    monkeypatch.setattr(SignCanaries, "expected", lambda *_, **__: {})
    audit = attack(named(name), PLAN, num_canaries=512, keys=keys_of("null"))
    assert audit.verdict is not Verdict.REFUTED
    assert [bound.epsilon for bound in audit.bounds] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("fault", [None, "noise halved", "clip off"])
def test_a_short_attack_finds_faults_and_nothing_else(fault: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    method = named("dpsgd")
    if fault is not None:
        method = SABOTAGES[fault](method, monkeypatch)
    audit = attack(method, PLAN, num_canaries=2048, keys=keys_of(f"short attack, {fault}"))
    assert (audit.verdict is Verdict.REFUTED) == (fault is not None)


@pytest.mark.parametrize("name", ["dpsgd", "adadp"])
def test_under_replace_one_a_canary_is_replaced_by_its_opposite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"noise_multiplier": 1.5, "delta": 1e-5, "expected_batch_size": 60, "steps": 30}
    plan = make_plan(records=600, adjacency=Adjacency.REPLACE_ONE, **numbers)  # type: ignore[arg-type]
    audit = attack(named(name), plan, num_canaries=600, keys=keys_of("replaced"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.bounds[1].epsilon > 0.2  # the accountant of this sampling is far from tight
    scale_noise(monkeypatch, 1 / 8)
    assert attack(named(name), plan, num_canaries=600, keys=keys_of("replaced")).verdict is Verdict.REFUTED
    with pytest.raises(InvalidValue, match=r"^records"):  # too few to be replaced
        attack(named(name), replace(plan, records=20, expected_batch_size=2))


@pytest.mark.parametrize("is_halved", [False, True])
def test_truncated_batches_keep_their_claim_and_not_with_half_the_noise(
    is_halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(epsilon=8.0, delta=1e-5, records=2048, expected_batch_size=400, steps=30, largest_batch=460)
    if is_halved:
        scale_noise(monkeypatch, 0.5)
    audit = attack(named("dpsgd"), plan, num_canaries=2048, keys=keys_of("truncated"))
    assert (audit.verdict is Verdict.REFUTED) == is_halved


@pytest.mark.parametrize("is_halved", [False, True])
def test_balls_in_bins_come_close_to_their_claim_and_not_with_half_the_noise(
    is_halved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(epsilon=8.0, delta=1e-5, records=2048, bins=5, steps=30)
    if is_halved:
        scale_noise(monkeypatch, 0.5)
    audit = attack(named("dpsgd"), plan, num_canaries=4096, keys=keys_of("balls in bins"))
    assert (audit.verdict is Verdict.REFUTED) == is_halved
    if not is_halved:
        assert all(check.passed for check in audit.checks)
        assert 4.0 < audit.decisive.epsilon < 8.0


AT_THREE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings of the method, and of the plan
    "quantile": ({"clip": "quantile"}, {"records": 60_000, "expected_batch_size": 6_000}),
    "discrete": ({"noise": "discrete"}, {"records": 60_000, "expected_batch_size": 6_000, "noise": "discrete"}),
    "balls-in-bins": ({}, {"records": 60_000, "bins": 10}),
    "truncated": ({}, {"records": 2200, "expected_batch_size": 220, "largest_batch": 262}),
}


@pytest.mark.parametrize("name", AT_THREE)
def test_at_epsilon_three_most_of_the_claim_is_certified_and_half_the_noise_refuted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_method, of_plan = AT_THREE[name]
    method, plan = named("dpsgd", **of_method), make_plan(epsilon=3.0, delta=1e-5, steps=400, **of_plan)
    audit = attack(method, plan, num_canaries=4096, keys=keys_of("table a"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert 0.7 * audit.claimed_epsilon <= audit.decisive.epsilon <= audit.claimed_epsilon
    scale_noise(monkeypatch, 0.5)
    assert attack(method, plan, num_canaries=4096, keys=keys_of("half")).verdict is Verdict.REFUTED


@pytest.mark.parametrize("largest_batch", [None, 1690])
def test_records_that_are_zeroed_out_show_most_of_the_claim_and_refute_half_the_noise(
    largest_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(
        epsilon=3.0,
        delta=1e-5,
        records=2048,
        expected_batch_size=1638,  # a large share: orthogonal canaries are then close to the worst case
        steps=100,
        largest_batch=largest_batch,
        adjacency=Adjacency.ZERO_OUT,
    )
    audit = attack(named("dpsgd"), plan, num_canaries=4096, keys=keys_of("zeroed out"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert all(check.passed for check in audit.checks)
    assert audit.decisive.epsilon >= 0.7 * audit.claimed_epsilon
    scale_noise(monkeypatch, 0.5)
    assert attack(named("dpsgd"), plan, num_canaries=4096, keys=keys_of("zeroed out")).verdict is Verdict.REFUTED


def sums_beside_opposites(plan: Plan, own: int, *, key: RunKey) -> np.ndarray[Any, Any]:
    """What a run releases, in clip norms along a canary or its stand-in; all other records are its opposite."""
    planted, seen = CoordinateCanaries(num_canaries=1, num_layers=1), list[float]()

    def look(private: PrivateSum, released: ReleasedSum) -> None:
        seen.append(float(planted.along(released.values)) / private.sensitivity)

    targets = torch.full((plan.records,), REPLACED)
    targets[0] = own
    run = plan_run(
        planted.network(),
        planted.records(torch.zeros_like(targets), targets),
        method=observed(named("dpsgd"), look),
        plan=plan,
        loss_fn=planting.loss,
        num_classes=NUM_CLASSES,
    )
    train_in_temporary_folder(run, key=key)
    return np.array(seen)


@pytest.mark.slow
def test_fixed_batches_keep_their_claim_beside_opposites_and_refute_that_of_poisson_batches() -> None:
    """The worst case of zero-out, one step at a time: two runs, with the canary and without, of 4,096 steps each.

    A step is a draw of one record of ten. The bound assumes nothing, and its threshold is fixed beforehand.
    """
    plan = make_plan(epsilon=3.0, delta=0.01, records=10, expected_batch_size=1, steps=1, adjacency=Adjacency.ZERO_OUT)
    keys = keys_of("opposites")
    members, others = (
        sums_beside_opposites(replace(plan, steps=4096), own, key=next(keys)) for own in (PRESENT, ZEROED)
    )
    certified = clopper_pearson(Scores(members, others), delta=0.01, threshold=1.25).epsilon
    as_poisson = bound(PoissonSampled(0.1, Gaussian(plan.noise_multiplier)), delta=0.01).epsilon
    assert as_poisson < 1.1 < certified < plan.bound().epsilon


def test_without_sampling_the_score_is_linear() -> None:
    plan = make_plan(epsilon=4.0, delta=1e-5, records=600, expected_batch_size=600, steps=10)
    found = scores_of("dpsgd", plan)
    assert np.allclose(np.corrcoef(found.by_likelihood.members, found.by_mean.members), 1.0)
    assert attack(named("dpsgd"), plan, num_canaries=2048, keys=keys_of("all")).decisive.epsilon > 2.0


def test_schedules_of_noise_and_clip_are_followed() -> None:
    schedule = StepDecay(every=15, decay=0.5)
    plan = make_plan(epsilon=8.0, delta=1e-5, records=1000, expected_batch_size=100, steps=30, noise_schedule=schedule)
    audit = attack(named("dpsgd", clip_schedule=schedule), plan, num_canaries=4096, keys=keys_of("schedules"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.checks[0].passed
    assert audit.decisive.epsilon > 2.5


def test_the_same_keys_give_the_same_audit_and_fresh_ones_another() -> None:
    first, again, other = (
        attack(named("dpsgd"), PLAN, num_canaries=256, keys=keys) for keys in (keys_of("one"), keys_of("one"), None)
    )
    assert first == again
    assert first.roc != other.roc


def test_patterns_are_spread_over_runs_and_pooled() -> None:
    audit = attack(named("adadp"), replace(PLAN, steps=2), num_canaries=4096)
    assert audit.runs == 2
    assert audit.members + audit.others == 2 * (2048 - 4)


def test_the_gaussian_curve_understates_what_sampled_steps_cost_beyond_the_rates_that_were_counted() -> None:
    pld = ACCOUNTANTS["pld"]
    for q, sigma, steps in ((0.1, 2.94, 400), (512 / 60_000, 1.23, 4698), (0.01, 0.8, 500), (0.05, 0.7, 10)):
        event = Repeated(PoissonSampled(q, Gaussian(sigma)), steps)
        costs = [pld.epsilon(event, delta=delta, adjacency=Adjacency.ADD_OR_REMOVE_ONE) for delta in (1e-2, 1e-5)]
        assert epsilon_from_mu(mu_from_epsilon(costs[0], delta=1e-2), delta=1e-5) < costs[1]


@pytest.mark.parametrize(
    "records, batch, noise_multiplier, steps, delta",
    [(1000, 10, 0.25, 1, 0.01), (1000, 10, 0.3, 3, 0.03), (200, 2, 0.25, 2, 0.015), (300, 1, 0.2, 1, 0.0033)],
)
def test_an_honest_plan_is_not_refuted_where_delta_is_among_the_rates_that_are_counted(
    records: int, batch: int, noise_multiplier: float, steps: int, delta: float
) -> None:
    plan = Plan(records=records, expected_batch_size=batch, noise_multiplier=noise_multiplier, steps=steps, delta=delta)
    audit = attack(named("dpsgd"), plan, keys=keys_of("large delta"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.decisive.epsilon <= audit.claimed_epsilon


def test_missing_draws_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PoissonSampling, "draw", lambda *_, **__: torch.arange(0))
    audit = attack(named("dpsgd"), PLAN, num_canaries=2048, keys=keys_of("nobody is drawn"))
    assert audit.verdict is Verdict.SUSPICIOUS
    assert audit.objections == (step_attack.DRAWN_AS_STATED,)


def test_bad_arguments_are_refused_before_anything_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_attack, "attack_once", lambda *_, **__: pytest.fail("it was run"))
    for wrong in ({"num_canaries": 10}, {"confidence": 1.0}, {"confidence": math.nan}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            attack(named("dpsgd"), PLAN, **wrong)
    with pytest.raises(InvalidValue, match=r"^method"):
        attack(named("plain-sgd"), replace(PLAN, noise_multiplier=0.0))
