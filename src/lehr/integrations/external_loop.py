"""A private run whose training loop belongs to another library: Lightning, transformers.

The library's loop calls forward and backward, and steps its own optimizer. ``ExternalRun`` translates: it opens a
``lehr.run.private_run.PrivateRun`` with a fixed plan, adds the clipped gradients of every physical batch to its step,
and writes the released mean into ``parameter.grad``. The folder is that of any other run.

    run = ExternalRun(config, model=model, optimizer=optimizer, dataset=dataset, loop=loop, library="mine", steps=100)
    for batch in DataLoader(dataset, batch_sampler=run.sampler()):
        loss_of(batch).backward()
        is_last = run.is_last_batch
        run.add()
        if is_last:
            run.release()                           # charges, adds noise, writes the gradients
            optimizer.step()
    certificate = run.finish(model.state_dict())
    run.close()

A loop that gives up its own backward pass passes an ``engine``, and ``run.add(inputs, targets)`` calls that instead.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn, optim
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

import lehr
from lehr import accounting, validate
from lehr.accounting.events import FLOAT
from lehr.certificates.certificate import (
    Certificate,
    Statements,
    certificate_from_json,
    certificate_to_json,
)
from lehr.certificates.guarantee import check_delta, claim_to_json
from lehr.config import CLIP_NORM
from lehr.data import InMemory
from lehr.data.records import check_count
from lehr.errors import InvalidValue
from lehr.files.append_only import check_name
from lehr.gradients.batches import each, trainable
from lehr.gradients.batches import num_records as batch_rows
from lehr.gradients.execution import random_numbers_apart
from lehr.gradients.hooked import HookedEngine
from lehr.integrations.record_independence import RecordLoop, check_record_independence, sample_records
from lehr.interfaces import Clipping, ComponentState, Inputs, ReleasedSum, StepOutcome, ViewTargets
from lehr.planning.plan import PRIVATE, Plan, delta_for, unit_text
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import isotropic_noise
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PhysicalBatch
from lehr.privacy.users import DrawnUsers, UserRecords, by_user, user_indices
from lehr.run.distributed import ALONE, Ranks, as_bytes, layout_of, refuse_wrapped
from lehr.run.folder import default_directory
from lehr.run.loop import Engine
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateRun, PrivateStep, RunSpec, epsilon_of_charges, seed_layers
from lehr.run.replay import RunPlan
from lehr.run.shape import FORMAT, FORMAT_VERSION
from lehr.run.sharded import Shards
from lehr.schedules import CONSTANT, Schedule
from lehr.training import describing, ending
from lehr.training.public_plan import plan_for, usual_batch_size

# Options of ``lehr.fit`` that steps in the loop of another library do not keep to.
_ONLY_FIT = {
    **dict.fromkeys(
        ("sampling", "adjacency", "largest_batch"),
        "this loop draws Poisson samples, which are counted under add-or-remove-one",
    ),
    **dict.fromkeys(
        ("bands", "correlation"), "this loop does not repeat a step bit by bit, as correlated noise needs after a crash"
    ),
    "max_records_per_user": "this loop draws users; records of users are drawn one by one by lehr.fit",
    **dict.fromkeys(("clip", "target_quantile"), "give clipping an object, such as QuantileClip of lehr.extend"),
}


def refuse_options_of_fit(given: Mapping[str, Any]) -> None:
    """Raise an error for an option of ``lehr.fit`` that the loops of other libraries have not."""
    for name in given.keys() & _ONLY_FIT.keys():
        raise InvalidValue(name, allowed=f"omitted: {_ONLY_FIT[name]}", given=given[name])


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The privacy settings of a run. All of them are public.

    ``records`` is the number of records as you state it; the length of a data set is private. Give ``epsilon``, and the
    noise is calibrated, or ``noise_multiplier``. ``noise`` is "float" or "discrete". The default ``delta`` is the
    largest power of ten below 1/records. The run's folder is ``directory``, by default a new one in ``runs``.
    A certificate is issued if ``settings_chosen_on`` says how the settings were chosen: "fixed", "public" or "private".

    To protect users, state their number as ``users`` in place of ``records``, and give the integration ``owners``.
    Batches, ``delta`` and epochs then count users. At most ``records_per_user`` records of a drawn user enter a step, 1
    by default; their gradients are averaged before the clip.
    """

    records: int | None = None
    users: int | None = None
    records_per_user: int | None = None
    delta: float | None = None
    epsilon: float | None = None
    noise_multiplier: float | None = None
    expected_batch_size: float | None = None
    clip_norm: float = CLIP_NORM
    clipping: Clipping | None = None
    noise: str = FLOAT
    physical_batch: int | None = None
    directory: str | Path | None = None
    name: str = "private run"
    data_name: str = "unnamed"
    settings_chosen_on: str | None = None
    stated: Statements | None = None
    budget: str | Path | None = None
    treated_as_public: tuple[str, ...] = ()  # in addition to the number of records

    def __new__(cls, **given: Any) -> PrivacyConfig:
        refuse_options_of_fit(given)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        if (self.records is None) == (self.users is None):
            given = f"records={self.records}, users={self.users}"
            raise InvalidValue("records", allowed="stated, or users together with owners, and not both", given=given)
        if self.users is None and self.records_per_user is not None:
            raise InvalidValue("records_per_user", allowed="omitted without users", given=self.records_per_user)
        if self.users is not None:
            per_user = 1 if self.records_per_user is None else self.records_per_user
            object.__setattr__(self, "records_per_user", validate.count(records_per_user=per_user))
        validate.count(**{self.units: self.stated_number})
        check_name(name=self.name)
        isotropic_noise(self.noise)  # raises now if there is none of this kind
        if (self.epsilon is None) == (self.noise_multiplier is None):
            given = f"epsilon={self.epsilon}, noise_multiplier={self.noise_multiplier}"
            raise InvalidValue("epsilon", allowed="given, or noise_multiplier, and not both", given=given)
        delta = delta_for(self.delta, records=self.stated_number)
        check_delta(delta, records=self.stated_number, is_certified=self.statements() is not None)

    @property
    def units(self) -> str:
        """What is protected, counted and drawn: "records" or "users"."""
        return "records" if self.users is None else "users"

    @property
    def stated_number(self) -> int:
        """The stated number of records, or of users where they are the unit of privacy."""
        stated = self.records if self.users is None else self.users
        assert stated is not None
        return stated

    @property
    def batch_size(self) -> float:
        """The expected batch size, of records or of users: by default four times the square root of their number."""
        return self.expected_batch_size or usual_batch_size(self.stated_number, None)

    @property
    def steps_per_epoch(self) -> int:
        """The steps of one pass over the stated number of records, or of users."""
        return max(1, math.ceil(self.stated_number / validate.positive(expected_batch_size=self.batch_size)))

    def plan(self, *, steps: int) -> Plan:
        """The plan of so many steps."""
        plan = plan_for(
            records=self.stated_number,
            delta=self.delta,
            epsilon=self.epsilon,
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.batch_size,
            steps=steps,
        )
        return replace(plan, records_per_user=self.records_per_user)

    def statements(self) -> Statements | None:
        """The user's statements for a certificate; None if there are none."""
        given = self.settings_chosen_on, self.stated, self.treated_as_public
        return make_statements(*given, records=self.stated_number, records_per_user=self.records_per_user)

    def user_records(self, owners: Any, *, num_records: int) -> UserRecords | None:
        """The indices of the records, by the users that own them; None if records are the unit of privacy.

        ``owners`` has an id for each record: a number or text.
        """
        if owners is None and self.users is not None:
            raise InvalidValue("owners", allowed="one id for each record, because users are stated", given=None)
        if owners is not None and self.users is None:
            raise InvalidValue("users", allowed="the number of users, which you state in public", given=None)
        if owners is None:
            return None
        assert self.records_per_user is not None
        indices = torch.arange(num_records)
        return UserRecords(
            InMemory(indices, indices), user_indices(owners, num_records=num_records), self.records_per_user
        )


