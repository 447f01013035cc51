"""What every layer rule promises, for every rule that there is: a new one is tested by one line of ``LAYERS``."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lehr.gradients.rules  # noqa: F401  (teaches the rules)
from lehr.clipping.flat import FlatClip
from lehr.gradients.fixed_statistics import FixedStatistics
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import layer_rule, layer_rules
from lehr.networks.gain import Gain
from tests.gradients.oracle import (
    assert_agrees,
    assert_close,
    assert_same,
    assert_same_sums,
    batch,
    ghost,
    loop,
    squared_distance,
)
from tests.gradients.standardised import standardised_convolution


def with_statistics(layer: nn.Module) -> nn.Module:
    """A BatchNorm that normalises with statistics that it was given, as it must to be private."""
    layer.get_buffer("running_mean").copy_(torch.tensor([0.5, -1.0, 2.0]))
    layer.get_buffer("running_var").copy_(torch.tensor([0.5, 1.0, 2.0]))
    return layer.eval()


# One layer of each kind, and the shape of one record's input.
LAYERS: dict[type[nn.Module], tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    nn.Linear: (lambda: nn.Linear(6, 5), (4, 6)),
    nn.Conv1d: (lambda: nn.Conv1d(2, 4, 3, stride=2), (2, 6)),
    nn.Conv2d: (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=2), (4, 5, 6)),
    nn.Conv3d: (lambda: nn.Conv3d(1, 3, 2, padding=1), (1, 3, 4, 6)),
    nn.ConvTranspose1d: (lambda: nn.ConvTranspose1d(2, 4, 3, stride=2), (2, 6)),
    nn.ConvTranspose2d: (lambda: nn.ConvTranspose2d(4, 2, 3, padding=1, groups=2), (4, 3, 6)),
    nn.ConvTranspose3d: (lambda: nn.ConvTranspose3d(1, 3, 2, padding=1), (1, 3, 4, 6)),
    nn.GroupNorm: (lambda: nn.GroupNorm(2, 4), (4, 3, 6)),
    nn.LayerNorm: (lambda: nn.LayerNorm((3, 6)), (2, 3, 6)),
    nn.RMSNorm: (lambda: nn.RMSNorm(6), (3, 6)),
    nn.InstanceNorm1d: (lambda: nn.InstanceNorm1d(3, affine=True), (3, 6)),
    nn.InstanceNorm2d: (lambda: nn.InstanceNorm2d(3, affine=True), (3, 2, 6)),
    nn.InstanceNorm3d: (lambda: nn.InstanceNorm3d(3, affine=True), (3, 2, 2, 6)),
    nn.BatchNorm1d: (lambda: with_statistics(nn.BatchNorm1d(3)), (3, 6)),
    nn.BatchNorm2d: (lambda: with_statistics(nn.BatchNorm2d(3)), (3, 2, 6)),
    nn.BatchNorm3d: (lambda: with_statistics(nn.BatchNorm3d(3)), (3, 2, 2, 6)),
    nn.SyncBatchNorm: (lambda: with_statistics(nn.SyncBatchNorm(3)), (3, 6)),
    FixedStatistics: (
        lambda: FixedStatistics(torch.ones(3), torch.arange(1, 4), weight=torch.ones(3), bias=torch.ones(3)),
        (3, 6),
    ),
    Gain: (lambda: Gain(0.5), (3, 6)),
    nn.PReLU: (lambda: nn.PReLU(3), (3, 6)),
    nn.Embedding: (lambda: nn.Embedding(7, 6, padding_idx=2), (4,)),
    nn.EmbeddingBag: (lambda: nn.EmbeddingBag(7, 6, mode="mean", padding_idx=2), (4,)),
    nn.MultiheadAttention: (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (3, 6)),
}
KINDS = sorted(LAYERS, key=lambda kind: kind.__name__)
OF_FLOATS = [kind for kind in KINDS if kind not in (nn.Embedding, nn.EmbeddingBag)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


class Around(nn.Module):
    """The layer behind another one, so that what it passes back is tested as well as what it keeps."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.other = nn.Linear(6, 6)
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        if not inputs.is_floating_point():
            return torch.tanh(self.other(self.layer(inputs)))
        passed = torch.tanh(self.other(inputs))
        outputs = self.layer(passed, passed, passed)[0] if self.attends else self.layer(passed)
        return torch.as_tensor(outputs)

    @property
    def attends(self) -> bool:
        return isinstance(self.layer, nn.MultiheadAttention)


