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
from lehr.optim.optimizers import Update
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import BudgetedNoise, with_rounding
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Method
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


def test_it_is_a_noisy_choice_of_the_step_along_the_mean_of_what_was_measured() -> None:
    method = agd(clip_norm=0.7, loss_clip=2.0, choice_epsilon=0.3, growth=0.2, step_sizes=5, largest_step=1.5)
    energy = PrivateChoice(loss_clip=2.0, epsilon=0.3)
    assert method.acceptance == Salvage(NoisyMax(energy=energy, step_sizes=5, largest=1.5))
    assert method.clipping == FlatClip(0.7)
    assert method.noise == BudgetedNoise(growth=0.2)
    assert method.update == Update(optimizer="normalised-sgd", learning_rate=1.0)
    assert method.published is None


@contextmanager
def heard() -> Iterator[list[torch.Tensor]]:
    """The noise in each released sum, over what one record can add to that."""
    drawn: list[torch.Tensor] = []
    release = BudgetedNoise.release

    def listening(noise: BudgetedNoise, private: PrivateSum, **given: Any) -> ReleasedSum:
        released = release(noise, private, **given)
        parts = [(released.values[name] - value).double().flatten() for name, value in private.values.items()]
        drawn.append(torch.cat(parts) / private.sensitivity)
        return released

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BudgetedNoise, "release", listening)
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
class Seen:
    """A run with all that was seen of it."""

    run: Run
    entries: tuple[Entry, ...]
    accepted: list[bool]
    drawn: list[torch.Tensor]

    @property
    def charged(self) -> list[Event]:
        return [entry.event for entry in self.entries if entry.counts.get("steps")]


def heard_run(where: Path, **changed: Any) -> Seen:
    accepted = Accepted()
    method = agd(**{**CHOICE, "growth": GROWTH})
    said = {**PLANNED, "settings_chosen_on": "fixed", "callbacks": [accepted], **changed}
    with heard() as drawn:
        run = fit_tiny(where, method=method, **said)
    with Ledger.open(where / "ledger.db") as ledger:
        return Seen(run, ledger.entries(), accepted.each(), drawn)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RunKey, "fresh", lambda **_: KEY)
        yield heard_run(tmp_path_factory.mktemp("agd") / "run")


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


def test_every_step_is_charged_with_the_noise_that_follows_from_what_was_accepted(seen: Seen) -> None:
    assert 2 < sum(seen.accepted) < len(seen.accepted) - 2
    expected = [seen.run.plan.noise_multiplier * factor for factor in factors(seen.accepted)[:-1]]
    assert [noise_of(event) for event in seen.charged] == pytest.approx(expected, rel=1e-12)
    assert all(counted(event)[ASKED] == 1 and len(counted(event)) == 2 for event in seen.charged)


def test_the_noise_that_was_charged_is_the_noise_that_was_added(seen: Seen) -> None:
    assert len(seen.drawn) == len(seen.charged)
    scaled = torch.cat([drawn / noise_of(event) for drawn, event in zip(seen.drawn, seen.charged, strict=True)])
    margin = 5 / math.sqrt(2 * len(scaled))
    assert abs(float(scaled.std()) - 1) < margin < 1 / 3  # so that two thirds of it would be found out
    constant = torch.cat([drawn / noise_of(seen.charged[0]) for drawn in seen.drawn])
    assert abs(float(constant.std()) - 1) > margin  # as if the noise had stayed what it was


def test_the_run_ends_where_the_limit_does_not_admit_the_next_step(seen: Seen) -> None:
    plan, charged = seen.run.plan, together(*seen.charged)
    assert plan.limit is not None
    assert seen.run.end.reason == SPENT
    assert seen.run.end.step == len(seen.charged) < plan.steps
    assert is_within(charged, plan.limit, plan.adjacency)
    following = PoissonSampled(0.2, Gaussian(plan.noise_multiplier * factors(seen.accepted)[-1]))
    assert not is_within(together(charged, following, ASKED), plan.limit, plan.adjacency)