def make_statements(
    settings_chosen_on: str | None,
    stated: Statements | None,
    treated_as_public: tuple[str, ...] = (),
    *,
    records: int,
    records_per_user: int | None = None,
) -> Statements | None:
    """The statements of a certificate, from whichever of the two was given; None if neither was."""
    unit = unit_text(records_per_user)
    if settings_chosen_on is None:
        return None if stated is None else stated.of_records(records).of_unit(unit)
    if stated is not None:
        raise InvalidValue("settings_chosen_on", allowed="None if stated is given", given=settings_chosen_on)
    public = ("the number of records" if records_per_user is None else "the number of users", *treated_as_public)
    made = Statements(settings_chosen_on=settings_chosen_on, records=records, treated_as_public=public)
    return made.of_unit(unit)


@dataclass(frozen=True)
class ExternalOptimizer:
    """The optimizer of the other library's loop, for the description of the run."""

    described: str
    schedule: Schedule = CONSTANT

    def build(self, parameters: list[nn.Parameter]) -> NoReturn:
        raise InvalidValue("update", allowed="an optimizer that Lehr builds", given=self.described)

    def to_json(self) -> dict[str, object]:
        return {"custom": self.described}


class ExternalRun:
    """An open private run in another library's loop, with a plan of ``steps``.

    With an ``engine``, the run computes the gradients of the batches that ``add`` is given, padded to equal sizes.
    Without one, it has hooks on the model until its end. ``loop`` is tried on a few records of the data set first, and
    refused if it mixes them. ``resumed_at`` is the step of the checkpoint to resume from, and ``clip_state`` what the
    clip rule had learnt by then. After a resume every further step is charged: another library's loop never repeats a
    step bit by bit.

    ``owners`` has the id of the user of each record, if users are the unit of privacy. A step then draws users, and its
    physical batches have ``records_per_user`` records of each of them, user by user.

    ``shard`` leaves each rank with some rows of the weights, once the whole model was checked; the ``optimizer`` must
    then train these. ``engine`` sums what the shards keep.

    With several ``ranks``, every rank makes the same run and takes its share of each draw; only rank 0 writes. The
    weights of rank 0 are sent to the others once, when the run is opened.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        *,
        model: nn.Module,
        optimizer: optim.Optimizer,
        dataset: Any,
        loop: RecordLoop,
        library: str,
        steps: int,
        owners: Any = None,
        resumed_at: int | None = None,
        clip_state: ComponentState | None = None,
        num_passes: int = 1,
        engine: Engine | None = None,
        shard: Callable[[], Shards] | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        refuse_wrapped(model)
        num_records = count_records(dataset)
        self._users = config.user_records(owners, num_records=num_records)
        num_units = num_records if self._users is None else len(self._users)
        check_count(stated=config.stated_number, held=num_units, of=config.units)
        check_optimizer(model, optimizer)
        self.config, self.model, self.optimizer, self.step = config, model, optimizer, resumed_at or 0
        self.directory = Path(config.directory or default_directory(config.name))
        clipping = config.clipping or FlatClip(config.clip_norm)
        if clipping.needs_coordinates or clipping.unproven is not None:
            allowed = "one that needs gradient norms only: per-record gradients are not stored here"
            raise InvalidValue("clipping", allowed=allowed, given=type(clipping).__name__)
        noise = isotropic_noise(config.noise)
        plan = replace(config.plan(steps=steps), noise=noise.kind)
        self._plan = RunPlan(plan=plan)
        self.proven_claim = accounting.claim(plan.event, delta=plan.delta, adjacency=plan.adjacency)
        update = ExternalOptimizer(f"{type(optimizer).__module__}.{type(optimizer).__qualname__}")
        method = Method(name="dpsgd", clipping=clipping, noise=noise, update=update)
        self.mechanism = Mechanism.of(method, plan)
        self.engine = engine
        self._hooks: HookedEngine | None = None
        if engine is None:
            views = config.records_per_user or 1
            self._hooks = HookedEngine(model, loss_reduction=loop.loss_reduction, views=views, num_passes=num_passes)
        sampled = sample_records(dataset, num_records)
        check_record_independence(loop, sampled)
        described = self._describe(method, library, is_rank_0=ranks.is_rank_0)
        physical_batch = config.physical_batch or max(1, math.ceil(config.batch_size))
        if ranks.total > 1:
            settings = {name: described[name] for name in described.keys() - {"budget", "claims", "created_on"}}
            key = ranks.comparison_key()
            found = identity(settings, model, loop, sampled, num_records=num_records, key=key)
            found["owners"] = key.fingerprint(self._owners())
            # Ranks with another number of batches would wait for each other forever.
            found["sharded"] = key.fingerprint(str(shard is not None and physical_batch).encode())
            ranks.check_equal(found, allowed="the same on every rank, in the same order")
        self.shards = None if shard is None else shard()
        if self.shards is not None:
            self.model = self.shards.local
        spec = RunSpec(
            name=config.name,
            run_plan=self._plan,
            mechanism=self.mechanism,
            directory=self.directory,
            config=described,
            # Of number and owners alone: a run that is resumed draws anew, whatever the records are.
            fingerprint=lambda key: key.fingerprint(str(num_records).encode(), self._owners()),
            physical_batch=physical_batch,
            epsilon_of=epsilon_of_charges(plan, self.proven_claim.epsilon),
            budget=Path(config.budget) if config.budget is not None and ranks.is_rank_0 else None,
            pads_batches=False,
            removes_untouched=True,
            is_sharded=self.shards is not None,
            ranks=ranks,
        )
        self._run = PrivateRun.open(spec, resume=resumed_at is not None)
        try:
            if self.shards is None:
                ranks.broadcast([*model.parameters(), *model.buffers()])
            else:
                self._run.randomness_at = self.shards.at
            self._run.begin(num_records=num_units, first_step=self.step)
            if self._hooks is not None:
                self._hooks.attach()
        except BaseException:
            self._run.close()
            raise
        weights = {name: value.detach() for name, value in trainable(self.model).items()}
        self.clip_state: ComponentState = clip_state or self.mechanism.clipping.start(weights)
        self._noise = self.mechanism.noise.start(weights)
        self._current: PrivateStep | None = None
        self._drawn: DrawnUsers | None = None  # of the current step

    @property
    def end_step(self) -> int:
        """The end of the plan. A resumed run has spent some of it on steps that it repeats."""
        return self._run.end_step

    @property
    def is_over(self) -> bool:
        """Whether the plan has no step left."""
        return self.step >= self.end_step

    @property
    def epsilon_spent(self) -> float:
        """ε of all steps that are charged so far; steps are charged in small blocks."""
        return self._run.epsilon_spent

    def sampler(self) -> ExternalSampler:
        """The physical batches of one epoch, for ``DataLoader(batch_sampler=...)``."""
        return ExternalSampler(lambda: self, steps=self.config.steps_per_epoch)

    def batches(self, step: int) -> list[PhysicalBatch]:
        """The physical batches of a step. An empty draw is one masked record, run for its shape alone."""
        return self._run.step(step).batches()

    def record_indices(self, step: int) -> list[Tensor]:
        """The indices of the records of each physical batch of a step: the rows that the loop has to run."""
        found = self._run.step(step)
        batches, drawn = found.batches(), self._of_draw(found)
        if drawn is None:
            return [batch.indices_P for batch in batches]
        return [drawn.batch(batch.indices_P)[1].targets.flatten() for batch in batches]

    @property
    def current_batches(self) -> list[PhysicalBatch]:
        """The physical batches of the current step."""
        return self._step().batches()

    @property
    def is_last_batch(self) -> bool:
        """Whether the next physical batch is the last of its draw."""
        return self._step().num_added + 1 >= len(self.current_batches)

    @contextmanager
    def seeded(self, device: torch.device, purpose: str = "layers") -> Iterator[None]:
        """Random numbers from the run's key, with others on every rank. All global generators are then restored.

        Otherwise their states, which are part of the library's checkpoints, would say how many records were drawn.
        """
        with random_numbers_apart(device):
            self._step().seed_layers(device, purpose)
            yield

    def add(self, inputs: Inputs | None = None, targets: Any = None) -> None:
        """Clip and add a physical batch: the one that ``backward()`` was called for, or this one for the engine."""
        step, batches = self._step(), self.current_batches
        if step.num_added >= len(batches):
            allowed = "called once for each physical batch of the draw"
            raise InvalidValue("backward", allowed=allowed, given="another batch")
        batch = batches[step.num_added]
        mask = batch.mask_P
        weights_BK = None if self._drawn is None else self._drawn.batch(batch.indices_P)[1].weights_BK
        rule = self.mechanism.clipping.rule(self.clip_state, self.step)
        if self._hooks is not None:
            gradients = self._hooks.gradients(None if mask.all() else mask, weights_BK=weights_BK)
            step.add(rule(gradients), num_records=int(mask.sum()) if not mask.all() else gradients.num_records)
            return
        assert self.engine is not None
        assert inputs is not None
        if batch_rows(inputs, targets) != len(mask) * (self.config.records_per_user or 1):
            raise InvalidValue("batch", allowed="the records of the physical batch, one row each", given="others")
        if weights_BK is not None:
            inputs, targets = views_of_users(inputs, targets, weights_BK)
        # Batches of one size: a compiled step, and the proof that it keeps records apart, hold for one size.
        missing = max(0, self._run.physical_batch - len(mask))

        def fill(leaf: Tensor) -> Tensor:
            return torch.cat([leaf, leaf[-1:].expand(missing, *leaf.shape[1:])])

        inputs_P, targets_P = each(fill, (inputs, targets))
        mask_P = torch.cat([mask, mask.new_zeros(missing)])
        step.add(self.engine.private_sum(rule, inputs_P, targets_P, mask_P), num_records=int(mask.sum()))

    def release(self) -> ReleasedSum:
        """Charge the step, release its noisy sum, and write the mean into the gradients of the model."""
        check_optimizer(self.model, self.optimizer)
        released = self._step().release(self._noise)
        outcome = StepOutcome(released=released, divisor=self.mechanism.divisor, is_accepted=True)
        self.clip_state = self.mechanism.clipping.learn(self.clip_state, outcome)
        self._noise = self.mechanism.noise.learn(self._noise, outcome)
        self.step, self._current = self.step + 1, None
        write_gradients(self.model, released, divisor=self.mechanism.divisor)
        return released

    def finish(self, weights: Mapping[str, Tensor]) -> Certificate | None:
        """End the run: settle the budget, and write weights, report, and a certificate if there are statements.

        Of sharded weights, these are the rows of this rank.
        """
        self._detach()
        config, stated, run = self.config, self.config.statements(), self._run
        run.finish(weights if self.shards is None else self.shards.whole(weights), accepted=self.step)

        def write() -> dict[str, Any] | None:
            assert run.folder is not None
            certificate = None
            if stated is not None:
                shared = None if config.budget is None else ending.shared_budget(Path(config.budget), config.name)
                plan, charged = self._plan, run.folder.ledger.charged()
                certificate = ending.certificate_for(plan, plan.plan, stated, charged=charged, shared=shared)
            ending.write(run.folder, certificate)
            return None if certificate is None else certificate_to_json(certificate)

        shape = run.ranks.from_rank_0(write)
        return None if shape is None else certificate_from_json(shape)

    def close(self) -> None:
        """Close the folder. Without ``finish`` the run can be resumed; a new run without a charged step is removed."""
        self._detach()
        self._run.close()

    def _detach(self) -> None:
        if self._hooks is not None:
            self._hooks.detach()

    def _step(self) -> PrivateStep:
        if self._current is None:
            self._current = self._run.step(self.step)
            self._drawn = self._of_draw(self._current)
        return self._current

    def _of_draw(self, step: PrivateStep) -> DrawnUsers | None:
        return None if self._users is None else self._users.of_draw(step.indices, step.randomness)

    def _owners(self) -> list[memoryview]:
        """The user of each record, for hashes; nothing where records are the unit."""
        return [] if self._users is None else [self._users.owners.numpy().data]

    def _describe(self, method: Method, library: str, *, is_rank_0: bool = True) -> dict[str, Any]:
        """config.json of the run. Only rank 0 reads the budget."""
        config, stated = self.config, self.config.statements()
        described = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": config.name,
            "library_version": lehr.__version__,
            "created_on": datetime.now(UTC).date().isoformat(),
            "method": describing.method_words(method),
            "plan": self._plan.plan.to_json(),
            "claims": {"proven": claim_to_json(self.proven_claim), "published": None},
            "data": {
                "name": config.data_name,
                "is_known": False,
                "declared": PRIVATE,
                config.units: config.stated_number,
                "shape": [],
            },
            "model": {**describing.model_words(self.model, nn.Identity(), None, {}), "loss": "the loop's own"},
            "training": {"integration": library},
            "stated": None if stated is None else asdict(stated),
            "budget": ending.dataset_of(Path(config.budget)) if config.budget is not None and is_rank_0 else None,
            "trial_of": None,
        }
        as_written: dict[str, Any] = json.loads(json.dumps(described))
        return as_written


class ExternalSampler(Sampler[list[int]]):
    """The physical batches of one epoch of a run, from its current step; with ``is_whole``, whole draws.

    The run is opened when the first batch is due. The length is the number of steps, which is public; the number of
    physical batches is not.
    """

    def __init__(self, open_run: Callable[[], ExternalRun], *, steps: int, is_whole: bool = False) -> None:
        self._open_run, self._steps, self._is_whole = open_run, steps, is_whole

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[int]]:
        run = self._open_run()
        for step in range(run.step, min(run.step + self._steps, run.end_step)):
            batches = run.record_indices(step)
            yield from (indices.tolist() for indices in ([torch.cat(batches)] if self._is_whole else batches))


def views_of_users(inputs: Inputs, targets: Any, weights_BK: Tensor) -> tuple[Inputs, ViewTargets]:
    """The records of users, given user by user, as the views of one record each, which an engine averages."""
    grouped, own = by_user(inputs, targets, weights_BK)
    return (grouped if weights_BK.shape[1] > 1 else inputs), own  # a single view has no axis


def identity(
    settings: Mapping[str, Any],
    model: nn.Module,
    loop: RecordLoop,
    sampled: Sequence[Any],
    *,
    num_records: int,
    key: RunKey,
) -> dict[str, str]:
    """Keyed hashes of what must be the same on every rank. Of the records, only a few are compared."""
    compared = {"settings": settings, "model": layout_of(model), "records": num_records}
    hashed = {name: key.fingerprint(json.dumps(value, sort_keys=True).encode()) for name, value in compared.items()}
    leaves = [as_bytes(leaf).cpu() for record in sampled for leaf in loop.leaves([record])]
    return {**hashed, "a record": key.fingerprint(leaf.numpy().data for leaf in leaves)}


def count_records(dataset: Any) -> int:
    """The length of a data set. One without indices is refused."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        allowed = "a map-style data set: records are Poisson-sampled by index"
        raise InvalidValue("dataset", allowed=allowed, given=type(dataset).__name__)
    return validate.count(records=len(dataset))


