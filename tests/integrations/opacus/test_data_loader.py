"""Poisson sampling behind a ``DataLoader``, physical batches, and the criterion of ghost mode."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
)

from lehr.integrations.external_loop import batch_size_of, count_records
from lehr.integrations.opacus import BatchMemoryManager
from lehr.integrations.opacus.data_loader import (
    CollateWithEmpty,
    DPDataLoader,
    DPLossFastGradientClipping,
    PhysicalBatchSampler,
    PrivateLoader,
    UniformWithReplacementSampler,
    shuffled_loader,
)
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import PrivateRun, UnplannedRunSpec
from tests.integrations.opacus.loops import Loop, draw_everywhere, private, records, seed_everywhere, take_step
from tests.integrations.refusals import invalid

RECORDS = TensorDataset(torch.arange(100.0).reshape(100, 1))
Pair = namedtuple("Pair", ["inputs", "targets"])


def batches(*, size: int = 30) -> PhysicalBatchSampler:
    sampling = PoissonSampling(expected_batch_size=6, records=30)
    sampler = PhysicalBatchSampler(sampling, steps=6)
    spec = UnplannedRunSpec(sampling=sampling, num_records=30, physical_batch=30, key=RunKey(bytes(32)))
    sampler.tracker.run = PrivateRun.open(spec)
    return sampler.split(size)


def test_physical_batches_are_the_draws_split() -> None:
    whole, parts = list(batches()), list(batches(size=2))
    assert list(chain(*whole)) == list(chain(*parts))
    assert max(map(len, parts)) == 2
    assert (len(batches()), len(batches(size=2)), len(batches(size=100))) == (6, 18, 6)  # no fewer than the steps


def test_a_batch_can_be_taken_once() -> None:
    sampler, begun = batches(), []
    sampler.tracker.on_begin = lambda: begun.append(1)
    sizes = [len(indices) for indices in sampler]
    for _ in range(2):
        sampler.tracker.begin(sampler.pending.popleft())
    assert sampler.tracker.take().num_records == sizes[1]
    assert begun == [1, 1]
    with invalid("loop"):
        sampler.tracker.take()


def test_a_known_seed_tells_no_random_number_of_the_loop() -> None:
    """Neither those of collation nor those between two batches, such as dropout's."""
    drawn: list[Any] = []

    def collating(given: list[Any]) -> Any:
        drawn.append(draw_everywhere())
        return collate(given)

    for _ in range(2):
        seed_everywhere(0)
        for _ in PrivateLoader(TensorDataset(torch.arange(30)), batches(), collate_fn=collating):
            drawn.append(draw_everywhere())
            seed_everywhere(1)
    assert len(drawn) == 2 * 2 * 6
    assert all(len(set(numbers)) == len(drawn) for numbers in zip(*drawn, strict=True))


def collate(given: list[Any]) -> Any:
    return CollateWithEmpty(default_collate, TensorDataset(torch.arange(1)), uses_placeholder=False)(given)


def test_batches_read_ahead_by_workers_are_tracked_when_the_loop_gets_them() -> None:
    loader = PrivateLoader(TensorDataset(torch.arange(30)), batches(), num_workers=1, collate_fn=collate)
    for _ in range(2):
        for number, (indices,) in enumerate(loader):
            assert loader.tracker.take().step.indices.tolist() == indices.tolist()
            if number == 3:
                break  # what was drawn ahead must not reach the next pass


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_batch_has_the_structure_of_the_others(rows: int) -> None:
    nested = [{"ids": torch.ones(4, dtype=torch.long), "pair": Pair(torch.ones(2, 3), 1), "word": "a"}]
    empty = CollateWithEmpty(default_collate, nested, uses_placeholder=bool(rows))([])
    assert (empty["ids"].shape, empty["ids"].dtype) == ((rows, 4), torch.long)
    assert type(empty["pair"]) is Pair
    assert (empty["pair"].inputs.shape, empty["pair"].targets.shape) == ((rows, 2, 3), (rows,))
    assert not any(bool(value.any()) for value in (empty["ids"], *empty["pair"]))
    assert list(empty["word"]) == []
    with invalid("batch"):
        CollateWithEmpty(lambda records: object(), nested, uses_placeholder=False)([])


def test_the_probability_is_exactly_batch_size_over_records() -> None:
    """One over the number of batches would be 0.25, and the expected batch 25."""
    loader = DPDataLoader.from_data_loader(DataLoader(RECORDS, batch_size=32))
    assert loader.sampling.sampling_probability == loader.sample_rate == 0.32
    assert (loader.sampling.expected_batch_size, len(loader)) == (32, 4)


def test_every_record_is_drawn_independently() -> None:
    counts, sizes = torch.zeros(100), []
    for (indices,) in DPDataLoader(RECORDS, sample_rate=0.3, steps=400):
        counts[indices.long().flatten()] += 1
        sizes.append(len(indices))
    assert abs(float(counts.mean()) / 400 - 0.3) < 0.01
    assert bool(((counts / 400 - 0.3).abs() < 0.12).all())
    assert 14 < float(torch.tensor(sizes).double().var()) < 30  # 100 · 0.3 · 0.7 = 21; batches of one size have 0
    assert len(UniformWithReplacementSampler(num_samples=10, sample_rate=0.3)) == 3


