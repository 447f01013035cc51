"""What every layer rule promises, for every rule that there is: a new one is tested by one line of ``LAYERS``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lehr.gradients.rules  # noqa: F401  (teaches the rules)
from lehr.gradients.conversion import FixedStatistics
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import layer_rule, layer_rules
from lehr.networks.layers import Gain
from lehr.privacy.clipping import FlatClip
from tests.gradients.oracle import (
    assert_agrees,
    assert_close,
    assert_same,
    assert_same_sums,
    batch,
    loop,
    squared_distance,
)
from tests.gradients.small_models import Model
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
    FixedStatistics: (lambda: with_statistics(FixedStatistics(3)), (3, 6)),
    Gain: (lambda: Gain(0.5), (3, 6)),
    nn.PReLU: (lambda: nn.PReLU(3), (3, 6)),
    nn.Embedding: (lambda: nn.Embedding(7, 6, padding_idx=2), (4,)),
    nn.EmbeddingBag: (lambda: nn.EmbeddingBag(7, 6, mode="mean", padding_idx=2), (4,)),
    nn.MultiheadAttention: (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (3, 6)),
}
KINDS = sorted(LAYERS, key=lambda kind: kind.__name__)
OF_FLOATS = [kind for kind in KINDS if kind not in (nn.Embedding, nn.EmbeddingBag)]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def around(model: Any, inputs: Tensor) -> Any:
    """The layer behind another one, so that what it passes back is tested as well as what it keeps."""
    if not inputs.is_floating_point():
        return torch.tanh(model.other(model.layer(inputs)))
    passed = torch.tanh(model.other(inputs))
    is_attention = isinstance(model.layer, nn.MultiheadAttention)
    return model.layer(passed, passed, passed)[0] if is_attention else model.layer(passed)


def model_of(kind: type[nn.Module]) -> Any:
    torch.manual_seed(0)
    model = Model(around, other=nn.Linear(6, 6), layer=LAYERS[kind][0]()).double()
    with torch.no_grad():
        for parameter in model.parameters():  # some begin as zeros or ones, which would hide a forgotten factor
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch_of(kind: type[nn.Module], records: int, *, views: int = 1) -> tuple[Tensor, Tensor]:
    shape = (records, *((views,) if views > 1 else ()), *LAYERS[kind][1])
    inputs, targets_B = batch(*shape)
    return inputs if kind in OF_FLOATS else (3 * inputs).long().remainder(7), targets_B


def test_every_rule_is_tested_here() -> None:
    # Layers that are registered when their module is imported are tested beside it.
    elsewhere = ("lehr.integrations.", "lehr.gradients.language_heads")
    known = {kind for kind in layer_rules() if kind.__module__.startswith(("torch.", "lehr."))}
    assert {kind for kind in known if not kind.__module__.startswith(elsewhere)} == set(LAYERS)


@cache
def engine_of(
    kind: type[nn.Module], *, views: int = 1, dtype: torch.dtype = torch.float64, precision: str = "as_model"
) -> tuple[nn.Module, GhostEngine]:
    """A model and its engine, shared by all tests that do not change it."""
    model = model_of(kind).to(dtype)
    return model, GhostEngine(model, squared_distance, views=views, precision=precision, compiled=False)


@every_kind
@pytest.mark.parametrize("views", [1, 2])
def test_norms_and_sums_are_those_of_a_loop(kind: Any, views: int) -> None:
    """Views of one record are averaged first."""
    model, engine = engine_of(kind, views=views)
    for records in (0, 1, 5):
        given = batch_of(kind, records, views=views)
        assert_same(engine.gradients(*given), loop(model, *given, views=views), tolerance=1e-10)


@every_kind
@pytest.mark.parametrize("views", [1, 2])
def test_beside_a_parameter_without_a_rule_nothing_changes(kind: Any, views: int) -> None:
    gain = nn.Parameter(torch.tensor(0.7))  # every record gets its own copy of it
    model = Model(lambda model, inputs: model.inner(inputs) * model.gain, inner=model_of(kind), gain=gain).double()
    assert_agrees(model, *batch_of(kind, 3, views=views), views=views, by_engine=True)


@every_kind
def test_a_frozen_parameter_is_left_out_and_the_others_stay_as_they_were(kind: Any) -> None:
    of_layer = [f"layer.{name}" for name, _ in model_of(kind).layer.named_parameters()]
    for names in {("other.weight",), (of_layer[0],), tuple(of_layer)}:
        model = model_of(kind)
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        assert_agrees(model, *batch_of(kind, 3))


@every_kind
def test_a_record_that_the_mask_leaves_out_counts_as_zero(kind: Any) -> None:
    (model, engine), given = engine_of(kind), batch_of(kind, 5)
    mask_B = torch.tensor([True, False, True, False, True])
    expected = {name: grads * _like(mask_B, grads) for name, grads in loop(model, *given).items()}
    assert_same(engine.gradients(*given, mask_B), expected, tolerance=1e-10)


@every_kind
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_record_whose_gradient_is_not_finite_counts_as_zero(kind: Any, value: float) -> None:
    (model, engine), (inputs, targets_B) = engine_of(kind), batch_of(kind, 5)
    expected = loop(model, inputs, targets_B)
    for grads in expected.values():
        grads[1] = 0
    spoilt_B = targets_B.clone()
    spoilt_B[1] = value
    assert_same(engine.gradients(inputs, spoilt_B), expected, tolerance=1e-10)
    if inputs.is_floating_point():
        spoilt = inputs.clone()
        spoilt[1] = value
        assert_same(engine.gradients(spoilt, targets_B), expected, tolerance=1e-10)


@every_kind
@pytest.mark.parametrize("precision, tolerance", [("as_model", 2e-5), ("bfloat16", 0.1)])
def test_a_narrow_type_agrees_with_float64_as_far_as_it_can(kind: Any, precision: str, tolerance: float) -> None:
    """And the norm that is reported is the norm of what is summed."""
    inputs, targets_B = batch_of(kind, 5)
    expected = loop(model_of(kind), inputs, targets_B)
    _, engine = engine_of(kind, dtype=torch.float32, precision=precision)
    found = engine.gradients(inputs.float() if inputs.is_floating_point() else inputs, targets_B.float())
    assert_same(found, expected, tolerance=tolerance)
    alone = [found.weighted_sum(row) for row in torch.eye(5)]
    summed_B = torch.stack([torch.cat([part.flatten() for part in row.values()]).norm() for row in alone])
    assert_close(found.norms(), summed_B, tolerance=1e-5)
    assert found.norms().dtype == torch.float32
    assert {total.dtype for row in alone for total in row.values()} == {torch.float64}


@every_kind
def test_inputs_may_lie_in_memory_in_any_order(kind: Any) -> None:
    (model, engine), (inputs, targets_B) = engine_of(kind), batch_of(kind, 5)
    turned = inputs.transpose(0, -1).contiguous().transpose(0, -1)
    for given in (turned, inputs[:1].expand_as(inputs)):
        assert_same(engine.gradients(given, targets_B), loop(model, given, targets_B), tolerance=1e-10)


def everything() -> nn.Module:
    """A layer by every rule, a computed weight and a shared one, in one model of images and words."""

    def run(model: Any, images: Tensor, words: Tensor) -> Any:
        seen = model.images(images).transpose(1, 2)
        queries = model.first(model.words(words)) + model.bag(words).unsqueeze(1)
        attended, _ = model.attention(queries, seen, seen, need_weights=False)
        return model.scores(model.last(attended))

    model: Any = Model(
        run,
        images=nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, padding_mode="circular"),
            nn.GroupNorm(2, 4),
            nn.PReLU(4),
            standardised_convolution(4, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.BatchNorm2d(4).eval(),
            Gain(),
            nn.ConvTranspose2d(4, 6, 2, groups=2),
            nn.Flatten(2),
        ),
        words=nn.Embedding(7, 6, padding_idx=0),
        bag=nn.EmbeddingBag(7, 6, mode="sum"),
        first=nn.LayerNorm(6),
        last=nn.RMSNorm(6),
        attention=nn.MultiheadAttention(6, 2, batch_first=True),
        scores=nn.Linear(6, 7),
    )
    model.scores.weight = model.words.weight
    return model  # type: ignore[no-any-return]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")
def test_all_rules_together_compile_into_one_graph() -> None:
    torch.manual_seed(0)
    model = everything()
    used = {rule.contributions for layer in model.modules() if (rule := layer_rule(layer)) is not None}
    assert used == {layer_rules()[kind].contributions for kind in LAYERS}
    images, targets_B = batch(3, 1, 4, 4, dtype=torch.float32)
    words = torch.tensor([[1, 2, 2, 0], [3, 3, 3, 1], [6, 5, 4, 0]])
    clip = FlatClip(clip_norm=0.1)
    sums = [
        GhostEngine(model, squared_distance, compiled=compiled).private_sum(clip, (images, words), targets_B).values
        for compiled in (True, False)
    ]
    assert_same_sums(sums[0], sums[1], tolerance=1e-4)


def _like(values_B: Tensor, other: Tensor) -> Tensor:
    return values_B.reshape(-1, *(1 for _ in other.shape[1:]))
