"""``PrivacyEngine``: makes a training loop private, as in ``docs/opacus.md``.

Charging, sampling and releasing is done by ``lehr.run.private_run.PrivateRun``; this module translates Opacus's
arguments, accountants and checkpoints.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from lehr.integrations.external_loop import check_optimizer, identity, make_statements
from lehr.integrations.opacus.accountants import BUILT_IN, calibrate, create_accountant, warn, warn_unproven
from lehr.integrations.opacus.data_loader import (
    DPDataLoader,
    DPLossFastGradientClipping,
    PrivateLoader,
    shuffled_loader,
)
from lehr.integrations.opacus.grad_sample import (
    DifferentiallyPrivateDistributedDataParallel,
    GradSampleHooks,
    GradSampleModule,
    records_first,
)
from lehr.integrations.opacus.optimizers import AdaptiveClipping, DPOptimizer, make_run_key
from lehr.integrations.opacus.validators import ModuleValidator
from lehr.integrations.record_independence import CollationResult, RecordLoop, check_collation, sample_records
from lehr.privacy.rng import RunKey
from lehr.run.distributed import ALONE, Ranks, is_rank_0, join_ranks, refuse_wrapped
from lehr.run.private_run import PrivateRun, UnplannedRunSpec
from lehr.run.replay import UnplannedCharger
from lehr.training import ending

LOG = logging.getLogger("lehr")
MODES = ("hooks", "functorch", "ew", "ghost")  # all modes use one engine
_SHUFFLED = (
    "batches are shuffled, and ε is computed as if they were Poisson-sampled, which understates it by up to four times"
)
_SEEDED = "the randomness comes from the user's generator, whose seed may be known"
_PADDED = (
    "collate_fn pads each record to the longest of its batch: model and loss must ignore the padding, or a record's "
    "gradient depends on the others, and ε does not hold"
)
# Entries of a checkpoint besides Opacus's own.
_ENGINES = "engines"  # whose steps are in the checkpoint
_CLIP_NORM = "adaptive_clip_norm"


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """The arguments of ``make_private`` and ``make_private_with_epsilon``, besides the noise.

    With ``epochs``, further steps are refused. ``clipping`` is "flat", "per_layer", "automatic" (Bu et al. 2023) or
    "adaptive" (Andrew et al. 2021), which needs the last five. ``num_passes`` is how often the model is run on the same
    records for one loss, as in a GAN's discriminator or a Siamese network. ``accept_unproven`` permits shuffled batches
    (``poisson_sampling=False``) and a ``noise_generator``, without any guarantee.
    """

    module: nn.Module
    optimizer: Optimizer
    data_loader: DataLoader[Any]
    max_grad_norm: float | Sequence[float]
    criterion: Any = None
    epochs: int | None = None
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
        _ = self.adaptive  # raises now if it is incomplete
        if self.unproven and not self.accept_unproven:
            allowed = "True for settings without a guarantee: " + "; ".join(self.unproven)
            raise InvalidValue("accept_unproven", allowed=allowed, given=self.accept_unproven)

    @property
    def adaptive(self) -> AdaptiveClipping | None:
        """The settings of adaptive clipping: all, or none."""
        settings = {field.name: getattr(self, field.name) for field in fields(AdaptiveClipping)}
        num_given = sum(value is not None for value in settings.values())
        if num_given != (len(settings) if self.clipping == "adaptive" else 0):
            allowed = f'"adaptive" if and only if all of these are given: {", ".join(settings)}'
            raise InvalidValue("clipping", allowed=allowed, given=self.clipping)
        return AdaptiveClipping(**settings) if num_given else None

    @property
    def unproven(self) -> tuple[str, ...]:
        """Why nothing is proven with these options; empty if it is."""
        shuffled = () if self.poisson_sampling else (_SHUFFLED,)
        return shuffled if self.noise_generator is None else (*shuffled, _SEEDED)


class PrivacyEngine:
    """Opacus's engine over Lehr's: hooked gradients, keyed sampling and noise, Lehr's accountants and ledgers.

    Noise is always cryptographic, so ``secure_mode`` changes nothing. With a ``directory``, every step is charged to a
    ledger there before it is released, and the steps of earlier processes count; ``delta`` is then the δ of the
    ledgers. ``unproven`` lists why ε is not a guarantee; it is empty if it is.

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
        self._steps_taken: Counter[tuple[float, float]] = Counter()
        self.certificate: Certificate | None = None
        self.accountant = create_accountant(accountant)
        self.secure_mode = validate.true_or_false(secure_mode=secure_mode)
        self.unproven: list[str] = []
        self._ranks: Ranks = ALONE
        self.charger = UnplannedCharger(folder=self._directory if is_rank_0() else None, delta=delta)
        for atom, count in counted(self.charger.before).items():
            if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
                self.accountant.history.append((atom.event.noise_multiplier, atom.sampling_probability, count))
            else:
                self._mark_unproven(str(atom))
        if accountant not in BUILT_IN:
            self._mark_unproven(f"the accountant {accountant!r} is the user's own")

    def make_private(self, *, noise_multiplier: float, **options: Any) -> Any:
        """The private model, optimizer and data loader; with mode "ghost" also the criterion, before the loader.

        ``options`` are the fields of ``Options``.
        """
        return self._make_private(Options(**options), lambda *_: noise_multiplier)

    def make_private_with_epsilon(
        self,
        *,
        target_epsilon: float,
        target_delta: float,
        epochs: int,
        epsilon_tolerance: float = 0.01,
        **options: Any,
    ) -> Any:
        """``make_private`` with the least noise under which all epochs cost at most ``target_epsilon``.

        Earlier steps of this engine count. Further steps, and steps with other noise, are refused.
        """
        validate.positive(epsilon_tolerance=epsilon_tolerance)

        def least_noise(sample_rate: float, steps: int) -> float:
            accountant, before = self.accountant.mechanism(), self.accountant.event()
            self._delta = target_delta
            return calibrate(
                target_epsilon, target_delta, accountant=accountant, sample_rate=sample_rate, steps=steps, before=before
            )

        return self._make_private(Options(epochs=validate.count(epochs=epochs), **options), least_noise)

    def finish(self) -> Certificate | None:
        """End the training: close the ledgers, settle the budget, and return a certificate if there is one.

        The certificate covers all planned steps, however many were taken; there is none without a statement on how the
        settings were chosen, or without a step. Of several processes, only rank 0 has it. No step can be taken
        afterwards. ``finish`` can be repeated.
        """
        self.charger.close()
        if self._training is not None and self.certificate is None:
            run, planned, before = self._training
            run.finish()
            if self._ranks.is_rank_0 and self._charged() != NOTHING:
                shared = None if self._budget is None else ending.shared_budget(self._budget, self._name)
                records = run.num_records
                self.certificate = self._issue(planned, before, self._charged(), records=records, shared=shared)
                if self.certificate is not None and self._directory is not None:
                    write_certificate(self._directory / "certificate.json", self.certificate, overwrite=True)
        return self.certificate

    def get_epsilon(self, delta: float) -> float:
        """ε of all steps so far. It warns if nothing is proven."""
        for reason in self.unproven:
            warn_unproven(reason)
        return self.accountant.get_epsilon(delta)

    def claim(self, delta: float) -> Claim:
        """The claim for all steps so far, with its theorem and its premises."""
        claimed = accounting.claim(self.accountant.event(), delta=delta)
        broken = (Premise("every step is what it is counted as", Standing.BROKEN, reason) for reason in self.unproven)
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
        parts = _parts(optimizer=optimizer, noise_scheduler=noise_scheduler, grad_clip_scheduler=grad_clip_scheduler)
        state |= {name: part.state_dict() for name, part in parts.items()}
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
        saved, engines = dict(state["privacy_accountant_state_dict"]), set(state.pop(_ENGINES, ()))
        totals = _totals(saved.get("history", ()))
        if self._id not in engines:  # another engine wrote it, without the steps of this one
            totals += self._steps_taken
        self._checkpointed |= engines
        totals |= _totals(self.accountant.history)  # of every kind of step, no fewer than are known here
        history = [(*kind, steps) for kind, steps in totals.items()]
        self.accountant.load_state_dict({**saved, "history": history})
        parts = _parts(optimizer=optimizer, noise_scheduler=noise_scheduler, grad_clip_scheduler=grad_clip_scheduler)
        for name in parts.keys() & state:
            parts[name].load_state_dict(state.pop(name))
        if optimizer is not None:
            optimizer.run.count_taken(self.accountant.event())
            optimizer.max_grad_norm = state.pop(_CLIP_NORM, optimizer.max_grad_norm)
        if self._training is not None:
            done = self.accountant.event()
            if together(done) != self._charged():
                allowed = "one of this training: certificate and budget cover no other steps"
                raise InvalidValue("checkpoint", allowed=allowed, given=str(done))
        return state

    def _make_private(self, options: Options, noise_for: Callable[[float, int], float]) -> Any:
        """``noise_for`` returns the noise multiplier for a sampling probability and a number of steps."""
        options = self._join(options)
        try:
            self._take_over_from_rank_0()
            return self._build(options, noise_for)
        except BaseException as error:
            self._ranks.announce(error)
            raise

    def _join(self, options: Options) -> Options:
        """Join the other processes, if the model is one of several processes."""
        if isinstance(options.module, DistributedDataParallel):
            if not options.wrap_model:
                allowed = "True for DistributedDataParallel, which would average gradients when it is called"
                raise InvalidValue("wrap_model", allowed=allowed, given=False)
            options = replace(options, module=DifferentiallyPrivateDistributedDataParallel(options.module.module))
        module = options.module
        inner: Any = module._module if isinstance(module, GradSampleModule) else module
        is_distributed = isinstance(inner, DifferentiallyPrivateDistributedDataParallel)
        refuse_wrapped(inner.module if is_distributed else inner)
        self._ranks = join_ranks() if is_distributed else ALONE
        if self._ranks.total > 1 and not options.poisson_sampling:
            allowed = "True on several processes: every process makes the same draw, and takes its share"
            raise InvalidValue("poisson_sampling", allowed=allowed, given=False)
        return options

    def _take_over_from_rank_0(self) -> None:
        """What was done to the records before. Only rank 0 reads the directory."""
        if self._ranks.total == 1:
            return
        known: list[Any] = [sorted(self._checkpointed | {self._id}), self._id, self.accountant.history, self.unproven]
        ids, self._id, history, self.unproven = self._ranks.from_rank_0(lambda: known)
        self._checkpointed = set(ids)
        self.accountant.history = [(noise, rate, steps) for noise, rate, steps in history]

    def _check_ranks(self, options: Options, loader: PrivateLoader, noise_multiplier: float) -> None:
        """Refuse ranks that differ, and give all of them the weights of rank 0."""
        if self._ranks.total == 1:
            return
        others = ("module", "optimizer", "data_loader", "criterion", "noise_generator")
        settings = {each.name: getattr(options, each.name) for each in fields(options) if each.name not in others}
        settings |= {"noise_multiplier": noise_multiplier, "sampling": str(loader.sampling), "delta": self._delta}
        loop = RecordLoop(model=nn.Identity(), batch_of=loader.collate_fn, loss_of=lambda _: torch.zeros(()))
        sampled = sample_records(loader.dataset, loader.sampling.records)
        key, records = self._ranks.comparison_key(), loader.sampling.records
        found = identity(settings, options.module, loop, sampled, num_records=records, key=key)
        self._ranks.check_equal(found, allowed="the same on every rank, in the same order")
        self._ranks.broadcast([*options.module.parameters(), *options.module.buffers()])

    def _build(self, options: Options, noise_for: Callable[[float, int], float]) -> Any:
        module, optimizer, loader = options.module, options.optimizer, _private_loader(options)
        steps = 0 if options.epochs is None else validate.count(epochs=options.epochs) * loader.batch_sampler.steps
        noise_multiplier = noise_for(loader.sampling.sampling_probability, steps)
        for reason in options.unproven:
            self._mark_unproven(reason)
        check_optimizer(module, optimizer)
        self.validate(module=module, optimizer=optimizer, data_loader=loader)
        _check_collation(loader, batch_first=options.batch_first)
        self._check_ranks(options, loader, noise_multiplier)
        model = _hooked_model(options)
        hooks = model.hooks if isinstance(model, GradSampleModule) else model
        try:
            private = DPOptimizer(
                optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
                noise_multiplier=noise_multiplier,
                max_grad_norm=options.max_grad_norm,
                expected_batch_size=loader.sampling.expected_batch_size,
                loss_reduction=options.loss_reduction,
                clipping=options.clipping,
                adaptive=options.adaptive,
                engine=hooks,
                tracker=loader.tracker,
            )
            criterion, reduction = options.criterion, options.loss_reduction
            criterion = nn.CrossEntropyLoss(reduction=reduction) if criterion is None else criterion
            loss = DPLossFastGradientClipping(model, private, criterion, reduction)
            event = loader.sampling.event(Gaussian(noise_multiplier))
            planned = Repeated(event, steps) if steps else None
            # Last of all, so that no budget pays for a loop that cannot be made.
            loader.tracker.run = self._open_run(loader, options, planned)
            loader.tracker.device = next(module.parameters()).device
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
            if self.unproven:
                raise InvalidValue("accept_unproven", allowed="False with a certificate or a budget", given=True)
            if self._training is not None:
                raise InvalidValue("make_private", allowed="called once with a certificate or a budget", given="again")
            if self._budget is not None and before != NOTHING:
                allowed = "None if this engine, or its directory, has taken steps that the budget did not reserve"
                raise InvalidValue("budget", allowed=allowed, given=str(before))
            self._issue(planned, before, before, records=records)  # raises now if there can be no certificate
        run = PrivateRun.open(
            UnplannedRunSpec(
                sampling=loader.sampling,
                num_records=records,
                physical_batch=records,
                charger=self.charger,
                key=make_run_key(options.noise_generator),
                name=self._name,
                reserved_steps=planned,
                budget=self._budget,
                unproven="; ".join(options.unproven) or None,
                on_charge=self._count,
                ranks=self._ranks,
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
        self._steps_taken[noise_multiplier, sample_rate] += 1
        self.accountant.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate)

    def _mark_unproven(self, reason: str) -> None:
        """From here on no ε of this engine is a guarantee."""
        if reason not in self.unproven:
            self.unproven.append(reason)
        warn_unproven(reason)


def _private_loader(options: Options) -> PrivateLoader:
    """The loader of the draws, with a run of its own."""
    data_loader = options.data_loader
    if not options.poisson_sampling:
        return shuffled_loader(data_loader)
    if isinstance(data_loader, DPDataLoader):
        return data_loader.copy()
    settings = {name: getattr(options, name) for name in ("batch_first", "rand_on_empty")}
    return DPDataLoader.from_data_loader(data_loader, **settings)


def _hooked_model(options: Options) -> GradSampleModule | GradSampleHooks:
    """The model with hooks, wrapped or not; a model that is wrapped already stays as it is."""
    module = options.module
    settings = {name: getattr(options, name) for name in ("batch_first", "loss_reduction", "num_passes")}
    if not isinstance(module, GradSampleModule):
        return (GradSampleModule if options.wrap_model else GradSampleHooks)(module, **settings)
    given = {name: getattr(module, name) for name in settings}
    if given != settings:
        raise InvalidValue("module", allowed=f"wrapped with {settings}, or not wrapped yet", given=given)
    return module


def _check_collation(loader: PrivateLoader, *, batch_first: bool) -> None:
    def collate(records: list[Any]) -> Any:
        return records_first(loader.collate_fn(records), batch_first=batch_first)

    try:
        result = check_collation(collate, sample_records(loader.dataset, loader.sampling.records))
    except NotPrivate:
        raise
    except Exception as error:  # such as from a file that only workers open; its message may quote a record
        LOG.warning("collate_fn was not checked for mixing records: %s", type(error).__name__)
        return
    if result is CollationResult.PADDED:
        warn(_PADDED)
    if result is CollationResult.UNKNOWN:
        LOG.warning("collate_fn could not be checked for mixing records: %s", result.value)


def _parts(**parts: Any) -> dict[str, Any]:
    """The parts of a checkpoint that are given, by their names there."""
    return {f"{name}_state_dict": part for name, part in parts.items() if part is not None}


def _read_checkpoint(path: str | os.PathLike[str] | IO[bytes], **options: Any) -> dict[str, Any]:
    """The content of a checkpoint. Files that would run code when loaded are refused."""
    if options.get("weights_only", True) is not True:
        allowed = "without weights_only=False: a file may hold code"
        raise InvalidValue("torch_load_kwargs", allowed=allowed, given=options)
    state = torch.load(path, **{**options, "weights_only": True})
    missing = {"module_state_dict", "privacy_accountant_state_dict"} - set(state)
    if missing:
        raise DamagedFile(f"{path} is not a checkpoint of a private loop: it has no {', '.join(sorted(missing))}")
    return dict(state)


def _totals(history: Iterable[tuple[float, float, int]]) -> Counter[tuple[float, float]]:
    """How often each kind of step was taken."""
    totals: Counter[tuple[float, float]] = Counter()
    for noise_multiplier, sample_rate, steps in history:
        totals[noise_multiplier, sample_rate] += steps
    return totals
