"""``DPDataLoader``: Poisson sampling for a loop that takes its batches from a ``DataLoader``.

>>> from torch.utils.data import TensorDataset
>>> loader = DataLoader(TensorDataset(torch.zeros(100, 3)), batch_size=32)
>>> private = DPDataLoader.from_data_loader(loader)
>>> private.sample_rate, len(private)
(0.32, 4)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler
from torch.utils.data._utils.collate import default_collate

from lehr import validate
from lehr.compat.opacus.distributed import INSTEAD
from lehr.compat.opacus.drawn_loader import DrawnBatches, DrawnLoader, WithEmpty, options_of, refuse_streams
from lehr.compat.opacus.draws import Draws
from lehr.errors import InvalidValue
from lehr.sampling import PoissonSampling

_KEYED = "none: draws are keyed by a secret of their own, and a seed that somebody knows would undo them"


class DPDataLoader(DrawnLoader):
    """A ``DataLoader`` in whose every batch each record is with probability ``sample_rate``, by its own coin.

    A pass has ``steps`` batches, the whole part of ``1 / sample_rate`` where nothing is said. An empty batch has
    tensors of no rows, in the structure that batches have; with ``rand_on_empty`` it has one record of zeros, which
    counts for nothing. ``drop_last`` has no meaning here.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        sample_rate: float,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        generator: torch.Generator | None = None,
        distributed: bool = False,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        steps: int | None = None,
        expected_batch_size: float | None = None,
        draws: Draws | None = None,
        **options: Any,
    ) -> None:
        refuse_streams(dataset)
        _refuse(generator=generator, distributed=distributed)
        num_held = len(dataset)  # type: ignore[arg-type]
        self.sample_rate = validate.probability(sample_rate=sample_rate)
        expected = self.sample_rate * num_held if expected_batch_size is None else expected_batch_size
        sampling = PoissonSampling(expected_batch_size=min(expected, num_held), records=num_held)
        batches = DrawnBatches(
            Draws() if draws is None else draws,
            sampling=sampling,
            num_held=num_held,
            steps=int(1 / self.sample_rate) if steps is None else steps,
            shows_made_up=rand_on_empty,
        )
        collate = WithEmpty(
            collate_fn or default_collate, dataset, shows_made_up=rand_on_empty, batch_first=batch_first
        )
        super().__init__(dataset, batches, collate_fn=collate, **options)

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader[Any],
        *,
        distributed: bool = False,
        generator: torch.Generator | None = None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
        draws: Draws | None = None,
    ) -> DPDataLoader:
        """The same records by Poisson draws. The probability is the batch size over the number of records, exactly.

        A pass has as many batches as before. A generator that the loader has for shuffling is not used.
        """
        refuse_streams(data_loader.dataset)
        if isinstance(data_loader, DPDataLoader):
            return data_loader
        refuse_other_order(data_loader)
        num_held = len(data_loader.dataset)  # type: ignore[arg-type]
        return cls(
            data_loader.dataset,
            sample_rate=batch_size_of(data_loader) / num_held,
            expected_batch_size=batch_size_of(data_loader),
            collate_fn=data_loader.collate_fn,
            generator=generator,
            distributed=distributed,
            batch_first=batch_first,
            rand_on_empty=rand_on_empty,
            steps=len(data_loader),
            draws=draws,
            **options_of(data_loader),
        )


def shuffled(data_loader: DataLoader[Any], draws: Draws) -> DrawnLoader:
    """The loader's own batches, announced to the draws. Nothing is proven of them."""
    if isinstance(data_loader, DrawnLoader):
        raise InvalidValue("data_loader", allowed="one that is not private yet", given=type(data_loader).__name__)
    refuse_streams(data_loader.dataset)
    num_held = len(data_loader.dataset)  # type: ignore[arg-type]
    batches = DrawnBatches(
        draws,
        sampling=PoissonSampling(expected_batch_size=batch_size_of(data_loader), records=num_held),
        num_held=num_held,
        steps=len(data_loader),
        given=data_loader.batch_sampler,
    )
    return DrawnLoader(data_loader.dataset, batches, collate_fn=data_loader.collate_fn, **options_of(data_loader))


def refuse_other_order(data_loader: DataLoader[Any]) -> None:
    """Draws take the place of a sampler: one that means some of the records, or some more often, must not be ignored.

    >>> from torch.utils.data import SubsetRandomSampler, TensorDataset
    >>> records = TensorDataset(torch.zeros(100, 3))
    >>> refuse_other_order(DataLoader(records, batch_size=8, shuffle=True))
    >>> refuse_other_order(DataLoader(records, batch_size=8, sampler=SubsetRandomSampler(range(80))))
    Traceback (most recent call last):
    ...
    lehr.errors.InvalidValue: sampler must be none ...; given: 'SubsetRandomSampler'
    """
    batches: Any = data_loader.batch_sampler
    sampler: Any = batches.sampler if type(batches) is BatchSampler else batches
    if sampler is None:  # it has no batches, which is said elsewhere
        return
    if type(sampler) not in (SequentialSampler, RandomSampler) or len(sampler.data_source) != len(data_loader.dataset):  # type: ignore[arg-type]
        allowed = (
            "none but torch's own over all records, shuffled or not: a Poisson draw would ignore it "
            "(for some of the records give the loader torch.utils.data.Subset)"
        )
        raise InvalidValue("sampler", allowed=allowed, given=type(sampler).__name__)


def batch_size_of(data_loader: DataLoader[Any]) -> int:
    """The batch size that a loader was made with: the expected one of its draws."""
    batch_size = data_loader.batch_size or getattr(data_loader.batch_sampler, "batch_size", None)
    if batch_size is None:
        allowed = "one with a batch size, from which the probability of a record follows"
        raise InvalidValue("data_loader", allowed=allowed, given=type(data_loader.batch_sampler).__name__)
    return min(validate.count(batch_size=batch_size), len(data_loader.dataset))  # type: ignore[arg-type]


def _refuse(*, generator: object, distributed: bool) -> None:
    if generator is not None:
        raise InvalidValue("generator", allowed=_KEYED, given=type(generator).__name__)
    if distributed:
        raise InvalidValue("distributed", allowed=f"False: part {INSTEAD}", given=True)
