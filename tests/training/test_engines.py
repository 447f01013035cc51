"""Physical batch sizes, engines that are tried before a run, checks of the model, and the probe of its rounding."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.data import InMemory, Preparation
from lehr.data.augmentation import augmentation_by_name
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import ghost
from lehr.gradients.ghost import GhostEngine
from lehr.methods.dpsgd import dpsgd
from lehr.networks import build
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.training.engines import (
    LARGEST_PHYSICAL_BATCH,
    _work,
    engine_for,
    is_worth_compiling,
    padding,
    physical_batch_for,
    probe,
    record_bytes,
    try_model,
    zeros_like,
)
from lehr.training.records import InputPipeline, RunRecords
from tests.gradients.one_by_one import OneByOneEngine
from tests.training.tiny import PRIVATE, linear

CPU = torch.device("cpu")
CLIP = FlatClip(0.5)
PREPARATION = Preparation(mean=(0.5,), std=(0.5,))
RECORDS = RunRecords(name="tiny", private=InMemory(*PRIVATE), records=40, num_classes=3, preparation=PREPARATION)


def padded_fraction(given: Plan, size: int) -> float:
    """The share of records in physical batches of this size that are padding, on average."""
    return 1 - given.expected_batch_size / _work(given.expected_batch_size, size, overhead=0)


def plan(*, batch: float, records: int = 60_000, steps: int = 100) -> Plan:
    return Plan(noise_multiplier=1.0, expected_batch_size=batch, records=records, steps=steps, delta=1e-5)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def losses_with_a_word(outputs: Tensor, targets: Tensor) -> Tensor:
    """As ``losses``; the standard output cannot be part of a compiled graph."""
    print(end="")  # noqa: T201
    return losses(outputs, targets)


def made(loss_fn: Any = losses, *, model: nn.Module | None = None, compiled: bool = False, **said: Any) -> Any:
    padding = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    settings = {"views": 1, "precision": "as_model", "clipping": CLIP, "padding": padding, **said}
    return engine_for(model or linear(), loss_fn, compiled=compiled, **settings)


@pytest.mark.parametrize("batch", [0.5, 1, 8, 64, 200, 2048, 20_000])
def test_physical_batches_are_bounded_multiples_of_eight(batch: float) -> None:
    size = physical_batch_for(plan(batch=batch), CPU)
    assert 8 <= size <= LARGEST_PHYSICAL_BATCH
    assert size % 8 == 0


def test_little_is_padded_and_a_gpu_takes_more_at_once() -> None:
    large = plan(batch=2048)
    size = physical_batch_for(large, CPU)
    assert 0 < padded_fraction(large, size) < 0.08
    gpu = torch.device("cuda")
    assert physical_batch_for(large, gpu, record_bytes=10_000) > 2048 > size
    assert physical_batch_for(large, gpu, record_bytes=2**30) <= LARGEST_PHYSICAL_BATCH
    # Records that take long are not worth padding: six of these hold most draws, where five of 1,024 have more room.
    assert physical_batch_for(plan(batch=4096), gpu, record_bytes=10**7) == 704


def test_bytes_of_a_record_are_those_of_all_outputs() -> None:
    private = InMemory(torch.zeros(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64))
    records = RunRecords(name="", private=private, records=2, num_classes=3, preparation=Preparation())
    pipeline = InputPipeline(preparation=Preparation(), augmentation=augmentation_by_name("none"), views=2, device=CPU)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Linear(5, 3))
    assert record_bytes(model, records, pipeline) == 2 * 4 * (16 + 5 + 3)


def test_padded_fraction_is_that_of_drawn_batches() -> None:
    drawn = np.random.default_rng(0).binomial(60_000, 64 / 60_000, size=40_000)
    run = np.maximum(1, np.ceil(drawn / 24)) * 24
    assert padded_fraction(plan(batch=64), 24) == pytest.approx(1 - drawn.mean() / run.mean(), abs=0.005)


def test_only_long_runs_are_worth_compiling() -> None:
    assert is_worth_compiling(plan(batch=2048, steps=1000), CLIP)
    assert not is_worth_compiling(plan(batch=8, steps=100), CLIP)


def test_uncompiled_engine_gives_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, runs = made()
    assert runs == "not compiled"


def test_two_passes_are_another_way_to_run_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has less memory after a crash must not repeat its steps in two passes: they round differently."""
    monkeypatch.setattr(ghost, "free_memory", lambda device: 0)
    _, runs = made()
    assert runs == "in two passes, not compiled"


