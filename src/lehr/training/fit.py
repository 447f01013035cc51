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
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import networks, schedules
from lehr.data import Preparation, overlap
from lehr.data.augmentation import Augmentation
from lehr.data.augmentation import named as augmentation_named
from lehr.data.checking import check_count
from lehr.data.private_pca import PrivatePCA
from lehr.distributed import device_of_rank, joined, refuse_wrapped
from lehr.errors import InvalidValue
from lehr.events import NOTHING
from lehr.files import strict_json
from lehr.gradients.batches import LossFn
from lehr.mechanism import Method
from lehr.methods import by_name
from lehr.planning.plan import Plan
from lehr.planning.search_cost import Trial
from lehr.reports.certificate import Statements
from lehr.reports.progress import progress_for
from lehr.reports.promising import check_delta
from lehr.run_folder import read_config
from lehr.run_shape import PRIVATE, Callback
from lehr.schedules import CONSTANT, Schedule
from lehr.training import describing, earlier_fits
from lehr.training.ending import Run
from lehr.training.given_records import given_records
from lehr.training.how import How
from lehr.training.planned import Planned
from lehr.training.projecting import a_private_pca
from lehr.training.ranked import trained
from lehr.training.scored import Scored
from lehr.update.averaging import Averaging, NoAverage
from lehr.update.averaging import from_json as averaging_from_json


