"""A run that is planned, and what becomes of it: a folder, a loop in it, and an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lehr import accounting, attempts
from lehr.attempts import Schedule
from lehr.events import Event, counted
from lehr.gradients.batches import each
from lehr.interfaces import Inputs
from lehr.loop import Loop, Training
from lehr.mechanism import Mechanism
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.reports.certificate import Statements
from lehr.rng import RunKey
from lehr.run_folder import RunFolder, refuse_used
from lehr.run_shape import Callback, End, Start
from lehr.training import describing, ending, engines
from lehr.training.ending import Run
from lehr.training.given_records import GivenRecords
from lehr.training.how import How
from lehr.training.looks import Look
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

    def __post_init__(self) -> None:
        self.model.to(self.how.device)
        if self.stated is not None:
            ending.certificate_for(self.schedule, self.plan, self.stated)

    @cached_property
    def schedule(self) -> Schedule:
        """The steps, and the scores in between."""
        return self.scored.schedule(self.plan)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What is written down about the run."""
        return describing.config(
            run=self.name,
            method=self.scored.method,
            plan=self.plan,
            data=self.scored.given,
            model=describing.model_words(self.model, *(self.network or (None, {}))),
            options={
                **self.how.to_json(),
                "evaluate_every": self.schedule.evaluate_every,
                **self.scored.to_json(),
            },
            public_records=self.scored.public_records,
            evaluated_on=self.scored.on,
            stated=self.stated,
        )

    def begun(self, where: Path) -> RunFolder:
        """A new folder for the run; what it may cost is reserved first, where there is a budget."""
        refuse_used(where)
        if self.budget is not None:
            with Budget.open(self.budget) as account:
                account.reserve(self.schedule.event, run=self.name)
        return RunFolder.create(
            where,
            config=self.config,
            key=RunKey.fresh(),
            plan_event=self.schedule.event,
            delta=self.plan.delta,
            adjacency=self.plan.adjacency,
            fingerprint=self.scored.given.fingerprint,
        )

    def resumed(self, where: Path) -> RunFolder:
        """The folder of the run that is resumed; of another model, plan, method or data it is refused."""
        folder = RunFolder.open(where)
        try:
            folder.refuse_other(config=self.config, fingerprint=self.scored.given.fingerprint)
            folder.ledger.refuse_other(run=self.name, plan_event=self.schedule.event, adjacency=self.plan.adjacency)
        except BaseException:
            folder.close()
            raise
        return folder

    def trained(self, folder: RunFolder, callbacks: Sequence[Callback]) -> Run:
        """Train in the folder, to the end."""
        loop = Loop(self._training(folder), folder, callbacks)
        with _telling(callbacks, self._start(folder, loop), loop):
            end = loop.run()
        certificate = None
        if self.stated is not None:
            certificate = ending.certificate_for(
                self.schedule, self.plan, self.stated, folder=folder, budget=self.budget
            )
        weights = loop.trainee.weights()
        ending.write(folder, weights, certificate)
        self.model.load_state_dict(weights)
        return Run(
            directory=folder.files.directory,
            model=self.model,
            plan=self.plan,
            end=end,
            evaluations=tuple(loop.rows),
            certificate=certificate,
        )

    def _training(self, folder: RunFolder) -> Training:
        how, method = self.how, self.scored.method
        parts = self.scored.parts(folder).to(how.device)
        look = how.look(parts.preparation)
        size = how.physical_batch_for(self.plan)
        engine, runs = engines.engine_for(
            self.model,
            how.loss_fn,
            views=how.views,
            precision=how.precision,
            compiled=how.is_compiled_for(self.plan),
            clip=method.clipping,
            padding=_padding(parts, look, size),
        )
        return Training(
            model=self.model,
            engine=engine,
            method=method,
            mechanism=Mechanism.of(method, self.plan),
            schedule=self.schedule,
            epsilon_of=_epsilon_of(self.plan),
            private=parts.private,
            views=look.trained,
            physical_batch=size,
            averaging=how.averaging,
            scorer=self.scored.scorer(parts, how.loss_fn, look.seen),
            energy=self.scored.energy(parts, how.loss_fn, look.seen),
            patience=how.patience,
            checkpoint_seconds=how.checkpoint_seconds,
            has_diagnostics=how.diagnostics,
            environment=attempts.environment(how.device, physical_batch=size, step=runs),
        )

    def _start(self, folder: RunFolder, loop: Loop) -> Start:
        whole = accounting.bound(self.schedule.event, delta=self.plan.delta, adjacency=self.plan.adjacency)
        return Start(
            run=self.name,
            directory=folder.files.directory,
            method=self.scored.method.name,
            steps=self.plan.steps,
            first_step=loop.trainee.step,
            expected_batch_size=self.plan.expected_batch_size,
            epsilon=whole.epsilon,
            delta=self.plan.delta,
        )


def _padding(parts: GivenRecords, look: Look, size: int) -> tuple[Inputs, Any, Tensor]:
    """A physical batch in the shapes of the records, with nothing of any record in it."""
    inputs, targets = parts.private.batch(torch.zeros(size, dtype=torch.int64))
    views = look.trained(each(torch.zeros_like, inputs), torch.Generator(look.device))
    return views, each(torch.zeros_like, targets), torch.zeros(size, dtype=torch.bool)


def _epsilon_of(plan: Plan) -> Callable[[Event], float]:
    """ε of what is charged so far: from the plan's curve while that is steps alone, and counted anew otherwise."""
    curve = plan.curve()
    [step] = counted(plan.step_event)

    def epsilon_of(charged: Event) -> float:
        counts = counted(charged)
        if not counts.keys() - {step}:
            return curve.at(counts.get(step, 0))
        return accounting.bound(charged, delta=plan.delta, adjacency=plan.adjacency).epsilon

    return epsilon_of


@contextmanager
def _telling(callbacks: Sequence[Callback], start: Start, loop: Loop) -> Iterator[None]:
    """Tell the callbacks that it begins, and also that it ends where it ends badly."""
    for callback in callbacks:
        callback.started(start)
    try:
        yield
    except BaseException as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        trainee = loop.trainee
        end = End(step=trainee.step, accepted=trainee.accepted, epsilon_spent=loop.spent, reason=reason)
        for callback in callbacks:
            callback.ended(end)
        raise
