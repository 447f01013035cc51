"""Whole networks through the ghost engine, against a loop over records that knows none of its rules.

Axis: B records.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients.ghost import GhostEngine
from lehr.networks.convolutional import cifar_cnn, paper_cnn
from lehr.networks.gain import Gain
from lehr.networks.nf_resnet import nf_resnet, nf_resnet50
from lehr.networks.vision_transformer import vision_transformer
from lehr.networks.wide_resnet import wide_resnet

NUM_CLASSES = 4
LossFn = Callable[[Tensor, Tensor], Tensor]


class Encoder(nn.Module):
    """Tokens, torch's own transformer encoder, and the mean over positions."""

    def __init__(self, *, width: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(11, width)
        layer = nn.TransformerEncoderLayer(width, 2, dim_feedforward=12, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.scores = nn.Linear(width, NUM_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.encoder(self.tokens(tokens)).mean(1))
        return scores


class UNet(nn.Module):
    """Down, across and up again, with skips: one path back by a transposed convolution, one by interpolation."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.enter = self._stage(2, width)
        self.down = self._stage(width, 2 * width)
        self.bottom = self._stage(2 * width, 4 * width)
        self.rise = nn.ConvTranspose2d(4 * width, 2 * width, kernel_size=2, stride=2)
        self.up = self._stage(4 * width, 2 * width)
        self.leave = self._stage(3 * width, width)
        self.scores = nn.Conv2d(width, 3, kernel_size=1)

    def forward(self, images: Tensor) -> Tensor:
        wide = self.enter(images)
        narrow = self.down(functional.max_pool2d(wide, 2))
        risen = self.rise(self.bottom(functional.avg_pool2d(narrow, 2)))
        merged = self.up(torch.cat([narrow, risen], dim=1))
        larger = functional.interpolate(merged, scale_factor=2.0, mode="nearest")
        scores: Tensor = self.scores(self.leave(torch.cat([wide, larger], dim=1)))
        return scores

    @staticmethod
    def _stage(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after), nn.SiLU())


def by_class(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets, reduction="none")


def by_pixel(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets, reduction="none").mean((1, 2))


def looped(model: nn.Module, loss_fn: LossFn, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Every record's gradient, from one backward pass for each."""
    parameters = dict(model.named_parameters())
    rows = [
        torch.autograd.grad(loss_fn(model(inputs[i : i + 1]), targets[i : i + 1]).sum(), list(parameters.values()))
        for i in range(len(inputs))
    ]
    return {name: torch.stack(grads) for name, grads in zip(parameters, zip(*rows, strict=True), strict=True)}


def assert_same(model: nn.Module, loss_fn: LossFn, inputs: Tensor, targets: Tensor, *, tolerance: float) -> None:
    """Norms and a weighted sum, each within the tolerance relative to its size."""
    expected = looped(model, loss_fn, inputs, targets)
    found = GhostEngine(model, loss_fn, compiled=False).gradients(inputs, targets)
    norms = {name: grads.reshape(len(inputs), -1).double().norm(dim=1) for name, grads in expected.items()}
    norms_B = torch.stack(list(norms.values())).norm(dim=0)  # noqa: N806
    torch.testing.assert_close(found.norms().double(), norms_B, rtol=tolerance, atol=0)
    weights_B = torch.linspace(-1, 2, len(inputs), dtype=found.norms().dtype)  # noqa: N806
    sums = found.weighted_sum(weights_B)
    assert list(sums) == list(expected)
    for name, grads in expected.items():
        # A sum of records can cancel, and its error is that of its terms.
        allowed = tolerance * max(1e-3, norms[name].max().item())
        summed = torch.einsum("b,b...->...", weights_B, grads).double()
        torch.testing.assert_close(sums[name], summed, rtol=0, atol=allowed)


def opened(network: nn.Module) -> nn.Module:
    """With its residual branches open: at zero the gains would hide most gradients behind them."""
    for layer in network.modules():
        if isinstance(layer, Gain):
            nn.init.constant_(layer.factor, 0.5)
    return network


def images(num_records: int, num_channels: int, side: int) -> Tensor:
    return torch.randn(num_records, num_channels, side, side, generator=torch.Generator().manual_seed(1))


SMALL: dict[str, Callable[[], tuple[nn.Module, LossFn, Tensor, Tensor]]] = {
    "transformer encoder": lambda: (
        Encoder(),
        by_class,
        torch.randint(0, 11, (5, 6), generator=torch.Generator().manual_seed(1)),
        torch.arange(5) % NUM_CLASSES,
    ),
    "vision transformer": lambda: (
        vision_transformer(image_side=8, patch_side=4, width=12, depth=2, num_classes=NUM_CLASSES),
        by_class,
        images(5, 3, 8),
        torch.arange(5) % NUM_CLASSES,
    ),
    "wide resnet, norm after": lambda: (
        wide_resnet(width=1, num_groups=4, num_classes=NUM_CLASSES),
        by_class,
        images(4, 3, 12),
        torch.arange(4),
    ),
    "wide resnet, norm before": lambda: (
        wide_resnet(depth=10, width=1, num_groups=4, num_classes=NUM_CLASSES, order="before"),
        by_class,
        images(4, 3, 12),
        torch.arange(4),
    ),
    "nf resnet": lambda: (
        opened(nf_resnet(num_blocks=(1, 2), num_classes=NUM_CLASSES, stem_channels=4)),
        by_class,
        images(4, 3, 24),
        torch.arange(4),
    ),
    "u-net": lambda: (UNet(), by_pixel, images(4, 2, 8), images(4, 1, 8)[:, 0].abs().long().clamp(max=2)),
    "paper cnn": lambda: (paper_cnn(), by_class, images(4, 1, 28), torch.arange(4)),
    "cifar cnn": lambda: (cifar_cnn(activation=nn.ReLU), by_class, images(3, 3, 16), torch.arange(3)),
}


@pytest.fixture(autouse=True)
def _networks_are_the_same_every_time() -> None:
    torch.manual_seed(5)


# Attention as torch computes it on a CPU is run record by record where a model has parameters outside of layers.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SMALL)
def test_a_whole_network_agrees_with_a_loop_over_records(name: str) -> None:
    model, loss_fn, inputs, targets = SMALL[name]()
    model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    assert_same(model, loss_fn, inputs, targets, tolerance=1e-10)


def test_a_wide_resnet_of_full_width_agrees_with_a_loop_in_float32() -> None:
    assert_same(wide_resnet(num_classes=NUM_CLASSES), by_class, images(3, 3, 16), torch.arange(3), tolerance=1e-4)


@pytest.mark.whole  # a smaller one is tried by tests/contracts/test_networks.py
def test_nf_resnet_50_agrees_with_a_loop_in_float32() -> None:
    network = opened(nf_resnet50(num_classes=NUM_CLASSES))
    assert_same(network, by_class, images(2, 3, 32), torch.arange(2), tolerance=1e-4)
