"""The experiments of TAN on CIFAR-10 (Sander et al. 2023): ``python -m benchmarks.tan law|order|vit --save FILE``.

All of them stand for one private training: batches of 4096 of 50 000 records at noise multiplier 3. Smaller batches
simulate it, with the same noise for a record and the same steps; they protect nobody, and CIFAR-10 is public.

- ``law``: a WRN-16-4 at batches from 64 to 4096, over the paper's 2500 steps (Figure 4) or fewer. From the batches up
  to 512 the accuracy at 4096 is predicted, and then compared.
- ``order``: norms before or after the activation with 1, 4 and 16 views, as in Figure 5, at 512 and 600 steps.
- ``vit``: a vision transformer against a residual network without norms, as in Figure 6, at 256 and 600 steps.
- ``rates``: the learning rates that were tried before these, with a seed that none of them has.

Runs of one shape go through one process, one after the other, so that only the first of them waits for the compiler;
``--processes`` are at work at once. Each run is one line of ``--lines FILE`` as soon as it has ended; a run whose line
is there is not run again, and ``--collect`` makes the file to save of what there is. The seed decides the first
weights; draws and noise have keys of their own. ``--quick`` trains tiny networks on made-up images.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import statistics
import tempfile
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.methods import lines_of, machine
from lehr import data, fit, networks
from lehr.data import DataSet, InMemory, Preparation
from lehr.methods.dpsgd import dpsgd
from lehr.planning.extrapolation import Prediction, SimulatedRun
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.update.averaging import ExponentialAverage

REFERENCE_BATCH, REFERENCE_NOISE, RECORDS, DELTA = 4096, 3.0, 50_000, 1e-5
DECAY, CLIP_NORM = 0.999, 1.0
LAW_BATCHES, ORDER_BATCH, VIT_BATCH = (64, 128, 256, 512, 1024, REFERENCE_BATCH), 512, 256
LAW_STEPS, SHORT_STEPS, LARGEST_FITTED = 2500, 600, 512
# Physical batches by expected batch and views: about a whole draw, a half or a quarter of one.
AT_ONCE = {(512, 1): 560, (512, 4): 280, (512, 16): 140, (256, 1): 296, (256, 4): 148}
RATE_SEED = 100
VIT = ("vision_transformer", {"width": 192, "depth": 6})
NF_RESNET = ("nf_resnet", {"num_blocks": [2, 2, 2], "stem_channels": 56, "stem": "small", "num_classes": 10})
WIDE_RESNET = ("wide_resnet", {"order": "after"})
TINY: dict[str, dict[str, Any]] = {
    "wide_resnet": {"depth": 10, "width": 1},
    "vision_transformer": {"width": 24, "depth": 1},
    "nf_resnet": {"num_blocks": [1], "stem_channels": 8},
}
EXPERIMENTS = {
    "law": "Figure 4 of TAN: WRN-16-4 at one ratio of noise to batch",
    "order": "Figure 5 of TAN: WRN-16-4 with norms before or after the activation, simulated",
    "vit": "Figure 6 of TAN: a vision transformer and a residual network without norms, simulated",
    "rates": "The learning rates that were tried before the experiments of TAN, simulated; a seed of their own",
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    experiment: str
    network: tuple[str, dict[str, Any]]
    batch: int
    steps: int
    seed: int
    learning_rate: float = 4.0
    views: int = 1
    augmentation: str = "none"
    evaluate_every: int | None = None
    physical_batch: int | None = None

    @property
    def plan(self) -> Plan:
        """The reference itself, or what simulates it."""
        reference = _reference(self.steps)
        return reference if self.batch == REFERENCE_BATCH else simulate(reference, expected_batch_size=self.batch)


def _reference(steps: int) -> Plan:
    return Plan(
        noise_multiplier=REFERENCE_NOISE,
        expected_batch_size=REFERENCE_BATCH,
        records=RECORDS,
        steps=steps,
        delta=DELTA,
    )


# --- What is run ----------------------------------------------------------------------------------------------------


def law(*, rate: float = 4.0, steps: int = LAW_STEPS, num_seeds: int = 3, num_large: int = 3) -> list[Job]:
    """The dearest first: they end last. ``num_large`` seeds of the batches that the line is not fitted to."""
    return [
        Job(experiment="law", network=WIDE_RESNET, batch=batch, steps=steps, seed=seed, learning_rate=rate)
        for seed in range(max(num_seeds, num_large))
        for batch in reversed(LAW_BATCHES)
        if seed < (num_seeds if batch <= LARGEST_FITTED else num_large)
    ]


def order(*, rate: float = 4.0, num_seeds: int = 3) -> list[Job]:
    """Both orders with as many views."""
    return [
        _short("order", ("wide_resnet", {"order": side}), views=views, seed=seed, rate=rate)
        for seed in range(num_seeds)
        for views in (16, 4, 1)
        for side in ("after", "before")
    ]


def vit(*, vit_rate: float = 2.0, nf_rate: float = 4.0, num_seeds: int = 3) -> list[Job]:
    """Both networks, scored on the way."""
    return [
        _short("vit", network, views=views, seed=seed, rate=rate, batch=VIT_BATCH)
        for seed in range(num_seeds)
        for views in (4, 1)
        for network, rate in ((VIT, vit_rate), (NF_RESNET, nf_rate))
    ]


def rates() -> list[Job]:
    """One run at each."""
    tried = ((WIDE_RESNET, (2.0, 4.0, 8.0)), (VIT, (0.25, 0.5, 1.0, 2.0, 4.0)), (NF_RESNET, (1.0, 2.0, 4.0, 8.0)))
    return [
        _short("rates", network, views=1, seed=RATE_SEED, rate=rate) for network, several in tried for rate in several
    ]


def _short(
    experiment: str,
    network: tuple[str, dict[str, Any]],
    *,
    views: int,
    seed: int,
    rate: float,
    batch: int = ORDER_BATCH,
) -> Job:
    return Job(
        experiment=experiment,
        network=network,
        batch=batch,
        steps=SHORT_STEPS,
        seed=seed,
        learning_rate=rate,
        views=views,
        augmentation="none" if experiment == "rates" else "flip_crop",
        evaluate_every=50,
        physical_batch=AT_ONCE[batch, views],
    )


def quick(job: Job) -> Job:
    """The same on a CPU, in seconds."""
    name, arguments = job.network
    batch = REFERENCE_BATCH if job.batch == REFERENCE_BATCH else max(1, job.batch // 16)
    small = (name, {**arguments, **TINY[name]})
    return replace(job, network=small, batch=batch, steps=2, evaluate_every=None, physical_batch=None)


def named(given: argparse.Namespace) -> list[Job]:
    """The jobs that were asked for."""
    every = {
        "law": law(rate=given.rate, steps=given.law_steps, num_seeds=given.seeds, num_large=given.large_seeds),
        "order": order(rate=given.rate, num_seeds=given.seeds),
        "vit": vit(vit_rate=given.vit_rate, nf_rate=given.nf_rate, num_seeds=given.seeds),
        "rates": rates(),
    }
    jobs = every[given.experiment]
    return [quick(job) for job in jobs if job.seed in (0, RATE_SEED)] if given.quick else jobs


# --- Running --------------------------------------------------------------------------------------------------------


@cache
def records_of(data_dir: str | None, *, is_made_up: bool) -> DataSet:
    """CIFAR-10, or images of noise that stand for it."""
    if not is_made_up:
        return data.load("cifar-10", data_dir=data_dir)
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (RECORDS + 64, 3, 32, 32), dtype=torch.uint8, generator=generator)
    whole = InMemory(images, torch.randint(10, (RECORDS + 64,), generator=generator))
    return DataSet(
        name="made up",
        train=whole.at(torch.arange(RECORDS)),
        test=whole.at(torch.arange(RECORDS, RECORDS + 64)),
        num_classes=10,
        shape=(3, 32, 32),
        preparation=Preparation(),
        records=RECORDS,
    )


def train(job: Job, *, data_dir: str | None, device: str, is_quick: bool, is_compiled: bool) -> dict[str, Any]:
    """One run, and what is kept of it."""
    known, begun, plan = records_of(data_dir, is_made_up=is_quick), time.perf_counter(), job.plan
    torch.manual_seed(job.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = fit(
            networks.build(job.network[0], **job.network[1]),
            known,
            declared="public",
            plan=plan,
            method=dpsgd(learning_rate=job.learning_rate, clip_norm=CLIP_NORM, momentum=0.0),
            averaging=ExponentialAverage(decay=DECAY),
            augmentation=job.augmentation,
            views=job.views,
            precision="as_model" if is_quick else "bfloat16",
            evaluate_every=job.evaluate_every or job.steps,
            physical_batch=job.physical_batch,
            compiled=is_compiled,
            device=device,
            directory=Path(folder) / "run",
            network=job.network,
            quiet=True,
            checkpoint_seconds=3600,
        )
        config = json.loads((run.directory / "config.json").read_text(encoding="utf-8"))
    return {
        "accuracy": run.evaluations[-1].accuracy,
        "loss": run.evaluations[-1].loss,
        "trajectory": [[row.step, row.accuracy] for row in run.evaluations],
        "epsilon": run.proven.epsilon,
        "seconds": round(time.perf_counter() - begun, 1),
        "config": config,
    }


def attempted(job: Job, **where: Any) -> dict[str, Any]:
    """The job with its result, or with what went wrong."""
    torch.set_num_threads(1)
    try:
        return {**asdict(job), "result": train(job, **where)}
    except Exception as error:  # one run that diverges must not end the others
        return {**asdict(job), "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def run_all(jobs: Iterable[Job], lines: Path, given: argparse.Namespace) -> None:
    """Every job in some process, each result on the disk as soon as it is known."""
    done = {_key(line) for line in (lines_of(lines) if lines.exists() else []) if "result" in line}
    todo = [job for job in jobs if _key(asdict(job)) not in done]
    several = partial(
        attempt_all,
        lines=lines,
        data_dir=given.data_dir,
        device=given.device,
        is_quick=given.quick,
        is_compiled=not (given.quick or given.eager),
    )
    with ProcessPoolExecutor(given.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(several, group) for group in of_one_shape(todo)]):
            future.result()


def of_one_shape(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs in groups that are compiled alike, in the order in which the first of each stands."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        groups.setdefault(json.dumps([job.network, job.batch, job.physical_batch, job.views]), []).append(job)
    return list(groups.values())


def attempt_all(jobs: Iterable[Job], *, lines: Path, **where: Any) -> None:
    """The jobs one after the other, in this process; other processes write to the same file."""
    for job in jobs:
        line = attempted(job, **where)
        with lines.open("a", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(line) + "\n")
        print(*_words(line), flush=True)


def _key(line: dict[str, Any]) -> str:
    kept = {key: value for key, value in line.items() if key not in ("result", "error", "traceback")}
    return json.dumps(kept, sort_keys=True)


def _words(line: dict[str, Any]) -> tuple[Any, ...]:
    found = line.get("result", {})
    about = (line["experiment"], line["network"], line["batch"], line["views"], line["learning_rate"], line["seed"])
    return (*about, found.get("accuracy"), found.get("seconds"), line.get("error", ""))


# --- What is kept ---------------------------------------------------------------------------------------------------


def rows_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for all seeds of a setting."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: (line["batch"], line["views"], line["seed"])):
        grouped.setdefault(_key({**line, "seed": None}), []).append(line)
    return [_row(found) for found in grouped.values()]


def _row(lines: list[dict[str, Any]]) -> dict[str, Any]:
    ended = [line for line in lines if "result" in line]
    accuracies = [line["result"]["accuracy"] for line in ended]
    about = {key: lines[0][key] for key in asdict(Job(experiment="", network=("", {}), batch=1, steps=1, seed=0))}
    of_a_seed = ("accuracy", "loss", "trajectory", "seconds")
    return {
        **{key: value for key, value in about.items() if key not in ("experiment", "seed")},
        "noise_multiplier": REFERENCE_NOISE * lines[0]["batch"] / REFERENCE_BATCH,
        "epsilon": ended[0]["result"]["epsilon"] if ended else None,
        "mean_accuracy": statistics.mean(accuracies) if accuracies else None,
        "standard_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "seeds": [{"seed": line["seed"], **{key: line["result"][key] for key in of_a_seed}} for line in ended],
        "failed": [{"seed": line["seed"], "error": line["error"]} for line in lines if "error" in line],
        "parameters": ended[0]["result"]["config"]["model"]["parameters"] if ended else None,
    }


def reference_of(steps: int) -> dict[str, Any]:
    """The private training that is simulated, and what it would promise."""
    return {
        "expected_batch_size": REFERENCE_BATCH,
        "noise_multiplier": REFERENCE_NOISE,
        "records": RECORDS,
        "steps": steps,
        "delta": DELTA,
        "epsilon": _reference(steps).bound().epsilon,
    }


def predictions(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each number of steps: what the batches up to 512 predict for the reference, and what it reached."""
    found = []
    for steps in sorted({row["steps"] for row in rows}):
        small = [row for row in rows if row["steps"] == steps and row["batch"] <= LARGEST_FITTED and row["seeds"]]
        if len({row["batch"] for row in small}) > 2:
            found.append(_prediction(steps, small, [row for row in rows if row["steps"] == steps]))
    return found


