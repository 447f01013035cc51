"""A run of ``lehr.fit``: decided, checked, begun or resumed, and trained, on one process or on several ranks.

- ``TrainingRun``: all that was decided, and what follows from it
- ``train_run``: train it, after all ranks were seen to have been given the same run
- ``projection_of``, ``fill_projection``: a private PCA in front of a network, found once and charged
- ``check_shardable``, ``shard_model``: what can be trained where each rank holds some rows of the weights
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import nn

from lehr import accounting
from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.acceptance.rules import Always
from lehr.accounting.claims import Claim
from lehr.accounting.events import Adjacency, Event
from lehr.certificates.certificate import Certificate, Statements, certificate_from_json, certificate_to_json
from lehr.certificates.guarantee import why_no_guarantee
from lehr.data.private_pca import PrivatePCA
from lehr.errors import Diverged, InvalidValue, StoreError
from lehr.files.append_only import check_name
from lehr.gradients import batches
from lehr.gradients.hooked import ShardedEngine
from lehr.interfaces import ClipRule, Inputs, Records
from lehr.networks.layers import Projection
from lehr.optim.optimizers import OPTIMIZERS, Update
from lehr.planning.plan import PRIVATE, Plan, published_claim
from lehr.planning.search_cost import SearchPrice, SearchTrial, check_searchable
from lehr.privacy.noise import IsotropicNoise, NoNoise
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.run import replay
from lehr.run.distributed import ALONE, Ranks, type_name
from lehr.run.loop import Engine, Loop, Training
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateRun, RunSpec, epsilon_of_charges
from lehr.run.replay import RunPlan
from lehr.run.shape import Callback, End, Start
from lehr.run.sharded import Shards
from lehr.training import describing, ending, engines
from lehr.training.ending import Run
from lehr.training.engines import is_known, probe
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.input_pipeline import InputPipeline
from lehr.training.prepare import TrainOptions
from lehr.training.records import RunRecords


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingRun:
    """A run of ``lehr.fit``, decided and not begun."""

    name: str
    model: nn.Module
    network: tuple[str, Mapping[str, Any]] | None
    options: TrainOptions
    evaluation: EvaluationPlan
    plan: Plan
    stated: Statements | None
    budget: Path | None
    is_withheld: bool = False  # no certificate: this process has seen the settings chosen on the records
    private_pca: PrivatePCA | None = None
    trial_of: SearchTrial | None = None  # the search that this run is a trial of; it has reserved for all of them
    ranks: Ranks = ALONE
    is_sharded: bool = False

    def __post_init__(self) -> None:
        check_name(name=self.name)
        if self.is_sharded:
            check_shardable(
                self.evaluation.method,
                self.options,
                held_out_fraction=self.evaluation.training.held_out_fraction,
                private_pca=self.private_pca,
                trial_of=self.trial_of,
            )
        self._refuse_conflicts()
        if self.trial_of is not None:
            self._refuse_unfit_trial(self.trial_of)

    def _refuse_conflicts(self) -> None:
        """Refuse settings that exclude one another."""
        plan, records, evaluation = self.plan, self.evaluation.records, self.evaluation
        patience, fraction = self.options.config.training.patience, evaluation.training.held_out_fraction
        if patience is not None and evaluation.on is None:
            _refuse("patience", "left out where there are neither test records nor held-out ones", patience)
        if plan.adjacency is Adjacency.REPLACE_ONE:  # the number of records is then public
            if evaluation.is_private:
                allowed = "left out under replace-one: how many records are held out is random, and would be public"
                _refuse("held_out_fraction", allowed, fraction)
            if len(records.private) != plan.records:
                _refuse("records", "under replace-one exactly the number of the records", plan.records)
        if plan.simulates is not None and records.declared == PRIVATE:
            _refuse("declared", "public or synthetic for a simulation, which has almost no noise", PRIVATE)
        if self.budget is not None:
            if plan.limit is not None:
                allowed = "left out for a method whose costs depend on what it releases: it has a limit of its own"
                _refuse("budget", allowed, str(self.budget))
            if plan.simulates is not None:
                _refuse("budget", "left out for a simulation", str(self.budget))

    def _refuse_unfit_trial(self, trial: SearchTrial) -> None:
        """A trial runs on private records, is paid for by its search, and has chosen its settings there."""
        check_searchable(self.plan)
        trial.refuse_other(self.run_plan.event)
        declared = self.evaluation.records.declared
        if declared != PRIVATE:
            _refuse("trial_of", f"left out on {declared} records, where a search is free", trial)
        if self.ranks.total > 1:
            _refuse("trial_of", "left out on several ranks: each trial runs in one process", trial)
        if self.budget is not None:
            _refuse("budget", "left out for a trial: the search has reserved for it", str(self.budget))
        if self.stated is not None and self.stated.settings_chosen_on != "private":
            _refuse("settings_chosen_on", "private for a trial of a search", self.stated.settings_chosen_on)

    def check(self) -> Self:
        """Refuse, before anything is spent, what cannot be trained or certified. The model is run, and compiled."""
        engines.try_every_rule(self.evaluation.method.clipping, self.plan.steps)
        self.model.to(self._tried_on)
        given = self.evaluation.records
        engines.try_model(
            self.model,
            loss_fn=self.options.loss_fn,
            pipeline=replace(self.pipeline, device=self._tried_on),
            given=given,
            is_scored=self.evaluation.on is not None or self.evaluation.needs_public,
            is_asked=isinstance(self.evaluation.method.acceptance.energy, PrivateEnergy | PrivateChoice),
        )
        _ = self.mechanism, self.projection, self.engine
        if self.stated is not None and self.is_certifiable:
            expected = None if self.budget is None else ending.expected_budget(self.budget, self.run_plan, self.name)
            ending.certificate_for(
                self.run_plan,
                self.plan,
                self.stated,
                shared=expected,
                published=self.published_claim,
                search=self.price,
            )
        return self

    @cached_property
    def proven_claim(self) -> Claim:
        """What holds for all that the plan allows, and for the whole search where the run is one of its trials."""
        whole = self.run_plan.event if self.price is None else self.price.event(self.run_plan.event)
        return accounting.claim(whole, delta=self.plan.delta, adjacency=self.plan.adjacency)

    @cached_property
    def published_claim(self) -> Claim | None:
        """What the paper's rule says, where the run follows it."""
        rule = self.evaluation.method.published
        return None if rule is None else published_claim(rule, self.plan, beside=self.run_plan.beside)

    @property
    def price(self) -> SearchPrice | None:
        """That of the search that the run is a trial of."""
        return None if self.trial_of is None else self.trial_of.price

    @property
    def is_certifiable(self) -> bool:
        """Whether there can be a certificate: not without a theorem, and not where nobody is protected."""
        return math.isfinite(self.proven_claim.epsilon) and self.promises_nothing is None and not self.is_withheld

    @property
    def promises_nothing(self) -> str | None:
        """Why a run of this kind is never certified, where that is so."""
        return why_no_guarantee(self.plan, declared=self.evaluation.records.declared)

    @cached_property
    def pipeline(self) -> InputPipeline:
        """What the model sees of a record."""
        return self.options.inputs(self.evaluation.records.preparation)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What a step does to the records."""
        return Mechanism.of(self.evaluation.method, self.plan)

    @cached_property
    def projection(self) -> Projection | None:
        """The layer that is filled before the first step."""
        return projection_of(self.model, self.private_pca)

    @cached_property
    def engine(self) -> tuple[Engine, str]:
        """The engine, tried, and how it runs, in words."""
        if self.is_sharded:
            return engines.sharded_engine_for(
                self.model,
                self.options.loss_fn,
                views=self.options.config.training.views,
                clipping=self.evaluation.method.clipping,
                padding=self._padding(self._tried_on, at_least=2),
            )
        return engines.engine_for(
            self.model,
            self.options.loss_fn,
            views=self.options.config.training.views,
            precision=self.options.config.training.precision,
            compiled=self.options.is_compiled_for(self.plan, self.evaluation.method.clipping),
            clipping=self.evaluation.method.clipping,
            padding=self._padding(self._tried_on),
        )

    @cached_property
    def shards(self) -> Shards | None:
        """What this rank holds of the weights where they are spread out. All ranks must ask at the same moment."""
        engine, _ = self.engine
        if not isinstance(engine, ShardedEngine):
            return None
        clipping = self.evaluation.method.clipping
        clip = clipping.rule(clipping.start(batches.trainable(self.model)), 0)
        device = self.options.device
        padding = self._padding(device)
        return shard_model(self.model, engine, self.ranks, device, clip=clip, padding=padding)

    @property
    def _tried_on(self) -> torch.device:
        """Where the model is tried: before its weights are spread out it need not fit on a GPU."""
        return torch.device("cpu") if self.is_sharded else self.options.device

    def _padding(self, device: torch.device, *, at_least: int = 1) -> tuple[Any, Any, torch.Tensor]:
        size = max(at_least, self.physical_batch)
        return engines.padding(self.evaluation.records, replace(self.pipeline, device=device), size)

    @property
    def physical_batch(self) -> int:
        """The records that are run at once."""
        return self.options.physical_batch_for(self.plan, ranks=self.ranks.total)

    @cached_property
    def run_plan(self) -> RunPlan:
        """The steps, and the scores in between."""
        return self.evaluation.run_plan(self.plan)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What is written down about the run."""
        return describing.config(
            run=self.name,
            method=self.evaluation.method,
            plan=self.plan,
            data=self.evaluation.records,
            model=describing.model_words(self.model, self.options.loss_fn, *(self.network or (None, {}))),
            options={
                **self.options.to_json(),
                "evaluate_every": self.run_plan.evaluate_every,
                **self.evaluation.to_json(),
            },
            recorded=self.options.config.to_json(is_recorded=True),
            public_records=self.evaluation.public_records,
            evaluated_on=self.evaluation.on,
            stated=self.stated,
            budget=None if self.budget is None else ending.dataset_of(self.budget),
            proven=self.proven_claim,
            beside=self.run_plan.beside,
            search=self.price,
        )

    def open(self, where: Path, *, resume: bool = False) -> PrivateRun:
        """The run, in a new folder or in that of a run that is resumed. Rank 0 alone touches the disk."""
        key = None
        if self.ranks.is_first and not resume:
            key = RunKey.fresh(cryptographic_on_gpu=self.options.config.training.cryptographic_on_gpu)
            self.evaluation.split(key)  # refused before there is a folder
        spec = RunSpec(
            name=self.name,
            plan=self.run_plan,
            mechanism=self.mechanism,
            directory=where,
            config=self.config,
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
        loop.resume()
        with _telling(loop.callbacks, self._start(run, loop), loop):
            end = loop.train()
        weights = loop.weights()
        run.finish(weights, accepted=end.accepted)
        directory, certificate = self._certified(run)
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
        )

    def _certified(self, run: PrivateRun) -> tuple[Path, Certificate | None]:
        """Where the run is, and its certificate where one can be given: rank 0 writes it, with the page of the run."""
        certificate = None
        if run.folder is not None:
            if self.stated is not None and self.is_certifiable:
                certificate = ending.certificate_for(
                    self.run_plan,
                    self.plan,
                    self.stated,
                    charged=None if self.plan.limit is not None else run.folder.ledger.charged(),
                    shared=None if self.budget is None else ending.shared_budget(self.budget, self.name),
                    published=self.published_claim,
                    search=self.price,
                )
            ending.write(run.folder, certificate)

        def told() -> list[Any]:
            assert run.folder is not None
            shape = None if certificate is None else certificate_to_json(certificate)
            return [str(run.folder.files.directory), shape]

        directory, shape = self.ranks.from_first(told)
        if certificate is None and shape is not None:
            certificate = certificate_from_json(shape)
        return Path(directory), certificate

    def _training(self, run: PrivateRun) -> Training:
        options, evaluation, pipeline = self.options, self.evaluation, self.pipeline
        split = evaluation.split(run.key) if run.folder is None else evaluation.kept_split(run.folder)
        # Ranks with different splits would sum other records than were drawn.
        digest = "" if split is None else run.key.fingerprint(split.parts.numpy().data)
        self.ranks.refuse_differences({"data": digest}, allowed="split alike on every rank")
        parts = (evaluation.records if split is None else evaluation.divided(split)).to(options.device)
        return Training(
            model=self.model,
            engine=self.engine[0],
            method=evaluation.method,
            private=parts.private,
            setup=self._setup(parts),
            views=pipeline.trained,
            averaging=options.averaging,
            scorer=evaluation.scorer(parts, options.loss_fn, pipeline.seen),
            oracle=evaluation.oracle(parts, self.model, options.loss_fn, pipeline.seen, self.plan),
            patience=options.config.training.patience,
            checkpoint_seconds=options.config.run.checkpoint_seconds,
            has_diagnostics=options.config.run.diagnostics,
            environment=self._environment(),
            shards=self.shards,
        )

    def _epsilon_of(self) -> Callable[[Event], float]:
        """ε of what is charged so far. A search has spent all of its own before the first step of a trial."""
        whole = self.proven_claim.epsilon
        return epsilon_of_charges(self.plan, whole) if self.trial_of is None else lambda charged: whole

    def _environment(self) -> dict[str, str] | None:
        """Everything that can change a bit of this run's sums; None if a component's settings are unknown."""
        engine, runs = self.engine
        evaluation, options = self.evaluation, self.options
        if not is_known(evaluation.method):
            return None
        return replay.environment(
            options.device,
            physical_batch=self.physical_batch,
            step=runs,
            mode=[layer.training for layer in self.model.modules()],
            probe=probe(
                self.model,
                engine,
                evaluation.method,
                options.loss_fn,
                pipeline=self.pipeline,
                given=evaluation.records,
                size=self.physical_batch,
                local=None if self.shards is None else self.shards.local,
            ),
            **evaluation.records.decoded_by,
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
        )


