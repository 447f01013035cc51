"""A module that Lightning trains is trained privately, and what would not be is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from lehr.errors import InvalidValue, NotPrivate
from lehr.ledger import Ledger
from lehr.reports.run_reading import read_run

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import (  # noqa: E402
    BackboneFinetuning,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
)

from lehr.compat.lightning import LehrCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*dataloader_iter"),
]


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        self.loss_fn = nn.CrossEntropyLoss()

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        loss: Tensor = self.loss_fn(self.net(inputs), targets)
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)


class Pairs(Module):
    """Its loss looks at two records at once."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        outputs = self.net(batch[0])
        loss: Tensor = (outputs - outputs.mean(0)).square().mean()
        return loss


class Summed(Module):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = nn.functional.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")
        return loss


class Logging(Module):
    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        return loss


class Validated(Module):
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", super().training_step(batch, batch_idx))

    def val_dataloader(self) -> Any:
        return a_loader()


class TwoOptimizers(Module):
    def configure_optimizers(self) -> Any:
        return [super().configure_optimizers(), super().configure_optimizers()]


class WithBatchNorm(Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class MixedUp(Module):
    """Mixes records while it trains, as is done to augment images."""

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        inputs, targets = batch
        order = torch.randperm(len(inputs)) if self.training else torch.arange(len(inputs))
        return super().training_step([0.7 * inputs + 0.3 * inputs[order], targets], batch_idx)


class MixedInTransfer(Module):
    def on_after_batch_transfer(self, batch: list[Tensor], dataloader_idx: int) -> list[Tensor]:
        return [0.7 * batch[0] + 0.3 * batch[0].roll(1, 0), batch[1]]


class OnBackbone(Module):
    """A head on a backbone that is frozen."""

    def __init__(self, *backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), *backbone).requires_grad_(False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return super().training_step([self.backbone(batch[0]), batch[1]], batch_idx)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.5)


class Unfreezing(OnBackbone):
    """The backbone joins in later, as is often done."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            self.trainer.optimizers[0].add_param_group({"params": list(self.backbone.parameters())})


class Centred(Module):
    def __init__(self) -> None:
        super().__init__()
        self.centre: Tensor
        self.register_buffer("centre", torch.zeros(2))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        self.centre = 0.9 * self.centre + 0.1 * batch[0].mean(0)
        return super().training_step(batch, batch_idx)


class Plateau(Logging):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train_loss"}}


class LogsLate(Module):
    def on_train_epoch_end(self) -> None:
        self.log("train_loss", 1.0)


class EverySecondStep(Module):
    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step", "frequency": 2}}


class OneCycle(Module):
    """Asks how many steps there will be, for which Lightning makes the loader before anybody else can."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        num_steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=num_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Iterating(Module):
    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        return super().training_step(next(dataloader_iter)[0], 0)


def a_loader(records: int = 40, **changed: Any) -> DataLoader[Any]:
    inputs = torch.linspace(-1, 1, 2 * records).reshape(records, 2)
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
    trainer = a_trainer(tmp_path, callback)
    module = Module()
    trainer.fit(module, a_loader())
    assert trainer.global_step == steps_charged(tmp_path) == 6
    assert callback.certificate is not None
    assert 3.9 < callback.epsilon_spent <= 4.0
    assert callback.certificate.epsilon <= 4.001
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(callback.epsilon_spent)
    assert read_run(tmp_path / "run").steps_charged == 6
    assert (tmp_path / "run" / "report.html").exists()
    assert "forward" not in vars(module.net[0])
    assert "log" not in vars(module)


def test_epochs_are_passes_over_the_stated_number_of_records(tmp_path: Path) -> None:
    callback = a_callback(tmp_path)
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=3)
    trainer.fit(Module(), a_loader())
    assert trainer.global_step == steps_charged(tmp_path) == 3 * 4


