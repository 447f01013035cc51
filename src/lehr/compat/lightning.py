"""Private training for Lightning: a callback.

    trainer = Trainer(max_epochs=10, callbacks=[LehrCallback(epsilon=3.0, delta=1e-5, records=60_000)])
    trainer.fit(module, loader)

The loader is replaced by one that draws every record by its own coin, the gradients of the module are clipped record by
record, and what ``optimizer.step`` finds has its noise. The optimizer, its schedules, checkpoints, loggers and
validation are Lightning's own. It needs ``pip install 'lehr[lightning]'``.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from lehr.compat.each_record import Loop, refuse_mixed_records, some_of
from lehr.compat.private_run import PrivateRun, Terms
from lehr.compat.trained_parameters import refuse_other_parameters
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.reports.certificate import Certificate

try:
    from lightning import __version__ as lightning_version
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import (
        BaseFinetuning,
        BatchSizeFinder,
        GradientAccumulationScheduler,
        LearningRateFinder,
    )
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
except ImportError as error:  # pragma: no cover
    allowed = "installed where it is used: pip install 'lehr[lightning]'"
    raise InvalidValue("lightning", allowed=allowed, given="not installed") from error


class LehrCallback(Callback):
    """Makes ``trainer.fit`` private. What else it is given is that of ``lehr.compat.private_run.Terms``.

    ``records`` is the number of records as you state it. Where no ``expected_batch_size`` is given, it is the batch
    size of the loader; ``physical_batch`` bounds how many records are run at once. The plan has ``max_steps`` of the
    trainer, or ``max_epochs`` passes, and the run stops there. ``loss_reduction`` says whether the loss of a batch is
    the mean or the sum of those of its records.

    What ``training_step`` logs comes from private records without noise: it is dropped, with a warning, unless
    ``logs_private_values`` says that nobody but you will see it. Validation is refused unless
    ``validation_is_public`` says that its records are.

    ``epsilon_spent`` and ``certificate`` can be asked for; "epsilon" is logged at every step.
    """

    def __init__(
        self,
        *,
        delta: float,
        records: int,
        loss_reduction: str = "mean",
        num_passes: int = 1,
        validation_is_public: bool = False,
        logs_private_values: bool = False,
        **terms: Any,
    ) -> None:
        self.terms = Terms(delta=delta, records=records, **terms)
        self.certificate: Certificate | None = None
        self._loss_reduction, self._num_passes = loss_reduction, num_passes
        self._validation_is_public, self._logs_private_values = validation_is_public, logs_private_values
        self._run: PrivateRun | None = None
        self._restored: dict[str, Any] = {}

    @property
    def run(self) -> PrivateRun:
        """The run that is open, from the beginning of ``fit`` on."""
        if self._run is None:
            raise InvalidValue("fit", allowed="begun before its run is asked for", given="no fit")
        return self._run

    @property
    def epsilon_spent(self) -> float:
        """ε of everything that is charged so far."""
        return self._epsilon_spent if self._run is None else self._run.epsilon_spent

    _epsilon_spent = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse callbacks that train on their own, before the first of them does."""
        trainers: Any = trainer  # some of its attributes are set from outside, and no type has them
        for callback in trainers.callbacks if stage == "fit" else ():
            for kind, reason in _UNFIT_CALLBACKS.items():
                if isinstance(callback, kind):
                    raise InvalidValue(
                        "callbacks", allowed=f"without {kind.__name__}: {reason}", given=type(callback).__name__
                    )

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what cannot be private, plan, and take the place of the loader."""
        self._refuse_unfit(trainer, pl_module)
        loader = _loader_of(trainer)
        module = _listened(pl_module)
        [optimizer] = trainer.optimizers
        refuse_other_parameters(module, optimizer)
        refuse_what_cannot_be_private(pl_module)
        self._try(trainer, pl_module, loader)
        terms = self.terms
        if terms.expected_batch_size is None and loader.batch_size is not None:
            terms = replace(terms, expected_batch_size=loader.batch_size)
        if trainer.enable_validation:
            terms = replace(terms, treated_as_public=(*terms.treated_as_public, "the validation records"))
        if self._restored and terms.directory is None:
            terms = replace(terms, directory=self._restored["directory"])
        steps = _steps(trainer, terms)
        _refuse_other_estimate(trainer, steps)
        self._run = run = PrivateRun(
            terms,
            model=module,
            optimizer=optimizer,
            door=f"lightning {lightning_version}",
            steps=steps,
            num_held=len(loader.dataset),  # type: ignore[arg-type]
            resumed_at=self._restored["step"] if self._restored else None,
            loss_reduction=self._loss_reduction,
            num_passes=self._num_passes,
        )
        trainer.fit_loop._data_source.instance = DrawnLoader(loader, run)
        trainer.fit_loop._combined_loader = None  # whoever asked how many steps there are had it made already
        run.steps.engine.attach()
        _guard_logs(trainer, pl_module, is_told=self._logs_private_values)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Batches that are not the draws would be counted as if they were."""
        loader: object = trainer.train_dataloader
        if not isinstance(loader, DrawnLoader) or loader.run is not self._run:
            raise InvalidValue("train_dataloaders", allowed="those of LehrCallback", given=type(loader).__name__)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tell Lightning whether a step follows this physical batch."""
        trainer.accumulate_grad_batches = 1 if self.run.steps.is_last_part else _never(trainer)

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Undo the division that Lightning makes where it accumulates; by a power of two, so that nothing rounds."""
        factor = trainer.accumulate_grad_batches
        if factor > 1:
            loss.register_hook(lambda grad: grad * factor)  # type: ignore[no-untyped-call]

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take in a physical batch."""
        self.run.steps.add()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        """Charge the step, and give the optimizer what is released."""
        steps = self.run.steps
        refuse_other_parameters(self.run.model, optimizer)
        steps.write(steps.release())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log ε, and stop where the plan ends."""
        spent = self.epsilon_spent
        type(pl_module).log(pl_module, "epsilon", spent, on_step=True, on_epoch=False, prog_bar=True, batch_size=1)
        if self.run.is_over:
            trainer.should_stop = True

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the folder with weights, a page, and a certificate where one can be given."""
        self.run.steps.engine.detach()
        self.certificate = self.run.end(pl_module.state_dict())

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """What was charged stays charged; the run can go on from a checkpoint."""
        self._close(trainer, pl_module)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Leave the module as it was."""
        self._close(trainer, pl_module)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Lightning counts batches, and in how many physical ones the draws came tells their sizes: it counts steps."""
        if self._run is not None:
            _count_steps_alone(checkpoint["loops"]["fit_loop"])

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: where the run stands. The key is not in it."""
        if self._run is None:
            return {}
        return {"step": self._run.steps.step, "directory": str(self._run.folder.files.directory)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint: the run goes on, and every further step is charged."""
        self._restored = dict(state_dict)

    def _close(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._run is None:
            return
        self._epsilon_spent = self._run.epsilon_spent
        self._run.steps.engine.detach()
        self._run.close()
        self._run, self._restored = None, {}
        vars(pl_module).pop("log", None)
        trainer.accumulate_grad_batches = 1

    def _try(self, trainer: Trainer, pl_module: LightningModule, loader: DataLoader[Any]) -> None:
        """Collation, transfers and the training step as they are, on a few records; nothing of it is logged."""
        epoch: Any = trainer.fit_loop.epoch_loop

        def batch_of(records: list[Any]) -> Any:
            batch = trainer.precision_plugin.convert_input(loader.collate_fn(records))
            return trainer.strategy.batch_to_device(pl_module._on_before_batch_transfer(batch), dataloader_idx=0)

        def loss_of(batch: Any) -> Tensor:
            with trainer.precision_plugin.train_step_context():
                return _loss(pl_module.training_step(*epoch._build_kwargs(OrderedDict(), batch, 0).values()))

        loop = Loop(model=pl_module, batch_of=batch_of, loss_of=loss_of, loss_reduction=self._loss_reduction)
        dataset: Any = loader.dataset
        with _noted_logs(trainer, pl_module):
            refuse_mixed_records(loop, some_of(dataset, len(dataset)))

    def _refuse_unfit(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What would break the guarantee, or mean something else than it says."""
        if self._epsilon_spent and not self._restored:
            allowed = "one for each LehrCallback, or with ckpt_path: a further one costs ε of its own"
            raise InvalidValue("fit", allowed=allowed, given="another")
        if trainer.enable_validation and not self._validation_is_public:
            allowed = "True where there is validation, whose metrics have no noise; or leave validation out"
            raise InvalidValue("validation_is_public", allowed=allowed, given=False)
        trainers: Any = trainer  # some of its attributes are set from outside, and no type has them
        by_step = {1} | {one.frequency for one in trainer.lr_scheduler_configs if one.interval == "step"}
        takes_iterator = is_param_in_hook_signature(pl_module.training_step, "dataloader_iter", explicit=True)
        interval = trainers.val_check_interval if trainer.enable_validation else 1.0
        found: dict[str, tuple[object, object, str]] = {
            "automatic_optimization": (pl_module.automatic_optimization, True, "True"),
            "training_step": (takes_iterator, False, "one that is given a batch, not dataloader_iter"),
            "optimizers": (len(trainer.optimizers), 1, "one alone"),
            "fast_dev_run": (int(trainers.fast_dev_run), 0, "left out; try max_steps on public or made-up records"),
            "overfit_batches": (float(trainers.overfit_batches), 0.0, "left out"),
            "accumulate_grad_batches": (trainer.accumulate_grad_batches, 1, _PHYSICAL),
            "gradient_clip_val": (trainer.gradient_clip_val, None, _CLIPPED),
            "precision": (trainer.precision.removeprefix("64").removeprefix("32"), "-true", "32-true or 64-true"),
            "devices": (trainer.world_size, 1, "one process alone"),
            "limit_train_batches": (trainer.limit_train_batches, 1.0, "1.0: a draw that is cut is another draw"),
            "reload_dataloaders_every_n_epochs": (trainers.reload_dataloaders_every_n_epochs, 0, "left out"),
            "frequency": (max(by_step), 1, f"1 for a schedule with the interval of a step: {_COUNTED}"),
            "val_check_interval": (interval, 1.0, f"left out, or use check_val_every_n_epoch: {_COUNTED}"),
        }
        for name, (given, fit, allowed) in found.items():
            if (type(given), given) != (type(fit), fit):  # for limits, 1 is one batch and 1.0 is all of them
                raise InvalidValue(name, allowed=allowed, given=given)


_PHYSICAL = "1: physical_batch bounds how many records are run at once"
_CLIPPED = "left out: clip_norm bounds the gradient of each record"
_COUNTED = "Lightning would count physical batches, whose number is private"
_UNFIT_CALLBACKS: dict[type[Callback], str] = {
    BaseFinetuning: "what is trained is known from the beginning",
    BatchSizeFinder: "it trains without noise; physical_batch bounds how many records are run at once",
    GradientAccumulationScheduler: "physical_batch bounds how many records are run at once",
    LearningRateFinder: "it trains without noise, and no ε covers what it finds",
}


class DrawnLoader:
    """The user's loader with the draws of a run in the place of its batches. A pass has the public number of steps.

    It has no length: in how many physical batches the draws come is private.
    """

    def __init__(self, loader: DataLoader[Any], run: PrivateRun) -> None:
        self.run = run
        self.loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=run.batches(),
            collate_fn=loader.collate_fn,
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            prefetch_factor=loader.prefetch_factor,
        )

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


