from __future__ import annotations

import pytest
import torch

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.kernels.geometry import Geometry
from tests.gradients.contributions.parts import assert_consistent, drawn

GEOMETRIES = {
    "one": (Geometry((3,), (2,), (1,), (1,)), (9,), (5,)),
    "two": (Geometry((3, 2), (1, 2), (1, 0), (1, 2), 2), (4, 6), (4, 2)),
    "three": (Geometry((2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1)), (3, 3, 3), (2, 2, 2)),
}


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("records", [0, 1, 4])
def test_any_geometry_is_consistent(name: str, views: int, records: int) -> None:
    geometry, before, after = GEOMETRIES[name]
    part = Convolved(drawn(records * views, 4, *before), drawn(records * views, 6, *after, seed=1), geometry, records)
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


@pytest.mark.parametrize("views", [1, 2])
def test_more_channels_than_places_are_consistent(views: int) -> None:
    """Here the gradients are larger than the images, and the products of places are cheaper than either."""
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1))
    assert_consistent(Convolved(drawn(2 * views, 40, 2, 2), drawn(2 * views, 48, 2, 2, seed=1), geometry, 2))


@pytest.mark.parametrize("spread", [0.0, 1e-5, 1e-4, 1e-3, 1e-2])
def test_a_norm_is_never_reported_too_small_however_much_cancels(spread: float) -> None:
    """Nearly equal places meet output gradients that add up to nothing, as before a normalisation."""
    geometry = Geometry((1, 1), (1, 1), (0, 0), (1, 1))
    inputs = drawn(16, 64, 1, 1, dtype=torch.float32) + spread * drawn(16, 64, 4, 4, dtype=torch.float32, seed=1)
    output_grads = drawn(16, 96, 4, 4, dtype=torch.float32, seed=2)
    output_grads = output_grads - output_grads.mean((2, 3), keepdim=True)
    true = Convolved(inputs.double(), output_grads.double(), geometry, 16).materialised().flatten(1).norm(dim=1)
    found = Convolved(inputs, output_grads, geometry, 16).squared_norms().double().sqrt()
    assert (found >= true * (1 - 1e-5)).all()


def test_some_records_are_those_of_the_whole() -> None:
    geometry, before, after = GEOMETRIES["two"]
    part = Convolved(drawn(8, 4, *before), drawn(8, 6, *after, seed=1), geometry, 4)
    torch.testing.assert_close(part.taken(1, 3).materialised(), part.materialised()[1:3])