def batch_size_of(loader: DataLoader[Any]) -> int:
    """The batch size of a loader: the expected batch size of its draws."""
    batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        allowed = "the batch size of the loader: it determines the sampling probability"
        raise InvalidValue("batch_size", allowed=allowed, given=None)
    return min(validate.count(batch_size=batch_size), count_records(loader.dataset))


def check_sampler(loader: DataLoader[Any]) -> None:
    """Refuse a sampler over some of the records, or some more often than others: Poisson sampling would ignore it."""
    batches: Any = loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    takes_all = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
    if not takes_all or len(sampler.data_source) != count_records(loader.dataset):
        allowed = "torch's own over all records; for a part of a data set use torch.utils.data.Subset"
        raise InvalidValue("sampler", allowed=allowed, given=type(sampler).__name__)


def loader_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """The options that another loader over the same records takes over."""
    names = "collate_fn num_workers pin_memory timeout worker_init_fn multiprocessing_context prefetch_factor"
    return {name: getattr(loader, name) for name in (*names.split(), "persistent_workers")}


def seed_secretly(device: torch.device) -> None:
    """Seed all global generators from the system's entropy, for a loop that draws records and random numbers itself.

    The numbers of dropout, augmentation and collation belong to places in a batch, and a record more moves those of
    others. If a known seed told which, the clip would not bound what one record changes.
    """
    seed_layers(RunKey.fresh().at(step=0, attempt=0), device)


