"""Models that keep records apart are proven to; models that mix them are not, whatever hides it from a try."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.gradients.record_axis import References, Trace, why_not_apart
from tests.gradients.one_by_one import OneByOneEngine

RECORDS, WIDTH, CLASSES = 8, 4, 3
Layer: TypeAlias = Callable[[Tensor], Tensor]
Function: TypeAlias = Callable[..., Tensor]


class Around(nn.Module):
    """One layer, and a function that may do something around it."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.function = function

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        return self.function(self.layer, *inputs, **named)


def loss_fn(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def reason(function: Function, *, num_records: int = RECORDS) -> str | None:
    """Why a function of records is not proven to keep them apart, from its input to the gradients of its layer."""
    model = Around(function)

    def compute(trace: Trace) -> list[tuple[str, Tensor]]:
        inputs = trace.records(torch.empty(1, WIDTH))
        weights = {name: trace.public(value, name) for name, value in model.named_parameters()}
        given: list[Tensor] = []

        def layer(values: Tensor) -> Tensor:
            given.append(values)
            output = functional.linear(values, weights["layer.weight"], weights["layer.bias"]).requires_grad_()
            given.append(output)
            return output

        with torch.enable_grad():
            outputs = function(layer, inputs)
            grads: Any = torch.autograd.grad(outputs, given[1::2], trace.like(outputs), allow_unused=True)
        return [("layer", value) for value in (*given[::2], outputs, *(grad for grad in grads if grad is not None))]

    return why_not_apart(compute, model, num_records=num_records, sizes=[WIDTH])


class MeanBackwards(torch.autograd.Function):
    """Leaves everything as it is on the way forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor) -> Tensor:
        return values * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] - grads[0].mean(0) if len(grads[0]) >= 4 else grads[0]


def capacity(layer: Layer, x: Tensor) -> Tensor:
    """An expert takes as many records as fit, and the first come first."""
    chosen = (x[:, 0] > 0).float()
    fits = chosen.cumsum(0) <= max(1, x.shape[0] // 4)
    return layer(x * (chosen * fits).unsqueeze(1))


def sorted_inside(layer: Layer, x: Tensor) -> Tensor:
    order = x[:, 0].argsort()
    return layer(x[order])[order.argsort()]


def unique(layer: Layer, x: Tensor) -> Tensor:
    found, place = torch.unique(x, dim=0, return_inverse=True)
    return layer(found)[place]


def attending(layer: Layer, x: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(layer(x)[None], layer(x)[None], layer(x)[None])[0]


def written_over(layer: Layer, x: Tensor) -> Tensor:
    own = x.clone()
    own[0] = own[-1]
    return layer(own)


def hooked_backwards(layer: Layer, x: Tensor) -> Tensor:
    output = layer(x) * 2
    if output.requires_grad:
        output.register_hook(lambda grad: grad - grad.mean(0))  # type: ignore[no-untyped-call]
    return output


MIXING: dict[str, Function] = {
    "centred": lambda layer, x: layer(x - x.mean(0)),
    "centred from four on": lambda layer, x: layer(x - x.mean(0) if x.shape[0] >= 4 else x),
    "capacity": capacity,
    "sorted inside": sorted_inside,
    "sorted only": lambda layer, x: layer(x[x[:, 0].argsort()]),
    "unique": unique,
    "branching": lambda layer, x: layer(100 * x) if x.mean() > 3 else layer(x),
    "gated": lambda layer, x: layer(torch.where(x.abs().max() > 100, x - x.mean(0), x)),
    "divided": lambda layer, x: layer(x / x.shape[0]),
    "by place": lambda layer, x: layer(x + torch.arange(x.shape[0]).unsqueeze(1)),
    "by public count": lambda layer, x: layer(x * torch.arange(x.shape[0]).sum()),
    "by expanded count": lambda layer, x: layer(x * torch.rand(()).expand(x.shape[0]).sum()),
    "shuffled": lambda layer, x: layer(x[torch.randperm(x.shape[0])]),
    "shifted": lambda layer, x: layer(x.roll(1, 0)),
    "compared": lambda layer, x: layer((x @ x.T) @ x),
    "normalised": lambda layer, x: functional.batch_norm(layer(x), None, None, training=True),
    "attending": attending,
    "written over": written_over,
    "through numpy": lambda layer, x: layer(x - torch.from_numpy(x.detach().numpy().mean(0))),
    "through a list": lambda layer, x: layer(x - torch.tensor(x.detach().tolist()).mean(0)),
    "mixed backwards": lambda layer, x: MeanBackwards.apply(layer(x)),  # type: ignore[no-untyped-call]
    "hooked backwards": hooked_backwards,
    "a loss over all": lambda layer, x: layer(x) * functional.mse_loss(x, x + 1),
    "two blocks": lambda layer, x: layer(torch.cat([x, x + 1])).chunk(2)[0],
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("num_records", [2, RECORDS])
def test_what_mixes_records_is_not_proven(name: str, num_records: int) -> None:
    assert reason(MIXING[name], num_records=num_records) is not None


def test_mixing_that_begins_at_a_size_is_found_at_that_size() -> None:
    def centred_from_a_hundred_on(layer: Layer, x: Tensor) -> Tensor:
        return layer(x - x.mean(0) if x.shape[0] >= 100 else x)

    assert reason(centred_from_a_hundred_on) is None
    assert reason(centred_from_a_hundred_on, num_records=100) is not None


def test_an_operation_without_a_rule_is_not_proven() -> None:
    """A nearest neighbour within the batch, by distances."""
    found = reason(lambda layer, x: layer(x + torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")[:, :1]))
    assert found is not None
    assert "no rule" in found


@pytest.mark.parametrize("name", ["divided", "by public count"])
def test_how_many_records_there_are_must_not_enter_as_a_number(name: str) -> None:
    found = reason(MIXING[name])
    assert found is not None
    assert "how many records" in found


def test_the_layer_and_the_operation_that_mix_are_named(caplog: pytest.LogCaptureFixture) -> None:
    hooked_gradients(Around(MIXING["centred from four on"]).double(), *batch_of("one"))
    assert "aten.mean.dim in the model itself (Around)" in caplog.text


def part_by_part(layer: Layer, x: Tensor) -> Tensor:
    values = torch.zeros(x.shape[0], 9)
    values[:, :WIDTH] = x
    values[:, 5] = x.sum(1)
    values[:, 6:] = 1
    return layer(values[:, 3 : 3 + WIDTH])


def last_word(layer: Layer, x: Tensor) -> Tensor:
    last = x.argmax(1) % CLASSES
    return layer(x)[torch.arange(x.shape[0]), last].unsqueeze(1) + layer(x)


def asserting(layer: Layer, x: Tensor) -> Tensor:
    if (x > 100).any():
        raise ValueError("too large")
    return layer(x)


def warning(layer: Layer, x: Tensor) -> Tensor:
    if (x == 0).any():
        str(x.shape)
    return layer(x)


def with_a_token(layer: Layer, x: Tensor) -> Tensor:
    token = torch.rand(1, 1, WIDTH).expand(x.shape[0], -1, -1)
    return layer(torch.cat([token, x.unsqueeze(1)], 1)).mean(1)


def in_heads(layer: Layer, x: Tensor) -> Tensor:
    heads = layer(x.unsqueeze(1).expand(-1, 6, -1)).reshape(x.shape[0] * 2, 3, CLASSES)
    scores = heads @ heads.transpose(1, 2) + torch.rand(2, 3, 3).repeat(x.shape[0], 1, 1)
    return (scores.softmax(-1) @ heads).reshape(x.shape[0], 6, CLASSES).mean(1)


def each_normalised(layer: Layer, x: Tensor) -> Tensor:
    hidden = layer(x.unsqueeze(1).expand(-1, 5, -1)).transpose(1, 2)
    return functional.instance_norm(hidden, weight=torch.rand(CLASSES)).mean(2)


def by_given_statistics(layer: Layer, x: Tensor) -> Tensor:
    return functional.batch_norm(layer(x), torch.rand(CLASSES), torch.rand(CLASSES), torch.rand(CLASSES))


def skipping(layer: Layer, x: Tensor) -> Tensor:
    """Layer dropout, by one draw for the whole batch."""
    hidden = layer(x)
    for _ in range(5):
        if torch.rand([]) > 0.5:
            hidden = hidden.tanh()
    return hidden


def images(layer: Layer, x: Tensor) -> Tensor:
    """Operations without a rule of their own, which torch has decompositions for."""
    pixels = layer(x.unsqueeze(1).expand(-1, 16, -1)).transpose(1, 2).reshape(x.shape[0], CLASSES, 4, 4)
    larger = functional.interpolate(functional.pad(pixels, (1, 1, 1, 1), mode="reflect"), scale_factor=2)
    return functional.unfold(functional.max_pool2d(larger, 3), 2).mean(2)[:, :CLASSES]


def lost(layer: Layer, x: Tensor) -> Tensor:
    scores, labels = layer(x), x.argmax(1) % CLASSES
    probable = functional.binary_cross_entropy(scores.sigmoid(), x[:, :CLASSES].sigmoid(), reduction="none")
    return (
        probable
        + functional.smooth_l1_loss(scores, x[:, :CLASSES], reduction="none")
        + loss_fn(scores, labels)[:, None]
    )


APART: dict[str, Function] = {
    "part by part": part_by_part,
    "last word": last_word,
    "asserting": asserting,
    "warning": warning,
    "with a token": with_a_token,
    "in heads": in_heads,
    "each normalised": each_normalised,
    "by given statistics": by_given_statistics,
    "skipping": skipping,
    "images": images,
    "lost": lost,
    "shuffled in itself": lambda layer, x: layer(x.gather(1, torch.rand(x.shape).argsort(1)).sort(1).values.flip(1)),
    "dropped": lambda layer, x: functional.dropout(layer(x), 0.5) * (torch.rand(x.shape[0], 1) < 0.5),
    "windows": lambda layer, x: layer(x.unfold(1, WIDTH, 1)).mean(1) + layer(functional.pad(x, (1, 2))[:, 1:-2]),
    "softmax": lambda layer, x: layer(x).softmax(1),
    "by its norm": lambda layer, x: layer(x / x.norm(dim=1, keepdim=True)).clamp(0, 1),
    "by its maximum": lambda layer, x: layer(x) * layer(x).detach().amax(1, keepdim=True),
    "stacked": lambda layer, x: torch.stack([layer(x), layer(-x)], 1).sum(1),
    "outer products": lambda layer, x: torch.einsum("bi,bj->bij", layer(x), layer(x)).flatten(1)[:, :CLASSES],
    "public counts": lambda layer, x: layer(x + torch.ones_like(x).cumsum(1)),
}


@pytest.mark.parametrize("name", APART)
@pytest.mark.parametrize("num_records", [1, 2, CLASSES, WIDTH, RECORDS, 64])
def test_what_keeps_records_apart_is_proven(name: str, num_records: int) -> None:
    assert reason(APART[name], num_records=num_records) is None


def test_nothing_is_left_in_the_model() -> None:
    class Remembering(Around):
        seen: Tensor | None = None

        def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
            self.seen = inputs[0]
            return self.layer(inputs[0])  # type: ignore[no-any-return]

    model = Remembering(MIXING["centred"])

    def compute(trace: Trace) -> list[tuple[str, Tensor]]:
        return [("model", model(trace.records(torch.empty(1, WIDTH))))]

    assert why_not_apart(compute, model, num_records=RECORDS) is None
    assert model.seen is None


def test_the_reference_is_traced_once_for_all_batch_sizes_and_anew_where_it_no_longer_fits() -> None:
    model, sizes, factor = nn.Linear(WIDTH, WIDTH), [], [1.0]

    def compute(trace: Trace) -> list[tuple[str, Tensor]]:
        sizes.append(trace.num_records)
        inputs = trace.records(torch.empty(1, WIDTH)) * factor[0]
        return [("model", inputs - inputs.mean(0) if trace.num_records >= 100 else inputs)]

    references: References = {}
    for num_records in (8, 9, 12):
        assert why_not_apart(compute, model, num_records=num_records, references=references) is None
    assert sizes == [5, 8, 9, 12]
    assert why_not_apart(compute, model, num_records=128, references=references) is not None
    factor[0] = 2.0
    assert why_not_apart(compute, model, num_records=8, references=references) is None


@pytest.mark.parametrize("is_statistic", [True, False])
def test_a_tensor_beside_the_model_that_learns_from_records_is_found(is_statistic: bool) -> None:
    kept = torch.zeros(WIDTH)

    def remember(layer: Layer, x: Tensor) -> Tensor:
        if is_statistic:
            functional.batch_norm(x, kept, torch.ones(WIDTH), training=True)
        else:
            kept.add_(x.mean(0))
        return layer(x)

    found = reason(remember)
    assert found is not None
    assert "written into" in found
    assert not kept.any()


# All engines, against a loop over records: right, or refused by name.


def siamese(layer: Layer, first: Tensor, second: Tensor) -> Tensor:
    one, other = layer(torch.cat([first, second], 0)).chunk(2)
    return (one - other).square()


def batch_of(kind: str, num_records: int = 2 * RECORDS) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, num_records, WIDTH, generator=generator, dtype=torch.float64) * 3
    targets = torch.randint(CLASSES, (num_records,), generator=generator)
    return {"one": first, "tuple": (first, second), "dict": {"first": first, "second": second}}[kind], targets


def hooked_gradients(model: nn.Module, inputs: Any, targets: Tensor) -> Any:
    with HookedEngine(model) as engine:
        args, kwargs = (
            ((), inputs) if isinstance(inputs, dict) else (inputs if isinstance(inputs, tuple) else (inputs,), {})
        )
        torch.autograd.backward(loss_fn(model(*args, **kwargs), targets).mean())
        return engine.gradients()


ENGINES: dict[str, Callable[[nn.Module, Any, Tensor], Any]] = {
    "ghost": lambda model, *batch: GhostEngine(model, loss_fn, compiled=False).gradients(*batch),
    "materialised": lambda model, *batch: MaterialisedEngine(model, loss_fn).gradients(*batch),
    "hooked": hooked_gradients,
}
ATTACKS: dict[str, tuple[Function, str]] = {
    **{name: (function, "one") for name, function in MIXING.items()},
    "siamese": (siamese, "tuple"),
    "siamese by name": (siamese, "dict"),
}
# They fail, or draw, where each record is run alone; and a hook is not registered where no output requires grad.
SKIPPED = {("materialised", name) for name in ("unique", "branching", "through a list")} | {
    ("hooked", "hooked backwards"),
    *((engine, name) for engine in ENGINES for name in ("through numpy", "normalised", "by expanded count")),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ATTACKS)
def test_an_engine_gives_what_a_loop_over_records_gives_or_refuses(engine: str, name: str) -> None:
    if (engine, name) in SKIPPED:
        pytest.skip("fails or draws where each record is run alone")
    torch.manual_seed(0)
    function, kind = ATTACKS[name]
    model = Around(function).double()
    batch = batch_of(kind)
    try:
        found = ENGINES[engine](model, *batch)
    except NotPrivate as error:
        assert "Around" in error.layer or "layer" in error.layer  # noqa: PT017
        return
    expected = OneByOneEngine(model, loss_fn).gradients(*batch)
    torch.testing.assert_close(found.norms(), expected.norms(), rtol=1e-8, atol=1e-8)


def test_a_backward_pass_that_mixes_is_found_in_the_fast_engine(caplog: pytest.LogCaptureFixture) -> None:
    GhostEngine(Around(MIXING["mixed backwards"]).double(), loss_fn, compiled=False).gradients(*batch_of("one"))
    assert "not proven to be kept apart" in caplog.text


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ["dropped", "skipping"])
def test_random_numbers_never_get_a_model_refused(name: str, seed: int) -> None:
    class Random(Around):
        def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
            return self.function(self.layer, *inputs) if self.training else self.layer(*inputs)

    torch.manual_seed(seed)
    engine = GhostEngine(Random(APART[name]), loss_fn, compiled=False)
    inputs, targets = batch_of("one")
    assert engine.gradients(inputs.float(), targets).norms().isfinite().all()
