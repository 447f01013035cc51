"""Opacus's examples with both libraries: ``python -m benchmarks.opacus_loop`` prints step times and accuracies.

*Step times.* The networks and batch sizes are those of ``examples/opacus``, and two larger networks. The loop is the
user's: zero_grad, forward, backward, step, over batches that are in memory already; only the import differs. Both
libraries take turns, step by step, in one process, and the median of each is shown. *Plain* is the same loop without
privacy. Opacus is run in its modes "hooks" and "ghost"; Lehr has one engine.

*Accuracies.* With ``--seeds`` the example programs themselves are run to their end, with both libraries and from the
same weights at the start, ``--at-once`` of them together. What is not finished when ``--seconds`` are over is ended;
libraries are compared at the last epoch that all runs of an example have reached. Runs that share a machine tell
nothing about time, so none is taken from them.

``--save FILE`` writes everything as JSON, with the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from examples.opacus import char_lstm, cifar10, imdb_like, mnist
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


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table of times."""

    case: str
    batch: int
    who: str
    milliseconds: float
    to_plain: float


@dataclass(frozen=True, kw_only=True)
class Trained:
    """All runs of one example with one library: by seed, the accuracy behind every epoch."""

    case: str
    library: str
    epsilon: float | None  # behind the epoch that is compared
    compared_epoch: int
    accuracies: list[float]  # behind that epoch, by seed
    by_epoch: dict[str, list[float]] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.accuracies) if self.accuracies else math.nan

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else math.nan


def privacy_engine(library: str) -> Any:
    """``PrivacyEngine`` of a library."""
    return mnist.privacy_engine(library)


