"""Records, models and callers that try to make an engine sum more of one record than its sensitivity.

Every attack here succeeded once, on some engine. Axes: B records, T positions of one record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import batches
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import ClipRule, PrivateSum
from lehr.privacy.clipping import AutomaticClip, FlatClip
from tests.gradients.one_by_one import OneByOneEngine

ROUNDING = 1e-5  # of adding up a handful of numbers in float32
LARGE = 1e12
NUM_CLASSES = 3
Summing = Callable[[nn.Module, Any, ClipRule, Any, Any], PrivateSum]


def dot(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradient at the outputs is whatever the attacker likes."""
    return (outputs * targets).flatten(1).sum(1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


def by_ghost(model: nn.Module, loss_fn: Any, clip: ClipRule, inputs: Any, targets: Any) -> PrivateSum:
    return GhostEngine(model, loss_fn, compiled=False).private_sum(clip, inputs, targets)


def by_hooks(model: nn.Module, loss_fn: Any, clip: ClipRule, inputs: Any, targets: Any) -> PrivateSum:
    engine = HookedEngine(model, loss_reduction="sum")
    with engine:
        loss_fn(batches.call(model, inputs), targets).sum().backward()
        return clip(engine.gradients())


def by_stored_gradients(model: nn.Module, loss_fn: Any, clip: ClipRule, inputs: Any, targets: Any) -> PrivateSum:
    return clip(MaterialisedEngine(model, loss_fn).gradients(inputs, targets))


def by_a_loop(model: nn.Module, loss_fn: Any, clip: ClipRule, inputs: Any, targets: Any) -> PrivateSum:
    return clip(OneByOneEngine(model, loss_fn).gradients(inputs, targets))


SUMMING: tuple[Summing, ...] = (by_ghost, by_hooks, by_stored_gradients, by_a_loop)
every_engine = pytest.mark.parametrize("summing", SUMMING)


def length(values: dict[str, Tensor]) -> float:
    return float(torch.cat([value.double().flatten() for value in values.values()]).norm())


def moved(summing: Summing, model: nn.Module, loss_fn: Any, inputs: Any, targets: Tensor, clip_norm: float) -> float:
    """How far the sum moves when the last record is removed, in sensitivities."""
    clip = FlatClip(clip_norm)
    fewer = batches.each(lambda leaf: leaf[:-1], inputs)
    some = summing(model, loss_fn, clip, inputs, targets)
    others = summing(model, loss_fn, clip, fewer, targets[:-1])
    return length({name: some.values[name] - others.values[name] for name in some.values}) / clip.sensitivity


# Positions that cancel: what is left of the sum is far below what is added up, and rounding is in proportion to that.


def cancelling_sequences(features: int) -> tuple[Tensor, Tensor]:
    inputs, targets = torch.zeros(1, 3, features), torch.zeros(1, 3, features)
    inputs[0, :, 0] = torch.tensor([1.0, 1.25, 1.0])
    targets[0, :, 0] = torch.tensor([1.25 * LARGE, -LARGE, 1.0])
    return inputs, targets


def cancelling_words() -> tuple[Tensor, Tensor]:
    return torch.zeros(1, 4, dtype=torch.long), torch.tensor([[[1.25 * LARGE], [LARGE], [-2.25 * LARGE], [1.0]]])


def cancelling_images() -> tuple[Tensor, Tensor]:
    inputs, targets = torch.zeros(1, 8, 13, 13), torch.zeros(1, 8, 7, 7)
    pixels, grads = torch.ones(49), torch.zeros(49)
    pixels[1:48:2] = 1.25
    grads[0:48:2], grads[1:48:2], grads[48] = 1.25 * LARGE, -LARGE, 1.0
    inputs[0, 0, 0::2, 0::2], targets[0, 0] = pixels.view(7, 7), grads.view(7, 7)
    return inputs, targets


CANCELLING: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
    "Linear, formed": (lambda: nn.Linear(1, 1, bias=False), cancelling_sequences(1)),
    "Linear, by Gram matrices": (lambda: nn.Linear(64, 64, bias=False), cancelling_sequences(64)),
    "Embedding": (lambda: nn.Embedding(3, 1), cancelling_words()),
    "Conv2d": (lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), cancelling_images()),
    "Conv2d of one place": (
        lambda: nn.Conv2d(1, 1, 1, bias=False),
        (cancelling_sequences(1)[0].reshape(1, 1, 3, 1), cancelling_sequences(1)[1].reshape(1, 1, 3, 1)),
    ),
}


