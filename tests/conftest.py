"""Settings that hold for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# The time of one example says more about the machine than about the code.
settings.register_profile("lehr", deadline=None, print_blob=True)
settings.load_profile("lehr")


def pytest_configure() -> None:
    """Let processes that tests start be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that runs pytest in the background has it so
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with files that have slow tests, so that no process works alone at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture
def met() -> Iterator[None]:
    """A process group of one process."""
    import torch.distributed as dist  # not where a test needs no torch
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
