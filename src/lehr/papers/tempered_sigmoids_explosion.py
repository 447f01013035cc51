"""Whether gradients and activations explode: Figures 4 and 5 of Papernot et al. (2021)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job, Measurement
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.papers.tempered_sigmoids_runs import MNIST, PAPER, QUICK, RELU, TANH, TITLES
from lehr.reports.chart import Chart, Line

# Figures 4 and 5: norms


class Scenario(NamedTuple):
    """One line of Figure 4 or 5."""

    activation: str
    is_private: bool

    @property
    def title(self) -> str:
        return f"{TITLES[self.activation]}, {'DPSGD' if self.is_private else 'SGD'}"


_FOUR = (Scenario(RELU, False), Scenario(TANH, False), Scenario(RELU, True), Scenario(TANH, True))
_THREE = (Scenario(RELU, False), Scenario(RELU, True), Scenario(TANH, True))
# The same step with and without privacy, as in the private example of JAX; the paper prints none.
_NORMS_RATE, _NORMS_CLIP = 0.15, 1.0


def _norms_runs(scenario: Scenario, size: Size) -> list[Job]:
    setting = QUICK if size.is_quick else MNIST
    return [
        Measurement(
            function="tempered_sigmoids_norms:norms_of_training",
            arguments={
                "data": setting.data,
                "activation": scenario.activation,
                "batch": setting.batch,
                "steps": setting.steps,
                "learning_rate": _NORMS_RATE,
                "clip_norm": _NORMS_CLIP,
                "noise_multiplier": setting.noise_multiplier if scenario.is_private else None,
                "seed": seed,
            },
        )
        for seed in range(size.seeds or 1)
    ]


def _norms_jobs(size: Size, *, scenarios: Iterable[Scenario]) -> list[Job]:
    return [job for scenario in scenarios for job in _norms_runs(scenario, size)]


def _norms(
    outcomes: Outcomes, size: Size, *, figure: str, scenarios: tuple[Scenario, ...], kind: str, of: str, paper: str
) -> Shown:
    found = {scenario: outcomes.of_all(_norms_runs(scenario, size)) for scenario in scenarios}
    columns = (
        Column(title="activation, method"),
        Column(title="norm at first", kind="number"),
        Column(title="largest", kind="number"),
        Column(title="at last", kind="number"),
        Column(title="last, times that of ReLU with SGD", kind="number"),
        Column(title="accuracy", kind="percent"),
        Column(title="ε proven", kind="epsilon"),
    )
    last = statistics.fmean(_last(runs, kind)) if (runs := found[Scenario(RELU, False)]) else None
    rows = tuple(_norms_row(scenario, runs, kind, last) for scenario, runs in found.items())
    notes = (
        paper,
        f"Rate {_NORMS_RATE:g} without momentum, clip norm {_NORMS_CLIP:g}: ours. Norms are means over 256 records, "
        "the last one over the last tenth of the looks. They are private values of public records; no ε covers them.",
    )
    title = f"{figure}: norm of {of} on {(QUICK if size.is_quick else MNIST).title}"
    table = Table(title=title, columns=columns, rows=rows, notes=notes)
    return Shown(tables=(table,), charts=(_norms_chart(figure, found, kind, of),))


def _last(runs: Sequence[Outcome], kind: str) -> list[float]:
    """The mean of the last tenth, of each run."""
    return [statistics.fmean(run[kind][-max(1, len(run[kind]) // 10) :]) for run in runs]


def _norms_row(scenario: Scenario, runs: Sequence[Outcome], kind: str, base: float | None) -> tuple[Cell, ...]:
    last = _last(runs, kind)
    return (
        scenario.title,
        measured([run[kind][0] for run in runs]),
        measured([max(run[kind]) for run in runs]),
        measured(last),
        measured([each / base for each in last]) if base else None,
        measured([run["accuracy"] for run in runs]),
        next((run["epsilon_proven"] for run in runs), None) if scenario.is_private else "∞",
    )


def _norms_chart(figure: str, found: Mapping[Scenario, Sequence[Outcome]], kind: str, of: str) -> Chart:
    lines = tuple(
        Line(name=scenario.title, x=runs[0]["step"], y=_smoothed(_mean_of(runs, kind)))
        for scenario, runs in found.items()
        if runs
    )
    return Chart(
        element="tempered-" + figure.lower().replace(" ", ""),
        x_title="step",
        y_title=f"mean norm of {of}",
        x_format=",d",
        y_format="",
        point="step %{x:,}<br>norm %{y:.3g}",
        has_markers=False,
        from_zero=True,
        lines=lines,
    )


def _mean_of(runs: Sequence[Outcome], kind: str) -> list[float]:
    return [statistics.fmean(values) for values in zip(*(run[kind] for run in runs), strict=True)]


def _smoothed(values: Sequence[float]) -> list[float]:
    """A triangular moving average of window 3, as the paper draws it; the ends stay as they are."""
    inner = [
        (before + 2 * here + after) / 4 for before, here, after in zip(values, values[1:], values[2:], strict=False)
    ]
    return [*values[:1], *inner, *values[1:][-1:]]


FIGURE4 = Experiment(
    paper=PAPER,
    name="figure4",
    title="Figure 4: norms of gradients before the clip, ReLU and tanh, SGD and DPSGD",
    about=(
        "The paper sees the gradients of ReLU grow by a factor of more than 5 with privacy compared to without, and "
        "those of a tempered sigmoid stay where ReLU's are without. Measured on MNIST over the whole length of "
        "Table 3's runs, on 256 training records."
    ),
    jobs=partial(_norms_jobs, scenarios=_FOUR),
    shown=partial(
        _norms,
        figure="Figure 4",
        scenarios=_FOUR,
        kind="gradient_norm",
        of="a record's gradient before the clip",
        paper="The paper: ReLU's are more than 5 times as large with DPSGD as with SGD, those of tanh comparable.",
    ),
)
FIGURE5 = Experiment(
    paper=PAPER,
    name="figure5",
    title="Figure 5: norms of the first convolution's activations",
    about=(
        "The paper draws the norm of the first layer's activations with SGD, with DPSGD and ReLU, and with DPSGD and a "
        "tempered sigmoid, and says that the latter keeps them from exploding. Same runs as Figure 4; SGD is with ReLU."
    ),
    jobs=partial(_norms_jobs, scenarios=_THREE),
    shown=partial(
        _norms,
        figure="Figure 5",
        scenarios=_THREE,
        kind="activation_norm",
        of="the first convolution's activations",
        paper="The paper prints no number here.",
    ),
)
