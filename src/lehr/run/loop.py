"""The training loop of every method, run by every rank.

It outputs the weights, which depend on private records only through charged releases; scores, on public records or
with noise; and progress. ``PrivateRun`` charges, draws and releases. Everything after a release is post-processing.
"""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from lehr.acceptance.rules import Always
from lehr.errors import Diverged
from lehr.gradients.execution import random_numbers_apart
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Records, ReleasedSum, StepOutcome, batches
from lehr.optim.averaging import Averaging
from lehr.privacy.clipping import Unclipped
from lehr.privacy.rng import StepRandomness
from lehr.privacy.users import UserRecords
from lehr.run.evaluation import Score, Scorer
from lehr.run.line_search import LineSearch
from lehr.run.loss_oracle import LossOracle
from lehr.run.mechanism import Method
from lehr.run.phases import set_trained, training_only
from lehr.run.private_run import PrivateRun, PrivateStep
from lehr.run.shape import COMPLETED, SPENT, Callback, End, Evaluation, Progress
from lehr.run.sharded import Shards
from lehr.run.train_state import TrainState, diverged, evaluating


class Engine(Protocol):
    """Computes the sum of clipped per-record gradients over a physical batch."""

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor) -> PrivateSum:
        """The clipped sum over the records where ``mask_B`` is true."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingPhase:
    """From which step on these parameters are trained, and how. Without ``trained``, all are that the model trains."""

    engine: Engine
    prepare_inputs: Callable[[Inputs, torch.Generator], Inputs]  # preprocessing and augmentation
    first_step: int = 0
    trained: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """The model, records and options of a training: everything the loop needs besides the ``PrivateRun``."""

    model: nn.Module
    phases: Sequence[TrainingPhase]  # in the order of their steps; the first begins at step 0
    method: Method
    private_records: Records | UserRecords
    averaging: Averaging
    scorer: Scorer | None = None  # evaluates the model that would be released
    oracle: LossOracle | None = None  # scores candidates; its public records are disjoint from the scorer's
    setup: Callable[[StepRandomness], None] | None = None  # changes the model once, with charged noise
    patience: int | None = None
    checkpoint_seconds: float = math.inf
    writes_diagnostics: bool = False
    environment: Mapping[str, str] | None = None  # everything that can change a bit of this rank's sums
    shards: Shards | None = None  # set if each rank holds some rows of the weights

    @property
    def local(self) -> nn.Module:
        """The module with this rank's weights: its shard, or the whole model if it is not sharded."""
        return self.model if self.shards is None else self.shards.local

    def phase(self, step: int) -> TrainingPhase:
        """The phase that a step belongs to."""
        return [phase for phase in self.phases if phase.first_step <= step][-1]


