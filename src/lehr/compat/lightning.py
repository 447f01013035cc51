"""Private training for Lightning: a callback.

    trainer = Trainer(max_epochs=10, callbacks=[LehrCallback(epsilon=3.0, delta=1e-5, records=60_000)])
    trainer.fit(module, loader)

The loader is replaced by one that draws every record by its own coin, the gradients of the module are clipped record by
record, and what ``optimizer.step`` finds has its noise. The optimizer, its schedules, checkpoints, loggers and
validation are Lightning's own. It needs ``pip install 'lehr[lightning]'``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lehr.compat.each_record import refuse_shared_loss
from lehr.compat.private_run import PrivateRun, Terms
from lehr.errors import InvalidValue, NotPrivate
from lehr.reports.certificate import Certificate

try:
    from lightning import __version__ as lightning_version
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import GradientAccumulationScheduler
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
        self._is_tried = False

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

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse what cannot be private, plan, and take the place of the loader."""
        self._refuse_unfit(trainer, pl_module)
        loader = _loader_of(trainer)
        module = _listened(pl_module)
        [optimizer] = trainer.optimizers
        _refuse_other_parameters(module, pl_module, optimizer)
        terms = self.terms
        if terms.expected_batch_size is None and loader.batch_size is not None:
            terms = replace(terms, expected_batch_size=loader.batch_size)
        if trainer.enable_validation:
            terms = replace(terms, treated_as_public=(*terms.treated_as_public, "the validation records"))
        if self._restored and terms.directory is None:
            terms = replace(terms, directory=self._restored["directory"])
        self._run = run = PrivateRun(
            terms,
            model=module,
            optimizer=optimizer,
            door=f"lightning {lightning_version}",
            steps=_steps(trainer, terms),
            num_held=len(loader.dataset),  # type: ignore[arg-type]
            resumed_at=self._restored["step"] if self._restored else None,
            loss_reduction=self._loss_reduction,
            num_passes=self._num_passes,
        )
        trainer.fit_loop._data_source.instance = DrawnLoader(loader, run)
        run.steps.engine.attach()
        self._is_tried = False
        if not self._logs_private_values:
            _withhold_logs(trainer, pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Tell Lightning whether a step follows this physical batch."""
        steps = self.run.steps
        trainer.accumulate_grad_batches = 1 if steps.is_last_part else _never(trainer)
        num_records = len(steps.next_part.places)
        if not self._is_tried and num_records > 1:
            with _without_logs(pl_module):
                self._is_tried = refuse_shared_loss(
                    pl_module,
                    lambda some: _loss(pl_module.training_step(*_step_arguments(pl_module, some, batch_idx))),
                    batch,
                    num_records=num_records,
                    loss_reduction=self._loss_reduction,
                )

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

    def _refuse_unfit(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """What would break the guarantee, or mean something else than it says."""
        if trainer.enable_validation and not self._validation_is_public:
            allowed = "True where there is validation, whose metrics have no noise; or leave validation out"
            raise InvalidValue("validation_is_public", allowed=allowed, given=False)
        trainers: Any = trainer  # some of its attributes are set from outside, and no type has them
        scheduled = [one for one in trainers.callbacks if isinstance(one, GradientAccumulationScheduler)]
        found: dict[str, tuple[object, object, str]] = {
            "automatic_optimization": (pl_module.automatic_optimization, True, "True"),
            "optimizers": (len(trainer.optimizers), 1, "one alone"),
            "accumulate_grad_batches": (trainer.accumulate_grad_batches, 1, _PHYSICAL),
            "callbacks": (scheduled, [], f"without GradientAccumulationScheduler; {_PHYSICAL}"),
            "gradient_clip_val": (trainer.gradient_clip_val, None, _CLIPPED),
            "precision": (trainer.precision.removeprefix("64").removeprefix("32"), "-true", "32-true or 64-true"),
            "devices": (trainer.world_size, 1, "one process alone"),
            "limit_train_batches": (trainer.limit_train_batches, 1.0, "1.0: a draw that is cut is another draw"),
            "overfit_batches": (trainers.overfit_batches, 0.0, "left out"),
            "reload_dataloaders_every_n_epochs": (trainers.reload_dataloaders_every_n_epochs, 0, "left out"),
        }
        for name, (given, fit, allowed) in found.items():
            if given != fit:
                raise InvalidValue(name, allowed=allowed, given=given)


_PHYSICAL = "1: physical_batch bounds how many records are run at once"
_CLIPPED = "left out: clip_norm bounds the gradient of each record"


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
    return loader


def _listened(pl_module: LightningModule) -> nn.Module:
    """The one child that has all that is trained, or the module itself."""
    children = [child for child in pl_module.children() if any(p.requires_grad for p in child.parameters())]
    own = [p for p in pl_module.parameters(recurse=False) if p.requires_grad]
    return children[0] if len(children) == 1 and not own else pl_module


def _refuse_other_parameters(module: nn.Module, pl_module: LightningModule, optimizer: torch.optim.Optimizer) -> None:
    """A parameter that nobody listens to would be trained without noise."""
    known = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    if not {id(parameter) for parameter in trained} <= known:
        allowed = "one of the module's own trainable parameters"
        raise InvalidValue("optimizer", allowed=allowed, given="one with other parameters")
    if isinstance(optimizer, torch.optim.LBFGS):
        allowed = "one that takes one gradient a step: a closure would look at the records again, uncharged"
        raise InvalidValue("optimizer", allowed=allowed, given="LBFGS")


def _loss(output: Any) -> Tensor:
    loss = output["loss"] if isinstance(output, dict) else output
    if not isinstance(loss, Tensor):
        raise NotPrivate(layer="training_step", reason="it returned no loss", instead="a loss for every batch")
    return loss


def _step_arguments(pl_module: LightningModule, batch: Any, batch_idx: int) -> tuple[Any, ...]:
    num_arguments = pl_module.training_step.__code__.co_argcount - 1
    return (batch, batch_idx)[:num_arguments]


def _withhold_logs(trainer: Trainer, pl_module: LightningModule) -> None:
    told: set[str] = set()

    def log(name: str, *args: Any, **kwargs: Any) -> None:
        if not trainer.training:
            type(pl_module).log(pl_module, name, *args, **kwargs)
        elif name not in told:
            told.add(name)
            reason = f"{name!r} is not logged: it comes from private records without noise (logs_private_values)"
            warnings.warn(reason, stacklevel=2)

    vars(pl_module)["log"] = log


class _without_logs:  # noqa: N801
    """Nothing that is tried is logged."""

    def __init__(self, pl_module: LightningModule) -> None:
        self._pl_module, self._before = pl_module, vars(pl_module).get("log")

    def __enter__(self) -> None:
        vars(self._pl_module)["log"] = lambda *args, **kwargs: None

    def __exit__(self, *_: object) -> None:
        if self._before is None:
            del vars(self._pl_module)["log"]
        else:
            vars(self._pl_module)["log"] = self._before
