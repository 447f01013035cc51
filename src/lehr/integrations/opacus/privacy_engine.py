"""``PrivacyEngine``: makes a training loop private.

>>> import torch
>>> from torch.utils.data import TensorDataset
>>> records = TensorDataset(torch.randn(64, 5), torch.randint(0, 2, (64,)))
>>> model = nn.Linear(5, 2)
>>> engine = PrivacyEngine()
>>> model, optimizer, loader = engine.make_private(
...     module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
...     data_loader=DataLoader(records, batch_size=8), noise_multiplier=1.0, max_grad_norm=1.0)
>>> for inputs, targets in loader:
...     optimizer.zero_grad()
...     nn.functional.cross_entropy(model(inputs), targets).backward()
...     _ = optimizer.step()
>>> round(engine.get_epsilon(delta=1e-3), 2)
1.78

Charging, sampling and releasing is done by ``lehr.run.private_run.PrivateRun``; this module translates Opacus's
arguments, accountants and checkpoints.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lehr import accounting, validate
from lehr.accounting.claims import Claim, Premise, Standing
from lehr.accounting.events import NOTHING, Adjacency, Event, Gaussian, PoissonSampled, Repeated, counted, together
from lehr.certificates import issuing
from lehr.certificates.certificate import Certificate, SharedBudget, Statements, write_certificate
from lehr.certificates.guarantee import check_delta
from lehr.errors import DamagedFile, InvalidValue, NotPrivate
from lehr.files.append_only import check_name
from lehr.integrations import record_independence
from lehr.integrations.external_loop import check_optimizer, make_statements
from lehr.integrations.opacus.accountants import BUILT_IN, History, calibrate, create_accountant
from lehr.integrations.opacus.clipping import QuantileClip
from lehr.integrations.opacus.data_loader import DPDataLoader, PrivateLoader, make_run_key, shuffled_loader
from lehr.integrations.opacus.grad_sample import GradSampleHooks, GradSampleModule, records_first
from lehr.integrations.opacus.migration import USE_TORCHRUN, Notes, warn_unproven
from lehr.integrations.opacus.optimizers import DPOptimizer
from lehr.integrations.opacus.utils import DPLossFastGradientClipping
from lehr.integrations.opacus.validators import ModuleValidator
from lehr.privacy.clipping import LARGEST_CLIP_NORM
from lehr.privacy.rng import RunKey
from lehr.run.private_run import OpenRunSpec, PrivateRun
from lehr.run.replay import OpenCharger
from lehr.training import ending

MODES = ("hooks", "functorch", "ew", "ghost")
_SHUFFLED = (
    "batches are shuffled, and ε is computed as if they were Poisson-sampled, which understates it by up to four times"
)
_PADDED = (
    "collate_fn pads each record to the longest of its batch: model and loss must ignore the padding, or a record's "
    "gradient depends on the others, and ε does not hold"
)
_SEEDED = "the randomness comes from the user's generator, whose seed may be known"
# Entries of a checkpoint besides Opacus's own.
_ENGINES = "engines"  # whose steps are in the checkpoint
_CLIP_NORM = "adaptive_clip_norm"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``make_private`` and ``make_private_with_epsilon``.

    ``clipping`` is "flat", "per_layer", "automatic" (Bu et al. 2023) or "adaptive" (Andrew et al. 2021), which needs
    the last five. ``num_passes`` is how often the model is run on the same records for one loss, as in a GAN's
    discriminator or a Siamese network. ``accept_unproven`` permits shuffled batches (``poisson_sampling=False``) and a
    ``noise_generator``, without any guarantee.
    """

    max_grad_norm: float | Sequence[float]
    batch_first: bool = True
    loss_reduction: str = "mean"
    poisson_sampling: bool = True
    clipping: str = "flat"
    noise_generator: torch.Generator | None = None
    grad_sample_mode: str = "hooks"
    wrap_model: bool = True
    rand_on_empty: bool = False
    num_passes: int = 1
    accept_unproven: bool = False
    target_unclipped_quantile: float | None = None
    clipbound_learning_rate: float | None = None
    max_clipbound: float | None = None
    min_clipbound: float | None = None
    unclipped_num_std: float | None = None

    def __post_init__(self) -> None:
        validate.true_or_false(poisson_sampling=self.poisson_sampling)
        validate.one_of(MODES, grad_sample_mode=self.grad_sample_mode)
        validate.count(num_passes=self.num_passes)
        _ = self.quantile  # raises now if it is incomplete
        if self.unproven and not self.accept_unproven:
            allowed = "True for settings without a guarantee: " + "; ".join(self.unproven)
            raise InvalidValue("accept_unproven", allowed=allowed, given=self.accept_unproven)

    @property
    def quantile(self) -> QuantileClip | None:
        """The settings of adaptive clipping: all, or none."""
        settings = {field.name: getattr(self, field.name) for field in fields(QuantileClip)}
        missing = sorted(name for name, value in settings.items() if value is None)
        if missing and len(missing) < len(settings):
            raise InvalidValue("adaptive clipping", allowed="all of its settings, or none", given=f"without {missing}")
        return None if missing else QuantileClip(**settings)

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why nothing is proven with these options; empty if it is."""
        shuffled = () if self.poisson_sampling else (_SHUFFLED,)
        return shuffled if self.noise_generator is None else (*shuffled, _SEEDED)


class PrivacyEngine:
    """Opacus's engine over Lehr's: hooked gradients, keyed sampling and noise, Lehr's accountants and ledgers.

    ``secure_mode`` draws the noise of a GPU from the cryptographic stream that a CPU always uses, which is slower. With
    a ``directory``, every step is charged to a ledger there before it is released, and the steps of earlier processes
    count; ``delta`` is then the δ of the ledgers. ``notes`` lists what differs from Opacus.

    If ``settings_chosen_on`` says how the settings were chosen ("fixed", "public" or "private"), or ``stated`` says
    more, ``finish()`` returns a certificate and writes it into the directory. With a ``budget``, all planned steps are
    reserved there under ``name``, and ``finish()`` gives back what was not used. Both need a plan:
    ``make_private_with_epsilon``, or ``make_private`` with ``epochs``.
    """

    def __init__(
        self,
        *,
        accountant: str = "prv",
        secure_mode: bool = False,
        directory: str | Path | None = None,
        delta: float | None = None,
        name: str = "private loop",
        settings_chosen_on: str | None = None,
        stated: Statements | None = None,
        budget: str | Path | None = None,
    ) -> None:
        self._name, self._delta = check_name(name=name), delta
        self._statements = partial(make_statements, settings_chosen_on, stated)
        self._is_certified = self._statements(records=1) is not None
        self._budget = None if budget is None else Path(budget)
        self._directory = None if directory is None else Path(directory)
        # A training with a certificate or a budget, its plan, and what was done to the records before it.
        self._training: tuple[PrivateRun, Repeated, Event] | None = None
        self._id = RunKey.fresh().fingerprint(b"engine")  # by which it knows its own checkpoints
        self._checkpointed = {self._id}
        self._taken: Counter[tuple[float, float]] = Counter()
        self.certificate: Certificate | None = None
        self.accountant = create_accountant(accountant)
        self.secure_mode = validate.true_or_false(secure_mode=secure_mode)
        self.notes = Notes()
        self.charger = OpenCharger(folder=self._directory, delta=delta)
        for atom, count in counted(self.charger.before).items():
            if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
                self.accountant.history.append((atom.event.noise_multiplier, atom.sampling_probability, count))
            else:
                self.notes.mark_unproven(str(atom))
        if accountant == "prv":
            self.notes.add('accountant="prv": privacy loss distributions, which are at least as tight')
        if accountant == "gdp":
            self.notes.add('accountant="gdp": an estimate, never a guarantee')
        if accountant not in BUILT_IN:
            self.notes.mark_unproven(f"the accountant {accountant!r} is the user's own")

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        epochs: int | None = None,
        **options: Any,
    ) -> Any:
        """The private model, optimizer and data loader; with mode "ghost" also the criterion, before the loader.

        ``options`` are those of ``Options``. With ``epochs``, further steps are refused.
        """
        chosen = Options(**options)
        loader, steps = self._private_loader(data_loader, chosen, epochs)
        return self._make_private(module, optimizer, criterion, loader, chosen, noise_multiplier, steps)

    def make_private_with_epsilon(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        epsilon_tolerance: float = 0.01,
        **options: Any,
    ) -> Any:
        """``make_private`` with the least noise under which all epochs cost at most ``target_epsilon``.

        Earlier steps of this engine count. Further steps, and steps with other noise, are refused.
        """
        chosen = Options(**options)
        validate.positive(epsilon_tolerance=epsilon_tolerance)
        loader, steps = self._private_loader(data_loader, chosen, epochs)
        noise_multiplier = calibrate(
            target_epsilon,
            target_delta,
            accountant=self.accountant.mechanism(),
            sampling_probability=loader.sampling.sampling_probability,
            steps=validate.count(steps=steps),
            before=self.accountant.event(),
        )
        self._delta = target_delta
        return self._make_private(module, optimizer, criterion, loader, chosen, noise_multiplier, steps)

    def finish(self) -> Certificate | None:
        """End the training: close the ledgers, settle the budget, and return a certificate if there is one.

        The certificate covers all planned steps, however many were taken; there is none without a statement on how the
        settings were chosen, or without a step. No step can be taken afterwards. ``finish`` can be repeated.
        """
        self.charger.close()
        if self._training is not None and self.certificate is None:
            run, planned, before = self._training
            run.finish()
            if self._charged() != NOTHING:
                shared = None if self._budget is None else ending.shared_budget(self._budget, self._name)
                records = run.num_records
                self.certificate = self._issue(planned, before, self._charged(), records=records, shared=shared)
                if self.certificate is not None and self._directory is not None:
                    write_certificate(self._directory / "certificate.json", self.certificate, overwrite=True)
        return self.certificate

    def get_epsilon(self, delta: float) -> float:
        """ε of all steps so far. It warns if nothing is proven."""
        for reason in self.notes.unproven:
            warn_unproven(reason)
        return self.accountant.get_epsilon(delta)

    def claim(self, delta: float) -> Claim:
        """The claim for all steps so far, with its theorem and its premises."""
        claimed = accounting.claim(self.accountant.event(), delta=delta)
        broken = (
            Premise("every step is what it is counted as", Standing.BROKEN, reason) for reason in self.notes.unproven
        )
        return replace(claimed, premises=(*claimed.premises, *broken))

    def is_compatible(
        self, *, module: nn.Module, optimizer: Optimizer | None, data_loader: DataLoader[Any] | None
    ) -> bool:
        """Whether a model can be trained privately."""
        return ModuleValidator.is_valid(module)

    def validate(self, *, module: nn.Module, optimizer: Optimizer | None, data_loader: DataLoader[Any] | None) -> None:
        """Raise an error if a model cannot be trained privately."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of the model in which layers that cannot be private are replaced."""
        return ModuleValidator.fix_and_validate(module)

    def save_checkpoint(
        self,
        *,
        path: str | os.PathLike[str] | IO[bytes],
        module: nn.Module,
        optimizer: DPOptimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        checkpoint_dict: dict[str, Any] | None = None,
        module_state_dict_kwargs: Mapping[str, Any] | None = None,
        torch_save_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Write weights, optimizer, schedules and the steps so far. All of it is public: it holds no key."""
        state = dict(checkpoint_dict or {})
        state["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        state["privacy_accountant_state_dict"] = self.accountant.state_dict()
        state[_ENGINES] = sorted(self._checkpointed)
        for name, part in _checkpoint_parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            state[name] = part.state_dict()
        if optimizer is not None and optimizer.clipping == "adaptive":
            state[_CLIP_NORM] = optimizer.max_grad_norm
        torch.save(state, path, **(torch_save_kwargs or {}))

    def load_checkpoint(
        self,
        *,
        path: str | os.PathLike[str] | IO[bytes],
        module: nn.Module,
        optimizer: DPOptimizer | None = None,
        noise_scheduler: Any = None,
        grad_clip_scheduler: Any = None,
        module_load_dict_kwargs: Mapping[str, Any] | None = None,
        torch_load_kwargs: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Resume from a checkpoint, with fresh draws and fresh noise, which are charged.

        Steps are never forgotten: if this engine or its directory knows of more steps than the checkpoint, they stay
        counted; if the checkpoint is of another training, both count. Only tensors and plain values are read. Noise
        multiplier and clip norm are those of ``make_private``, advanced by the schedulers; the clip norm of adaptive
        clipping is restored.
        """
        state = _read_checkpoint(path, **(torch_load_kwargs or {}))
        module.load_state_dict(state["module_state_dict"], **(module_load_dict_kwargs or {}))
        saved = dict(state["privacy_accountant_state_dict"])
        history = list(saved.get("history", ()))
        if self._id not in state.get(_ENGINES, ()):  # another engine wrote it, without the steps of this one
            history += [(*kind, steps) for kind, steps in self._taken.items()]
        self._checkpointed |= set(state.pop(_ENGINES, ()))
        self.accountant.load_state_dict({**saved, "history": _no_fewer_steps(history, self.accountant.history)})
        for name, part in _checkpoint_parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            if name in state:
                part.load_state_dict(state.pop(name))
        if optimizer is not None:
            if optimizer.run is not None:
                optimizer.run.count_taken(self.accountant.event())
            optimizer.max_grad_norm = state.pop(_CLIP_NORM, optimizer.max_grad_norm)
        if self._training is not None:
            done = self.accountant.event()
            if together(done) != self._charged():
                allowed = "one of this training: certificate and budget cover no other steps"
                raise InvalidValue("checkpoint", allowed=allowed, given=str(done))
        return state

    def _private_loader(
        self, data_loader: DataLoader[Any], options: Options, epochs: int | None
    ) -> tuple[PrivateLoader, int | None]:
        """The loader of the draws, and the number of steps of all epochs."""
        loader: PrivateLoader
        if not options.poisson_sampling:
            loader = shuffled_loader(data_loader)
        elif isinstance(data_loader, DPDataLoader):
            loader = data_loader.copy()
        else:
            if data_loader.generator is not None:
                self.notes.add("the generator of the data loader is not used: sampling is keyed by a secret key")
            loader = DPDataLoader.from_data_loader(
                data_loader, batch_first=options.batch_first, rand_on_empty=options.rand_on_empty
            )
        return loader, None if epochs is None else validate.count(epochs=epochs) * loader.batch_sampler.steps

    def _make_private(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        loader: PrivateLoader,
        options: Options,
        noise_multiplier: float,
        steps: int | None,
    ) -> Any:
        self._note_differences(options)
        _check_parameters(module, optimizer)
        self.validate(module=module, optimizer=optimizer, data_loader=loader)
        self._check_collation(loader, batch_first=options.batch_first)
        model = _hooked_model(module, options)
        hooks = model.hooks if isinstance(model, GradSampleModule) else model
        try:
            private = DPOptimizer(
                optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
                noise_multiplier=noise_multiplier,
                max_grad_norm=options.max_grad_norm,
                expected_batch_size=loader.sampling.expected_batch_size,
                loss_reduction=options.loss_reduction,
                clipping=options.clipping,
                quantile=options.quantile,
                engine=hooks,
                tracker=loader.tracker,
            )
            chosen = nn.CrossEntropyLoss(reduction=options.loss_reduction) if criterion is None else criterion
            loss = DPLossFastGradientClipping(model, private, chosen, options.loss_reduction)
            event = loader.sampling.event(Gaussian(noise_multiplier))
            planned = None if steps is None else Repeated(event, steps)
            # Last of all, so that no budget pays for a loop that cannot be made.
            loader.tracker.run = self._open_run(loader, options, planned)
        except BaseException:
            if model is not module:
                hooks.remove_hooks()
            raise
        hooks.is_counted = True
        return (model, private, loss, loader) if options.grad_sample_mode == "ghost" else (model, private, loader)

    def _open_run(self, loader: PrivateLoader, options: Options, planned: Repeated | None) -> PrivateRun:
        records = loader.sampling.records
        if self._delta is not None:
            check_delta(self._delta, records=records, is_certified=self._is_certified)
        before = self.accountant.event()
        needs_plan = self._is_certified or self._budget is not None
        if needs_plan:
            if planned is None:
                allowed = "given: a certificate and a budget cover a plan, not wherever a loop stops"
                raise InvalidValue("epochs", allowed=allowed, given=None)
            if options.unproven or self.notes.unproven:
                raise InvalidValue("accept_unproven", allowed="False with a certificate or a budget", given=True)
            if self._training is not None:
                raise InvalidValue("make_private", allowed="called once with a certificate or a budget", given="again")
            if self._budget is not None and before != NOTHING:
                allowed = "None if this engine, or its directory, has taken steps that the budget did not reserve"
                raise InvalidValue("budget", allowed=allowed, given=str(before))
            self._issue(planned, before, before, records=records)  # raises now if there can be no certificate
        run = PrivateRun.open(
            OpenRunSpec(
                sampling=loader.sampling,
                num_records=records,
                physical_batch=records,
                charger=self.charger,
                key=make_run_key(options.noise_generator, secure=self.secure_mode),
                name=self._name,
                planned=planned,
                budget=self._budget,
                unproven="; ".join(options.unproven) or None,
                on_charge=self._count,
            )
        )
        if needs_plan and planned is not None:
            self._training = (run, planned, before)
        return run

    def _charged(self) -> Event:
        """What was done to the records before and during the training that has a plan."""
        assert self._training is not None
        run, planned, before = self._training
        return together(before, Repeated(planned.event, run.num_taken) if run.num_taken else NOTHING)

    def _issue(
        self, planned: Event, before: Event, charged: Event, *, records: int, shared: SharedBudget | None = None
    ) -> Certificate | None:
        """The certificate for everything before and everything planned; None without statements."""
        stated = self._statements(records=records)
        if stated is None:
            return None
        return issuing.issue(
            together(before, planned),
            delta=validate.delta(delta=self._delta),
            adjacency=Adjacency.ADD_OR_REMOVE_ONE,
            stated=stated,
            charged=charged,
            budget=shared,
        )

    def _count(self, event: Event) -> None:
        """Count a step that was charged in the accountant."""
        assert isinstance(event, PoissonSampled)
        assert isinstance(event.event, Gaussian)
        noise_multiplier, sample_rate = event.event.noise_multiplier, event.sampling_probability
        self._taken[noise_multiplier, sample_rate] += 1
        self.accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    def _check_collation(self, loader: PrivateLoader, *, batch_first: bool) -> None:
        def collate(records: list[Any]) -> Any:
            batch = loader.collate_fn(records)
            return batch if batch_first else records_first(batch)

        try:
            records = record_independence.sample_records(loader.dataset, loader.sampling.records)
            found = record_independence.check_collation(collate, records)
        except NotPrivate:
            raise
        except Exception as error:  # such as from a file that only workers open; its message may quote a record
            self.notes.add(f"collate_fn was not checked for mixing records: {type(error).__name__}")
            return
        if found is record_independence.CollationResult.PADDED:
            self.notes.warn(_PADDED)
        if found is record_independence.CollationResult.UNKNOWN:
            self.notes.add(f"collate_fn could not be checked for mixing records: {found.value}")

    def _note_differences(self, options: Options) -> None:
        for reason in options.unproven:
            self.notes.mark_unproven(reason)
        mode, norm = options.grad_sample_mode, options.max_grad_norm
        if mode != "hooks":
            self.notes.add(f"grad_sample_mode={mode!r}: all modes use one engine, which stores no per-record gradients")
        if (norm if isinstance(norm, int | float) else max(norm)) > LARGEST_CLIP_NORM:
            self.notes.add(f"max_grad_norm above {LARGEST_CLIP_NORM:g}: reduced to {LARGEST_CLIP_NORM:g}")
        if self.secure_mode:
            self.notes.add("secure_mode: noise always comes from SHAKE-128; now on a GPU too")


def _hooked_model(module: nn.Module, options: Options) -> GradSampleModule | GradSampleHooks:
    """The model with hooks, wrapped or not; a model that is wrapped already stays as it is."""
    settings = {name: getattr(options, name) for name in ("batch_first", "loss_reduction", "num_passes")}
    if isinstance(module, GradSampleModule):
        for name, value in settings.items():
            if getattr(module, name) != value:
                allowed = f"wrapped with {name}={value!r}, or not wrapped yet"
                raise InvalidValue("module", allowed=allowed, given=getattr(module, name))
        return module
    return (GradSampleModule if options.wrap_model else GradSampleHooks)(module, **settings)


def _check_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    if isinstance(module, DistributedDataParallel):
        allowed = f"the model itself; for several processes use {USE_TORCHRUN}"
        raise InvalidValue("module", allowed=allowed, given="DistributedDataParallel")
    own = {id(parameter) for parameter in module.parameters()}
    if not all(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        given = "Module parameters are different than optimizer Parameters"  # Opacus's message
        raise InvalidValue("optimizer", allowed="one over parameters of the module", given=given)
    check_optimizer(module, optimizer)


def _checkpoint_parts(optimizer: Any, noise_scheduler: Any, grad_clip_scheduler: Any) -> dict[str, Any]:
    """The parts of a checkpoint besides the weights, by their names there."""
    named = {
        "optimizer_state_dict": optimizer,
        "noise_scheduler_state_dict": noise_scheduler,
        "grad_clip_scheduler_state_dict": grad_clip_scheduler,
    }
    return {name: part for name, part in named.items() if part is not None}


def _read_checkpoint(path: str | os.PathLike[str] | IO[bytes], **options: Any) -> dict[str, Any]:
    """The content of a checkpoint. Files that would run code when loaded are refused."""
    if options.get("weights_only", True) is not True:
        allowed = "without weights_only=False: a file may hold code"
        raise InvalidValue("torch_load_kwargs", allowed=allowed, given=options)
    found = torch.load(path, **{**options, "weights_only": True})
    missing = {"module_state_dict", "privacy_accountant_state_dict"} - set(found)
    if missing:
        raise DamagedFile(f"{path} is not a checkpoint of a private loop: it has no {', '.join(sorted(missing))}")
    return dict(found)


def _no_fewer_steps(saved: History, known: History) -> History:
    """The history in which every kind of step was taken as often as in the longer of the two.

    >>> _no_fewer_steps([(1.0, 0.1, 5)], [(1.0, 0.1, 7)])
    [(1.0, 0.1, 7)]
    """
    totals: list[Counter[tuple[float, float]]] = []
    for history in (saved, known):
        totals.append(Counter())
        for noise_multiplier, sample_rate, steps in history:
            totals[-1][noise_multiplier, sample_rate] += steps
    return [(*kind, steps) for kind, steps in (totals[0] | totals[1]).items()]
