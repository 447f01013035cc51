"""Opacus's examples with both libraries: ``python -m benchmarks.opacus_loop`` prints step times and accuracies.

*Step times.* The networks and batch sizes are those of ``examples/opacus``, and two larger networks. The loop is the
user's: zero_grad, forward, backward, step, over batches that are in memory already; only the import differs. Both
libraries take turns, step by step, in one process, and the median of each is shown. *Plain* is the same loop without
privacy. Opacus is run in its modes "hooks" and "ghost"; Lehr has one engine.

*Accuracies.* With ``--seeds`` the example programs themselves are run to their end, with both libraries and from the
same initial weights, ``--at-once`` of them together. Programs that are not finished after ``--seconds`` are ended;
libraries are compared at the last epoch that all runs of an example have reached. Runs that share a machine tell
nothing about time, so none is taken from them.
"""

from __future__ import annotations

import math
import os
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import parse_options, save
from examples.opacus import char_lstm, cifar10, imdb_like, mnist
from lehr.integrations.opacus.data_loader import TrackedBatch
from lehr.networks.small import cifar_cnn

WARM_UP = 3
LIBRARIES = ("lehr", "opacus")
LINE = re.compile(r"\w+ epoch (\d+): accuracy (\d\.\d+), ε = (\d+\.\d+), ")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network, built with the names of a library, a batch for it, and the program that trains it."""

    network: Callable[[str], nn.Module]
    inputs: Callable[[int], Tensor]
    batch: int
    classes: int = 10
    example: str | None = None


def _fixed(library: str) -> nn.Module:
    fixed: nn.Module = cifar10.names_of(library).ModuleValidator.fix(cifar10.convnet(10))
    return fixed


def _lstm(library: str) -> nn.Module:
    lstm = char_lstm.names_of(library).DPLSTM
    return char_lstm.CharNNClassifier(lstm, embedding_size=32, hidden_size=64, num_layers=1)


def _letters(batch: int) -> Tensor:
    return torch.randint(0, 1 + len(char_lstm.LETTERS), (batch, char_lstm.LONGEST))


def _words(batch: int) -> Tensor:
    return torch.randint(0, imdb_like.WORDS, (batch, imdb_like.LENGTH))


CASES = {
    "MNIST": Case(
        network=lambda _: mnist.SampleConvNet(),
        inputs=lambda batch: torch.randn(batch, 1, 28, 28),
        batch=256,
        example="mnist",
    ),
    "CIFAR-10": Case(network=_fixed, inputs=lambda batch: torch.randn(batch, 3, 32, 32), batch=128, example="cifar10"),
    "character LSTM": Case(network=_lstm, inputs=_letters, batch=400, classes=4, example="char_lstm"),
    "BERT": Case(network=lambda _: imdb_like.network(32), inputs=_words, batch=128, classes=2, example="imdb_like"),
    "larger CIFAR CNN": Case(
        network=lambda _: cifar_cnn(), inputs=lambda batch: torch.randn(batch, 3, 32, 32), batch=128
    ),
    "larger BERT": Case(network=lambda _: imdb_like.network(256), inputs=_words, batch=128, classes=2),
}


def plain(case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The loop as it is without privacy, with torch's own LSTM."""
    model = _with_torchs_lstm(case.network("lehr")).to(inputs.device)
    return _stepping(model, _optimizer(model), nn.CrossEntropyLoss(), inputs, targets)


