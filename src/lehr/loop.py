"""The one training loop. Every method is a filling of its slots.

What leaves it: released sums, through the weights; scores, on public records or with noise; and how far it has come.
The order of things within a step is what the guarantee rests on: it is charged, on the disk, before it is drawn.

Axis: P records of a physical batch, some of them padding.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lehr import checkpoint
from lehr.acceptance.proposal import State
from lehr.attempts import Charges, Schedule, going_on
from lehr.checkpoint import Checkpoint
from lehr.errors import Diverged
from lehr.events import Event
from lehr.files import lines_file
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Records, ReleasedSum
from lehr.mechanism import Mechanism, Method, added
from lehr.rng import StepRandomness
from lehr.run_folder import RunFolder
from lehr.run_shape import Callback, End, Evaluation, Progress
from lehr.sampling.physical import PhysicalBatch, physical
from lehr.scoring import PublicScore, Scorer
from lehr.update.averaging import AverageState, Averaging
from lehr.update.torch_optim import Updater

COMPLETED = "plan completed"


class Engine(Protocol):
    """Whatever can sum clipped gradients over a physical batch."""

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor) -> PrivateSum:  # noqa: N803
        """The clipped sum over the records that the mask counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Everything that a run is made of, decided before its first step."""

    model: nn.Module
    engine: Engine
    method: Method
    mechanism: Mechanism
    schedule: Schedule
    epsilon_of: Callable[[Event], float]
    private: Records
    views: Callable[[Inputs, torch.Generator], Inputs]  # prepared, and augmented where that is asked for
    physical_batch: int
    averaging: Averaging
    scorer: Scorer | None  # of what would be released
    energy: PublicScore | None  # of candidates; on other records than the scorer's
    patience: int | None
    checkpoint_seconds: float
    has_diagnostics: bool
    environment: dict[str, str] | None


class Loop:
    """A run in its folder, from wherever it stands to the end of its plan."""

    def __init__(self, training: Training, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> None:
        self.training, self.folder, self.callbacks = training, folder, tuple(callbacks)
        self.updater = Updater(training.method.update, training.model)
        self.average: AverageState = training.averaging.start(training.model)
        self.acceptance: State = training.method.acceptance.start()
        self.device = next(training.model.parameters()).device
        self.step = self.accepted = self.attempt_number = 0
        self.spent = 0.0
        self.rows: list[Evaluation] = []
        self._shown = copy.deepcopy(training.model)
        self._energy: float | None = None
        self._restore()

    def run(self) -> End:
        """Take every step that the plan still allows."""
        training, mechanism = self.training, self.training.mechanism
        charges = self._charges()
        self.spent = training.epsilon_of(self.folder.ledger.charged())
        saved_at, reason = time.monotonic(), COMPLETED
        for step in range(self.step, charges.last_step):
            # Charged, on the disk, before anything is drawn; and nothing more is spent on weights that are lost.
            if not charges.covers(step):
                self._refuse_divergence()
                charges.charge()
                self.spent = training.epsilon_of(self.folder.ledger.charged())

            # The records of this step, and the sum of their clipped gradients.
            randomness = self.folder.key.at(step, self.attempt_number)
            places = mechanism.draw(len(training.private), randomness)
            private_parts = list(self._private_parts(places, randomness))

            # From here on nothing is private: the weights, whether they are taken, their averages.
            released = mechanism.release(private_parts, randomness)
            self.accepted += self._decide(released, step, randomness)
            self.average = training.averaging.learn(self.average, training.model)
            self.step = step + 1

            # What people see, and what is kept for a crash.
            self._tell_progress()
            self._diagnose(places, private_parts)
            if charges.is_scored(step) and training.scorer is not None:
                self._evaluate(training.scorer, randomness)
                if self._has_no_patience_left():
                    reason = f"no better for {training.patience} evaluations"
                    break
            if time.monotonic() - saved_at >= training.checkpoint_seconds:
                self.save()
                saved_at = time.monotonic()
        self.save()
        return self._end(reason)

    def _charges(self) -> Charges:
        """What may be taken from here on: the rest of the last attempt, for free what of it was charged already."""
        attempt = going_on(
            self.folder.files.attempts,
            first_step=self.step,
            of_checkpoint=self.attempt_number,
            ledger=self.folder.ledger,
            schedule=self.training.schedule,
            environment=self.training.environment,
        )
        self.attempt_number = attempt.number
        return Charges(self.folder.ledger, self.training.schedule, attempt)

    def _private_parts(self, places: Tensor, randomness: StepRandomness) -> Iterator[PrivateSum]:
        """The clipped sums over the physical batches of a draw. An empty draw is one batch of padding."""
        training, size = self.training, self.training.physical_batch
        generator = randomness.generator("augmentation", self.device)
        torch.manual_seed(randomness.generator("layers", "cpu").initial_seed())  # dropout, and whatever else draws
        nobody = PhysicalBatch(places_P=places.new_zeros(size), mask_P=torch.zeros(size, dtype=torch.bool))
        for part in physical(places, size) or [nobody]:
            inputs, targets = training.private.batch(part.places_P)
            views = training.views(inputs, generator)
            yield training.engine.private_sum(training.mechanism.clipping, views, targets, part.mask_P)

    def _decide(self, released: ReleasedSum, step: int, randomness: StepRandomness) -> bool:
        """Move the weights, and move them back, momentum and all, where acceptance says so."""
        acceptance, divisor = self.training.method.acceptance, self.training.mechanism.divisor
        if not acceptance.needs_energy:
            self.updater.step(released, divisor=divisor, step=step)
            return True
        now, before = self._energy_now(), self.updater.snapshot()
        self.updater.step(released, divisor=divisor, step=step)
        proposal = _Proposal(now=now, proposed=self._public_loss(), randomness=randomness)
        is_accepted, self.acceptance = acceptance.decide(self.acceptance, proposal)
        if is_accepted:
            self._energy = proposal.proposed
        else:
            self.updater.restore(before)
        return is_accepted

    def _energy_now(self) -> float:
        """The public loss at the weights; after a candidate was accepted it is known already."""
        if self._energy is None:
            self._energy = self._public_loss()
        return self._energy

    def _public_loss(self) -> float:
        energy, model = self.training.energy, self.training.model
        assert energy is not None  # where acceptance needs one, nothing can be set up without
        with evaluating(model):
            return energy.score(model).loss

    def _evaluate(self, scorer: Scorer, randomness: StepRandomness) -> None:
        """Score the weights that would be released now, and write that down."""
        self._shown.load_state_dict(self.weights())
        with evaluating(self._shown):
            score = scorer.score(self._shown, randomness)
        if not math.isfinite(score.loss):
            raise Diverged(_diverged(f"the loss is {score.loss}", self.step))
        row = Evaluation(
            step=self.step,
            accepted=self.accepted,
            epsilon_spent=self.spent,
            loss=score.loss,
            accuracy=score.accuracy,
            on=scorer.on,
            learning_rate=self.updater.learning_rate(self.step - 1),
        )
        lines_file.append(self.folder.files.metrics, row.to_json())
        self.rows.append(row)
        for callback in self.callbacks:
            callback.evaluated(row)

    def weights(self) -> dict[str, Tensor]:
        """What would be released now: the weights, or their average."""
        return self.training.averaging.weights(self.average, self.training.model)

    def save(self) -> None:
        """Put everything that is needed to go on from here on the disk."""
        self._refuse_divergence()
        model = {f"model/{name}": value for name, value in self.training.model.state_dict().items()}
        written = Checkpoint(
            step=self.step,
            accepted=self.accepted,
            attempt=self.attempt_number,
            tensors={**model, **self.updater.tensors(), **self.average.tensors()},
            numbers={"update": self.updater.scalars(), "acceptance": dict(self.acceptance)},
        )
        checkpoint.write(self.folder.files.checkpoints, written)

    def _restore(self) -> None:
        """Go back to the last checkpoint; where there is none, to the beginning."""
        found = checkpoint.latest(self.folder.files.checkpoints)
        if found is None:
            self.save()
            return
        model = {name.removeprefix("model/"): value for name, value in found.tensors.items() if "model/" in name[:6]}
        self.training.model.load_state_dict(model)
        self.updater.load_tensors(found.tensors, found.numbers["update"])
        self.average = self.average.loaded(found.tensors)
        self.acceptance = found.numbers["acceptance"]
        self.step, self.accepted, self.attempt_number = found.step, found.accepted, found.attempt
        self.folder.forget_evaluations_after(found.step)
        self.rows = list(self.folder.evaluations())

    def _tell_progress(self) -> None:
        progress = Progress(step=self.step, accepted=self.accepted, epsilon_spent=self.spent)
        for callback in self.callbacks:
            callback.stepped(progress)

    def _diagnose(self, places: Tensor, private_parts: Sequence[PrivateSum]) -> None:
        """Where asked for, what happened inside, un-noised. It goes to the private folder and nowhere else."""
        if not self.training.has_diagnostics:
            return
        values = added(private_parts).values.values()
        norm = math.hypot(*(float(value.norm()) for value in values))
        row = {"private": True, "step": self.step, "records_drawn": len(places), "norm_of_clipped_sum": norm}
        lines_file.append(self.folder.files.diagnostics, row, mode=0o600)

    def _has_no_patience_left(self) -> bool:
        """Whether the public loss has not improved for long. What the plan allowed stays charged all the same."""
        patience = self.training.patience
        if patience is None or len(self.rows) <= patience:
            return False
        before, lately = self.rows[:-patience], self.rows[-patience:]
        return min(row.loss for row in lately) >= min(row.loss for row in before)

    def _refuse_divergence(self) -> None:
        for name, value in self.training.model.named_parameters():
            if not bool(value.detach().isfinite().all()):
                raise Diverged(_diverged(f"{name} is no longer finite", self.step))

    def _end(self, reason: str) -> End:
        end = End(step=self.step, accepted=self.accepted, epsilon_spent=self.spent, reason=reason)
        for callback in self.callbacks:
            callback.ended(end)
        return end


@dataclass(frozen=True, kw_only=True)
class _Proposal:
    """What an acceptance may know about a candidate."""

    now: float
    proposed: float
    randomness: StepRandomness

    def energy_now(self) -> float:
        return self.now

    def energy_proposed(self) -> float:
        return self.proposed

    def uniform(self) -> float:
        return self.randomness.uniforms("acceptance", 1).item()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as it is used, not trained."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def _diverged(what: str, step: int) -> str:
    return f"{what} after {step} steps: a smaller learning rate may help; what was released so far stays charged"