@pytest.mark.parametrize("clip_norm", [0.05, 100.0])
@pytest.mark.parametrize("physical_batch", [None, 3])
def test_the_step_is_that_of_a_clipped_sum_over_the_draw_divided_by_the_expected_batch(
    tmp_path: Path, physical_batch: int | None, clip_norm: float
) -> None:
    """With next to no noise a step is what the gradients of single records say, clipped or not, in any portions."""
    module, seen = Module(), list[int]()
    callback = a_callback(tmp_path, noise_multiplier=1e-8, clip_norm=clip_norm, physical_batch=physical_batch)
    before = {name: value.detach().clone() for name, value in module.net.named_parameters()}
    callback.on_after_backward = _noting(callback, seen)  # type: ignore[method-assign]
    trainer = a_trainer(tmp_path, callback, max_steps=1)
    trainer.fit(module, a_loader())
    assert trainer.global_step == 1
    expected = _by_hand(before, seen, clip_norm=clip_norm, divisor=10)
    for name, value in module.net.named_parameters():
        torch.testing.assert_close(value.detach(), expected[name], rtol=1e-4, atol=1e-5)


def _noting(callback: LehrCallback, seen: list[int]) -> Any:
    def noting(trainer: Any, pl_module: Any) -> None:
        seen.extend(callback.run.steps.next_part.places)
        callback.run.steps.add()

    return noting


def _by_hand(before: dict[str, Tensor], places: list[int], *, clip_norm: float, divisor: float) -> dict[str, Tensor]:
    net = Module().net
    net.load_state_dict(before)
    inputs, targets = a_loader().dataset.tensors  # type: ignore[attr-defined]
    sums = {name: torch.zeros_like(value) for name, value in before.items()}
    for place in places:
        net.zero_grad()
        nn.functional.cross_entropy(net(inputs[place : place + 1]), targets[place : place + 1]).backward()  # type: ignore[no-untyped-call]
        grads = {name: value.grad for name, value in net.named_parameters()}
        norm = torch.stack([grad.norm() for grad in grads.values() if grad is not None]).norm()
        for name, grad in grads.items():
            assert grad is not None
            sums[name] += grad * min(1.0, clip_norm / float(norm))
    return {name: before[name] - 0.5 * value / divisor for name, value in sums.items()}


def test_small_physical_batches_take_the_same_number_of_steps(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, physical_batch=3)
    trainer = a_trainer(tmp_path, callback)
    trainer.fit(Module(), a_loader())
    assert trainer.global_step == steps_charged(tmp_path) == 6


def test_draws_of_nobody_are_noisy_steps(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, expected_batch_size=0.001, clip_norm=1.0, noise_multiplier=0.5)
    trainer, module = a_trainer(tmp_path, callback), Module()
    before = next(module.parameters()).detach().clone()
    trainer.fit(module, a_loader())
    assert trainer.global_step == 6
    assert not torch.equal(next(module.parameters()), before)


def test_what_training_step_logs_is_withheld_unless_it_is_asked_for(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path / "withheld", a_callback(tmp_path / "withheld"))
    with pytest.warns(UserWarning, match="'train_loss' is not logged"):
        trainer.fit(Logging(), a_loader())
    assert "train_loss" not in trainer.callback_metrics
    trainer = a_trainer(tmp_path / "told", a_callback(tmp_path / "told", logs_private_values=True))
    trainer.fit(Logging(), a_loader())
    assert "train_loss" in trainer.callback_metrics


def test_validation_runs_where_its_records_are_public(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, validation_is_public=True)
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=1)
    trainer.fit(Validated(), a_loader())
    assert "val_loss" in trainer.callback_metrics


