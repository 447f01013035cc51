"""Whether several processes train what one does, and what each holds: ``python -m benchmarks.ranks_smoke`` prints JSON.

One run is prepared, with its key, and copied. One process trains the first copy; each of the others is trained by
processes that torchrun starts, over gloo or over NCCL, with whole weights on every rank or with sharded ones. A row has
the largest difference of a weight from the one process's, relative to the largest weight; or the last words of the
error, where the backend refuses (NCCL takes no two processes on one GPU, and a sharded run on GPUs needs NCCL).

Memory is in MB. ``held`` is the size of all tensors of the process when the last loss is asked for, which is when each
layer has run and let its weights go again; ``rise`` is how far the memory in use rises above its least during the
second half of the steps: on a GPU by torch's own count, otherwise the process's resident memory.
``--hidden 1024 --layers 18 --optimizer adam`` has 20 million parameters.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks import parse_options, save
from lehr import fit
from lehr.data import InMemory
from lehr.methods.by_name import named
from lehr.optim.optimizers import adam, sgd
from lehr.run.shape import Callback, Start

RECORDS, INPUTS = 2000, 784


@dataclass(frozen=True, kw_only=True)
class Size:
    """The network, its optimizer, and the number of steps."""

    hidden: int
    layers: int
    optimizer: str
    steps: int


class StopAtOnce(Callback):
    """So that a run has its key, and no step."""

    def started(self, start: Start) -> None:
        raise KeyboardInterrupt


class Watch:
    """A loss that notes when it is asked, while another thread notes how much memory is held."""

    def __init__(self) -> None:
        self.__name__ = "losses"
        self._asked: list[float] = []
        self._held: list[tuple[float, float]] = []
        self._tensors = 0
        threading.Thread(target=self._look, daemon=True).start()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._asked.append(time.monotonic())
        self._tensors = _in_tensors()
        return cross_entropy(outputs, targets, reduction="none")

    def megabytes(self, steps: int) -> dict[str, float]:
        """What is held, and the rise from the middle of the steps to the last of them."""
        begin, end = self._asked[-max(2, steps // 2)], self._asked[-1]
        found = [held for moment, held in self._held if begin <= moment <= end]
        return {"held": round(self._tensors / 1e6, 1), "rise": round((max(found) - min(found)) / 1e6, 1)}

    def _look(self) -> None:
        while True:
            self._held.append((time.monotonic(), _held_now()))
            time.sleep(0.002)


def _in_tensors() -> int:
    """The bytes of all tensors there are, each memory once."""
    found = {}
    for one in gc.get_objects():
        with suppress(Exception):  # what is only a tensor within a transformation of torch has no memory of its own
            if isinstance(one, Tensor):
                memory = (one.to_local() if hasattr(one, "to_local") else one).untyped_storage()
                found[memory.data_ptr()] = memory.nbytes()
    return sum(found.values())


def _held_now() -> float:
    if torch.cuda.is_available():
        return float(torch.cuda.memory_allocated())
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def train(directory: Path, size: Size, *, resume: bool = True, sharded: bool = False, stops: bool = False) -> Watch:
    """This process's part of a run."""
    torch.manual_seed(0)  # the same on every process
    data = InMemory(torch.randn(RECORDS, INPUTS), torch.arange(RECORDS) % 10)
    watch, wide = Watch(), size.hidden
    inner = [layer for _ in range(size.layers) for layer in (nn.Linear(wide, wide), nn.ReLU())]
    fit(
        nn.Sequential(nn.Linear(INPUTS, wide), nn.ReLU(), *inner, nn.Linear(wide, 10)),
        data,
        records=RECORDS,
        num_classes=10,
        delta=1e-4,
        noise_multiplier=1.0,
        steps=size.steps,
        expected_batch_size=64,
        physical_batch=128,
        method=named("dpsgd", update=adam(1e-3) if size.optimizer == "adam" else sgd(0.5, momentum=0.9)),
        loss_fn=watch,
        compiled=False,
        sharded=sharded,
        checkpoint_seconds=3600,
        settings_chosen_on="fixed",
        directory=directory,
        resume=resume,
        quiet=True,
        callbacks=[StopAtOnce()] if stops else [],
    )
    return watch


