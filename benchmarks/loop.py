"""What the loop costs beside the engine's step: ``python -m benchmarks.loop [--device cuda]`` prints one table.

The first steps of a run of ``lehr.fit`` over forty passes, on synthetic images: draws, preparation, noise, optimizer,
ledger and checkpoints included, scores left out. ``--network`` is the papers' small CNN on grey images, WRN-16-4 in
bfloat16 on colour images, or ResNet-9 with eight augmented views of each. After every step the engine alone takes the
same number of physical batches, of the same size, from tensors that lie ready, so that both are timed in turns in one
process. Padding is what the physical batches have beyond the records that were drawn; both sides pay for it, so it is
told apart. The overhead is the median over the steps of one to the other.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks import parse_options, save
from lehr import fit
from lehr.data import InMemory, Preparation
from lehr.gradients.ghost import GhostEngine
from lehr.methods.dpsgd import dpsgd
from lehr.run.shape import Callback, Progress

RECORDS = 60_000
WARM_UP, PASSES = 5, 40


class Timed(Callback):
    """Times the steps of a run, and after each the engine alone on as many physical batches."""

    def __init__(self, device: torch.device, *, steps: int) -> None:
        self.device, self.steps = device, steps
        self.loop_s: list[float] = []
        self.engine_s: list[float] = []
        self.batches: list[int] = []
        self.drawn: list[int] = []
        self.physical_batch = 0
        self._real = GhostEngine.private_sum
        self._calls: list[tuple[GhostEngine, tuple[Any, ...]]] = []
        self._begun = 0.0

    def __enter__(self) -> Timed:
        timed = self

        def noted(engine: GhostEngine, *given: Any) -> Any:
            timed._calls.append((engine, given))
            return timed._real(engine, *given)

        GhostEngine.private_sum = noted  # type: ignore[method-assign,assignment]
        return self

    def __exit__(self, *_: object) -> None:
        GhostEngine.private_sum = self._real  # type: ignore[method-assign]

    def started(self, start: object) -> None:
        self._calls.clear()
        self._begun = time.perf_counter()

    def stepped(self, progress: Progress) -> None:
        self._wait()
        ended = time.perf_counter()
        for engine, given in self._calls:
            self._real(engine, *given)
        self._wait()
        after = time.perf_counter()
        if progress.step > WARM_UP + self.steps:
            raise KeyboardInterrupt
        if progress.step > WARM_UP:
            self.loop_s.append(ended - self._begun)
            self.engine_s.append(after - ended)
            self.batches.append(len(self._calls))
            masks = [given[3] for _, given in self._calls]
            self.drawn.append(sum(int(mask.sum()) for mask in masks))
            self.physical_batch = len(masks[0])
        self._calls.clear()
        self._begun = time.perf_counter()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


# By name: the network, the shape of an image, and other options of ``fit``.
NETWORKS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "paper_cnn": ("paper CNN", (1, 28, 28), {}),
    "wide_resnet": ("WRN-16-4", (3, 32, 32), {"precision": "bfloat16"}),
    "resnet9": ("ResNet-9", (3, 32, 32), {"precision": "bfloat16", "augmentation": "flip_crop", "views": 8}),
}


def measure(*, network: str, batch: int, steps: int, device: str, physical_batch: int | None) -> dict[str, Any]:
    """One run, and the figures of its steps."""
    label, shape, options = NETWORKS[network]
    images = torch.randint(0, 256, (RECORDS, *shape), dtype=torch.uint8)
    with (
        tempfile.TemporaryDirectory() as folder,
        suppress(KeyboardInterrupt),
        Timed(torch.device(device), steps=steps) as timed,
    ):
        fit(
            network,
            InMemory(images, torch.arange(RECORDS) % 10),
            records=RECORDS,
            num_classes=10,
            preparation=Preparation(mean=(0.5,) * shape[0], std=(0.5,) * shape[0]),
            **options,
            method=dpsgd(),
            noise_multiplier=1.0,
            expected_batch_size=batch,
            steps=round(PASSES * RECORDS / batch),
            delta=1e-5,
            device=device,
            physical_batch=physical_batch,
            compiled=True,
            directory=Path(folder) / "run",
            callbacks=[timed],
            quiet=True,
        )
    run_records = timed.physical_batch * sum(timed.batches)
    return {
        "network": label,
        "expected_batch_size": batch,
        "steps": steps,
        "physical_batch": timed.physical_batch,
        "loop_ms": 1000 * statistics.median(timed.loop_s),
        "engine_ms": 1000 * statistics.median(timed.engine_s),
        "overhead": statistics.median(one / other for one, other in zip(timed.loop_s, timed.engine_s, strict=True)) - 1,
        "overhead_of_sums": sum(timed.loop_s) / sum(timed.engine_s) - 1,
        "padding": 1 - sum(timed.drawn) / run_records,
    }


def table(rows: list[dict[str, Any]]) -> str:
    """What a person reads."""
    lines = ["batch  physical  loop ms  engine ms  overhead  padding"]
    lines += [
        f"{row['expected_batch_size']:5d}  {row['physical_batch']:8d}  {row['loop_ms']:7.1f}  {row['engine_ms']:9.1f}"
        f"  {row['overhead']:8.1%}  {row['padding']:7.1%}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    given = parse_options(
        __doc__,
        network={"choices": NETWORKS, "default": "paper_cnn", "help": "the network"},
        batch={"type": int, "nargs": "+", "default": [512, 2048], "help": "expected batch sizes"},
        physical_batch={"type": int, "help": "records at once; by default what lehr.fit chooses"},
        steps={"type": int, "default": 60, "help": "steps that are timed"},
    )
    rows = [
        measure(
            network=given.network,
            batch=batch,
            steps=given.steps,
            device=given.device,
            physical_batch=given.physical_batch,
        )
        for batch in given.batch
    ]
    save(given, rows=rows)
    print(table(rows))


if __name__ == "__main__":
    main()
