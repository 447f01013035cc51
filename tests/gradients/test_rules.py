"""The options of every kind of layer. What all rules promise is in tests/contracts/test_layer_rules.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import rules
from lehr.gradients.conversion import frozen_statistics
from lehr.interfaces import Site, layer_rule
from tests.gradients.oracle import assert_agrees, batch, ghost, loop
from tests.gradients.small_models import Model


def rule_of(layer: nn.Module) -> Any:
    rule = layer_rule(layer)
    assert rule is not None
    return rule


def with_views(views: int, *shape: int) -> tuple[int, ...]:
    return (shape[0], *((views,) if views > 1 else ()), *shape[1:])


def with_one_weight(one: Any, other: Any, *more: nn.Module) -> nn.Module:
    other.weight = one.weight
    return nn.Sequential(one, nn.Tanh(), *more, other)


def twice(layer: nn.Module) -> nn.Module:
    return nn.Sequential(layer, nn.Tanh(), layer)


def attention_twice() -> nn.Module:
    def run(model: Any, x: Tensor) -> Tensor:
        once, _ = model.attention(x, x, x)
        return torch.as_tensor(model.attention(x, once, once)[0])

    return Model(run, attention=nn.MultiheadAttention(6, 2, batch_first=True, add_bias_kv=True))


def around(layer: nn.Module, run: Callable[[Any, Tensor], Any]) -> nn.Module:
    return Model(lambda model, x: run(model.layer, x), layer=layer)


def channels_moved_last(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.as_tensor(layer(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


# Models, and the shape of one record. Each use of a layer that is used twice adds to one gradient.
AGREEING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear, twice": (lambda: twice(nn.Linear(20, 20)), (20,)),
    "linear on sequences, twice": (lambda: twice(nn.Linear(20, 20)), (4, 20)),
    "one weight in two linear layers": (lambda: with_one_weight(nn.Linear(6, 6), nn.Linear(6, 6)), (6,)),
    "one slope, twice": (lambda: with_one_weight(nn.PReLU(), nn.PReLU(), nn.Linear(4, 4)), (4,)),
    "one slope for all": (lambda: nn.PReLU(), (1, 5)),
    "a slope per feature": (lambda: nn.PReLU(4), (4,)),
    "a slope per channel": (lambda: nn.PReLU(4), (4, 2, 2)),
    "group norm, twice": (lambda: twice(nn.GroupNorm(2, 4)), (4, 5)),
    "convolution on images of one size": (lambda: twice(nn.Conv2d(2, 2, 3, padding=1)), (2, 5, 5)),
    "convolution on images of two sizes": (lambda: twice(nn.Conv2d(2, 2, 3)), (2, 7, 6)),
    "one weight with two strides": (
        lambda: with_one_weight(nn.Conv1d(2, 2, 3, padding=1), nn.Conv1d(2, 2, 3, stride=2)),
        (2, 7),
    ),
    # Here the products of places are cheaper than the gradient.
    "small images with many channels": (lambda: nn.Conv2d(24, 40, 3, padding=1), (24, 3, 3)),
    "small images, reflected": (lambda: nn.Conv2d(24, 40, 3, padding=1, padding_mode="reflect"), (24, 2, 2)),
    "attention, twice": (attention_twice, (4, 6)),
    "a layer that is never called": (
        lambda: Model(lambda model, x: model.first(x), first=nn.Linear(4, 3), second=nn.Linear(3, 2)),
        (4,),
    ),
    "records flattened into positions": (
        lambda: around(nn.Linear(5, 4), lambda layer, x: layer(x.flatten(0, 1)).reshape(*x.shape[:2], -1)),
        (4, 5),
    ),
    "frames flattened into images": (
        lambda: around(nn.Conv2d(1, 2, 3), lambda layer, x: layer(x.flatten(0, 1)).reshape(x.shape[0], -1)),
        (3, 1, 4, 4),
    ),
    "the size of an output with the call": (
        lambda: around(nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1), lambda layer, x: layer(x, output_size=(8, 7))),
        (2, 4, 4),
    ),
    "layer norm without gain": (
        lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5, elementwise_affine=False)),
        (2, 4),
    ),
    "rms norm without gain": (lambda: nn.Sequential(nn.Linear(4, 5), nn.RMSNorm(5, elementwise_affine=False)), (2, 4)),
    "group norm without gain": (lambda: nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4, affine=False)), (2, 5)),
    "channels moved last": (lambda: around(nn.LayerNorm(4), channels_moved_last), (4, 3, 2)),
    "an encoder layer": (lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), (4, 6)),
    "an encoder layer, evaluated": (lambda: nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).eval(), (4, 6)),
    "an encoder layer, norm first": (
        lambda: nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, norm_first=True),
        (4, 6),
    ),
    "a decoder layer": (
        lambda: around(
            nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True),
            lambda layer, x: layer(x, x.flip(1)[:, 1:]),
        ),
        (4, 6),
    ),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("name", AGREEING)
def test_models_agree_with_a_loop(name: str, views: int) -> None:
    build, shape = AGREEING[name]
    assert_agrees(build().double(), *batch(*with_views(views, 3, *shape)), views=views)


@settings(max_examples=25)
@given(
    records=st.integers(1, 3),
    between=st.lists(st.integers(0, 4), max_size=2),
    inputs=st.integers(1, 24),
    outputs=st.integers(1, 24),
    bias=st.booleans(),
)
def test_a_linear_layer_of_any_shape(records: int, between: list[int], inputs: int, outputs: int, bias: bool) -> None:
    padded = nn.Sequential(nn.Linear(inputs, outputs, bias=bias), nn.Flatten(1), nn.ConstantPad1d((0, 3), 1.0))
    assert_agrees(padded.double(), *batch(records, *between, inputs))


@pytest.mark.parametrize("records, positions", [(1, 4), (3, 1), (3, 3), (3, 4)])
def test_positions_may_come_before_records(records: int, positions: int) -> None:
    encoder = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0)
    for layer, width in ((nn.Linear(5, 4), 5), (encoder, 6)):
        model = around(layer, lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1))
        assert_agrees(model.double(), *batch(records, positions, width), by_engine=True)


def words(*shape: int, rows: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, rows, shape, generator=generator), batch(*shape)[1]


@settings(max_examples=20)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    rows=st.integers(1, 6),
    columns=st.integers(1, 4),
    padding=st.booleans(),
)
def test_a_table_of_any_shape(shape: list[int], rows: int, columns: int, padding: bool) -> None:
    table = nn.Embedding(rows, columns, padding_idx=rows - 1 if padding else None)
    nn.init.normal_(table.weight)  # the padding row too, which is no zero once it was loaded
    assert_agrees(table.double(), *words(*shape, rows=rows))


@pytest.mark.parametrize("positions, bias", [(1, True), (4, False), (12, True)])
def test_a_table_tied_to_the_last_layer_or_used_twice_counts_the_product_between_its_uses(
    positions: int, bias: bool
) -> None:
    tied: Any = Model(
        lambda model, words: model.scores(torch.tanh(model.middle(model.words(words)))),
        words=nn.Embedding(9, 5),
        middle=nn.Linear(5, 5),
        scores=nn.Linear(5, 9, bias=bias),
    )
    tied.scores.weight = tied.words.weight
    assert_agrees(tied.double(), *words(3, positions))
    twice = around(nn.Embedding(9, 3), lambda table, words: torch.cat([table(words), table(words.flip(1)).square()], 1))
    assert_agrees(twice.double(), *words(3, positions))


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_head_with_more_columns_than_it_has_outputs(monkeypatch: pytest.MonkeyPatch, is_tied: bool) -> None:
    """As on a GPU, where an odd number of outputs is filled up."""
    monkeypatch.setattr(rules, "_is_padded", lambda layer, values: layer.out_features == 37)
    table, head = nn.Embedding(37, 6), nn.Linear(6, 37, bias=not is_tied)
    model = with_one_weight(table, head, nn.Linear(6, 6)) if is_tied else nn.Sequential(table, nn.Tanh(), head)
    for by_engine in (False, True):
        assert_agrees(model.double(), *words(3, 4, rows=37), by_engine=by_engine)


def test_a_large_table_is_never_stored_record_by_record() -> None:
    """A record's dense gradient would take 13 MB here, and all of them 26 GB."""
    found = ghost(nn.Embedding(50_000, 64), torch.arange(2048 * 3).reshape(2048, 3) * 7, torch.zeros(2048))
    assert found.norms().shape == (2048,)