def row_of(directory: Path, size: Size, *, total: int, backend: str, sharded: bool) -> dict[str, Any]:
    """The result of a copy that so many processes train."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={total}"]
    command += ["-m", "benchmarks.ranks_smoke", "--worker", str(directory), "--backend", backend]
    command += [word for name, value in asdict(size).items() for word in (f"--{name}", str(value))]
    command += ["--sharded"] if sharded else []
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    row: dict[str, Any] = {"ranks": total, "backend": backend, "sharded": sharded}
    row["seconds"] = round(time.monotonic() - began, 1)
    if done.returncode:
        return row | {"failed": [line.strip() for line in done.stderr.splitlines() if "rror" in line][:6]}
    return row | {"megabytes": [json.loads(path.read_text()) for path in sorted(directory.glob("memory-*.json"))]}


def difference(one: Path, other: Path) -> float:
    """The largest difference of a weight, relative to the largest weight."""
    first, second = (load_file(run / "model.safetensors") for run in (one, other))
    largest = max(float(value.abs().max()) for value in first.values())
    return max(float((first[name] - second[name]).abs().max()) for name in first) / largest


def compare(folder: Path, size: Size, given: Any) -> list[dict[str, Any]]:
    """A row for every number of processes, every backend, and whole or sharded weights."""
    with suppress(KeyboardInterrupt):
        train(folder / "prepared", size, resume=False, stops=True)
    train(folder / "warm", replace(size, hidden=8, layers=1, steps=2), resume=False)
    alone = Path(shutil.copytree(folder / "prepared", folder / "alone"))
    rows: list[dict[str, Any]] = [{"ranks": "one process", "megabytes": [train(alone, size).megabytes(size.steps)]}]
    ways = [True] if given.sharded else [False] if given.whole else [False, True]
    for total, backend, sharded in product(given.ranks, given.backends, ways):
        run = Path(shutil.copytree(folder / "prepared", folder / f"{backend}-{total}-{sharded}"))
        row = row_of(run, size, total=total, backend=backend, sharded=sharded)
        rows.append(row if "failed" in row else row | {"difference": difference(alone, run)})
        shutil.rmtree(run)
    return rows


def work(directory: Path, size: Size, *, backend: str, sharded: bool) -> None:
    """The program of each process that torchrun starts."""
    if backend == "gloo":  # sums of a GPU then travel by the CPU
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl")
    try:
        warm = directory.with_name(f"{directory.name}-warm")  # torch loads much when it is first used
        train(warm, replace(size, hidden=8, layers=1, steps=2), resume=False, sharded=sharded)
        held = train(directory, size, sharded=sharded).megabytes(size.steps)
        (directory / f"memory-{dist.get_rank()}.json").write_text(json.dumps(held))
    finally:
        dist.destroy_process_group()


def main() -> None:
    given = parse_options(
        __doc__,
        worker={"type": Path, "help": "for the processes that this program starts"},
        backend={"default": "gloo", "help": "likewise"},
        sharded={"action": "store_true", "help": "sharded weights only"},
        whole={"action": "store_true", "help": "whole weights only"},
        backends={"nargs": "+", "default": ["gloo", "nccl"] if torch.cuda.is_available() else ["gloo"]},
        ranks={"nargs": "+", "type": int, "default": [1, 2]},
        hidden={"type": int, "default": 256},
        layers={"type": int, "default": 1},
        optimizer={"default": "sgd"},
        steps={"type": int, "default": 20},
    )
    size = Size(hidden=given.hidden, layers=given.layers, optimizer=given.optimizer, steps=given.steps)
    if given.worker is not None:
        work(given.worker, size, backend=given.backend, sharded=given.sharded)
        return
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(Path(folder), size, given)
    save(given, trained=asdict(size), rows=rows)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
