"""Correlated noise: its matrix, its groups, its one charge and its one attempt; and an attack on all of it.

The reference coefficients are those of jax_privacy 2.0.0, normalised, with 64-bit floats enabled:
``matrix_factorization.toeplitz.optimize_banded_toeplitz(n=steps, bands=bands)`` and, for the error, the mean of
``toeplitz.per_query_error(strategy_coef=coefficients, n=steps)`` over (steps + 1) / 2.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, signal
from torch import Tensor

from lehr import fit
from lehr.accounting.accountant import answers, bound, claim
from lehr.accounting.events import (
    Adjacency,
    CorrelatedSteps,
    Event,
    Gaussian,
    InverseCorrelatedSteps,
    PoissonSampled,
    Repeated,
    counted,
)
from lehr.accounting.ledger import Ledger
from lehr.accounting.pld import PLD
from lehr.attacks import canaries as planting
from lehr.attacks.canaries import NUM_CLASSES, PRESENT, CoordinateCanaries
from lehr.attacks.harness import ObservedNoise, log_likelihood_ratio, plan_run, train_in_temporary_folder
from lehr.attacks.step_attack import _clipped_alone
from lehr.auditing import Scores, bounds
from lehr.auditing.bounds import mu_from_epsilon
from lehr.auditing.thresholds import Corrected
from lehr.config import MOMENTUM
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.by_name import named
from lehr.methods.dpsgd import dpsgd
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan, make_plan
from lehr.privacy.bands import (
    band_coefficients,
    inverse_band_coefficients,
    inverse_coefficients,
    moved_by_record,
    relative_error,
    square_root_coefficients,
    workload_column,
)
from lehr.privacy.correlated import CorrelatedNoise, CyclicPoissonSampling, InverseCorrelatedNoise
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Mechanism
from lehr.run.shape import RunFiles
from lehr.schedules import LinearDecay
from tests.attacks.sabotage import keys_of, scale_noise
from tests.run.test_loop import PLAN as LOOP_PLAN
from tests.run.test_loop import StopAt, charged, run, training, weights

KEY = RunKey(bytes(range(32)))
LIKE = {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=4, records=40, steps=10, delta=1e-3, bands=3)
JAX_PRIVACY = json.loads(Path(__file__).with_name("jax_privacy_reference.json").read_text(encoding="utf-8"))
REFERENCE = {  # (steps, bands): the first coefficients, and the error relative to independent noise
    (20, 2): ([0.8478255, 0.5302753], 0.7727029),
    (100, 3): ([0.7191240, 0.5317590, 0.4473176], 0.6155067),
    (100, 8): ([0.6441417, 0.3971482, 0.3319262, 0.2956951], 0.4397943),
    (500, 8): ([0.5376149, 0.3908164, 0.3519339, 0.3291951], 0.3845379),
    (500, 32): ([0.5383312, 0.3010617, 0.2435028, 0.2151149], 0.2412693),
    (2000, 16): ([0.4315353, 0.3054987, 0.2758285, 0.2608504], 0.2698212),
}


def dense(coefficients: tuple[float, ...], steps: int) -> np.ndarray[Any, Any]:
    column = np.zeros(steps)
    column[: len(coefficients)] = coefficients[:steps]
    return np.asarray(linalg.toeplitz(column, np.zeros(steps)))


def random_settings(count: int) -> list[tuple[int, int]]:
    drawn = np.random.default_rng(5)
    return [(int(steps), int(drawn.integers(2, min(steps, 24) + 1))) for steps in drawn.integers(2, 90, size=count)]


# Coefficients.


@pytest.mark.parametrize("setting, expected", REFERENCE.items(), ids=str)
def test_coefficients_are_those_of_jax_privacy(setting: tuple[int, int], expected: tuple[list[float], float]) -> None:
    steps, bands = setting
    found = band_coefficients(bands=bands, steps=steps)
    np.testing.assert_allclose(found[: len(expected[0])], expected[0], atol=2e-5)
    assert relative_error(inverse_coefficients(found, steps)) == pytest.approx(expected[1], rel=1e-6)


def test_matrix_is_as_it_is_said_to_be_at_random_settings() -> None:
    for steps, bands in random_settings(50):
        found = band_coefficients(bands=bands, steps=steps)
        matrix = dense(found, steps)
        assert np.linalg.norm(matrix, axis=0).max() <= 1
        assert np.linalg.norm(matrix[:, 0]) == pytest.approx(1, abs=1e-9)
        for group in range(bands):  # what a record of a group can move in one cycle, whichever of its steps it enters
            columns = matrix[:, group::bands]
            assert (np.count_nonzero(columns, axis=1) <= 1).all()
        np.testing.assert_allclose(
            dense(tuple(inverse_coefficients(found, steps)), steps) @ matrix, np.eye(steps), atol=1e-9
        )
        sums = np.tril(np.ones((steps, steps)))
        errors = np.linalg.norm(sums @ np.linalg.inv(matrix)) / np.linalg.norm(sums)
        assert relative_error(inverse_coefficients(found, steps)) == pytest.approx(errors)
        assert relative_error(inverse_coefficients(found, steps)) < 1
        first = square_root_coefficients(bands)
        assert (
            relative_error(inverse_coefficients(found, steps))
            <= relative_error(inverse_coefficients(first / np.linalg.norm(first), steps)) + 1e-12
        )


@pytest.mark.parametrize("row", JAX_PRIVACY["strategies"], ids=lambda row: f"{row['steps']}-{row['bands']}")
def test_matrices_agree_with_jax_privacy_at_random_settings(row: dict[str, Any]) -> None:
    steps, bands = row["steps"], row["bands"]
    found = band_coefficients(bands=bands, steps=steps)
    independent = math.sqrt((steps + 1) / 2)
    assert relative_error(inverse_coefficients(found, steps)) <= row["error"] / independent * (1 + 1e-6)
    assert relative_error(inverse_coefficients(found, steps)) == pytest.approx(row["error"] / independent, rel=1e-4)
    np.testing.assert_allclose(found[:4], row["coefficients"], atol=2e-3)
    cut_off = inverse_coefficients(square_root_coefficients(bands), bands)
    moved = moved_by_record(tuple(cut_off.tolist()), steps=steps, num_groups=row["groups"])
    assert moved == pytest.approx(row["moved"], rel=1e-9)
    momentum, column = row["momentum"], np.zeros(steps)
    column[:bands] = cut_off
    workload = workload_column(steps, momentum=momentum)
    error = relative_error(column, momentum=momentum) * math.sqrt(np.mean(np.cumsum(workload**2)))
    assert error == pytest.approx(row["inverse_error"], rel=1e-9)


def test_one_band_is_independent_noise() -> None:
    assert band_coefficients(bands=1, steps=10) == (1.0,)
    private = PrivateSum(values=LIKE, sensitivity=2.0)
    released = CorrelatedNoise((1.0,)).release(private, noise_multiplier=3.0, randomness=KEY.at(4, 0))
    expected = KEY.at(4, 0).normals("noise", LIKE)
    torch.testing.assert_close(released.values["bias"].double(), 6 * expected["bias"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("coefficients", [(0.9, 0.5), (0.0, 0.5), (math.nan, 0.1), (-0.5, 0.1), (math.inf,)])
def test_coefficients_without_a_proof_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match="coefficients"):
        CorrelatedNoise(coefficients)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_inverse_matrix_is_as_it_is_said_to_be_at_random_settings(momentum: float) -> None:
    drawn = np.random.default_rng(6)
    for steps, bands in random_settings(50):
        num_groups = int(drawn.integers(1, steps + 1))
        found = inverse_band_coefficients(bands=bands, steps=steps, num_groups=num_groups, momentum=momentum)
        assert len(found) == bands
        matrix = np.linalg.inv(dense(found, steps))
        assert matrix.min() > -1e-12
        enters = np.arange(steps)[:, None] % num_groups == np.arange(num_groups)
        moved = np.linalg.norm(matrix @ enters, axis=0)
        assert moved.max() <= 1
        assert moved[0] == pytest.approx(1, abs=1e-9)
        assert (np.diff(moved) <= 1e-12).all()
        some = enters * drawn.integers(0, 2, size=(steps, 1))  # not at all of its steps, and in any direction
        directions = drawn.normal(size=(steps, 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        assert np.linalg.norm(matrix @ (some[:, :1] * directions)) <= moved[0] + 1e-12
        column = InverseCorrelatedNoise(found, num_groups=num_groups, steps=steps).column(steps)
        np.testing.assert_allclose(column, dense(found, steps)[:, 0])
        workload = dense(tuple(workload_column(steps, momentum=momentum)), steps)
        errors = np.linalg.norm(workload @ dense(found, steps)) / np.linalg.norm(workload)
        assert relative_error(column, momentum=momentum) == pytest.approx(errors)
        plain = inverse_coefficients(square_root_coefficients(bands, momentum=momentum), bands)
        norm = moved_by_record(tuple(plain.tolist()), steps=steps, num_groups=num_groups)
        cut_off = InverseCorrelatedNoise(
            tuple((norm * plain / (1 - 1e-12)).tolist()), num_groups=num_groups, steps=steps
        )
        assert errors <= relative_error(cut_off.column(steps), momentum=momentum) + 1e-9


def test_inverse_square_root_is_that_of_the_workload() -> None:
    for momentum in (0.0, 0.5, 0.9):
        root = dense(tuple(square_root_coefficients(40, momentum=momentum)), 40)
        np.testing.assert_allclose((root @ root)[:, 0], workload_column(40, momentum=momentum), rtol=1e-12)


def test_coefficients_for_the_momentum_have_less_error_with_it() -> None:
    plain = InverseCorrelatedNoise.of(bands=8, steps=400, num_groups=100)
    fitting = InverseCorrelatedNoise.of(bands=8, steps=400, num_groups=100, momentum=0.9)
    column, fitting_column = plain.column(400), fitting.column(400)
    assert relative_error(fitting_column, momentum=0.9) < 0.9 * relative_error(column, momentum=0.9)
    assert relative_error(column) < 0.9 * relative_error(fitting_column)
    banded = [
        inverse_coefficients(band_coefficients(bands=8, steps=400, momentum=momentum), 400) for momentum in (0.0, 0.9)
    ]
    assert relative_error(banded[1], momentum=0.9) < 0.98 * relative_error(banded[0], momentum=0.9)


@pytest.mark.parametrize(
    "coefficients",
    [
        (1.0, -0.5),
        (2.0, 0.1, -0.9),
        (0.0, -0.5),
        (math.nan, -0.1),
        (9.0, math.nan),
        (math.inf, -0.1),
        (9.0, -math.inf),
    ],
)
def test_inverse_coefficients_without_a_proof_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(InvalidValue, match="coefficients"):
        InverseCorrelatedNoise(coefficients, num_groups=3, steps=9)


@pytest.mark.parametrize("momentum", [1.0, -0.1, math.nan])
def test_momentum_out_of_range_is_refused(momentum: float) -> None:
    with pytest.raises(InvalidValue, match="momentum"):
        workload_column(3, momentum=momentum)


# Noise.


def noise_of(noise: CorrelatedNoise, step: int, *, attempt: int = 0) -> Tensor:
    found = noise.correlated(KEY.at(step, attempt), LIKE)
    return torch.cat([value.flatten() for value in found.values()])


def test_noise_is_the_inverse_of_the_matrix_times_independent_noise() -> None:
    for steps, bands in random_settings(50)[:12]:
        noise = CorrelatedNoise.of(bands=bands, steps=steps)
        found = torch.stack([noise_of(noise, step) for step in range(steps)]).numpy()
        fresh = torch.stack(
            [
                torch.cat([value.flatten() for value in KEY.at(step, 0).normals("noise", LIKE).values()])
                for step in range(steps)
            ]
        ).numpy()
        np.testing.assert_allclose(found, np.linalg.solve(dense(noise.coefficients, steps), fresh), atol=1e-9)


def test_inverse_noise_is_the_banded_matrix_times_independent_noise_and_keeps_none_of_it() -> None:
    noise = InverseCorrelatedNoise.of(bands=5, steps=12, num_groups=4)
    fresh = torch.stack(
        [
            torch.cat([value.flatten() for value in KEY.at(step, 0).normals("noise", LIKE).values()])
            for step in range(12)
        ]
    ).numpy()
    expected = dense(noise.coefficients, 12) @ fresh
    for step in (7, 0, 3, 11, 4, 7):
        np.testing.assert_allclose(noise_of(noise, step).numpy(), expected[step], atol=1e-12)
    assert not noise._memory.outputs
    with pytest.raises(InvalidValue, match="step"):
        noise_of(noise, 12)


def test_noise_of_a_step_is_the_same_whatever_was_computed_before() -> None:
    noise = CorrelatedNoise.of(bands=5, steps=30)
    in_turn = [noise_of(noise, step).clone() for step in range(12)]
    for step in (11, 3, 4, 11, 0):
        assert torch.equal(noise_of(noise, step), in_turn[step])
        assert torch.equal(noise_of(CorrelatedNoise.of(bands=5, steps=30), step), in_turn[step])
    assert not torch.equal(noise_of(noise, 7, attempt=1), in_turn[7])
    assert torch.equal(noise_of(noise, 7), in_turn[7])


def test_no_more_outputs_are_held_than_the_bands_need() -> None:
    noise = CorrelatedNoise.of(bands=4, steps=30)
    for step in range(20):
        noise_of(noise, step)
    assert len(noise._memory.outputs) == 3
    assert "_memory" not in repr(noise)


@pytest.mark.parametrize("kind", [CorrelatedNoise, InverseCorrelatedNoise])
def test_stated_deviation_is_that_of_the_noise(kind: type[CorrelatedNoise]) -> None:
    noise = kind.of(bands=4, steps=30)
    like = {"weight": torch.zeros(40_000)}
    for step in (0, 1, 9):
        private = PrivateSum(values=like, sensitivity=0.5)
        released = noise.release(private, noise_multiplier=2.0, randomness=KEY.at(step, 0))
        assert isinstance(released.noise_std, float)
        assert float(released.values["weight"].std()) == pytest.approx(released.noise_std, rel=0.02)
        assert released.noise_std > 1.2  # larger than the σ·s = 1 of independent noise; sums of steps have less


# Sampling.


def test_records_are_drawn_from_the_group_of_the_step_with_the_probability_of_the_event() -> None:
    sampling = CyclicPoissonSampling(expected_batch_size=20, records=400, num_groups=5, steps=1000)
    groups = sampling.groups(400, KEY.at(0, 0))
    event: Any = sampling.event(Gaussian(1.0))
    assert event == CorrelatedSteps(1000, 5, 0.25, Gaussian(1.0))
    drawn = 0
    for step in range(1000):
        indices = sampling.draw(400, KEY.at(step, 0))
        assert (groups[indices] == step % 5).all()
        drawn += len(indices)
    coins = 200 * sum(int((groups == group).sum()) for group in range(5))
    assert abs(drawn - coins * 0.25) < 4 * math.sqrt(coins * 0.25 * 0.75)


def test_groups_are_independent_of_other_records_and_balanced() -> None:
    sampling = CyclicPoissonSampling(expected_batch_size=20, records=40_000, num_groups=4, steps=10)
    groups = sampling.groups(40_000, KEY.at(3, 0))
    assert torch.equal(groups[:-1], sampling.groups(39_999, KEY.at(7, 0)))
    assert (torch.bincount(groups, minlength=4) - 10_000).abs().max() < 400
    pairs = torch.bincount(4 * groups[1:] + groups[:-1], minlength=16)
    assert (pairs - 2500).abs().max() < 5 * 50


def test_steps_after_the_last_and_too_many_bands_are_refused() -> None:
    sampling = CyclicPoissonSampling(expected_batch_size=20, records=400, num_groups=5, steps=10)
    with pytest.raises(InvalidValue, match="step"):
        sampling.draw(400, KEY.at(10, 0))
    with pytest.raises(InvalidValue, match="num_groups"):
        CyclicPoissonSampling(expected_batch_size=20, records=400, num_groups=21, steps=10)


# The event, and its ε.


@pytest.mark.parametrize("row", JAX_PRIVACY["events"], ids=lambda row: f"{row['steps']}-{row['bands']}")
def test_event_costs_what_jax_privacy_says_at_random_settings(row: dict[str, Any]) -> None:
    event = CorrelatedSteps(row["steps"], row["bands"], row["probability"], Gaussian(row["noise_multiplier"]))
    found = PLD.epsilon(event, delta=JAX_PRIVACY["delta"], adjacency=PLAN.adjacency)
    assert found == pytest.approx(row["epsilon"], rel=5e-3, abs=1e-3)


def test_event_is_one_of_cycles_for_every_accountant_and_the_claim_names_its_proof() -> None:
    event = CorrelatedSteps(21, 4, 0.3, Gaussian(1.5))
    cycles = Repeated(PoissonSampled(0.3, Gaussian(1.5)), 6)
    assert bound(event, delta=1e-5).epsilon == bound(cycles, delta=1e-5).epsilon
    twice = bound(Repeated(event, 2), delta=1e-5).epsilon
    assert twice == bound(Repeated(cycles, 2), delta=1e-5).epsilon
    assert "correlated.proof.md" in claim(event, delta=1e-5).theorem


def test_inverse_event_is_one_gaussian_for_every_accountant_and_the_claim_names_its_proof() -> None:
    event = InverseCorrelatedSteps(48, 3, 4, Gaussian(1.5))
    assert bound(event, delta=1e-5).epsilon == bound(Gaussian(1.5), delta=1e-5).epsilon
    assert bound(Repeated(event, 2), delta=1e-5).epsilon == bound(Repeated(Gaussian(1.5), 2), delta=1e-5).epsilon
    assert "correlated.proof.md" in claim(event, delta=1e-5).theorem


@pytest.mark.parametrize(
    "event", [CorrelatedSteps(48, 3, 0.3, Gaussian(1.5)), InverseCorrelatedSteps(48, 3, 4, Gaussian(1.5))]
)
def test_no_accountant_counts_correlated_noise_where_records_are_replaced(event: Event) -> None:
    """A record that takes the place of another moves the steps of both."""
    assert all(each.epsilon is None for each in answers(event, delta=1e-5, adjacency=Adjacency.REPLACE_ONE))
    assert all(each.epsilon for each in answers(event, delta=1e-5, adjacency=Adjacency.ZERO_OUT))


def test_event_is_not_divided_by_a_ledger(tmp_path: Path) -> None:
    with Ledger.create(
        tmp_path / "ledger", run="run", plan_event=PLAN.event, delta=1e-3, adjacency=PLAN.adjacency
    ) as ledger:
        with pytest.raises(Exception, match="left"):
            ledger.record(PLAN.events(0, 5))
        ledger.record(PLAN.event)
        ledger.accepted(10)
        with pytest.raises(InvalidValue, match="count"):
            ledger.accepted(1)


# Plans, and what they refuse.


def test_plan_solves_for_each_of_its_numbers_with_bands() -> None:
    common: dict[str, Any] = {"records": 1000, "delta": 1e-5, "bands": 4}
    plan = make_plan(epsilon=3.0, steps=100, expected_batch_size=50, **common)
    assert plan.event == CorrelatedSteps(100, 4, 0.2, Gaussian(plan.noise_multiplier))
    assert 2.99 < plan.bound().epsilon <= 3
    assert Plan.from_json(plan.to_json()) == plan
    assert make_plan(epsilon=3.0, noise_multiplier=plan.noise_multiplier, expected_batch_size=50, **common).steps == 100
    batch = make_plan(epsilon=3.0, noise_multiplier=plan.noise_multiplier, steps=100, **common).expected_batch_size
    assert batch == pytest.approx(50, rel=1e-2)
    loud = make_plan(epsilon=30.0, noise_multiplier=5.0, steps=8, **common)
    assert loud.bands * loud.expected_batch_size == pytest.approx(1000)
    assert plan.curve().at(100) == pytest.approx(plan.bound().epsilon)


def test_plan_with_bands_of_the_inverse_has_as_many_groups_as_the_batch_allows() -> None:
    common: dict[str, Any] = {"records": 1000, "delta": 1e-5, "bands": 3, "correlation": "banded-inverse"}
    plan = make_plan(epsilon=3.0, steps=100, expected_batch_size=70, **common)
    assert plan.num_groups == 14
    assert plan.event == InverseCorrelatedSteps(100, 3, 14, Gaussian(plan.noise_multiplier))
    assert 2.99 < plan.bound().epsilon <= 3
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.curve().at(1) == pytest.approx(plan.bound().epsilon)
    assert make_plan(epsilon=3.0, steps=9, expected_batch_size=70, **common).num_groups == 9
    alone: list[dict[str, Any]] = [{"steps": 100}, {"expected_batch_size": 70}]
    for given in alone:
        with pytest.raises(InvalidValue, match="steps and expected_batch_size"):
            make_plan(epsilon=3.0, noise_multiplier=2.0, **given, **common)
    for changed in ({"bands": 1}, {"correlation": "inverse"}):
        with pytest.raises(InvalidValue, match=next(iter(changed))):
            replace(plan, **changed)


def test_plans_of_earlier_versions_are_of_banded_matrices() -> None:
    shape = PLAN.to_json()
    del shape["correlation"]
    assert Plan.from_json(shape) == PLAN


@pytest.mark.parametrize("form", ["banded", "banded-inverse"])
def test_mechanism_has_the_event_of_the_plan_and_the_coefficients_of_the_momentum(form: str) -> None:
    plan = replace(PLAN, correlation=form)
    mechanism = Mechanism.of(dpsgd(momentum=0.5), plan)
    assert mechanism.event(1.0) == plan.event
    kind = InverseCorrelatedNoise if form == "banded-inverse" else CorrelatedNoise
    assert mechanism.noise == kind.of(bands=3, steps=10, num_groups=plan.num_groups, momentum=0.5)
    assert mechanism.noise != kind.of(bands=3, steps=10, num_groups=plan.num_groups)


@pytest.mark.parametrize(
    "changed",
    [
        {"noise_schedule": LinearDecay(steps=20, last=0.5)},
        {"asked": Gaussian(2.0)},
        {"largest_batch": 10},
        {"records_per_user": 2},
        {"stops_at_accepted": 3},
        {"bands": 11},
        {"bands": 0},
        {"bands": math.nan},
    ],
    ids=str,
)
def test_plans_without_a_proof_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="bands"):
        replace(PLAN, **changed)


@pytest.mark.parametrize("name", ["adadp", "sa-dpsgd", "dpsur", "agd", "plain-sgd"])
def test_methods_with_other_noise_or_acceptance_are_refused(name: str) -> None:
    method = named(name)
    with pytest.raises(InvalidValue):
        Mechanism.of(method, replace(PLAN, noise_multiplier=1.0 if method.is_private else 0.0))


def fitted(directory: Path, **changed: Any) -> Any:
    drawn = torch.Generator().manual_seed(0)
    data = torch.randn(200, 5, generator=drawn), torch.randint(0, 2, (200,), generator=drawn)
    given = {"epsilon": 4.0, "delta": 1e-3, "steps": 12, "batch_size": 10, "records": 200, "num_classes": 2, "bands": 4}
    stated = {"settings_chosen_on": "fixed", "quiet": True, "compiled": False, "device": "cpu"}
    return fit(torch.nn.Linear(5, 2), data, directory=directory, **{**given, **stated, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"held_out_fraction": 0.2},
        {"phases": [{"steps": 4, "trained": ["bias"]}, {}]},
        {"sampling": "without-replacement"},
        {"owners": torch.arange(200) // 2, "records": None, "users": 100},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_fit_refuses_what_is_not_proven_before_anything_is_spent(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="bands"):
        fitted(tmp_path / "run", **changed)
    assert not (tmp_path / "run").exists()


# The run: one charge, one attempt.


def test_fit_charges_all_steps_once_and_returns_nothing_to_a_budget(tmp_path: Path) -> None:
    Budget.create(tmp_path / "all.budget", dataset="data", epsilon=20.0, delta=1e-3).close()
    found = fitted(tmp_path / "run", budget=tmp_path / "all.budget", test=None)
    assert found.proven.epsilon <= 4
    with Budget.open(tmp_path / "all.budget") as budget:
        [paid] = budget.status().runs
    [(atom, count)] = counted(paid.used).items()
    assert count == 1
    assert atom == CorrelatedSteps(12, 4, 0.2, Gaussian(atom.event.noise_multiplier))  # type: ignore[union-attr]


def test_fit_with_bands_of_the_inverse_is_charged_as_one_event(tmp_path: Path) -> None:
    found = fitted(tmp_path / "run", correlation="banded-inverse", test=None)
    assert found.proven.epsilon <= 4
    [(atom, count)] = counted(charged(tmp_path / "run")).items()
    assert count == 1
    assert atom == InverseCorrelatedSteps(12, 4, 12, Gaussian(atom.event.noise_multiplier))  # type: ignore[union-attr]


def test_all_steps_are_charged_before_the_first_draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = training(plan=replace(LOOP_PLAN, bands=3))
    seen = []
    draw = CyclicPoissonSampling.draw

    def watched(self: CyclicPoissonSampling, *args: Any, **named: Any) -> Tensor:
        with Ledger.open(RunFiles(tmp_path / "run").ledger) as ledger:
            seen.append(ledger.charged())
        return draw(self, *args, **named)

    monkeypatch.setattr(CyclicPoissonSampling, "draw", watched)
    run(tmp_path / "run", given)
    assert [counted(event) for event in seen] == [counted(given.run_plan.event)] * 6


@pytest.mark.parametrize("form", ["banded", "banded-inverse"])
def test_resumed_run_is_bit_identical_and_free(tmp_path: Path, form: str) -> None:
    plan = replace(LOOP_PLAN, bands=3, correlation=form)
    # A checkpoint at every step: the resumed run has to regenerate the noise of steps that it does not repeat.
    whole, broken, again = (training(plan=plan, checkpoint_seconds=0.0) for _ in range(3))
    run(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", broken, [StopAt(4)])
    _, end = run(tmp_path / "broken", again)
    assert end.step == 6
    assert torch.equal(weights(whole), weights(again))
    assert counted(charged(tmp_path / "broken")) == counted(whole.run_plan.event)


@pytest.mark.parametrize("environment", [{"same": "no longer"}, None])
def test_run_that_cannot_be_repeated_bit_for_bit_is_not_resumed(
    tmp_path: Path, environment: dict[str, str] | None
) -> None:
    plan = replace(LOOP_PLAN, bands=3)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", training(plan=plan, environment={"same": "at first"}), [StopAt(4)])
    attempts = (tmp_path / "run/private/attempts.jsonl").read_bytes()
    with pytest.raises(InvalidValue, match="bit for bit"):
        run(tmp_path / "run", training(plan=plan, environment=environment))
    assert (tmp_path / "run/private/attempts.jsonl").read_bytes() == attempts
    assert counted(charged(tmp_path / "run")) == {plan.event: 1}


# The attack: every released sum is seen, and who is in which group is known.


AUDITED = make_plan(epsilon=3.0, delta=1e-5, records=2000, steps=400, expected_batch_size=200, bands=4)
INVERSE_AUDITED = make_plan(
    epsilon=3.0, delta=1e-5, records=2000, steps=48, expected_batch_size=500, bands=3, correlation="banded-inverse"
)


def attacked(key: RunKey, plan: Plan, *, num_canaries: int) -> tuple[Scores, float]:
    """The log likelihood ratios of canaries in a run of the real loop, and the run's proven ε."""
    planted, method = CoordinateCanaries(num_canaries=num_canaries), dpsgd(learning_rate=1e-6)
    is_present = key.at(0, 0).uniforms("canaries", num_canaries) < 0.5
    rows = is_present.nonzero().squeeze(1)
    decided = plan_run(
        planted.network(),
        planted.records(rows, torch.full_like(rows, PRESENT)),
        method=method,
        plan=plan,
        loss_fn=planting.loss,
        num_classes=NUM_CLASSES,
        physical_batch=1024,
    )
    alone = _clipped_alone(method, planted)
    unit = {name: size.double() / alone.sensitivity for name, size in planted.sizes(alone.values).items()}
    seen: list[Tensor] = []

    def observe(private: PrivateSum, released: ReleasedSum) -> None:
        along = {name: unit[name] * value.double() / private.sensitivity for name, value in released.values.items()}
        seen.append(planted.along(along))

    mechanism = decided.mechanism
    decided.__dict__["mechanism"] = replace(mechanism, noise=ObservedNoise(mechanism.noise, observe))
    proven = train_in_temporary_folder(decided, key=key).proven.epsilon
    # What the noise, the groups and the probability are said to be, not what they are.
    sampling = CyclicPoissonSampling(
        expected_batch_size=plan.expected_batch_size, records=plan.records, num_groups=plan.num_groups, steps=plan.steps
    )
    groups = (key.at(1, 0).uniforms("groups of others", num_canaries) * plan.num_groups).long()
    groups[rows] = sampling.groups(len(rows), key.at(0, 0))
    squared = sum(float(size.square().sum()) for size in unit.values())
    ratios_of = inverse_ratios if plan.correlation == "banded-inverse" else banded_ratios
    scores = ratios_of(plan, torch.stack(seen).numpy(), groups, squared, sampling)
    return Scores(scores[is_present].numpy(), scores[~is_present].numpy()), proven


