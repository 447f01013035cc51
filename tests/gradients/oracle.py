"""What every rule is compared with: a loop of plain backward passes, one per record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.ghost import GhostEngine

LossFn = Callable[[Any, Tensor], Tensor]


def squared_distance(outputs: Any, targets_B: Tensor) -> Tensor:  # noqa: N803
    """A loss for outputs of any shape and one number per record as its target."""
    rows = outputs.flatten(1)
    return (rows - targets_B.to(rows.dtype).unsqueeze(1)).square().mean(1)


def batch(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs of this shape, records first, and one target per record."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randn(shape[0], generator=generator, dtype=torch.float64).to(dtype)


def loop(
    model: nn.Module, inputs: Any, targets_B: Tensor, *, views: int = 1, loss_fn: LossFn = squared_distance  # noqa: N803
) -> dict[str, Tensor]:
    """Every record's gradient, ``{name: grads_B...}``, the views of a record averaged."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    rows = []
    for index in range(targets_B.shape[0]):
        own = [values[index] if views > 1 else values[index : index + 1] for values in _as_tuple(inputs)]
        losses = loss_fn(model(*own), targets_B[index : index + 1].expand(views))
        rows.append(torch.autograd.grad(losses.mean(), list(parameters.values()), allow_unused=True))
    return {
        name: torch.stack([torch.zeros_like(parameter) if row[place] is None else row[place] for row in rows])
        if rows
        else parameter.new_zeros(0, *parameter.shape)
        for place, (name, parameter) in enumerate(parameters.items())
    }


def assert_agrees(
    model: nn.Module,
    inputs: Any,
    targets_B: Tensor,  # noqa: N803
    *,
    views: int = 1,
    tolerance: float = 1e-10,
    loss_fn: LossFn = squared_distance,
) -> None:
    """Norms and weighted sums of the ghost engine are those of the loop, relative to the largest."""
    expected = loop(model, inputs, targets_B, views=views, loss_fn=loss_fn)
    found = ghost(model, inputs, targets_B, views=views, loss_fn=loss_fn)
    assert found.names == tuple(expected)
    assert_same(found, expected, tolerance=tolerance)


def ghost(model: nn.Module, inputs: Any, targets_B: Tensor, *, loss_fn: LossFn = squared_distance, **settings: Any) -> ContributedGradients:  # noqa: N803, E501
    """The gradients as the ghost engine has them, not compiled; ``mask_B`` goes with the batch."""
    mask = settings.pop("mask_B", None)
    return GhostEngine(model, loss_fn, compiled=False, **settings).gradients(inputs, targets_B, mask)


def assert_same(found: ContributedGradients, expected: dict[str, Tensor], *, tolerance: float) -> None:
    """Norms, per parameter and of all, and sums with weights of all sizes."""
    records = next(iter(expected.values())).shape[0]
    norms_BG = torch.stack([grads.reshape(records, -1 if records else 1).norm(dim=1) for grads in expected.values()], dim=1)  # noqa: E501, N806
    assert_close(found.norms([[name] for name in expected]), norms_BG, tolerance=tolerance)
    assert_close(found.norms(), norms_BG.norm(dim=1), tolerance=tolerance)
    weights_B = torch.rand(records, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(norms_BG.dtype)  # noqa: E501, N806
    summed = found.weighted_sum(weights_B)
    assert list(summed) == list(expected)
    together = {name: torch.tensordot(weights_B, grads, dims=1) for name, grads in expected.items()}
    for name, total in together.items():
        assert summed[name].shape == total.shape, name
    assert_close(*(torch.cat([part.flatten() for part in parts.values()]) for parts in (summed, together)), tolerance=tolerance)  # noqa: E501


def assert_close(found: Tensor, expected: Tensor, *, tolerance: float) -> None:
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    if expected.numel():
        largest = expected.abs().max().clamp_min(1e-12)
        difference = (found.to(expected.dtype) - expected).abs().max()
        assert difference <= tolerance * largest, f"{difference / largest:.2g} of the largest, {tolerance:g} allowed"


def _as_tuple(inputs: Any) -> tuple[Tensor, ...]:
    return inputs if isinstance(inputs, tuple) else (inputs,)
