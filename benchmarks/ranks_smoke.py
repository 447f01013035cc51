"""Whether several processes train what one does, on this machine: ``python -m benchmarks.ranks_smoke`` prints JSON.

One run is prepared, with its key, and copied. One process trains the first copy; each of the others is trained by
processes that torchrun starts, over gloo or over NCCL. A line has the largest difference of a weight from the one
process's, relative to the largest weight; or the last words of the error, where the backend refuses (NCCL takes no two
processes on one GPU).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn

from lehr import fit
from lehr.data import InMemory
from lehr.methods.by_name import named
from lehr.run_shape import Callback, Start

STEPS = 20
RECORDS = 2000


class StopAtOnce(Callback):
    """So that a run has its key, and no step."""

    def started(self, start: Start) -> None:
        raise KeyboardInterrupt


def records() -> InMemory:
    """The same on every process."""
    made = torch.Generator().manual_seed(0)
    return InMemory(torch.randn(RECORDS, 64, generator=made), torch.arange(RECORDS) % 10)


def train(directory: Path, *, resume: bool = True, callbacks: tuple[Callback, ...] = ()) -> None:
    """This process's part of a run."""
    torch.manual_seed(0)
    fit(
        nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)),
        records(),
        records=RECORDS,
        num_classes=10,
        delta=1e-4,
        noise_multiplier=1.0,
        steps=STEPS,
        expected_batch_size=256,
        method=named("dpsgd", learning_rate=0.5),
        compiled=False,
        settings_chosen_on="fixed",
        directory=directory,
        resume=resume,
        quiet=True,
        callbacks=callbacks,
    )


def prepared(directory: Path) -> Path:
    """A run of which no step is taken."""
    try:
        train(directory, resume=False, callbacks=(StopAtOnce(),))
    except KeyboardInterrupt:
        return directory
    raise AssertionError("it was not stopped")


def started(directory: Path, *, total: int, backend: str) -> dict[str, Any]:
    """What became of a copy that so many processes train."""
    here = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={total}"]
    worker = ["-m", "benchmarks.ranks_smoke", "--worker", str(directory), "--backend", backend]
    began = time.monotonic()
    done = subprocess.run([*here, *worker], capture_output=True, text=True, timeout=300, check=False)
    row: dict[str, Any] = {"ranks": total, "backend": backend, "seconds": round(time.monotonic() - began, 1)}
    return row if done.returncode == 0 else row | {"failed": _reason(done.stderr)}


def _reason(said: str) -> list[str]:
    lines = [line.strip() for line in said.splitlines() if "rror" in line]
    return lines[:6]


def difference(one: Path, other: Path) -> float:
    """The largest difference of a weight, relative to the largest weight."""
    first, second = (load_file(run / "model.safetensors") for run in (one, other))
    largest = max(float(value.abs().max()) for value in first.values())
    return max(float((first[name] - second[name]).abs().max()) for name in first) / largest


def compared(folder: Path, *, totals: list[int], backends: list[str]) -> list[dict[str, Any]]:
    """A row for every number of processes and every backend."""
    first = prepared(folder / "prepared")
    alone = Path(shutil.copytree(first, folder / "alone"))
    train(alone)
    rows = []
    for total in totals:
        for backend in backends:
            run = Path(shutil.copytree(first, folder / f"{backend}-{total}"))
            row = started(run, total=total, backend=backend)
            rows.append(row if "failed" in row else row | {"difference": difference(alone, run)})
    return rows


def machine() -> dict[str, Any]:
    """Where it was run."""
    gpus = [torch.cuda.get_device_name(place) for place in range(torch.cuda.device_count())]
    return {"torch": torch.__version__, "gpus": gpus, "system": platform.platform(), "cores": os.cpu_count()}


def work(directory: Path, backend: str) -> None:
    """What torchrun starts."""
    if backend == "gloo":  # sums of a GPU then travel by the CPU; otherwise ``fit`` itself takes NCCL
        dist.init_process_group("gloo")
    elif torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl")
    try:
        train(directory)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def main() -> None:
    """Compare, or be one of those compared."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--worker", type=Path)
    asked.add_argument("--backend", default="gloo")
    asked.add_argument("--backends", nargs="+", default=["gloo", "nccl"] if torch.cuda.is_available() else ["gloo"])
    asked.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    given = asked.parse_args()
    if given.worker is not None:
        work(given.worker, given.backend)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compared(Path(folder), totals=given.ranks, backends=given.backends)
    print(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
