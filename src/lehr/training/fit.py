"""``lehr.fit``: a model, private records and an ε in; a trained model, a certificate and a run folder out.

>>> import tempfile, torch
>>> from lehr import fit
>>> folder = tempfile.TemporaryDirectory()
>>> run = fit("small_cnn", "digits", epsilon=8, delta=1e-4, steps=5, batch_size=64,
...     settings_chosen_on="fixed", directory=f"{folder.name}/run", quiet=True)
>>> run.end.reason, run.certificate.epsilon <= 8
('plan completed', True)
>>> folder.cleanup()
"""

from __future__ import annotations

import inspect
import secrets
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lehr import recipes
from lehr.certificates.guarantee import check_delta
from lehr.config import ALIASES, RunConfig, options
from lehr.data import Preparation
from lehr.data.records import check_count, sketch
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.planning.plan import PRIVATE
from lehr.planning.search_cost import SearchTrial
from lehr.reports.progress import TrainingProgress
from lehr.run.distributed import device_of_rank, is_rank_0, join_ranks, refuse_wrapped
from lehr.run.evaluation import Metrics
from lehr.run.folder import default_directory, read_config
from lehr.run.mechanism import Method
from lehr.run.phases import phases_from_json, with_phase_rates
from lehr.run.shape import Callback
from lehr.training import earlier_fits, prepare
from lehr.training.ending import Run
from lehr.training.prior import Prior
from lehr.training.records import RunRecords, load_records
from lehr.training.training_run import TrainingRun, train_run

_EVALUATION = ("acceptance_fraction", "evaluate_every", "held_out_fraction", "held_out_noise_multiplier")


