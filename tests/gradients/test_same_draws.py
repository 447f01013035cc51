from __future__ import annotations

import torch
from torch import Tensor

from lehr.gradients.same_draws import SameDraws

CHUNKS = [slice(0, 2), slice(2, 4)]


def draws() -> SameDraws[Tensor]:
    return SameDraws(lambda chunk: torch.rand(chunk.stop - chunk.start), device=torch.device("cpu"))


def test_a_later_run_repeats_the_draws_of_the_first() -> None:
    again = draws()
    first = torch.cat(list(again(CHUNKS)))
    torch.rand(7)
    assert torch.equal(torch.cat(list(again(CHUNKS))), first)
    assert len(set(first.tolist())) == 4


def test_the_first_run_moves_the_generator_on_and_a_later_one_does_not() -> None:
    again = draws()
    before = torch.get_rng_state()
    list(again(CHUNKS))
    after = torch.get_rng_state()
    assert not torch.equal(before, after)
    list(again(CHUNKS))
    assert torch.equal(torch.get_rng_state(), after)


def test_two_computations_draw_apart() -> None:
    assert not torch.equal(torch.cat(list(draws()(CHUNKS))), torch.cat(list(draws()(CHUNKS))))
