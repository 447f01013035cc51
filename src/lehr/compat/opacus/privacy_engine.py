"""``PrivacyEngine``: the one object that turns a training loop into a private one.

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
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from lehr import accounting, validate
from lehr.accounting.calibration import Target
from lehr.claims import Claim, Premise, Standing
from lehr.clipping.clip_norm import LARGEST_CLIP_NORM
from lehr.compat.each_record import some_of
from lehr.compat.opacus import checkpoints, collation
from lehr.compat.opacus.accountants.registry import OWN, create_accountant
from lehr.compat.opacus.accountants.utils import deciding, noise_multiplier_within
from lehr.compat.opacus.data_loader import DPDataLoader, shuffled
from lehr.compat.opacus.distributed import INSTEAD
from lehr.compat.opacus.drawn_loader import DrawnLoader
from lehr.compat.opacus.draws import Draws, run_key
from lehr.compat.opacus.grad_sample.grad_sample_module import GradSampleHooks, GradSampleModule
from lehr.compat.opacus.notes import Notes, warn_unproven
from lehr.compat.opacus.optimizers.optimizer import DPOptimizer
from lehr.compat.opacus.private_steps import PrivateSteps, step_event
from lehr.compat.opacus.promise import Planned, Promise
from lehr.compat.opacus.quantile_clip import QuantileClip
from lehr.compat.opacus.records_first import records_first
from lehr.compat.opacus.spending import Allowed, Spending
from lehr.compat.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from lehr.compat.opacus.validators.module_validator import ModuleValidator
from lehr.errors import InvalidValue, NotPrivate
from lehr.events import Event, Gaussian, PoissonSampled, counted
from lehr.reports import certificate_file
from lehr.reports.certificate import Certificate, Statements
from lehr.reports.promising import check_delta
from lehr.rng import RunKey

MODES = ("hooks", "functorch", "ew", "ghost")
_SHUFFLED = (
    "batches are shuffled, and ε is counted as if they were drawn by Poisson sampling, which understates it by up to "
    "four times"
)
_PADDED = (
    "collate_fn pads each record to the longest of its batch: model and loss must ignore what is padded, or a record's "
    "gradient depends on the others, and ε does not hold"
)
_SEEDED = "the randomness comes from a generator of the user's own, whose seed may be known"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``make_private`` and ``make_private_with_epsilon`` are both told."""

    max_grad_norm: float | Sequence[float]
    batch_first: bool
    loss_reduction: str
    poisson_sampling: bool
    clipping: str
    noise_generator: torch.Generator | None
    grad_sample_mode: str
    wrap_model: bool
    rand_on_empty: bool
    num_passes: int
    accept_unproven: bool
    target_unclipped_quantile: float | None
    clipbound_learning_rate: float | None
    max_clipbound: float | None
    min_clipbound: float | None
    unclipped_num_std: float | None

    def __post_init__(self) -> None:
        validate.true_or_false(poisson_sampling=self.poisson_sampling)
        if self.grad_sample_mode not in MODES:
            allowed = f"one of {', '.join(MODES)}, which are the same engine here"
            raise InvalidValue("grad_sample_mode", allowed=allowed, given=self.grad_sample_mode)
        validate.count(num_passes=self.num_passes)
        _ = self.quantile  # what is wrong with it is said now
        if self.unproven and not self.accept_unproven:
            allowed = "True, since this asks for what is no guarantee: " + "; ".join(self.unproven)
            raise InvalidValue("accept_unproven", allowed=allowed, given=self.accept_unproven)

    @classmethod
    def among(cls, arguments: Mapping[str, Any]) -> Options:
        """Those of the arguments of a call that are options."""
        return cls(**{field.name: arguments[field.name] for field in fields(cls)})

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
        """Why nothing can be proven of such a loop."""
        shuffled = () if self.poisson_sampling else (_SHUFFLED,)
        return shuffled if self.noise_generator is None else (*shuffled, _SEEDED)