def _steps(trainer: Trainer, terms: Terms) -> int:
    if trainer.max_steps > 0:
        return trainer.max_steps
    if trainer.max_epochs is None or trainer.max_epochs < 1:
        raise InvalidValue("max_epochs", allowed="a number, or max_steps: a plan has an end", given=trainer.max_epochs)
    return trainer.max_epochs * terms.steps_per_pass


def _refuse_other_estimate(trainer: Trainer, steps: int) -> None:
    """A schedule that asked for the number of steps was told what the length of the loader says, which is private."""
    if trainer.fit_loop._combined_loader is not None and trainer.estimated_stepping_batches != steps:
        allowed = f"left out, or equal to the {steps} steps of the plan: give the schedule this number, or max_steps"
        raise InvalidValue("estimated_stepping_batches", allowed=allowed, given="another number")


def _never(trainer: Trainer) -> int:
    """A power of two that does not divide the number of batches so far, so that Lightning takes no step."""
    ready = trainer.fit_loop.epoch_loop.batch_progress.current.ready
    return 2 * (ready & -ready) if ready else 2


def _count_steps_alone(loop: dict[str, Any]) -> None:
    """Put the number of steps, which is public, in the place of every number of batches."""
    progress = loop["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]
    batches = loop["epoch_loop.batch_progress"]
    for span in ("total", "current"):
        steps = progress["step"][span]["completed"]
        for counts in (progress["zero_grad"][span], batches[span]):
            counts.update(dict.fromkeys(counts, steps))


def _loader_of(trainer: Trainer) -> DataLoader[Any]:
    loader = trainer.fit_loop._data_source.dataloader()
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        allowed = "one DataLoader over a data set with places: each record is drawn by its own coin"
        raise InvalidValue("train_dataloaders", allowed=allowed, given=type(loader).__name__)
    if loader.batch_size is None:
        allowed = "a number, given to the loader: no other sampler of batches is followed"
        raise InvalidValue("batch_size", allowed=allowed, given=None)
    if not _takes_all_once(loader):
        allowed = "left out: each record is drawn by its own coin; a part of a data set is a torch.utils.data.Subset"
        raise InvalidValue("sampler", allowed=allowed, given=type(loader.sampler).__name__)
    return loader


def _takes_all_once(loader: DataLoader[Any]) -> bool:
    """Whether a pass would have every record once: else the loader's user means another set of records."""
    sampler: Any = loader.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    return type(sampler) is SequentialSampler


def _listened(pl_module: LightningModule) -> nn.Module:
    """The one child that has all that is trained, or the module itself."""
    children = [child for child in pl_module.children() if any(p.requires_grad for p in child.parameters())]
    own = [p for p in pl_module.parameters(recurse=False) if p.requires_grad]
    return children[0] if len(children) == 1 and not own else pl_module


def _loss(output: Any) -> Tensor:
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise NotPrivate(layer="training_step", reason="it returned no loss", instead="a loss for every batch")
    return loss


def _guard_logs(trainer: Trainer, pl_module: LightningModule, *, is_told: bool) -> None:
    """From here on, what is logged while training is dropped unless it ``is_told``; nothing is chosen by it."""
    warned: set[str] = set()

    def log(name: str, *args: Any, **kwargs: Any) -> None:
        if trainer.training:
            _refuse_monitored(trainer, name)
        if not trainer.training or is_told:
            type(pl_module).log(pl_module, name, *args, **kwargs)
        elif name not in warned:
            warned.add(name)
            reason = f"{name!r} is not logged: it comes from private records without noise (logs_private_values)"
            warnings.warn(reason, stacklevel=2)

    vars(pl_module)["log"] = log


@contextmanager
def _noted_logs(trainer: Trainer, pl_module: LightningModule) -> Iterator[None]:
    """Nothing that is tried is logged, and what would be logged is not what anything is chosen by."""
    vars(pl_module)["log"] = lambda name, *args, **kwargs: _refuse_monitored(trainer, name)
    try:
        yield
    finally:
        del vars(pl_module)["log"]


def _refuse_monitored(trainer: Trainer, name: str) -> None:
    trainers: Any = trainer
    schedules = [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    monitored = {getattr(callback, "monitor", None) for callback in trainers.callbacks} | {*schedules}
    if monitored & {name, f"{name}_step", f"{name}_epoch"}:
        allowed = "a value of public records: no ε covers what is chosen by private ones, though nobody sees them"
        raise InvalidValue("monitor", allowed=allowed, given=name)