@every_engine
@pytest.mark.parametrize("name", CANCELLING)
def test_positions_that_cancel_in_float32_are_not_summed_beyond_the_clip_norm(summing: Summing, name: str) -> None:
    build, (inputs, targets) = CANCELLING[name]
    model = build()
    for clip_norm in (0.1, 0.11, 0.13, 0.157, 0.19):
        found = summing(model, dot, FlatClip(clip_norm), inputs, targets)
        assert length(found.values) <= clip_norm * (1 + ROUNDING)


@pytest.mark.parametrize("precision", ["as_model", "bfloat16"])
@pytest.mark.parametrize("positions", [16, 256])
def test_positions_that_cancel_exactly_are_not_summed_beyond_the_clip_norm(precision: str, positions: int) -> None:
    """A record for which the rounding of every position points one way."""
    inputs, targets = torch.ones(1, positions, 1), torch.full((1, positions, 1), 1.25)
    inputs[:, 1::2], targets[:, 1::2] = 1.25, -1.0
    engine = GhostEngine(nn.Linear(1, 1, bias=False), dot, precision=precision, compiled=False)
    for step in range(12):
        clip_norm = 0.003 * (1 + step / 13)
        found = engine.private_sum(FlatClip(clip_norm), inputs, targets)
        assert length(found.values) <= clip_norm * (1 + ROUNDING)


# Squares that underflow: a reported norm of zero, and a gradient that is far from it.

CLIPS: tuple[ClipRule, ...] = (FlatClip(1e-4), FlatClip(1e-3), AutomaticClip(1.0), AutomaticClip(1.0, stability=0.0))
TINY = 2e-23
UNDERFLOWING: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(64, 64, bias=False), (1, 64)),
    "Linear on a sequence": (lambda: nn.Linear(64, 64, bias=False), (1, 3, 64)),
    "Conv2d": (lambda: nn.Conv2d(16, 16, 3, padding=1, bias=False), (1, 16, 2, 2)),
}


@every_engine
@pytest.mark.parametrize("name", UNDERFLOWING)
@pytest.mark.parametrize("size", [1e16, 1e18])
def test_squares_that_underflow_do_not_hide_a_gradient(summing: Summing, name: str, size: float) -> None:
    build, shape = UNDERFLOWING[name]
    model = build()
    for clip in CLIPS:
        found = summing(model, dot, clip, torch.full(shape, size), torch.full(shape, TINY))
        assert length(found.values) <= clip.sensitivity * (1 + ROUNDING)


# Callers with settings of their own.


@every_engine
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_of_the_caller_does_not_round_sums(summing: Summing, dtype: torch.dtype) -> None:
    """In bfloat16 a sum over 256 equal records would stand still, and then move by two of them."""
    model = nn.Linear(8, 8, bias=False)
    clip = FlatClip(1.0)
    values, before = torch.ones(259, 8), None
    for records in range(255, 260):
        with torch.autocast("cpu", dtype):
            found = summing(model, dot, clip, values[:records], values[:records]).values
        assert found["weight"].dtype is torch.float64
        if before is not None:
            assert 0.9 <= length({"weight": found["weight"] - before["weight"]}) <= 1 + 1e-4
        before = found


# Models that mix records where a try on made-up ones might not look.


class Attacked(nn.Module):
    """Two layers. Between them the records are centred over the batch, where the model mixes."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.second = nn.Linear(8, NUM_CLASSES)
        self.mixes = mixes

    def centred(self, hidden: Tensor) -> Tensor:
        return hidden - hidden.mean(0) if self.mixes else hidden - hidden.mean(1, keepdim=True)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.centred(self.first(values)))
        return outputs


class InTraining(Attacked):
    """As every home-made batch normalisation does."""

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        outputs: Tensor = self.second(self.centred(hidden) if self.training else hidden)
        return outputs


class CastsToFloat32(Attacked):
    """As models of pixels do: a try in float64 cannot run it."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.float())


