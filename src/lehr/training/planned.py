"""A run that is planned, and what becomes of it: a folder, a loop in it, and an end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lehr import accounting, attempts
from lehr.acceptance.energy import PrivateChoice, PrivateEnergy
from lehr.accounting.filter import epsilon_at
from lehr.accounting.rdp import RDP_BALLE20
from lehr.append_only import a_name
from lehr.attempts import Allowance
from lehr.claims import Claim
from lehr.data.private_pca import PrivatePCA
from lehr.data.split import Split
from lehr.distributed import ALONE, Ranks
from lehr.errors import Diverged, InvalidValue, StoreError
from lehr.events import Adjacency, Event, counted
from lehr.gradients import batches
from lehr.gradients.sharded import ShardedEngine
from lehr.loop import Engine, Loop, Share, Training
from lehr.mechanism import Mechanism
from lehr.networks.projected_mlp import Projection
from lehr.planning.plan import Plan
from lehr.planning.published import published_claim
from lehr.planning.search_cost import Paid, Trial, refuse_what_is_not_searched
from lehr.reports import promising
from lehr.reports.certificate import Statements
from lehr.rng import RunKey, StepRandomness
from lehr.run_folder import RunFolder
from lehr.run_shape import PRIVATE, Callback, End, Start
from lehr.sharded import Shards
from lehr.training import describing, ending, engines, paying, projecting, sharding, trying
from lehr.training.ending import Run
from lehr.training.given_records import GivenRecords
from lehr.training.how import How
from lehr.training.looks import Look
from lehr.training.probing import is_known, probe
from lehr.training.scored import Scored


@dataclass(frozen=True, kw_only=True, eq=False)
class Planned:
    """Everything that was decided. Whether it can be certified is found out where it is built, not after the run."""

    name: str
    model: nn.Module
    network: tuple[str, Mapping[str, Any]] | None
    how: How
    scored: Scored
    plan: Plan
    stated: Statements | None
    budget: Path | None
    is_withheld: bool = (
        False  # no certificate, though one was asked for: the settings were seen to be chosen on records
    )
    private_pca: PrivatePCA | None = None
    trial_of: Trial | None = None  # the search that this run is a trial of; it has reserved for all of them
    ranks: Ranks = ALONE
    is_sharded: bool = False

    def __post_init__(self) -> None:
        a_name(name=self.name)
        self._refuse_unfit_sharding()
        self._refuse_patience_with_nothing()
        self._refuse_unfit_replacing()
        self._refuse_a_budget_for_what_is_not_known()
        self._refuse_to_simulate_with_private_records()
        self._refuse_an_unfit_trial()
        engines.try_every_rule(self.scored.method.clipping, self.plan.steps)
        self.model.to(self._tried_on)
        given = self.scored.given
        trying.try_model(
            self.model,
            loss_fn=self.how.loss_fn,
            look=replace(self.look, device=self._tried_on),
            given=given,
            is_scored=self.scored.on is not None or self.scored.needs_public,
            is_asked=isinstance(self.scored.method.acceptance.energy, PrivateEnergy | PrivateChoice),
        )
        _ = self.mechanism, self.projection, self.engine
        if self.stated is not None and self.is_certifiable:
            expected = None if self.budget is None else paying.expected_budget(self.budget, self.allowance, self.name)
            ending.certificate_for(
                self.allowance,
                self.plan,
                self.stated,
                shared=expected,
                published=self.published_claim,
                search=self.price,
            )

    @cached_property
    def proven_claim(self) -> Claim:
        """What holds for all that the plan allows, and for the whole search where the run is one of its trials."""
        whole = self.allowance.event if self.price is None else self.price.event(self.allowance.event)
        return accounting.claim(whole, delta=self.plan.delta, adjacency=self.plan.adjacency)

    @cached_property
    def published_claim(self) -> Claim | None:
        """What the paper's rule says, where the run follows it."""
        rule = self.scored.method.published
        return None if rule is None else published_claim(rule, self.plan, beside=self.allowance.beside)

    @property
    def price(self) -> Paid | None:
        """That of the search that the run is a trial of."""
        return None if self.trial_of is None else self.trial_of.price

    @property
    def is_certifiable(self) -> bool:
        """Whether there can be a certificate: not without a theorem, and not where nobody is protected."""
        return math.isfinite(self.proven_claim.epsilon) and self.promises_nothing is None and not self.is_withheld

    @property
    def promises_nothing(self) -> str | None:
        """Why a run of this kind is never certified, where that is so."""
        return promising.why_nothing(self.plan, declared=self.scored.given.declared)

    @cached_property
    def look(self) -> Look:
        """What the model sees of a record."""
        return self.how.look(self.scored.given.preparation)

    @cached_property
    def mechanism(self) -> Mechanism:
        """What a step does to the records."""
        return Mechanism.of(self.scored.method, self.plan)

    @cached_property
    def projection(self) -> Projection | None:
        """The layer that is filled before the first step."""
        return projecting.projection_of(self.model, self.private_pca)

    @cached_property
    def engine(self) -> tuple[Engine, str]:
        """The engine, tried, and how it runs, in words."""
        if self.is_sharded:
            return engines.sharded_engine_for(
                self.model,
                self.how.loss_fn,
                views=self.how.views,
                clipping=self.scored.method.clipping,
                padding=self._padding(self._tried_on, at_least=2),
            )
        return engines.engine_for(
            self.model,
            self.how.loss_fn,
            views=self.how.views,
            precision=self.how.precision,
            compiled=self.how.is_compiled_for(self.plan, self.scored.method.clipping),
            clipping=self.scored.method.clipping,
            padding=self._padding(self._tried_on),
        )

    @cached_property
    def shards(self) -> Shards | None:
        """What this rank holds of the weights where they are spread out. All ranks must ask at the same moment."""
        engine, _ = self.engine
        if not isinstance(engine, ShardedEngine):
            return None
        clipping = self.scored.method.clipping
        clip = clipping.rule(clipping.start(batches.trainable(self.model)), 0)
        device = self.how.device
        padding = self._padding(device)
        return sharding.spread_out(self.model, engine, self.ranks, device, clip=clip, padding=padding)

    @property
    def _tried_on(self) -> torch.device:
        """Where the model is tried: before its weights are spread out it need not fit on a GPU."""
        return torch.device("cpu") if self.is_sharded else self.how.device

    def _padding(self, device: torch.device, *, at_least: int = 1) -> tuple[Any, Any, torch.Tensor]:
        size = max(at_least, self.physical_batch)
        return trying.padding(self.scored.given, replace(self.look, device=device), size)

    @property
    def physical_batch(self) -> int:
        """The records that are run at once."""
        return self.how.physical_batch_for(self.plan, ranks=self.ranks.total)

    @cached_property
    def allowance(self) -> Allowance:
        """The steps, and the scores in between."""
        return self.scored.allowance(self.plan)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What is written down about the run."""
        return describing.config(
            run=self.name,
            method=self.scored.method,
            plan=self.plan,
            data=self.scored.given,
            model=describing.model_words(self.model, self.how.loss_fn, *(self.network or (None, {}))),
            options={
                **self.how.to_json(),
                "evaluate_every": self.allowance.evaluate_every,
                **self.scored.to_json(),
                "private_pca": None if self.private_pca is None else self.private_pca.to_json(),
            },
            public_records=self.scored.public_records,
            evaluated_on=self.scored.on,
            stated=self.stated,
            budget=None if self.budget is None else paying.dataset_of(self.budget),
            proven=self.proven_claim,
            beside=self.allowance.beside,
            search=self.price,
        )

    def begun(self, where: Path) -> RunFolder:
        """A new folder for the run, for which all that it may cost is reserved, where there is a budget."""
        key = RunKey.fresh(cryptographic_on_gpu=self.how.cryptographic_on_gpu)
        self.scored.split(key)
        folder = RunFolder.create(
            where,
            config=self.config,
            key=key,
            plan_event=self.allowance.event,
            delta=self.plan.delta,
            adjacency=self.plan.adjacency,
            fingerprint=self.scored.given.fingerprint,
        )
        return paying.reserved(self.budget, folder)

    def resumed(self, where: Path) -> RunFolder:
        """The folder of the run that is resumed; of another model, plan, method or data it is refused."""
        folder = RunFolder.open(where)
        try:
            folder.refuse_other(config=self.config, fingerprint=self.scored.given.fingerprint)
            folder.ledger.refuse_other(run=self.name, plan_event=self.allowance.event, adjacency=self.plan.adjacency)
            if self.budget is not None:
                paying.refuse_unpaid(self.budget, folder)
        except BaseException:
            folder.close()
            raise
        return folder

    def trained(self, folder: RunFolder, callbacks: Sequence[Callback]) -> Run:
        """Train in the folder, to the end."""
        loop = Loop(self._training(folder), folder, callbacks)
        with _telling(callbacks, self._start(folder, loop), loop):
            end = loop.run()
        ending.close_ledger(folder.ledger, accepted=end.accepted)
        shared = None if self.budget is None else paying.settled(self.budget, folder.ledger)
        certificate = None
        if self.stated is not None and self.is_certifiable:
            certificate = ending.certificate_for(
                self.allowance,
                self.plan,
                self.stated,
                charged=None if self.plan.limit is not None else folder.ledger.charged(),
                shared=shared,
                published=self.published_claim,
                search=self.price,
            )
        weights = loop.weights()
        ending.write(folder, weights, certificate)
        if self.shards is None:
            self.model.load_state_dict(weights)
        else:
            self.shards.put(loop.trainee.weights())
        return Run(
            directory=folder.files.directory,
            model=self.model,
            plan=self.plan,
            end=end,
            evaluations=tuple(loop.rows),
            certificate=certificate,
            proven=self.proven_claim,
            published=self.published_claim,
            promises_nothing=self.promises_nothing,
        )

    def share(self, key: RunKey) -> tuple[Share, dict[str, object]]:
        """What a rank that is not the first sums, and what the first must know of it."""
        made = self.scored.split(key)
        parts = self.scored.given if made is None else self.scored.divided(made)
        engine, _ = self.engine
        share = Share(
            engine=engine,
            private=parts.to(self.how.device).private,
            views=self.look.trained,
            physical_batch=self.physical_batch,
            device=self.how.device,
            ranks=self.ranks,
            is_side_by_side=self.is_sharded,
        )
        return share, {"split": _split_digest(made, key), "environment": self._environment()}

    def follower(self, share: Share, key: RunKey) -> sharding.Follower:
        """What a rank that is not the first does where weights are spread out."""
        assert self.shards is not None
        parts = self.scored.given.to(self.how.device)
        return sharding.Follower(
            self.shards,
            share,
            self.mechanism,
            self.scored.method,
            self.how.averaging,
            scorer=self.scored.scorer(parts, self.how.loss_fn, self.look.seen),
            key=key,
        )

    def _training(self, folder: RunFolder) -> Training:
        how, method = self.how, self.scored.method
        kept = self.scored.kept_split(folder)
        parts = (self.scored.given if kept is None else self.scored.divided(kept)).to(how.device)
        look = self.look
        engine, _ = self.engine
        return Training(
            model=self.model,
            engine=engine,
            method=method,
            mechanism=self.mechanism,
            allowance=self.allowance,
            epsilon_of=self._epsilon_of(),
            private=parts.private,
            beforehand=self._beforehand(parts),
            views=look.trained,
            physical_batch=self.physical_batch,
            averaging=how.averaging,
            scorer=self.scored.scorer(parts, how.loss_fn, look.seen),
            judge=self.scored.judge(parts, self.model, how.loss_fn, look.seen, self.plan),
            patience=how.patience,
            checkpoint_seconds=how.checkpoint_seconds,
            has_diagnostics=how.diagnostics,
            environment=self.ranks.environment(self._environment(), split=_split_digest(kept, folder.key)),
            ranks=self.ranks,
            shards=self.shards,
        )

    def _epsilon_of(self) -> Callable[[Event], float]:
        """ε of what is charged so far. A search has spent all of its own before the first step of a trial."""
        whole = self.proven_claim.epsilon
        return _epsilon_of(self.plan, whole) if self.trial_of is None else lambda charged: whole

    def _environment(self) -> dict[str, str] | None:
        """All that a bit of this run may depend on; none where that is not known."""
        scored, (_, runs) = self.scored, self.engine
        if not is_known(scored.method):
            return None
        # Weights that are spread out are run by all ranks at once, and nobody listens.
        with nullcontext() if self.shards is None else self.ranks.side_by_side():
            probed = self._probe()
        return attempts.environment(
            self.how.device,
            physical_batch=self.physical_batch,
            step=runs,
            mode=[layer.training for layer in self.model.modules()],
            probe=probed,
            **scored.given.decoded_by,
        )

    def _probe(self) -> str:
        """What a step does to made-up records."""
        engine, _ = self.engine
        return probe(
            self.model,
            engine,
            self.scored.method,
            self.how.loss_fn,
            look=self.look,
            given=self.scored.given,
            size=self.physical_batch,
            held=None if self.shards is None else self.shards.held,
        )

    def _beforehand(self, parts: GivenRecords) -> Callable[[StepRandomness], None] | None:
        """What is done once, before the first step."""
        if self.projection is None or self.private_pca is None:
            return None
        return partial(
            projecting.fill,
            self.projection,
            self.private_pca,
            private=parts.private,
            prepare=self.look.seen,
            sensitivity_factor=self.mechanism.sampling.sensitivity_factor,
        )

    def _start(self, folder: RunFolder, loop: Loop) -> Start:
        return Start(
            run=self.name,
            directory=folder.files.directory,
            method=self.scored.method.name,
            steps=self.plan.steps,
            first_step=loop.trainee.step,
            expected_batch_size=self.plan.expected_batch_size,
            epsilon=self.proven_claim.epsilon,
            delta=self.plan.delta,
            published=self.published_claim,
            stops_at_accepted=self.plan.stops_at_accepted,
            has_limit=self.plan.limit is not None,
            promises_nothing=self.promises_nothing,
        )

    def _refuse_unfit_sharding(self) -> None:
        if self.is_sharded:
            held_out = self.scored.held_out_fraction if self.scored.is_private else 0
            sharding.refuse_unfit(
                self.scored.method,
                self.how,
                held_out_fraction=held_out,
                private_pca=self.private_pca,
                trial_of=self.trial_of,
            )

    def _refuse_patience_with_nothing(self) -> None:
        if self.how.patience is not None and self.scored.on is None:
            allowed = "left out where there are neither test records nor held-out ones"
            raise InvalidValue("patience", allowed=allowed, given=self.how.patience)

    def _refuse_a_budget_for_what_is_not_known(self) -> None:
        if self.budget is not None and self.plan.limit is not None:
            allowed = "left out for a method whose costs follow what it releases: it has a limit of its own"
            raise InvalidValue("budget", allowed=allowed, given=str(self.budget))

    def _refuse_to_simulate_with_private_records(self) -> None:
        """A simulation has next to no noise: what it finds out about its records is there for everybody to see."""
        if self.plan.simulates is None:
            return
        if self.scored.given.declared == PRIVATE:
            allowed = "public or synthetic for a plan that is a simulation, which would protect nobody"
            raise InvalidValue("declared", allowed=allowed, given=PRIVATE)
        if self.budget is not None:
            raise InvalidValue("budget", allowed="left out for a simulation", given=str(self.budget))

    def _refuse_an_unfit_trial(self) -> None:
        """A trial is paid for by its search, on private records, and has chosen its settings there."""
        if self.trial_of is None:
            return
        refuse_what_is_not_searched(self.plan)
        self.trial_of.refuse_other(self.allowance.event)
        if self.scored.given.declared != PRIVATE:
            allowed = f"left out on {self.scored.given.declared} records: a search on them is free"
            raise InvalidValue("trial_of", allowed=allowed, given=self.trial_of)
        if self.budget is not None:
            raise InvalidValue(
                "budget", allowed="left out for a trial: the search has reserved", given=str(self.budget)
            )
        if self.stated is not None and self.stated.settings_chosen_on != "private":
            chosen_on = self.stated.settings_chosen_on
            raise InvalidValue("settings_chosen_on", allowed="private for a trial of a search", given=chosen_on)

    def _refuse_unfit_replacing(self) -> None:
        """Where neighbours have a record replaced, the number of records is public, and must be the stated one."""
        if self.plan.adjacency is not Adjacency.REPLACE_ONE:
            return
        if self.scored.is_private:
            allowed = "left out under replace-one: how many are held out is drawn, and would be public there"
            raise InvalidValue("held_out_fraction", allowed=allowed, given=self.scored.held_out_fraction)
        if len(self.scored.given.private) != self.plan.records:
            allowed = "under replace-one exactly the number of the records"
            raise InvalidValue("records", allowed=allowed, given=self.plan.records)


def _split_digest(split: Split | None, key: RunKey) -> str:
    """Who is in which part, as a keyed hash: ranks that differ in it would sum other records than were drawn."""
    return "" if split is None else key.fingerprint(split.parts.numpy().data)


def _epsilon_of(plan: Plan, whole: float) -> Callable[[Event], float]:
    """An upper bound on ε of what is charged so far: from the plan's curve while that is equal steps alone.

    Otherwise it is counted anew, by Rényi divergences, which are known for each event; and never above the whole's.
    """

    def counted_anew(charged: Event) -> float:
        return min(whole, RDP_BALLE20.epsilon(charged, delta=plan.delta, adjacency=plan.adjacency))

    if plan.limit is not None:
        return partial(epsilon_at, limit=plan.limit, delta=plan.delta, adjacency=plan.adjacency)
    if not plan.has_equal_steps:
        return counted_anew
    curve = plan.curve()
    [step] = counted(plan.step_event)

    def epsilon_of(charged: Event) -> float:
        counts = counted(charged)
        return counted_anew(charged) if counts.keys() - {step} else curve.at(counts.get(step, 0))

    return epsilon_of


@contextmanager
def _telling(callbacks: Sequence[Callback], start: Start, loop: Loop) -> Iterator[None]:
    """Tell the callbacks that it begins, and also that it ends where it ends badly."""
    for callback in callbacks:
        callback.started(start)
    try:
        yield
    except BaseException as error:
        trainee = loop.trainee
        end = End(step=trainee.step, accepted=trainee.accepted, epsilon_spent=loop.spent, reason=_public_reason(error))
        for callback in callbacks:
            callback.ended(end)
        raise


def _public_reason(error: BaseException) -> str:
    """Why a run stopped, for callbacks: what an error says may be about a record, and goes to its owner alone."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return str(error) if isinstance(error, Diverged | StoreError) else f"stopped by {type(error).__name__}"
