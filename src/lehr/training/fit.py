"""``lehr.fit``: a model, private records and an ε in; a trained model, a certificate and a run folder out.

>>> import tempfile, torch
>>> from lehr import data, fit, networks
>>> folder = tempfile.TemporaryDirectory()
>>> run = fit(networks.build("small_cnn"), data.load("digits"), epsilon=8, delta=1e-4, steps=5, expected_batch_size=64,
...     settings_chosen_on="fixed", directory=f"{folder.name}/run", quiet=True)
>>> run.end.reason, run.certificate.epsilon <= 8
('plan completed', True)
>>> folder.cleanup()
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import accounting, attempts
from lehr.attempts import Schedule
from lehr.data import Preparation
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Event, counted
from lehr.gradients.batches import LossFn, each
from lehr.interfaces import Inputs
from lehr.loop import Loop, Training
from lehr.mechanism import Mechanism, Method
from lehr.methods import by_name
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.reports.certificate import Statements
from lehr.reports.progress import progress_for
from lehr.rng import RunKey
from lehr.run_folder import RunFolder, refuse_used
from lehr.run_shape import Callback, End, Start
from lehr.training import describing, ending, engines, public_plan
from lehr.training.ending import Run
from lehr.training.given_records import GivenRecords, given_records
from lehr.training.looks import Look
from lehr.training.scored import Scored
from lehr.update import averaging as averages
from lehr.update.averaging import Averaging


def fit(
    model: nn.Module,
    data: object,
    *,
    delta: float,
    epsilon: float | None = None,
    method: str | Method = "dpsgd",
    # the plan: where some of these are missing, they are found, or chosen sanely
    noise_multiplier: float | None = None,
    expected_batch_size: float | None = None,
    steps: int | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    # the records
    records: int | None = None,
    num_classes: int | None = None,
    preparation: Preparation | None = None,
    test: object = None,
    public: object = None,
    acceptance_fraction: float = 0.5,
    held_out_fraction: float = 0.0,
    held_out_noise_multiplier: float = 20.0,
    # how to train
    loss_fn: LossFn | None = None,
    augmentation: str | Any = "none",
    views: int = 1,
    averaging: Averaging | None = None,
    precision: str = "as_model",
    evaluate_every: int | None = None,
    patience: int | None = None,
    device: str | torch.device | None = None,
    physical_batch: int | None = None,
    compiled: bool | None = None,
    # the run
    directory: str | Path | None = None,
    resume: bool = False,
    name: str | None = None,
    data_name: str | None = None,
    network: tuple[str, Mapping[str, Any]] | None = None,
    settings_chosen_on: str | None = None,
    stated: Statements | None = None,
    budget: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    checkpoint_seconds: float = 10.0,
    diagnostics: bool = False,
) -> Run:
    """Train ``model`` on private records so that the whole run costs at most ``epsilon`` at ``delta``.

    ``data`` is a ``DataSet``, the name of a known one, a pair of tensors or a torch ``Dataset``. For data of your own
    state ``records``, how many there are, as a public number, and ``num_classes``. ``test`` and ``public`` are records
    that you declare public: scores come from the former; methods that look at a loss look at the latter, or at the
    ``acceptance_fraction`` of the former, which is then not scored on. Without test records, a ``held_out_fraction`` of
    the private ones can be scored on, with noise that is charged.

    Everything is written to ``directory`` as the run goes; after a crash, the same call with ``resume=True`` goes on.
    """
    chosen = by_name.named(method) if isinstance(method, str) else method
    given = given_records(
        data,
        records=records,
        test=test,
        public=public,
        num_classes=num_classes,
        preparation=preparation,
        name=data_name,
    )
    loss = loss_fn or partial(cross_entropy, reduction="none")
    place = _device(device)
    model.to(place)
    scoring = Scored(
        held_out_fraction=held_out_fraction,
        noise_multiplier=held_out_noise_multiplier,
        acceptance_fraction=acceptance_fraction,
        method=chosen,
        given=given,
        evaluate_every=evaluate_every,
    )
    plan = public_plan.plan_for(
        records=scoring.records_trained_on,
        delta=delta,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        steps=steps,
        adjacency=adjacency,
        beside=scoring.event_beside(steps),
    )
    schedule = scoring.schedule(plan)
    said = _statements(stated, settings_chosen_on, plan, scoring)
    if said is not None:
        ending.certificate_for(schedule, plan, said)  # what could not be certified is said now, not after the run
    physical = physical_batch or engines.physical_batch_for(plan, place)
    is_compiled = engines.is_worth_compiling(plan) if compiled is None else compiled
    transform = None if augmentation == "none" else augmentation
    averaged = averaging or averages.NoAverage()
    run = name or f"{chosen.name} on {given.name}"
    config = describing.config(
        run=run,
        method=chosen,
        plan=plan,
        data=given,
        model=describing.model_words(model, *(network or (None, {}))),
        options={
            "augmentation": None if transform is None else transform.to_json(),
            "views": views,
            "averaging": averaged.to_json(),
            "precision": precision,
            "evaluate_every": schedule.evaluate_every,
            "patience": patience,
            "acceptance_fraction": acceptance_fraction if scoring.splits_test else None,
            "held_out_fraction": held_out_fraction,
            "held_out_noise_multiplier": held_out_noise_multiplier if scoring.is_private else None,
        },
        public_records=scoring.public_records,
        evaluated_on=scoring.on,
        stated=said,
    )
    where = Path(directory) if directory is not None else _new_directory(run)
    account = None if budget is None else Path(budget)
    with _folder(where, config, resume=resume, schedule=schedule, plan=plan, given=given, budget=account) as folder:
        parts = scoring.parts(folder.key).to(place)
        look = Look(preparation=given.preparation, augmentation=transform, views=views, device=place)

        def padding() -> tuple[Inputs, Any, Tensor]:
            nobody = torch.zeros(physical, dtype=torch.int64)
            inputs, targets = parts.private.batch(nobody)
            shown = look.trained(each(torch.zeros_like, inputs), torch.Generator(place))
            return shown, targets, torch.zeros(physical, dtype=torch.bool)

        engine, runs = engines.engine_for(
            model, loss, views=views, precision=precision, compiled=is_compiled, clip=chosen.clipping, example=padding
        )
        training = Training(
            model=model,
            engine=engine,
            method=chosen,
            mechanism=Mechanism.of(chosen, plan),
            schedule=schedule,
            epsilon_of=_epsilon_of(plan),
            private=parts.private,
            views=look.trained,
            physical_batch=physical,
            averaging=averaged,
            scorer=scoring.scorer(parts, loss, look.seen),
            energy=scoring.energy(parts, loss, look.seen),
            patience=patience,
            checkpoint_seconds=checkpoint_seconds,
            has_diagnostics=diagnostics,
            environment=attempts.environment(place, physical=physical, runs=runs, precision=precision),
        )
        told = [*callbacks, progress_for(sys.stderr, quiet=quiet)]
        loop = Loop(training, folder, told)
        start = Start(
            run=run,
            directory=where,
            method=chosen.name,
            steps=plan.steps,
            first_step=loop.step,
            expected_batch_size=plan.expected_batch_size,
            epsilon=accounting.bound(schedule.event, delta=plan.delta, adjacency=plan.adjacency).epsilon,
            delta=plan.delta,
        )
        with _telling(told, start, loop):
            end = loop.run()
        certificate = None
        if said is not None:
            certificate = ending.certificate_for(schedule, plan, said, folder=folder, budget=account)
        model.load_state_dict(loop.weights())
        ending.write(folder, loop.weights(), certificate)
        return Run(
            directory=where, model=model, plan=plan, end=end, evaluations=tuple(loop.rows), certificate=certificate
        )


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(device)


def _new_directory(run: str) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{moment}-{run.replace(' ', '-').replace('/', '-')}"


def _statements(
    stated: Statements | None, settings_chosen_on: str | None, plan: Plan, scored: Scored
) -> Statements | None:
    """What the certificate passes on. Nobody but the user can say how the settings were chosen."""
    if stated is not None and settings_chosen_on is not None:
        raise InvalidValue("settings_chosen_on", allowed="left out beside stated", given=settings_chosen_on)
    if settings_chosen_on is None:
        return stated
    return Statements(
        settings_chosen_on=settings_chosen_on,
        records=plan.records,
        treated_as_public=("the number of records", *scored.declared_public),
    )


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


def _folder(
    where: Path,
    config: Mapping[str, Any],
    *,
    resume: bool,
    schedule: Schedule,
    plan: Plan,
    given: GivenRecords,
    budget: Path | None,
) -> RunFolder:
    """The folder of the run: a new one, its cost reserved first, or the one that is resumed."""
    if resume:
        folder = RunFolder.open(where)
        try:
            folder.refuse_other(config=config, fingerprint=given.fingerprint)
            folder.ledger.refuse_other(run=config["run"], plan_event=schedule.event, adjacency=plan.adjacency)
        except BaseException:
            folder.close()
            raise
        return folder
    refuse_used(where)
    if budget is not None:
        with Budget.open(budget) as account:
            account.reserve(schedule.event, run=config["run"])
    return RunFolder.create(
        where,
        config=config,
        key=RunKey.fresh(),
        plan_event=schedule.event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        fingerprint=given.fingerprint,
    )


@contextmanager
def _telling(callbacks: Sequence[Callback], start: Start, loop: Loop) -> Iterator[None]:
    """Tell the callbacks that it begins, and also that it ends where it ends badly."""
    for callback in callbacks:
        callback.started(start)
    try:
        yield
    except BaseException as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        end = End(step=loop.step, accepted=loop.accepted, epsilon_spent=loop.spent, reason=reason)
        for callback in callbacks:
            callback.ended(end)
        raise
