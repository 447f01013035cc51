"""Charging of steps, and what a resumed run may repeat at no cost.

Randomness is keyed by step and attempt. If nothing that could change a bit has changed since the checkpoint, a resumed
run continues its attempt: steps that are already charged are computed again, bit for bit, and reveal nothing new.
Otherwise a new attempt with its own randomness starts at the checkpoint. All its steps are charged to the rest of the
plan, so that the run ends that many steps earlier.

- ``RunPlan``: all events of a run; ``StepCharger``: charges them, in blocks
- ``UnplannedCharger``: charges the steps of a loop without a plan
- ``Attempt``, ``choose_attempt``, ``environment``: continue an attempt or start a new one
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import lehr
from lehr import validate
from lehr.accounting.events import (
    NOTHING,
    Adjacency,
    Atom,
    Event,
    Repeated,
    composed,
    counted,
    together,
)
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, DamagedFile, InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.privacy.rng import NUMBERS, RunKey

MOST_CHARGES = 40  # ledger entries of a run: steps are charged in blocks, to write to the disk less often
OPEN_END = 10**9
OPEN_BLOCK = 32  # steps without a plan that are charged at once; after a crash the unused ones stay charged
_ROUNDING = ("MKL_", "OMP_", "ONEDNN_", "DNNL_", "KMP_", "ATEN_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "TORCHINDUCTOR_")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Consecutive steps with the same randomness. ``environment`` is everything that can change a bit of a sum."""

    number: int
    first_step: int
    steps_before: int  # steps in the ledger when the attempt started
    scores_before: int  # private evaluations in the ledger when the attempt started
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """All events of a run: a setup event, the steps, and an evaluation every so many steps and at the end."""

    plan: Plan
    setup_event: Event = NOTHING
    score_event: Event = NOTHING  # NOTHING for evaluations on public records
    evaluate_every: int | None = None

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def event(self) -> Event:
        """The event of the whole run."""
        return self.plan.event if self.beside == NOTHING else together(self.beside, self.plan.event)

    @property
    def beside(self) -> Event:
        """The events besides the steps."""
        scores = Repeated(self.score_event, self.scores) if self.is_scored_privately else NOTHING
        return together(self.setup_event, scores)

    @property
    def is_scored_privately(self) -> bool:
        return self.score_event != NOTHING and self.evaluate_every is not None

    @property
    def scores(self) -> int:
        """The number of evaluations in a run with one attempt."""
        return 0 if self.evaluate_every is None else math.ceil(self.steps / self.evaluate_every)

    def is_due(self, step: int, *, end_step: int) -> bool:
        """Whether the model is evaluated after this step, counted from zero."""
        return self.evaluate_every is not None and ((step + 1) % self.evaluate_every == 0 or step + 1 == end_step)


