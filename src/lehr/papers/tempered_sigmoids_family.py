"""The family of tempered sigmoids: Figures 1 and 2 of Papernot et al. (2021), its curves and how each does."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.table import Cell, Column, Measured, Shown, Table
from lehr.papers.tempered_sigmoids_runs import (
    CHOSEN,
    FASHION,
    MNIST,
    PAPER,
    QUICK,
    TANH,
    Setting,
    accuracies_of,
    private,
)
from lehr.reports.chart import Chart, Line

if TYPE_CHECKING:
    from lehr.networks.tempered_sigmoid import TemperedSigmoid

# Figure 1: the family


def family() -> Mapping[str, TemperedSigmoid]:
    """Some of the family: tanh, the sigmoid, and the triplet that the paper found best on each data set."""
    from lehr.networks.tempered_sigmoid import BEST, TemperedSigmoid

    triplets = {"tanh": (2, 2, 1), "sigmoid": (1, 1, 0), **BEST}
    return {f"{triplet}: {name}".replace(".0,", ","): TemperedSigmoid(*triplet) for name, triplet in triplets.items()}


def _figure1(outcomes: Outcomes, size: Size) -> Shown:
    import torch

    inputs = torch.linspace(-4, 4, 81, dtype=torch.float64)
    lines = tuple(Line(name=name, x=inputs.tolist(), y=curve(inputs).tolist()) for name, curve in family().items())
    chart = Chart(
        element="tempered-figure1",
        x_title="x",
        y_title="φ(x)",
        x_format="",
        y_format="",
        point="φ(%{x:.2f}) = %{y:.3f}",
        has_markers=False,
        from_zero=False,
        lines=lines,
    )
    return Shown(charts=(chart,))


FIGURE1 = Experiment(
    paper=PAPER,
    name="figure1",
    title="Figure 1: some tempered sigmoids",
    about=(
        "φ(x) = s · sigmoid(T·x) − o for some (s, T, o). Of the paper's curves only (2, 2, 1), which is tanh, is "
        "named; the others here are the sigmoid and the triplets that it found best. All of it is arithmetic."
    ),
    jobs=lambda size: [],
    shown=_figure1,
)

# Figure 2: all triplets


class Triplet(NamedTuple):
    """Of a tempered sigmoid."""

    scale: float
    inverse_temperature: float
    offset: float

    @property
    def word(self) -> str:
        return (
            TANH
            if self == Triplet(2, 2, 1)
            else f"tempered_sigmoid({self.scale:g}, {self.inverse_temperature:g}, {self.offset:g})"
        )


_SCALES, _TEMPERATURES, _OFFSETS = (1, 2, 3), (1, 2, 4), (0, 0.5, 1)  # offsets in shares of the scale
TRIPLETS = tuple(Triplet(s, t, share * s) for s in _SCALES for t in _TEMPERATURES for share in _OFFSETS)
_QUICK_TRIPLETS = tuple(Triplet(2, t, o) for t in (1, 2) for o in (0, 1))


def _swept(size: Size) -> tuple[tuple[Setting, tuple[Triplet, ...]], ...]:
    return ((QUICK, _QUICK_TRIPLETS),) if size.is_quick else ((MNIST, TRIPLETS), (FASHION, TRIPLETS))


def _triplet_runs(setting: Setting, triplet: Triplet, size: Size) -> list[Job]:
    step = CHOSEN[setting.data][TANH]
    return [private(setting, triplet.word, seed, step=step) for seed in range(size.seeds or 1)]


def _figure2_jobs(size: Size) -> list[Job]:
    return [
        job
        for setting, triplets in _swept(size)
        for triplet in triplets
        for job in _triplet_runs(setting, triplet, size)
    ]


def _figure2(outcomes: Outcomes, size: Size) -> Shown:
    found = {
        setting: {triplet: accuracies_of(outcomes, _triplet_runs(setting, triplet, size)) for triplet in triplets}
        for setting, triplets in _swept(size)
    }
    columns = (
        Column(title="data"),
        Column(title="best tenth, mean (s, T, o), paper"),
        Column(title="ours"),
        Column(title="best", kind="percent"),
        Column(title="tanh", kind="percent"),
        Column(title="worst", kind="percent"),
        Column(title="triplets run", kind="count"),
    )
    summary = Table(
        title="Figure 2: tempered sigmoids by scale s, inverse temperature T and offset o",
        columns=columns,
        rows=tuple(_figure2_row(setting, accuracies) for setting, accuracies in found.items()),
        notes=("Every triplet takes the rate and the clip norm that were searched for tanh.",),
    )
    tables = (_triplets_table(setting, accuracies) for setting, accuracies in found.items())
    charts = (_triplets_chart(setting, accuracies) for setting, accuracies in found.items())
    return Shown(tables=(summary, *tables), charts=(*charts,))


def _in_order(accuracies: Mapping[Triplet, Measured]) -> list[tuple[Triplet, Measured]]:
    """Those that were run, the best first."""
    return sorted(
        ((t, a) for t, a in accuracies.items() if a.values), key=lambda pair: -statistics.fmean(pair[1].values)
    )


def _figure2_row(setting: Setting, accuracies: Mapping[Triplet, Measured]) -> tuple[Cell, ...]:
    from lehr.networks.tempered_sigmoid import BEST

    ordered, whole = _in_order(accuracies), len(accuracies)
    printed = BEST.get(setting.data)
    best = ordered[: math.ceil(whole / 10)] if len(ordered) == whole else []
    ours = [statistics.fmean(values) for values in zip(*(triplet for triplet, _ in best), strict=True)]
    return (
        setting.title,
        "({:.2f}, {:.2f}, {:.2f})".format(*printed) if printed else None,
        "({:.2f}, {:.2f}, {:.2f})".format(*ours) if ours else None,
        ordered[0][1] if ordered else None,
        accuracies[Triplet(2, 2, 1)],
        ordered[-1][1] if ordered else None,
        len(ordered),
    )


def _triplets_table(setting: Setting, accuracies: Mapping[Triplet, Measured]) -> Table:
    columns = (
        Column(title="s", kind="number", digits=1),
        Column(title="T", kind="number", digits=1),
        Column(title="o", kind="number", digits=1),
        Column(title="accuracy", kind="percent"),
    )
    missing = ((triplet, found) for triplet, found in accuracies.items() if not found.values)
    rows = tuple((*triplet, found) for triplet, found in (*_in_order(accuracies), *missing))
    return Table(title=f"{setting.title}: every triplet, the best first", columns=columns, rows=rows)


def _triplets_chart(setting: Setting, accuracies: Mapping[Triplet, Measured]) -> Chart:
    ran = sorted(_in_order(accuracies))
    kinds = sorted({(triplet.scale, triplet.offset) for triplet, _ in ran})
    lines = tuple(
        Line(
            name=f"s {scale:g}, o {offset:g}",
            x=[t.inverse_temperature for t, _ in mine],
            y=[a.mean or 0.0 for _, a in mine],
        )
        for scale, offset in kinds
        for mine in [[pair for pair in ran if (pair[0].scale, pair[0].offset) == (scale, offset)]]
    )
    return Chart(
        element=f"tempered-figure2-{setting.data}",
        x_title="inverse temperature T",
        y_title=f"accuracy on {setting.title}",
        x_format="",
        y_format=".1%",
        point="T = %{x}<br>%{y:.2%}",
        has_markers=True,
        from_zero=False,
        lines=lines,
    )


FIGURE2 = Experiment(
    paper=PAPER,
    name="figure2",
    title="Figure 2: accuracy of tempered sigmoids by (s, T, o)",
    about=(
        "The paper trains with many triplets (s, T, o), which it does not list, at its fixed ε, and averages the best "
        "tenth. Here 27 triplets stand on a grid around tanh, on MNIST and FashionMNIST, one run each unless more are "
        "asked for. CIFAR-10 is left out for its cost."
    ),
    jobs=_figure2_jobs,
    shown=_figure2,
)
