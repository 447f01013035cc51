"""Private training with Lightning, as a callback.

    trainer = Trainer(max_epochs=10, callbacks=[LehrCallback(epsilon=3.0, delta=1e-5, records=60_000)])
    trainer.fit(module, loader)

The callback replaces the loader by one that uses Poisson sampling, clips the gradient of every record, and adds noise
before ``optimizer.step``. Optimizer, schedules, checkpoints, loggers and validation remain Lightning's. Install with
``pip install 'lehr[lightning]'``.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader

from lehr.certificates.certificate import Certificate
from lehr.errors import InvalidValue, MissingExtra, NotPrivate
from lehr.gradients.execution import restore_rng, rng_states
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.integrations.external_loop import (
    ExternalRun,
    PrivacyConfig,
    batch_size_of,
    check_sampler,
    loader_options,
    secretly_seeded,
    seed_secretly,
)
from lehr.integrations.record_independence import RecordLoop

try:
    from lightning import __version__ as lightning_version
    from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
except ImportError as error:  # pragma: no cover
    raise MissingExtra("lightning", extra="lightning") from error

_PHYSICAL = "physical_batch bounds how many records are run at once"
_COUNTED = "Lightning would count physical batches, whose number is private"
_DRAWS_SHOWN = "it shows how many records are drawn, without noise"
_UNSUPPORTED_CALLBACKS: dict[type[Callback], str] = {
    callbacks.BaseFinetuning: "the trainable parameters must be known from the beginning",
    callbacks.BatchSizeFinder: f"it trains without noise; {_PHYSICAL}",
    callbacks.DeviceStatsMonitor: _DRAWS_SHOWN,
    callbacks.GradientAccumulationScheduler: _PHYSICAL,
    callbacks.LearningRateFinder: "it trains without noise, and no ε covers what it finds",
    callbacks.ThroughputMonitor: _DRAWS_SHOWN,
}


class LehrCallback(Callback):
    """Makes ``trainer.fit`` private. Further arguments are those of ``external_loop.PrivacyConfig``.

    ``records`` is the number of records as you state it. The default ``expected_batch_size`` is the batch size of the
    loader; ``physical_batch`` bounds how many records are run at once. The plan has the trainer's ``max_steps``, or
    ``max_epochs`` epochs, and the run stops there. ``loss_reduction`` says whether the loss of a batch is the mean or
    the sum of the losses of its records.

    Values that ``training_step`` logs come from private records without noise: they are dropped, with a warning, unless
    ``logs_private_values`` is set. Validation is refused unless ``validation_is_public``.

    ``epsilon_spent`` and ``certificate`` can be read; "epsilon" is logged at every step.
    """

    def __init__(
        self,
        *,
        delta: float | None = None,
        records: int,
        loss_reduction: str = "mean",
        num_passes: int = 1,
        validation_is_public: bool = False,
        logs_private_values: bool = False,
        **privacy: Any,
    ) -> None:
        self.privacy = PrivacyConfig(delta=delta, records=records, **privacy)
        self.certificate: Certificate | None = None
        self._loss_reduction, self._num_passes = loss_reduction, num_passes
        self._validation_is_public, self._logs_private_values = validation_is_public, logs_private_values
        self._run: ExternalRun | None = None
        self._restored: dict[str, Any] = {}
        self._generators: tuple[Any, Any] | None = None  # their states before the run
        self._first_of_epoch = 0  # the step that the epoch began with
        self._epsilon_spent = 0.0
        self._warned: set[str] = set()

    @property
    def run(self) -> ExternalRun:
        """The open run, during ``fit``."""
        assert self._run is not None
        return self._run

    @property
    def epsilon_spent(self) -> float:
        """ε of all steps that are charged so far."""
        return self._epsilon_spent if self._run is None else self._run.epsilon_spent

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks that train by themselves, before the first of them does."""
        for callback, (kind, reason) in product(trainer.callbacks, _UNSUPPORTED_CALLBACKS.items()):
            if stage == "fit" and isinstance(callback, kind):
                given = type(callback).__name__
                raise InvalidValue("callbacks", allowed=f"without {kind.__name__}: {reason}", given=given)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what cannot be private, open the run, and replace the loader."""
        self._refuse_unsupported(trainer, pl_module)
        loader = trainer.fit_loop._data_source.dataloader()
        if not isinstance(loader, DataLoader):
            raise InvalidValue("train_dataloaders", allowed="one DataLoader", given=type(loader).__name__)
        config = replace(self.privacy, expected_batch_size=self.privacy.expected_batch_size or batch_size_of(loader))
        check_sampler(loader)
        refuse_what_cannot_be_private(pl_module)
        if trainer.enable_validation:
            config = replace(config, treated_as_public=(*config.treated_as_public, "the validation records"))
        if self._restored and config.directory is None:
            config = replace(config, directory=self._restored["directory"])
        vars(pl_module)["log"] = partial(self._log, trainer, pl_module)
        self._run = ExternalRun(
            config,
            model=_hooked_module(pl_module),
            optimizer=trainer.optimizers[0],
            dataset=loader.dataset,
            loop=self._record_loop(trainer, pl_module, loader),
            library=f"lightning {lightning_version}",
            steps=_planned_steps(trainer, config),
            resumed_at=self._restored.get("step"),
            clip_state=self._restored.get("clipping"),
            num_passes=self._num_passes,
        )
        self._generators = rng_states(pl_module.device)
        trainer.fit_loop._data_source.instance = PrivateLoader(loader, self._run)
        for shown in _progress_bars(trainer):
            vars(shown)["on_train_batch_end"] = partial(self._show_steps, shown.on_train_batch_end)
        trainer.fit_loop._combined_loader = None  # it exists if somebody asked for the number of steps

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse batches that do not come from the run."""
        loader: object = trainer.train_dataloader
        if not isinstance(loader, PrivateLoader) or loader.run is not self._run:
            raise InvalidValue("train_dataloaders", allowed="those of LehrCallback", given=type(loader).__name__)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note where the epoch begins."""
        self._first_of_epoch = self.run.step

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tell Lightning whether an optimizer step follows this physical batch."""
        seed_secretly(pl_module.device)  # other hooks may have set a seed
        ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        # Lightning takes no step unless this number, a power of two, divides the number of batches so far.
        trainer.accumulate_grad_batches = 1 if self.run.is_last_batch else 2 * (ready & -ready) or 2

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Undo Lightning's division for accumulation, exactly: the factor is a power of two."""
        factor = trainer.accumulate_grad_batches
        if factor > 1:
            loss.register_hook(lambda grad: grad * factor)  # type: ignore[no-untyped-call]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a physical batch."""
        self.run.add()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Charge the step, and give the optimizer the released gradients."""
        self.run.release()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log ε, and stop at the end of the plan."""
        spent = self.epsilon_spent
        type(pl_module).log(pl_module, "epsilon", spent, on_step=True, on_epoch=False, prog_bar=True, batch_size=1)
        if self.run.is_over:
            trainer.should_stop = True

    def _show_steps(
        self, show: Any, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *others: Any
    ) -> None:
        """Let a progress bar count steps: the number of physical batches tells how many records were drawn."""
        if steps := self.run.step - self._first_of_epoch:
            show(trainer, pl_module, outputs, batch, steps - 1, *others)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Finish the run: weights, report and certificate."""
        self.certificate = self.run.finish(pl_module.state_dict())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the run, which can be resumed from a checkpoint."""
        self.teardown(trainer, pl_module, "fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Close the run and restore the module."""
        vars(pl_module).pop("log", None)
        if self._run is None:
            return
        for shown in _progress_bars(trainer):
            vars(shown).pop("on_train_batch_end", None)
        self._epsilon_spent = self._run.epsilon_spent
        self._run.close()
        self._run, self._restored = None, {}
        if self._generators is not None:
            restore_rng(self._generators)
            self._generators = None
        trainer.accumulate_grad_batches = 1

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Replace Lightning's counts of batches, which tell the private sizes of the draws, by counts of steps."""
        if self._run is None:
            return
        loop = checkpoint["loops"]["fit_loop"]
        progress = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
        for span in ("total", "current"):
            steps = progress["step"][span]["completed"]
            for counts in (progress["zero_grad"][span], loop["epoch_loop.batch_progress"][span]):
                counts.update(dict.fromkeys(counts, steps))

    def state_dict(self) -> dict[str, Any]:
        """The step and the folder of the run, and what its clip rule has learnt. The key is not in it."""
        run = self._run
        if run is None:
            return {}
        return {"step": run.step, "directory": str(run.directory), "clipping": dict(run.clip_state)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from a checkpoint; every further step is charged."""
        self._restored = dict(state_dict)

    def _log(self, trainer: Any, pl_module: LightningModule, name: str, *args: Any, **kwargs: Any) -> None:
        """Drop what is logged from private records, unless ``logs_private_values``; nothing may be selected by it."""
        is_checking = self._run is None  # the few records that are tried before the run
        if is_checking or trainer.training:
            schedules = [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
            monitored = {*schedules, *(getattr(callback, "monitor", None) for callback in trainer.callbacks)}
            if monitored & {name, f"{name}_step", f"{name}_epoch"}:
                allowed = "a value of public records: no ε covers a selection by private ones"
                raise InvalidValue("monitor", allowed=allowed, given=name)
        if is_checking:
            return
        if not trainer.training or self._logs_private_values:
            type(pl_module).log(pl_module, name, *args, **kwargs)
        elif name not in self._warned:
            self._warned.add(name)
            reason = f"{name!r} is not logged: it comes from private records without noise (logs_private_values)"
            warnings.warn(reason, stacklevel=2)

    def _record_loop(self, trainer: Any, pl_module: LightningModule, loader: DataLoader[Any]) -> RecordLoop:
        """Collation, transfer and training step, for records that are tried before the run."""

        def batch_of(records: list[Any]) -> Any:
            batch = trainer.precision_plugin.convert_input(loader.collate_fn(records))
            return trainer.strategy.batch_to_device(pl_module._on_before_batch_transfer(batch), dataloader_idx=0)

        def loss_of(batch: Any) -> Tensor:
            arguments = trainer.fit_loop.epoch_loop._build_kwargs(OrderedDict(), batch, 0)
            with trainer.precision_plugin.train_step_context():
                output = pl_module.training_step(*arguments.values())
            loss: Any = output["loss"] if isinstance(output, dict) else output
            if not isinstance(loss, Tensor):
                raise NotPrivate(layer="training_step", reason="it returned no loss", instead="a loss for every batch")
            return loss

        return RecordLoop(model=pl_module, batch_of=batch_of, loss_of=loss_of, loss_reduction=self._loss_reduction)

    def _refuse_unsupported(self, trainer: Any, pl_module: LightningModule) -> None:
        """Refuse settings that would break the guarantee, or would not do what they say."""
        fit = "another" if self._epsilon_spent and not self._restored else "the first"
        is_public = self._validation_is_public or not trainer.enable_validation
        by_step = {1} | {one.frequency for one in trainer.lr_scheduler_configs if one.interval == "step"}
        takes_iterator = is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True)
        interval = trainer.val_check_interval if trainer.enable_validation else 1.0
        settings: dict[str, tuple[object, object, str]] = {
            "fit": (fit, "the first", "one per LehrCallback, or with ckpt_path: another one costs its own ε"),
            "validation_is_public": (is_public, True, "True, or no validation: its metrics have no noise"),
            "automatic_optimization": (pl_module.automatic_optimization, True, "True"),
            "training_step": (takes_iterator, False, "one that takes a batch, not dataloader_iter"),
            "optimizers": (len(trainer.optimizers), 1, "exactly one"),
            "fast_dev_run": (int(trainer.fast_dev_run), 0, "left out; try max_steps on public or synthetic records"),
            "overfit_batches": (float(trainer.overfit_batches), 0.0, "left out"),
            "accumulate_grad_batches": (trainer.accumulate_grad_batches, 1, f"1: {_PHYSICAL}"),
            "gradient_clip_val": (trainer.gradient_clip_val, None, "left out: clip_norm bounds each record's gradient"),
            "precision": (trainer.precision.removeprefix("64").removeprefix("32"), "-true", "32-true or 64-true"),
            "devices": (trainer.world_size, 1, "one process"),
            "limit_train_batches": (trainer.limit_train_batches, 1.0, "1.0: every draw is used whole"),
            "reload_dataloaders_every_n_epochs": (trainer.reload_dataloaders_every_n_epochs, 0, "left out"),
            "frequency": (max(by_step), 1, f"1 for a schedule with interval='step': {_COUNTED}"),
            "val_check_interval": (interval, 1.0, f"left out, or use check_val_every_n_epoch: {_COUNTED}"),
        }
        for name, (given, supported, allowed) in settings.items():
            if (type(given), given) != (type(supported), supported):  # limits: 1 is one batch, 1.0 is all of them
                raise InvalidValue(name, allowed=allowed, given=given)


class PrivateLoader:
    """The user's loader with the batches of a run. It has no length: the number of physical batches is private."""

    def __init__(self, loader: DataLoader[Any], run: ExternalRun) -> None:
        self.run = run
        self.loader: DataLoader[Any] = DataLoader(loader.dataset, batch_sampler=run.sampler(), **loader_options(loader))

    def __iter__(self) -> Iterator[Any]:
        return secretly_seeded(self.loader, next(self.run.model.parameters()).device)


def _progress_bars(trainer: Any) -> list[Any]:
    return [callback for callback in trainer.callbacks if isinstance(callback, callbacks.ProgressBar)]


def _planned_steps(trainer: Trainer, config: PrivacyConfig) -> int:
    if trainer.max_steps > 0:
        steps = trainer.max_steps
    elif trainer.max_epochs is None or trainer.max_epochs < 1:
        raise InvalidValue("max_epochs", allowed="a number, or max_steps: a plan has an end", given=trainer.max_epochs)
    else:
        steps = trainer.max_epochs * config.steps_per_epoch
    # A schedule that asked for the number of steps got it from the length of the loader, which is private.
    if trainer.fit_loop._combined_loader is not None and trainer.estimated_stepping_batches != steps:
        allowed = f"unused, or equal to the {steps} steps of the plan: give the schedule this number, or max_steps"
        raise InvalidValue("estimated_stepping_batches", allowed=allowed, given="another number")
    return steps


def _hooked_module(pl_module: LightningModule) -> nn.Module:
    """The one child that has all trainable parameters, or the module itself."""
    children = [child for child in pl_module.children() if any(p.requires_grad for p in child.parameters())]
    own = [p for p in pl_module.parameters(recurse=False) if p.requires_grad]
    return children[0] if len(children) == 1 and not own else pl_module