def test_a_step_that_cannot_be_compiled_runs_uncompiled_with_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"the step is not compiled, and slower: \S+"):
        engine, runs = made(losses_with_a_word, compiled=True)
    assert runs == "not compiled"
    plain, _ = made()
    inputs, targets = PRIVATE[0][:4], PRIVATE[1][:4]
    mask = torch.tensor([True, True, False, True])
    got, want = (each.private_sum(CLIP, inputs, targets, mask).values for each in (engine, plain))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value)


@pytest.mark.parametrize("compiled", [False, True])
def test_model_that_cannot_be_private_is_refused(compiled: bool) -> None:
    with pytest.raises(NotPrivate, match="BatchNorm2d"):
        made(model=nn.Sequential(nn.BatchNorm2d(1), *linear()), compiled=compiled)


class Spoilt(nn.Module):
    """Right outputs, and gradients that are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.layer(images.flatten(1))
        return outputs + (outputs - outputs.detach()).abs().sqrt()  # of zero, with a slope that is infinite


def test_model_without_finite_gradients_is_warned_about() -> None:
    with pytest.warns(UserWarning, match="all zero or not finite"):
        made(model=Spoilt())


class Mixing(nn.Module):
    """Does something to the whole batch, from four records on, before a linear layer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, linear()

    def forward(self, images: Tensor) -> Tensor:
        if self.kind == "centred" and images.shape[0] >= 4:
            images = images - images.mean(0)
        if self.kind == "sorted":
            order = images.flatten(1).sum(1).argsort()
            return self.layer(images[order])[order.argsort()]  # type: ignore[no-any-return]
        if self.kind == "branching" and images.mean() > 3:
            images = images - images.mean(0)
        return self.layer(images)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", ["centred", "sorted", "branching"])
def test_model_that_mixes_its_batch_keeps_the_sensitivity(kind: str) -> None:
    engine, _ = made(model=Mixing(kind), clipping=FlatClip(1e-2))
    images, labels = PRIVATE[0][:4].clone(), PRIVATE[1][:4]
    images[0] *= 1000
    everyone, one_less = torch.ones(4, dtype=torch.bool), torch.tensor([False, True, True, True])
    without = images.clone()
    without[0] = 0  # as padding does
    sums = [
        engine.private_sum(FlatClip(1e-2), images, labels, everyone),
        engine.private_sum(FlatClip(1e-2), without, labels, one_less),
    ]
    moved = sum(float((sums[0].values[name] - sums[1].values[name]).square().sum()) for name in sums[0].values) ** 0.5
    assert moved <= sums[0].sensitivity * (1 + 1e-5)