def banded_ratios(plan: Plan, seen: Any, groups: Tensor, squared: float, sampling: CyclicPoissonSampling) -> Tensor:
    """The sum of the ratios of all cycles: a record may have been drawn in each of them."""
    coefficients = band_coefficients(bands=plan.bands, steps=plan.steps, momentum=MOMENTUM)
    rows_of_v = signal.lfilter(coefficients, [1.0], seen, axis=0)
    scores = torch.zeros(len(groups), dtype=torch.float64)
    for first in range(plan.steps):
        kept = coefficients[: plan.steps - first]
        along = torch.from_numpy(np.asarray(kept) @ rows_of_v[first : first + len(kept)]) / plan.noise_multiplier**2
        precision = squared * math.fsum(value**2 for value in kept) / plan.noise_multiplier**2
        ratios = log_likelihood_ratio(
            along, precision=precision, probability=sampling.within_group.sampling_probability
        )
        scores += torch.where(groups == first % plan.bands, ratios, 0.0)
    return scores


def inverse_ratios(plan: Plan, seen: Any, groups: Tensor, squared: float, sampling: CyclicPoissonSampling) -> Tensor:
    """The ratio of the whole run, in which a record enters at each step of its group."""
    assert sampling.within_group.sampling_probability == 1
    inverse = inverse_band_coefficients(
        bands=plan.bands, steps=plan.steps, num_groups=plan.num_groups, momentum=MOMENTUM
    )
    rows_of_v = signal.lfilter([1.0], inverse, seen, axis=0)
    enters = np.arange(plan.steps)[:, None] % plan.num_groups == np.arange(plan.num_groups)
    moved = signal.lfilter([1.0], inverse, enters, axis=0)[:, groups.numpy()]
    assert np.linalg.norm(moved, axis=0).max() == pytest.approx(1, abs=1e-6)
    along, precision = (moved * rows_of_v).sum(axis=0), squared * (moved**2).sum(axis=0)
    return torch.from_numpy((along - precision / 2) / plan.noise_multiplier**2)


def certified(scores: Scores, plan: Plan) -> float:
    """The lower bound on ε by a Gaussian trade-off, at four thresholds with correction."""
    rates = np.geomspace(plan.delta, 0.3, 6).tolist()
    at_delta, *others = (mu_from_epsilon(bound(plan.event, delta=rate).epsilon, delta=rate) for rate in rates)
    share = at_delta / max(at_delta, *others)
    found = bounds.gaussian_tradeoff(
        scores, threshold=Corrected(tried=4), mu_share=share, delta=plan.delta, confidence=0.95
    )
    return found.epsilon


@pytest.mark.parametrize("plan", [AUDITED, INVERSE_AUDITED], ids=["banded", "inverse"])
def test_attack_comes_close_to_the_claim_and_does_not_exceed_it(plan: Plan) -> None:
    scores, proven = attacked(next(keys_of("correlated noise")), plan, num_canaries=4096)
    assert 0.7 * proven <= certified(scores, plan) <= proven


@pytest.mark.parametrize("plan", [AUDITED, INVERSE_AUDITED], ids=["banded", "inverse"])
def test_attack_refutes_half_the_noise(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.5)
    scores, proven = attacked(next(keys_of("half")), plan, num_canaries=4096)
    assert certified(scores, plan) > proven
