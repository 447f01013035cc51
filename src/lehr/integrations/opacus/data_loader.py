"""``DPDataLoader``: Poisson sampling for a loop that takes its batches from a ``DataLoader``.

>>> from torch.utils.data import TensorDataset
>>> loader = DataLoader(TensorDataset(torch.zeros(100, 3)), batch_size=32)
>>> private = DPDataLoader.from_data_loader(loader)
>>> private.sample_rate, len(private)
(0.32, 4)

The draws come from a ``PrivateRun`` without a plan; a ``BatchTracker`` knows which physical batch of which draw the
loop is working on, so that ``optimizer.step()`` is taken on exactly the records that were drawn.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from torch.utils.data._utils.collate import default_collate

from lehr import validate
from lehr.errors import InvalidValue
from lehr.integrations.external_loop import batch_size_of, check_sampler, count_records, loader_options
from lehr.integrations.opacus.migration import USE_TORCHRUN
from lehr.privacy.rng import KEY_BYTES, RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import OpenRunSpec, PrivateRun, PrivateStep


@dataclass(frozen=True, kw_only=True, eq=False)
class TrackedBatch:
    """A physical batch of a draw, as the loop gets it. ``number`` counts the batches of the draw from 1.

    ``is_placeholder`` marks the one record of zeros that stands for an empty draw and does not count.
    """

    step: PrivateStep
    number: int
    num_records: int
    is_last: bool
    is_placeholder: bool = False


class BatchTracker:
    """The physical batch that a loop is working on, and the run that its draws come from.

    ``make_private`` sets the run; a loader without an engine has one of its own, which charges nothing.
    """

    def __init__(self, run: PrivateRun | None = None) -> None:
        self.run = run
        self._current: TrackedBatch | None = None
        self._callbacks: list[Callable[[], None]] = []

    def begin(self, batch: TrackedBatch) -> None:
        """The loop gets this batch now. A batch that it got before and did not use is gone."""
        self._current = batch
        for callback in self._callbacks:
            callback()

    def on_begin(self, callback: Callable[[], None]) -> None:
        """Call this whenever the loop gets another batch."""
        self._callbacks.append(callback)

    def take(self) -> TrackedBatch:
        """The batch that a step is taken on, once: a second step would release the same records again."""
        batch, self._current = self._current, None
        if batch is None:
            allowed = "one that calls optimizer.step() once for each batch of the private data loader"
            raise InvalidValue("loop", allowed=allowed, given="a step without a new batch")
        return batch


def make_run_key(generator: torch.Generator | None, *, secure: bool) -> RunKey:
    """A key from system entropy; from a generator only for tests, since its seed may be known."""
    if generator is None:
        return RunKey.fresh(cryptographic_on_gpu=secure)
    drawn = torch.randint(0, 256, (KEY_BYTES,), generator=generator, device=generator.device)
    return RunKey(bytes(drawn.tolist()), cryptographic_on_gpu=secure)


class PhysicalBatchSampler(Sampler[list[int]]):
    """The draws of an epoch, each in physical batches of at most ``max_physical_batch_size`` records.

    With ``given``, the batches are those of another sampler, which only an unproven run accepts.
    """

    def __init__(
        self,
        sampling: PoissonSampling,
        *,
        steps: int,
        run: PrivateRun | None = None,
        given: Iterable[list[int]] | None = None,
        uses_placeholder: bool = False,
    ) -> None:
        self.tracker, self.sampling = BatchTracker(run), sampling
        self.given, self.uses_placeholder = given, uses_placeholder
        self.steps = validate.count(steps=steps)
        self.max_physical_batch_size = sampling.records
        self.pending: deque[TrackedBatch] = deque()

    def split(self, max_physical_batch_size: int) -> PhysicalBatchSampler:
        """The same draws in smaller physical batches."""
        parts = copy.copy(self)
        parts.max_physical_batch_size = validate.count(max_physical_batch_size=max_physical_batch_size)
        return parts

    def __len__(self) -> int:
        batches = self.sampling.expected_batch_size / self.max_physical_batch_size
        return max(self.steps, math.ceil(self.steps * batches))

    def __iter__(self) -> Iterator[list[int]]:
        # Each pass has its own queue: what an interrupted pass had drawn ahead must not reach the next one.
        self.pending = deque()
        return self._batches(self.pending)

    def _draws(self) -> Iterator[PrivateStep]:
        if self.tracker.run is None:
            records = self.sampling.records
            self.tracker.run = PrivateRun.open(
                OpenRunSpec(sampling=self.sampling, num_records=records, physical_batch=records)
            )
        run = self.tracker.run
        if self.given is not None:
            yield from (run.draw(indices) for indices in self.given)
        else:
            yield from (run.draw() for _ in range(self.steps))

    def _batches(self, pending: deque[TrackedBatch]) -> Iterator[list[int]]:
        for step in self._draws():
            batches = step.batches(self.max_physical_batch_size)
            for number, batch in enumerate(batches, 1):
                indices = batch.indices_P[batch.mask_P].tolist()
                pending.append(
                    TrackedBatch(
                        step=step,
                        number=number,
                        num_records=len(indices),
                        is_last=number == len(batches),
                        is_placeholder=self.uses_placeholder and not indices,
                    )
                )
                yield indices


class PrivateLoader(DataLoader[Any]):
    """A ``DataLoader`` that tells its tracker about every batch at the moment when the loop gets it."""

    batch_sampler: PhysicalBatchSampler

    def __init__(self, dataset: Dataset[Any], batches: PhysicalBatchSampler, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=batches, **options)
        self.tracker, self.sampling = batches.tracker, batches.sampling

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        pending = self.batch_sampler.pending
        for batch in batches:
            self.tracker.begin(pending.popleft())
            yield batch


class DPDataLoader(PrivateLoader):
    """A ``DataLoader`` with Poisson sampling: each record is in a batch with probability ``sample_rate``.

    An epoch has ``steps`` batches, by default ``int(1 / sample_rate)``. An empty batch has tensors of no rows; with
    ``rand_on_empty`` it has one record of zeros, which does not count. ``drop_last`` has no effect.
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
        **options: Any,
    ) -> None:
        num_records = count_records(dataset)
        if generator is not None:
            allowed = "None: sampling is keyed by a secret key, and a known seed would reveal the draws"
            raise InvalidValue("generator", allowed=allowed, given=type(generator).__name__)
        if distributed:
            raise InvalidValue("distributed", allowed=f"False: use {USE_TORCHRUN}", given=True)
        self.sample_rate = validate.probability(sample_rate=sample_rate)
        expected = self.sample_rate * num_records if expected_batch_size is None else expected_batch_size
        batches = PhysicalBatchSampler(
            PoissonSampling(expected_batch_size=min(expected, num_records), records=num_records),
            steps=int(1 / self.sample_rate) if steps is None else steps,
            uses_placeholder=rand_on_empty,
        )
        if not isinstance(collate_fn, CollateWithEmpty):
            collate_fn = CollateWithEmpty(
                collate_fn or default_collate, dataset, uses_placeholder=rand_on_empty, batch_first=batch_first
            )
        super().__init__(dataset, batches, collate_fn=collate_fn, **options)

    @classmethod
    def from_data_loader(
        cls,
        data_loader: DataLoader[Any],
        *,
        distributed: bool = False,
        generator: torch.Generator | None = None,
        batch_first: bool = True,
        rand_on_empty: bool = False,
    ) -> DPDataLoader:
        """The same records by Poisson sampling, with the batch size as expected batch size.

        An epoch has as many batches as before. The loader's own generator for shuffling is not used.
        """
        if isinstance(data_loader, DPDataLoader):
            return data_loader
        batch_size = batch_size_of(data_loader)
        check_sampler(data_loader)
        return cls(
            data_loader.dataset,
            sample_rate=batch_size / count_records(data_loader.dataset),
            expected_batch_size=batch_size,
            collate_fn=data_loader.collate_fn,
            generator=generator,
            distributed=distributed,
            batch_first=batch_first,
            rand_on_empty=rand_on_empty,
            steps=len(data_loader),
            **loader_options(data_loader),
        )

    def copy(self) -> DPDataLoader:
        """The same loader with a tracker, and so a run, of its own."""
        return DPDataLoader(
            self.dataset,
            sample_rate=self.sample_rate,
            expected_batch_size=self.sampling.expected_batch_size,
            collate_fn=self.collate_fn,
            rand_on_empty=self.batch_sampler.uses_placeholder,
            steps=self.batch_sampler.steps,
            **loader_options(self),
        )


