"""Lightning trains a module privately; settings that would not be private are refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, default_collate

from lehr.accounting.ledger import Ledger
from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue
from lehr.gradients.execution import rng_states
from lehr.gradients.precision import margin
from lehr.privacy.clipping import QuantileClip
from tests.integrations.opacus.loops import clipped_mean, draw_everywhere, seed_everywhere
from tests.integrations.refusals import invalid, not_private

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.callbacks import (  # noqa: E402
    BackboneFinetuning,
    DeviceStatsMonitor,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    ProgressBar,
    ThroughputMonitor,
)
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR  # noqa: E402

from lehr.integrations.lightning import LehrCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*dataloader_iter"),
]


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.5, momentum=0.9)


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, loss: Any = cross_entropy, configure: Any = sgd, *, logs: bool = False) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
        self.loss, self.configure, self.logs = loss, configure, logs

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss: Tensor = self.loss(self.net(batch[0]), batch[1])
        if self.logs:
            self.log("train_loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        return self.configure(self)


class Validated(Module):
    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))

    def val_dataloader(self) -> Any:
        return a_loader()


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


class Unfreezing(OnBackbone):
    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(True)
            self.trainer.optimizers[0].add_param_group({"params": list(self.backbone.parameters())})


class LogsLate(Module):
    def on_train_epoch_end(self) -> None:
        self.log("train_loss", 1.0)


class Iterating(Module):
    def training_step(self, dataloader_iter: Any) -> Tensor:  # type: ignore[override]
        return super().training_step(next(dataloader_iter)[0], 0)


def scheduled(make: Any, **options: Any) -> Module:
    """A module with a learning rate schedule."""

    def configure(module: Module) -> Any:
        optimizer = sgd(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(module, optimizer), **options}}

    return Module(configure=configure, logs="monitor" in options)


def one_cycle(module: Module, optimizer: Any) -> Any:
    """Asks for the number of steps, for which Lightning makes the loader before any callback runs."""
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=int(module.trainer.estimated_stepping_batches))


def plateau() -> Module:
    return scheduled(lambda module, optimizer: ReduceLROnPlateau(optimizer), monitor="train_loss")


SUMMED = partial(cross_entropy, reduction="sum")


def centred(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - outputs.mean(0)).square().mean()


def mixup(records: list[Any]) -> Any:
    inputs, targets = default_collate(records)
    share = torch.rand(())
    return [share * inputs + (1 - share) * inputs.roll(1, 0), targets]


def a_loader(**changed: Any) -> DataLoader[Any]:
    inputs = torch.linspace(-1, 1, 80).reshape(40, 2)
    return DataLoader(TensorDataset(inputs, (inputs[:, 0] > 0).long()), **{"batch_size": 10, **changed})


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
    with invalid("fit"):  # another one costs its own ε
        a_trainer(tmp_path, callback).fit(Module(), a_loader())


@pytest.mark.parametrize("physical_batch, clip_norm", [(None, 0.05), (3, 0.05), (3, 100.0)])
def test_a_step_is_the_clipped_sum_over_the_draw(tmp_path: Path, physical_batch: int | None, clip_norm: float) -> None:
    """With next to no noise, whether gradients are clipped or not, in physical batches of any size."""
    module, drawn = Module(), list[int]()
    callback = a_callback(tmp_path, noise_multiplier=1e-8, clip_norm=clip_norm, physical_batch=physical_batch)
    net = Module().net
    net.load_state_dict(module.net.state_dict())

    def note_and_add(trainer: Any, pl_module: Any) -> None:
        drawn.extend(callback.run.current_batches[callback.run._step().num_added].indices_P.tolist())
        callback.run.add()

    callback.on_after_backward = note_and_add  # type: ignore[method-assign]
    a_trainer(tmp_path, callback, max_steps=1).fit(module, a_loader())
    inputs, targets = a_loader().dataset[drawn]
    clip = clip_norm / (1 + margin(torch.float32))  # which the clip leaves for rounding
    means = clipped_mean(net, inputs, targets, clip_norm=clip, divisor=10)
    for value, before, mean in zip(module.net.parameters(), net.parameters(), means, strict=True):
        torch.testing.assert_close(value.detach(), before.detach() - 0.5 * mean, rtol=1e-4, atol=1e-5)


OWNERS = torch.arange(40).square() % 7  # four users, of 6, 12, 11 and 11 records
USERS: dict[str, Any] = {"records": None, "users": 4, "records_per_user": 8, "owners": OWNERS, "delta": 1e-2}


@pytest.mark.parametrize("loss, reduction", [(cross_entropy, "mean"), (SUMMED, "sum")])
@pytest.mark.parametrize("physical_batch, records_per_user", [(3, 8), (None, 1)])
def test_a_step_of_users_averages_each_before_the_clip(
    tmp_path: Path, loss: Any, reduction: str, physical_batch: int | None, records_per_user: int
) -> None:
    module, drawn = Module(loss), list[list[int]]()
    net = Module().net
    net.load_state_dict(module.net.state_dict())
    given = {"noise_multiplier": 1e-8, "clip_norm": 0.05, "physical_batch": physical_batch, "expected_batch_size": 4}
    callback = a_callback(tmp_path, loss_reduction=reduction, **USERS | given | {"records_per_user": records_per_user})

    def note_and_add(trainer: Any, pl_module: Any) -> None:
        indices = callback.run.record_indices(0)[callback.run._step().num_added]
        drawn.extend([*dict.fromkeys(user)] for user in indices.view(-1, records_per_user).tolist())
        callback.run.add()

    callback.on_after_backward = note_and_add  # type: ignore[method-assign]
    a_trainer(tmp_path, callback, max_steps=1).fit(module, a_loader())
    assert sorted({int(OWNERS[record]) for record in records} == {0} for records in drawn) == [False] * 3 + [True]
    assert sorted(map(len, drawn)) == ([6, 8, 8, 8] if records_per_user == 8 else [1] * 4)
    sums = [torch.zeros_like(value) for value in net.parameters()]
    for records in drawn:
        assert len({int(OWNERS[record]) for record in records}) == 1
        inputs, targets = a_loader().dataset[records]
        grads = torch.autograd.grad(cross_entropy(net(inputs), targets), list(net.parameters()))
        norm = float(torch.cat([grad.flatten() for grad in grads]).norm()) * (1 + margin(torch.float32))
        sums = [total + grad * min(1.0, 0.05 / norm) for total, grad in zip(sums, grads, strict=True)]
    for value, before, total in zip(module.net.parameters(), net.parameters(), sums, strict=True):
        torch.testing.assert_close(value.detach(), before.detach() - 0.5 * total / 4, rtol=1e-4, atol=1e-5)


def test_the_certificate_of_users_says_so(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, **USERS, settings_chosen_on="fixed", expected_batch_size=2)
    a_trainer(tmp_path, callback, max_steps=2).fit(Module(), a_loader())
    assert callback.certificate is not None
    stated = callback.certificate.stated
    assert stated.unit_of_privacy == "one user with all their records, at most 8 of them in a step"
    assert stated.treated_as_public == ("the number of users",)


@pytest.mark.parametrize(
    "name, changed",
    [
        ("owners", {"owners": None}),
        ("owners", {"owners": OWNERS[1:]}),
        ("users", {"users": 40}),
        ("users", {"users": None, "records_per_user": None, "records": 40}),
    ],
)
def test_owners_and_users_that_do_not_fit_are_refused(tmp_path: Path, name: str, changed: dict[str, Any]) -> None:
    with invalid(name):
        a_trainer(tmp_path, a_callback(tmp_path, **USERS | changed, expected_batch_size=2)).fit(Module(), a_loader())
    assert not (tmp_path / "run").exists()


def test_values_of_private_records_are_logged_only_on_request(tmp_path: Path) -> None:
    trainer = a_trainer(tmp_path / "dropped", a_callback(tmp_path / "dropped"), max_steps=2)
    with pytest.warns(UserWarning, match="'train_loss' is not logged"):
        trainer.fit(Module(logs=True), a_loader())
    assert "train_loss" not in trainer.callback_metrics
    callback = a_callback(tmp_path / "kept", logs_private_values=True, loss_reduction="sum")
    trainer = a_trainer(tmp_path / "kept", callback, max_steps=2)
    trainer.fit(Module(SUMMED, logs=True), a_loader(shuffle=True))
    assert "train_loss" in trainer.callback_metrics


def test_validation_runs_on_public_records_at_the_end_of_an_epoch(tmp_path: Path) -> None:
    callback = a_callback(tmp_path, validation_is_public=True)
    with invalid("val_check_interval"):
        a_trainer(tmp_path, callback, val_check_interval=2).fit(Validated(), a_loader())
    trainer = a_trainer(tmp_path, callback, max_steps=-1, max_epochs=1)
    trainer.fit(Validated(), a_loader())
    assert "val_loss" in trainer.callback_metrics


@pytest.mark.parametrize(
    "module, loader, layer",
    [
        (Module(centred), {}, "the loss"),
        (Module(SUMMED), {}, "the loss"),
        (MixedInTransfer(), {}, "the loss"),
        (Module(), {"collate_fn": mixup}, "the loss"),
        (OnBackbone(nn.BatchNorm1d(2)), {}, "BatchNorm"),
    ],
)
def test_loops_that_mix_records_are_refused_before_anything_begins(
    tmp_path: Path, module: Module, loader: dict[str, Any], layer: str
) -> None:
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with not_private(layer):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(module, a_loader(**loader))
    assert not (tmp_path / "run").exists()
    assert "log" not in vars(module)
    assert all(value.equal(before[name]) for name, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore:Found 1 module")
def test_a_frozen_backbone_is_not_trained(tmp_path: Path) -> None:
    module = OnBackbone(nn.BatchNorm1d(2).eval())
    before = {name: value.clone() for name, value in module.backbone.state_dict().items()}
    a_trainer(tmp_path, a_callback(tmp_path), max_steps=2).fit(module, a_loader())
    assert all(value.equal(before[name]) for name, value in module.backbone.state_dict().items())


def test_parameters_unfrozen_later_are_not_trained_without_noise(tmp_path: Path) -> None:
    module = Unfreezing()
    before = module.backbone.state_dict()["0.weight"].clone()
    with invalid("optimizer"):
        a_trainer(tmp_path, a_callback(tmp_path), max_steps=-1, max_epochs=2).fit(module, a_loader())
    assert module.backbone.state_dict()["0.weight"].equal(before)
    assert steps_charged(tmp_path) == 4


@pytest.mark.parametrize(
    "module, callback, logs_private_values",
    [
        (Module(logs=True), EarlyStopping("train_loss"), True),
        (Module(logs=True), EarlyStopping("train_loss"), False),
        (Module(logs=True), ModelCheckpoint(monitor="train_loss"), True),
        (plateau(), None, True),
        (LogsLate(), EarlyStopping("train_loss"), True),
        (LogsLate(), EarlyStopping("train_loss"), False),
    ],
)
def test_nothing_is_selected_by_a_value_of_private_records(
    tmp_path: Path, module: Module, callback: Any, logs_private_values: bool
) -> None:
    """Not even if nobody sees the value: the released weights would depend on it."""
    private = a_callback(tmp_path, logs_private_values=logs_private_values)
    others = [] if callback is None else [callback]
    saves = isinstance(callback, ModelCheckpoint)
    with invalid("monitor"):
        a_trainer(tmp_path, *others, private, enable_checkpointing=saves).fit(module, a_loader())
    assert isinstance(module, LogsLate) or not (tmp_path / "run").exists()


class OwnLoader(pl.Callback):  # type: ignore[misc, name-defined]
    """Replaces the loader of the draws by its own."""

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        trainer.fit_loop._data_source.instance = a_loader()


def with_stray_parameter(module: nn.Module) -> Any:
    return torch.optim.SGD([*module.parameters(), nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    "name, module, changed",
    [
        ("optimizer", Module(configure=with_stray_parameter), {}),
        ("validation_is_public", Validated(), {}),
        ("accumulate_grad_batches", Module(), {"accumulate_grad_batches": 2}),
        ("gradient_clip_val", Module(), {"gradient_clip_val": 1.0}),
        ("limit_train_batches", Module(), {"limit_train_batches": 2}),
        ("limit_train_batches", Module(), {"limit_train_batches": 1}),
        ("fast_dev_run", Module(), {"fast_dev_run": True}),
        ("overfit_batches", Module(), {"overfit_batches": 1}),
        ("precision", Module(), {"precision": "bf16-mixed"}),
        ("callbacks", Module(), {"callbacks": [LearningRateFinder()]}),
        ("callbacks", Module(), {"callbacks": [DeviceStatsMonitor()], "logger": True}),
        ("callbacks", Module(), {"callbacks": [ThroughputMonitor(batch_size_fn=len)], "logger": True}),
        ("callbacks", OnBackbone(), {"callbacks": [BackboneFinetuning()]}),
        ("frequency", scheduled(lambda _, sgd: StepLR(sgd, 1), interval="step", frequency=2), {}),
        ("training_step", Iterating(), {}),
        ("train_dataloaders", Module(), {"last": OwnLoader()}),
        ("sampler", Module(), {"loader": {"sampler": SubsetRandomSampler(range(20))}}),
        ("batch_size", Module(), {"loader": {"batch_size": None}}),
    ],
)
def test_unsafe_settings_are_refused_by_name(tmp_path: Path, name: str, module: Module, changed: Any) -> None:
    changed = dict(changed)
    callbacks = [*changed.pop("callbacks", []), a_callback(tmp_path), *filter(None, [changed.pop("last", None)])]
    loader = a_loader(**changed.pop("loader", {}))
    with invalid(name):
        a_trainer(tmp_path, *callbacks, **changed).fit(module, loader)
    assert not (tmp_path / "run").exists()


def test_several_optimizers_and_unknown_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises((InvalidValue, RuntimeError), match=r"optimizers|automatic"):
        a_trainer(tmp_path, a_callback(tmp_path)).fit(Module(configure=lambda m: [sgd(m), sgd(m)]), a_loader())
    with pytest.raises(TypeError, match="noise_mutliplier"):
        LehrCallback(delta=1e-5, records=10, noise_mutliplier=1.0)


def test_epochs_and_schedules_follow_the_stated_number_of_records(tmp_path: Path) -> None:
    settings, module = {"max_steps": -1, "max_epochs": 2}, scheduled(one_cycle, interval="step")
    with invalid("estimated_stepping_batches"):  # by the length of the data set
        a_trainer(tmp_path, a_callback(tmp_path, records=60), **settings).fit(module, a_loader())
    assert not (tmp_path / "run").exists()
    trainer = a_trainer(tmp_path, a_callback(tmp_path), **settings)
    trainer.fit(module, a_loader())
    assert trainer.global_step == steps_charged(tmp_path) == 8


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


def test_a_run_is_resumed_from_a_checkpoint_without_the_sizes_of_draws(tmp_path: Path) -> None:
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


def test_a_clip_norm_that_follows_a_quantile_is_resumed_from_a_checkpoint(tmp_path: Path) -> None:
    # Little noise, so that the clip norm falls.
    settings: dict[str, Any] = {"clipping": QuantileClip(100.0), "noise_multiplier": 0.1}
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        a_trainer(tmp_path, a_callback(tmp_path, **settings), SavesAndBreaks()).fit(Module(), a_loader())
    learnt = torch.load(tmp_path / "at3.ckpt", weights_only=False)["callbacks"]["LehrCallback"]["clipping"]["clip_norm"]
    assert learnt < 100.0 * math.exp(-0.1)
    started: list[float] = []

    class Notes(pl.Callback):  # type: ignore[misc, name-defined]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            started.append(float(callback.run.clip_state["clip_norm"]))

    callback = a_callback(tmp_path, **settings)
    trainer = a_trainer(tmp_path, callback, Notes())
    trainer.fit(Module(), a_loader(), ckpt_path=tmp_path / "at3.ckpt", weights_only=False)
    assert started == [learnt]
    assert steps_charged(tmp_path) == 6


def test_a_known_seed_tells_no_random_number_of_the_loop(tmp_path: Path) -> None:
    """Neither those of collation nor those of ``training_step``, such as dropout's."""
    drawn: list[Any] = []

    def draw() -> None:
        if callback._run is not None:  # before, a few records are tried
            drawn.append(draw_everywhere())

    class Drawing(Module):
        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            draw()
            return super().training_step(batch, batch_idx)

        def on_train_batch_end(self, *_: Any) -> None:
            seed_everywhere(1)

    def collate(records: list[Any]) -> Any:
        draw()
        return default_collate(records)

    for number in range(2):
        module, callback = Drawing(), a_callback(tmp_path / str(number))
        seed_everywhere(0)
        before = rng_states(torch.device("cpu"))
        a_trainer(tmp_path, callback, max_steps=3).fit(module, a_loader(collate_fn=collate))
        assert rng_states(torch.device("cpu")) == before
    assert len(drawn) >= 2 * 2 * 3
    assert all(len(set(numbers)) == len(drawn) for numbers in zip(*drawn, strict=True))


def test_progress_bars_count_steps_and_not_physical_batches(tmp_path: Path) -> None:
    shown: list[int] = []

    class Bar(ProgressBar):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            shown.append(batch_idx + 1)

    bar, callback = Bar(), a_callback(tmp_path, physical_batch=2)
    a_trainer(tmp_path, bar, callback, enable_progress_bar=True, max_steps=8).fit(Module(), a_loader())
    assert len(shown) > 8
    assert list(dict.fromkeys(shown)) == [1, 2, 3, 4]  # in each of two epochs
    assert "on_train_batch_end" not in vars(bar)


@pytest.fixture(autouse=True)
def _restored_generator() -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        yield
