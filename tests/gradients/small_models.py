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


class Images(nn.Module):
    """Convolutions, a normalisation, an operation in place, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 8),
            nn.Conv2d(8, 6, 3, stride=2, groups=2),
            nn.Tanh(),
        )
        self.unused = nn.Linear(3, 2)
        self.head = nn.Linear(6, NUM_CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.features(images).mean((2, 3)))
        return outputs


class Sequences(nn.Module):
    """Linear layers on sequences; the middle one is used twice and written over in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 6)
        self.again = nn.Linear(6, 6)
        self.head = nn.Linear(6, NUM_CLASSES, bias=False)

    def forward(self, sequences: Tensor) -> Tensor:
        hidden = torch.relu_(self.again(torch.tanh(self.first(sequences))))
        outputs: Tensor = self.head(self.again(hidden).mean(1))
        return outputs


class Words(nn.Module):
    """A table of words that is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(NUM_CLASSES, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, NUM_CLASSES, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.middle(self.table(words)))).mean(1)
        return outputs


class Attention(nn.Module):
    """A layer of a transformer over words and their positions, which are given to every record."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(NUM_CLASSES, 4)
        self.positions = nn.Embedding(3, 4)
        self.layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
        self.head = nn.Linear(4, NUM_CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        positions = torch.arange(3, device=words.device).expand(words.shape)
        outputs: Tensor = self.head(self.layer(self.words(words) + self.positions(positions)).mean(1))
        return outputs


class Token(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(0, 1, 3))
        self.head = nn.Linear(3, NUM_CLASSES)

    def forward(self, sequences: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(sequences + self.token)).mean(1)
        return outputs


class Gain(nn.Module):
    """A layer that has no rule."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, channels))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.gain


class WithoutRule(nn.Module):
    """A layer without a rule in the middle of others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), Gain(6), nn.Tanh(), nn.Linear(6, NUM_CLASSES))

    def forward(self, sequences: Tensor) -> Tensor:
        outputs: Tensor = self.layers(sequences).mean(1)
        return outputs


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
    "images": Case(Images, (3, 6, 6)),
    "sequences": Case(Sequences, (4, 3)),
    "words": Case(Words, (4,), takes_words=True),
    "attention": Case(Attention, (3,), takes_words=True),
    "without rule": Case(WithoutRule, (4, 3)),
}
TOKEN = Case(Token, (4, 3))


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
