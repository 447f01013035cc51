"""``DPDataLoader``: Poisson sampling for a loop that takes its batches from a ``DataLoader``; the criterion of a loop.

>>> from torch.utils.data import TensorDataset
>>> loader = DataLoader(TensorDataset(torch.zeros(100, 3)), batch_size=32)
>>> private = DPDataLoader.from_data_loader(loader)
>>> private.sample_rate, len(private)
(0.32, 4)

The draws come from a ``PrivateRun`` without a plan; a ``BatchTracker`` knows which physical batch of which draw the
loop is working on, so that ``optimizer.step()`` is taken on exactly the records that were drawn.
``lehr.integrations.opacus.utils`` is this module.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from lehr import validate
from lehr.errors import InvalidValue
from lehr.integrations.external_loop import (
    batch_size_of,
    check_sampler,
    count_records,
    loader_options,
    secretly_seeded,
    seed_secretly,
)
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import PrivateRun, PrivateStep, UnplannedRunSpec

DIVIDES_DRAWS = "make_private divides the draws of a model in DifferentiallyPrivateDistributedDataParallel"


class TrackedBatch(NamedTuple):
    """A physical batch of a draw, as the loop gets it."""

    step: PrivateStep
    num_records: int
    is_last: bool = True
    is_placeholder: bool = False  # one record of zeros, which stands for an empty draw and does not count


class BatchTracker:
    """The physical batch that a loop is working on, and the run that its draws come from.

    ``make_private`` sets the run; a loader without an engine has one of its own, which charges nothing.
    """

    def __init__(self, run: PrivateRun) -> None:
        self.run = run
        self.device = torch.device("cpu")  # whose random numbers the loop uses, besides those of the CPU
        self.on_begin: Callable[[], None] = lambda: None
        self._current: TrackedBatch | None = None

    def begin(self, batch: TrackedBatch) -> None:
        """The loop gets this batch now. A batch that it got before and did not use is gone."""
        self._current = batch
        self.on_begin()

    def take(self) -> TrackedBatch:
        """The batch that a step is taken on, once: a second step would release the same records again."""
        batch, self._current = self._current, None
        if batch is None:
            allowed = "one that takes one optimizer.step() for each batch of the data loader that make_private returned"
            given = "a second step on one batch, or a step on a batch of another loader"
            raise InvalidValue("loop", allowed=allowed, given=given)
        return batch


class PhysicalBatchSampler(Sampler[list[int]]):
    """The draws of an epoch, each in physical batches of at most ``max_physical_batch_size`` records.

    With ``sampler``, the batches are those of another sampler, which only an unproven run accepts.
    """

    def __init__(
        self,
        sampling: PoissonSampling,
        *,
        steps: int,
        sampler: Iterable[list[int]] | None = None,
        uses_placeholder: bool = False,
    ) -> None:
        self.sampling, self.sampler, self.uses_placeholder = sampling, sampler, uses_placeholder
        self.steps = validate.count(steps=steps)
        self.max_physical_batch_size = records = sampling.records
        spec = UnplannedRunSpec(sampling=sampling, num_records=records, physical_batch=records)
        self.tracker = BatchTracker(PrivateRun.open(spec))
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

    def _batches(self, pending: deque[TrackedBatch]) -> Iterator[list[int]]:
        for indices in [None] * self.steps if self.sampler is None else self.sampler:
            step = self.tracker.run.draw(indices)
            batches = step.batches(self.max_physical_batch_size)
            for batch in batches:
                drawn = batch.indices_P[batch.mask_P].tolist()
                is_last, is_placeholder = batch is batches[-1], self.uses_placeholder and not drawn
                pending.append(TrackedBatch(step, len(drawn), is_last, is_placeholder))
                yield drawn


class PrivateLoader(DataLoader[Any]):
    """A ``DataLoader`` that tells its tracker about every batch at the moment when the loop gets it.

    It seeds the global random generators anew for every batch: dropout under a seed that the loop has set is not
    private.
    """

    batch_sampler: PhysicalBatchSampler

    def __init__(self, dataset: Dataset[Any], batches: PhysicalBatchSampler, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=batches, **options)
        self.tracker, self.sampling = batches.tracker, batches.sampling

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        seed_secretly(self.tracker.device)  # before workers get their seeds
        batches = super().__iter__()
        pending = self.batch_sampler.pending
        for batch in secretly_seeded(batches, self.tracker.device):
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
        _refuse_generator(generator)
        if distributed:
            raise InvalidValue("distributed", allowed=f"False: {DIVIDES_DRAWS}", given=True)
        records, self.sample_rate = count_records(dataset), validate.probability(sample_rate=sample_rate)
        expected = self.sample_rate * records if expected_batch_size is None else expected_batch_size
        batches = PhysicalBatchSampler(
            PoissonSampling(expected_batch_size=min(expected, records), records=records),
            steps=int(1 / self.sample_rate) if steps is None else steps,
            uses_placeholder=rand_on_empty,
        )
        if not isinstance(collate_fn, CollateWithEmpty):
            collate_fn = CollateWithEmpty(
                collate_fn or default_collate, dataset, uses_placeholder=rand_on_empty, batch_first=batch_first
            )
        super().__init__(dataset, batches, collate_fn=collate_fn, **options)

    @classmethod
    def from_data_loader(cls, data_loader: DataLoader[Any], **options: Any) -> DPDataLoader:
        """The same records by Poisson sampling, with the batch size as expected batch size.

        An epoch has as many batches as before. The loader's own generator for shuffling is not used. ``options`` are
        ``distributed``, ``generator``, ``batch_first`` and ``rand_on_empty``.
        """
        if isinstance(data_loader, DPDataLoader):
            return data_loader
        batch_size, records = batch_size_of(data_loader), count_records(data_loader.dataset)
        check_sampler(data_loader)
        return cls(
            data_loader.dataset,
            sample_rate=batch_size / records,
            expected_batch_size=batch_size,
            steps=len(data_loader),
            **loader_options(data_loader),
            **options,
        )

    def copy(self) -> DPDataLoader:
        """The same loader with a tracker, and so a run, of its own."""
        return DPDataLoader(
            self.dataset,
            sample_rate=self.sample_rate,
            expected_batch_size=self.sampling.expected_batch_size,
            rand_on_empty=self.batch_sampler.uses_placeholder,
            steps=self.batch_sampler.steps,
            **loader_options(self),
        )


def shuffled_loader(data_loader: DataLoader[Any]) -> PrivateLoader:
    """The loader's own batches, tracked. Nothing is proven for them."""
    if isinstance(data_loader, PrivateLoader):
        raise InvalidValue("data_loader", allowed="one that is not private yet", given=type(data_loader).__name__)
    records = count_records(data_loader.dataset)
    sampling = PoissonSampling(expected_batch_size=batch_size_of(data_loader), records=records)
    batches = PhysicalBatchSampler(sampling, steps=len(data_loader), sampler=data_loader.batch_sampler)
    return PrivateLoader(data_loader.dataset, batches, **loader_options(data_loader))