def fit(
    model: nn.Module | str,
    data: object,
    *,
    delta: float | None = None,
    epsilon: float | None = None,
    method: str | Method = "dpsgd",
    accounting: str | None = None,
    # the plan: where some of these are missing, they are found, or chosen sanely
    noise_multiplier: float | None = None,
    expected_batch_size: float | None = None,
    steps: int | None = None,
    plan: Plan | None = None,
    sampling: str = "poisson",
    noise_schedule: Schedule | Mapping[str, Any] = CONSTANT,
    private_pca: PrivatePCA | Mapping[str, Any] | None = None,
    # the records
    records: int | None = None,
    declared: str = PRIVATE,
    num_classes: int | None = None,
    preparation: Preparation | None = None,
    test: object = None,
    public: object = None,
    acceptance_fraction: float = 0.5,
    held_out_fraction: float = 0.0,
    held_out_noise_multiplier: float = 20.0,
    # how to train
    loss_fn: LossFn | None = None,
    augmentation: str | Augmentation = "none",
    views: int = 1,
    averaging: Averaging | Mapping[str, Any] | None = None,
    precision: str = "as_model",
    evaluate_every: int | None = None,
    patience: int | None = None,
    device: str | torch.device | None = None,
    physical_batch: int | None = None,
    compiled: bool | None = None,
    sharded: bool = False,
    # the run
    directory: str | Path | None = None,
    resume: bool = False,
    name: str | None = None,
    data_name: str | None = None,
    network: tuple[str, Mapping[str, Any]] | None = None,
    settings_chosen_on: str | None = None,
    stated: Statements | None = None,
    budget: str | Path | None = None,
    trial_of: Trial | None = None,
    callbacks: Sequence[Callback] = (),
    quiet: bool = False,
    silent: bool = False,
    checkpoint_seconds: float = 10.0,
    diagnostics: bool = False,
    cryptographic_on_gpu: bool = False,
) -> Run:
    """Train ``model`` on private records so that the whole run costs at most ``epsilon`` at ``delta``.

    ``model`` is a module, which is trained in place, or the name of a network (``lehr.networks``). ``data`` is a
    ``DataSet``, the name of a known one, a pair of tensors, a torch ``Dataset``, or a folder of images that stays on
    the disk (``lehr.data.streamed_folder``). For data of your own state ``records``, how many there are, as a public
    number, and ``num_classes``. ``test`` and ``public`` are records that you declare public: scores come from the
    former; methods that look at a loss look at the latter, or at the ``acceptance_fraction`` of the former, which is
    then not scored on. Without test records, a ``held_out_fraction`` of the private ones can be scored on, with noise
    that is charged.

    Records that need no protection may be ``declared`` "public" or "synthetic": nothing is then promised to anybody.
    Only on such records may a ``plan`` be a simulation (``lehr.planning.simulation``).

    A ``plan`` that was made before takes the place of the numbers; otherwise ``noise_schedule`` multiplies the noise
    step by step, and is counted. ``private_pca`` fills the projection of a network such as ``projected_mlp`` before the
    first step, with noise that is charged.

    With ``quiet`` nothing is shown but why a run ended early, and with ``silent`` not that either: a search tells of
    its trials itself, or must not. Everything is written to ``directory`` as the run goes; after a crash, the same call
    with ``resume=True`` goes on. There is a certificate where ``settings_chosen_on`` says how the settings were chosen
    ("fixed", "public" or "private"), which nobody but you can know, and none where it does not.
    ``accounting="published"`` plans the run by the rule of the method's paper; the result then has that number and the
    proven one, and says which is which. ``trial_of`` says of which search on these records the run is a trial
    (``lehr.planning.search_cost``): what is promised is then promised for the whole search. With
    ``cryptographic_on_gpu`` a GPU's noise comes from the same cryptographic stream as a CPU's, which is slower.

    Started by ``torchrun``, or after ``torch.distributed.init_process_group``, the processes train one model together
    (``lehr.distributed``); each must make the same call. The first writes, tells the callbacks and pays; all return.
    With ``sharded`` each of them holds a share of the weights, of the optimizer and of the sums only, by torch's
    ``fully_shard`` (``lehr.sharded``); the model is then left so, and the whole weights are in the run's folder.
    """
    ranks = joined()
    chosen = _method(method, accounting)
    given = given_records(
        data,
        records=records,
        test=test,
        public=public,
        num_classes=num_classes,
        preparation=preparation,
        name=data_name,
        dtype=torch.float32 if isinstance(model, str) else _dtype(model),
        declared=declared,
    )
    if not resume:  # then they must be the very same records
        check_count(stated=given.records, held=len(given.private))
    if isinstance(model, str):
        network = (model, {"num_classes": given.num_classes})
        model = networks.build(model, num_classes=given.num_classes)
    how = How(
        loss_fn=loss_fn or partial(cross_entropy, reduction="none"),
        augmentation=augmentation_named(augmentation) if isinstance(augmentation, str) else augmentation,
        views=views,
        averaging=_averaging(averaging),
        precision=precision,
        patience=patience,
        device=a_device(device) if ranks.total == 1 else device_of_rank(a_device(device)),
        physical_batch=physical_batch,
        compiled=compiled,
        checkpoint_seconds=checkpoint_seconds,
        diagnostics=diagnostics,
        cryptographic_on_gpu=cryptographic_on_gpu,
    )
    pca = a_private_pca(private_pca)
    scored = Scored(
        given=given,
        method=chosen,
        held_out_fraction=held_out_fraction,
        noise_multiplier=held_out_noise_multiplier,
        acceptance_fraction=acceptance_fraction,
        evaluate_every=evaluate_every,
        beforehand=NOTHING if pca is None else pca.event(),
    )
    numbers = (epsilon, delta, noise_multiplier, expected_batch_size, steps)
    plan = _a_plan(plan, scored, *numbers, has_schedule=noise_schedule != CONSTANT) or scored.plan(
        delta=_delta(delta, chosen),
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        steps=steps,
        sampling=sampling,
        noise_schedule=schedules.from_json(noise_schedule, name="noise_schedule")
        if isinstance(noise_schedule, Mapping)
        else noise_schedule,
    )
    where = Path(directory) if directory is not None else _new_directory(name or f"{chosen.name} on {given.name}")
    fitted = earlier_fits.Fit(
        records=overlap.sketch(given.private),
        settings=_settings(chosen, plan, model, network, how),
        budget=None if budget is None else Path(budget).resolve(),
    )
    said = _statements(stated, settings_chosen_on, scored)
    if declared == PRIVATE and plan.noise_multiplier:
        check_delta(plan.delta, records=given.records, is_certified=said is not None)
    is_choice = said is not None and _is_choice(said, fitted, declared=declared, resumed=where if resume else None)
    run = Planned(
        name=name or f"{chosen.name} on {given.name}",
        model=model,
        network=network,
        how=how,
        scored=scored,
        plan=plan,
        stated=replace(said, settings_chosen_on="private") if said is not None and is_choice else said,
        is_withheld=is_choice,
        budget=None if budget is None or ranks.number else Path(budget),  # the first pays for all
        private_pca=pca,
        trial_of=trial_of,
        ranks=ranks,
        is_sharded=sharded,
    )
    if declared == PRIVATE:
        earlier_fits.note(fitted)
    told = tuple(callbacks) if silent else (*callbacks, progress_for(sys.stderr, quiet=quiet))
    return trained(run, where, resume=resume, callbacks=told)