BAGS = torch.tensor([[1, 1, 2, 0], [0, 3, 5, 3], [4, 4, 4, 4], [0, 0, 0, 0]])


@pytest.mark.parametrize("mode, is_weighted", [("sum", False), ("mean", False), ("max", False), ("sum", True)])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_bags_in_every_mode(mode: str, is_weighted: bool, padding_idx: int | None) -> None:
    def run(model: Any, words: Tensor, weights: Tensor) -> Any:
        return model.table(words, per_sample_weights=weights if is_weighted else None)

    weights, targets_B = batch(4, 4)
    model = Model(run, table=nn.EmbeddingBag(6, 4, mode=mode, padding_idx=padding_idx))
    assert_agrees(model.double(), (BAGS, weights), targets_B)


# Convolutions.

PLAIN: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, Any] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@settings(max_examples=25)
@given(data=st.data(), dimensions=st.integers(1, 3), groups=st.sampled_from([1, 2]), views=st.sampled_from([1, 2]))
def test_a_convolution_of_any_shape(data: Any, dimensions: int, groups: int, views: int) -> None:
    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(data.draw(st.tuples(*[st.integers(low, high)] * dimensions)))

    channels, outputs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 8))
    options = {"stride": each(1, 2), "padding": each(0, 2), "dilation": each(1, 2), "bias": data.draw(st.booleans())}
    layer = PLAIN[dimensions](channels, outputs, each(1, 3), groups=groups, **options)
    shape = with_views(views, data.draw(st.integers(1, 3)), channels, *each(5, 7 - dimensions + 1))
    assert_agrees(layer.double(), *batch(*shape), views=views)


