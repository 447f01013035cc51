"""A run of ``lehr.fit``: decided, checked, started or resumed, and trained, on one process or on several ranks.

- ``TrainingRun``: all that was decided, and what follows from it
- ``train_run``: train it, after checking that every rank has the same run
- ``projection_of``, ``fill_projection``: a private PCA in front of a network, computed once and charged
- ``check_shardable``: what can be trained with sharded weights
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
from torch import nn

import lehr
from lehr import accounting
from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.acceptance.rules import Always
from lehr.accounting.claims import Claim
from lehr.accounting.events import NOTHING, Adjacency, Event
from lehr.certificates.certificate import (
    Certificate,
    SharedBudget,
    Statements,
    certificate_from_json,
    certificate_to_json,
)
from lehr.certificates.guarantee import claim_to_json, why_no_guarantee
from lehr.config import RunConfig
from lehr.data.catalogue import CATALOGUE
from lehr.data.image_folder import StreamedFolder
from lehr.data.private_pca import PrivatePCA
from lehr.errors import Diverged, InvalidValue, StoreError
from lehr.files.append_only import check_name
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.hooked import ShardedEngine
from lehr.interfaces import Inputs, Records
from lehr.networks.layers import Projection
from lehr.optim.averaging import Averaging
from lehr.optim.optimizers import OPTIMIZERS, Update
from lehr.planning import search_cost
from lehr.planning.plan import PRIVATE, RECORD, Plan, published_claim
from lehr.planning.search_cost import SearchPrice, SearchTrial, check_searchable
from lehr.privacy.noise import IsotropicNoise, NoNoise
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.users import UserRecords, records_of_run
from lehr.run import replay
from lehr.run.distributed import ALONE, Ranks, layout_of
from lehr.run.loop import Engine, Loop, Training, TrainingPhase
from lehr.run.mechanism import Mechanism, Method
from lehr.run.phases import Phase, check_phases, first_steps, phases_from_json, training_only
from lehr.run.private_run import PrivateRun, RunSpec, epsilon_of_charges
from lehr.run.replay import RunPlan
from lehr.run.shape import FORMAT, FORMAT_VERSION, INTERRUPTED, Callback, End, Start
from lehr.run.sharded import Shards
from lehr.training import describing, ending, engines, prepare
from lehr.training.ending import Run
from lehr.training.engines import is_known, probe
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.prior import Prior
from lehr.training.records import InputPipeline, RunRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
    """A run of ``lehr.fit``: everything that is decided before it starts."""

    name: str
    config: RunConfig
    model: nn.Module
    loss_fn: LossFn
    device: torch.device
    evaluation: EvaluationPlan
    plan: Plan
    network: tuple[str, Mapping[str, Any]] | None = None  # name and arguments, if Lehr built the model
    stated: Statements | None = None
    prior: Prior | None = None  # whose weights the model starts from
    is_withheld: bool = False  # no certificate: this process has chosen the settings on these records
    trial_of: SearchTrial | None = None  # the search that has reserved the budget for this run
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        check_name(name=self.name)
        if self.is_sharded:
            check_shardable(self.evaluation.method, self.config, self.device, trial_of=self.trial_of)
        self._refuse_conflicts()
        if self.plan.bands > 1:
            self._refuse_with_bands()
        if self.trial_of is not None:
            self._refuse_unfit_trial(self.trial_of)

    def _refuse_conflicts(self) -> None:
        """Raise an error for settings that exclude one another."""
        plan, records, evaluation = self.plan, self.evaluation.records, self.evaluation
        training = self.config.training
        if training.patience is not None and evaluation.on is None:
            _refuse("patience", "omitted without test records or held-out records", training.patience)
        if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:  # the number of records is then public
            under = plan.adjacency.value
            if evaluation.is_private:
                allowed = f"omitted under {under}, because the number of held-out records is random"
                _refuse("held_out_fraction", allowed, training.held_out_fraction)
            if records.num_held != plan.records:
                _refuse(f"{plan.unit}s", f"the exact number of {plan.unit}s under {under}", plan.records)
        if plan.largest_batch is not None and evaluation.is_private:
            allowed = "omitted with truncated batches, because the number of held-out records is random"
            _refuse("held_out_fraction", allowed, training.held_out_fraction)
        if plan.largest_batch is not None and records.num_held > plan.records:
            _refuse(f"{plan.unit}s", f"at least as many {plan.unit}s as there are, for truncated batches", plan.records)
        self._refuse_other_unit()
        if plan.simulates is not None and records.declared == PRIVATE:
            _refuse("declared", "public or synthetic for a simulation, which adds almost no noise", PRIVATE)
        if self.budget is not None and plan.limit is not None:
            _refuse("budget", "omitted for a method whose costs depend on its releases", str(self.budget))
        if self.budget is not None and plan.simulates is not None:
            _refuse("budget", "omitted for a simulation", str(self.budget))

    def _refuse_with_bands(self) -> None:
        """Raise an error for settings that correlated noise is not proven, or not built, for."""
        others = {
            "with a held-out fraction": self.evaluation.is_private,
            "with sharded weights": self.is_sharded,
            "with phases": len(self.phases) > 1 or bool(self.phases[0].trained),
            "for a trial of a search": self.trial_of is not None,
        }
        for when, is_so in others.items():
            if is_so:
                _refuse("bands", f"1 {when}", self.plan.bands)

    def _refuse_other_unit(self) -> None:
        """Raise an error if plan and records have different units, or something would use single records of users."""
        plan, records, evaluation = self.plan, self.evaluation.records, self.evaluation
        if plan.unit == RECORD:
            if records.owners is not None:
                _refuse("plan", "one of users, because the records have owners", "a plan of records")
            return
        if records.owners is None:
            _refuse("owners", "given, because the plan is one of users", None)
        if plan.max_records_per_user != records.max_records_per_user:
            allowed = f"{records.max_records_per_user}, as the plan has"
            _refuse("max_records_per_user", f"that of the plan, {plan.max_records_per_user}", allowed)
        if isinstance(records.private, StreamedFolder):
            _refuse("owners", "omitted for a streamed folder", "owners")
        energy = evaluation.method.acceptance.energy
        if isinstance(energy, PrivateEnergy | PrivateChoice):
            allowed = "one without queries on private records, which draw records and not users"
            _refuse("method", allowed, evaluation.method.name)
        if evaluation.is_private:
            allowed = "omitted with owners, because it holds out records and not users"
            _refuse("held_out_fraction", allowed, self.config.training.held_out_fraction)
        if evaluation.setup_event != NOTHING:
            _refuse("private_pca", "omitted with owners, because it bounds records and not users", "given")

    def _refuse_unfit_trial(self, trial: SearchTrial) -> None:
        """A trial trains on private records in one process, and its search pays for it."""
        check_searchable(self.plan)
        trial.check_same(self.run_plan.event)
        declared = self.evaluation.records.declared
        if declared != PRIVATE:
            _refuse("trial_of", f"omitted on {declared} records, where a search is free", trial)
        if self.ranks.total > 1:
            _refuse("trial_of", "omitted with several ranks: each trial runs in one process", trial)
        if self.budget is not None:
            _refuse("budget", "omitted for a trial: the search has reserved for it", str(self.budget))
        if self.stated is not None and self.stated.settings_chosen_on != "private":
            _refuse("settings_chosen_on", "private for a trial of a search", self.stated.settings_chosen_on)

    def check(self) -> Self:
        """Raise an error, before anything is spent, for a run that cannot be trained or certified.

        The model is run on synthetic records, and compiled.
        """
        engines.check_clip_schedule(self.evaluation.method.clipping, self.plan.steps)
        check_phases(self.phases, self.evaluation.method, steps=self.plan.steps, is_sharded=self.is_sharded)
        self.model.to(self._check_device)
        engines.try_model(
            self.model,
            loss_fn=self.loss_fn,
            pipeline=replace(self.pipeline, device=self._check_device),
            records=self.evaluation.records,
            is_scored=self.evaluation.on is not None or self.evaluation.needs_public,
            has_private_queries=isinstance(self.evaluation.method.acceptance.energy, PrivateEnergy | PrivateChoice),
            metrics=self.evaluation.metrics,
        )
        _ = self.mechanism, self.projection, self.engines
        if self.is_certifiable:
            budget = None if self.budget is None else ending.expected_budget(self.budget, self.run_plan, self.name)
            self._certificate(budget)
        return self

    # What follows from the fields.

    @property
    def is_sharded(self) -> bool:
        """Whether each rank holds some rows of the weights."""
        return self.config.run.sharded

    @property
    def budget(self) -> Path | None:
        """The budget that pays for the run. Only rank 0 uses it."""
        return self.config.privacy.budget if self.ranks.is_rank_0 else None

    @cached_property
    def run_plan(self) -> RunPlan:
        """The steps with their evaluations."""
        return self.evaluation.run_plan(self.plan)

    @cached_property
    def proven_claim(self) -> Claim:
        """The claim for everything the plan allows; for a trial, the claim for the whole search."""
        whole = self.run_plan.event if self.price is None else self.price.event(self.run_plan.event)
        return accounting.claim(whole, delta=self.plan.delta, adjacency=self.plan.adjacency)

    @cached_property
    def published_claim(self) -> Claim | None:
        """The claim by the paper's rule, if the run follows it."""
        rule = self.evaluation.method.published
        return None if rule is None else published_claim(rule, self.plan, beside=self.run_plan.beside)

    @property
    def price(self) -> SearchPrice | None:
        """The price of the search that this run is a trial of."""
        return None if self.trial_of is None else self.trial_of.price

    @property
    def is_certifiable(self) -> bool:
        """Whether the run will get a certificate."""
        is_withheld = self.stated is None or self.promises_nothing is not None or self.is_withheld
        return math.isfinite(self.proven_claim.epsilon) and not is_withheld

    @property
    def promises_nothing(self) -> str | None:
        """Why runs of this kind are never certified, if so."""
        return why_no_guarantee(self.plan, declared=self.evaluation.records.declared)

    @cached_property
    def pipeline(self) -> InputPipeline:
        """Preprocessing and augmentation."""
        training = self.config.training
        return InputPipeline(
            preparation=self.evaluation.records.model_preparation,
            augmentation=prepare.build_augmentation(training),
            views=training.views,
            device=self.device,
            records_per_user=self.plan.records_per_user,
        )

    @property
    def step_loss(self) -> LossFn:
        """The loss in training: that of a user's records has weights."""
        return self.loss_fn if self.plan.records_per_user is None else batches.weighted(self.loss_fn)

    @cached_property
    def averaging(self) -> Averaging:
        """The average of the weights."""
        return prepare.build_averaging(self.config.training)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What a step does to the records."""
        return Mechanism.of(self.evaluation.method, self.plan)

    @cached_property
    def private_pca(self) -> PrivatePCA | None:
        """The private PCA that fills the projection."""
        return prepare.build_private_pca(self.config)

    @cached_property
    def projection(self) -> Projection | None:
        """The layer that is filled before the first step."""
        return projection_of(self.model, self.private_pca)

    @cached_property
    def physical_batch(self) -> int:
        """Records per physical batch."""
        if (chosen := self.config.run.physical_batch) is not None:
            return chosen
        size = None
        if self.device.type == "cuda" and not self.is_sharded:
            pipelines = [self.pipeline_of(phase) for phase in self.phases]
            size = max(engines.record_bytes(self.model, self.evaluation.records, each) for each in pipelines)
        return engines.physical_batch_for(self.plan, self.device, ranks=self.ranks.total, record_bytes=size)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases of the training."""
        return phases_from_json(self.config.training.phases)

    def pipeline_of(self, phase: Phase) -> InputPipeline:
        """Preprocessing and augmentation in a phase."""
        return self.pipeline if phase.views is None else replace(self.pipeline, views=phase.views)

    @cached_property
    def engines(self) -> tuple[tuple[Engine, str], ...]:
        """The engine of each phase, which has run once on synthetic records, and how it runs: "compiled", …"""
        if self.is_sharded:
            return (self._sharded_engine(),)
        found = []
        for phase in self.phases:
            with training_only(self.model, phase.names(self.model)):
                found.append(self._engine(self.pipeline_of(phase)))
        return tuple(found)

    def _sharded_engine(self) -> tuple[ShardedEngine, str]:
        clipping, padding = self.evaluation.method.clipping, self._padding(self.pipeline, at_least=2)
        views = self.pipeline.total_views
        return engines.sharded_engine_for(self.model, self.step_loss, views=views, clipping=clipping, padding=padding)

    def _engine(self, pipeline: InputPipeline) -> tuple[Engine, str]:
        clipping, compiled = self.evaluation.method.clipping, self.config.run.compiled
        if compiled and clipping.needs_coordinates:
            _refuse("compiled", "omitted for a clip rule by coordinate, which materialises gradients", compiled)
        if compiled and engines.has_state(clipping):
            _refuse("compiled", "omitted for a clip norm that changes at every step", compiled)
        return engines.engine_for(
            self.model,
            self.step_loss,
            views=pipeline.total_views,
            precision=self.config.training.precision,
            compiled=engines.is_worth_compiling(self.plan, clipping) if compiled is None else compiled,
            clipping=clipping,
            padding=self._padding(pipeline),
        )

    @cached_property
    def shards(self) -> Shards | None:
        """This rank's rows of the weights, if they are sharded. A collective: all ranks must call it."""
        engine, _ = self.engines[0]
        if not isinstance(engine, ShardedEngine):
            return None
        clipping = self.evaluation.method.clipping
        clip = clipping.rule(clipping.start(batches.trainable(self.model)), 0)
        shards = Shards(self.model, engine, self.ranks, self.device)
        gc.collect()  # the engine that was tried has reference cycles, which would keep the whole weights in memory
        engine.private_sum(clip, *self._padding(self.pipeline, device=self.device))
        shards.bind()
        return shards

    @property
    def _check_device(self) -> torch.device:
        """Where the model is checked. The whole weights of a sharded model may not fit on a GPU."""
        return torch.device("cpu") if self.is_sharded else self.device

    def _padding(
        self, pipeline: InputPipeline, *, device: torch.device | None = None, at_least: int = 1
    ) -> tuple[Any, Any, torch.Tensor]:
        size = max(at_least, self.physical_batch)
        return engines.padding(self.evaluation.records, replace(pipeline, device=device or self._check_device), size)

    @cached_property
    def recorded(self) -> dict[str, Any]:
        """What config.json records. All of it is public."""
        evaluation, plan, settings = self.evaluation, self.plan, self.config.to_json(is_recorded=True)
        records, published = evaluation.records, self.published_claim
        described: dict[str, Any] = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "run": self.name,
            "library_version": lehr.__version__,
            "created_on": datetime.now(UTC).date().isoformat(),
            "method": describing.method_words(evaluation.method),
            "plan": plan.to_json(),
            "claims": {
                "proven": claim_to_json(self.proven_claim),
                "published": None if published is None else claim_to_json(published),
            },
            "data": {
                **settings["data"],
                "name": records.name,
                "is_known": records.name in CATALOGUE,
                "declared": records.declared,
                "records": records.records if records.drawn == RECORD else settings["data"]["records"],
                "users": None if records.drawn == RECORD else records.records,
                "num_classes": records.num_classes,
                "task": records.task,
                "shape": list(records.shape),
                "preparation": records.preparation.to_json(),
                "public_records": evaluation.public_records,
                "evaluated_on": evaluation.on,
            },
            "model": describing.model_words(self.model, self.loss_fn, *(self.network or (None, {}))),
            "prior": None if self.prior is None else dict(self.prior.description),
            "privacy": settings["privacy"],
            "training": {
                **settings["training"],
                "augmentation": self.pipeline.augmentation.to_json(),
                "averaging": self.averaging.to_json(),
                "evaluate_every": self.run_plan.evaluate_every,
                **evaluation.to_json(),
            },
            "stated": None if self.stated is None else asdict(self.stated),
            "budget": None if self.budget is None else ending.dataset_of(self.budget),
            "trial_of": None if self.price is None else search_cost.to_json(self.price),
        }
        return {name: describing.as_json(value) for name, value in described.items()}

    # Training.

    def open(self, where: Path, *, resume: bool = False) -> PrivateRun:
        """Open the run in a new folder, or in the folder to resume. Only rank 0 uses the disk."""
        key = None
        if self.ranks.is_rank_0 and not resume:
            key = RunKey.fresh()
            self.evaluation.split(key)  # raises an error before the folder exists
        spec = RunSpec(
            name=self.name,
            run_plan=self.run_plan,
            mechanism=self.mechanism,
            directory=where,
            config=self.recorded,
            fingerprint=self.evaluation.records.fingerprint,
            physical_batch=self.physical_batch,
            epsilon_of=self._epsilon_of(),
            budget=self.budget,
            key=key,
            is_sharded=self.is_sharded,
            ranks=self.ranks,
        )
        return PrivateRun.open(spec, resume=resume)

    def train(self, run: PrivateRun, callbacks: Sequence[Callback]) -> Run:
        """Train to the end. Every rank returns the same run."""
        if self.shards is None:
            self.ranks.broadcast([*self.model.parameters(), *self.model.buffers()])
        loop = Loop(self._training(run), run, callbacks)
        loop.load_checkpoint()
        with _call_back(loop.callbacks, self._start(run, loop), loop), ending.report_if_interrupted(run.folder):
            end = loop.train()
        weights = loop.weights()
        run.finish(weights, accepted=end.accepted)
        directory, certificate = self._write_end(run)
        if self.shards is None:
            self.model.load_state_dict(weights)
        else:
            self.shards.put(loop.state.weights())
        return Run(
            directory=directory,
            model=self.model,
            plan=self.plan,
            end=end,
            evaluations=tuple(loop.rows),
            certificate=certificate,
            proven=self.proven_claim,
            published=self.published_claim,
            promises_nothing=self.promises_nothing,
            is_withheld=self.is_withheld,
        )

    def _certificate(self, budget: SharedBudget | None, charged: Event | None = None) -> Certificate:
        assert self.stated is not None
        return ending.certificate_for(
            self.run_plan,
            self.plan,
            self.stated,
            charged=charged,
            shared=budget,
            published=self.published_claim,
            search=self.price,
        )

    def _write_end(self, run: PrivateRun) -> tuple[Path, Certificate | None]:
        """Write the certificate, if there can be one, and the report. Return the folder and the certificate."""

        def write() -> list[Any]:
            assert run.folder is not None
            certificate = None
            if self.is_certifiable:
                budget = None if self.budget is None else ending.shared_budget(self.budget, self.name)
                charged = None if self.plan.limit is not None else run.folder.ledger.charged()
                certificate = self._certificate(budget, charged)
            ending.write(run.folder, certificate)
            shape = None if certificate is None else certificate_to_json(certificate)
            return [str(run.folder.files.directory), shape]

        directory, shape = self.ranks.from_rank_0(write)
        return Path(directory), None if shape is None else certificate_from_json(shape)

    def _training(self, run: PrivateRun) -> Training:
        evaluation, pipeline, settings = self.evaluation, self.pipeline, self.config
        split = evaluation.split(run.key) if run.folder is None else evaluation.kept_split(run.folder)
        # Ranks with different splits would sum records that were not drawn.
        digest = "" if split is None else run.key.fingerprint(split.parts.numpy().data)
        self.ranks.check_equal({"data": digest}, allowed="split alike on every rank")
        parts = (evaluation.records if split is None else evaluation.divided(split)).to(self.device)
        return Training(
            model=self.model,
            phases=self._training_phases(),
            method=evaluation.method,
            private_records=self._units(parts, run.key),
            setup=self._setup(parts),
            averaging=self.averaging,
            scorer=evaluation.scorer(parts, self.loss_fn, pipeline.seen),
            oracle=evaluation.oracle(parts, self.model, self.loss_fn, pipeline.seen, self.plan),
            patience=settings.training.patience,
            checkpoint_seconds=settings.run.checkpoint_seconds,
            writes_diagnostics=settings.run.diagnostics,
            environment=self._environment(),
            shards=self.shards,
        )

    def _units(self, parts: RunRecords, key: RunKey) -> Records | UserRecords:
        """What the steps draw from: records, of each user at most so many, or users with theirs."""
        if parts.owners is None:
            return parts.private
        if self.plan.max_records_per_user is not None:
            return parts.private.at(records_of_run(parts.owners, most=self.plan.max_records_per_user, key=key))
        assert self.plan.records_per_user is not None
        return UserRecords(parts.private, parts.owners, self.plan.records_per_user)

    def _training_phases(self) -> list[TrainingPhase]:
        trains_all = not any(phase.trained for phase in self.phases)
        return [
            TrainingPhase(
                first_step=first_step,
                trained=frozenset() if trains_all else phase.names(self.model),
                engine=engine,
                prepare_inputs=self.pipeline_of(phase).trained,
            )
            for phase, first_step, (engine, _) in zip(self.phases, first_steps(self.phases), self.engines, strict=True)
        ]

    def _epsilon_of(self) -> Callable[[Event], float]:
        """ε of the events charged so far. A search has spent its whole ε before the first step of a trial."""
        whole = self.proven_claim.epsilon
        return epsilon_of_charges(self.plan, whole) if self.trial_of is None else lambda charged: whole

    def _environment(self) -> dict[str, str] | None:
        """Everything that can change a bit of this run's sums; None if a component's settings are unknown."""
        if not is_known(self.evaluation.method):
            return None
        return replay.environment(
            self.device,
            physical_batch=self.physical_batch,
            step=", ".join(mode for _, mode in self.engines),
            mode=[layer.training for layer in self.model.modules()],
            probe=" ".join(map(self._probe, self.phases, self.engines)),
            noise=self.mechanism.noise if self.plan.bands > 1 else "",
            **self.evaluation.records.computed_by(self.device),
        )

    def _probe(self, phase: Phase, found: tuple[Engine, str]) -> str:
        """A hash of what a step of a phase does to synthetic records."""
        with training_only(self.model, phase.names(self.model)):
            return probe(
                self.model,
                found[0],
                self.evaluation.method,
                self.loss_fn,
                pipeline=self.pipeline_of(phase),
                records=self.evaluation.records,
                size=self.physical_batch,
                local=None if self.shards is None else self.shards.local,
            )

    def _setup(self, parts: RunRecords) -> Callable[[StepRandomness], None] | None:
        """What is done once, before the first step."""
        if self.projection is None or self.private_pca is None:
            return None
        return partial(
            fill_projection,
            self.projection,
            self.private_pca,
            private=parts.private,
            prepare=self.pipeline.seen,
            sensitivity_factor=self.mechanism.sampling.sensitivity_factor,
        )

    def _start(self, run: PrivateRun, loop: Loop) -> Start:
        return Start(
            run=self.name,
            directory=Path() if run.folder is None else run.folder.files.directory,
            method=self.evaluation.method.name,
            steps=self.plan.steps,
            first_step=loop.state.step,
            expected_batch_size=self.plan.expected_batch_size,
            epsilon=self.proven_claim.epsilon,
            delta=self.plan.delta,
            published=self.published_claim,
            stops_at_accepted=self.plan.stops_at_accepted,
            has_limit=self.plan.limit is not None,
            promises_nothing=self.promises_nothing,
            ranks=run.ranks.total,
        )


