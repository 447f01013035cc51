"""The sweeps of SA-DPSGD's Figure 4, on MNIST: one setting at a time is moved, the others stay as in its Table 2.

The paper names the range of the rate and the best points, and no others: which points there are besides is ours. The
number of accepted steps is what the published rule allows at ε 3 with each batch. A batch of 128 would be allowed
79,860 of them, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, key_of
from lehr.papers.sa_dpsgd_costs import most_candidates, proven_epsilon
from lehr.papers.sa_dpsgd_runs import DIGITS, KEPT, MNIST, Setting, run_of, titled
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.reports.chart import Chart, Line

STEPS_OF_BATCHES: Mapping[int, int] = MappingProxyType({256: 19_582, 512: 4698, 1024: 1076, 2048: 220})
_EVALUATIONS = MappingProxyType({256: 500, 512: MNIST.evaluate_every, 1024: 50, 2048: 10})

RATES = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
TEMPERATURES = (0.1, 1.0, 10.0, 100.0)
THRESHOLDS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A setting that is moved: its values, the settings that they give, and what the paper prints at some of them."""

    title: str
    points: tuple[tuple[float, Setting], ...]
    printed: Mapping[float, float]


def with_batch(batch: int) -> Setting:
    """MNIST with another batch, and as many steps as that may have."""
    return replace(MNIST, batch=batch, steps=STEPS_OF_BATCHES[batch], evaluate_every=_EVALUATIONS[batch])


SWEEPS = (
    Sweep(
        title="learning rate",
        points=tuple((rate, replace(MNIST, rate=rate)) for rate in RATES),
        printed=MappingProxyType({1.5: 0.9881}),
    ),
    Sweep(
        title="batch size",
        points=tuple((batch, with_batch(batch)) for batch in STEPS_OF_BATCHES),
        printed=MappingProxyType({256: 0.9889}),
    ),
    Sweep(
        title="initial temperature Q0",
        points=tuple((value, replace(MNIST, initial_inverse_temperature=value)) for value in TEMPERATURES),
        printed=MappingProxyType({}),
    ),
    Sweep(
        title="rejection threshold",
        points=tuple((value, replace(MNIST, rejection_threshold=value)) for value in THRESHOLDS),
        printed=MappingProxyType({}),
    ),
)


_QUICK_SWEEPS = (
    Sweep(
        title="learning rate",
        points=tuple((rate, replace(DIGITS, rate=rate)) for rate in (0.1, 0.5, 2.0)),
        printed=MappingProxyType({}),
    ),
    Sweep(
        title="rejection threshold",
        points=tuple((value, replace(DIGITS, rejection_threshold=value)) for value in (1, 10)),
        printed=MappingProxyType({}),
    ),
)
_SEEDS = 3


def _sweeps(size: Size) -> tuple[Sweep, ...]:
    return _QUICK_SWEEPS if size.is_quick else SWEEPS


def _runs(setting: Setting, size: Size) -> list[Job]:
    return [run_of(setting, KEPT, seed) for seed in range(_SEEDS if size.seeds is None else size.seeds)]


def _jobs(size: Size) -> list[Job]:
    """All points with one seed, before any has two; a point that two sweeps share is one job."""
    points = [setting for sweep in _sweeps(size) for _, setting in sweep.points]
    several = zip(*(_runs(setting, size) for setting in points), strict=True)
    return [*{key_of(job): job for jobs in several for job in jobs}.values()]


def _shown(outcomes: Outcomes, size: Size) -> Shown:
    charts = [_chart(sweep, outcomes, size) for sweep in _sweeps(size)]
    return Shown(
        tables=tuple(_table(sweep, outcomes, size) for sweep in _sweeps(size)),
        charts=tuple(chart for chart in charts if chart.lines[0].x),
        notes=("As in the paper, accuracy is that of the test records that acceptance looked at: not a fair score.",),
    )


def _table(sweep: Sweep, outcomes: Outcomes, size: Size) -> Table:
    return Table(
        title=titled(sweep.points[0][1], size, f"{sweep.title} of SA-DPSGD at a published ε of 3 (its Figure 4)"),
        columns=(
            Column(title=sweep.title),
            Column(title="paper", kind="percent"),
            Column(title="ours", kind="percent"),
            Column(title="accepted", kind="count"),
            Column(title="candidates drawn", kind="count"),
            Column(title="proven ε of all that may be drawn", kind="epsilon"),
        ),
        rows=tuple(_row(sweep, value, setting, outcomes, size) for value, setting in sweep.points),
    )


def _row(sweep: Sweep, value: float, setting: Setting, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    found = outcomes.of_all(_runs(setting, size))
    return (
        f"{value:g}",
        sweep.printed.get(value),
        measured([outcome["accuracy"] for outcome in found]),
        setting.steps,
        measured([outcome["candidates"] for outcome in found]),
        proven_epsilon(setting, most_candidates(setting)),
    )


def _chart(sweep: Sweep, outcomes: Outcomes, size: Size) -> Chart:
    means = [
        (value, measured([outcome["accuracy"] for outcome in outcomes.of_all(_runs(setting, size))]).mean)
        for value, setting in sweep.points
    ]
    known = [(value, mean) for value, mean in means if mean is not None]
    return Chart(
        element=f"sweep-{sweep.title.replace(' ', '-').lower()}",
        x_title=sweep.title,
        y_title="accuracy",
        x_format="",
        y_format=".1%",
        point=f"{sweep.title} %{{x}}<br>accuracy %{{y:.2%}}",
        has_markers=True,
        from_zero=False,
        x_scale="linear" if sweep.title == "learning rate" else "log",
        x_ticks=tuple(value for value, _ in sweep.points),
        lines=(Line(name=KEPT.title, x=[value for value, _ in known], y=[mean for _, mean in known]),),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="sa-dpsgd",
        name="figure4",
        title="SA-DPSGD with other rates, batches, temperatures and thresholds",
        about=(
            "The paper moves one setting at a time on MNIST, at a published ε of 3, and names the best points: a rate "
            "of 1.5 with 98.81 and a batch of 256 with 98.89 percent. Other points are ours, as the paper prints none. "
            "Accuracy is scored on the records that acceptance looked at, as in the paper."
        ),
        jobs=_jobs,
        shown=_shown,
    ),
)