def secretly_seeded(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The batches; workers, collation and the loop that gets them draw secret random numbers, whatever seed it sets."""
    seed_secretly(device)
    for batch in batches:
        yield batch
        seed_secretly(device)


def write_gradients(model: nn.Module, released: ReleasedSum, *, divisor: float) -> None:
    """Write the released sum over a public divisor into ``parameter.grad``."""
    parameters = trainable(model)
    gradients = [torch.empty_like(parameter) for parameter in parameters.values()]
    sums = [released.values[name].view_as(parameter) for name, parameter in parameters.items()]
    torch._foreach_copy_(gradients, sums)  # first, since the sums are in float64
    torch._foreach_div_(gradients, validate.positive(divisor=divisor))
    for parameter, gradient in zip(parameters.values(), gradients, strict=True):
        parameter.grad = gradient


def check_optimizer(model: nn.Module, optimizer: optim.Optimizer) -> None:
    """Refuse an optimizer that trains parameters without noise, or that evaluates the loss more than once a step."""
    if isinstance(optimizer, optim.LBFGS):
        allowed = "one that takes one gradient per step: a closure would look at the records again, uncharged"
        raise InvalidValue("optimizer", allowed=allowed, given="LBFGS")
    known = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    others = sum(id(parameter) not in known for parameter in trained)
    if others:
        allowed = "one over the parameters of the private model, all of them trainable from the beginning"
        given = f"{others} others: Module parameters are different than optimizer Parameters"  # Opacus's message
        raise InvalidValue("optimizer", allowed=allowed, given=given)