def fit(
    model: nn.Module | str | None = None,
    data: object = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    batch_size: float | None = None,
    noise_multiplier: float | None = None,
    method: str | Method | None = None,
    learning_rate: float | None = None,
    clip_norm: float | None = None,
    optimizer: str | None = None,
    records: int | None = None,
    num_classes: int | None = None,
    owners: object = None,
    users: int | None = None,
    test: object = None,
    public: object = None,
    preparation: Preparation | None = None,
    loss_fn: LossFn | None = None,
    metrics: Metrics | None = None,
    device: str | torch.device | None = None,
    seed: int | None = None,
    directory: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    config: RunConfig | str | Path | None = None,
    trial_of: SearchTrial | None = None,
    **further: Any,
) -> Run:
    """Train ``model`` on private records so that the whole run costs at most ``epsilon`` at ``delta``.

    ``model`` is a module, which is trained in place, or the name of a network. ``data`` is a ``DataSet``, the name of
    a built-in one, a pair of inputs and targets (tensors, arrays, pandas frames; a tuple or a dictionary of inputs for
    a model with several), a table whose column ``target`` has the targets, a map-style data set of torch or Hugging
    Face, a ``DataLoader`` over one, or a streamed folder of images. For your own data, state their number in
    ``records``, which is public, and ``num_classes``. Numbers that are not given have defaults. ``batch_size`` is the
    expected size of a Poisson sample.

    With ``owners``, an id for each record or the name of a column, the unit of privacy is a user and not a record:
    steps draw users, each with at most ``records_per_user`` records, whose gradients are averaged before the clip.
    State the number of ``users``, which is public; ``batch_size`` and ``delta`` are then about users. With
    ``max_records_per_user``, steps draw records instead, of which each user has at most so many in the whole run; state
    the number of ``records``, counting at most so many of each user.

    ``task`` is classification, regression or multilabel. By default it is a regression, with squared error, if targets
    are floating point and ``num_classes`` is omitted. ``metrics`` maps names to functions of all outputs and targets
    of the ``test`` records; they are never computed on private records.

    ``test`` and ``public`` are records that you declare public. The run is evaluated on ``test``. Methods that use a
    public loss compute it on ``public``, or on a fraction of ``test`` (``acceptance_fraction``) that is then not used
    for evaluation. Without test records, ``held_out_fraction`` evaluates on private records, with charged noise.

    ``further`` are the other fields of ``RunConfig``: ``help(lehr.fit)`` lists them, and ``lehr train --help`` explains
    them. ``config`` is a ``RunConfig`` or a TOML file; keywords override it. ``trial_of`` names the search that this
    run belongs to: its guarantee then covers the whole search.

    Everything is written to ``directory``. After a crash, the same call with ``resume=True`` continues. There is a
    certificate if ``settings_chosen_on`` states how the settings were chosen ("fixed", "public" or "private").

    Under ``torchrun``, or after ``torch.distributed.init_process_group``, all processes train one model; each one must
    make the same call. Rank 0 writes the files and runs the callbacks; every rank returns the run. With ``sharded``,
    each rank holds a part of the weights; the model stays sharded, and the run folder has the whole weights.
    """
    base = config if isinstance(config, RunConfig) else RunConfig() if config is None else RunConfig.read(Path(config))
    chosen = base.with_options(
        epsilon=epsilon,
        delta=delta,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        noise_multiplier=noise_multiplier,
        method=method if isinstance(method, str) else None,
        learning_rate=learning_rate,
        clip_norm=clip_norm,
        optimizer=optimizer,
        records=records,
        num_classes=num_classes,
        owners=owners if isinstance(owners, str) else None,
        users=users,
        device=device,
        seed=seed,
        directory=directory,
        **further,
    )
    if isinstance(model, str):
        chosen = chosen.with_options(network=model)
    if isinstance(data, str):
        chosen, data = chosen.with_options(dataset=data), None
    ranks, run, privacy = join_ranks(), chosen.run, chosen.privacy
    own_method = _own_method(method, chosen) if isinstance(method, Method) else prepare.build_method(chosen)
    given = load_records(
        chosen,
        data,
        owners=None if isinstance(owners, str) else owners,
        test=test,
        public=public,
        preparation=preparation,
        dtype=torch.float32 if model is None or isinstance(model, str) else _dtype(model),
    )
    if not run.resume:  # a resumed run compares the records themselves
        check_count(stated=given.records, held=given.num_held, of=f"{given.drawn}s")
    progress = TrainingProgress(quiet=run.quiet)
    prior = None if chosen.data.prior is None else Prior.load(chosen.data.prior)
    chosen = _with_network_of(prior, chosen) if model is None else chosen
    if chosen.training.recipe is not None:
        chosen = _with_recipe(chosen, given, progress, own_model=None if isinstance(model, str) else model)
        own_method = _own_method(method, chosen) if isinstance(method, Method) else prepare.build_method(chosen)
    model, network = _model_and_network(model, chosen, given, prior)
    given = given.with_front_end(model, is_augmented=prepare.is_augmented(chosen.training))
    evaluation = prepare.build_evaluation(chosen, given, own_method, metrics)
    plan = prepare.build_plan(chosen, evaluation)
    if isinstance(chosen.method.schedule, str):
        chosen = prepare.with_schedule(chosen, plan)
        evaluation = replace(evaluation, method=prepare.build_method(chosen))
    stated = prepare.build_statements(chosen, evaluation, plan, prior)
    if given.declared == PRIVATE and plan.noise_multiplier:
        check_delta(plan.delta, records=given.records, is_certified=stated is not None)
    name = run.name or _default_name(f"{own_method.name} on {given.name}", chosen, is_alone=ranks.total == 1)
    where = run.directory if run.directory is not None else default_directory(name)
    device = prepare.check_device(run.device)
    decided = TrainingRun(
        name=name,
        config=chosen,
        model=model,
        network=network,
        loss_fn=prepare.default_loss(loss_fn, given.task),
        device=device if ranks.total == 1 else device_of_rank(device),
        evaluation=evaluation,
        plan=plan,
        stated=stated,
        prior=prior,
        trial_of=trial_of,
        ranks=ranks,
    )
    this_fit = earlier_fits.Fit(
        records=sketch(given.private),
        settings=_settings(decided),
        budget=None if privacy.budget is None else privacy.budget.resolve(),
    )
    if stated is not None and _is_chosen_on_records(decided, this_fit, resumed=where if run.resume else None):
        decided = replace(decided, stated=replace(stated, settings_chosen_on="private"), is_withheld=True)
    decided.check()
    if given.declared == PRIVATE:
        earlier_fits.note(this_fit)
    all_callbacks = tuple(callbacks) if run.silent else (*callbacks, progress)
    return train_run(decided, where, resume=run.resume, callbacks=all_callbacks)