def shuffled_loader(data_loader: DataLoader[Any]) -> PrivateLoader:
    """The loader's own batches, tracked. Nothing is proven for them."""
    if isinstance(data_loader, PrivateLoader):
        raise InvalidValue("data_loader", allowed="one that is not private yet", given=type(data_loader).__name__)
    sampling = PoissonSampling(
        expected_batch_size=batch_size_of(data_loader), records=count_records(data_loader.dataset)
    )
    batches = PhysicalBatchSampler(sampling, steps=len(data_loader), given=data_loader.batch_sampler)
    return PrivateLoader(data_loader.dataset, batches, **loader_options(data_loader))


class CollateWithEmpty:
    """Collates; an empty batch has the structure of other batches and no rows, or one row of zeros as placeholder.

    The structure is taken from one record, whose values are not kept.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        dataset: Dataset[Any],
        *,
        uses_placeholder: bool,
        batch_first: bool = True,
    ) -> None:
        self.collate, self.dataset = collate, dataset
        self.uses_placeholder, self.batch_first = uses_placeholder, batch_first

    def __call__(self, records: list[Any]) -> Any:
        return self.collate(records) if records else self._zeros_like(self.collate([self.dataset[0]]))

    def _zeros_like(self, batch: Any) -> Any:
        if isinstance(batch, Tensor):
            shape = list(batch.shape)
            shape[0 if self.batch_first or batch.dim() < 2 else 1] = int(self.uses_placeholder)
            return torch.zeros(shape, dtype=batch.dtype)
        if isinstance(batch, dict) or hasattr(batch, "items"):
            named = {name: self._zeros_like(value) for name, value in batch.items()}
            return named if type(batch) is dict else type(batch)(named)
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self._zeros_like, batch))
        if isinstance(batch, list | tuple):
            has_strings = all(isinstance(value, str | bytes) for value in batch)
            return type(batch)([] if has_strings else map(self._zeros_like, batch))
        allowed = "one of tensors, dictionaries, lists and tuples, so that it can be empty"
        raise InvalidValue("batch", allowed=allowed, given=type(batch).__name__)