class HoldsFloat32(Attacked):
    """A plain tensor, which no conversion of the model reaches."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__(mixes=mixes)
        self.table = torch.linspace(0, 1, 8)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.second(self.centred(self.first(values)) @ torch.diag(self.table))
        return outputs


class TakesLogarithms(Attacked):
    """Of a negative number there is none, and what is no number agrees with everything."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values.log())


class ZeroGain(Attacked):
    """A gain of zero hides what stands behind it, until it is trained."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__(mixes=mixes)
        self.gain = nn.Linear(8, 8, bias=False)
        nn.init.zeros_(self.gain.weight)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        outputs: Tensor = self.second(hidden + self.gain(self.centred(hidden)))
        return outputs


class NeedsMasks(Attacked):
    """Attention that is let see nothing gives no numbers, which agree with everything."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__(mixes=mixes)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, values: Tensor, padding: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.first(values)
        seen = self.attention(hidden, hidden, hidden, key_padding_mask=padding, need_weights=False)[0]
        outputs: Tensor = self.second(self.centred(seen.mean(1)))
        return outputs


class MixesMasks(Attacked):
    """Only the masks of the other records are looked at: how many of them keep a feature."""

    def forward(self, values: Tensor, kept: Tensor) -> Tensor:  # type: ignore[override]
        weights = kept.to(values.dtype)
        outputs: Tensor = self.second(self.first(values) * self.centred(weights))
        return outputs


VALUES = torch.linspace(0.1, 2, 64).reshape(16, 4).sin().abs() + 0.1
OUTLYING = torch.cat([VALUES[:-1], 50 * VALUES[-1:]])
SEQUENCES = OUTLYING.unsqueeze(1).repeat(1, 5, 1) * torch.linspace(0.5, 1, 5).reshape(5, 1)
KEPT = torch.cat([torch.zeros(15, 8, dtype=torch.bool), torch.ones(1, 8, dtype=torch.bool)])
LABELS = torch.arange(16) % NUM_CLASSES
MODELS: dict[type[Attacked], Any] = {
    Attacked: OUTLYING,
    InTraining: OUTLYING,
    CastsToFloat32: OUTLYING,
    HoldsFloat32: OUTLYING,
    TakesLogarithms: OUTLYING,
    ZeroGain: OUTLYING,
    NeedsMasks: {"values": SEQUENCES, "padding": torch.zeros(16, 5, dtype=torch.bool)},
    MixesMasks: {"values": VALUES, "kept": KEPT},
}
every_model = pytest.mark.parametrize("kind", MODELS, ids=lambda kind: kind.__name__)


def built(kind: type[Attacked], *, mixes: bool) -> Attacked:
    torch.manual_seed(0)
    return kind(mixes=mixes)


@every_engine
@every_model
def test_a_model_that_mixes_records_is_refused_or_run_record_by_record(summing: Summing, kind: type[Attacked]) -> None:
    try:
        ratio = moved(summing, built(kind, mixes=True), cross_entropy, MODELS[kind], LABELS, 0.01)
    except NotPrivate:
        return
    assert ratio <= 1 + ROUNDING


@every_engine
@every_model
def test_the_same_model_is_accepted_where_it_keeps_records_apart(summing: Summing, kind: type[Attacked]) -> None:
    ratio = moved(summing, built(kind, mixes=False), cross_entropy, MODELS[kind], LABELS, 0.01)
    assert 0 < ratio <= 1 + ROUNDING


@every_engine
def test_a_loss_that_validates_its_targets_does_not_keep_mixing_from_being_found(summing: Summing) -> None:
    """A try with made-up targets, which are no counts, cannot be run."""

    def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
        likelihood: Tensor = torch.distributions.Poisson(outputs.exp().sum(1)).log_prob(targets)  # type: ignore[no-untyped-call]
        return -likelihood

    try:
        ratio = moved(summing, built(Attacked, mixes=True), poisson, VALUES, LABELS.float(), 0.01)
    except NotPrivate:
        return
    assert ratio <= 1 + ROUNDING


