"""Runs without a plan: what they charge, in memory and in a folder, and how many steps a plan allows them."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.accounting import bound
from lehr.accounting.events import NOTHING, Gaussian, NonPrivate, PoissonSampled, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.interfaces import PrivateSum
from lehr.planning.budget import Budget
from lehr.privacy.sampling import PoissonSampling
from lehr.run.distributed import Ranks
from lehr.run.private_run import PrivateRun, UnplannedRunSpec
from lehr.run.replay import OPEN_BLOCK, UnplannedCharger

STEP, OTHER = PoissonSampled(0.1, Gaussian(1.0)), PoissonSampled(0.1, Gaussian(2.0))
SAMPLING = PoissonSampling(expected_batch_size=1, records=10)


def release(run: PrivateRun, *, noise_multiplier: float = 1.0) -> None:
    step = run.draw()
    step.add(PrivateSum(values={"w": torch.zeros(2)}, sensitivity=1.0), num_records=len(step.indices))
    step.release(noise_multiplier=noise_multiplier)


def test_charges_are_on_disk(tmp_path: Path) -> None:
    charger = UnplannedCharger(folder=tmp_path / "new", delta=1e-5)
    charger.charge(STEP)
    (path,) = (tmp_path / "new").glob("*.ledger")
    with Ledger.open(path) as ledger:
        assert counted(ledger.charged())[STEP] >= 1


def test_blocks_of_another_process(tmp_path: Path) -> None:
    first = UnplannedCharger(folder=tmp_path, delta=1e-5)
    for event in [STEP] * (OPEN_BLOCK + 1) + [OTHER]:
        first.charge(event)
    assert counted(first.charged()) == {STEP: OPEN_BLOCK + 1, OTHER: 1}
    first.close()
    with pytest.raises(InvalidValue, match="step"):
        first.charge(STEP)
    second = UnplannedCharger(folder=tmp_path, delta=1e-5)
    assert counted(second.before) == {STEP: 2 * OPEN_BLOCK, OTHER: OPEN_BLOCK}
    second.charge(STEP)
    assert counted(second.charged())[STEP] == 2 * OPEN_BLOCK + 1
    with pytest.raises(InvalidValue, match="delta"):
        UnplannedCharger(folder=tmp_path)


def test_unproven_steps() -> None:
    charger = UnplannedCharger()
    run = PrivateRun.open(
        UnplannedRunSpec(sampling=SAMPLING, num_records=10, physical_batch=10, charger=charger, unproven="shuffled")
    )
    release(run)
    assert counted(charger.charged()) == {NonPrivate("shuffled"): 1}
    assert bound(charger.charged(), delta=1e-5).epsilon == math.inf


def test_steps_of_a_checkpoint_count(tmp_path: Path) -> None:
    Budget.create(tmp_path / "budget", dataset="people", epsilon=20.0, delta=1e-3).close()
    planned = Repeated(STEP, 3)
    spec = UnplannedRunSpec(
        sampling=SAMPLING,
        num_records=10,
        physical_batch=10,
        reserved_steps=planned,
        budget=tmp_path / "budget",
        name="run",
    )
    run = PrivateRun.open(spec)
    with pytest.raises(InvalidValue, match="plan"):
        release(run, noise_multiplier=2.0)
    release(run)
    run.count_taken(Repeated(OTHER, 5))
    assert run.num_taken == 1
    run.count_taken(Repeated(STEP, 2))
    release(run)
    with pytest.raises(BudgetExceeded, match="3 steps"):
        release(run)
    run.finish()
    with Budget.open(tmp_path / "budget") as account:
        [paid] = account.status().runs
    assert paid.used == planned


def test_two_runs_of_one_charger() -> None:
    charger, planned = UnplannedCharger(), Repeated(STEP, 1)
    for _ in range(2):
        release(
            PrivateRun.open(
                UnplannedRunSpec(
                    sampling=SAMPLING, num_records=10, physical_batch=10, charger=charger, reserved_steps=planned
                )
            )
        )
    assert counted(charger.charged()) == {STEP: 2}


class TwoRanks(Ranks):
    """The first of two ranks; the other one has the same values, but for ``others``."""

    def __init__(self, **others: Any) -> None:
        super().__init__(number=0, total=2)
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, {name: self.others.get(name, own) for name, own in value.items()}]

    def from_rank_0(self, make: Callable[[], Any]) -> Any:
        return make()

    def reduce(self, private: PrivateSum) -> PrivateSum:
        return private


@pytest.mark.parametrize("others", [{"step": 2}, {"noise_multiplier": 2.0}, {"noise_multiplier": math.nan}])
def test_ranks_whose_loops_differ_release_nothing(others: dict[str, float]) -> None:
    def release_on(ranks: Ranks, charger: UnplannedCharger) -> None:
        spec = UnplannedRunSpec(sampling=SAMPLING, num_records=10, physical_batch=10, charger=charger, ranks=ranks)
        step = PrivateRun.open(spec).draw()
        own = len(ranks.share_of(step.indices))
        step.add(PrivateSum(values={"w": torch.zeros(2)}, sensitivity=1.0), num_records=own)
        step.release(noise_multiplier=1.0)

    charger = UnplannedCharger()
    with pytest.raises(InvalidValue, match=next(iter(others))):
        release_on(TwoRanks(**others), charger)
    assert charger.charged() == NOTHING
    release_on(TwoRanks(), charger)
    assert counted(charger.charged()) == {STEP: 1}