class Reads(nn.Module):
    """A recurrent layer over the rows of an image."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cell, self.head = kind(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.cell(images.squeeze(1))[0].mean(1))
        return outputs


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("compiled", [True, False])
def test_recurrent_models_materialise_gradients(kind: Any, compiled: bool) -> None:
    model = Reads(kind)
    engine, how = made(model=model, compiled=compiled)
    assert how == "in full, not compiled"
    batch = torch.randn(4, 1, 4, 4), torch.arange(4) % 3
    expected = CLIP(OneByOneEngine(model, losses).gradients(*batch)).values
    found = engine.private_sum(CLIP, *batch).values
    assert all(torch.allclose(found[name], value, atol=1e-5) for name, value in expected.items())


def test_materialised_gradients_need_the_models_precision() -> None:
    with pytest.raises(InvalidValue, match="precision must be as_model"):
        made(model=Reads(nn.GRU), precision="bfloat16")


def pipeline(views: int = 1) -> InputPipeline:
    return InputPipeline(preparation=PREPARATION, augmentation=augmentation_by_name("none"), views=views, device=CPU)


def check(model: nn.Module, *, loss_fn: Any = losses, is_scored: bool = True) -> None:
    try_model(model, loss_fn=loss_fn, pipeline=pipeline(), records=RECORDS, is_scored=is_scored)


class Recorder(nn.Module):
    """Records its inputs and modes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear()
        self.seen: list[Tensor] = []
        self.modes: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.seen.append(inputs)
        self.modes.append(self.training)
        outputs: Tensor = self.inner(inputs)
        return outputs


def test_zeros_and_padding_contain_no_record() -> None:
    zeros = zeros_like(RECORDS, 5, CPU)
    assert zeros.inputs.shape == (5, 1, 4, 4)
    assert (zeros.inputs.dtype, zeros.targets.dtype) == (torch.float32, torch.int64)
    assert not zeros.inputs.any()
    assert not zeros.targets.any()
    inputs, targets, mask_P = padding(RECORDS, pipeline(views=2), 6)
    assert isinstance(inputs, Tensor)
    assert (inputs.shape, len(targets), int(mask_P.sum())) == ((6, 2, 1, 4, 4), 6, 0)


def test_model_is_checked_on_zeros_and_left_as_it_was() -> None:
    model = Recorder().train()
    check(model)
    blank = (0 - 0.5) / 0.5
    assert model.seen
    assert all(bool((seen == blank).all()) for seen in model.seen)
    assert not any(model.modes)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_more_outputs_than_classes_are_allowed() -> None:
    check(linear(outputs=7))


def test_only_models_with_class_outputs_are_evaluated() -> None:
    def each_pixel(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.flatten(1).mean(1) * targets

    dense = nn.Conv2d(1, 3, 1)
    check(dense, loss_fn=each_pixel, is_scored=False)
    with pytest.raises(InvalidValue) as caught:
        check(dense, loss_fn=each_pixel)
    assert caught.value.name == "model"


class HalfPrecision(nn.Module):
    """Has bfloat16 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = linear().bfloat16()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.inner(inputs.bfloat16())
        return outputs.float()


def test_trained_weights_in_half_precision_are_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"inner.* is in torch.bfloat16"):
        check(HalfPrecision())
    check(HalfPrecision().float().requires_grad_(False).bfloat16())


def probed(model: nn.Module, *, learning_rate: float = 0.5, inputs: Tensor | None = None) -> str:
    held = PRIVATE[0] if inputs is None else inputs
    records = RunRecords(
        name="tiny", private=InMemory(held, PRIVATE[1]), records=40, num_classes=3, preparation=PREPARATION
    )
    engine, method = GhostEngine(model, losses, compiled=False), dpsgd(learning_rate=learning_rate)
    return probe(model, engine, method, losses, pipeline=pipeline(), records=records, size=8)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3))


def test_probe_depends_on_the_program_and_not_on_weights_or_records() -> None:
    first = probed(network())
    assert probed(network()) == probed(network(seed=1)) == first
    assert probed(network(), inputs=torch.rand(48, 1, 4, 4)) == first
    assert probed(network(), learning_rate=0.4) != first


def test_probe_restores_weights_gradients_and_generators() -> None:
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    probed(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


def test_probe_of_a_network_with_scalars_and_pointwise_convolutions() -> None:
    def residual() -> nn.Module:
        torch.manual_seed(0)
        return build("nf_resnet", num_blocks=[1], stem_channels=2, stem="small", in_channels=1, num_classes=3)

    assert probed(residual()) == probed(residual())
