"""Trains many runs at once and writes down how they ended: ``python -m benchmarks.methods run JOBS RESULTS``.

A job is one line of JSON: data, network, method with its settings, plan, seed, and what is scored on. Jobs are taken by
several processes, and every result is written as soon as it is there, as one line of JSON. ``collect RESULTS FILE``
makes one file of them: lines of one name become one row, with means over the seeds. ``--against NAME`` compares the
rows on the same data with the same noise with that one, seed by seed. ``jobs FILE`` prints the jobs of such a file, to
run them again.

The seed decides the first weights and which test records acceptance looks at, so that jobs of one seed form a pair.
Draws and noise have keys of their own in every run.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy.stats import ttest_rel
from torch.nn.functional import cross_entropy

from lehr import accounting, data, fit, networks
from lehr.data import DataSet, InMemory, Preparation
from lehr.data.private_pca import PrivatePCA
from lehr.events import NOTHING, NonPrivate, composed, counted, together
from lehr.methods import by_name
from lehr.scoring import PublicScore
from lehr.training.ending import Run

DELTA = 1e-5
Job = dict[str, Any]


class Parts(NamedTuple):
    """What a run is given beside the private records."""

    public: InMemory | None  # seen by acceptance
    test: InMemory | None  # scored by ``fit``
    scored_afterwards: InMemory | None  # where acceptance saw what is scored on, ``fit`` refuses to


def parts_of(job: Job, known: DataSet) -> Parts:
    """``scored_on``: all test records, half of them (the other half for acceptance), or all although seen."""
    whole = known.test
    assert whole is not None
    asks = job["method"].startswith("sa-")
    match job["scored_on"]:
        case "all":
            return Parts(None, whole, None)
        case "half":
            order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(job["seed"]))
            seen, scored = whole.at(order[: len(whole) // 2]), whole.at(order[len(whole) // 2 :])
            return Parts(seen if asks else None, scored, None)
        case "seen":
            return Parts(whole, None, whole)
        case other:
            raise ValueError(f"scored_on must be all, half or seen; given: {other!r}")


def network_of(job: Job) -> tuple[str, dict[str, Any]]:
    """The name and the arguments."""
    name, arguments = job["network"]
    return name, dict(arguments)


def _prepared(preparation: Preparation, inputs: Any) -> torch.Tensor:
    return preparation.prepared(inputs)


def train(job: Job, *, data_dir: str | None, device: str) -> dict[str, Any]:
    """One run, and what is kept of it."""
    known = data.load(job["data"], data_dir=data_dir)
    preparation = Preparation() if job.get("plain_inputs") else known.preparation
    parts = parts_of(job, known)
    torch.manual_seed(job["seed"])
    model = networks.build(job["network"][0], **network_of(job)[1])
    method = by_name.named(job["method"], **job["settings"])
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=os.environ.get("LEHR_RUNS")) as folder:
        run = fit(
            model,
            known.train,
            records=known.records,
            num_classes=known.num_classes,
            preparation=preparation,
            data_name=known.name,
            test=parts.test,
            public=parts.public,
            method=method,
            delta=DELTA,
            noise_multiplier=job["noise_multiplier"],
            expected_batch_size=job["expected_batch_size"],
            steps=job.get("steps"),
            epsilon=job.get("epsilon"),
            averaging=job.get("averaging"),
            private_pca=job.get("private_pca"),
            compiled=job.get("compiled"),
            device=device,
            directory=Path(folder) / "run",
            network=network_of(job),
            quiet=True,
            checkpoint_seconds=3600,
        )
        config = json.loads((run.directory / "config.json").read_text(encoding="utf-8"))
    accuracy, loss = _score(run, parts, preparation, device)
    return {
        **epsilons(run, job.get("private_pca")),
        "accuracy": accuracy,
        "loss": loss,
        "candidates": run.end.step,
        "accepted": run.end.accepted,
        "ended": run.end.reason,
        "accuracies": [row.accuracy for row in run.evaluations],
        "seconds": round(time.perf_counter() - begun, 1),
        "config": config,
    }


def _score(run: Run, parts: Parts, preparation: Preparation, device: str) -> tuple[float, float]:
    if parts.scored_afterwards is None:
        last = run.evaluations[-1]
        return last.accuracy, last.loss
    records = parts.scored_afterwards.to(torch.device(device))
    loss_fn = partial(cross_entropy, reduction="none")
    score = PublicScore(records=records, loss_fn=loss_fn, prepare=partial(_prepared, preparation))
    found = score.score(run.model.eval())
    return found.accuracy, found.loss


def epsilons(run: Run, private_pca: dict[str, Any] | None) -> dict[str, Any]:
    """What is proven for all that the plan allowed, what the paper's rule says, and what was drawn, ex post."""
    plan = run.plan
    beforehand = PrivatePCA.from_json(private_pca).event() if private_pca else NOTHING
    is_proven = math.isfinite(run.proven.epsilon)
    drawn = together(beforehand, plan.events(0, run.end.step))
    seen = together(beforehand, plan.events(0, plan.stops_at_accepted or plan.steps))
    seen = composed({atom: count for atom, count in counted(seen).items() if not isinstance(atom, NonPrivate)})
    about: dict[str, Any] = {"delta": plan.delta, "adjacency": plan.adjacency}
    return {
        "epsilon_proven": run.proven.epsilon if is_proven else None,
        "epsilon_published": accounting.ACCOUNTANTS["rdp-mironov17"].epsilon(seen, **about),
        "epsilon_of_candidates_drawn": accounting.claim(drawn, **about).epsilon if is_proven else None,
    }