def _refuse(name: str, allowed: str, given: object) -> NoReturn:
    raise InvalidValue(name, allowed=allowed, given=given)


@contextmanager
def _call_back(callbacks: Sequence[Callback], start: Start, loop: Loop) -> Iterator[None]:
    """Call ``started``, and ``ended`` if an error ends the run.

    The message of most errors stays out of callbacks, because it may be about a record.
    """
    for callback in callbacks:
        callback.started(start)
    try:
        yield
    except BaseException as error:
        reason = INTERRUPTED if isinstance(error, KeyboardInterrupt) else f"stopped by {type(error).__name__}"
        if isinstance(error, Diverged | StoreError):
            reason = str(error)
        state = loop.state
        end = End(step=state.step, accepted=state.accepted, epsilon_spent=loop.run.epsilon_spent, reason=reason)
        for callback in callbacks:
            callback.ended(end)
        raise


def projection_of(model: nn.Module, pca: PrivatePCA | None) -> Projection | None:
    """The layer that the PCA fills. An error if one of the two is missing, or their sizes differ."""
    layers = [layer for layer in model.modules() if isinstance(layer, Projection)]
    if pca is None:
        if layers:
            _refuse("private_pca", "given for a network with a projection, whose components are zero at first", None)
        return None
    if len(layers) != 1:
        _refuse("model", "one with a single Projection layer for private_pca", len(layers))
    dimensions = layers[0].components.shape[1]
    if dimensions != pca.dimensions:
        _refuse("private_pca", f"{dimensions} dimensions, like the model's projection", pca.dimensions)
    return layers[0]


