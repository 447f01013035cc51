"""Drawing from as many records as ImageNet has, and decoding those that are drawn: ``python -m benchmarks.sampling``.

Three tables. The Poisson sampler alone at 1 281 167 records, over 1 000 steps: the time of a draw, by the processor and
by the clock, and what the memory of the process has grown by at its highest, in a process of its own. The list of as
many files: what it takes, with names as long as ImageNet's, and how long a folder takes to list. And images per second
from a folder of synthetic JPEG files of 500 × 375 pixels, cut to 224 × 224, by the number of worker processes.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks import parse_options, save
from lehr.data import image_folder
from lehr.data.decoding import versions
from lehr.data.image_folder import FileList, list_images
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling

RECORDS = 1_281_167
CLASSES = 1000
WIDTH, HEIGHT, SIDE = 500, 375, 224


def sampler(batch: int, steps: int) -> dict[str, Any]:
    """Draws one after another, as a run makes them."""
    sampling, key = PoissonSampling(expected_batch_size=batch, records=RECORDS), RunKey.fresh()
    before, times, spent, drawn = _peak_mib(), [], [], []
    for step in range(steps):
        begun, used = time.perf_counter(), time.process_time()
        places = sampling.draw(RECORDS, key.at(step, 0))
        spent.append(time.process_time() - used)
        times.append(time.perf_counter() - begun)
        drawn.append(len(places))
    return {
        "records": RECORDS,
        "expected_batch_size": batch,
        "steps": steps,
        "processor_ms": 1000 * statistics.median(spent),
        "median_ms": 1000 * statistics.median(times),
        "slowest_ms": 1000 * max(times),
        "all_s": sum(times),
        "grown_mib": _peak_mib() - before,
        "mean_drawn": statistics.mean(drawn),
    }


def file_list() -> dict[str, Any]:
    """A list with the names of ImageNet, which needs none of its files, against one path object for each."""
    before = _now_mib()
    files = _made_up_list()
    kept = _now_mib() - before
    paths = [Path(os.fsdecode(files.at(place).path)) for place in range(0, len(files), 16)]
    as_paths = 16 * (_now_mib() - before - kept)
    del paths
    return {"files": len(files), "list_mib": kept, "path_objects_mib": as_paths}


def _made_up_list() -> FileList:
    classes = tuple(f"n{1440764 + label:08}" for label in range(CLASSES))
    names = (
        f"{classes[index % CLASSES]}/{classes[index % CLASSES]}_{index // CLASSES * 7}.JPEG" for index in range(RECORDS)
    )
    fields = [("path", "S30"), ("label", "i4"), ("num_bytes", "i8"), ("changed_at", "i8")]
    rows = np.fromiter(((name.encode(), 1, 1, 1) for name in names), dtype=fields, count=RECORDS)
    return FileList(Path("train"), b"/train", classes, rows)


def listing(folder: Path, count: int) -> dict[str, Any]:
    """How long a folder of empty files takes to list."""
    for label in range(10):
        (folder / f"{label}").mkdir(parents=True)
        for number in range(count // 10):
            (folder / f"{label}" / f"{number:06}.jpg").touch()
    begun = time.perf_counter()
    files = list_images(folder)
    return {"files": len(files), "us_each": 1e6 * (time.perf_counter() - begun) / len(files)}


def decoding(folder: Path, *, images: int, workers: int, seconds: float) -> dict[str, Any]:
    """Images per second in the fastest of several passes, and the time that all processors spend on an image.

    The first pass, in which workers start, is left out of the former.
    """
    records = image_folder.stream_image_folder(folder, image_side=SIDE, workers=workers)
    parts = torch.split(torch.arange(len(records)), 64)
    spent = _processors_s()
    times = [_pass(records, parts)]
    while sum(times) < seconds:
        times.append(_pass(records, parts))
    records.decoders.close()
    return {
        "workers": workers,
        "images": images,
        "images_per_s": images / min(times[1:]),
        "processor_ms_an_image": 1000 * (_processors_s() - spent) / images / len(times),
    }


def _pass(records: image_folder.StreamedFolder, parts: tuple[torch.Tensor, ...]) -> float:
    begun = time.perf_counter()
    for _ in records.batches(parts):
        pass
    return time.perf_counter() - begun


def _processors_s() -> float:
    """What this process and the workers that have ended have used."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def write_images(folder: Path, count: int) -> int:
    """JPEG files that are about as hard to decode as photographs; the bytes of all of them."""
    made = np.random.default_rng(0)
    for number in range(count):
        (folder / f"{number % 10}").mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(made.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((WIDTH, HEIGHT)), dtype=np.int16)
        pixels = (smooth + made.integers(-12, 13, smooth.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number % 10}" / f"{number:06}.jpg", quality=90)
    return sum(path.stat().st_size for path in folder.rglob("*.jpg"))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _now_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return pages * resource.getpagesize() / 2**20


def table(found: dict[str, Any]) -> str:
    """What a person reads."""
    lines = ["batch   ms a draw (processor, median, slowest)   memory grown by"]
    lines += [
        f"{row['expected_batch_size']:5d}   {row['processor_ms']:9.2f} {row['median_ms']:9.2f}"
        f" {row['slowest_ms']:9.2f}           {row['grown_mib']:8.1f} MiB"
        for row in found["sampler"]
    ]
    kept, took = found["file_list"], found["listing"]
    lines.append(
        f"{kept['files']:,} files: {kept['list_mib']:.0f} MiB (as path objects {kept['path_objects_mib']:.0f} MiB); "
        f"{took['us_each']:.1f} µs to list one"
    )
    lines.append(f"workers   images/s   processor ms an image ({found['kib_an_image']:.0f} KiB each)")
    lines += [
        f"{row['workers']:7d}   {row['images_per_s']:8.1f}   {row['processor_ms_an_image']:8.2f}"
        for row in found["decoding"]
    ]
    return "\n".join(lines)


def main() -> None:
    given = parse_options(
        __doc__,
        batch={"type": int, "nargs": "+", "default": [16384, 32768], "help": "expected batch sizes"},
        steps={"type": int, "default": 1000, "help": "draws of each size"},
        images={"type": int, "default": 1000, "help": "synthetic images that are decoded"},
        workers={"type": int, "nargs": "+", "default": [0, 1, 2], "help": "numbers of worker processes"},
        seconds={"type": float, "default": 15.0, "help": "of decoding, for each number of workers"},
    )
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as apart:
        found: dict[str, Any] = {"sampler": [apart.apply(sampler, (batch, given.steps)) for batch in given.batch]}
        found["file_list"] = apart.apply(file_list)
    with tempfile.TemporaryDirectory() as folder:
        found["listing"] = listing(Path(folder) / "empty", 20_000)
        pictures = Path(folder) / "pictures"
        found["kib_an_image"] = write_images(pictures, given.images) / given.images / 1024
        found["decoding"] = [
            decoding(pictures, images=given.images, workers=workers, seconds=given.seconds) for workers in given.workers
        ]
    save(given, cpus=os.cpu_count(), decoders=versions(), **found)
    print(table(found))


if __name__ == "__main__":
    main()
