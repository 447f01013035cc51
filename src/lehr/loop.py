"""The one training loop. Every method is a filling of its slots.

What leaves it: released sums, through the weights; scores, on public records or with noise; and how far it has come.
What the guarantee rests on is the order of things within a step: it is charged, on the disk, before it is drawn.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lehr import checkpoint
from lehr.acceptance.always import Always
from lehr.asking import Judge
from lehr.attempts import Allowance, Charges, going_on
from lehr.candidates import Candidates
from lehr.clipping.unclipped import Unclipped
from lehr.distributed import ALONE, Order, Ranks
from lehr.errors import Diverged
from lehr.events import Event
from lehr.files import lines_file
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Records, ReleasedSum, Taken, batches
from lehr.mechanism import Mechanism, Method, added
from lehr.rng import StepRandomness
from lehr.run_folder import RunFolder
from lehr.run_shape import COMPLETED, SPENT, Callback, End, Evaluation, Progress
from lehr.sampling.physical import PhysicalBatch, physical
from lehr.scoring import Scorer
from lehr.sharded import CHECKPOINT, SCORE, WEIGHTS, Shards, checkpoint_of
from lehr.trainee import Trainee, diverged, evaluating
from lehr.update.averaging import Averaging


class Engine(Protocol):
    """Whatever can sum clipped gradients over a physical batch."""

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor) -> PrivateSum:  # noqa: N803
        """The clipped sum over the records that the mask counts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Share:
    """What one process needs in order to sum the clipped gradients of its records: it neither draws nor releases."""

    engine: Engine
    private: Records
    views: Callable[[Inputs, torch.Generator], Inputs]  # prepared, and augmented where that is asked for
    physical_batch: int
    device: torch.device
    ranks: Ranks
    is_side_by_side: bool = False  # whether every rank must run as many batches as the others

    def parts(self, places: Tensor, clip: ClipRule, randomness: StepRandomness) -> Iterator[PrivateSum]:
        """The clipped sums over the physical batches of this rank's share. An empty one is one batch of padding."""
        ranks, size = self.ranks, self.physical_batch
        generator = randomness.generator(ranks.purpose("augmentation"), self.device)
        seed_layers(randomness, self.device, purpose=ranks.purpose("layers"))
        nobody = PhysicalBatch(places_P=places.new_zeros(size), mask_P=torch.zeros(size, dtype=torch.bool))
        parts = physical(ranks.own(places), size) or [nobody]
        if self.is_side_by_side:
            parts += [nobody] * (math.ceil(ranks.largest_share(places) / size) - len(parts))
        read = batches(self.private, [part.places_P for part in parts])
        for part, (inputs, targets, usable_P) in zip(parts, read, strict=True):  # noqa: N806
            yield self.engine.private_sum(clip, self.views(inputs, generator), targets, part.mask_P & usable_P)


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Everything that a run is made of, decided before its first step."""

    model: nn.Module
    engine: Engine
    method: Method
    mechanism: Mechanism
    allowance: Allowance
    epsilon_of: Callable[[Event], float]
    private: Records
    beforehand: Callable[[StepRandomness], None] | None  # done once to the model, with noise that is charged
    views: Callable[[Inputs, torch.Generator], Inputs]  # prepared, and augmented where that is asked for
    physical_batch: int
    averaging: Averaging
    scorer: Scorer | None  # of what would be released
    judge: Judge | None  # of candidates; of public records it has others than the scorer's
    patience: int | None
    checkpoint_seconds: float
    has_diagnostics: bool
    environment: dict[str, str] | None
    ranks: Ranks = ALONE  # of which this process is the first
    shards: Shards | None = None  # where every rank holds a share of the weights

    @property
    def held(self) -> nn.Module:
        """The weights that this process holds, which are all of them unless they are spread out."""
        return self.model if self.shards is None else self.shards.held

    @property
    def share(self) -> Share:
        """What this process sums."""
        return Share(
            engine=self.engine,
            private=self.private,
            views=self.views,
            physical_batch=self.physical_batch,
            device=next(self.held.parameters()).device,
            ranks=self.ranks,
            is_side_by_side=self.shards is not None,
        )


class Loop:
    """A run in its folder, from wherever it stands to the end of its plan."""

    def __init__(self, training: Training, folder: RunFolder, callbacks: Sequence[Callback] = ()) -> None:
        self.training, self.folder, self.callbacks = training, folder, tuple(callbacks)
        self.trainee = Trainee(training.held, training.method, training.averaging)
        self.device = next(training.held.parameters()).device
        self.spent = 0.0
        self.rows: list[Evaluation] = []
        self._shown = copy.deepcopy(training.model) if training.shards is None else training.model
        self._attempt_found: int | None = None
        self._go_on()

    def run(self) -> End:
        """Take every step that the plan still allows. torch's own generators are left as they were."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            return self._run()

    def _run(self) -> End:
        training, mechanism, trainee = self.training, self.training.mechanism, self.trainee
        charges = self._charges()
        self._prepare()
        saved_at, reason = time.monotonic(), COMPLETED
        for step in range(trainee.step, charges.last_step):
            if early := self._reason_to_stop():
                reason = early
                break

            # Charged, on the disk, before anything is drawn; and nothing more is spent on weights that are lost.
            if not charges.covers(step):
                self._refuse_divergence()
                if not self._pay(charges, step):
                    reason = SPENT
                    break
                self.spent = training.epsilon_of(self.folder.ledger.charged())

            # The records of this step, and the sum of their clipped gradients.
            planned, randomness = charges.planned(step), self._randomness(step)
            self._begin_together(randomness, planned)
            places = mechanism.draw(len(training.private), randomness)
            private = added(self._private_parts(places, trainee.clip_rule(step), randomness))
            self._peek(places, randomness)

            # From here on nothing is private: the weights, whether they are taken, their averages.
            released = mechanism.release(private, trainee.noise, planned_step=planned, randomness=randomness)
            is_accepted = self._propose(trainee.combined(released), step, randomness)
            trainee.end_step(Taken(released=released, divisor=mechanism.divisor, is_accepted=is_accepted))

            # What people see, and what is kept for a crash.
            self._tell_progress()
            self._diagnose(places, private)
            if charges.is_scored(step) and training.scorer is not None:
                spent = training.epsilon_of(charges.released_after(step))
                self._evaluate(training.scorer, randomness, spent=spent, of_step=self._told_of(released, private))
            del private, released  # each is as large as the model
            if time.monotonic() - saved_at >= training.checkpoint_seconds:
                self._save()
                saved_at = time.monotonic()
        self._score_the_end()
        self._save()
        missing = training.allowance.steps - trainee.step
        if reason == COMPLETED and missing:
            reason = f"plan spent {missing} steps early: they were charged before the run was begun anew"
        return self._end(reason)

    def _prepare(self) -> None:
        """Do what is done once, unless the checkpoint has it. Again, it is free where it is the same to the bit."""
        trainee, ledger, beforehand = self.trainee, self.folder.ledger, self.training.beforehand
        if beforehand is None or trainee.is_prepared:
            return
        paid_for = f"beforehand, attempt {trainee.attempt}"
        if not ledger.count(paid_for):  # what another attempt paid for had other noise
            ledger.record(self.training.allowance.beforehand, note="before the first step", counts={paid_for: 1})
            self.spent = self.training.epsilon_of(ledger.charged())
        beforehand(self.folder.key.at(0, trainee.attempt))
        trainee.is_prepared = True
        self._save()

    def _pay(self, charges: Charges, step: int) -> bool:
        """Charge the step, with others where their costs are known; false where a limit does not admit it."""
        mechanism = self.training.mechanism
        if mechanism.plan.limit is None:
            charges.charge_until(step)
            return True
        return charges.charge_one(step, mechanism.next_event(self.trainee.noise, planned_step=charges.planned(step)))

    def _randomness(self, step: int) -> StepRandomness:
        """All random numbers of a step; of the noise, as much as falls on what this process holds."""
        key, attempt, shards = self.folder.key, self.trainee.attempt, self.training.shards
        return key.at(step, attempt) if shards is None else shards.at(key, step, attempt)

    def _begin_together(self, randomness: StepRandomness, planned_step: int) -> None:
        """Where weights are spread out, all ranks take the whole step, and not its sum alone."""
        if self.training.shards is not None:
            sensitivity = self.trainee.clip_rule(randomness.step).sensitivity
            self.training.shards.order(randomness, planned_step=planned_step, sensitivity=sensitivity)

    def _refuse_divergence(self) -> None:
        self.trainee.refuse_divergence()
        if self.training.shards is not None:
            self.training.shards.refuse_divergence(self.trainee.step)

    def _private_parts(self, places: Tensor, clip: ClipRule, randomness: StepRandomness) -> Iterator[PrivateSum]:
        """The clipped sums over a draw: of this process, batch by batch, and then of each other rank."""
        training, trainee = self.training, self.trainee
        if training.shards is not None:
            with training.ranks.side_by_side():
                yield from training.share.parts(places, clip, randomness)
            return
        order = Order(
            step=randomness.step,
            attempt=randomness.attempt,
            clipping=trainee.clipping,
            is_raw=isinstance(clip, Unclipped),
        )
        training.ranks.order(order, training.model)
        for part in training.share.parts(places, clip, randomness):
            yield part
        yield from training.ranks.shares(part)

    def _peek(self, places: Tensor, randomness: StepRandomness) -> None:
        """Let a clip that is unproven look at the gradients as they are. It is charged as what it is."""
        if self.training.method.clipping.unproven is not None:
            raw = added(self._private_parts(places, Unclipped(), randomness))
            self.trainee.peek(raw, divisor=self.training.mechanism.divisor)

    def _propose(self, released: ReleasedSum, step: int, randomness: StepRandomness) -> bool:
        """Move the weights as far as acceptance says, which may be nowhere."""
        trainee, judge, divisor = self.trainee, self.training.judge, self.training.mechanism.divisor
        if isinstance(self.training.method.acceptance, Always):  # the weights need not be kept to go back to
            trainee.propose(released, divisor=divisor, step=step)
            return True
        candidates = Candidates(
            trainee, judge, released, divisor=divisor, step=step, randomness=randomness, energy_now=trainee.energy
        )
        decision = trainee.decides(candidates, released)
        trainee.energy = candidates.take(decision.step_scale, keeps_momentum=decision.keeps_momentum)
        return decision.is_accepted

    def _score_the_end(self) -> None:
        """Score a run that stopped where no score was due; on public records, for no other score was planned."""
        scorer, step = self.training.scorer, self.trainee.step
        if scorer is None or self.training.allowance.is_scored_privately or not step:
            return
        if not self.rows or self.rows[-1].step != step:
            self._evaluate(scorer, self.folder.key.at(step - 1, self.trainee.attempt), spent=self.spent)

    def _told_of(self, released: ReleasedSum, private: PrivateSum) -> dict[str, float]:
        """The noise and the clip of a step, which are public; but not bounds that follow gradients without noise."""
        noise = released.noise_multiplier / self.training.mechanism.sampling.sensitivity_factor
        is_public = self.training.method.clipping.unproven is None and 0 < private.sensitivity < math.inf
        clip_norm = {"clip_norm": private.sensitivity} if is_public else {}
        return ({"noise_multiplier": noise} if noise else {}) | clip_norm

    @contextmanager
    def _showing(self, randomness: StepRandomness) -> Iterator[nn.Module]:
        """The model that would be released now, as it is used."""
        shards = self.training.shards
        if shards is not None:
            shards.ranks.tell(SCORE, step=randomness.step, attempt=randomness.attempt)
            with shards.showing(self.trainee) as model:
                yield model
            return
        self._shown.load_state_dict(self.trainee.weights())
        with evaluating(self._shown):
            yield self._shown

    def _evaluate(
        self, scorer: Scorer, randomness: StepRandomness, *, spent: float, of_step: Mapping[str, float] | None = None
    ) -> None:
        """Score the weights that would be released now, and write that down."""
        with self._showing(randomness) as model:
            score = scorer.score(model, randomness)
        if not math.isfinite(score.loss):
            raise Diverged(diverged(f"the loss is {score.loss}", self.trainee.step))
        row = Evaluation(
            step=self.trainee.step,
            accepted=self.trainee.accepted,
            epsilon_spent=spent,
            loss=score.loss,
            accuracy=score.accuracy,
            on=scorer.on,
            learning_rate=self.trainee.learning_rate(),
            accuracy_by_class=score.accuracy_by_class,
            **(of_step or {}),
        )
        lines_file.append(self.folder.files.metrics, row.to_json())
        self.rows.append(row)
        for callback in self.callbacks:
            callback.evaluated(row)

    def _charges(self) -> Charges:
        """What may be taken from here on; what of it was charged already is free where it is the same to the bit."""
        attempt = going_on(
            self.folder.files.attempts,
            first_step=self.trainee.step,
            of_checkpoint=self._attempt_found,
            ledger=self.folder.ledger,
            environment=self.training.environment,
        )
        self.trainee.attempt = attempt.number
        if attempt.number != self._attempt_found:
            self._save()  # so that a crash right after goes on with this attempt instead of paying for another
        self.spent = self.training.epsilon_of(self.folder.ledger.charged())
        return Charges(self.folder.ledger, self.training.allowance, attempt)

    def _save(self) -> None:
        self._refuse_divergence()
        found, shards = self.trainee.checkpoint(), self.training.shards
        if shards is not None:
            found = replace(found, tensors=shards.gathered(found.tensors, what=CHECKPOINT))
        checkpoint.write(self.folder.files.checkpoints, found, self.folder.key)

    def weights(self) -> dict[str, Tensor]:
        """What is released at the end, whole: the weights, or their average."""
        weights, shards = self.trainee.weights(), self.training.shards
        if shards is None:
            return weights
        whole = shards.gathered(checkpoint_of(weights), what=WEIGHTS)
        return dict(zip(weights, whole.values(), strict=True))

    def _go_on(self) -> None:
        """Go on from the last checkpoint; where there is none, from the beginning."""
        found, shards = checkpoint.latest(self.folder.files.checkpoints, self.folder.key), self.training.shards
        self._attempt_found = None if found is None else found.attempt
        if found is not None:
            self.trainee.go_on_from(found if shards is None else shards.hand_out(found))
        self.folder.forget_evaluations_after(self.trainee.step)
        self.rows = list(self.folder.evaluations())

    def _tell_progress(self) -> None:
        trainee = self.trainee
        progress = Progress(step=trainee.step, accepted=trainee.accepted, epsilon_spent=self.spent)
        for callback in self.callbacks:
            callback.stepped(progress)

    def _diagnose(self, places: Tensor, private: PrivateSum) -> None:
        """Where asked for, what happened inside, un-noised. It goes to the private folder and nowhere else."""
        if not self.training.has_diagnostics:
            return
        norm = math.hypot(*(float(value.norm()) for value in private.values.values()))
        row = {"private": True, "step": self.trainee.step, "records_drawn": len(places), "norm_of_clipped_sum": norm}
        lines_file.append(self.folder.files.diagnostics, row, mode=0o600)

    def _reason_to_stop(self) -> str:
        """Why no further step is taken. Whatever the reason, what the plan allowed stays charged."""
        enough = self.training.allowance.plan.stops_at_accepted
        if enough is not None and self.trainee.accepted >= enough:
            return f"{enough} candidates accepted"
        return f"no better for {self.training.patience} evaluations" if self._has_no_patience_left() else ""

    def _has_no_patience_left(self) -> bool:
        """Whether the loss has not improved for long."""
        patience = self.training.patience
        if patience is None or len(self.rows) <= patience:
            return False
        before, lately = self.rows[:-patience], self.rows[-patience:]
        return min(row.loss for row in lately) >= min(row.loss for row in before)

    def _end(self, reason: str) -> End:
        trainee = self.trainee
        end = End(step=trainee.step, accepted=trainee.accepted, epsilon_spent=self.spent, reason=reason)
        for callback in self.callbacks:
            callback.ended(end)
        return end


def seed_layers(randomness: StepRandomness, device: torch.device, *, purpose: str = "layers") -> None:
    """Dropout, and whatever else draws by itself, repeats itself with the step."""
    # torch.manual_seed would note where it was called from, for every kind of device, and never forget it.
    torch.default_generator.set_state(randomness.generator(purpose, "cpu").get_state())
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(randomness.seed(purpose))