def _signature() -> inspect.Signature:
    """The keywords above, followed by every other field of ``RunConfig``."""
    written = {name: each for name, each in inspect.signature(fit).parameters.items() if name != "further"}
    known = {*written, *(ALIASES.get(name, name) for name in written)}
    fields = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for name, each in options().items()
        if name not in known
    ]
    return inspect.Signature([*written.values(), *fields], return_annotation=Run)


fit.__signature__ = _signature()  # type: ignore[attr-defined]


def _with_recipe(
    config: RunConfig, records: RunRecords, progress: TrainingProgress, *, own_model: nn.Module | None
) -> RunConfig:
    """The configuration with what its recipe decides, except the network if the model is the user's own."""
    made, why = recipes.with_recipe(
        config,
        shape=records.shape,
        records=records.records,
        is_on_gpu=prepare.check_device(config.run.device).type == "cuda",
        has_prior=config.data.prior is not None,
        has_own_network=own_model is not None,
    )
    if why and is_rank_0() and not (config.run.silent or config.run.quiet):
        progress.say(f"recipe {made.training.recipe}, because {why}")
    return made if own_model is None else made.with_tables(model=config.model)


def _with_network_of(prior: Prior | None, config: RunConfig) -> RunConfig:
    """The configuration with the network that the prior was made for, unless it names one."""
    if prior is None or config.model.network is not None:
        return config
    settings = prior.description["settings"]
    own = {**settings["arguments"], "network": settings["network"], **config.model}
    return config.with_values(model=own)


def _model_and_network(
    model: nn.Module | str | None, config: RunConfig, records: RunRecords, prior: Prior | None
) -> tuple[nn.Module, tuple[str, dict[str, Any]] | None]:
    """The model with its first weights, and the name and arguments by which Lehr can build it, if it can."""
    network: tuple[str, dict[str, Any]] | None
    if model is None or isinstance(model, str):
        model, network = prepare.build_network(config, records)
    else:
        network = None if config.model.network is None else prepare.network_arguments(config, records)
    if prior is not None:
        prior.put_into(model)
    return model, network


def _own_method(method: Method, config: RunConfig) -> Method:
    """A finished method, whose settings cannot be given again."""
    accounting = "proven" if method.published is None else "published"
    if config.privacy.accounting not in (None, accounting):
        allowed = f"{accounting}, like the method, or omitted"
        raise InvalidValue("accounting", allowed=allowed, given=config.privacy.accounting)
    if config.method:
        raise InvalidValue("method", allowed="a name if its settings are given too", given=dict(config.method))
    return with_phase_rates(method, phases_from_json(config.training.phases))


def _default_name(name: str, config: RunConfig, *, is_alone: bool) -> str:
    """That of the run to resume; else this one, made unique for a budget, which takes every name once."""
    run = config.run
    if run.resume and run.directory is not None:
        return str(read_config(run.directory)["run"])
    return name if config.privacy.budget is None or not is_alone else f"{name} {secrets.token_hex(4)}"


def _dtype(model: nn.Module) -> torch.dtype:
    given: object = model
    if not isinstance(given, nn.Module):
        raise InvalidValue("model", allowed="a torch module or the name of a network", given=type(given).__name__)
    refuse_wrapped(given)
    types = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(types, torch.float32)


def _settings(run: TrainingRun) -> object:
    """What must be equal for two fits to have the same settings. Evaluation may differ."""
    recorded = run.recorded
    training = {key: value for key, value in recorded["training"].items() if key not in _EVALUATION}
    return [recorded["method"], recorded["plan"], recorded["model"], training]


def _is_chosen_on_records(run: TrainingRun, fit: earlier_fits.Fit, *, resumed: Path | None) -> bool:
    """Whether this process has chosen the settings on these records, whatever the user states."""
    assert run.stated is not None
    if run.evaluation.records.declared != PRIVATE or run.stated.settings_chosen_on == "private":
        return False
    if resumed is not None:
        before = read_config(resumed)["stated"]
        return bool(before) and before["settings_chosen_on"] == "private"
    if not earlier_fits.is_choice(fit):
        return False
    warnings.warn(
        "there is no certificate: this process has trained on these records before, with other settings, so these "
        f"settings are not {run.stated.settings_chosen_on!r}; give every fit the same budget=, or use `lehr search`",
        stacklevel=3,
    )
    return True
