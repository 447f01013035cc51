"""Models that take milliseconds, one for each way in which engines have gone wrong, with batches for them.

Axes: B records, K views of one record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

NUM_CLASSES = 5


def loss_fn(outputs: Any, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, targets, reduction="none")


class Model(nn.Module):
    """Layers, parameters and buffers by name, and a function of the model and its inputs."""

    def __init__(self, run: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.run(self, *inputs, **named)


def images() -> nn.Module:
    """Convolutions, a normalisation, an operation in place, and a layer that is never used."""
    features = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 6, 3, stride=2, groups=2),
        nn.Tanh(),
    )
    layers = {"features": features, "unused": nn.Linear(3, 2), "head": nn.Linear(6, NUM_CLASSES)}
    return Model(lambda model, x: model.head(model.features(x).mean((2, 3))), **layers)


def sequences() -> nn.Module:
    """Linear layers on sequences; the middle one is used twice and written over in place."""

    def run(model: Any, values: Tensor) -> Any:
        hidden = torch.relu_(model.again(torch.tanh(model.first(values))))
        return model.head(model.again(hidden).mean(1))

    return Model(run, first=nn.Linear(3, 6), again=nn.Linear(6, 6), head=nn.Linear(6, NUM_CLASSES, bias=False))


def words() -> nn.Module:
    """A table of words that is also the last layer."""
    model: Any = Model(
        lambda model, words: model.head(torch.tanh(model.middle(model.table(words)))).mean(1),
        table=nn.Embedding(NUM_CLASSES, 4),
        middle=nn.Linear(4, 4),
        head=nn.Linear(4, NUM_CLASSES, bias=False),
    )
    model.head.weight = model.table.weight
    return model  # type: ignore[no-any-return]


def attention() -> nn.Module:
    """A layer of a transformer over words and their positions, which are given to every record."""

    def run(model: Any, words: Tensor) -> Any:
        positions = torch.arange(3, device=words.device).expand(words.shape)
        return model.head(model.layer(model.words(words) + model.positions(positions)).mean(1))

    return Model(
        run,
        words=nn.Embedding(NUM_CLASSES, 4),
        positions=nn.Embedding(3, 4),
        layer=nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        head=nn.Linear(4, NUM_CLASSES),
    )


def token() -> nn.Module:
    """A parameter that belongs to no layer."""
    return Model(
        lambda model, values: model.head(torch.tanh(values + model.token)).mean(1),
        token=nn.Parameter(torch.linspace(0, 1, 3)),
        head=nn.Linear(3, NUM_CLASSES),
    )


class Gain(nn.Module):
    """A layer that has no rule."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, channels))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.gain


def without_rule() -> nn.Module:
    """A layer without a rule in the middle of others."""
    layers = nn.Sequential(nn.Linear(3, 6), Gain(6), nn.Tanh(), nn.Linear(6, NUM_CLASSES))
    return Model(lambda model, values: model.layers(values).mean(1), layers=layers)


class Recurrent(nn.Module):
    """A recurrent layer that is given its records on the axis that it wants them on."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        self.head = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), NUM_CLASSES)

    def forward(self, sequences: Tensor) -> Tensor:
        if self.layer.batch_first:
            outputs: Tensor = self.head(self.layer(sequences)[0].mean(1))
            return outputs
        last: Tensor = self.head(self.layer(sequences.transpose(0, 1))[0].mean(0))
        return last


@dataclass(frozen=True)
class Case:
    """A model and what its inputs look like, without the record axis."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    takes_words: bool = False

    def model(self, dtype: torch.dtype = torch.float64) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build().to(dtype)

    def batch(self, records: int, *, views: int = 1, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(records + views)
        leading = (records, views) if views > 1 else (records,)
        targets = torch.randint(NUM_CLASSES, (records,), generator=generator)
        if self.takes_words:
            return torch.randint(NUM_CLASSES, (*leading, *self.shape), generator=generator), targets
        return torch.randn(*leading, *self.shape, generator=generator, dtype=torch.float64).to(dtype), targets


CASES = {
    "images": Case(images, (3, 6, 6)),
    "sequences": Case(sequences, (4, 3)),
    "words": Case(words, (4,), takes_words=True),
    "attention": Case(attention, (3,), takes_words=True),
    "without rule": Case(without_rule, (4, 3)),
}
TOKEN = Case(token, (4, 3))


def assert_same_gradients(some: Any, others: Any, *, records: int, tolerance: float = 1e-10) -> None:
    """Norms, in all and by parameter, and sums with weights, relative to the largest number."""
    assert some.names == others.names
    groups = [[name] for name in some.names]
    weights = torch.linspace(0.1, 2, records, dtype=torch.float64)
    by_parameter = weights.unsqueeze(1) * torch.linspace(1, 2, len(groups), dtype=torch.float64)
    assert_close(some.norms(), others.norms(), tolerance)
    assert_close(some.norms(groups), others.norms(groups), tolerance)
    for given in ((weights,), (by_parameter, groups)):
        one, other = some.weighted_sum(*given), others.weighted_sum(*given)
        assert list(one) == list(other) == list(some.names)
        for name in one:
            assert_close(one[name], other[name], tolerance)


def assert_close(some: Tensor, others: Tensor, tolerance: float) -> None:
    assert some.shape == others.shape
    assert some.dtype == others.dtype
    scale = float(others.abs().max()) if others.numel() else 0.0
    torch.testing.assert_close(some, others, rtol=0, atol=tolerance * max(scale, 1e-3))


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def untouched(model: nn.Module) -> Any:
    """All that a user could find changed on a model; compare before and after."""
    values = {name: value.detach().clone().numpy().tobytes() for name, value in model.state_dict().items()}
    parameters = [
        (name, id(value), value.requires_grad, value.grad is None, value._backward_hooks is None)
        for name, value in model.named_parameters()
    ]
    modules = [
        (name, id(layer), layer.training, sorted(vars(layer)), [len(vars(layer)[hooks]) for hooks in _HOOKS])
        for name, layer in model.named_modules()
    ]
    return values, parameters, modules
