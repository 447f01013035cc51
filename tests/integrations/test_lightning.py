"""A module that Lightning trains is trained privately; what would not be private is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset, default_collate

from lehr.accounting.ledger import Ledger
from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.precision import margin

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import (  # noqa: E402
    BackboneFinetuning,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
)
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR  # noqa: E402

from lehr.integrations.lightning import LehrCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*dataloader_iter"),
]


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class Pairs(Module):
    """Its loss looks at two records at once."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs: Tensor = self.net(batch[0])
        return (outputs - outputs.mean(0)).square().mean()


class Summed(Module):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


class Logging(Module):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        return loss


class Validated(Module):
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def val_dataloader(self) -> Any:
        return a_loader()


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return [super().configure_optimizers(), super().configure_optimizers()]


class MixedInTransfer(Module):
    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        return [0.7 * batch[0] + 0.3 * batch[0].roll(1, 0), batch[1]]


class OnBackbone(Module):
    """A head on a frozen backbone."""

    def __init__(self, *backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), *backbone).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step([self.backbone(batch[0]), batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.5)


class Unfreezing(OnBackbone):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            self.trainer.optimizers[0].add_param_group({"params": list(self.backbone.parameters())})


class LogsLate(Module):
    def on_train_epoch_end(self) -> None:
        self.log("train_loss", 1.0)


class Plateau(Logging):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = {"scheduler": ReduceLROnPlateau(optimizer), "monitor": "train_loss"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class EverySecondStep(Module):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = {"scheduler": StepLR(optimizer, 1), "interval": "step", "frequency": 2}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class OneCycle(Module):
    """Asks how many steps there will be, for which Lightning makes the loader before anybody else can."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        num_steps = int(self.trainer.estimated_stepping_batches)
        schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=num_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Iterating(Module):
    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        return super().training_step(next(dataloader_iter)[0], 0)


def a_loader(**changed: Any) -> DataLoader[Any]:
    inputs = torch.linspace(-1, 1, 80).reshape(40, 2)
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), **{"batch_size": 10, **changed})


def mixed_in_collation(records: list[Any]) -> Any:
    inputs, targets = default_collate(records)
    share = torch.rand(())
    return [share * inputs + (1 - share) * inputs.roll(1, 0), targets]


def a_callback(directory: Path, **changed: Any) -> LehrCallback:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "records": 40, "directory": directory / "run"}
    return LehrCallback(**{**settings, **changed})


def a_trainer(directory: Path, *callbacks: Any, **changed: Any) -> Any:
    settings: dict[str, Any] = {"max_steps": 6, "enable_progress_bar": False, "enable_model_summary": False}
    settings |= {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    return pl.Trainer(default_root_dir=directory, callbacks=list(callbacks), **{**settings, **changed})


def steps_charged(directory: Path) -> int:
    with Ledger.open(directory / "run" / "ledger.db") as ledger:
        return ledger.count("steps")


def test_fit_takes_the_planned_steps_and_leaves_a_certified_run(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, noise_multiplier=None, epsilon=4.0, settings_chosen_on="fixed")
    trainer, module = a_trainer(tmp_path, callback), Module()
    trainer.fit(module, a_loader())
    assert trainer.global_step == steps_charged(tmp_path) == read_run(tmp_path / "run").steps_charged == 6
    assert callback.certificate is not None
    assert 3.9 < callback.epsilon_spent <= 4.0
    assert callback.certificate.epsilon <= 4.001
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(callback.epsilon_spent)
    assert (tmp_path / "run" / "report.html").exists()
    assert "forward" not in vars(module.net[0])
    assert "log" not in vars(module)
    with pytest.raises(InvalidValue, match="costs its own ε"):
        a_trainer(tmp_path, callback).fit(Module(), a_loader())


@pytest.mark.parametrize("physical_batch, clip_norm", [(None, 0.05), (3, 0.05), (3, 100.0)])
def test_the_step_is_that_of_a_clipped_sum_over_the_draw_divided_by_the_expected_batch(
    tmp_path: Path, physical_batch: int | None, clip_norm: float
) -> None:
    """With next to no noise a step is what the gradients of single records say, clipped or not, in any portions."""
    module, drawn = Module(), list[int]()
    callback = a_callback(tmp_path, noise_multiplier=1e-8, clip_norm=clip_norm, physical_batch=physical_batch)
    before = {name: value.detach().clone() for name, value in module.net.named_parameters()}

    def note_and_add(trainer: Any, pl_module: Any) -> None:
        drawn.extend(callback.run.current_batches[callback.run._step().num_added].indices_P.tolist())
        callback.run.add()

    callback.on_after_backward = note_and_add  # type: ignore[method-assign]
    trainer = a_trainer(tmp_path, callback, max_steps=1)
    trainer.fit(module, a_loader())
    assert trainer.global_step == 1
    expected = _by_hand(before, drawn, clip_norm=clip_norm, divisor=10)
    for name, value in module.net.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-4, atol=1e-5)


def _by_hand(before: dict[str, Tensor], indices: list[int], *, clip_norm: float, divisor: float) -> dict[str, Tensor]:
    net = Module().net
    net.load_state_dict(before)
    inputs, targets = a_loader().dataset.tensors  # type: ignore[attr-defined]
    sums = {name: torch.zeros_like(value) for name, value in before.items()}
    for index in indices:
        loss = cross_entropy(net(inputs[index : index + 1]), targets[index : index + 1])
        grads = dict(zip(before, torch.autograd.grad(loss, list(net.parameters())), strict=True))
        norm = float(torch.stack([grad.norm() for grad in grads.values()]).norm())
        for name, grad in grads.items():
            # The clip leaves a margin of 0.2 % for rounding: without it a draw of 12 records is 2e-5 off.
            sums[name] += grad * min(1.0, clip_norm / (norm * (1 + margin(torch.float32))))
    return {name: before[name] - 0.5 * value / divisor for name, value in sums.items()}


def test_empty_draws_are_noisy_steps(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_callback(tmp_path, expected_batch_size=0.001), max_steps=2)
    module = Module()
    before = next(module.parameters()).detach().clone()
    trainer.fit(module, a_loader())
    assert trainer.global_step == 2
    assert not torch.equal(next(module.parameters()), before)


def test_what_training_step_logs_is_dropped_unless_it_is_asked_for(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path / "dropped", a_callback(tmp_path / "dropped"), max_steps=2)
    with pytest.warns(UserWarning, match="'train_loss' is not logged"):
        trainer.fit(Logging(), a_loader())
    assert "train_loss" not in trainer.callback_metrics
    trainer = a_trainer(tmp_path / "kept", a_callback(tmp_path / "kept", logs_private_values=True), max_steps=2)
    trainer.fit(Logging(), a_loader())
    assert "train_loss" in trainer.callback_metrics


def test_validation_runs_if_its_records_are_public_and_not_after_so_many_physical_batches(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, validation_is_public=True)
    with pytest.raises(InvalidValue, match="val_check_interval"):
        a_trainer(tmp_path, callback, val_check_interval=2).fit(Validated(), a_loader())
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=1)
    trainer.fit(Validated(), a_loader())
    assert "val_loss" in trainer.callback_metrics


@pytest.mark.parametrize(
    "module, loader, match",
    [
        (Pairs(), {}, "the loss"),
        (Summed(), {}, "the loss"),
        (MixedInTransfer(), {}, "the loss"),
        (Module(), {"collate_fn": mixed_in_collation}, "the loss"),
        (OnBackbone(nn.BatchNorm1d(2)), {}, "BatchNorm"),
    ],
)
def test_a_loop_that_mixes_records_is_refused_before_anything_begins(
    tmp_path: Path, module: Module, loader: dict[str, Any], match: str
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(NotPrivate, match=match):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader(**loader))
    assert not (tmp_path / "run").exists()
    assert "log" not in vars(module)
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_a_frozen_backbone_stays_as_it_was(tmp_path: Path) -> None:
    module = OnBackbone(nn.BatchNorm1d(2).eval())
    before = {name: value.clone() for name, value in module.backbone.state_dict().items()}
    a_trainer(tmp_path, a_callback(tmp_path), max_steps=2).fit(module, a_loader())
    assert all(value.equal(before[name]) for name, value in module.backbone.state_dict().items())


def test_parameters_that_are_unfrozen_later_are_not_trained_without_noise(tmp_path: Path) -> None:
    module = Unfreezing()
    before = module.backbone.state_dict()["0.weight"].clone()
    with pytest.raises(InvalidValue, match="optimizer"):
        a_trainer(tmp_path, a_callback(tmp_path), max_steps=-1, max_epochs=2).fit(module, a_loader())
    assert module.backbone.state_dict()["0.weight"].equal(before)
    assert steps_charged(tmp_path) == 4


@pytest.mark.parametrize(
    "module, callback, logs_private_values",
    [
        (Logging(), EarlyStopping("train_loss"), True),
        (Logging(), EarlyStopping("train_loss"), False),
        (Logging(), ModelCheckpoint(monitor="train_loss"), True),
        (Plateau(), None, True),
        (LogsLate(), EarlyStopping("train_loss"), True),
        (LogsLate(), EarlyStopping("train_loss"), False),
    ],
)
def test_nothing_is_selected_by_a_value_of_private_records(
    tmp_path: Path, module: Module, callback: Any, logs_private_values: bool
) -> None:
    """Nor if nobody sees the value itself: the released weights would depend on it."""
    private = a_callback(tmp_path, logs_private_values=logs_private_values)
    others = [] if callback is None else [callback]
    saves = isinstance(callback, ModelCheckpoint)
    with pytest.raises(InvalidValue, match="monitor"):
        a_trainer(tmp_path, *others, private, enable_checkpointing=saves).fit(module, a_loader())
    if not isinstance(module, LogsLate):
        assert not (tmp_path / "run").exists()


def test_a_sum_over_records_is_trained_if_that_is_stated(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_callback(tmp_path, loss_reduction="sum", expected_batch_size=30), max_steps=2)
    trainer.fit(Summed(), a_loader(shuffle=True))
    assert trainer.global_step == 2


class OwnLoader(pl.Callback):  # type: ignore[misc, name-defined]
    """Replaces the loader of the draws by its own."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.fit_loop._data_source.instance = a_loader()


@pytest.mark.parametrize(
    "module, changed, match",
    [
        (TwoOptimizers(), {}, "optimizers|automatic"),
        (Validated(), {}, "validation_is_public"),
        (Module(), {"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        (Module(), {"gradient_clip_val": 1.0}, "gradient_clip_val"),
        (Module(), {"limit_train_batches": 2}, "limit_train_batches"),
        (Module(), {"limit_train_batches": 1}, "limit_train_batches"),
        (Module(), {"fast_dev_run": True}, "fast_dev_run"),
        (Module(), {"overfit_batches": 1}, "overfit_batches"),
        (Module(), {"precision": "bf16-mixed"}, "precision"),
        (Module(), {"callbacks": [LearningRateFinder()]}, "LearningRateFinder"),
        (OnBackbone(), {"callbacks": [BackboneFinetuning()]}, "BaseFinetuning"),
        (EverySecondStep(), {}, "frequency"),
        (Iterating(), {}, "training_step"),
        (Module(), {"last": OwnLoader()}, "those of LehrCallback"),
        (Module(), {"loader": {"sampler": SubsetRandomSampler(range(20))}}, "sampler"),
        (Module(), {"loader": {"sampler": RandomSampler(range(40), num_samples=20)}}, "sampler"),
        (Module(), {"loader": {"batch_size": None}}, "batch_size"),
        (Module(), {"loader": {"batch_size": 1, "batch_sampler": [[0, 1], [2, 3]]}}, "batch_size"),
    ],
)
def test_unsafe_settings_are_refused_by_name(
    tmp_path: Path, module: Module, changed: dict[str, Any], match: str
) -> None:
    changed = dict(changed)
    callbacks = [*changed.pop("callbacks", []), a_callback(tmp_path), *filter(None, [changed.pop("last", None)])]
    loader = a_loader(**changed.pop("loader", {}))
    with pytest.raises((InvalidValue, RuntimeError), match=match):
        a_trainer(tmp_path, *callbacks, **changed).fit(module, loader)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("records", [40, 60])
def test_epochs_and_schedules_follow_the_stated_number_of_records(tmp_path: Path, records: int) -> None:
    callback = a_callback(tmp_path, records=records)
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=2)
    if records == 40:
        trainer.fit(OneCycle(), a_loader())
        assert trainer.global_step == steps_charged(tmp_path) == 8
        return
    with pytest.raises(InvalidValue, match=r"estimated_stepping_batches must be .* the 12 steps"):
        trainer.fit(OneCycle(), a_loader())
    assert not (tmp_path / "run").exists()


def test_a_parameter_outside_the_module_is_refused(tmp_path: Path) -> None:
    stray, module = nn.Parameter(torch.zeros(1)), Module()
    module.configure_optimizers = lambda: torch.optim.SGD([*module.parameters(), stray], lr=0.1)  # type: ignore[method-assign]
    with pytest.raises(InvalidValue, match="optimizer"):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader())


def test_unknown_keywords_are_errors() -> None:
    with pytest.raises(TypeError, match="noise_mutliplier"):
        LehrCallback(delta=1e-5, records=10, noise_mutliplier=1.0)


class SavesAndBreaks(pl.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "at3.ckpt")
        if trainer.global_step == 4:
            raise KeyboardInterrupt


def _counts(shape: Any) -> set[int]:
    if isinstance(shape, dict):
        return set().union(*map(_counts, shape.values()))
    return {shape} if type(shape) is int else set()


def test_a_run_is_resumed_from_a_checkpoint_that_keeps_the_sizes_of_draws_private(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, physical_batch=1)
    broken = a_trainer(tmp_path, callback, SavesAndBreaks())
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        broken.fit(Module(), a_loader())
    assert steps_charged(tmp_path) == 4
    assert broken.fit_loop.epoch_loop.batch_progress.total.ready > 4
    checkpoint = torch.load(tmp_path / "at3.ckpt", weights_only=False)
    assert max(_counts(checkpoint["loops"])) == checkpoint["callbacks"]["LehrCallback"]["step"] == 3
    trainer = a_trainer(tmp_path, a_callback(tmp_path, physical_batch=1))
    trainer.fit(Module(), a_loader(), ckpt_path=tmp_path / "at3.ckpt", weights_only=False)
    # The fourth step was charged twice, so the plan of six steps ends one step earlier.
    assert steps_charged(tmp_path) == 6
    assert trainer.global_step == 5


@pytest.fixture(autouse=True)
def _restored_generator() -> Iterator[None]:
    before = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(before)