def attempted(job: Job, *, data_dir: str | None, device: str) -> dict[str, Any]:
    """The job with its result, or with what went wrong."""
    torch.set_num_threads(1)
    try:
        return {**job, "result": train(job, data_dir=data_dir, device=device)}
    except Exception as error:  # one run that diverges must not end the others
        return {**job, "error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def run_all(jobs: list[Job], results: Path, *, processes: int, data_dir: str | None, device: str) -> None:
    """Every job in some process; every result in the file as soon as it is known."""
    done = partial(attempted, data_dir=data_dir, device=device)
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawning) as pool, results.open("a", encoding="utf-8") as file:
        for future in as_completed([pool.submit(done, job) for job in jobs]):
            line = future.result()
            file.write(json.dumps(line) + "\n")
            file.flush()
            found = line.get("result", {})
            said = (found.get("accuracy"), found.get("accepted"), found.get("candidates"), found.get("seconds"))
            print(line.get("name"), line["seed"], *said, line.get("error", ""), flush=True)


def machine(device: str, *, commit: str | None) -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "machine": torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
    }


def rows_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for all seeds of a job."""
    named: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        named.setdefault(line["name"], []).append(line)
    return [_row(sorted(found, key=lambda line: line["seed"])) for found in named.values()]


_FOUND = ("mean_accuracy", "standard_deviation", "epsilon_proven", "epsilon_published", "seeds", "failed", "config")
_OF_A_SEED = ("accuracy", "loss", "accepted", "candidates", "epsilon_of_candidates_drawn", "seconds")


def _row(lines: list[dict[str, Any]]) -> dict[str, Any]:
    ended = [line for line in lines if "result" in line]
    accuracies = [line["result"]["accuracy"] for line in ended]
    first = ended[0]["result"] if ended else {}
    return {
        **{key: value for key, value in lines[0].items() if key not in ("result", "error", "traceback", "seed")},
        "mean_accuracy": statistics.mean(accuracies) if accuracies else None,
        "standard_deviation": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        **{key: first.get(key) for key in ("epsilon_proven", "epsilon_published", "config")},
        "seeds": [{"seed": line["seed"], **{key: line["result"][key] for key in _OF_A_SEED}} for line in ended],
        "failed": [{"seed": line["seed"], "error": line["error"]} for line in lines if "error" in line],
    }


def compared(rows: list[dict[str, Any]], against: str) -> list[dict[str, Any]]:
    """Every other row on the same data with the same noise against this one, seed by seed."""
    [base] = [row for row in rows if row["name"] == against]
    alike = ("data", "noise_multiplier")
    others = [row for row in rows if row is not base and all(row[key] == base[key] for key in alike)]
    return [_pair(row, base) for row in others]


def _pair(row: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    mine, theirs = ({one["seed"]: one["accuracy"] for one in each["seeds"]} for each in (row, base))
    both = sorted(mine.keys() & theirs.keys())
    test = ttest_rel([mine[seed] for seed in both], [theirs[seed] for seed in both])
    differences = [mine[seed] - theirs[seed] for seed in both]
    return {
        "row": row["name"],
        "against": base["name"],
        "seeds": both,
        "differences": [round(difference, 6) for difference in differences],
        "mean_difference": statistics.mean(differences),
        "p_value": float(test.pvalue),
    }


def jobs_of(collected: dict[str, Any]) -> list[Job]:
    """The jobs whose results a file has."""
    return [
        {**{key: value for key, value in row.items() if key not in _FOUND}, "seed": one["seed"]}
        for row in collected["rows"]
        for one in row["seeds"]
    ]


def lines_of(*files: Path) -> list[dict[str, Any]]:
    """What is in files of one JSON object a line."""
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines() if line]


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", help="train the jobs of a file")
    running.add_argument("jobs", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--processes", type=int, default=1)
    running.add_argument("--device", default="cpu")
    running.add_argument("--data-dir")
    running.add_argument("--commit", help="what to note as the commit, for a copy without git's history")
    collecting = commands.add_parser("collect", help="make one file of results")
    collecting.add_argument("results", type=Path, nargs="+")
    collecting.add_argument("file", type=Path)
    collecting.add_argument("--what", required=True, help="what it shows, in a sentence")
    collecting.add_argument("--against", action="append", default=[], help="the name of a row to compare others with")
    again = commands.add_parser("jobs", help="print the jobs of a file of results")
    again.add_argument("file", type=Path)
    return parser.parse_args()


def main() -> None:
    given = parsed()
    match given.command:
        case "run":
            about = machine(given.device, commit=given.commit)
            _machine_of(given.results).write_text(json.dumps(about), encoding="utf-8")
            jobs = lines_of(given.jobs)
            run_all(jobs, given.results, processes=given.processes, data_dir=given.data_dir, device=given.device)
        case "collect":
            rows = rows_of(lines_of(*given.results))
            pairs = [pair for name in given.against for pair in compared(rows, name)]
            about = json.loads(_machine_of(given.results[0]).read_text(encoding="utf-8"))
            whole = {"what": given.what, **about, "rows": rows, "comparisons": pairs}
            given.file.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        case "jobs":
            for job in jobs_of(json.loads(given.file.read_text(encoding="utf-8"))):
                print(json.dumps(job))


def _machine_of(results: Path) -> Path:
    return results.with_suffix(".machine.json")


if __name__ == "__main__":
    main()
