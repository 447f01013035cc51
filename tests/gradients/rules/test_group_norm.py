from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lehr.gradients.rules import group_norm
from lehr.interfaces import Site
from tests.gradients.oracle import assert_agrees, batch, ghost, loop


@settings(max_examples=15)
@given(groups=st.integers(1, 3), size=st.integers(1, 3), space=st.lists(st.integers(1, 3), max_size=3))
def test_any_shape_agrees_with_a_loop(groups: int, size: int, space: list[int]) -> None:
    if size * torch.Size(space).numel() > 1:  # torch refuses to normalise a single number
        assert_agrees(nn.GroupNorm(groups, groups * size).double(), *batch(2, groups * size, *space))


def test_without_gain_and_shift_it_passes_gradients_on() -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.GroupNorm(2, 4, affine=False))
    assert_agrees(model.double(), *batch(3, 2, 5))


def test_a_layer_used_twice_counts_the_product_between_its_uses() -> None:
    layer = nn.GroupNorm(2, 4)
    assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(3, 4, 5))


@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_float32_stays_exact_far_from_zero(mean: float) -> None:
    inputs, targets_B = batch(3, 4, 6, 6)  # noqa: N806
    layer = nn.GroupNorm(2, 4)
    expected = loop(layer.double(), inputs + mean, targets_B)
    found = ghost(layer.float(), (inputs + mean).float(), targets_B.float())
    norms = torch.cat([grads.flatten(1) for grads in expected.values()], dim=1).norm(dim=1)
    torch.testing.assert_close(found.norms().double(), norms, rtol=1e-4, atol=0)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 2, 3)])
def test_copies_of_gain_and_shift_give_what_torch_gives(shape: tuple[int, ...]) -> None:
    """The way that other devices take."""
    layer = nn.GroupNorm(2, 4).double()
    torch.nn.init.normal_(layer.weight)
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
        return outputs, dict(group_norm._contributions(layer, sites))  # type: ignore[arg-type]

    (plain, expected), (copied, found) = run(group_norm._by_torch), run(group_norm._by_copies)
    torch.testing.assert_close(copied, plain)
    torch.testing.assert_close(found, expected)
