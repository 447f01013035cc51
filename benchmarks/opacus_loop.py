"""Step times of one loop with both libraries: ``python -m benchmarks.opacus_loop`` prints a table.

The loop is the user's: zero_grad, forward, backward, step, over batches that are in memory already; only the import
differs. Both libraries take turns, step by step, in one process, and the median of each is shown. *Plain* is the same
loop without privacy. ``--save FILE`` writes the rows as JSON, with the machine. Opacus is run in its modes "hooks" and
"ghost"; Lehr has one engine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lehr.networks.convolutional import cifar_cnn, paper_cnn

WARM_UP = 3


class CharacterLSTM(nn.Module):
    """Names of fifteen letters."""

    def __init__(self, lstm: Any) -> None:
        super().__init__()
        self.letters, self.lstm, self.out = nn.Embedding(30, 32), lstm(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, letters: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.letters(letters))
        logits: Tensor = self.out(hidden[:, -1])
        return logits


@dataclass(frozen=True)
class Case:
    """A network, built with the LSTM of a library, and inputs for it."""

    network: Callable[[Any], nn.Module]
    inputs: Callable[[int], Tensor]


CASES = {
    "MNIST CNN": Case(lambda _: paper_cnn(), lambda batch: torch.randn(batch, 1, 28, 28)),
    "CIFAR CNN": Case(lambda _: cifar_cnn(), lambda batch: torch.randn(batch, 3, 32, 32)),
    "character LSTM": Case(CharacterLSTM, lambda batch: torch.randint(0, 30, (batch, 15))),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    case: str
    batch: int
    who: str
    milliseconds: float
    to_plain: float


def names_of(library: str) -> tuple[Any, Any]:
    """``PrivacyEngine`` and ``DPLSTM``."""
    if library == "opacus":
        from opacus import PrivacyEngine
        from opacus.layers import DPLSTM
    else:
        from lehr.compat.opacus import PrivacyEngine
        from lehr.compat.opacus.layers import DPLSTM
    return PrivacyEngine, DPLSTM


def plain(case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The loop as it is without privacy."""
    model = case.network(nn.LSTM)
    return _stepping(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss(), inputs, targets)


def private(library: str, mode: str, case: Case, inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    """The same loop with a library. Every draw is the whole batch, so that all sides do the same work."""
    engine, lstm = names_of(library)
    model = case.network(lstm)
    criterion: Any = nn.CrossEntropyLoss()
    made = engine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode=mode,
    )
    criterion = made[2] if mode == "ghost" else criterion
    announced = _announcing(made[-1]) if library == "lehr" else None
    return _stepping(made[0], made[1], criterion, inputs, targets, announced)


def _announcing(loader: Any) -> Callable[[], None]:
    """A draw for every step, without the time of collating it: the other sides do not collate either."""
    from lehr.compat.opacus.draws import Part

    def announce() -> None:
        loader.draws.begin(Part(randomness=loader.draws.fresh(), num_records=len(loader.dataset), is_last=True))

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


def measured(name: str, batch: int, repeats: int) -> list[Row]:
    """All sides of one case, in turns."""
    torch.manual_seed(0)
    case = CASES[name]
    inputs, targets = case.inputs(batch), torch.randint(0, 10, (batch,))
    sides = {
        "plain": plain(case, inputs, targets),
        "lehr": private("lehr", "hooks", case, inputs, targets),
        "opacus hooks": private("opacus", "hooks", case, inputs, targets),
        "opacus ghost": private("opacus", "ghost", case, inputs, targets),
    }
    times: dict[str, list[float]] = {who: [] for who in sides}
    for _ in range(WARM_UP + repeats):
        for who, step in sides.items():
            began = time.perf_counter()
            step()
            times[who].append(time.perf_counter() - began)
    medians = {who: 1000 * statistics.median(found[WARM_UP:]) for who, found in times.items()}
    return [
        Row(case=name, batch=batch, who=who, milliseconds=round(ms, 2), to_plain=round(ms / medians["plain"], 2))
        for who, ms in medians.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--save", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [row for name in given.cases for row in measured(name, given.batch, given.repeats)]
    print(f"{'case':16} {'batch':>5} {'who':14} {'ms':>9} {'to plain':>8}")
    for row in rows:
        print(f"{row.case:16} {row.batch:5} {row.who:14} {row.milliseconds:9.2f} {row.to_plain:8.2f}")
    if given.save is not None:
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads()}
        about = {"on": datetime.now(UTC).date().isoformat(), "torch": torch.__version__, **machine}
        given.save.write_text(json.dumps({"about": about, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
