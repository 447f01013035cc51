from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lehr.interfaces import layer_rule
from tests.gradients.oracle import assert_agrees, batch, ghost


class Tied(nn.Module):
    """A table of words that is also the last layer."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.middle = nn.Linear(5, 5)
        self.scores = nn.Linear(5, 9, bias=bias)
        self.scores.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(torch.tanh(self.middle(self.words(words))))
        return scores


def words(*shape: int, rows: int = 9) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, rows, shape, generator=generator), batch(*shape)[1]


@settings(max_examples=20)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    rows=st.integers(1, 6),
    columns=st.integers(1, 4),
    padding=st.booleans(),
)
def test_any_shape_agrees_with_a_loop(shape: list[int], rows: int, columns: int, padding: bool) -> None:
    table = nn.Embedding(rows, columns, padding_idx=rows - 1 if padding else None)
    with torch.no_grad():
        table.weight.normal_()  # the padding row too, which is no zero once it was loaded
    assert_agrees(table.double(), *words(*shape, rows=rows))


@pytest.mark.parametrize("positions", [1, 4, 12])
@pytest.mark.parametrize("bias", [True, False])
def test_a_table_tied_to_the_last_layer_counts_the_product_between_them(positions: int, bias: bool) -> None:
    assert_agrees(Tied(bias=bias).double(), *words(3, positions))


def test_a_table_used_twice_counts_the_product_between_its_uses() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(4, 3)

        def forward(self, words: Tensor) -> Tensor:
            first, second = self.words(words), self.words(words.flip(1)[:, 1:])
            return torch.cat([first, second.square()], dim=1)

    assert_agrees(Twice().double(), *words(3, 5, rows=4))


def test_a_large_table_is_never_stored_record_by_record() -> None:
    """A record's dense gradient would take 51 MB here, and all of them 26 GB."""
    table = nn.Embedding(200_000, 64)
    found = ghost(table, torch.arange(512 * 3).reshape(512, 3) * 7, torch.zeros(512))
    assert found.norms().shape == (512,)


@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_mixes_records_is_refused_with_a_way_out(
    kind: type[nn.Embedding] | type[nn.EmbeddingBag], setting: dict[str, float]
) -> None:
    rule = layer_rule(kind(4, 3))
    assert rule is not None
    assert rule.refuses is not None
    assert next(iter(setting)) in str(rule.refuses(kind(4, 3, **setting)))  # type: ignore[arg-type]
    assert rule.refuses(kind(4, 3)) is None
