from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data._utils.collate import default_collate

from lehr.compat.opacus.drawn_loader import DrawnBatches, DrawnLoader, WithEmpty, options_of, refuse_streams
from lehr.compat.opacus.draws import Draws
from lehr.errors import InvalidValue
from lehr.rng import RunKey
from lehr.sampling import PoissonSampling

Pair = namedtuple("Pair", ["inputs", "targets"])


def batches(*, size: int | None = None, steps: int = 6, key: bytes = bytes(32)) -> DrawnBatches:
    return DrawnBatches(
        Draws(RunKey(key)),
        sampling=PoissonSampling(expected_batch_size=6, records=30),
        num_held=30,
        steps=steps,
        max_physical_batch_size=size,
    )


def test_parts_are_the_draws_cut() -> None:
    whole = list(batches())
    parted = list(batches(size=2))
    assert [place for draw in whole for place in draw] == [place for part in parted for place in part]
    assert max(map(len, parted)) == 2


def test_every_part_is_announced_when_it_is_given_even_where_workers_read_ahead() -> None:
    loader = DrawnLoader(TensorDataset(torch.arange(30)), batches(size=2), num_workers=1, collate_fn=_collated)
    for _ in range(2):
        for number, (places,) in enumerate(loader):
            assert loader.draws.taken().num_records == len(places)
            if number == 3:
                break  # what was drawn ahead must not reach the next pass


def _collated(given: list[Any]) -> Any:
    return WithEmpty(default_collate, TensorDataset(torch.arange(1)), shows_made_up=False)(given)


def test_the_last_part_of_a_draw_is_marked_and_only_that() -> None:
    sampler = batches(size=2)
    ends = []
    for part in sampler:
        ends.append((len(part), sampler.pending.popleft().is_last))
    assert sum(is_last for _, is_last in ends) == 6
    assert ends[-1][1]


def test_a_pass_is_not_shorter_than_its_steps() -> None:
    assert (len(batches()), len(batches(size=2)), len(batches(size=100))) == (6, 18, 6)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_streams_are_refused() -> None:
    with pytest.raises(InvalidValue, match="stream"):
        refuse_streams(Stream())


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_of_nobody_has_the_structure_of_the_others(rows: int) -> None:
    nested = [{"ids": torch.ones(4, dtype=torch.long), "pair": Pair(torch.ones(2, 3), 1)}]
    empty = WithEmpty(default_collate, nested, shows_made_up=bool(rows))([])  # type: ignore[arg-type]
    assert empty["ids"].shape == (rows, 4)
    assert empty["ids"].dtype == torch.long
    assert type(empty["pair"]) is Pair
    assert empty["pair"].inputs.shape == (rows, 2, 3)
    assert empty["pair"].targets.shape == (rows,)
    assert not any(bool(value.any()) for value in (empty["ids"], *empty["pair"]))


def test_words_of_nobody_are_no_words() -> None:
    records: Any = [("a word", torch.ones(2))]
    words, numbers = WithEmpty(default_collate, records, shows_made_up=False)([])
    assert list(words) == []
    assert numbers.shape == (0, 2)


def test_what_cannot_be_emptied_is_refused() -> None:
    def nothing(records: list[Tensor]) -> object:
        return object()

    with pytest.raises(InvalidValue, match="batch"):
        WithEmpty(nothing, TensorDataset(torch.ones(1)), shows_made_up=False)([])


def test_another_loader_takes_the_options_over() -> None:
    loader = DataLoader(TensorDataset(torch.ones(4)), num_workers=2, persistent_workers=True)
    assert options_of(loader)["num_workers"] == 2
    assert options_of(loader)["persistent_workers"]
