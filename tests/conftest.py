"""Settings that hold for every test."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.turns import TURNS, slow_files_first, turn_named, waiting

# The time of one example says more about the machine than about the code.
settings.register_profile("lehr", deadline=None, print_blob=True)
settings.load_profile("lehr")


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option is for ``make test``; without it every test has its turn."""
    turns = [*map(str, range(TURNS)), "commit"]
    parser.addoption("--turn", choices=turns, help="the turn of the tests marked in_turn, of which all run otherwise")


def pytest_configure(config: pytest.Config) -> None:
    """Tell pytest what the mark means, and let processes that tests start be interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that runs pytest in the background has it so
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "in_turn(turn): a long test that every third change runs; make whole runs all")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what has to wait for its turn, and begin with what takes long."""
    word = config.getoption("--turn")
    left_out = waiting(items, turn_named(word)) if word else []
    config.hook.pytest_deselected(items=left_out)
    out = set(left_out)
    items[:] = slow_files_first([item for item in items if item not in out])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say whose turn it was, so that the same tests can be run again."""
    word = config.getoption("--turn")
    if word:
        terminalreporter.write_line(f"Long tests that take turns: --turn={turn_named(word)} of 0 to {TURNS - 1}")


@pytest.fixture
def met() -> Iterator[None]:
    """A meeting of one process."""
    import torch.distributed as dist  # not where a test needs no torch
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