class PrivacyEngine:
    """Opacus's engine over Lehr's: the hooked engine, keyed draws and noise, Lehr's accountants and ledgers.

    ``secure_mode`` makes the noise of a GPU from the same cryptographic stream as a CPU's, which is slower; a CPU's
    always comes from there. With a ``directory``, every step is charged to a ledger there before it is released, and
    what earlier processes spent is counted in; ``delta`` is then the δ that the ledgers are kept for. What is done
    otherwise than in Opacus stands in ``notes``.

    Where ``settings_chosen_on`` says how the settings were chosen ("fixed", "public" or "private"), or ``stated`` says
    more, ``finish()`` returns a certificate and puts it into the directory. With a ``budget``, all planned steps are
    reserved there under the ``name`` before the first one, and ``finish()`` gives back the rest. Both need a plan:
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
        self._promise = Promise(
            name=name,
            delta=delta,
            settings_chosen_on=settings_chosen_on,
            stated=stated,
            budget=None if budget is None else Path(budget),
        )
        self._directory = None if directory is None else Path(directory)
        self._planned: Planned | None = None
        self._is_finished = False
        self._engine = RunKey.fresh().fingerprint(b"engine")  # by which its checkpoints are known as its own
        self._engines = {self._engine}
        self._taken: Counter[tuple[float, float]] = Counter()
        self.certificate: Certificate | None = None
        self.accountant = create_accountant(accountant)
        self.secure_mode = validate.true_or_false(secure_mode=secure_mode)
        self.notes = Notes()
        self.spending = Spending(folder=directory, delta=delta)
        self._go_on_from(self.spending.before)
        if accountant == "prv":
            self.notes.add('accountant="prv": counted by privacy loss distributions, which are at least as tight')
        if accountant == "gdp":
            self.notes.add('accountant="gdp": an estimate, which is shown and never a guarantee')
        if accountant not in OWN:
            self.notes.break_proof(f"the accountant {accountant!r} is the user's own")

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any = None,
        data_loader: DataLoader[Any],
        noise_multiplier: float,
        max_grad_norm: float | Sequence[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        num_passes: int = 1,
        accept_unproven: bool = False,
        epochs: int | None = None,
        target_unclipped_quantile: float | None = None,
        clipbound_learning_rate: float | None = None,
        max_clipbound: float | None = None,
        min_clipbound: float | None = None,
        unclipped_num_std: float | None = None,
    ) -> Any:
        """Model, optimizer and data loader of a private loop; in the mode "ghost" the criterion before the loader.

        ``clipping`` is "flat", "per_layer", "automatic" (Bu et al. 2023) or "adaptive" (Andrew et al. 2021), which
        needs the last five arguments. ``num_passes`` is how often the model is run over the same records for one loss,
        as the discriminator of a GAN or a Siamese network is. ``accept_unproven`` lets shuffled batches
        (``poisson_sampling=False``) and a ``noise_generator`` through; nothing that is then counted is a guarantee.
        Where ``epochs`` are given, they are the plan, and a step behind the last of them is refused.
        """
        told = Options.among(locals())
        loader = self._loader(data_loader, told)
        steps = None if epochs is None else validate.count(epochs=epochs) * loader.batch_sampler.steps
        return self._made(
            module, optimizer, criterion, loader, told, noise_multiplier=noise_multiplier, planned_steps=steps
        )

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
        max_grad_norm: float | Sequence[float],
        batch_first: bool = True,
        loss_reduction: str = "mean",
        poisson_sampling: bool = True,
        clipping: str = "flat",
        noise_generator: torch.Generator | None = None,
        grad_sample_mode: str = "hooks",
        wrap_model: bool = True,
        rand_on_empty: bool = False,
        epsilon_tolerance: float = 0.01,
        num_passes: int = 1,
        accept_unproven: bool = False,
        target_unclipped_quantile: float | None = None,
        clipbound_learning_rate: float | None = None,
        max_clipbound: float | None = None,
        min_clipbound: float | None = None,
        unclipped_num_std: float | None = None,
    ) -> Any:
        """The same, with the least noise under which all epochs cost at most ``target_epsilon``.

        What this engine has spent before is counted in. A step behind the last of the epochs is refused, since it would
        pass the target; and so is one with other noise than was planned.
        """
        told = Options.among(locals())
        validate.positive(epsilon_tolerance=epsilon_tolerance)
        loader = self._loader(data_loader, told)
        steps = validate.count(epochs=epochs) * loader.batch_sampler.steps
        noise_multiplier = noise_multiplier_within(
            Target(target_epsilon, target_delta, accountant=deciding(self.accountant.mechanism())),
            sampling_probability=loader.sampling.sampling_probability,
            steps=steps,
            before=self.accountant.event(),
        )
        return self._made(
            module,
            optimizer,
            criterion,
            loader,
            told,
            noise_multiplier=noise_multiplier,
            planned_steps=steps,
            delta=target_delta,
        )

    def finish(self) -> Certificate | None:
        """End the training: close the ledgers, give back what a budget reserved too much, and leave a certificate.

        The certificate is for all steps that were planned, however many were taken; there is none where nobody said
        how the settings were chosen, nor where no step was taken. No step can be taken afterwards. Doing so again does
        no harm, and goes on where it failed before.
        """
        self._is_finished = True
        self.spending.close()
        if self._planned is not None and self.certificate is None:
            shared = self._planned.settled()
            certificate = self._planned.certificate(shared=shared) if self._planned.is_begun else None
            if certificate is not None and self._directory is not None:
                certificate_file.write(self._directory / "certificate.json", certificate, overwrite=True)
            self.certificate = certificate
        return self.certificate

    def get_epsilon(self, delta: float) -> float:
        """ε of every step so far. Where nothing is proven of it, that is warned of."""
        for reason in self.notes.unproven:
            warn_unproven(reason)
        return self.accountant.get_epsilon(delta)

    def claim(self, delta: float) -> Claim:
        """What can be claimed of every step so far, with its theorem and its premises."""
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
        """An error where it cannot."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of the model with other layers in the place of those that cannot be private."""
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
        """Write weights, optimizer, schedules and the steps so far. All of it is public: no key is in it."""
        state = dict(checkpoint_dict or {})
        state["module_state_dict"] = module.state_dict(**(module_state_dict_kwargs or {}))
        state["privacy_accountant_state_dict"] = self.accountant.state_dict()
        state[checkpoints.ENGINES] = sorted(self._engines)
        for name, part in checkpoints.parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            state[name] = part.state_dict()
        if optimizer is not None and optimizer.clipping == "adaptive":
            state[checkpoints.CLIP_NORM] = optimizer.max_grad_norm
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
        """Go on from a checkpoint, with fresh draws and fresh noise, which are charged.

        Steps are never forgotten: where this engine, or its directory, knows of more than the checkpoint does, they
        stay counted; and where the checkpoint is of another training, both are counted. Only tensors and plain values
        are read from the file. Noise multiplier and clip norm stay as ``make_private`` was told them, moved on by the
        schedulers; the clip norm of adaptive clipping goes on where it was.
        """
        state = checkpoints.read(path, **(torch_load_kwargs or {}))
        module.load_state_dict(state["module_state_dict"], **(module_load_dict_kwargs or {}))
        saved = checkpoints.with_steps_since(state, engine=self._engine, taken=self._taken)
        self._engines |= set(state.pop(checkpoints.ENGINES, ()))
        self.accountant.load_state_dict(checkpoints.no_fewer_steps(saved, self.accountant.history))
        for name, part in checkpoints.parts(optimizer, noise_scheduler, grad_clip_scheduler).items():
            if name in state:
                part.load_state_dict(state.pop(name))
        if optimizer is not None:
            checkpoints.use_up(optimizer, self.accountant.history)
            optimizer.max_grad_norm = state.pop(checkpoints.CLIP_NORM, optimizer.max_grad_norm)
        if self._planned is not None:
            self._planned.refuse_other(self.accountant.event())
        return state

    def _loader(self, data_loader: DataLoader[Any], options: Options) -> DrawnLoader:
        draws = Draws(run_key(options.noise_generator, secure=self.secure_mode))
        if not options.poisson_sampling:
            return shuffled(data_loader, draws)
        if data_loader.generator is not None:
            self.notes.add("the generator of the data loader is not used: draws are keyed by a secret of their own")
        return DPDataLoader.from_data_loader(
            data_loader, batch_first=options.batch_first, rand_on_empty=options.rand_on_empty, draws=draws
        )

    def _made(
        self,
        module: nn.Module,
        optimizer: Optimizer,
        criterion: Any,
        loader: DrawnLoader,
        options: Options,
        *,
        noise_multiplier: float,
        planned_steps: int | None = None,
        delta: float | None = None,
    ) -> Any:
        self._tell(options)
        _refuse_other_parameters(module, optimizer)
        self.validate(module=module, optimizer=optimizer, data_loader=loader)
        self._try_collation(loader, batch_first=options.batch_first)
        listened = _listened(module, options)
        hooks = listened.hooks if isinstance(listened, GradSampleModule) else listened
        event = step_event(loader.sampling, noise_multiplier)
        steps = PrivateSteps(
            hooks.listener,
            draws=loader.draws,
            sampling=loader.sampling,
            charge=partial(self._charge, unproven="; ".join(options.unproven) or None),
            allowed=None if planned_steps is None else Allowed(event, steps=planned_steps),
        )
        try:
            private = DPOptimizer(
                optimizer.original_optimizer if isinstance(optimizer, DPOptimizer) else optimizer,
                steps=steps,
                noise_multiplier=noise_multiplier,
                max_grad_norm=options.max_grad_norm,
                expected_batch_size=loader.sampling.expected_batch_size,
                loss_reduction=options.loss_reduction,
                clipping=options.clipping,
                quantile=options.quantile,
            )
            chosen = nn.CrossEntropyLoss(reduction=options.loss_reduction) if criterion is None else criterion
            loss = DPLossFastGradientClipping(listened, private, chosen, options.loss_reduction)
            self._plan(steps.allowed, options, delta=delta, records=loader.sampling.records)
        except BaseException:
            if listened is not module:
                hooks.remove_hooks()
            raise
        hooks.listener.is_counted = True
        return (listened, private, loss, loader) if options.grad_sample_mode == "ghost" else (listened, private, loader)

    def _try_collation(self, loader: DrawnLoader, *, batch_first: bool) -> None:
        try:
            records = some_of(loader.dataset, loader.batch_sampler.num_samples)
            found = collation.tried(
                loader.collate_fn if batch_first else partial(_records_first, loader.collate_fn), records
            )
        except NotPrivate:
            raise
        except Exception as error:  # such as of a file that only workers open; its words may be a record's
            self.notes.add(f"collate_fn was not tried for records that it mixes: {type(error).__name__}")
            return
        if found is collation.Found.PADDED:
            self.notes.caution(_PADDED)
        if found is collation.Found.NOTHING:
            self.notes.add(f"collate_fn was tried for records that it mixes: {found.value}")

    def _plan(self, allowed: Allowed | None, options: Options, *, delta: float | None, records: int) -> None:
        """Last of all, so that no budget pays for a loop that could not be made."""
        stated = self._promise.delta if delta is None else delta
        if stated is not None:
            check_delta(stated, records=records, is_certified=self._promise.is_certified)
        if not self._promise.is_asked:
            return
        if allowed is None:
            reason = "given: a certificate and a budget are about what was planned, not about where a loop stopped"
            raise InvalidValue("epochs", allowed=reason, given=None)
        if options.unproven or self.notes.unproven:
            raise InvalidValue("accept_unproven", allowed="False beside a certificate or a budget", given=True)
        if self._planned is not None:
            raise InvalidValue("make_private", allowed="one training for an engine with a plan", given="another one")
        self._planned = Planned(self._promise, allowed, before=self.accountant.event(), delta=delta, records=records)

    def _charge(self, event: PoissonSampled, *, unproven: str | None) -> None:
        """To the ledger, and then to the accountant; when this returns, the step may be released."""
        if self._is_finished:
            raise InvalidValue("loop", allowed="one without steps behind finish()", given="another step")
        self.spending.charge(event, unproven=unproven)
        self._taken[event.event.noise_multiplier, event.sampling_probability] += 1
        self.accountant.step(noise_multiplier=event.event.noise_multiplier, sample_rate=event.sampling_probability)

    def _tell(self, options: Options) -> None:
        for reason in options.unproven:
            self.notes.break_proof(reason)
        if options.grad_sample_mode != "hooks":
            mode = options.grad_sample_mode
            self.notes.add(
                f"grad_sample_mode={mode!r}: all modes are the one engine, which stores no record's gradient"
            )
        largest = (
            options.max_grad_norm if isinstance(options.max_grad_norm, int | float) else max(options.max_grad_norm)
        )
        if largest > LARGEST_CLIP_NORM:
            self.notes.add(
                f"max_grad_norm above {LARGEST_CLIP_NORM:g}: clipped at, and noise for, {LARGEST_CLIP_NORM:g}"
            )
        if self.secure_mode:
            self.notes.add("secure_mode: noise always comes from SHAKE-128; now on a GPU too")

    def _go_on_from(self, before: Event) -> None:
        """What the ledgers of a directory say was done before."""
        for atom, count in counted(before).items():
            if isinstance(atom, PoissonSampled) and isinstance(atom.event, Gaussian):
                entry = (atom.event.noise_multiplier, atom.sampling_probability, count)
                self.accountant.history.append(entry)
            else:
                self.notes.break_proof(str(atom))


