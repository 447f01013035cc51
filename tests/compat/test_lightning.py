"""A module that Lightning trains is trained privately, and what would not be is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lehr.errors import InvalidValue, NotPrivate
from lehr.ledger import Ledger
from lehr.reports.run_reading import read_run

pl = pytest.importorskip("lightning.pytorch")
from lehr.compat.lightning import LehrCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")


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


def a_loader(records: int = 40) -> DataLoader[Any]:
    inputs = torch.linspace(-1, 1, 2 * records).reshape(records, 2)
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), batch_size=10)


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
    [(Pairs(), "the loss"), (Summed(), "the loss"), (WithBatchNorm(), "BatchNorm")],
)
def test_a_model_or_loss_that_mixes_records_is_refused_before_anything_is_charged(
    tmp_path: Path, module: Module, match: str
) -> None:
    with pytest.raises(NotPrivate, match=match):
        a_trainer(tmp_path, a_callback(tmp_path, expected_batch_size=30)).fit(module, a_loader())
    if (tmp_path / "run").exists():
        assert steps_charged(tmp_path) == 0


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
        (Module(), {"precision": "bf16-mixed"}, "precision"),
    ],
)
def test_what_would_be_unsafe_is_refused_by_name(
    tmp_path: Path, module: Module, changed: dict[str, Any], match: str
) -> None:
    with pytest.raises((InvalidValue, RuntimeError), match=match):
        a_trainer(tmp_path, a_callback(tmp_path), **changed).fit(module, a_loader())
    assert not (tmp_path / "run").exists()


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