@pytest.mark.parametrize(
    "module, match",
    [
        (Pairs(), "the loss"),
        (Summed(), "the loss"),
        (MixedUp(), "the loss"),
        (MixedInTransfer(), "the loss"),
        (Centred(), "the buffer centre"),
        (WithBatchNorm(), "BatchNorm"),
        (OnBackbone(nn.BatchNorm1d(2)), "BatchNorm"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_module_that_mixes_records_or_keeps_numbers_of_them_is_refused_before_anything_is_begun(
    tmp_path: Path, module: Module, match: str
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(NotPrivate, match=match):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader())
    assert not (tmp_path / "run").exists()
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


def test_mixing_in_collation_is_refused_before_anything_is_begun(tmp_path: Path) -> None:
    with pytest.raises(NotPrivate, match="the loss"):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(Module(), a_loader(collate_fn=mixed_in_collation))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_a_frozen_backbone_beside_the_head_stays_as_it_was(tmp_path: Path) -> None:
    module = OnBackbone(nn.BatchNorm1d(2).eval())
    before = {name: value.clone() for name, value in module.backbone.state_dict().items()}
    a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader())
    assert all(value.equal(before[name]) for name, value in module.backbone.state_dict().items())


def test_what_is_unfrozen_on_the_way_is_not_trained_without_noise(tmp_path: Path) -> None:
    module = Unfreezing()
    before = module.backbone.state_dict()["0.weight"].clone()
    with pytest.raises(InvalidValue, match="optimizer"):
        a_trainer(tmp_path, a_callback(tmp_path), max_steps=-1, max_epochs=2).fit(module, a_loader())
    assert module.backbone.state_dict()["0.weight"].equal(before)
    assert steps_charged(tmp_path) == 4


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize(
    "module, callback",
    [
        (Logging(), EarlyStopping("train_loss")),
        (Logging(), ModelCheckpoint(monitor="train_loss")),
        (Plateau(), None),
        (LogsLate(), EarlyStopping("train_loss")),
    ],
)
def test_nothing_is_chosen_by_a_value_of_private_records(
    tmp_path: Path, module: Module, callback: Any, is_told: bool
) -> None:
    """Nor where the value itself is seen by nobody: the weights that are released would follow it."""
    private = a_callback(tmp_path, logs_private_values=is_told)
    others = [] if callback is None else [callback]
    saves = isinstance(callback, ModelCheckpoint)
    with pytest.raises(InvalidValue, match="monitor"):
        a_trainer(tmp_path, *others, private, enable_checkpointing=saves).fit(module, a_loader())
    if not isinstance(module, LogsLate):
        assert not (tmp_path / "run").exists()


def test_a_sum_over_records_is_trained_where_that_is_said(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_callback(tmp_path, loss_reduction="sum", expected_batch_size=30))
    trainer.fit(Summed(), a_loader())
    assert trainer.global_step == 6


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
    ],
)
def test_what_would_be_unsafe_is_refused_by_name(
    tmp_path: Path, module: Module, changed: dict[str, Any], match: str
) -> None:
    others = changed.pop("callbacks", [])
    with pytest.raises((InvalidValue, RuntimeError), match=match):
        a_trainer(tmp_path, *others, a_callback(tmp_path), **changed).fit(module, a_loader())
    assert not (tmp_path / "run").exists()


def test_validation_after_so_many_physical_batches_is_refused(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, validation_is_public=True)
    with pytest.raises(InvalidValue, match="val_check_interval"):
        a_trainer(tmp_path, callback, val_check_interval=2).fit(Validated(), a_loader())


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"sampler": SubsetRandomSampler(range(20))}, "sampler"),
        ({"sampler": WeightedRandomSampler([1.0] * 40, 40)}, "sampler"),
        ({"sampler": RandomSampler(range(40), num_samples=20)}, "sampler"),
        ({"batch_size": None}, "batch_size"),
        ({"batch_size": 1, "batch_sampler": [[0, 1], [2, 3]]}, "batch_size"),
    ],
)
def test_a_loader_that_means_other_records_or_other_batches_is_refused(
    tmp_path: Path, changed: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidValue, match=match):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(Module(), a_loader(**changed))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("records", [40, 60])