def fill_projection(
    projection: Projection,
    pca: PrivatePCA,
    randomness: StepRandomness,
    *,
    private: Records,
    prepare: Callable[[Inputs], Inputs],
    sensitivity_factor: float,
) -> None:
    """Compute the components with noise and write them into the layer."""
    inputs = projection.components.shape[0]
    released = IsotropicNoise().release(
        pca.private_moment(private, prepare, inputs),
        noise_multiplier=sensitivity_factor * pca.noise_multiplier,
        randomness=randomness,
        purpose="private PCA",
    )
    projection.components.copy_(pca.components(released, inputs))


# Optimizers that need all rows of a weight, or all weights, at once.
_WHOLE_WEIGHT_OPTIMIZERS = ("adafactor", "normalised-sgd")
SHARDABLE_OPTIMIZERS = tuple(name for name in OPTIMIZERS if name not in _WHOLE_WEIGHT_OPTIMIZERS)


def check_shardable(method: Method, config: RunConfig, device: torch.device, *, trial_of: object = None) -> None:
    """Raise an error, before anything is spent, for settings that need whole weights or all records on one rank."""
    engines.check_processes(device)
    _refuse_unshardable(method)
    unsupported = {
        "precision": config.training.precision != "as_model" and config.training.precision,
        "compiled": config.run.compiled,
        "diagnostics": config.run.diagnostics,
        "held_out_fraction": config.training.held_out_fraction,
        "private_pca": config.privacy.private_pca,
        "trial_of": trial_of,
    }
    for name, value in unsupported.items():
        if value:
            _refuse(name, "omitted with sharded weights", value)


