"""Settings for all tests, and for the examples in the Markdown pages and in the modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

# Looking for examples loads every module, and these cannot be loaded without Triton.
NEED_TRITON = ["src/lehr/gradients/triton_kernels.py", "tests/gradients/triton_twins.py"]
collect_ignore = [] if find_spec("triton") else NEED_TRITON


_PRODUCT = "import torch; one = torch.ones(256, 256, dtype=torch.bfloat16); one @ one"
_LIMIT = "ONEDNN_MAX_CPU_ISA"


def pytest_configure(config: pytest.Config) -> None:
    """Keep torch from instructions that the processor lists and that a virtual machine does not run (AMX)."""
    if hasattr(config, "workerinput") or _LIMIT in os.environ or not _lists_amx():
        return
    tried = subprocess.run([sys.executable, "-c", _PRODUCT], capture_output=True, check=False)
    if tried.returncode == -signal.SIGILL:
        os.environ[_LIMIT] = "AVX512_CORE_FP16"


def _lists_amx() -> bool:
    processor = Path("/proc/cpuinfo")
    return processor.exists() and "amx_tile" in processor.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _no_fits_remembered() -> Iterator[None]:
    """Tests train on the same few records with all kinds of settings, which is no search of theirs."""
    yield
    if "lehr.training.earlier_fits" in sys.modules:  # nothing is loaded for it
        sys.modules["lehr.training.earlier_fits"].forget()


@pytest.fixture(autouse=True)
def _pages_run_in_a_folder_of_their_own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page writes files as its reader would, into the current folder; that must not be the repository."""
    if request.node.path.suffix == ".md":
        folder: Path = request.getfixturevalue("tmp_path")
        monkeypatch.chdir(folder)