def plain(case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The loop as it is without privacy, with torch's own LSTM."""
    model = _with_torchs_lstm(case.network("lehr")).to(inputs.device)
    return _stepping(model, _optimizer(model), nn.CrossEntropyLoss(), inputs, targets)


def private(library: str, mode: str, case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The same loop with a library. Every draw is the whole batch, so that all sides do the same work."""
    model = case.network(library).to(inputs.device)
    criterion: Any = nn.CrossEntropyLoss()
    made = privacy_engine(library)().make_private(
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
    from lehr.integrations.opacus.data_loader import TrackedBatch

    def announce() -> None:
        step, num_records = loader.tracker.run.draw(), len(loader.dataset)
        loader.tracker.begin(TrackedBatch(step=step, number=1, num_records=num_records, is_last=True))

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


def measured(name: str, *, batch: int | None, repeats: int, seconds: float, device: str) -> list[Row]:
    """All sides of one case, in turns, ``repeats`` times or for so many seconds, and three times at least."""
    torch.manual_seed(0)
    case = CASES[name]
    size = case.batch if batch is None else batch
    inputs, targets = case.inputs(size).to(device), torch.randint(0, case.classes, (size,)).to(device)
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
            times[who].append(_time_of(step, device))
    medians = {who: 1000 * statistics.median(found[WARM_UP:]) for who, found in times.items()}
    return [
        Row(case=name, batch=size, who=who, milliseconds=round(ms, 2), to_plain=round(ms / medians["plain"], 2))
        for who, ms in medians.items()
    ]


def _time_of(step: Callable[[], None], device: str) -> float:
    _wait_for(device)
    began = time.perf_counter()
    step()
    _wait_for(device)
    return time.perf_counter() - began


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def accuracies(names: Sequence[str], *, seeds: int, at_once: int, seconds: float, given: Any) -> list[Trained]:
    """The example programs, each from every seed and with both libraries, in turns."""
    jobs = [(name, library, seed) for seed in range(seeds) for name in names for library in LIBRARIES]
    with TemporaryDirectory() as folder:
        logs = {job: Path(folder) / f"{place}.txt" for place, job in enumerate(jobs)}
        _run_all({log: _command(job, given) for job, log in logs.items()}, at_once=at_once, seconds=seconds)
        told = {job: list(_epochs(log)) for job, log in logs.items()}
    for job, epochs in told.items():
        if not epochs:
            print(f"{' '.join(map(str, job))}: no epoch was finished", file=sys.stderr)
    return [row for name in names for row in _compared(name, told)]


def _command(job: tuple[str, str, int], given: Any) -> list[str]:
    name, library, seed = job
    example = CASES[name].example
    command = [sys.executable, f"examples/opacus/{example}.py", "--library", library, "--seed", str(seed)]
    command += ["--device", given.device]
    if given.epochs is not None:
        command += ["--epochs", str(given.epochs)]
    if example == "cifar10":
        command += ["--max-physical-batch-size", str(given.physical_batch)]
    if example in ("mnist", "cifar10"):
        command += ["--data", given.images] if given.images else []
        folder = given.mnist_dir if example == "mnist" else given.cifar_dir
        command += ["--data-dir", folder] if folder else []
    return command


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
    """Accuracy and ε behind every epoch that is told of."""
    for line in log.read_text().splitlines() if log.exists() else ():
        if (found := LINE.match(line)) is not None:
            yield float(found[2]), float(found[3])


def _compared(name: str, told: dict[tuple[str, str, int], list[tuple[float, float]]]) -> Iterator[Trained]:
    own = {(library, seed): epochs for (case, library, seed), epochs in told.items() if case == name and epochs}
    last = min((len(epochs) for epochs in own.values()), default=0)
    for library in LIBRARIES:
        runs = {str(seed): epochs for (who, seed), epochs in own.items() if who == library}
        behind = [epochs[last - 1] for epochs in runs.values()]
        yield Trained(
            case=name,
            library=library,
            epsilon=max((epsilon for _, epsilon in behind), default=None),
            compared_epoch=last,
            accuracies=[accuracy for accuracy, _ in behind],
            by_epoch={seed: [accuracy for accuracy, _ in epochs] for seed, epochs in runs.items()},
        )


def about(device: str) -> dict[str, Any]:
    """The machine, and what runs on it."""
    import opacus

    machine = {"processor": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
    accelerator = {} if device == "cpu" else {"accelerator": torch.cuda.get_device_name()}
    versions = {"torch": torch.__version__, "opacus": opacus.__version__}
    return {"on": datetime.now(UTC).date().isoformat(), **versions, **machine, **accelerator}


def arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="of the step times, in the place of each example's own")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--step-seconds", type=float, default=60.0, help="for the step times of one case")
    parser.add_argument("--seeds", type=int, default=0, help="of the accuracies; 0 leaves them out")
    parser.add_argument("--epochs", type=int, help="of the accuracies, in the place of each example's own")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all accuracies together")
    parser.add_argument("--at-once", type=int, default=1, help="programs that train at once for the accuracies")
    parser.add_argument("--physical-batch", type=int, default=128, help="of the example on CIFAR-10")
    parser.add_argument("--images", help="another data set for both examples on images, such as digits")
    parser.add_argument("--mnist-dir")
    parser.add_argument("--cifar-dir")
    parser.add_argument("--save", type=Path)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    trained: list[Trained] = []

    def save() -> None:
        if given.save is not None:
            found = {"rows": [asdict(row) for row in rows], "accuracies": [asdict(row) for row in trained]}
            given.save.write_text(json.dumps({"about": about(given.device), **found}, indent=1) + "\n")

    print(f"{'case':16} {'batch':>5} {'who':14} {'ms':>9} {'to plain':>8}", flush=True)
    if given.repeats:
        for name in given.cases:
            found = measured(
                name, batch=given.batch, repeats=given.repeats, seconds=given.step_seconds, device=given.device
            )
            rows += found
            for row in found:
                print(
                    f"{row.case:16} {row.batch:5} {row.who:14} {row.milliseconds:9.2f} {row.to_plain:8.2f}", flush=True
                )
            save()
    if given.seeds:
        names = [name for name in given.cases if CASES[name].example is not None]
        trained += accuracies(names, seeds=given.seeds, at_once=given.at_once, seconds=given.seconds, given=given)
        print(f"{'case':16} {'library':8} {'epochs':>6} {'ε':>6} {'accuracy':>9} {'deviation':>9} {'runs':>4}")
        for one in trained:
            spent = math.nan if one.epsilon is None else one.epsilon
            print(
                f"{one.case:16} {one.library:8} {one.compared_epoch:6} {spent:6.2f} {one.mean:9.4f} "
                f"{one.deviation:9.4f} {len(one.accuracies):4}"
            )
        save()


if __name__ == "__main__":
    main()