def _refuse_generator(generator: torch.Generator | None) -> None:
    if generator is not None:
        allowed = "None: sampling is keyed by a secret key, and a known seed would reveal the draws"
        raise InvalidValue("generator", allowed=allowed, given=type(generator).__name__)


class CollateWithEmpty:
    """Collates; an empty batch has the structure of other batches and no rows, or one row of zeros as placeholder.

    The structure is taken from one record, whose values are not kept.
    """

    def __init__(
        self, collate: Callable[[list[Any]], Any], dataset: Any, *, uses_placeholder: bool, batch_first: bool = True
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
        if hasattr(batch, "items"):
            named = {name: self._zeros_like(value) for name, value in batch.items()}
            return named if type(batch) is dict else type(batch)(named)
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):
            return type(batch)(*map(self._zeros_like, batch))
        if isinstance(batch, list | tuple):
            has_strings = all(isinstance(value, str | bytes) for value in batch)
            return type(batch)([] if has_strings else map(self._zeros_like, batch))
        allowed = "one of tensors, dictionaries, lists and tuples, so that it can be empty"
        raise InvalidValue("batch", allowed=allowed, given=type(batch).__name__)


class BatchMemoryManager:
    """Splits every draw of the loader into physical batches of at most ``max_physical_batch_size`` records.

    Call ``optimizer.step()`` for every physical batch; a step is charged, and noise added, once per draw.
    """

    def __init__(self, *, data_loader: DataLoader[Any], max_physical_batch_size: int, optimizer: object) -> None:
        if not isinstance(data_loader, PrivateLoader):
            allowed = "the one that make_private returned"
            raise InvalidValue("data_loader", allowed=allowed, given=type(data_loader).__name__)
        self.split_loader = wrap_data_loader(
            data_loader=data_loader, max_batch_size=max_physical_batch_size, optimizer=optimizer
        )

    def __enter__(self) -> DataLoader[Any]:
        return self.split_loader

    def __exit__(self, *_: object) -> None:
        pass