def test_epsilon_is_that_of_the_limit_and_never_above_what_was_asked(seen: Seen) -> None:
    certificate = seen.run.certificate
    assert certificate is not None
    assert certificate.event == seen.run.plan.limit
    assert seen.run.end.epsilon_spent <= seen.run.proven.epsilon <= certificate.epsilon <= EPSILON
    assert certificate.epsilon == pytest.approx(EPSILON, rel=1e-6)
    spent = [row.epsilon_spent for row in seen.run.evaluations]
    assert spent == sorted(spent)
    assert spent[-1] == seen.run.end.epsilon_spent


def test_where_records_are_replaced_there_is_twice_the_noise(tmp_path: Path) -> None:
    seen = heard_run(tmp_path / "run", sampling="without-replacement", records=HELD, steps=3)
    assert seen.run.plan.adjacency is Adjacency.REPLACE_ONE
    scaled = torch.cat([drawn / noise_of(event) for drawn, event in zip(seen.drawn, seen.charged, strict=True)])
    assert abs(float(scaled.std()) / 2 - 1) < 5 / math.sqrt(2 * len(scaled)) < 1 / 2
    assert seen.run.certificate is not None
    assert seen.run.certificate.epsilon <= EPSILON


def test_what_is_averaged_has_the_noise_of_one_measurement_that_costs_as_much() -> None:
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
        assert combined.noise_std == pytest.approx(with_rounding(3.0) * worth, rel=1e-12)
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
def test_a_run_that_is_resumed_is_the_same_to_the_bit_and_pays_nothing_twice(
    seen: Seen, stopped_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)
    where, whole = tmp_path / "run", seen.run.directory
    with pytest.raises(KeyboardInterrupt):
        heard_run(where, callbacks=[StopsAt(stopped_at)], checkpoint_seconds=0.0)
    again = heard_run(where, resume=True)
    assert (where / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert (where / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    assert again.charged == seen.charged
    assert len(again.drawn) == len(seen.drawn) - stopped_at + 1  # what was taken when it stopped is taken again
    assert again.run.end == seen.run.end
    assert again.run.certificate is not None


def test_begun_anew_the_run_pays_for_every_step_and_stays_within_the_same_limit(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)
    where = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        heard_run(where, callbacks=[StopsAt(6)], checkpoint_seconds=0.0)
    monkeypatch.setenv("OMP_SOMETHING", "else")  # a bit may depend on it
    again = heard_run(where, resume=True)
    plan = again.run.plan
    assert plan.limit is not None
    assert again.charged[:6] == seen.charged[:6]
    assert len(again.charged) == 6 + len(again.drawn)
    assert is_within(together(*again.charged), plan.limit, plan.adjacency)
    assert not torch.equal(seen.drawn[5], again.drawn[0])  # it is drawn anew


@pytest.mark.parametrize(
    "wrong",
    [{"growth": 0.0}, {"growth": math.nan}, {"loss_clip": 0.0}, {"step_sizes": 0}, {"adapted_every": 0}],
    ids=str,
)
def test_a_setting_that_is_not_sound_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        agd(**wrong)
    assert [caught.value.name] == list(wrong)


def small() -> Method:
    return agd(**CHOICE)


def test_a_budget_is_refused_since_nothing_can_be_set_aside(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget.db")
    with pytest.raises(InvalidValue, match="budget must be left out"):
        fit_tiny(tmp_path / "run", method=small(), budget=budget, **PLANNED)
    assert not (tmp_path / "run").exists()


def test_charged_scores_and_a_charged_pca_beside_it_are_refused(tmp_path: Path) -> None:
    for beside in ({"test": None, "held_out_fraction": 0.3}, {"private_pca": {"dimensions": 2, "noise_multiplier": 4}}):
        with pytest.raises(InvalidValue, match="nothing beside the steps where costs follow what is released"):
            fit_tiny(tmp_path / "run", method=small(), **PLANNED, **beside)
    assert not (tmp_path / "run").exists()


def test_without_an_epsilon_there_is_no_limit(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="epsilon must be given where costs follow what is released"):
        fit_tiny(tmp_path / "run", method=small())


def test_by_its_defaults_it_fits_into_the_default_plan_of_a_small_data_set() -> None:
    for epsilon in (3.0, 8.0):
        plan = plan_for(records=1464, delta=1e-4, epsilon=epsilon, method=agd())
        assert plan.limit is not None
        assert counted(plan.asked) == {PureDP(0.02): 1}