@settings(max_examples=25)
@given(data=st.data(), dimensions=st.integers(1, 3), groups=st.sampled_from([1, 2]), views=st.sampled_from([1, 2]))
def test_a_transposed_convolution_of_any_shape(data: Any, dimensions: int, groups: int, views: int) -> None:
    stride, dilation, padding = (data.draw(st.integers(1, 2)) for _ in range(3))
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options["output_padding"] = data.draw(st.integers(0, max(stride, dilation) - 1))
    channels, outputs = groups * data.draw(st.integers(1, 3)), groups * data.draw(st.integers(1, 2))
    layer = TRANSPOSED[dimensions](channels, outputs, data.draw(st.integers(1, 3)), **options)
    assert_agrees(layer.double(), *batch(*with_views(views, 2, channels, *(5,) * dimensions)), views=views)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("dimensions", [1, 2, 3])
@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["same", "valid", "each"])
def test_every_padding(dimensions: int, mode: str, padding: str) -> None:
    amounts: Any = tuple(range(1, dimensions + 1)) if padding == "each" else padding
    kernel, dilation = (4, 3, 2)[:dimensions], (1, 2, 1)[:dimensions]
    layer = PLAIN[dimensions](2, 3, kernel, padding=amounts, dilation=dilation, padding_mode=mode)
    assert_agrees(layer.double(), *batch(2, 2, *(7, 6, 5)[:dimensions]))


# Normalisations.


@settings(max_examples=15)
@given(
    before=st.lists(st.integers(1, 3), max_size=2),
    shape=st.lists(st.integers(2, 4), min_size=1, max_size=2),
    bias=st.booleans(),
    eps=st.sampled_from([None, 1e-3]),
)
def test_layer_norm_and_rms_norm_of_any_shape(
    before: list[int], shape: list[int], bias: bool, eps: float | None
) -> None:
    for layer in (nn.LayerNorm(shape, bias=bias), nn.RMSNorm(shape, eps=eps)):
        assert_agrees(layer.double(), *batch(2, *before, *shape))


@settings(max_examples=15)
@given(groups=st.integers(1, 3), size=st.integers(1, 3), space=st.lists(st.integers(1, 3), max_size=3))
def test_group_norm_of_any_shape(groups: int, size: int, space: list[int]) -> None:
    if size * torch.Size(space).numel() > 1:  # torch refuses to normalise a single number
        assert_agrees(nn.GroupNorm(groups, groups * size).double(), *batch(2, groups * size, *space))


def run_of(layer: nn.Module, *inputs: Tensor, **options: Any) -> tuple[Any, list[Tensor]]:
    """The output of a layer's rule, and what it taps."""
    seen: list[Tensor] = []

    def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
        seen.append(inputs)
        return output

    return rule_of(layer).forward(layer, tap, *inputs, **options), seen