class StepCharger:
    """Charges the steps of an attempt, and its evaluations, to the ledger: in blocks, before any record is drawn.

    After a second attempt, step i of the run is paid for by a later step of the plan, and has that step's noise. Only
    rank 0 has the ledger; the other ranks receive ``charged_until``.
    """

    def __init__(
        self, plan: RunPlan, attempt: Attempt, *, ledger: Ledger | None, charged_until: int | None = None
    ) -> None:
        self._ledger, self._plan, self.attempt = ledger, plan, attempt
        self._shift = attempt.steps_before - attempt.first_step
        self.end_step = plan.steps - self._shift
        block = math.ceil((plan.plan.stops_at_accepted or plan.steps) / MOST_CHARGES)
        whole = plan.plan.steps_per_event  # an epoch is charged before its first draw, and never in parts
        self._block = whole * math.ceil(block / whole)
        self._most_scores = plan.scores - attempt.scores_before
        known = 0 if ledger is None else ledger.count("steps") - self._shift
        self.charged_until = known if charged_until is None else charged_until

    def paying_step(self, step: int) -> int:
        """The step of the plan that pays for a step of the run."""
        return step + self._shift

    def covers(self, step: int) -> bool:
        """Whether the step is charged."""
        return step < self.charged_until

    def charge(self, step: int, event: Event | None = None) -> bool:
        """Charge up to this step, on disk. Return False if the plan's limit does not allow it.

        ``event`` is this step's event, for plans with a limit, where it depends on earlier releases.
        """
        if event is None:
            while not self.covers(step):
                last = min(self.charged_until + self._block, self.end_step)
                self._write(self.charged_until, last, self._event(self.charged_until, last))
            return True
        if step != self.charged_until:
            raise DamagedFile(f"the ledger lacks the steps {self.charged_until} to {step - 1}, which were taken")
        try:
            self._write(step, step + 1, self._with_scores(event, step, step + 1))
        except BudgetExceeded:
            return False
        return True

    def charge_setup(self) -> None:
        """Charge the setup event, unless this attempt has already charged it."""
        assert self._ledger is not None
        paid_for = f"setup, attempt {self.attempt.number}"
        if not self._ledger.count(paid_for):
            write_charge(self._ledger, self._plan.setup_event, note="before the first step", counts={paid_for: 1})

    def released_after(self, step: int) -> Event:
        """All events up to and including this step, with those of earlier attempts. The same in every replay."""
        attempt, plan = self.attempt, self._plan
        if plan.plan.limit is not None:
            return self._charged_for(self.paying_step(step) + 1)
        earlier = [plan.setup_event, plan.plan.events(0, attempt.steps_before)]
        if attempt.scores_before:
            earlier.append(Repeated(plan.score_event, attempt.scores_before))
        return together(*earlier, self._event(attempt.first_step, step + 1))

    def is_scored(self, step: int) -> bool:
        """Whether the model is evaluated after this step. After a second attempt the plan may not pay for it."""
        if not self._plan.is_due(step, end_step=self.end_step):
            return False
        if not self._plan.is_scored_privately:
            return True
        every = self._plan.evaluate_every
        assert every is not None  # because an evaluation is due
        earlier = step // every - self.attempt.first_step // every  # before the last step, they are at multiples
        return earlier < self._most_scores

    def _write(self, first: int, last: int, event: Event) -> None:
        assert self._ledger is not None
        note = f"step {first}" if last == first + 1 else f"steps {first} to {last - 1}"
        counts = {"steps": last - first, "scores": self._scores(first, last)}
        write_charge(self._ledger, event, note=note, counts=counts)
        self.charged_until = last

    def _charged_for(self, steps: int) -> Event:
        """The charged events of the first steps, which were charged one by one."""
        assert self._ledger is not None
        found, counted_steps = [], 0
        for entry in self._ledger.entries():
            counted_steps += entry.counts.get("steps", 0)
            if counted_steps > steps:
                break
            found.append(entry.event)
        return together(*found)

    def _event(self, first: int, last: int) -> Event:
        """The events of the steps from ``first`` to before ``last``, with their evaluations."""
        return self._with_scores(self._plan.plan.events(self.paying_step(first), self.paying_step(last)), first, last)

    def _with_scores(self, steps: Event, first: int, last: int) -> Event:
        scores = self._scores(first, last)
        return together(steps, Repeated(self._plan.score_event, scores)) if scores else steps

    def _scores(self, first: int, last: int) -> int:
        """The number of charged evaluations after these steps."""
        return sum(map(self.is_scored, range(first, last))) if self._plan.is_scored_privately else 0


class UnplannedCharger:
    """Charges the steps of a loop without a plan: in memory and, with a folder, on disk before each release.

    Each process and each kind of step has its own ledger in the folder. ``before`` is what the folder's ledgers
    contained when it was opened.
    """

    def __init__(self, *, folder: Path | None = None, delta: float | None = None) -> None:
        self._counts: dict[Atom, int] = {}
        self._ledgers: dict[Atom, tuple[Ledger, int]] = {}
        self._folder, self._delta = folder, delta
        self._is_finished = False
        self.before: Event = NOTHING
        if folder is not None:
            if delta is None:
                raise InvalidValue("delta", allowed="a number in (0, 1) where a folder keeps ledgers", given=None)
            self._delta = validate.delta(delta=delta)
            folder.mkdir(parents=True, exist_ok=True)
            self.before = together(*map(_charged_in, sorted(folder.glob("steps-*.ledger"))))

    def charge(self, event: Atom) -> None:
        """Charge one step; with a folder, on disk."""
        if self._is_finished:
            raise InvalidValue("step", allowed="none after finish()", given="another step")
        if self._folder is not None:
            ledger, left = self._ledgers.get(event) or (self._new_ledger(self._folder, event), 0)
            if not left:
                write_charge(ledger, Repeated(event, OPEN_BLOCK), counts={"steps": OPEN_BLOCK})
            self._ledgers[event] = ledger, (left or OPEN_BLOCK) - 1
        self._counts[event] = self._counts.get(event, 0) + 1

    def charged(self) -> Event:
        """All charged events: the folder's earlier ones, and every step since."""
        return together(self.before, self.used)

    @property
    def used(self) -> Event:
        """The steps of this process."""
        return composed(self._counts)

    def close(self) -> None:
        """Close the ledgers and refuse further steps. Can be called twice."""
        self._is_finished = True
        for ledger, _ in self._ledgers.values():
            ledger.close()
        self._ledgers.clear()

    def _new_ledger(self, folder: Path, event: Atom) -> Ledger:
        number = len(list(folder.glob("steps-*.ledger"))) + 1
        while (path := folder / f"steps-{number:04d}.ledger").exists():
            number += 1
        assert self._delta is not None
        # A ledger needs a plan. This loop may take any number of steps, so the plan has more than any loop takes.
        return Ledger.create(
            path,
            run=path.stem,
            plan_event=Repeated(event, OPEN_END),
            delta=self._delta,
            adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        )


