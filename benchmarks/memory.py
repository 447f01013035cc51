"""The most memory that one step holds on top of weights and batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

GIB = 2**30


def gib_of_one_step(step: Callable[[], object], *, device: str) -> float:
    """As torch's own allocators count it."""
    step()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / GIB
    return _most_allocated(step) / GIB


def _most_allocated(step: Callable[[], object]) -> int:
    """The largest running total of what the step allocates and frees."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    total = most = 0
    for _, size in sorted(_allocations(seen), key=lambda event: event[0]):
        total += size
        most = max(most, total)
    return most


def _allocations(seen: profile) -> Iterator[tuple[int, int]]:
    """When, and how many bytes: below zero where they were given back."""
    assert seen.profiler is not None
    waiting: list[Any] = list(seen.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while waiting:
        event = waiting.pop()
        waiting += event.children
        size = getattr(event.extra_fields, "alloc_size", None)
        if size is not None:
            yield event.start_time_ns, size
