"""One private run: the only object that charges steps, draws records and releases sums.

    with PrivateRun.open(spec) as run:          # key, ledger, budget; creates the folder, or opens it to resume
        run.begin(num_records=len(records))     # start an attempt, or continue that of a checkpoint
        for step in run.steps(state):           # charged in the ledger, on disk, before records are drawn
            for batch in step.batches():        # this rank's share of the draw, in physical batches
                step.add(engine.private_sum(clip, *records(batch)))
            released = step.release(state.noise)    # adds the sums of all ranks, then noise, exactly once
            ...                                 # optimizer, acceptance, averaging: post-processing
        run.finish(weights, accepted=state.accepted)

Three kinds of loop use it. The training loop calls ``run.steps`` on every rank. Integrations, where another library
owns the loop, call ``run.step(i)``. Such a step is charged when it is released, because a data loader may prefetch
draws; a draw that is never released reveals nothing. A run without a plan (``UnplannedRunSpec``) calls ``run.draw()``
and charges each step at its release, with the noise multiplier that the loop passes.

An *attempt* is what one start of the program does. A resumed run continues the attempt of its checkpoint if it can
repeat its steps bit for bit; otherwise it begins another one, with fresh randomness, and charges those steps again.

The proof is ``run/private_run.proof.md``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import torch
from safetensors.torch import save
from torch import Tensor

from lehr import validate
from lehr.accounting.events import NOTHING, Adjacency, Atom, Event, NonPrivate, Repeated, counted
from lehr.accounting.filter import epsilon_at
from lehr.accounting.ledger import Ledger
from lehr.accounting.pld import PLD
from lehr.accounting.rdp import RDP_BALLE20
from lehr.errors import BudgetExceeded, InvalidValue, LehrError, StoreError
from lehr.files import atomic, strict_json
from lehr.gradients.execution import seed_python
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import RECORD, USER, Plan
from lehr.privacy.noise import IsotropicNoise, NoNoise
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PhysicalBatch, PoissonSampling, physical, shuffled
from lehr.run import checkpoint
from lehr.run.checkpoint import Checkpoint
from lehr.run.distributed import ALONE, Ranks, fingerprint_of, type_name
from lehr.run.folder import Fingerprint, RunFolder
from lehr.run.mechanism import Mechanism, Noise, add_part, sum_parts
from lehr.run.replay import Attempt, RunPlan, StepCharger, UnplannedCharger, choose_attempt
from lehr.run.shape import Evaluation

_NO_STATE: ComponentState = {}


class StepAndNoise(Protocol):
    """The part of the training state that a run reads: the step counter and the state of the noise."""

    @property
    def step(self) -> int: ...

    @property
    def noise(self) -> ComponentState: ...


class LimitReached(BudgetExceeded):
    """The next step would exceed the plan's limit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunSpec:
    """A run whose plan is fixed before any record is drawn. ``config`` is written to config.json."""

    name: str
    run_plan: RunPlan
    mechanism: Mechanism
    directory: Path
    config: Mapping[str, Any]
    fingerprint: Fingerprint  # keyed hash of the records
    physical_batch: int
    epsilon_of: Callable[[Event], float]  # ε of the events charged so far
    budget: Path | None = None
    key: RunKey | None = None  # None: a new random key
    pads_batches: bool = True  # equal physical batch sizes, for compiled steps and reproducible rounding
    removes_untouched: bool = False  # delete a new folder if the run is closed before anything is charged
    is_sharded: bool = False  # each rank holds some rows of the weights; all ranks run equally many batches
    ranks: Ranks = ALONE