def test_an_input_in_another_order_gives_the_same_and_keeps_its_order() -> None:
    layer = nn.LayerNorm(4)
    nn.init.normal_(layer.weight)
    values = torch.randn(3, 5, 4)
    other = values.transpose(0, 1).contiguous().transpose(0, 1)
    (found, seen), (moved, seen_moved) = run_of(layer, values), run_of(layer, other)
    torch.testing.assert_close((moved, seen_moved), (found, seen))
    assert moved.stride() == other.stride()


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(8).eval(), nn.InstanceNorm2d(8, affine=True), nn.InstanceNorm2d(8)], ids=str
)
def test_the_memory_format_is_kept(layer: nn.Module) -> None:
    images = torch.randn(2, 8, 4, 4).contiguous(memory_format=torch.channels_last)
    assert run_of(layer, images)[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_eps_that_is_not_given_is_torchs(dtype: torch.dtype) -> None:
    """Inputs as small as the root of eps, so that it decides."""
    inputs, targets_B = batch(3, 4, dtype=dtype)
    small = inputs * torch.finfo(dtype).eps ** 0.5
    assert_agrees(nn.RMSNorm(4).to(dtype), small, targets_B, tolerance=1e-4 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_float32_stays_exact_far_from_zero(mean: float) -> None:
    inputs, targets_B = batch(3, 4, 6, 6)
    layer = nn.GroupNorm(2, 4)
    expected = loop(layer.double(), inputs + mean, targets_B)
    found = ghost(layer.float(), (inputs + mean).float(), targets_B.float())
    norms = torch.cat([grads.flatten(1) for grads in expected.values()], dim=1).norm(dim=1)
    torch.testing.assert_close(found.norms().double(), norms, rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 3)])
def test_copies_of_gain_and_shift_give_what_torch_gives(shape: tuple[int, ...]) -> None:
    """The way that other devices take."""
    layer = nn.GroupNorm(2, 4).double()
    nn.init.normal_(layer.weight)
    inputs = torch.randn(shape, dtype=torch.float64)

    def run(way: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        places: dict[str, tuple[Tensor, Tensor]] = {}

        def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
            output = output.detach().requires_grad_() + 0 * inputs.sum()
            output.retain_grad()
            places[site] = inputs, output
            return output

        outputs = way(layer, tap, inputs)
        outputs.square().sum().backward()  # type: ignore[no-untyped-call]
        sites = {
            name: Site(before.detach().unsqueeze(1), after.grad.unsqueeze(1))  # type: ignore[union-attr]
            for name, (before, after) in places.items()
        }
        return outputs, dict(rules._group_norm_grads(layer, sites))  # type: ignore[arg-type]

    (plain, expected), (copied, found) = run(rules._by_torch), run(rules._by_copies)
    torch.testing.assert_close(copied, plain)
    torch.testing.assert_close(found, expected)


INSTANCE: dict[int, Any] = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_instance_norm_by_its_own_statistics_and_by_fixed_ones(dimensions: int) -> None:
    kind, space = INSTANCE[dimensions], (2, 3, 2)[:dimensions]
    model = nn.Sequential(kind(3, affine=True), nn.Tanh(), kind(3)).double()
    for views in (1, 2):
        assert_agrees(model, *batch(*with_views(views, 2, 3, *space)), views=views)
    layer = kind(3, affine=True, track_running_stats=True).double()
    layer(batch(4, 3, *space, seed=5)[0])  # public records give it statistics
    assert_agrees(layer.eval(), *batch(2, 3, *space))


BATCH_NORMS: list[tuple[Any, tuple[int, ...]]] = [
    (nn.BatchNorm1d, (3,)),
    (nn.BatchNorm1d, (3, 4)),
    (nn.BatchNorm2d, (3, 4, 4)),
    (nn.BatchNorm3d, (3, 2, 2, 2)),
    (nn.SyncBatchNorm, (3, 4, 4)),
]


@pytest.mark.parametrize("kind, shape", BATCH_NORMS)
def test_batch_norm_by_statistics_that_it_was_given(kind: Any, shape: tuple[int, ...]) -> None:
    layer = kind(3).double().eval()
    for values, mean in ((layer.running_mean, 0.0), (layer.weight, 1.0), (layer.bias, 0.0)):
        nn.init.normal_(values, mean)
    nn.init.uniform_(layer.running_var, 0.5, 2)
    inputs, _ = batch(4, *shape)
    torch.testing.assert_close(run_of(layer, inputs)[0], layer(inputs))
    for model, views in product((layer, frozen_statistics(layer)), (1, 2)):
        assert_agrees(model, *batch(*with_views(views, 4, *shape)), views=views)


# Attention.

CAUSAL = torch.ones(4, 4).triu(1).bool()
RIGHT_PADDED = torch.tensor([[False, False, True, True], [False] * 4, [False, False, False, True]])
LEFT_PADDED = torch.tensor([[True, True, False, False], [False] * 4, [True, False, False, False]])


def attention(*, crossed: bool = False, call: dict[str, Any] | None = None, **options: Any) -> nn.Module:
    """Self-attention, or attention from one tensor to two others. Weights that come out are part of the loss."""
    layer = nn.MultiheadAttention(6, 2, **{"batch_first": True, **options})

    def turned(values: Tensor) -> Tensor:
        return values if layer.batch_first else values.transpose(0, 1)

    def run(model: Any, inputs: Tensor, padding: Tensor | None = None) -> Tensor:
        query = turned(inputs)
        key, value = (model.keys(query), model.values(query)) if crossed else (query, query)
        outputs, weights = model.attention(query, key, value, key_padding_mask=padding, **(call or {}))
        rows = turned(outputs).flatten(1)
        return rows if weights is None else torch.cat([rows, weights.flatten(1)], dim=1)

    more = {"keys": nn.Linear(6, layer.kdim), "values": nn.Linear(6, layer.vdim)} if crossed else {}
    return Model(run, attention=layer, **more).double()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True},
        {"crossed": True},
        {"crossed": True, "kdim": 3, "vdim": 5},
        {"crossed": True, "kdim": 3, "vdim": 5, "bias": False},
    ],
    ids=str,
)
def test_every_way_to_build_an_attention(batch_first: bool, options: dict[str, Any]) -> None:
    for need_weights in (True, False):
        model = attention(batch_first=batch_first, call={"need_weights": need_weights}, **options)
        assert_agrees(model, *batch(3, 4, 6), by_engine="crossed" in options and not batch_first)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("mask", [None, CAUSAL, torch.randn(4, 4, dtype=torch.float64)], ids=["none", "bool", "float"])