def _listened(module: nn.Module, options: Options) -> GradSampleModule | GradSampleHooks:
    """The model, wrapped or not; one that is wrapped already stays as it is."""
    told = {name: getattr(options, name) for name in ("batch_first", "loss_reduction", "num_passes")}
    if isinstance(module, GradSampleModule):
        for name, value in told.items():
            if getattr(module, name) != value:
                allowed = f"wrapped for {name}={value!r}, or not wrapped yet"
                raise InvalidValue("module", allowed=allowed, given=getattr(module, name))
        return module
    return (GradSampleModule if options.wrap_model else GradSampleHooks)(module, **told)


def _refuse_other_parameters(module: nn.Module, optimizer: Optimizer) -> None:
    if isinstance(module, DistributedDataParallel):
        allowed = f"the model itself, as an argument {INSTEAD}"
        raise InvalidValue("module", allowed=allowed, given="DistributedDataParallel")
    own = {id(parameter) for parameter in module.parameters()}
    groups = (group["params"] for group in optimizer.param_groups)
    if not all(id(parameter) in own for parameter in chain.from_iterable(groups)):
        given = "Module parameters are different than optimizer Parameters"  # the words that Opacus has for it
        raise InvalidValue("optimizer", allowed="one over parameters of the module", given=given)


def _records_first(collate: Any, records: list[Any]) -> Any:
    return records_first(collate(records))