def _method(method: str | Method, accounting: str | None) -> Method:
    if isinstance(method, str):
        return by_name.named(method, **({} if accounting is None else {"accounting": accounting}))
    said = "proven" if method.published is None else "published"
    if accounting not in (None, said):
        allowed = f"{said}, as the method was made, or left out"
        raise InvalidValue("accounting", allowed=allowed, given=accounting)
    return method


def _a_plan(plan: Plan | None, scored: Scored, *numbers: float | None, has_schedule: bool) -> Plan | None:
    """A plan that was made before, in the place of its numbers."""
    if plan is not None and (has_schedule or any(number is not None for number in numbers)):
        raise InvalidValue(
            "plan", allowed="given alone: it has its own δ, noise, batch, steps and schedule", given=plan
        )
    if plan is not None and plan.records != scored.records_trained_on:
        raise InvalidValue("plan", allowed=f"one of {scored.records_trained_on} records", given=plan.records)
    return plan


def _delta(delta: float | None, method: Method) -> float:
    if delta is None and method.is_private:
        raise InvalidValue("delta", allowed="given: a number well below one over the number of records", given=None)
    return 1e-5 if delta is None else delta  # without privacy ε is infinite at any δ


def a_device(device: str | torch.device | None) -> torch.device:
    """The device that is asked for, or the best that is there."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:  # no such device, or torch was built without it
        raise InvalidValue("device", allowed="one that torch can use here, such as cpu", given=str(device)) from error
    return found


def _dtype(model: nn.Module) -> torch.dtype:
    given: object = model
    if not isinstance(given, nn.Module):
        raise InvalidValue("model", allowed="a torch module", given=type(given).__name__)
    refuse_wrapped(given)
    types = (parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    return next(types, torch.float32)


def _averaging(given: Averaging | Mapping[str, Any] | None) -> Averaging:
    if isinstance(given, Mapping | str):  # in words, as a file has it
        return averaging_from_json(given)
    return NoAverage() if given is None else given


def _new_directory(run: str) -> Path:
    moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{moment}-{run.replace(' ', '-').replace('/', '-')}"


def _settings(
    method: Method, plan: Plan, model: nn.Module, network: tuple[str, Mapping[str, Any]] | None, how: How
) -> object:
    words = describing.model_words(model, how.loss_fn, *(network or (None, {})))
    return strict_json.loads(strict_json.dumps([describing.method_words(method), plan.to_json(), words, how.to_json()]))


def _is_choice(stated: Statements, fitted: earlier_fits.Fit, *, declared: str, resumed: Path | None) -> bool:
    """Whether this process has seen that the settings were chosen on the records, whatever is stated."""
    if declared != PRIVATE or stated.settings_chosen_on == "private":
        return False
    if resumed is not None:
        before = read_config(resumed)["stated"]
        return bool(before) and before["settings_chosen_on"] == "private"
    if not earlier_fits.is_choice(fitted):
        return False
    warnings.warn(
        "there is no certificate: this process has trained on these records before, with other settings, so that these "
        f"are not {stated.settings_chosen_on!r}; give every fit the same budget=, or use `lehr search`",
        stacklevel=3,
    )
    return True


def _statements(stated: Statements | None, settings_chosen_on: str | None, scored: Scored) -> Statements | None:
    """What the certificate passes on. Nobody but the user can say how the settings were chosen."""
    if stated is not None and settings_chosen_on is not None:
        raise InvalidValue("settings_chosen_on", allowed="left out beside stated", given=settings_chosen_on)
    if settings_chosen_on is None:
        return None if stated is None else stated.of_records(scored.given.records)
    return Statements(
        settings_chosen_on=settings_chosen_on,
        records=scored.given.records,
        treated_as_public=("the number of records", *scored.declared_public),
    )
