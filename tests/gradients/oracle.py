"""What every rule is compared with: a loop of plain backward passes, one per record."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lehr.gradients.differentiation import Batch, Differentiation, ExecutionMode, Layers
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import RecordGradients
from tests.gradients.one_by_one import OneByOneEngine


def squared_distance(outputs: Any, targets_B: Tensor) -> Tensor:
    """A loss for outputs of any shape and one number per record as its target."""
    rows: Tensor = outputs.flatten(1)
    return (rows - targets_B.to(rows.dtype).unsqueeze(1)).square().mean(1)


def batch(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs of this shape, records first, and one target per record."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return inputs, torch.randn(shape[0], generator=generator, dtype=torch.float64).to(dtype)


def loop(model: nn.Module, inputs: Any, targets_B: Tensor, *, views: int = 1) -> dict[str, Tensor]:
    """Every record's gradient, ``{name: grads_B...}``, the views of a record averaged."""
    return OneByOneEngine(model, squared_distance, views=views).gradients(inputs, targets_B).grads


def ghost(
    model: nn.Module,
    inputs: Any,
    targets_B: Tensor,
    *,
    mask_B: Tensor | None = None,
    views: int = 1,
    precision: str = "as_model",
) -> RecordGradients:
    """The gradients as the ghost engine has them, not compiled."""
    engine = GhostEngine(model, squared_distance, views=views, precision=precision, compiled=False)
    return engine.gradients(inputs, targets_B, mask_B)


def by_rules(model: nn.Module, inputs: Any, targets_B: Tensor, *, views: int = 1) -> RecordGradients:
    """The gradients by the layer rules with all records together, without the search and the proof of an engine."""
    values = {name: value.detach() for name, value in model.named_parameters()}
    given = Batch(values, dict(model.named_buffers()), inputs, targets_B)
    run = Differentiation(Layers(model), squared_distance, views=views, dtype=None)
    with torch.no_grad():
        return run.gradients(run.plan(ExecutionMode(), given), given, torch.ones(len(targets_B), dtype=torch.bool))


def assert_agrees(
    model: nn.Module,
    inputs: Any,
    targets_B: Tensor,
    *,
    views: int = 1,
    tolerance: float = 1e-10,
    by_engine: bool = False,
) -> None:
    """Norms and weighted sums are those of the loop, relative to the largest: by the rules alone or by an engine."""
    expected = loop(model, inputs, targets_B, views=views)
    found = (ghost if by_engine or not len(targets_B) else by_rules)(model, inputs, targets_B, views=views)
    assert_same(found, expected, tolerance=tolerance)


def assert_same(found: RecordGradients, expected: dict[str, Tensor], *, tolerance: float) -> None:
    """Names, norms per parameter and of all together, and sums with weights of all sizes."""
    assert found.names == tuple(expected)
    records = next(iter(expected.values())).shape[0]
    norms_BG = torch.stack([_norms(grads) for grads in expected.values()], dim=1)
    assert_close(found.norms([[name] for name in expected]), norms_BG, tolerance=tolerance)
    assert_close(found.norms(), norms_BG.norm(dim=1), tolerance=tolerance)
    weights_B = batch(records, seed=1)[1].abs().to(norms_BG.dtype)
    assert_same_sums(
        found.weighted_sum(weights_B),
        {name: torch.tensordot(weights_B, grads, dims=1) for name, grads in expected.items()},
        tolerance=tolerance,
    )


def assert_same_sums(found: dict[str, Tensor], expected: dict[str, Tensor], *, tolerance: float) -> None:
    """The shape of every parameter, and the largest difference of all relative to the largest number of all."""
    assert {name: total.shape for name, total in found.items()} == {
        name: total.shape for name, total in expected.items()
    }
    flat = [torch.cat([sums[name].flatten() for name in expected]) for sums in (found, expected)]
    assert_close(flat[0], flat[1], tolerance=tolerance)


def assert_close(found: Tensor, expected: Tensor, *, tolerance: float) -> None:
    """The largest difference, relative to the largest number."""
    assert found.shape == expected.shape
    if expected.numel():
        largest = expected.abs().max().clamp_min(1e-12)
        difference = (found.to(expected.dtype) - expected).abs().max()
        assert difference <= tolerance * largest, f"{difference / largest:.2g} of the largest, {tolerance:g} allowed"


def _norms(grads: Tensor) -> Tensor:
    norms: Tensor = grads.reshape(grads.shape[0], grads.shape[1:].numel()).norm(dim=1)
    return norms
