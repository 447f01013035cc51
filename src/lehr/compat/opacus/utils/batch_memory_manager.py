"""``BatchMemoryManager``: large draws in physical batches that fit into memory."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch.utils.data import DataLoader

from lehr import validate
from lehr.compat.opacus.drawn_loader import DrawnLoader, options_of
from lehr.compat.opacus.optimizers.optimizer import DPOptimizer
from lehr.errors import InvalidValue


class BatchMemoryManager:
    """Inside the block the loader has the same draws, in parts of at most ``max_physical_batch_size`` records.

    ``optimizer.step()`` is called for every part; noise is added, and the step charged, once for each draw.
    """

    def __init__(self, *, data_loader: DataLoader[Any], max_physical_batch_size: int, optimizer: DPOptimizer) -> None:
        given: object = data_loader
        if not isinstance(given, DrawnLoader):
            allowed = "the one that make_private returned"
            raise InvalidValue("data_loader", allowed=allowed, given=type(data_loader).__name__)
        self.data_loader = given
        self.max_physical_batch_size = validate.count(max_physical_batch_size=max_physical_batch_size)
        self.optimizer = optimizer

    def __enter__(self) -> DataLoader[Any]:
        return wrap_data_loader(
            data_loader=self.data_loader, max_batch_size=self.max_physical_batch_size, optimizer=self.optimizer
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass


def wrap_data_loader(*, data_loader: DrawnLoader, max_batch_size: int, optimizer: DPOptimizer) -> DrawnLoader:
    """The same draws in parts; the given loader stays as it is. The optimizer hears of parts through the draws."""
    batches = data_loader.batch_sampler.in_parts_of(max_batch_size)
    return DrawnLoader(data_loader.dataset, batches, collate_fn=data_loader.collate_fn, **options_of(data_loader))
