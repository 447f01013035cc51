"""Poisson sampling behind a ``DataLoader``, physical batches, and the criterion of ghost mode."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
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
)
from torch.utils.data._utils.collate import default_collate

from lehr.errors import InvalidValue
from lehr.integrations.external_loop import batch_size_of, count_records
from lehr.integrations.opacus import BatchMemoryManager
from lehr.integrations.opacus.data_loader import (
    CollateWithEmpty,
    DPDataLoader,
    PhysicalBatchSampler,
    PrivateLoader,
    shuffled_loader,
)
from lehr.integrations.opacus.utils import DPLossFastGradientClipping, UniformWithReplacementSampler
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import OpenRunSpec, PrivateRun
from tests.integrations.opacus.loops import Loop, private, records, take_step


def batches(*, size: int = 30, steps: int = 6) -> PhysicalBatchSampler:
    sampling = PoissonSampling(expected_batch_size=6, records=30)
    spec = OpenRunSpec(sampling=sampling, num_records=30, physical_batch=30, key=RunKey(bytes(32)))
    return PhysicalBatchSampler(sampling, steps=steps, run=PrivateRun.open(spec)).split(size)


def test_a_batch_is_taken_once_and_only_the_last_one() -> None:
    sampler, begun = batches(), []
    sampler.tracker.on_begin(lambda: begun.append(1))
    sizes = [len(indices) for indices in sampler]
    for _ in range(2):
        sampler.tracker.begin(sampler.pending.popleft())
    assert sampler.tracker.take().num_records == sizes[1]
    assert begun == [1, 1]
    with pytest.raises(InvalidValue, match="without a new batch"):
        sampler.tracker.take()


Pair = namedtuple("Pair", ["inputs", "targets"])


def test_parts_are_the_draws_cut() -> None:
    whole = list(batches())
    parted = list(batches(size=2))
    assert [place for draw in whole for place in draw] == [place for part in parted for place in part]
    assert max(map(len, parted)) == 2


def test_every_part_is_announced_when_it_is_given_even_where_workers_read_ahead() -> None:
    loader = PrivateLoader(TensorDataset(torch.arange(30)), batches(size=2), num_workers=1, collate_fn=_collated)
    for _ in range(2):
        for number, (places,) in enumerate(loader):
            assert loader.tracker.take().num_records == len(places)
            if number == 3:
                break  # what was drawn ahead must not reach the next pass


def _collated(given: list[Any]) -> Any:
    return CollateWithEmpty(default_collate, TensorDataset(torch.arange(1)), uses_placeholder=False)(given)


def test_a_pass_is_not_shorter_than_its_steps() -> None:
    assert (len(batches()), len(batches(size=2)), len(batches(size=100))) == (6, 18, 6)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_batch_of_nobody_has_the_structure_of_the_others(rows: int) -> None:
    nested = [{"ids": torch.ones(4, dtype=torch.long), "pair": Pair(torch.ones(2, 3), 1)}]
    empty = CollateWithEmpty(default_collate, nested, uses_placeholder=bool(rows))([])  # type: ignore[arg-type]
    assert empty["ids"].shape == (rows, 4)
    assert empty["ids"].dtype == torch.long
    assert type(empty["pair"]) is Pair
    assert empty["pair"].inputs.shape == (rows, 2, 3)
    assert empty["pair"].targets.shape == (rows,)
    assert not any(bool(value.any()) for value in (empty["ids"], *empty["pair"]))


def test_words_of_nobody_are_no_words() -> None:
    records: Any = [("a word", torch.ones(2))]
    words, numbers = CollateWithEmpty(default_collate, records, uses_placeholder=False)([])
    assert list(words) == []
    assert numbers.shape == (0, 2)


def test_what_cannot_be_emptied_is_refused() -> None:
    def nothing(records: list[Tensor]) -> object:
        return object()

    with pytest.raises(InvalidValue, match="batch"):
        CollateWithEmpty(nothing, TensorDataset(torch.ones(1)), uses_placeholder=False)([])


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
    assert len(UniformWithReplacementSampler(num_samples=10, sample_rate=0.3)) == 3


def test_a_private_loader_stays_as_it_is_and_a_copy_draws_by_itself() -> None:
    loader = DPDataLoader(RECORDS, sample_rate=0.1, steps=7, rand_on_empty=True)
    assert DPDataLoader.from_data_loader(loader) is loader
    copy = loader.copy()
    assert (copy.sample_rate, len(copy), copy.batch_sampler.uses_placeholder) == (0.1, 7, True)
    assert copy.tracker is not loader.tracker


@pytest.mark.parametrize("wrong", [{"generator": torch.Generator()}, {"distributed": True}])
def test_what_would_undo_the_draws_or_is_missing_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        DPDataLoader(RECORDS, sample_rate=0.1, **wrong)
    with pytest.raises(InvalidValue, match="batch_size"):
        batch_size_of(DataLoader(RECORDS, batch_size=None))
    with pytest.raises(InvalidValue, match="map-style"):
        count_records(iter([1]))


def test_a_shuffled_loader_keeps_its_batches() -> None:
    loader = shuffled_loader(DataLoader(RECORDS, batch_size=30))
    with pytest.raises(InvalidValue, match="indices"):
        next(iter(loader))  # a run of which something is proven does not accept them
    spec = OpenRunSpec(sampling=loader.sampling, num_records=100, physical_batch=100, unproven="shuffled")
    loader.tracker.run = PrivateRun.open(spec)
    assert next(iter(loader))[0].flatten().tolist() == list(range(30))
    with pytest.raises(InvalidValue, match="not private yet"):
        shuffled_loader(loader)


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
    with pytest.raises(InvalidValue, match=r"sampler must be .*Subset"):
        DPDataLoader.from_data_loader(DataLoader(RECORDS, **order))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": RandomSampler(RECORDS)}, {"drop_last": True}])
def test_an_order_of_all_records_is_replaced_by_draws(options: dict[str, Any]) -> None:
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


def test_a_pass_that_is_broken_off_leaves_nothing_behind() -> None:
    loop = private(batch_size=20)
    with managed(loop, 3) as loader:
        for batch in loader:
            take_step(loop, batch)
            break
    for batch in loop.loader:
        take_step(loop, batch)
    assert len(loop.engine.accountant) == 2


def test_a_loader_that_is_not_private_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="make_private"):
        BatchMemoryManager(data_loader=DataLoader(records()), max_physical_batch_size=2, optimizer=loop.optimizer)
    with pytest.raises(InvalidValue, match="max_physical_batch_size"):
        managed(loop, 0)


def test_without_a_shape_it_is_the_criterion() -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    assert torch.equal(criterion(logits, targets), functional.cross_entropy(logits, targets))


def test_with_a_shape_every_record_has_the_same_share() -> None:
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, -100], [3, -100, -100]])
    criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    found = criterion(logits.view(-1, 5), targets.view(-1), shape=(2, 3))
    apart = [functional.cross_entropy(logits[record], targets[record]) for record in range(2)]
    assert torch.allclose(found, torch.stack(apart).mean())
    assert not torch.allclose(found, functional.cross_entropy(logits.view(-1, 5), targets.view(-1)))


def test_sums_and_criteria_that_ignore_nothing() -> None:
    values, targets = torch.randn(2, 3), torch.randn(2, 3)
    total = DPLossFastGradientClipping(None, None, nn.MSELoss(reduction="sum"), "sum")
    mean = DPLossFastGradientClipping(None, None, nn.MSELoss())
    assert torch.allclose(total(values, targets, shape=(2, 3)), functional.mse_loss(values, targets, reduction="sum"))
    assert torch.allclose(mean(values, targets, shape=(2, 3)), functional.mse_loss(values, targets))


@pytest.mark.parametrize(
    "criterion, given",
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), "weights"),
        (nn.CrossEntropyLoss(ignore_index=1), "ignored"),
    ],
)
def test_a_mean_in_which_others_decide_on_a_records_share_is_refused(criterion: nn.Module, given: str) -> None:
    logits, targets = torch.randn(3, 2), torch.tensor([0, 1, 0])
    private = DPLossFastGradientClipping(None, None, criterion)
    with pytest.raises(InvalidValue, match=given):
        private(logits, targets)
    assert private(logits, targets, shape=(3, 1)).isfinite()


def test_a_generator_is_refused() -> None:
    with pytest.raises(InvalidValue, match="generator"):
        UniformWithReplacementSampler(num_samples=10, sample_rate=0.3, generator=torch.Generator())  # type: ignore[arg-type]