@pytest.mark.parametrize("appended", [False, True])
def test_every_mask(need_weights: bool, mask: Tensor | None, appended: bool) -> None:
    call = {"need_weights": need_weights, "attn_mask": mask}
    model = attention(call=call, add_bias_kv=appended, add_zero_attn=appended)
    inputs, targets_B = batch(3, 4, 6)
    assert_agrees(model, inputs, targets_B)
    if mask is None or mask.dtype == torch.bool:
        assert_agrees(model, (inputs, RIGHT_PADDED), targets_B)
    if mask is CAUSAL and not appended:
        assert_agrees(attention(call={**call, "is_causal": True}), inputs, targets_B)  # a hint that changes nothing


def test_a_mask_for_every_head_and_the_weights_of_every_head() -> None:
    call = {"attn_mask": torch.randn(6, 4, 4, dtype=torch.float64), "average_attn_weights": False}
    inputs, targets_B = batch(3, 4, 6)
    assert_agrees(attention(call={"average_attn_weights": False}), inputs, targets_B)
    layer: Any = attention(call=call).attention
    torch.testing.assert_close(run_of(layer, *[inputs] * 3, **call)[0], layer(*[inputs] * 3, **call))


def test_a_query_that_sees_nothing_attends_to_nothing() -> None:
    """As torch's does: padding on the left under a causal mask, as language models have it."""
    model = attention(call={"need_weights": False, "attn_mask": CAUSAL})
    inputs, targets_B = batch(3, 4, 6)
    assert (ghost(model, (inputs, LEFT_PADDED), targets_B).norms() > 0).all()
    assert_agrees(model, (inputs, LEFT_PADDED), targets_B)


def test_an_attention_over_records_is_refused() -> None:
    """Without an axis for records they would be taken for the positions of one sequence."""
    alone = Model(lambda model, x: model.layer(x, x, x)[0], layer=nn.MultiheadAttention(6, 2))
    with pytest.raises(NotPrivate):
        ghost(alone.double(), *batch(3, 6))


def test_calls_that_are_refused() -> None:
    offsets = around(
        nn.EmbeddingBag(6, 4), lambda bag, words: bag(words.flatten(), torch.arange(len(words)) * words.shape[1])
    )
    with pytest.raises(InvalidValue, match="EmbeddingBag"):
        ghost(offsets, BAGS, torch.ones(4))
    with pytest.raises(InvalidValue, match="attn_mask"):
        ghost(attention(call={"is_causal": True}), *batch(3, 4, 6))
    with pytest.raises(InvalidValue, match="InstanceNorm2d"):
        run_of(nn.InstanceNorm2d(2, affine=True), torch.randn(2, 3, 3))


def test_an_output_layer_of_another_kind_is_refused() -> None:
    class Other(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return -super().forward(input)

    layer = nn.MultiheadAttention(6, 2)
    assert rule_of(layer).refuses(layer) is None
    layer.out_proj = Other(6, 6)  # type: ignore[assignment]
    assert "out_proj" in str(rule_of(layer).refuses(layer))