def write_charge(ledger: Ledger, event: Event, *, note: str = "", counts: Mapping[str, int]) -> None:
    """Charge an event to a run's ledger. It is on disk when this returns. The only function that does so."""
    ledger.record(event, note=note, counts=counts)


def _charged_in(path: Path) -> Event:
    with Ledger.open(path) as ledger:
        return ledger.charged()


def choose_attempt(
    path: Path,
    *,
    first_step: int,
    of_checkpoint: int | None,
    ledger: Ledger,
    environment: Mapping[str, str] | None,
    is_only_one: bool = False,
) -> Attempt:
    """The attempt that wrote the checkpoint, if its environment is unchanged; otherwise a new one.

    ``environment=None`` means that sums are not reproducible. ``is_only_one`` is for correlated noise, whose steps
    cannot be repeated with other noise: after a charge, a new attempt is an error.
    """
    known = [_attempt(path, shape) for shape in strict_json.read_lines(path)]
    last = known[-1] if known else None
    is_untouched = not counted(ledger.charged())  # nothing was drawn yet
    if last is not None and last.environment == environment and (last.number == of_checkpoint or is_untouched):
        return last
    if is_only_one and not is_untouched:
        allowed = "resumed where each step can be repeated bit for bit, because its noise is correlated (bands)"
        raise InvalidValue("run", allowed=allowed, given=_changes(last, environment))
    fresh = Attempt(
        # Random, not counted: two copies of a folder, or one that lost this file, must not use the same number.
        number=0 if last is None and is_untouched else RunKey.fresh_attempt(),
        first_step=first_step,
        steps_before=ledger.count("steps"),
        scores_before=ledger.count("scores"),
        environment=dict(environment or {}),
    )
    # On disk before anything is drawn: a lost number could be used a second time.
    strict_json.append_line(path, asdict(fresh), mode=0o600)
    return fresh


def _changes(last: Attempt | None, environment: Mapping[str, str] | None) -> str:
    """What differs from the last attempt, in words."""
    if environment is None or last is None:
        return "sums that are not reproducible" if last is not None else "a folder without its attempts"
    before = last.environment
    changed = sorted(name for name in {*before, *environment} if before.get(name) != environment.get(name))
    return f"another {', '.join(changed)}" if changed else "another checkpoint"


def environment(device: torch.device, **settings: object) -> dict[str, str] | None:
    """Everything that can change a bit of a step. None if the device's results are not deterministic."""
    if device.type != "cpu" and not torch.are_deterministic_algorithms_enabled():
        return None
    return {
        "lehr": lehr.__version__,
        "random numbers": NUMBERS,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()} {_processor()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "vector instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "float32": f"{torch.get_float32_matmul_precision()} {torch.backends.cudnn.allow_tf32}",
        "switches": f"{torch.backends.mkldnn.enabled} {torch.backends.cudnn.benchmark} {torch.get_default_dtype()}",
        "autocast": f"{torch.is_autocast_enabled(device.type)} {torch.get_autocast_dtype(device.type)}",
        "libraries": f"{torch.version.cuda} {torch.backends.cudnn.version()}",  # type: ignore[no-untyped-call]
        "variables": " ".join(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(_ROUNDING))),
        **{name: str(value) for name, value in settings.items()},
    }


def _processor() -> str:
    """The processor model, by which math libraries choose their kernels."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _attempt(path: Path, shape: object) -> Attempt:
    try:
        given: dict[str, Any] = strict_json.fields("attempt", shape, list(Attempt.__dataclass_fields__))
        numbers = {name: validate.count(minimum=0, **{name: given[name]}) for name in _NUMBERS}
        return Attempt(environment=dict(given["environment"]), **numbers)
    except (InvalidValue, TypeError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error


_NUMBERS = ("number", "first_step", "steps_before", "scores_before")