def private(library: str, mode: str, case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The same loop with a library. Every draw is the whole batch, so that all sides do the same work."""
    model = case.network(library).to(inputs.device)
    criterion: Any = nn.CrossEntropyLoss()
    made = mnist.privacy_engine(library)().make_private(
        module=model.train(),
        optimizer=_optimizer(model),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    criterion = made[2] if mode == "ghost" else criterion
    announced = _announcing(made[-1]) if library == "lehr" else None
    return _stepping(made[0], made[1], criterion, inputs, targets, announced)


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.1)


def _with_torchs_lstm(model: nn.Module) -> nn.Module:
    if isinstance(model, char_lstm.CharNNClassifier):
        model.lstm = nn.LSTM(model.lstm.input_size, model.lstm.hidden_size, batch_first=True)
    return model


def _announcing(loader: Any) -> Callable[[], None]:
    """A draw for every step, without the time of collating it: the other sides do not collate either."""

    def announce() -> None:
        loader.tracker.begin(TrackedBatch(loader.tracker.run.draw(), len(loader.dataset)))

    return announce


def _stepping(
    model: nn.Module,
    optimizer: Any,
    criterion: Any,
    inputs: Tensor,
    targets: Tensor,
    before: Callable[[], None] | None = None,
) -> Callable[[], None]:
    def step() -> None:
        if before is not None:
            before()
        optimizer.zero_grad()
        criterion(model(inputs), targets).backward()
        optimizer.step()

    return step


def step_times(name: str, *, repeats: int, seconds: float, device: str) -> list[dict[str, Any]]:
    """All sides of one case, in turns, ``repeats`` times or for so many seconds, and three times at least."""
    torch.manual_seed(0)
    case = CASES[name]
    inputs, targets = case.inputs(case.batch).to(device), torch.randint(0, case.classes, (case.batch,)).to(device)
    sides = {
        "plain": plain(case, inputs, targets),
        "lehr": private("lehr", "hooks", case, inputs, targets),
        "opacus hooks": private("opacus", "hooks", case, inputs, targets),
        "opacus ghost": private("opacus", "ghost", case, inputs, targets),
    }
    times: dict[str, list[float]] = {who: [] for who in sides}
    ends = time.perf_counter() + seconds
    for turn in range(WARM_UP + repeats):
        if turn >= WARM_UP + 3 and time.perf_counter() > ends:
            break
        for who, step in sides.items():
            times[who].append(_seconds_of(step, device))
    medians = {who: 1000 * statistics.median(several[WARM_UP:]) for who, several in times.items()}
    about = {"case": name, "batch": case.batch}
    return [
        {**about, "who": who, "milliseconds": round(ms, 2), "to_plain": round(ms / medians["plain"], 2)}
        for who, ms in medians.items()
    ]


def _seconds_of(step: Callable[[], None], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    began = time.perf_counter()
    step()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def accuracies(names: Sequence[str], given: Any) -> list[dict[str, Any]]:
    """The example programs, each from every seed and with both libraries, in turns."""
    jobs = [(name, library, seed) for seed in range(given.seeds) for name in names for library in LIBRARIES]
    with TemporaryDirectory() as folder:
        logs = {job: Path(folder) / f"{index}.txt" for index, job in enumerate(jobs)}
        _run_all({log: _command(job, given) for job, log in logs.items()}, at_once=given.at_once, seconds=given.seconds)
        epochs = {job: list(_epochs(log)) for job, log in logs.items()}
    for job, several in epochs.items():
        if not several:
            print(f"{' '.join(map(str, job))}: no epoch was finished", file=sys.stderr)
    return [row for name in names for row in _compared(name, epochs)]


def _command(job: tuple[str, str, int], given: Any) -> list[str]:
    name, library, seed = job
    example = CASES[name].example
    command = [sys.executable, f"examples/opacus/{example}.py", "--library", library, "--seed", str(seed)]
    command += ["--device", given.device]
    if given.epochs is not None:
        command += ["--epochs", str(given.epochs)]
    if example == "cifar10":
        command += ["--max-physical-batch-size", str(given.physical_batch)]
    folder = {"mnist": given.mnist_dir, "cifar10": given.cifar_dir}.get(str(example))
    return command + (["--data-dir", folder] if folder else [])


def _run_all(commands: dict[Path, list[str]], *, at_once: int, seconds: float) -> None:
    """Run every command into its log, so many at once; what still runs at the end of the time is ended."""
    ends = time.monotonic() + seconds
    waiting, running = list(commands.items()), list[subprocess.Popen[bytes]]()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    while (waiting or running) and time.monotonic() < ends:
        while waiting and len(running) < at_once:
            log, command = waiting.pop(0)
            with log.open("wb") as written:
                running.append(subprocess.Popen(command, stdout=written, stderr=subprocess.STDOUT, env=environment))
        time.sleep(0.1)
        running = [process for process in running if process.poll() is None]
    for process in running:
        process.kill()
        process.wait()
    for log in commands:
        if log.exists() and "Traceback" in log.read_text():
            print(log.read_text()[-2000:], file=sys.stderr)


def _epochs(log: Path) -> Iterator[tuple[float, float]]:
    """The accuracy and ε after every epoch in a log."""
    for line in log.read_text().splitlines() if log.exists() else ():
        if (found := LINE.match(line)) is not None:
            yield float(found[2]), float(found[3])


def _compared(name: str, epochs: dict[tuple[str, str, int], list[tuple[float, float]]]) -> Iterator[dict[str, Any]]:
    own = {(library, seed): several for (case, library, seed), several in epochs.items() if case == name and several}
    last = min(map(len, own.values()), default=0)
    for library in LIBRARIES:
        runs = {str(seed): several for (who, seed), several in own.items() if who == library}
        compared = [several[last - 1] for several in runs.values()]
        yield {
            "case": name,
            "library": library,
            "epsilon": max((epsilon for _, epsilon in compared), default=None),
            "compared_epoch": last,
            "accuracies": [accuracy for accuracy, _ in compared],
            "by_epoch": {seed: [accuracy for accuracy, _ in several] for seed, several in runs.items()},
        }


def main() -> None:
    given = parse_options(
        __doc__,
        cases={"nargs": "+", "choices": CASES, "default": list(CASES)},
        repeats={"type": int, "default": 15},
        step_seconds={"type": float, "default": 60.0, "help": "for the step times of one case"},
        seeds={"type": int, "default": 0, "help": "of the accuracies; 0 leaves them out"},
        epochs={"type": int, "help": "of the accuracies; by default each example's own"},
        seconds={"type": float, "default": 600.0, "help": "for all accuracies together"},
        at_once={"type": int, "default": 1, "help": "programs that train at once for the accuracies"},
        physical_batch={"type": int, "default": 128, "help": "of the example on CIFAR-10"},
        mnist_dir={},
        cifar_dir={},
    )
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    print(f"{'case':16} {'batch':>5} {'who':14} {'ms':>9} {'to plain':>8}", flush=True)
    for name in given.cases if given.repeats else ():
        found = step_times(name, repeats=given.repeats, seconds=given.step_seconds, device=given.device)
        rows += found
        for row in found:
            print("{case:16} {batch:5} {who:14} {milliseconds:9.2f} {to_plain:8.2f}".format(**row), flush=True)
        save(given, rows=rows)
    if given.seeds:
        trained = accuracies([name for name in given.cases if CASES[name].example is not None], given)
        print(f"{'case':16} {'library':8} {'epochs':>6} {'ε':>6} {'accuracy':>9} {'deviation':>9} {'runs':>4}")
        for one in trained:
            values, spent = one["accuracies"], math.nan if one["epsilon"] is None else one["epsilon"]
            mean = statistics.fmean(values) if values else math.nan
            deviation = statistics.stdev(values) if len(values) > 1 else math.nan
            print(
                f"{one['case']:16} {one['library']:8} {one['compared_epoch']:6} {spent:6.2f} {mean:9.4f} "
                f"{deviation:9.4f} {len(values):4}"
            )
        save(given, rows=rows, accuracies=trained)


if __name__ == "__main__":
    main()