def wrap_data_loader(*, data_loader: PrivateLoader, max_batch_size: int, optimizer: object) -> PrivateLoader:
    """A loader over the same draws, split into physical batches."""
    batches = data_loader.batch_sampler.split(max_batch_size)
    return PrivateLoader(data_loader.dataset, batches, **loader_options(data_loader))


class UniformWithReplacementSampler(PhysicalBatchSampler):
    """Opacus's name for Poisson sampling: each record is in a batch with probability ``sample_rate``, independently.

    >>> len(UniformWithReplacementSampler(num_samples=100, sample_rate=0.1))
    10
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, generator: None = None, steps: int | None = None
    ) -> None:
        _refuse_generator(generator)
        self.sample_rate = rate = validate.probability(sample_rate=sample_rate)
        sampling = PoissonSampling(expected_batch_size=rate * num_samples, records=num_samples)
        super().__init__(sampling, steps=int(1 / rate) if steps is None else steps)


class DPLossFastGradientClipping:
    """The criterion of ``grad_sample_mode="ghost"``: its loss is an ordinary tensor, and one backward pass is enough.

    ``shape`` is ``[records, positions]`` for inputs that were flattened; then every record has the same weight in the
    loss, however many of its positions count.

    >>> criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    >>> logits, words = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
    >>> criterion(logits.view(-1, 5), words.view(-1), shape=(2, 3)).shape
    torch.Size([])
    """

    def __init__(self, module: object, optimizer: object, criterion: Any, loss_reduction: str = "mean") -> None:
        self.criterion = criterion
        self.loss_reduction = validate.one_of(("mean", "sum"), loss_reduction=loss_reduction)
        reduction = getattr(criterion, "reduction", loss_reduction)
        if reduction != loss_reduction:
            allowed = f"one with reduction={loss_reduction!r}, the loss_reduction of make_private"
            raise InvalidValue("criterion", allowed=allowed, given=reduction)

    def __call__(self, *args: Any, shape: Sequence[int] | None = None, **kwargs: Any) -> Tensor:
        targets = kwargs["target"] if "target" in kwargs else args[1] if len(args) > 1 else None
        if shape is None:
            self._refuse_unequal_weights(targets)
            loss: Tensor = self.criterion(*args, **kwargs)
            return loss
        criterion = copy.copy(self.criterion)
        criterion.reduction = "none"
        losses: Tensor = criterion(*args, **kwargs).view(shape[0], shape[1])
        if self.loss_reduction == "sum":
            return losses.sum()
        ignored = getattr(criterion, "ignore_index", None)
        if ignored is None or targets is None:
            return losses.mean()
        counted: Tensor = targets.view(shape[0], shape[1]) != ignored
        return (losses.sum(1) / counted.sum(1).clamp_min(1)).mean()

    def _refuse_unequal_weights(self, targets: Any) -> None:
        """A mean by class weights, or over targets that are not ignored, weighs a record by what the others are."""
        if self.loss_reduction != "mean" or not isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return
        if targets.is_floating_point():  # class probabilities, whose mean is over records
            return
        has_ignored = bool((targets == self.criterion.ignore_index).any())
        if self.criterion.weight is not None or has_ignored:
            allowed = 'one that weighs all records equally: pass shape=[records, positions], or use reduction="sum"'
            given = "ignored targets" if has_ignored else "a mean by class weights"
            raise InvalidValue("criterion", allowed=allowed, given=given)