def _prediction(steps: int, small: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, Any]:
    runs = [
        SimulatedRun(expected_batch_size=row["batch"], accuracy=one["accuracy"], seed=one["seed"])
        for row in small
        for one in row["seeds"]
    ]
    prediction = Prediction(reference=_reference(steps), runs=tuple(runs))
    reached = [one["accuracy"] for row in rows if row["batch"] == REFERENCE_BATCH for one in row["seeds"]]
    interval = prediction.interval(num_runs=max(1, len(reached)))
    return {
        "steps": steps,
        "num_runs_fitted": len(runs),
        "slope_for_a_doubling": prediction.law.slope,
        "slope_interval": list(prediction.slope_interval),
        "predicted": prediction.accuracy,
        "interval": list(interval),
        "confidence": prediction.confidence,
        "num_runs_predicted": max(1, len(reached)),
        "outcome": statistics.mean(reached) if reached else None,
        "is_inside": prediction.compared_with(reached).is_inside if reached else None,
    }


def collected(name: str, lines: list[dict[str, Any]], about: dict[str, Any]) -> dict[str, Any]:
    """One file of an experiment."""
    mine = [line for line in lines if line["experiment"] == name]
    configs = [line["result"]["config"] for line in mine if "result" in line]
    rows = rows_of(mine)
    return {
        "what": EXPERIMENTS[name],
        **about,
        "references": [reference_of(steps) for steps in sorted({line["steps"] for line in mine})],
        "method": configs[0]["method"] if configs else None,
        "training": configs[0]["training"] if configs else None,
        **({"predictions": predictions(rows)} if name == "law" else {}),
        "rows": rows,
    }


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=EXPERIMENTS)
    parser.add_argument("--save", type=Path, required=True)
    parser.add_argument("--lines", type=Path, help="where each run goes as it ends")
    parser.add_argument("--collect", action="store_true", help="run nothing")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data-dir")
    parser.add_argument("--commit", help="what to note as the commit, for a copy without git's history")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--large-seeds", type=int, default=3, help="of batches above 512, in the experiment law")
    parser.add_argument("--law-steps", type=int, default=LAW_STEPS)
    parser.add_argument("--rate", type=float, default=4.0, help="of the wide residual networks")
    parser.add_argument("--vit-rate", type=float, default=2.0)
    parser.add_argument("--nf-rate", type=float, default=4.0)
    parser.add_argument("--eager", action="store_true", help="not compiled: slower, and begun at once")
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = parsed()
    with tempfile.TemporaryDirectory() as folder:
        lines = given.lines or Path(folder) / "lines.jsonl"
        noted = lines.with_suffix(".machine.json")
        if not given.collect:
            noted.write_text(json.dumps(machine(given.device, commit=given.commit)), encoding="utf-8")
            run_all(named(given), lines, given)
        about = json.loads(noted.read_text(encoding="utf-8"))
        whole = collected(given.experiment, lines_of(lines), about)
    given.save.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