def _refuse_unshardable(method: Method) -> None:
    clipping, update = method.clipping, method.update
    if not isinstance(method.acceptance, Always):
        _refuse("method", "one that accepts every step: with sharded weights no rank can undo one alone", method.name)
    if not engines.is_shardable(clipping):
        _refuse("method", "one whose clip rule uses norms and has no state, with sharded weights", method.name)
    if type(method.noise) not in (IsotropicNoise, NoNoise):
        _refuse("method", "one with isotropic noise, with sharded weights", method.name)
    if not isinstance(update, Update) or update.optimizer not in SHARDABLE_OPTIMIZERS:
        given = update.optimizer if isinstance(update, Update) else type(update).__name__
        _refuse("optimizer", f"one of {', '.join(SHARDABLE_OPTIMIZERS)} with sharded weights", given)


def train_run(run: TrainingRun, where: Path, *, resume: bool, callbacks: Sequence[Callback]) -> Run:
    """Train to the end, in a new folder or in the folder to resume. Every rank calls this."""
    with run.ranks.session():
        if run.ranks.total > 1:
            found = identity(run, run.ranks.comparison_key())
            run.ranks.check_equal(found, allowed="the same on every rank, in the same order")
        _ = run.shards
        with run.open(where, resume=resume) as private:
            return run.train(private, callbacks)


def identity(run: TrainingRun, key: RunKey) -> dict[str, str]:
    """Keyed hashes of everything that must be the same on every rank."""
    # Rank 0 alone has the budget, claims follow from the rest, and the date follows each rank's clock.
    settings = {name: value for name, value in run.recorded.items() if name not in ("budget", "claims", "created_on")}
    # Bands are not only settings: each rank optimises their coefficients itself.
    noise = repr(run.mechanism.noise) if run.plan.bands > 1 else ""
    compared: dict[str, object] = {"settings": [settings, run.is_sharded, noise], "model": layout_of(run.model)}
    if run.is_sharded:  # ranks with another number of batches would wait for each other forever
        compared["physical_batch"] = run.physical_batch
    hashed = {name: key.fingerprint(json.dumps(value, sort_keys=True).encode()) for name, value in compared.items()}
    return {**hashed, "records": run.evaluation.records.fingerprint(key)}
