"""Data loaders that draw by key, split a draw into physical batches, and say which part of which draw a batch is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from lehr import validate
from lehr.compat.opacus.draws import Draws, Part
from lehr.errors import InvalidValue
from lehr.rng import StepRandomness
from lehr.sampling import PoissonSampling, shuffled


class DrawnBatches(Sampler[list[int]]):
    """The batches of a pass: each draw in parts of at most ``max_physical_batch_size``, the empty one in one part.

    Poisson draws are made here, by ``sampling``. Where ``given`` has batches of its own, they are taken as they come.
    """

    def __init__(
        self,
        draws: Draws,
        *,
        sampling: PoissonSampling,
        num_held: int,
        steps: int,
        given: Iterable[list[int]] | None = None,
        max_physical_batch_size: int | None = None,
        shows_made_up: bool = False,
    ) -> None:
        self.draws, self.sampling, self.given = draws, sampling, given
        self.num_samples = validate.count(num_held=num_held)
        self.steps = validate.count(steps=steps)
        self.shows_made_up = shows_made_up
        self.max_physical_batch_size = (
            num_held
            if max_physical_batch_size is None
            else validate.count(max_physical_batch_size=max_physical_batch_size)
        )
        self.pending: deque[Part] = deque()

    def in_parts_of(self, max_physical_batch_size: int) -> DrawnBatches:
        """The same draws, in smaller parts."""
        return DrawnBatches(
            self.draws,
            sampling=self.sampling,
            num_held=self.num_samples,
            steps=self.steps,
            given=self.given,
            max_physical_batch_size=max_physical_batch_size,
            shows_made_up=self.shows_made_up,
        )

    def __len__(self) -> int:
        parts = self.sampling.expected_batch_size / self.max_physical_batch_size
        return max(self.steps, -int(-self.steps * parts // 1))

    def __iter__(self) -> Iterator[list[int]]:
        # Each pass has its own queue: what a pass that was broken off had drawn ahead must not reach the next one.
        self.pending = deque()
        return self._batches(self.pending)

    def _draws(self) -> Iterator[tuple[StepRandomness, list[int]]]:
        if self.given is not None:
            yield from ((self.draws.fresh(), list(places)) for places in self.given)
            return
        for _ in range(self.steps):
            randomness = self.draws.fresh()
            yield randomness, shuffled(self.sampling.draw(self.num_samples, randomness), randomness).tolist()

    def _batches(self, pending: deque[Part]) -> Iterator[list[int]]:
        for randomness, places in self._draws():
            parts = _parts(places, self.max_physical_batch_size)
            for index, part in enumerate(parts):
                is_made_up = self.shows_made_up and not part
                is_last = index == len(parts) - 1
                num_records = 1 if is_made_up else len(part)
                pending.append(
                    Part(randomness=randomness, num_records=num_records, is_last=is_last, is_made_up=is_made_up)
                )
                yield part


class DrawnLoader(DataLoader[Any]):
    """A ``DataLoader`` whose every batch is announced to its draws at the moment when the loop gets it."""

    batch_sampler: DrawnBatches

    def __init__(self, dataset: Dataset[Any], batches: DrawnBatches, **options: Any) -> None:
        super().__init__(dataset, batch_sampler=batches, **options)

    @property
    def draws(self) -> Draws:
        """What a private optimizer asks which records a step was taken on."""
        return self.batch_sampler.draws

    @property
    def sampling(self) -> PoissonSampling:
        """The probability with which a record enters a draw."""
        return self.batch_sampler.sampling

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        batches = super().__iter__()
        pending = self.batch_sampler.pending
        for batch in batches:
            self.draws.begin(pending.popleft())
            yield batch


class WithEmpty:
    """Collates as it is told, and makes a batch of nobody like the batches of somebody.

    What a batch looks like is learnt from one record, whose values are not kept. ``shows_made_up`` makes it one record
    of zeros instead, for models that cannot run on nothing.
    """

    def __init__(
        self,
        collate: Callable[[list[Any]], Any],
        dataset: Dataset[Any],
        *,
        shows_made_up: bool,
        batch_first: bool = True,
    ) -> None:
        self.collate, self.dataset, self.shows_made_up, self.batch_first = collate, dataset, shows_made_up, batch_first

    def __call__(self, records: list[Any]) -> Any:
        if records:
            return self.collate(records)
        return _emptied(self.collate([self.dataset[0]]), rows=int(self.shows_made_up), first=self.batch_first)


def refuse_streams(dataset: Dataset[Any]) -> None:
    """Records that come as a stream cannot be drawn by coins."""
    if isinstance(dataset, IterableDataset):
        allowed = "one whose records have places: a record of a stream cannot be drawn by its own coin"
        raise InvalidValue("dataset", allowed=allowed, given=type(dataset).__name__)


def options_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What another loader over the same records takes over."""
    return {
        "num_workers": loader.num_workers,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
    }


def _parts(places: list[int], size: int) -> list[list[int]]:
    return [places[first : first + size] for first in range(0, len(places), size)] or [[]]


def _emptied(batch: Any, *, rows: int, first: bool) -> Any:
    def emptied(value: Any) -> Any:
        return _emptied(value, rows=rows, first=first)

    if isinstance(batch, Tensor):
        shape = list(batch.shape)
        shape[0 if first or batch.dim() < 2 else 1] = rows
        return torch.zeros(shape, dtype=batch.dtype)
    if isinstance(batch, dict) or hasattr(batch, "items"):
        named = {name: emptied(value) for name, value in batch.items()}
        return named if type(batch) is dict else type(batch)(named)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(emptied, batch))
    if isinstance(batch, list | tuple):
        is_by_record = all(isinstance(value, str | bytes) for value in batch)
        return type(batch)([] if is_by_record else map(emptied, batch))
    allowed = "one of tensors, dictionaries, lists and tuples, of which an empty one can be made"
    raise InvalidValue("batch", allowed=allowed, given=type(batch).__name__)