def test_a_private_loader_is_kept_and_its_copy_has_its_own_draws() -> None:
    loader = DPDataLoader(RECORDS, sample_rate=0.1, steps=7, rand_on_empty=True)
    assert DPDataLoader.from_data_loader(loader) is loader
    copy = loader.copy()
    assert (copy.sample_rate, len(copy), copy.batch_sampler.uses_placeholder) == (0.1, 7, True)
    assert copy.tracker is not loader.tracker


def test_seeds_processes_and_loaders_without_batch_size_are_refused() -> None:
    with invalid("generator"):
        DPDataLoader(RECORDS, sample_rate=0.1, generator=torch.Generator())
    with invalid("generator"):
        UniformWithReplacementSampler(num_samples=10, sample_rate=0.3, generator=torch.Generator())  # type: ignore[arg-type]
    with invalid("distributed"):
        DPDataLoader(RECORDS, sample_rate=0.1, distributed=True)
    with invalid("batch_size"):
        batch_size_of(DataLoader(RECORDS, batch_size=None))
    with invalid("dataset"):
        count_records(iter([1]))


def test_only_an_unproven_run_accepts_shuffled_batches() -> None:
    loader = shuffled_loader(DataLoader(RECORDS, batch_size=30))
    with invalid("indices"):
        next(iter(loader))
    spec = UnplannedRunSpec(sampling=loader.sampling, num_records=100, physical_batch=100, unproven="shuffled")
    loader.tracker.run = PrivateRun.open(spec)
    assert next(iter(loader))[0].flatten().tolist() == list(range(30))
    with invalid("data_loader"):
        shuffled_loader(loader)


class InPairs(Sampler[list[int]]):
    """Batches by a rule of their own."""

    batch_size = 2

    def __iter__(self) -> Iterator[list[int]]:
        yield [0, 1]


@pytest.mark.parametrize(
    "order",
    [
        {"batch_size": 10, "sampler": SubsetRandomSampler(range(30))},
        {"batch_size": 10, "sampler": WeightedRandomSampler([1.0] * 100, 100)},
        {"batch_size": 10, "sampler": SequentialSampler(range(30))},
        {"batch_sampler": InPairs()},
        {"batch_sampler": BatchSampler(SubsetRandomSampler(range(30)), 10, drop_last=False)},
    ],
    ids=["subset", "weighted", "first", "batches", "batches of a subset"],
)
def test_samplers_that_poisson_sampling_would_ignore_are_refused(order: dict[str, Any]) -> None:
    with invalid("sampler"):
        DPDataLoader.from_data_loader(DataLoader(RECORDS, **order))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler(RECORDS)}, {"drop_last": True}])
def test_orders_of_all_records_are_replaced(options: dict[str, Any]) -> None:
    assert DPDataLoader.from_data_loader(DataLoader(RECORDS, batch_size=10, **options)).sample_rate == 0.1


def managed(loop: Loop, size: int) -> BatchMemoryManager:
    return BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=size, optimizer=loop.optimizer)


def test_weights_move_only_where_a_draw_is_complete() -> None:
    loop = private(batch_size=30)
    with managed(loop, 4) as loader:
        for batch in loader:
            before = loop.model.state_dict()["_module.0.weight"].clone()
            charged = len(loop.engine.accountant)
            take_step(loop, batch)
            moved = bool((loop.model.state_dict()["_module.0.weight"] != before).any())
            assert moved == (len(loop.engine.accountant) > charged)


def test_an_interrupted_pass_leaves_nothing_behind() -> None:
    loop = private(batch_size=20)
    with managed(loop, 3) as loader:
        take_step(loop, next(iter(loader)))
    for batch in loop.loader:
        take_step(loop, batch)
    assert len(loop.engine.accountant) == 2
    with invalid("data_loader"):
        BatchMemoryManager(data_loader=DataLoader(records()), max_physical_batch_size=2, optimizer=loop.optimizer)
    with invalid("max_physical_batch_size"):
        managed(loop, 0)


def test_the_criterion_weighs_all_records_equally() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [3, -100, -100]])
    criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    found = criterion(logits.view(-1, 5), targets.view(-1), shape=(2, 3))
    apart = [functional.cross_entropy(logits[record], targets[record]) for record in range(2)]
    assert torch.allclose(found, torch.stack(apart).mean())
    assert torch.equal(
        criterion(logits[0], targets[0].abs() % 5), functional.cross_entropy(logits[0], targets[0].abs() % 5)
    )
    values, wanted = torch.randn(2, 3), torch.randn(2, 3)
    for reduction in ("mean", "sum"):
        criterion = DPLossFastGradientClipping(None, None, nn.MSELoss(reduction=reduction), reduction)
        expected = functional.mse_loss(values, wanted, reduction=reduction)
        assert torch.allclose(criterion(values, wanted, shape=(2, 3)), expected)


@pytest.mark.parametrize(
    "criterion", [nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), nn.CrossEntropyLoss(ignore_index=1)]
)
def test_a_mean_that_other_records_decide_is_refused(criterion: nn.Module) -> None:
    logits, targets = torch.randn(3, 2), torch.tensor([0, 1, 0])
    private = DPLossFastGradientClipping(None, None, criterion)
    with invalid("criterion"):
        private(logits, targets)
    assert private(logits, targets, shape=(3, 1)).isfinite()