def _refuse(name: str, allowed: str, given: object) -> NoReturn:
    raise InvalidValue(name, allowed=allowed, given=given)


@contextmanager
def _telling(callbacks: Sequence[Callback], start: Start, loop: Loop) -> Iterator[None]:
    """Tell the callbacks that it begins, and also that it ends where it ends badly."""
    for callback in callbacks:
        callback.started(start)
    try:
        yield
    except BaseException as error:
        state = loop.state
        reason = _public_reason(error)
        end = End(step=state.step, accepted=state.accepted, epsilon_spent=loop.run.spent, reason=reason)
        for callback in callbacks:
            callback.ended(end)
        raise


def _public_reason(error: BaseException) -> str:
    """Why a run stopped, for callbacks: what an error says may be about a record, and goes to its owner alone."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, Diverged | StoreError) else f"stopped by {type(error).__name__}"


def projection_of(model: nn.Module, pca: PrivatePCA | None) -> Projection | None:
    """The layer that the PCA fills. An error if one of the two is missing, or they do not fit."""
    found = [layer for layer in model.modules() if isinstance(layer, Projection)]
    if pca is None:
        if found:
            _refuse("private_pca", "given for a network with a projection, whose components are zero at first", None)
        return None
    if len(found) != 1:
        _refuse("model", "one with a single Projection layer for private_pca", len(found))
    dimensions = found[0].components.shape[1]
    if dimensions != pca.dimensions:
        _refuse("private_pca", f"{dimensions} dimensions, as the projection of the model has", pca.dimensions)
    return found[0]


def fill_projection(
    projection: Projection,
    pca: PrivatePCA,
    randomness: StepRandomness,
    *,
    private: Records,
    prepare: Callable[[Inputs], Inputs],
    sensitivity_factor: float,
) -> None:
    """Find the components with their noise, and put them into the layer."""
    inputs = projection.components.shape[0]
    released = IsotropicNoise().release(
        pca.private_moment(private, prepare, inputs),
        noise_multiplier=sensitivity_factor * pca.noise_multiplier,
        randomness=randomness,
        purpose="private PCA",
    )
    projection.components.copy_(pca.components(released, inputs))


AS_A_WHOLE = ("adafactor", "normalised-sgd")  # optimizers that look at a weight, or at all of them, as a whole
COORDINATE_BY_COORDINATE = tuple(name for name in OPTIMIZERS if name not in AS_A_WHOLE)


def check_shardable(method: Method, options: TrainOptions, **left_out: object) -> None:
    """Refuse, before anything is spent, what needs whole weights or records on one rank."""
    config = options.config
    if not dist.is_available() or not dist.is_initialized():
        _refuse("sharded", "left out in one process: weights are spread over those that torchrun starts", True)
    if options.device.type == "cuda" and "nccl" not in dist.get_backend_config():
        _refuse("sharded", "left out on GPUs without NCCL", dist.get_backend_config())
    _refuse_method(method)
    if config.training.precision != "as_model":
        _refuse("precision", "as_model where weights are sharded", config.training.precision)
    for name, value in {"compiled": config.run.compiled, "diagnostics": config.run.diagnostics, **left_out}.items():
        if value:
            _refuse(name, "left out where weights are sharded", value)


def _refuse_method(method: Method) -> None:
    clipping, update = method.clipping, method.update
    if not isinstance(method.acceptance, Always):
        _refuse("method", "one that takes every step where weights are sharded: no rank can go back alone", method.name)
    if clipping.needs_coordinates or clipping.unproven is not None or clipping.start({"weight": torch.zeros(1)}):
        _refuse("method", "one that clips by norms and learns nothing where weights are sharded", method.name)
    if type(method.noise) not in (IsotropicNoise, NoNoise):
        _refuse("method", "one with the same noise on every coordinate where weights are sharded", method.name)
    if not isinstance(update, Update) or update.optimizer not in COORDINATE_BY_COORDINATE:
        given = update.optimizer if isinstance(update, Update) else type(update).__name__
        _refuse("optimizer", f"one of {', '.join(COORDINATE_BY_COORDINATE)} where weights are sharded", given)


def shard_model(
    model: nn.Module, engine: ShardedEngine, ranks: Ranks, device: torch.device, *, clip: ClipRule, padding: Any
) -> Shards:
    """Leave each rank its rows of the weights, and run once on nobody. All ranks must do this at the same moment."""
    shards = Shards(model, engine, ranks, device)
    gc.collect()  # what tried the whole model refers to itself, and would keep all of it until some later day
    engine.private_sum(clip, *padding)
    shards.bind()
    return shards


NOT_COMPARED = ("budget", "claims", "created_on")  # the first rank's own, what follows from the rest, and the clock's


def train_run(run: TrainingRun, where: Path, *, resume: bool, callbacks: Sequence[Callback]) -> Run:
    """Train to the end, in a new folder or in that of a run that is resumed. Every rank calls this."""
    with run.ranks.session():
        if run.ranks.total > 1:
            # The key is for this alone: what ranks were given is compared by hashes that say nothing.
            key = RunKey(bytes.fromhex(run.ranks.from_first(lambda: RunKey.fresh().secret.hex())))
            run.ranks.refuse_differences(_identity(run, key), allowed="the same on every rank, in the same order")
        _ = run.shards
        with run.open(where, resume=resume) as private:
            return run.train(private, callbacks)


def _identity(run: TrainingRun, key: RunKey) -> dict[str, str]:
    """What must be the same on every rank, as keyed hashes: all that is written down about the run, and its records."""
    said = {name: value for name, value in run.config.items() if name not in NOT_COMPARED}
    said["is_sharded"] = run.is_sharded
    words: dict[str, object] = {"settings": said, "model": _in_order(run.model)}
    if run.is_sharded:  # each batch is gathered for by all ranks, who would wait for one another in vain
        words["physical_batch"] = run.physical_batch
    hashed = {name: key.fingerprint(json.dumps(value, sort_keys=True).encode()) for name, value in words.items()}
    return {**hashed, "records": run.evaluation.records.fingerprint(key)}


def _in_order(model: nn.Module) -> list[list[object]]:
    """Its layers and what they hold, in their order: tensors are sent without names, and noise follows their order."""
    layers = [[name, type(layer).__name__, layer.training] for name, layer in model.named_modules()]
    held = [*model.named_parameters(), *model.named_buffers()]
    return [*layers, *([name, type_name(value), list(value.shape), value.requires_grad] for name, value in held)]
