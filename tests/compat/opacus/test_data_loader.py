from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from lehr.compat.opacus.data_loader import DPDataLoader, batch_size_of, shuffled
from lehr.compat.opacus.draws import Draws
from lehr.errors import InvalidValue

RECORDS = TensorDataset(torch.arange(100.0).reshape(100, 1))


def test_the_probability_is_the_batch_size_over_the_records_exactly() -> None:
    """One over the number of batches would be 0.25, and the expected batch 25."""
    loader = DPDataLoader.from_data_loader(DataLoader(RECORDS, batch_size=32))
    assert loader.sampling.sampling_probability == loader.sample_rate == 0.32
    assert loader.sampling.expected_batch_size == 32
    assert len(loader) == 4


def test_every_record_enters_by_its_own_coin() -> None:
    loader = DPDataLoader(RECORDS, sample_rate=0.3, steps=400)
    counts = torch.zeros(100)
    sizes = []
    for (places,) in loader:
        counts[places.long().flatten()] += 1
        sizes.append(len(places))
    assert abs(float(counts.mean()) / 400 - 0.3) < 0.01
    assert bool(((counts / 400 - 0.3).abs() < 0.12).all())
    spread = float(torch.tensor(sizes, dtype=torch.float64).var())
    assert 14 < spread < 30  # 100 · 0.3 · 0.7 = 21; batches of one size have 0


def test_two_passes_differ() -> None:
    loader = DPDataLoader(RECORDS, sample_rate=0.3)
    first, second = ([places.flatten().tolist() for (places,) in loader] for _ in range(2))
    assert first != second


def test_a_loader_that_draws_already_stays_as_it_is() -> None:
    loader = DPDataLoader(RECORDS, sample_rate=0.1)
    assert DPDataLoader.from_data_loader(loader) is loader


@pytest.mark.parametrize("wrong", [{"generator": torch.Generator()}, {"distributed": True}])
def test_what_would_undo_the_draws_or_is_missing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        DPDataLoader(RECORDS, sample_rate=0.1, **wrong)


def test_a_loader_without_a_batch_size_is_refused() -> None:
    with pytest.raises(InvalidValue, match="batch size"):
        batch_size_of(DataLoader(RECORDS, batch_size=None))


def test_a_shuffled_loader_keeps_its_batches() -> None:
    loader = shuffled(DataLoader(RECORDS, batch_size=30), Draws())
    assert next(iter(loader))[0].flatten().tolist() == list(range(30))
    with pytest.raises(InvalidValue, match="not private yet"):
        shuffled(loader, Draws())


class InPairs(Sampler[list[int]]):
    """Batches by a rule of their own."""

    batch_size = 2

    def __iter__(self) -> Iterator[list[int]]:
        yield [0, 1]

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "order",
    [
        {"batch_size": 10, "sampler": SubsetRandomSampler(range(30))},
        {"batch_size": 10, "sampler": WeightedRandomSampler([1.0] * 100, 100)},
        {"batch_size": 10, "sampler": SequentialSampler(range(30))},
        {"batch_sampler": InPairs()},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(range(30)), 10, drop_last=False)},
    ],
    ids=["some", "weighted", "the first ones", "batches", "batches of some"],
)
def test_a_sampler_that_draws_would_ignore_is_refused(order: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=r"sampler must be none but.*Subset"):
        DPDataLoader.from_data_loader(DataLoader(RECORDS, **order))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler(RECORDS)}, {"drop_last": True}])
def test_an_order_of_all_records_is_replaced_by_draws(options: dict[str, Any]) -> None:
    assert DPDataLoader.from_data_loader(DataLoader(RECORDS, batch_size=10, **options)).sample_rate == 0.1
