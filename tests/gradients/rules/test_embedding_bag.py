from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from tests.gradients.oracle import assert_agrees, batch, ghost


class Bags(nn.Module):
    def __init__(self, *, weighted: bool = False, **settings: Any) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(6, 4, **settings)
        self.weighted = weighted

    def forward(self, words: Tensor, weights: Tensor) -> Tensor:
        outputs: Tensor = self.table(words, per_sample_weights=weights if self.weighted else None)
        return outputs


def bags() -> tuple[tuple[Tensor, Tensor], Tensor]:
    words = torch.tensor([[1, 1, 2, 0], [0, 3, 5, 3], [4, 4, 4, 4], [0, 0, 0, 0]])
    weights, targets_B = batch(4, 4)  # noqa: N806
    return (words, weights), targets_B


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding_idx", [None, 0])
def test_every_mode_agrees_with_a_loop(mode: str, padding_idx: int | None) -> None:
    assert_agrees(Bags(mode=mode, padding_idx=padding_idx).double(), *bags())


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_words_may_be_weighted(padding_idx: int | None) -> None:
    assert_agrees(Bags(mode="sum", padding_idx=padding_idx, weighted=True).double(), *bags())


def test_bags_cut_by_offsets_are_refused() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.EmbeddingBag(6, 4)

        def forward(self, words: Tensor) -> Tensor:
            outputs: Tensor = self.table(words.flatten(), torch.arange(words.shape[0]) * words.shape[1])
            return outputs

    with pytest.raises(InvalidValue, match=r"EmbeddingBag.*no offsets"):
        ghost(Cut(), bags()[0][0], bags()[1].float())