def test_a_schedule_over_all_steps_follows_the_plan_and_records_are_drawn(tmp_path: Path, records: int) -> None:
    callback = a_callback(tmp_path, records=records)
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=2)
    if records == 40:
        trainer.fit(OneCycle(), a_loader())
        assert trainer.global_step == steps_charged(tmp_path) == 8
        return
    with pytest.raises(InvalidValue, match=r"estimated_stepping_batches must be .* the 12 steps"):
        trainer.fit(OneCycle(), a_loader())
    assert not (tmp_path / "run").exists()


class _OwnLoader(pl.Callback):  # type: ignore[misc, name-defined]
    """Puts its own loader in the place of the draws."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.fit_loop._data_source.instance = a_loader()


def test_batches_that_are_not_the_draws_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="those of LehrCallback"):
        a_trainer(tmp_path, a_callback(tmp_path), _OwnLoader()).fit(Module(), a_loader())
    assert not (tmp_path / "run").exists()


def test_a_second_fit_needs_a_callback_of_its_own(tmp_path: Path) -> None:
    callback = a_callback(tmp_path)
    a_trainer(tmp_path, callback).fit(Module(), a_loader(shuffle=True))
    with pytest.raises(InvalidValue, match="costs ε of its own"):
        a_trainer(tmp_path, callback).fit(Module(), a_loader())


def test_a_parameter_that_nobody_listens_to_is_refused(tmp_path: Path) -> None:
    stray = nn.Parameter(torch.zeros(1))
    module = Module()
    module.configure_optimizers = lambda: torch.optim.SGD([*module.parameters(), stray], lr=0.1)  # type: ignore[method-assign]
    with pytest.raises(InvalidValue, match="optimizer"):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader())


def test_unknown_keywords_are_errors() -> None:
    with pytest.raises(TypeError, match="noise_mutliplier"):
        LehrCallback(delta=1e-5, records=10, noise_mutliplier=1.0)


class _Breaks(pl.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "at3.ckpt")
        if trainer.global_step == 4:
            raise KeyboardInterrupt


def test_a_run_goes_on_from_a_checkpoint_with_fresh_noise_that_is_charged(tmp_path: Path) -> None:
    callback = a_callback(tmp_path)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        a_trainer(tmp_path, callback, _Breaks()).fit(Module(), a_loader())
    assert steps_charged(tmp_path) == 4
    again = a_callback(tmp_path, settings_chosen_on=None)
    trainer = a_trainer(tmp_path, again)
    trainer.fit(Module(), a_loader(), ckpt_path=tmp_path / "at3.ckpt", weights_only=False)
    # The fourth step was charged twice, so that the plan of six ends one step earlier.
    assert steps_charged(tmp_path) == 6
    assert trainer.global_step == 5


class _Saves(pl.Callback):  # type: ignore[misc, name-defined]
    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            trainer.save_checkpoint(Path(trainer.default_root_dir) / "at5.ckpt")


def _counts(shape: Any) -> set[int]:
    if isinstance(shape, dict):
        return set().union(*map(_counts, shape.values()))
    return {shape} if type(shape) is int else set()


def test_a_checkpoint_does_not_tell_in_how_many_batches_the_draws_came(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path, a_callback(tmp_path, physical_batch=1), _Saves())
    trainer.fit(Module(), a_loader())
    assert trainer.fit_loop.epoch_loop.batch_progress.total.ready > 6
    checkpoint = torch.load(tmp_path / "at5.ckpt", weights_only=False)
    assert max(_counts(checkpoint["loops"])) == 5
    assert checkpoint["callbacks"]["LehrCallback"]["step"] == 5


@pytest.fixture(autouse=True)
def _plain_threads() -> Iterator[None]:
    before = torch.random.get_rng_state()
    yield
    torch.random.set_rng_state(before)
