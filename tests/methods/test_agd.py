"""AGD: what each step costs depends on what was released, within a limit that was fixed in advance."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.acceptance.proposal import PrivateChoice
from lehr.acceptance.rules import NoisyMax, Salvage
from lehr.accounting.events import (
    Adjacency,
    Event,
    Gaussian,
    PoissonSampled,
    PureDP,
    SampledWithoutReplacement,
    counted,
    together,
)
from lehr.accounting.filter import is_within
from lehr.accounting.ledger import Entry, Ledger
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, StepOutcome
from lehr.methods.agd import agd
from lehr.privacy.noise import BudgetedNoise, with_rounding
from lehr.privacy.rng import RunKey
from lehr.run.shape import SPENT, Callback, Progress
from lehr.training.ending import Run
from lehr.training.public_plan import plan_for
from tests.acceptance.proposed import Proposed
from tests.training.tiny import HELD, STATED, fit_tiny, new_budget

EPSILON, GROWTH = 40.0, 0.1
CHOICE: dict[str, Any] = {"choice_epsilon": 0.5, "choice_batch_size": 8, "step_sizes": 2}
PLANNED: dict[str, Any] = {"epsilon": EPSILON, "noise_multiplier": None, "steps": 25}
ASKED = PureDP(math.log1p(8 / STATED * math.expm1(0.5)))
KEY = RunKey(bytes(range(32)))


@contextmanager
def recorded_noise() -> Iterator[list[torch.Tensor]]:
    """The noise in each released sum, over what one record can add to that."""
    drawn: list[torch.Tensor] = []
    release = BudgetedNoise.release

    def recording(noise: BudgetedNoise, private: PrivateSum, **given: Any) -> ReleasedSum:
        released = release(noise, private, **given)
        parts = [(released.values[name] - value).double().flatten() for name, value in private.values.items()]
        drawn.append(torch.cat(parts) / private.sensitivity)
        return released

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BudgetedNoise, "release", recording)
        yield drawn


class Accepted(Callback):
    """Which candidates were accepted."""

    def __init__(self) -> None:
        self.so_far: list[int] = []

    def stepped(self, progress: Progress) -> None:
        self.so_far.append(progress.accepted)

    def each(self) -> list[bool]:
        return [after > before for before, after in zip([0, *self.so_far], self.so_far, strict=False)]


@dataclass(frozen=True)
class Recorded:
    """A run with its ledger, its decisions and its noise."""

    run: Run
    entries: tuple[Entry, ...]
    accepted: list[bool]
    drawn: list[torch.Tensor]

    @property
    def charged(self) -> list[Event]:
        return [entry.event for entry in self.entries if entry.counts.get("steps")]


def recorded_run(where: Path, **changed: Any) -> Recorded:
    accepted = Accepted()
    method = agd(**{**CHOICE, "growth": GROWTH})
    said = {**PLANNED, "settings_chosen_on": "fixed", "callbacks": [accepted], **changed}
    with recorded_noise() as drawn:
        run = fit_tiny(where, method=method, **said)
    with Ledger.open(where / "ledger.db") as ledger:
        return Recorded(run, ledger.entries(), accepted.each(), drawn)


@pytest.fixture(scope="module")
def agd_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunKey, "fresh", lambda **_: KEY)
        yield recorded_run(tmp_path_factory.mktemp("agd") / "run")


def factors(accepted: list[bool]) -> list[float]:
    """What the first noise multiplier is multiplied by, step by step, and at the one that was not taken."""
    whole, following, found = 1.0, 1.0, [1.0]
    for is_accepted in accepted:
        whole = whole if is_accepted else (1 + GROWTH) * whole
        following = whole if is_accepted else GROWTH * whole / (1 + GROWTH)
        found.append(following**-0.5)
    return found


def noise_of(event: Event) -> float:
    [gradient] = (atom for atom in counted(event) if isinstance(atom, PoissonSampled | SampledWithoutReplacement))
    return gradient.event.noise_multiplier


def test_charges_follow_what_was_accepted(agd_run: Recorded) -> None:
    assert 2 < sum(agd_run.accepted) < len(agd_run.accepted) - 2
    expected = [agd_run.run.plan.noise_multiplier * factor for factor in factors(agd_run.accepted)[:-1]]
    assert [noise_of(event) for event in agd_run.charged] == pytest.approx(expected, rel=1e-12)
    assert all(counted(event)[ASKED] == 1 and len(counted(event)) == 2 for event in agd_run.charged)


def test_the_charged_noise_is_added(agd_run: Recorded) -> None:
    assert len(agd_run.drawn) == len(agd_run.charged)
    scaled = torch.cat([drawn / noise_of(event) for drawn, event in zip(agd_run.drawn, agd_run.charged, strict=True)])
    margin = 5 / math.sqrt(2 * len(scaled))
    assert abs(float(scaled.std()) - 1) < margin < 1 / 3  # so that two thirds of it would be found out
    constant = torch.cat([drawn / noise_of(agd_run.charged[0]) for drawn in agd_run.drawn])
    assert abs(float(constant.std()) - 1) > margin  # as if the noise had stayed what it was


def test_the_run_ends_at_its_limit(agd_run: Recorded) -> None:
    plan, charged = agd_run.run.plan, together(*agd_run.charged)
    assert plan.limit is not None
    assert agd_run.run.end.reason == SPENT
    assert agd_run.run.end.step == len(agd_run.charged) < plan.steps
    assert is_within(charged, plan.limit, plan.adjacency)
    following = PoissonSampled(0.2, Gaussian(plan.noise_multiplier * factors(agd_run.accepted)[-1]))
    assert not is_within(together(charged, following, ASKED), plan.limit, plan.adjacency)


def test_epsilon_is_that_of_the_limit(agd_run: Recorded) -> None:
    certificate = agd_run.run.certificate
    assert certificate is not None
    assert certificate.event == agd_run.run.plan.limit
    assert agd_run.run.end.epsilon_spent <= agd_run.run.proven.epsilon <= certificate.epsilon <= EPSILON
    assert certificate.epsilon == pytest.approx(EPSILON, rel=1e-6)
    spent = [row.epsilon_spent for row in agd_run.run.evaluations]
    assert spent == sorted(spent)
    assert spent[-1] == agd_run.run.end.epsilon_spent


def test_replace_one_has_twice_the_noise(tmp_path: Path) -> None:
    agd_run = recorded_run(tmp_path / "run", sampling="without-replacement", records=HELD, steps=3)
    assert agd_run.run.plan.adjacency is Adjacency.REPLACE_ONE
    scaled = torch.cat([drawn / noise_of(event) for drawn, event in zip(agd_run.drawn, agd_run.charged, strict=True)])
    assert abs(float(scaled.std()) / 2 - 1) < 5 / math.sqrt(2 * len(scaled)) < 1 / 2
    assert agd_run.run.certificate is not None
    assert agd_run.run.certificate.epsilon <= EPSILON


def test_averaged_measurements_have_the_noise_of_one_at_their_cost() -> None:
    energy = PrivateChoice(loss_clip=1.0, epsilon=1.0)
    noise, acceptance = BudgetedNoise(growth=GROWTH), Salvage(NoisyMax(energy=energy, step_sizes=1, largest=1.0))
    nothing = PrivateSum(values={"w": torch.zeros(20_000, dtype=torch.float64)}, sensitivity=3.0)
    of_noise, of_acceptance = noise.start({}), acceptance.start()
    for step in range(4):
        multiplier = 2.0 * noise.factor(of_noise)
        released = noise.release(nothing, noise_multiplier=multiplier, randomness=KEY.at(step, 0))
        combined = acceptance.combined(of_acceptance, released)
        worth = 2.0 * (1 + GROWTH) ** (-step / 2)
        assert combined.noise_multiplier == pytest.approx(worth, rel=1e-12)
        assert float(combined.std_of("w")) == pytest.approx(with_rounding(3.0) * worth, rel=1e-12)
        assert float(combined.values["w"].std()) == pytest.approx(3.0 * worth, rel=0.03)
        of_acceptance = acceptance.decide(of_acceptance, Proposed(now=0.0, proposed=1.0), combined).state
        of_noise = noise.learn(of_noise, StepOutcome(released=released, divisor=1.0, is_accepted=False))


class StopsAt(Callback):
    """Ends the process, as far as the run can tell, once so many candidates were taken."""

    def __init__(self, step: int) -> None:
        self.step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stopped_at", [1, 6])
def test_a_resumed_run_is_bit_identical_and_pays_nothing_twice(
    agd_run: Recorded, stopped_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)
    where, whole = tmp_path / "run", agd_run.run.directory
    with pytest.raises(KeyboardInterrupt):
        recorded_run(where, callbacks=[StopsAt(stopped_at)], checkpoint_seconds=0.0)
    again = recorded_run(where, resume=True)
    assert (where / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (where / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert again.charged == agd_run.charged
    assert len(again.drawn) == len(agd_run.drawn) - stopped_at + 1  # what was taken when it stopped is taken again
    assert again.run.end == agd_run.run.end
    assert again.run.certificate is not None


def test_steps_that_are_drawn_again_are_charged_again_within_the_limit(
    agd_run: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)
    where = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        recorded_run(where, callbacks=[StopsAt(6)], checkpoint_seconds=0.0)
    monkeypatch.setenv("OMP_SOMETHING", "else")  # a bit may depend on it
    again = recorded_run(where, resume=True)
    plan = again.run.plan
    assert plan.limit is not None
    assert again.charged[:6] == agd_run.charged[:6]
    assert len(again.charged) == 6 + len(again.drawn)
    assert is_within(together(*again.charged), plan.limit, plan.adjacency)
    assert not torch.equal(agd_run.drawn[5], again.drawn[0])  # it is drawn anew


def test_a_budget_is_refused(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget.db")
    with pytest.raises(InvalidValue, match="budget"):
        fit_tiny(tmp_path / "run", method=agd(**CHOICE), budget=budget, **PLANNED)
    assert not (tmp_path / "run").exists()


def test_other_charged_releases_are_refused(tmp_path: Path) -> None:
    for beside in ({"test": None, "held_out_fraction": 0.3}, {"private_pca": {"dimensions": 2, "noise_multiplier": 4}}):
        with pytest.raises(InvalidValue, match="method"):
            fit_tiny(tmp_path / "run", method=agd(**CHOICE), **PLANNED, **beside)
    assert not (tmp_path / "run").exists()


def test_epsilon_is_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="epsilon"):
        fit_tiny(tmp_path / "run", method=agd(**CHOICE))


def test_the_defaults_fit_a_small_data_set() -> None:
    for epsilon in (3.0, 8.0):
        plan = plan_for(records=1464, delta=1e-4, epsilon=epsilon, method=agd())
        assert plan.limit is not None
        assert counted(plan.asked) == {PureDP(0.02): 1}