@dataclass(frozen=True, kw_only=True, eq=False)
class UnplannedRunSpec:
    """A run of any length, whose noise and clipping may change from step to step.

    If ``reserved_steps`` is given, every step must equal its event, and there are at most its count of them; a
    ``budget`` reserves all of them. ``unproven`` is the reason why the steps have no guarantee; they are then charged
    as ``NonPrivate``. ``on_charge`` is called with each event, after it is charged and before anything is released.
    """

    sampling: PoissonSampling
    num_records: int
    physical_batch: int
    charger: UnplannedCharger = field(default_factory=UnplannedCharger)
    key: RunKey = field(default_factory=RunKey.fresh)
    name: str = "open run"
    reserved_steps: Repeated | None = None
    budget: Path | None = None
    unproven: str | None = None
    on_charge: Callable[[Event], None] = lambda event: None
    ranks: Ranks = ALONE
    pads_batches: ClassVar[bool] = False
    is_sharded: ClassVar[bool] = False


class PrivateStep:
    """One step of a run: its draw, the clipped sum over it, and its one release."""

    def __init__(self, run: PrivateRun, index: int, indices: Tensor | None = None) -> None:
        self._run, self.index, self._given = run, index, indices
        self.randomness = run.randomness(index)
        self._sum: PrivateSum | None = None
        self._num_batches: int | None = None
        self._num_added = self._num_records = 0
        self._counts_records = self._is_released = self._is_reduced = False

    @cached_property
    def indices(self) -> Tensor:
        """The records of the whole draw, in random order: the same on every rank."""
        return self._run.draw_indices(self.index, self.randomness) if self._given is None else self._given

    def batches(self, size: int | None = None) -> list[PhysicalBatch]:
        """This rank's share of the draw in physical batches. An empty share gives one batch that is all padding."""
        run, size = self._run, size or self._run.physical_batch
        found = physical(run.ranks.share_of(self.indices), size, is_padded=run.spec.pads_batches)
        if run.spec.is_sharded:
            missing = -(-run.ranks.largest_share(self.indices) // size) - len(found)
            found += physical(self.indices[:0], size) * missing
        self._num_batches = len(found)
        return found

    def generator(self, purpose: str, device: torch.device) -> torch.Generator:
        """A generator for this rank and ``purpose``, for example augmentation."""
        return self.randomness.generator(self._run.ranks.purpose(purpose), device)

    def seed_layers(self, device: torch.device, purpose: str = "layers") -> None:
        """Seed all global generators from this step, with other numbers on every rank and for every ``purpose``."""
        seed_layers(self.randomness, device, purpose=self._run.ranks.purpose(purpose))

    @property
    def num_added(self) -> int:
        """Number of physical batches added so far."""
        return self._num_added

    def add(self, part: PrivateSum, *, num_records: int | None = None) -> None:
        """Add the clipped sum of a physical batch. All parts of a draw must have the same sensitivity.

        ``num_records`` is the number of records in this part. If it is given, ``release`` checks that the parts
        contain as many records as were drawn.
        """
        if self._is_released:
            raise InvalidValue("step", allowed="one that is not released yet", given="a released one")
        if self._sum is not None and part.sensitivity != self._sum.sensitivity:
            allowed = f"clipped to {self._sum.sensitivity}, like the other parts of the draw"
            raise InvalidValue("sum", allowed=allowed, given=part.sensitivity)
        self._sum = add_part(self._sum, part)
        self._num_added += 1
        if num_records is not None:
            self._counts_records, self._num_records = True, self._num_records + num_records

    def peek(self, parts: Iterable[PrivateSum]) -> PrivateSum:
        """The sum over all ranks without noise. Only for clip rules that are charged as ``NonPrivate``."""
        if self._run.mechanism.clipping.unproven is None:
            raise InvalidValue("clipping", allowed="one that is charged as NonPrivate", given="another")
        return self._run.ranks.reduce(sum_parts(parts))

    def diagnostics(self) -> dict[str, float]:
        """Private values of the draw, without noise. Write them only to the private folder."""
        private = self._whole()
        norm = torch.stack([value.norm() for value in private.values.values()]).norm()
        return {"records_drawn": len(self.indices), "norm_of_clipped_sum": float(norm)}

    def release(self, noise: ComponentState = _NO_STATE, *, noise_multiplier: float | None = None) -> ReleasedSum:
        """Return the noisy sum over the draw: sum over all ranks, charge the step if it is not yet, add noise.

        It can be called once per step. ``noise`` is the state of the method's noise component. ``noise_multiplier`` is
        for runs without a plan.
        """
        private = self._whole()
        multiplier = self._run.charge(self.index, noise, noise_multiplier=noise_multiplier)
        self._run.note_release(self.index)
        self._is_released, self._sum = True, None
        adding = self._run.noise_with(multiplier)
        return adding.release(private, noise_multiplier=multiplier, randomness=self.randomness, state=noise)

    def _whole(self) -> PrivateSum:
        """The sum over the draw and all ranks. An error if a part of the draw is missing or was added twice."""
        if self._is_released or self._sum is None:
            raise InvalidValue("step", allowed="an unreleased one with a sum", given="a released or empty one")
        if self._num_batches is not None and self._num_added != self._num_batches:
            allowed = "one to which each physical batch of its draw was added once"
            raise InvalidValue("step", allowed=allowed, given="more or fewer batches")
        if self._counts_records and self._num_records != len(self._run.ranks.share_of(self.indices)):
            allowed = "one to which each record of its draw was added once"
            raise InvalidValue("step", allowed=allowed, given="more or fewer records")
        if not self._is_reduced:
            self._sum = self._run.reduce(self._sum)
            self._is_reduced = True
        return self._sum


class PrivateRun:
    """An open run; call ``close``, or use ``with``. Only rank 0 has the folder; every rank has the key."""

    def __init__(self, spec: RunSpec | UnplannedRunSpec, *, key: RunKey, folder: RunFolder | None = None) -> None:
        self.spec, self.key, self.folder, self.ranks = spec, key, folder, spec.ranks
        self._unplanned = spec if isinstance(spec, UnplannedRunSpec) else None
        self.physical_batch = validate.count(physical_batch=spec.physical_batch)
        self.randomness_at: Callable[[RunKey, int, int], StepRandomness] | None = None
        self.num_records, self.epsilon_spent, self.limit_reached = 0, 0.0, False
        self._charger: StepCharger | None = None
        self._last_released = -1
        self._drawn = 0
        self.num_taken = 0  # steps taken without a plan, including those before the checkpoint
        self._may_be_removed = False

    @property
    def planned_spec(self) -> RunSpec:
        """The specification of a run with a plan."""
        assert isinstance(self.spec, RunSpec)
        return self.spec

    @property
    def mechanism(self) -> Mechanism:
        """What a planned step does to the records."""
        return self.planned_spec.mechanism

    # Open or resume.

    @classmethod
    def open(cls, spec: RunSpec | UnplannedRunSpec, *, resume: bool = False) -> Self:
        """Open a run. Rank 0 creates its folder and reserves the plan in the budget; to resume, it opens the folder."""
        if isinstance(spec, UnplannedRunSpec):
            return cls._open_without_plan(spec)
        folder = None
        if spec.ranks.is_rank_0:
            folder = _resumed_folder(spec) if resume else _new_folder(spec)
        try:
            run = cls(spec, key=_shared_key(spec.ranks, None if folder is None else folder.key), folder=folder)
        except BaseException:
            if folder is not None:
                folder.close()
            raise
        run._may_be_removed = spec.removes_untouched and not resume
        return run

    @classmethod
    def _open_without_plan(cls, spec: UnplannedRunSpec) -> Self:
        run = cls(spec, key=_shared_key(spec.ranks, spec.key if spec.ranks.is_rank_0 else None))
        run.num_records = validate.count(num_records=spec.num_records)
        if spec.budget is not None and spec.ranks.is_rank_0:
            if spec.reserved_steps is None or spec.charger.charged() != NOTHING:
                allowed = "omitted for a loop without a plan, or if earlier steps are already charged"
                raise InvalidValue("budget", allowed=allowed, given=str(spec.budget))
            with Budget.open(spec.budget) as account:
                _check_same_adjacency(account, Adjacency.ADD_OR_REMOVE_ONE)
                # The id is random and not stored, so no run folder can match this reservation.
                account.reserve(spec.reserved_steps, run=spec.name, run_id=secrets.token_hex(16))
        return run

    def load_checkpoint(self, keep: Callable[[str, Tensor], Tensor] = lambda name, value: value) -> Checkpoint | None:
        """The last checkpoint, on every rank. ``keep`` returns the part of each tensor that this rank holds."""
        found = None if self.folder is None else checkpoint.latest(self.folder.files.checkpoints, self.key)
        header = self.ranks.from_rank_0(lambda: None if found is None else _header(found))
        if header is None:
            return None
        tensors = {}
        for name, (kind, *shape) in header.pop("tensors").items():
            value = torch.empty(shape, dtype=getattr(torch, kind)) if found is None else found.tensors[name]
            self.ranks.broadcast([value])
            tensors[name] = keep(name, value)
        return Checkpoint(**header, tensors=tensors)

    def begin(
        self,
        *,
        num_records: int,
        first_step: int = 0,
        checkpoint_attempt: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Choose the attempt that continues from ``first_step``, and return its number.

        If every rank's ``environment`` is unchanged, the checkpoint's attempt continues and its charged steps are
        replayed at no cost. Otherwise a new attempt starts, which charges every step. Pass None as ``environment`` if
        sums are not reproducible.
        """
        plan, joint = self.planned_spec.run_plan, _joint_environment(self.ranks.gather(environment))
        self.num_records = validate.count(minimum=0, num_records=num_records)

        def choose() -> dict[str, Any]:
            assert self.folder is not None
            ledger = self.folder.ledger
            attempt = choose_attempt(
                self.folder.files.attempts,
                first_step=first_step,
                of_checkpoint=checkpoint_attempt,
                ledger=ledger,
                environment=joint,
                is_only_one=plan.plan.bands > 1,
            )
            charger = StepCharger(plan, attempt, ledger=ledger)
            return {"attempt": asdict(attempt), "until": charger.charged_until, "spent": self._charged_epsilon()}

        found = self.ranks.from_rank_0(choose)
        ledger = None if self.folder is None else self.folder.ledger
        attempt = Attempt(**found["attempt"])
        self._charger = StepCharger(plan, attempt, ledger=ledger, charged_until=found["until"])
        self.epsilon_spent, self._last_released = found["spent"], first_step - 1
        return attempt.number

    def prepare(self, do: Callable[[StepRandomness], None], tensors: Iterable[Tensor]) -> None:
        """Charge the plan's setup event, run ``do`` on rank 0, and broadcast ``tensors`` to the other ranks."""
        if self.ranks.is_rank_0:
            self.charger.charge_setup()
            self.epsilon_spent = self._charged_epsilon()
            do(self.key.at(0, self.charger.attempt.number))
        self.epsilon_spent = self.ranks.from_rank_0(lambda: self.epsilon_spent)
        self.ranks.broadcast(tensors)

    # Steps.

    @property
    def charger(self) -> StepCharger:
        """The object that charges the steps of this attempt."""
        if self._charger is None:
            raise InvalidValue("run", allowed="begun before its first step", given="a run without begin()")
        return self._charger

    @property
    def end_step(self) -> int:
        """One past the last step that the run may take. It is lower after a resume that charged steps a second time."""
        return self.charger.end_step

    def steps(self, state: StepAndNoise, *, before_charge: Callable[[], None] | None = None) -> Iterator[PrivateStep]:
        """The remaining steps of the plan, each charged before its records are drawn.

        If the plan's limit ends them early, ``limit_reached`` is set. ``before_charge`` can raise an error to stop the
        run before more is charged.
        """
        for index in range(state.step, self.end_step):
            if not self.charger.covers(index):
                if before_charge is not None:
                    before_charge()
                try:
                    self.charge(index, state.noise)
                except LimitReached:
                    self.limit_reached = True
                    return
            yield self.step(index)

    def step(self, index: int) -> PrivateStep:
        """One step of the plan. If ``steps`` has not charged it, its release will."""
        if not index < self.end_step:
            raise InvalidValue("step", allowed=f"below {self.end_step}, where the plan ends", given=index)
        return PrivateStep(self, index)

    def draw(self, indices: Sequence[int] | None = None) -> PrivateStep:
        """The next draw of a run without a plan. It costs nothing until it is released.

        ``indices`` is a draw that the loop made itself; it is allowed only if the run is ``unproven``.
        """
        assert self._unplanned is not None
        if indices is not None and self._unplanned.unproven is None:
            raise InvalidValue("indices", allowed="drawn by this run, so that ε can be counted", given="others")
        self._drawn += 1
        return PrivateStep(self, self._drawn, None if indices is None else torch.as_tensor(indices, dtype=torch.int64))

    def count_taken(self, done: Event) -> None:
        """Count the steps in a checkpoint's events towards the planned number. The count never decreases."""
        if self._unplanned is not None and self._unplanned.reserved_steps is not None:
            self.num_taken = max(
                self.num_taken,
                sum(n for atom, n in counted(done).items() if atom == self._unplanned.reserved_steps.event),
            )

    def charge(self, index: int, noise: ComponentState, *, noise_multiplier: float | None = None) -> float:
        """Charge a step, unless it is charged already, and return its noise multiplier. The only place that does so.

        With a plan, steps are charged in blocks. When this returns, the charge is on disk, or in memory if the run has
        no folder.
        """
        if self._unplanned is not None:
            multiplier = validate.non_negative(noise_multiplier=noise_multiplier)
            return self._charge_unplanned(self._unplanned, index, multiplier)
        mechanism, charger = self.mechanism, self.charger
        planned, limit = charger.paying_step(index), mechanism.plan.limit
        if not charger.covers(index):

            def pay() -> list[Any]:
                event = None if limit is None else mechanism.next_event(noise, planned_step=planned)
                return [charger.charge(index, event), charger.charged_until, self._charged_epsilon()]

            is_admitted, charger.charged_until, self.epsilon_spent = self.ranks.from_rank_0(pay)
            if not is_admitted:
                raise LimitReached(f"step {index} would exceed the plan's limit")
        return mechanism.step_noise(noise, planned_step=planned)

    def _charge_unplanned(self, spec: UnplannedRunSpec, index: int, noise_multiplier: float) -> float:
        # The loop decides both on every rank. One noise, scaled in two ways, would cancel out.
        self.ranks.check_equal({"step": index, "noise_multiplier": noise_multiplier})
        event: Atom = spec.sampling.event(self.noise_with(noise_multiplier).event(noise_multiplier))
        if spec.reserved_steps is not None:
            if event != spec.reserved_steps.event:
                allowed = f"the planned event, {spec.reserved_steps.event}"
                raise InvalidValue("step", allowed=allowed, given=str(event))
            if self.num_taken >= spec.reserved_steps.count:
                raise BudgetExceeded(f"all {spec.reserved_steps.count} steps are taken; another would exceed ε")

        def pay() -> None:
            spec.charger.charge(event if spec.unproven is None else NonPrivate(spec.unproven))

        self.ranks.from_rank_0(pay)
        self.num_taken += 1
        spec.on_charge(event)
        return noise_multiplier

    def note_release(self, index: int) -> None:
        """Record a release. A second or out-of-order release is an error: two sums would share their noise."""
        if not index > self._last_released:
            allowed = f"above {self._last_released}: each step is released once, in order"
            raise InvalidValue("step", allowed=allowed, given=index)
        self._last_released = index

    def randomness(self, index: int) -> StepRandomness:
        """All random numbers of a step. With sharded weights, the noise is for this rank's rows only."""
        attempt = 0 if self._unplanned is not None else self.charger.attempt.number
        at = self.randomness_at
        return self.key.at(index, attempt) if at is None else at(self.key, index, attempt)

    def draw_indices(self, index: int, randomness: StepRandomness) -> Tensor:
        """The indices of the records drawn for a step, in random order."""
        if self._unplanned is not None:
            return shuffled(self._unplanned.sampling.draw(self.num_records, randomness), randomness)
        return self.mechanism.draw(self.num_records, randomness, planned_step=self.charger.paying_step(index))

    def noise_with(self, multiplier: float) -> Noise:
        """The noise mechanism: the method's with a plan; without one, Gaussian, or none if ``multiplier`` is 0."""
        if self._unplanned is not None:
            return IsotropicNoise() if multiplier else NoNoise()
        return self.mechanism.noise

    def reduce(self, private: PrivateSum) -> PrivateSum:
        """The sum over all ranks. With sharded weights, the engine's reduce-scatter has already computed it."""
        if not self.spec.is_sharded:
            return self.ranks.reduce(private)
        self.ranks.check_same_sensitivity(private)
        return private

    def epsilon_after(self, step: int) -> float:
        """ε of everything released up to and including this step, on every rank."""
        return self.ranks.from_rank_0(lambda: self.planned_spec.epsilon_of(self.charger.released_after(step)))

    # Files, which only rank 0 writes.

    def save_checkpoint(self, found: Checkpoint) -> None:
        """Write a checkpoint, after checking that all ranks have the same weights."""
        if self.ranks.total > 1 and not self.spec.is_sharded:
            self.ranks.check_equal({"weights": fingerprint_of(found.tensors.values(), self.key)})
        if self.folder is not None:
            checkpoint.write(self.folder.files.checkpoints, found, self.key)

    def evaluations(self, *, until: int) -> list[Evaluation]:
        """The metrics up to this step, on every rank. Later rows are deleted, because those steps will be repeated."""

        def rows() -> list[dict[str, object]]:
            assert self.folder is not None
            self.folder.forget_evaluations_after(until)
            return [row.to_json() for row in self.folder.evaluations()]

        return [Evaluation.from_json(row) for row in self.ranks.from_rank_0(rows)]

    def write_evaluation(self, row: Evaluation) -> None:
        """Append a row to metrics.jsonl, which is public."""
        if self.folder is not None:
            strict_json.append_line(self.folder.files.metrics, row.to_json())

    def write_diagnostics(self, row: Mapping[str, object]) -> None:
        """Append a row to the diagnostics in the private folder."""
        if self.folder is not None:
            strict_json.append_line(self.folder.files.diagnostics, row, mode=0o600)

    # The end.

    def finish(self, weights: Mapping[str, Tensor] | None = None, *, accepted: int = 0) -> None:
        """End the run: close the ledger, return the unused part to the budget, and write the weights.

        It can be called again after a crash. Certificates are issued afterwards, from the files.
        """
        self._may_be_removed = False
        if self._unplanned is not None:
            self._unplanned.charger.close()
            if self._unplanned.budget is not None and self.ranks.is_rank_0:
                assert self._unplanned.reserved_steps is not None
                used = Repeated(self._unplanned.reserved_steps.event, self.num_taken) if self.num_taken else NOTHING
                return_unused(self._unplanned.budget, run=self._unplanned.name, used=used)
        if self.folder is None:
            return
        ledger = self.folder.ledger
        if not ledger.is_finished():
            ledger.accepted(max(0, accepted - ledger.accepted_count()))
            ledger.finish()
        if self.planned_spec.budget is not None:
            return_unused(self.planned_spec.budget, run=ledger.run, ledger=ledger)
        content = save({name: value.detach().cpu().contiguous().clone() for name, value in (weights or {}).items()})
        atomic.write_bytes(self.folder.files.model, content)

    def close(self) -> None:
        """Close and unlock the folder. A run without ``finish`` can be resumed.

        If ``removes_untouched`` is set, a new run that charged nothing is deleted and its reservation is returned to
        the budget. Its name stays in use there.
        """
        if self.folder is None:
            return
        with self.folder as folder:
            if not self._may_be_removed or folder.ledger.charged() != NOTHING:
                return
            if self.planned_spec.budget is not None:  # this also closes the ledger
                return_unused(self.planned_spec.budget, run=folder.ledger.run, ledger=folder.ledger)
            folder.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _charged_epsilon(self) -> float:
        assert self.folder is not None
        return self.planned_spec.epsilon_of(self.folder.ledger.charged())


def seed_layers(randomness: StepRandomness, device: torch.device, *, purpose: str = "layers") -> None:
    """Seed the global generators of torch, Python and NumPy from a step, which is replayed with the same numbers.

    Other numbers would give a replayed step another sum under the same noise.
    """
    seed_python(randomness.seed(purpose))
    # Not torch.manual_seed: it stores a stack trace per call for each device type that is not initialised.
    torch.default_generator.set_state(randomness.generator(purpose, "cpu").get_state())
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(randomness.seed(purpose))


def epsilon_of_charges(plan: Plan, whole: float) -> Callable[[Event], float]:
    """Return a function from the charged events to an upper bound on their ε.

    For equal steps, or epochs, the bound is read from the plan's ε curve. Otherwise it is computed with the RDP
    accountant, which supports every event but epochs, and is at most ``whole``, the ε of the whole plan.
    """
    accountant = RDP_BALLE20 if plan.bins is None else PLD

    def by_accountant(charged: Event) -> float:
        return min(whole, accountant.epsilon(charged, delta=plan.delta, adjacency=plan.adjacency))

    if plan.limit is not None:
        return partial(epsilon_at, limit=plan.limit, delta=plan.delta, adjacency=plan.adjacency)
    if plan.bins is None and not plan.has_equal_steps:
        return by_accountant
    curve = plan.curve()
    [step] = counted(plan.step_event)

    def epsilon_of(charged: Event) -> float:
        counts = counted(charged)
        if counts.keys() - {step}:
            return by_accountant(charged)
        return curve.at(min(counts.get(step, 0) * plan.steps_per_event, plan.steps))

    return epsilon_of


# Folder and key.


def _new_folder(spec: RunSpec) -> RunFolder:
    plan = spec.run_plan.plan
    folder = RunFolder.create(
        spec.directory,
        config=spec.config,
        key=spec.key or RunKey.fresh(),
        plan_event=spec.run_plan.event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        fingerprint=spec.fingerprint,
    )
    return reserve_plan(spec.budget, folder)


def reserve_plan(budget: Path | None, folder: RunFolder) -> RunFolder:
    """Reserve a new run's plan in the budget and return its folder. If the budget rejects it, delete the folder."""
    try:
        if budget is not None:
            with Budget.open(budget) as account:
                _reserve(account, folder)
    except BaseException as error:
        # After a file error or an interrupt the reservation may exist, so the folder stays: resuming checks it.
        if isinstance(error, LehrError) and not isinstance(error, StoreError):
            folder.remove()
        folder.close()
        raise
    return folder


def _resumed_folder(spec: RunSpec) -> RunFolder:
    """The folder of the run to resume. An error if its model, plan, method or data differ."""
    folder = RunFolder.open(spec.directory)
    try:
        folder.check_same(config=spec.config, fingerprint=spec.fingerprint)
        adjacency = spec.run_plan.plan.adjacency
        folder.ledger.check_same(run=spec.name, plan_event=spec.run_plan.event, adjacency=adjacency)
        if spec.budget is not None:
            ensure_reservation(spec.budget, folder)
    except BaseException:
        folder.close()
        raise
    return folder


def _shared_key(ranks: Ranks, key: RunKey | None) -> RunKey:
    """The key of the run, which rank 0 gives. The other ranks keep it in memory only."""
    if key is not None and ranks.total == 1:
        return key

    def message() -> dict[str, Any]:
        assert key is not None
        return {"secret": key.secret.hex()}

    found = ranks.from_rank_0(message)
    return key or RunKey(bytes.fromhex(found["secret"]))


def _header(found: Checkpoint) -> dict[str, Any]:
    kinds = {name: [type_name(value), *value.shape] for name, value in found.tensors.items()}
    counts = {"step": found.step, "accepted": found.accepted, "attempt": found.attempt}
    return {**counts, "numbers": dict(found.numbers), "tensors": kinds}


def _joint_environment(environments: list[dict[str, str] | None]) -> dict[str, str] | None:
    """Everything that can change a bit of the total sum; None if some rank's sums are not reproducible."""
    if None in environments:
        return None
    first, *others = environments
    assert first is not None
    if not others:
        return dict(first)
    return {**first, "ranks": f"{len(environments)}: {strict_json.dumps(others)}"}


# Budget: reserve the whole plan before the run, return the unused part after it.


def return_unused(budget: Path, *, run: str, ledger: Ledger | None = None, used: Event = NOTHING) -> None:
    """Return the unused part of a run's reservation, according to its ledger or ``used``. Idempotent."""
    with Budget.open(budget) as account:
        ours = _reservation(account, run)
        if ours is None:
            raise InvalidValue("budget", allowed=f"the one with a reservation for the run {run!r}", given=str(budget))
        if ours.is_settled:
            if ledger is not None:
                _check_not_settled(ours, ledger)
        elif ledger is not None:
            account.settle(run, ledger=ledger)
        else:
            account.settle(run, used=used)


def ensure_reservation(budget: Path, folder: RunFolder) -> None:
    """Raise an error unless the budget has an open reservation for the run's whole plan, under the run's id.

    A run that charged nothing and has no reservation was stopped before it could reserve; it reserves now. A finished
    run may be settled, if the settled amount equals its ledger.
    """
    ledger = folder.ledger
    with Budget.open(budget) as account:
        paid = _reservation(account, ledger.run)
        is_untouched = ledger.charged() == NOTHING
        if paid is None and is_untouched:
            _reserve(account, folder)
            return
        if paid is None or paid.run_id != folder.run_id:
            allowed = f"the one with the reservation of the run {ledger.run!r} in this folder"
            raise InvalidValue("budget", allowed=allowed, given=str(budget))
        ledger.check_same(plan_event=paid.reserved)
        _check_not_settled(paid, ledger)


def _reserve(account: Budget, folder: RunFolder) -> None:
    ledger = folder.ledger
    if _reservation(account, ledger.run) is not None:
        raise InvalidValue(
            "name", allowed="one that the budget has not seen yet; each run needs its own", given=ledger.run
        )
    _check_same_adjacency(account, ledger.adjacency)
    plan = folder.config.get("plan") or {}
    unit = USER if any(plan.get(name) for name in ("records_per_user", "max_records_per_user")) else RECORD
    account.reserve(ledger.plan_event, run=ledger.run, run_id=folder.run_id, unit=unit)


def _reservation(account: Budget, run: str) -> RunStatus | None:
    return next((paid for paid in account.status().runs if paid.run == run), None)


def _check_same_adjacency(account: Budget, adjacency: Adjacency) -> None:
    counted_by = account.status().adjacency
    if counted_by is not adjacency:
        raise InvalidValue("adjacency", allowed=f"that of the budget, {counted_by.value}", given=adjacency.value)


def _check_not_settled(paid: RunStatus, ledger: Ledger) -> None:
    """Raise an error if the run is settled, unless it is finished and its charges equal the settled amount."""
    if paid.is_settled and not (ledger.is_finished() and counted(paid.used) == counted(ledger.charged())):
        allowed = "one in which the run is not settled; other runs may have used what it returned"
        raise InvalidValue("budget", allowed=allowed, given=f"one in which {paid.run!r} is settled")
