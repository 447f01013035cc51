"""Which steps may be taken again for free, and which are charged.

Randomness is keyed by the step and by an attempt. A run that is resumed where everything that could change a single bit
is as it was continues its attempt: steps that were charged, and perhaps taken, give the very same values again, which
tells nobody anything new. Otherwise a new attempt begins at the checkpoint, with randomness of its own, and every one
of its steps is charged, out of what the plan has left: the run then ends that many steps earlier.
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
from lehr.errors import BudgetExceeded, DamagedFile, InvalidValue
from lehr.events import NOTHING, Event, Repeated, counted, together
from lehr.files import lines_file, strict_json
from lehr.ledger import Ledger
from lehr.planning.plan import Plan
from lehr.rng import RunKey

MOST_CHARGES = 40
_ROUNDING = ("MKL_", "OMP_", "ONEDNN_", "DNNL_", "KMP_", "ATEN_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "TORCHINDUCTOR_")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A stretch of a run whose randomness is drawn once. ``environment`` has all that a bit may depend on."""

    number: int
    first_step: int
    steps_before: int  # what the ledger had when it began: steps,
    scores_before: int  # and scores on private records
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a run may do in all: something once before it, its steps, and a score after every so many and at the end."""

    plan: Plan
    beforehand: Event = NOTHING
    score_event: Event = NOTHING  # where scores are taken on public records
    evaluate_every: int | None = None

    @property
    def steps(self) -> int:
        return self.plan.steps

    @property
    def event(self) -> Event:
        """What the whole run may do to the records."""
        return self.plan.event if self.beside == NOTHING else together(self.beside, self.plan.event)

    @property
    def beside(self) -> Event:
        """What it may do to them besides its steps."""
        scores = Repeated(self.score_event, self.scores) if self.is_scored_privately else NOTHING
        return together(self.beforehand, scores)

    @property
    def is_scored_privately(self) -> bool:
        return self.score_event != NOTHING and self.evaluate_every is not None

    @property
    def scores(self) -> int:
        """How many scores there are in a run that is never begun anew."""
        return 0 if self.evaluate_every is None else math.ceil(self.steps / self.evaluate_every)

    def is_due(self, step: int, *, last_step: int) -> bool:
        """Whether a score is due after this step, counted from zero."""
        return self.evaluate_every is not None and ((step + 1) % self.evaluate_every == 0 or step + 1 == last_step)


class Charges:
    """Charges the steps of an attempt, and its scores, to the ledger: some at once, each before it is taken.

    A step of an attempt that was begun anew is paid for by a later step of the plan, and has that one's noise.
    """

    def __init__(self, ledger: Ledger, allowance: Allowance, attempt: Attempt) -> None:
        self._ledger, self._allowance, self._attempt = ledger, allowance, attempt
        self._shift = attempt.steps_before - attempt.first_step
        self.last_step = allowance.steps - self._shift
        expected = allowance.plan.stops_at_accepted or allowance.steps
        self._at_once = math.ceil(expected / MOST_CHARGES)
        self._most_scores = allowance.scores - attempt.scores_before
        self.charged_until = ledger.count("steps") - self._shift

    def planned(self, step: int) -> int:
        """The step of the plan that pays for a step of the run."""
        return step + self._shift

    def covers(self, step: int) -> bool:
        """Whether the step is charged."""
        return step < self.charged_until

    def charge_until(self, step: int) -> None:
        """Charge whatever is missing up to this step, which is more than a block where the ledger is an older one."""
        while not self.covers(step):
            self.charge()

    def charge_one(self, step: int, event: Event) -> bool:
        """Charge one step whose event followed from what was released, if the plan's limit admits it."""
        if step != self.charged_until:
            raise DamagedFile(f"the ledger lacks the steps {self.charged_until} to {step - 1}, which were taken")
        scores = self._scores(step, step + 1)
        whole = together(event, Repeated(self._allowance.score_event, scores)) if scores else event
        try:
            self._ledger.record(whole, note=f"step {step}", counts={"steps": 1, "scores": scores})
        except BudgetExceeded:
            return False
        self.charged_until = step + 1
        return True

    def charge(self) -> None:
        """Charge the next steps; when this returns, that is on the disk."""
        first, last = self.charged_until, min(self.charged_until + self._at_once, self.last_step)
        counts = {"steps": last - first, "scores": self._scores(first, last)}
        self._ledger.record(self._event(first, last), note=f"steps {first} to {last - 1}", counts=counts)
        self.charged_until = last

    def released_after(self, step: int) -> Event:
        """Everything that was released when this step is over, by earlier attempts too. The same in every replay."""
        attempt, allowance = self._attempt, self._allowance
        if allowance.plan.limit is not None:
            return self._charged_for(self.planned(step) + 1)
        earlier = [allowance.beforehand, allowance.plan.events(0, attempt.steps_before)]
        if attempt.scores_before:
            earlier.append(Repeated(allowance.score_event, attempt.scores_before))
        return together(*earlier, self._event(attempt.first_step, step + 1))

    def _charged_for(self, steps: int) -> Event:
        """What the ledger has up to so many steps, which were charged one by one."""
        found, counted_steps = [], 0
        for entry in self._ledger.entries():
            counted_steps += entry.counts.get("steps", 0)
            if counted_steps > steps:
                break
            found.append(entry.event)
        return together(*found)

    def _event(self, first: int, last: int) -> Event:
        """What the steps from the first to before the last do to the records, with the scores after them."""
        steps = self._allowance.plan.events(self.planned(first), self.planned(last))
        scores = self._scores(first, last)
        return together(steps, Repeated(self._allowance.score_event, scores)) if scores else steps

    def _scores(self, first: int, last: int) -> int:
        """How many of the scores after these steps are charged."""
        return sum(map(self.is_scored, range(first, last))) if self._allowance.is_scored_privately else 0

    def is_scored(self, step: int) -> bool:
        """Whether there is a score after this step. One that the plan cannot pay for, in a run begun anew, is not."""
        if not self._allowance.is_due(step, last_step=self.last_step):
            return False
        if not self._allowance.is_scored_privately:
            return True
        every = self._allowance.evaluate_every
        assert every is not None  # or no score were due
        earlier = step // every - self._attempt.first_step // every  # before the last step, scores are at multiples
        return earlier < self._most_scores


