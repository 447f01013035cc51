from __future__ import annotations

import torch

from lehr.gradients.contributions.convolution import Convolved
from lehr.gradients.contributions.lookup import Lookup
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.contributions.shared import Shared
from lehr.gradients.contributions.together import together
from lehr.gradients.kernels.geometry import Geometry
from lehr.interfaces import Contribution
from tests.gradients.contributions.parts import assert_consistent, drawn

GEOMETRY = Geometry((3,), (1,), (1,), (1,))


def assert_adds_up(uses: list[Contribution]) -> Contribution:
    whole = together(uses)
    expected = torch.stack([use.materialised() for use in uses]).sum(0)
    torch.testing.assert_close(whole.materialised(), expected)
    assert_consistent(whole)
    return whole


def images(length: int, *, views: int = 1, seed: int = 0) -> Contribution:
    inputs, output_grads = drawn(3 * views, 2, length, seed=seed), drawn(3 * views, 4, length, seed=seed + 50)
    return Convolved(inputs, output_grads, GEOMETRY, 3)


def test_one_use_is_left_as_it_is() -> None:
    part = Materialised(drawn(3, 2))
    assert together([part]) is part


def test_products_become_more_positions() -> None:
    uses: list[Contribution] = [Outer(drawn(3, t, 4, seed=t), drawn(3, t, 5, seed=t + 9)) for t in (1, 2, 6)]
    assert isinstance(assert_adds_up(uses), Outer)


def test_lookups_become_more_lookups() -> None:
    uses: list[Contribution] = [Lookup(torch.ones(3, t, dtype=torch.long), drawn(3, t, 5, seed=t), 4) for t in (1, 3)]
    assert isinstance(assert_adds_up(uses), Lookup)


def test_stored_gradients_are_added() -> None:
    assert isinstance(assert_adds_up([Materialised(drawn(3, 2)), Materialised(drawn(3, 2, seed=1))]), Materialised)


def test_images_of_one_size_become_more_views() -> None:
    assert isinstance(assert_adds_up([images(5), images(5, seed=1), images(5, views=2, seed=2)]), Convolved)


def test_images_of_several_sizes_add_up() -> None:
    assert isinstance(assert_adds_up([images(5), images(7, seed=1)]), Shared)


def test_different_kinds_add_up() -> None:
    rows = torch.tensor([[0, 1], [1, 1], [3, 2]])
    assert_adds_up([Lookup(rows, drawn(3, 2, 5), 4), Outer(drawn(3, 2, 4), drawn(3, 2, 5, seed=3))])
