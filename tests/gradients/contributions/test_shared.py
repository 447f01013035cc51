from __future__ import annotations

from itertools import product

import pytest
import torch

from lehr.gradients.contributions.lookup import Lookup
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.contributions.shared import Shared
from lehr.gradients.contributions.stacked import Stacked
from lehr.interfaces import Contribution
from tests.gradients.contributions.parts import assert_consistent, drawn

ROWS, COLUMNS = 6, 5


def a_lookup(records: int, seed: int) -> Lookup:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, ROWS, (records, 4), generator=generator)
    return Lookup(rows, drawn(records, 4, COLUMNS, seed=seed), ROWS)


def an_outer(records: int, seed: int) -> Outer:
    return Outer(drawn(records, 2, ROWS, seed=seed), drawn(records, 2, COLUMNS, seed=seed + 50))


def a_stored_one(records: int, seed: int) -> Materialised:
    return Materialised(drawn(records, ROWS, COLUMNS, seed=seed))


def blocks(records: int, seed: int) -> Stacked:
    return Stacked((Materialised(drawn(records, 2, COLUMNS, seed=seed)), Materialised(drawn(records, 4, COLUMNS))))


@pytest.mark.parametrize("one, other", list(product([a_lookup, an_outer, a_stored_one, blocks], repeat=2)))
@pytest.mark.parametrize("records", [0, 1, 3])
def test_any_two_uses_are_consistent(one: object, other: object, records: int) -> None:
    uses: tuple[Contribution, ...] = (one(records, 1), other(records, 2))  # type: ignore[operator]
    assert_consistent(Shared(uses))


def test_three_uses_are_consistent() -> None:
    assert_consistent(Shared((a_lookup(3, 1), an_outer(3, 2), an_outer(3, 3))))


@pytest.mark.parametrize("left", [0.0, 1e-5, 1e-3, 1.0])
def test_uses_that_cancel_are_never_reported_too_small(left: float) -> None:
    """The table takes back what the last layer gave, up to a little."""
    table = a_lookup(16, 1)
    grads = table.output_grads_BTD.float()
    one_hot = torch.nn.functional.one_hot(table.rows_BT, ROWS).float()
    back = Outer(-one_hot * (1 - left), grads)
    both = Shared((Lookup(table.rows_BT, grads, ROWS), back))
    exact = Shared((Lookup(table.rows_BT, grads.double(), ROWS), Outer(back.output_grads_BTO.double(), grads.double())))
    true = exact.materialised().flatten(1).norm(dim=1)
    assert (both.squared_norms().double().sqrt() >= true * (1 - 1e-5)).all()