def going_on(
    path: Path,
    *,
    first_step: int,
    of_checkpoint: int | None,
    ledger: Ledger,
    environment: Mapping[str, str] | None,
) -> Attempt:
    """The attempt to go on with from a checkpoint: the one that wrote it where all is as it was, or a new one.

    No ``environment`` means that nothing can be repeated bit by bit.
    """
    known = [_attempt(path, shape) for shape in lines_file.read(path)]
    last = known[-1] if known else None
    is_untouched = not counted(ledger.charged())  # nothing was drawn, whatever is missing
    if last is not None and last.environment == environment and (last.number == of_checkpoint or is_untouched):
        return last
    fresh = Attempt(
        # Drawn, not counted: two copies of a folder, or one that lost this file, must not meet in a number.
        number=0 if last is None and is_untouched else RunKey.fresh_attempt(),
        first_step=first_step,
        steps_before=ledger.count("steps"),
        scores_before=ledger.count("scores"),
        environment=dict(environment or {}),
    )
    # On the disk before anything is drawn: a number that was lost would be drawn from again.
    lines_file.append(path, asdict(fresh), mode=0o600)
    return fresh


def environment(device: torch.device, **settings: object) -> dict[str, str] | None:
    """All that the last bit of a step may depend on; none where the device does not promise to repeat itself."""
    if device.type != "cpu" and not torch.are_deterministic_algorithms_enabled():
        return None
    return {
        "lehr": lehr.__version__,
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
    """The model of the processor, which chooses the kernels of a mathematics library."""
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