class WithGain(nn.Module):
    """With a parameter that belongs to no layer, so that every record gets its own copy of it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.gain = nn.Parameter(torch.tensor(0.7))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled: Tensor = self.model(inputs) * self.gain
        return scaled


def model_of(kind: type[nn.Module]) -> Around:
    torch.manual_seed(0)
    model = Around(LAYERS[kind][0]()).double()
    with torch.no_grad():
        for parameter in model.parameters():  # some begin as zeros or ones, which would hide a forgotten factor
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch_of(kind: type[nn.Module], records: int, *, views: int = 1) -> tuple[Tensor, Tensor]:
    shape = (records, *((views,) if views > 1 else ()), *LAYERS[kind][1])
    inputs, targets_B = batch(*shape)  # noqa: N806
    return inputs if kind in OF_FLOATS else (3 * inputs).long().remainder(7), targets_B


def test_every_rule_is_tested_here() -> None:
    # Layers of a door, which are there once it was opened, are tested beside it.
    known = {kind for kind in layer_rules() if kind.__module__.startswith(("torch.", "lehr."))}
    assert {kind for kind in known if not kind.__module__.startswith("lehr.compat.")} == set(LAYERS)


@every_kind
@pytest.mark.parametrize("records", [0, 1, 5])
def test_norms_and_sums_are_those_of_a_loop(kind: type[nn.Module], records: int) -> None:
    assert_agrees(model_of(kind), *batch_of(kind, records))


@every_kind
@pytest.mark.parametrize("records", [0, 1, 3])
def test_views_of_one_record_are_averaged_first(kind: type[nn.Module], records: int) -> None:
    assert_agrees(model_of(kind), *batch_of(kind, records, views=2), views=2)


@every_kind
@pytest.mark.parametrize("views", [1, 2])
def test_beside_a_parameter_without_a_rule_nothing_changes(kind: type[nn.Module], views: int) -> None:
    assert_agrees(WithGain(model_of(kind)).double(), *batch_of(kind, 3, views=views), views=views)


@every_kind
def test_a_frozen_parameter_is_left_out_and_the_others_stay_as_they_were(kind: type[nn.Module]) -> None:
    for name, _ in model_of(kind).named_parameters():
        model = model_of(kind)
        model.get_parameter(name).requires_grad_(False)
        assert_agrees(model, *batch_of(kind, 3))


@every_kind
def test_a_layer_that_is_frozen_whole_passes_gradients_on(kind: type[nn.Module]) -> None:
    model = model_of(kind)
    model.layer.requires_grad_(False)
    assert_agrees(model, *batch_of(kind, 3))


@every_kind
def test_a_record_that_the_mask_leaves_out_counts_as_zero(kind: type[nn.Module]) -> None:
    model, (inputs, targets_B) = model_of(kind), batch_of(kind, 4)  # noqa: N806
    mask_B = torch.tensor([True, False, True, False])  # noqa: N806
    expected = {name: grads * _like(mask_B, grads) for name, grads in loop(model, inputs, targets_B).items()}
    assert_same(ghost(model, inputs, targets_B, mask_B=mask_B), expected, tolerance=1e-10)


@every_kind
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(kind: type[nn.Module], value: float) -> None:
    model, (inputs, targets_B) = model_of(kind), batch_of(kind, 3)  # noqa: N806
    expected = loop(model, inputs, targets_B)
    for grads in expected.values():
        grads[1] = 0
    spoilt_B = targets_B.clone()  # noqa: N806
    spoilt_B[1] = value
    assert_same(ghost(model, inputs, spoilt_B), expected, tolerance=1e-10)
    if inputs.is_floating_point():
        spoilt = inputs.clone()
        spoilt[1] = value
        assert_same(ghost(model, spoilt, targets_B), expected, tolerance=1e-10)


@every_kind
def test_float32_agrees_with_float64(kind: type[nn.Module]) -> None:
    model, (inputs, targets_B) = model_of(kind), batch_of(kind, 5)  # noqa: N806
    expected = loop(model, inputs, targets_B)
    found = ghost(copy.deepcopy(model).float(), _in_float32(inputs), targets_B.float())
    assert_same(found, expected, tolerance=2e-5)


@every_kind
def test_bfloat16_agrees_with_float64_as_far_as_it_can(kind: type[nn.Module]) -> None:
    model, (inputs, targets_B) = model_of(kind), batch_of(kind, 5)  # noqa: N806
    expected = loop(model, inputs, targets_B)
    found = ghost(copy.deepcopy(model).float(), _in_float32(inputs), targets_B.float(), precision="bfloat16")
    assert_same(found, expected, tolerance=0.1)


@every_kind
@pytest.mark.parametrize("precision", ["as_model", "bfloat16"])
def test_the_norm_that_is_reported_is_the_norm_of_what_is_summed(kind: type[nn.Module], precision: str) -> None:
    model, (inputs, targets_B) = model_of(kind).float(), batch_of(kind, 5)  # noqa: N806
    found = ghost(model, _in_float32(inputs), targets_B.float(), precision=precision)
    alone = [found.weighted_sum(row) for row in torch.eye(5)]
    summed_B = torch.stack([torch.cat([part.flatten() for part in row.values()]).norm() for row in alone])  # noqa: N806
    assert_close(found.norms(), summed_B, tolerance=1e-5)


@every_kind
def test_norms_are_kept_in_float32_and_sums_in_float64_under_bfloat16(kind: type[nn.Module]) -> None:
    model, (inputs, targets_B) = model_of(kind).float(), batch_of(kind, 3)  # noqa: N806
    found = ghost(model, _in_float32(inputs), targets_B.float(), precision="bfloat16")
    assert found.norms().dtype == torch.float32
    assert {total.dtype for total in found.weighted_sum(torch.ones(3)).values()} == {torch.float64}


@every_kind
def test_inputs_may_lie_in_memory_in_any_order(kind: type[nn.Module]) -> None:
    inputs, targets_B = batch_of(kind, 3)  # noqa: N806
    turned = inputs.transpose(0, -1).contiguous().transpose(0, -1)
    assert_agrees(model_of(kind), turned, targets_B)
    assert_agrees(model_of(kind), inputs[:1].expand_as(inputs), targets_B)


class Everything(nn.Module):
    """A layer by every rule, a computed weight and a shared one, in one model of images and words."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
            nn.GroupNorm(2, 4),
            nn.PReLU(4),
            standardised_convolution(4, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.BatchNorm2d(4).eval(),
            Gain(),
            nn.ConvTranspose2d(4, 6, 2, groups=2),
            nn.Flatten(2),
        )
        self.words = nn.Embedding(7, 6, padding_idx=0)
        self.bag = nn.EmbeddingBag(7, 6, mode="sum")
        self.first, self.last = nn.LayerNorm(6), nn.RMSNorm(6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.scores = nn.Linear(6, 7)
        self.scores.weight = self.words.weight

    def forward(self, images: Tensor, words: Tensor) -> Tensor:
        seen = self.images(images).transpose(1, 2)
        queries = self.first(self.words(words)) + self.bag(words).unsqueeze(1)
        attended, _ = self.attention(queries, seen, seen, need_weights=False)
        scores: Tensor = self.scores(self.last(attended))
        return scores


@pytest.mark.slow
@pytest.mark.in_turn(2)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_all_rules_together_compile_into_one_graph() -> None:
    torch.manual_seed(0)
    model = Everything()
    used = {rule.contributions for layer in model.modules() if (rule := layer_rule(layer)) is not None}
    assert used == {layer_rules()[kind].contributions for kind in LAYERS}
    images, targets_B = batch(3, 1, 4, 4, dtype=torch.float32)  # noqa: N806
    words = torch.tensor([[1, 2, 2, 0], [3, 3, 3, 1], [6, 5, 4, 0]])
    clip = FlatClip(clip_norm=0.1)
    sums = [
        GhostEngine(model, squared_distance, compiled=compiled).private_sum(clip, (images, words), targets_B).values
        for compiled in (True, False)
    ]
    assert_same_sums(sums[0], sums[1], tolerance=1e-4)


def _in_float32(inputs: Tensor) -> Tensor:
    return inputs.float() if inputs.is_floating_point() else inputs


def _like(values_B: Tensor, other: Tensor) -> Tensor:  # noqa: N803
    return values_B.reshape(-1, *(1 for _ in other.shape[1:]))
