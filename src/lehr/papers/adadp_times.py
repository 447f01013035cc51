"""Table II of ADADP (Xu et al. 2020): how long a step takes with ADADP, DPSGD, AGD and DPOPT.

All are timed in one process, in turns, on made-up records: how long a step takes does not depend on what they show.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lehr.papers.adadp_runs import COMPONENTS, PAPER
from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Measurement
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.run_shape import Callback, Progress

WARM_UP = 5
PLANNED = 1_000  # steps of the plan, so that what pays in a long run is done
# What the paper prints, in seconds, and the batch of each.
PRINTED: Mapping[str, Mapping[str, float]] = {
    "mnist": {"ADADP": 0.5, "DPSGD": 0.3, "AGD": 12.0, "DPOPT": 15.5},
    "cifar-10": {"ADADP": 1.2, "DPSGD": 0.9, "AGD": 23.7, "DPOPT": 19.1},
}
BATCHES = {"mnist": 120, "cifar-10": 32}
# Far less than in the paper, which takes as long: bounds by coordinates are in use from the first steps on, where under
# the paper's noise the flat clip would stay, and would be timed.
NOISE_MULTIPLIER = 0.01
WAYS: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "DPSGD": ("dpsgd", {}, "DPSGD"),
    "ADADP, proven": ("adadp", {}, "ADADP"),
    "ADADP, published": ("adadp", {"accounting": "published"}, "ADADP"),
    "DPOPT, fifty steps of descent": ("dpopt", {"found_by": "projected-gradient"}, "DPOPT"),
    "DPOPT, in closed form": ("dpopt", {}, "DPOPT"),
    "AGD, loss of all records": ("agd", {}, "AGD"),
    "AGD, loss of a draw": ("agd", {"choice_batch_size": 600}, "AGD"),
}


# Taking the times


def times_of_steps(
    *, device: str | None, data_dir: str | None, network: str, records: int, steps: int, rounds: int
) -> dict[str, Any]:
    """The median time of a step in milliseconds, for each way and round; the ways take turns."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name in WAYS:
            found[name].append(1000 * statistics.median(_timed(name, network, records, steps, device)))
    return {"milliseconds": found, "steps": steps, "records": records, "batch": BATCHES[network]}


class _Enough(Exception):
    """So many steps were timed."""


class _Clock(Callback):
    """Notes how long each step took, once it is done on the device."""

    def __init__(self, device: Any, *, steps: int) -> None:
        self._device, self._steps = device, steps
        self._last = 0.0
        self.seconds: list[float] = []

    def stepped(self, progress: Progress) -> None:
        """Wait for the device, and note the time."""
        if self._device.type == "cuda":
            import torch

            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        if progress.step > WARM_UP:
            self.seconds.append(now - self._last)
        if len(self.seconds) == self._steps:
            raise _Enough
        self._last = now


def _timed(name: str, network: str, records: int, steps: int, device: str | None) -> Sequence[float]:
    import torch

    from lehr.data import InMemory, Preparation
    from lehr.methods import by_name
    from lehr.training.fit import a_device, fit

    where = a_device(device)
    clock = _Clock(where, steps=steps)
    method, settings, _ = WAYS[name]
    inputs = _made_up(network, records)
    with tempfile.TemporaryDirectory() as folder, suppress(_Enough):
        fit(
            _network(network),
            InMemory(inputs, torch.arange(records) % 10),
            records=records,
            num_classes=10,
            preparation=Preparation(),
            method=by_name.named(method, **settings),
            **_plan(method, network),
            delta=1e-5,
            device=where,
            directory=Path(folder) / "run",
            callbacks=(clock,),
            silent=True,
            checkpoint_seconds=3600,
        )
    return clock.seconds


def _made_up(name: str, records: int) -> Any:
    """Sixty numbers for each record of MNIST, as its components are, and pixels for those of CIFAR-10."""
    import torch

    generator = torch.Generator().manual_seed(0)
    if name == "mnist":
        return torch.rand(records, COMPONENTS, generator=generator)
    return torch.randint(0, 256, (records, 3, 32, 32), dtype=torch.uint8, generator=generator)


def _network(name: str) -> Any:
    """The paper's, without the projection, which nobody learns."""
    from torch import nn

    from lehr import networks

    if name == "mnist":
        return nn.Sequential(nn.Linear(COMPONENTS, 1000), nn.ReLU(), nn.Linear(1000, 10))
    return networks.build("alexnet_like", frozen_convolutions=True)


def _plan(method: str, network: str) -> dict[str, Any]:
    """AGD has a limit in place of noise; any that is wide enough for the steps that are timed will do."""
    if method == "agd":
        return {"expected_batch_size": BATCHES[network], "epsilon": 20.0, "steps": 100}
    return {"expected_batch_size": BATCHES[network], "noise_multiplier": NOISE_MULTIPLIER, "steps": PLANNED}


# The table


def _job(network: str, size: Size) -> Measurement:
    small = {"records": 600, "steps": 5, "rounds": 1}
    whole = {"records": 60_000 if network == "mnist" else 50_000, "steps": 30, "rounds": 5}
    arguments = {"network": network, **(small if size.is_quick else whole)}
    return Measurement(function="adadp_times:times_of_steps", arguments=arguments, takes_times=True)


def _networks(size: Size) -> tuple[str, ...]:
    return ("mnist",) if size.is_quick else tuple(PRINTED)


def _table2(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=tuple(_table(network, outcomes.of(_job(network, size))) for network in _networks(size)))


def _table(network: str, found: Outcome | None) -> Table:
    """Times, and how many times that of DPSGD: a machine is faster than another, and ratios say more."""
    rows: list[tuple[Cell, ...]] = []
    for name, (_, _, printed_as) in WAYS.items():
        printed = PRINTED[network][printed_as]
        rows.append((name, printed, printed / PRINTED[network]["DPSGD"], *_cells(name, found)))
    return Table(
        title=f"Table II, {network}: time of a step, batch {BATCHES[network]}",
        columns=(
            Column(title="method"),
            Column(title="paper, s", kind="number", digits=1),
            Column(title="paper, × DPSGD", kind="number", digits=1),
            Column(title="ours, ms", kind="number"),
            Column(title="ours, × DPSGD", kind="number"),
        ),
        rows=tuple(rows),
        notes=(
            "Medians over steps, one for each round; ratios are of one round. Made-up records, the paper's networks.",
        ),
    )


def _cells(name: str, found: Outcome | None) -> tuple[Cell, Cell]:
    if found is None:
        return None, None
    times, plain = found["milliseconds"][name], found["milliseconds"]["DPSGD"]
    return measured(times), measured([mine / other for mine, other in zip(times, plain, strict=True)])


TABLE2 = Experiment(
    paper=PAPER,
    name="table2",
    title="Time of a step with ADADP, DPSGD, AGD and DPOPT",
    about=(
        "The paper times whole steps. So is done here, in one process and in turns. AGD looks at the loss of all "
        "records for its step sizes, as in its paper, or at that of a draw; DPOPT finds its noise by fifty steps of "
        "projected gradient descent, as in the paper, or in closed form. The network for MNIST is given components, "
        "and the one for CIFAR-10 has random convolutions, which cost what trained ones do."
    ),
    jobs=lambda size: [_job(network, size) for network in _networks(size)],
    shown=_table2,
)