@pytest.mark.parametrize("first", [torch.zeros(16, 4), torch.full((16, 4), torch.nan)], ids=["equal", "no numbers"])
def test_no_first_batch_lets_a_mixing_model_into_a_loop(first: Tensor) -> None:
    model = built(Attacked, mixes=True)
    with pytest.raises(NotPrivate, match="changes with the other records"):
        by_hooks(model, cross_entropy, FlatClip(1.0), first, LABELS)


# Models that change after an engine was built.


class Changing(nn.Module):
    """Whatever its user may change between two batches."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, NUM_CLASSES)
        self.factor = 1.0
        self.table = torch.ones(4)

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.again(torch.tanh(self.first(values))) * self.factor * self.table
        outputs: Tensor = self.last(self.drop(hidden))
        return outputs


def number(model: Changing) -> None:
    model.factor = 3.0


def tensor(model: Changing) -> None:
    model.table = torch.tensor([3.0, 1, 1, 2])


def tensor_in_place(model: Changing) -> None:
    model.table.fill_(3)


def weights(model: Changing) -> None:
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def weight(model: Changing) -> None:
    model.first.weight = nn.Parameter(torch.ones(4, 4))


def nothing(model: Changing) -> None:
    """The dropout alone, which is switched off for all of them."""


@pytest.mark.parametrize("change", [number, tensor, tensor_in_place, weights, weight, nothing])
@pytest.mark.parametrize("kind", [GhostEngine, MaterialisedEngine])
def test_what_is_changed_between_batches_is_followed(change: Callable[[Changing], None], kind: Any) -> None:
    torch.manual_seed(0)
    model = Changing()
    engine = kind(model, cross_entropy)
    engine.gradients(VALUES, LABELS).norms()
    model.drop.p = 0.0
    change(model)
    found, expected = (some.gradients(VALUES, LABELS) for some in (engine, OneByOneEngine(model, cross_entropy)))
    torch.testing.assert_close(found.norms(), expected.norms(), rtol=1e-3, atol=1e-6)


def test_weights_that_are_tied_after_an_engine_was_built_are_refused_by_name_or_counted_together() -> None:
    torch.manual_seed(0)
    model = Changing().eval()
    ghost, hooked, stored = (
        GhostEngine(model, cross_entropy, compiled=False),
        HookedEngine(model),
        MaterialisedEngine(model, cross_entropy),
    )
    model.again.weight = model.first.weight
    with pytest.raises(InvalidValue, match=r"again\.weight"):
        ghost.gradients(VALUES, LABELS)
    with pytest.raises(InvalidValue, match=r"again\.weight"):
        hooked.attach()
    found, expected = (some.gradients(VALUES, LABELS) for some in (stored, OneByOneEngine(model, cross_entropy)))
    torch.testing.assert_close(found.norms(), expected.norms(), rtol=1e-3, atol=1e-6)


# Buffers that a forward pass writes.


class Remembers(nn.Module):
    """Keeps a statistic of the records under a name of its own."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, NUM_CLASSES)
        self.register_buffer("centre", torch.zeros(4))

    def forward(self, values: Tensor) -> Tensor:
        self.remember(values.detach().mean(0))
        outputs: Tensor = self.layer(values - self.centre)
        return outputs

    def remember(self, mean: Tensor) -> None:
        self.centre = 0.9 * self.centre + 0.1 * mean


class RemembersInPlace(Remembers):
    def remember(self, mean: Tensor) -> None:
        self.centre.mul_(0.9).add_(0.1 * mean)


@every_engine
@pytest.mark.parametrize("kind", [Remembers, RemembersInPlace])
def test_no_record_reaches_another_or_the_model_by_a_buffer(summing: Summing, kind: type[Remembers]) -> None:
    model = kind()
    try:
        ratio = moved(summing, model, cross_entropy, OUTLYING, LABELS, 0.01)
    except (NotPrivate, RuntimeError):  # torch itself refuses to write into what all records share
        ratio = 0.0
    assert ratio <= 1 + ROUNDING
    if summing is not by_hooks:  # which runs the user's own model, and refuses this one
        assert not model.centre.any()