class DelayedInterrupt:
    """Delays the first Ctrl-C to the end of the step: a checkpoint within a step would not be consistent.

    A second Ctrl-C stops at once. Nothing is delayed outside the main thread, or if the program handles Ctrl-C itself.
    """

    def __init__(self) -> None:
        self.is_requested = False
        is_main = threading.current_thread() is threading.main_thread()
        self._is_active = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def __enter__(self) -> Self:
        if self._is_active:
            signal.signal(signal.SIGINT, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_active:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _request(self, *_: object) -> None:
        self.is_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Loop:
    """Trains from the last checkpoint to the end of the plan. Callbacks are called on rank 0 only."""

    def __init__(self, training: Training, run: PrivateRun, callbacks: Sequence[Callback] = ()) -> None:
        self.training, self.run = training, run
        self.callbacks = tuple(callbacks) if run.ranks.is_rank_0 else ()
        trains_all = not any(phase.trained for phase in training.phases)
        self.state = TrainState(training.local, training.method, training.averaging, trains_all=trains_all)
        self.device = next(training.local.parameters()).device
        self.rows: list[Evaluation] = []
        self._attempt_before: int | None = None
        self._is_loaded = False

    def load_checkpoint(self) -> None:
        """Load the last checkpoint, if there is one. Nothing is charged or drawn yet."""
        run, state, shards = self.run, self.state, self.training.shards
        if shards is not None:
            run.randomness_at = shards.at
        found = run.load_checkpoint() if shards is None else run.load_checkpoint(shards.rows_of_tensor)
        if found is not None:
            state.load(found)
        self.rows = run.evaluations(until=state.step)
        self._attempt_before, self._is_loaded = (None if found is None else found.attempt), True

    def train(self) -> End:
        """Take all remaining steps of the plan. The states of all global generators are restored."""
        if not self._is_loaded:
            self.load_checkpoint()
        with random_numbers_apart(self.device), training_only(self.training.model):
            self._begin()
            with DelayedInterrupt() as interrupt:
                return self._train(interrupt)

    def _begin(self) -> None:
        """Continue the checkpoint's attempt, or start a new one, which charges every step."""
        training, state = self.training, self.state
        state.attempt = self.run.begin(
            num_records=len(training.private_records),
            first_step=state.step,
            checkpoint_attempt=self._attempt_before,
            environment=training.environment,
        )
        if state.attempt != self._attempt_before:
            self._save()  # after a crash, this attempt continues and no other one is charged

    def _train(self, interrupt: DelayedInterrupt) -> End:
        training, run, state = self.training, self.run, self.state
        self._prepare()
        saved_at, early = time.monotonic(), self._reason_to_stop()
        # Each step is charged on disk before its records are drawn. Diverged weights stop the run before a charge.
        for step in run.steps(state, before_charge=self._check_finite) if not early else ():
            # Sum the clipped gradients of this step's records.
            self._enter_phase(step.index)
            clip = state.clip_rule(step.index)
            for part in self._parts(step, clip):
                step.add(part)
                del part  # frees memory: it is as large as the model, and would stay until the next step's first sum
            self._peek(step)
            if training.writes_diagnostics:
                run.write_diagnostics({"private": True, "step": step.index + 1, **step.diagnostics()})

            # Post-processing of the released sum: update, acceptance, averages.
            released = step.release(state.noise)
            is_accepted = self._update(state.combined(released), step)
            state.end_step(StepOutcome(released=released, divisor=self._divisor, is_accepted=is_accepted))

            # Progress, evaluation, checkpoint.
            self._report(Progress(step=state.step, accepted=state.accepted, epsilon_spent=run.epsilon_spent))
            if training.scorer is not None and run.charger.is_scored(step.index):
                spent = run.epsilon_after(step.index)
                self._evaluate(training.scorer, step.randomness, spent=spent, extra=self._step_metrics(released, clip))
            del released  # frees memory: it is as large as the model
            is_due, is_interrupted = self._agree(saved_at, interrupt)
            if is_due or is_interrupted:
                self._save()
                saved_at = time.monotonic()
            if is_interrupted:
                raise KeyboardInterrupt
            if early := self._reason_to_stop():
                break
        self._evaluate_end()
        self._save()
        return self._end(early or (SPENT if run.limit_reached else COMPLETED))

    def _prepare(self) -> None:
        """Run the charged setup, unless the checkpoint contains it. A bit-identical replay is not charged again."""
        if self.training.setup is None or self.state.is_prepared:
            return
        self.run.prepare(self.training.setup, self.training.model.buffers())
        self.state.is_prepared = True
        self._save()

    def _enter_phase(self, step: int) -> None:
        """Train the parameters of the phase that a step belongs to."""
        if trained := self.training.phase(step).trained:
            set_trained(self.training.model, trained)

    def _parts(self, step: PrivateStep, clip: ClipRule) -> Iterator[PrivateSum]:
        """The clipped sum of each physical batch in this rank's share of the draw."""
        training, phase = self.training, self.training.phase(step.index)
        generator = step.generator("augmentation", self.device)
        step.seed_layers(self.device)
        records, parts = training.private_records, step.batches()
        if isinstance(records, UserRecords):
            records = records.of_draw(step.indices, step.randomness)
        read = batches(records, [part.indices_P for part in parts])
        for part, (inputs, targets, usable_P) in zip(parts, read, strict=True):
            prepared = phase.prepare_inputs(inputs, generator)
            yield phase.engine.private_sum(clip, prepared, targets, part.mask_P & usable_P)

    def _peek(self, step: PrivateStep) -> None:
        """Show the sum without noise to a clip rule without a proof. Its steps are charged as ``NonPrivate``."""
        if self.training.method.clipping.unproven is not None:
            self.state.peek(step.peek(self._parts(step, Unclipped())), divisor=self._divisor)

    def _update(self, released: ReleasedSum, step: PrivateStep) -> bool:
        """Update the weights if the acceptance rule accepts; return whether it did."""
        state = self.state
        if isinstance(self.training.method.acceptance, Always):  # no copy of the old weights is needed
            state.propose(released, divisor=self._divisor, step=step.index)
            return True
        search = LineSearch(
            state,
            self.training.oracle,
            released,
            divisor=self._divisor,
            step=step.index,
            randomness=step.randomness,
            energy_now=state.energy,
            ranks=self.run.ranks,
        )
        decision = state.decides(search, released)
        state.energy = search.take(decision.step_scale, keeps_momentum=decision.keeps_momentum)
        return decision.is_accepted

    @property
    def _divisor(self) -> float:
        return self.run.mechanism.divisor

    def _check_finite(self) -> None:
        """Raise ``Diverged`` on every rank if any rank has a non-finite weight."""
        for found in filter(None, self.run.ranks.gather(self.state.divergence())):
            raise Diverged(diverged(found, self.state.step))

    # Evaluation.

    def _evaluate_end(self) -> None:
        """Evaluate the last step if that was not done. Only on public records: a private score would not be charged."""
        scorer, step = self.training.scorer, self.state.step
        if scorer is None or not step or self.run.planned_spec.run_plan.is_scored_privately:
            return
        if not self.rows or self.rows[-1].step != step:
            self._evaluate(scorer, self.run.randomness(step - 1), spent=self.run.epsilon_spent)

    def _step_metrics(self, released: ReleasedSum, clip: ClipRule) -> dict[str, float]:
        """Noise multiplier and clip norm of a step. Clip norms computed from un-noised gradients are left out."""
        noise = released.noise_multiplier / self.run.mechanism.sampling.sensitivity_factor
        is_public = self.training.method.clipping.unproven is None and 0 < clip.sensitivity < math.inf
        clip_norm = {"clip_norm": getattr(clip, "clip_norm", clip.sensitivity)} if is_public else {}
        return ({"noise_multiplier": noise} if noise else {}) | clip_norm

    def _score(self, scorer: Scorer, randomness: StepRandomness) -> Score:
        """The score of the model that would be released now. Every rank returns the score of rank 0."""

        def score() -> Score:
            self._eval_model.load_state_dict(self.state.weights())
            with evaluating(self._eval_model):
                return scorer.score(self._eval_model, randomness)

        ranks, shards = self.run.ranks, self.training.shards
        if shards is None:
            loss, accuracy, by_class, metrics = ranks.from_rank_0(score)
        else:  # all ranks run the model, because each holds a part of its weights
            with shards.showing(self.state) as model:
                found = scorer.score(model, randomness)
            loss, accuracy, by_class, metrics = ranks.from_rank_0(lambda: found)
        return Score(loss, accuracy, None if by_class is None else tuple(by_class), metrics)

    @cached_property
    def _eval_model(self) -> nn.Module:
        return copy.deepcopy(self.training.model)

    def _evaluate(
        self, scorer: Scorer, randomness: StepRandomness, *, spent: float, extra: Mapping[str, float] | None = None
    ) -> None:
        """Evaluate the weights that would be released now, and append the result to the metrics."""
        score, state = self._score(scorer, randomness), self.state
        if not math.isfinite(score.loss):
            raise Diverged(diverged(f"the loss is {score.loss}", state.step))
        row = Evaluation(
            step=state.step,
            accepted=state.accepted,
            epsilon_spent=spent,
            loss=score.loss,
            accuracy=score.accuracy,
            on=scorer.on,
            learning_rate=state.learning_rate(),
            accuracy_by_class=score.accuracy_by_class,
            metrics=score.metrics,
            **(extra or {}),
        )
        self.run.write_evaluation(row)
        self.rows.append(row)
        for callback in self.callbacks:
            callback.evaluated(row)

    # Checkpoints and the end.

    def _agree(self, saved_at: float, interrupt: DelayedInterrupt) -> tuple[bool, bool]:
        """Whether a checkpoint is due by the clock of rank 0, and whether any rank received Ctrl-C."""
        is_due = time.monotonic() - saved_at >= self.training.checkpoint_seconds
        everyone = self.run.ranks.gather([is_due, interrupt.is_requested])
        return everyone[0][0], any(is_requested for _, is_requested in everyone)

    def _save(self) -> None:
        self._check_finite()
        found, shards = self.state.checkpoint(), self.training.shards
        if shards is not None:
            found = replace(found, tensors=shards.gathered(found.tensors))
        self.run.save_checkpoint(found)

    def weights(self) -> dict[str, Tensor]:
        """The weights to release, or their average. If sharded, only rank 0 gets the whole tensors."""
        weights, shards = self.state.weights(), self.training.shards
        return weights if shards is None else shards.whole(weights)

    def _report(self, progress: Progress) -> None:
        for callback in self.callbacks:
            callback.stepped(progress)

    def _reason_to_stop(self) -> str:
        """Why to stop early, or an empty string. The guarantee stays that of the whole plan in any case."""
        plan, patience = self.run.mechanism.plan, self.training.patience
        if plan.stops_at_accepted is not None and self.state.accepted >= plan.stops_at_accepted:
            return f"{plan.stops_at_accepted} candidates accepted"
        if patience is None or len(self.rows) <= patience:
            return ""
        before, recent = self.rows[:-patience], self.rows[-patience:]
        is_better = min(row.loss for row in recent) < min(row.loss for row in before)
        return "" if is_better else f"no better for {patience} evaluations"

    def _end(self, reason: str) -> End:
        state, missing = self.state, self.run.mechanism.plan.steps - self.state.step
        if reason == COMPLETED and missing:
            reason = f"ended {missing} steps early: the plan paid for them before a resume"
        end = End(step=state.step, accepted=state.accepted, epsilon_spent=self.run.epsilon_spent, reason=reason)
        for callback in self.callbacks:
            callback.ended(end)
        return end
