"""Accuracy against ε: Figure 3 of Papernot et al. (2021)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import lru_cache

from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.papers.tempered_sigmoids_runs import (
    CHOSEN,
    DELTA,
    PAPER,
    PUBLISHED,
    RELU,
    TANH,
    TITLES,
    Setting,
    private,
    seeds_of,
    settings_of,
)
from lehr.reports.chart import Chart, Line

# Figure 3: accuracy against ε

_AT = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0)
_PRINTED_TANH = {"mnist": 0.980, "fashion-mnist": 0.855, "cifar-10": 0.6384}


def _pair_runs(setting: Setting, activation: str, size: Size) -> list[Job]:
    """Both activations take the steps that were searched for tanh: in this figure nothing else differs."""
    step = CHOSEN[setting.data][TANH]
    return [private(setting, activation, seed, step=step) for seed in seeds_of(setting, size)]


def _figure3_jobs(size: Size) -> list[Job]:
    return [
        job
        for setting in settings_of(size)
        for activation in (TANH, RELU)
        for job in _pair_runs(setting, activation, size)
    ]


def _figure3(outcomes: Outcomes, size: Size) -> Shown:
    columns = (
        Column(title="data"),
        PUBLISHED,
        Column(title="ε proven", kind="epsilon"),
        Column(title="steps", kind="count"),
        Column(title="ReLU", kind="percent"),
        Column(title="tanh", kind="percent"),
        Column(title="tanh, paper", kind="percent", digits=1),
    )
    settings = settings_of(size)
    rows = [row for setting in settings for row in _figure3_rows(setting, outcomes, size)]
    table = Table(title="Figure 3: accuracy as ε is spent", columns=columns, rows=(*rows,))
    return Shown(tables=(table,), charts=tuple(_figure3_chart(setting, outcomes, size) for setting in settings))


def _figure3_rows(setting: Setting, outcomes: Outcomes, size: Size) -> list[tuple[Cell, ...]]:
    found = {activation: outcomes.of_all(_pair_runs(setting, activation, size)) for activation in (RELU, TANH)}
    rows = []
    for steps in _counts(setting):
        is_last = steps == setting.steps
        accuracies = [measured([_accuracy_at(run, steps) for run in found[activation]]) for activation in (RELU, TANH)]
        paper = _PRINTED_TANH.get(setting.data) if is_last else None
        rows.append(
            (
                setting.title,
                published_epsilon(setting, steps),
                proven_epsilon(setting, steps),
                steps,
                *accuracies,
                paper,
            )
        )
    return rows


def _counts(setting: Setting) -> list[int]:
    """The last evaluated steps at some published ε, and the end."""
    every, last = setting.evaluate_every, setting.steps
    evaluated = {steps: published_epsilon(setting, steps) for steps in range(every, last, every)}
    reached = (max((steps for steps, cost in evaluated.items() if cost <= each), default=None) for each in _AT)
    whole = published_epsilon(setting, last)
    wanted = (steps for each, steps in zip(_AT, reached, strict=True) if steps is not None and each < whole)
    return sorted({*wanted, last})


def _accuracy_at(run: Outcome, steps: int) -> float | None:
    return next((accuracy for candidates, _, accuracy, _ in run["trajectory"] if candidates == steps), None)


def _figure3_chart(setting: Setting, outcomes: Outcomes, size: Size) -> Chart:
    kinds: tuple[tuple[str, str, Callable[[Setting, int], float]], ...] = (
        ("published ε", "solid", published_epsilon),
        ("proven ε", "dot", proven_epsilon),
    )
    lines = [
        Line(
            name=f"{TITLES[activation]}, {kind}",
            x=[cost(setting, steps) for steps in curve],
            y=[*curve.values()],
            dash=dash,
        )
        for activation in (RELU, TANH)
        for curve in [_mean_curve(outcomes.of_all(_pair_runs(setting, activation, size)))]
        if curve
        for kind, dash, cost in kinds
    ]
    return Chart(
        element=f"tempered-figure3-{setting.data}",
        x_title=f"ε at δ = {DELTA:g}",
        y_title=f"accuracy on {setting.title}",
        x_format="",
        y_format=".0%",
        point="ε %{x:.3f}<br>%{y:.2%}",
        has_markers=False,
        from_zero=False,
        lines=(*lines,),
    )


def _mean_curve(runs: Sequence[Outcome]) -> dict[int, float]:
    """Accuracy after so many steps, a mean over the runs."""
    by_steps: dict[int, list[float]] = {}
    for run in runs:
        for candidates, _, accuracy, _ in run["trajectory"]:
            by_steps.setdefault(candidates, []).append(accuracy)
    return {steps: statistics.fmean(values) for steps, values in sorted(by_steps.items())}


def published_epsilon(setting: Setting, steps: int) -> float:
    """By the moments that the paper counts with."""
    return _published(setting.batch / setting.records, setting.noise_multiplier)(steps)


def proven_epsilon(setting: Setting, steps: int) -> float:
    """Of a plan of so many steps: never less than the smallest bound, and within half a percent of it."""
    return _proven(setting.batch / setting.records, setting.noise_multiplier, setting.steps)(steps)


@lru_cache
def _published(sampling_probability: float, noise_multiplier: float) -> Callable[[int], float]:
    from lehr.accounting.rdp import RDP_MIRONOV17
    from lehr.events import Adjacency, Gaussian, PoissonSampled

    step = PoissonSampled(sampling_probability, Gaussian(noise_multiplier))
    return RDP_MIRONOV17.repeated(step, delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


@lru_cache
def _proven(sampling_probability: float, noise_multiplier: float, steps: int) -> Callable[[int], float]:
    from lehr.accounting.running import EpsilonCurve
    from lehr.events import Gaussian, PoissonSampled

    step = PoissonSampled(sampling_probability, Gaussian(noise_multiplier))
    return EpsilonCurve(step, delta=DELTA, largest_steps=steps).at


FIGURE3 = Experiment(
    paper=PAPER,
    name="figure3",
    title="Figure 3: accuracy against ε, ReLU and tanh with the same settings",
    about=(
        "The paper draws accuracy against ε for ReLU and tanh, which here differ in nothing else, over 10 runs. The "
        "shared settings are those searched for tanh, so that its curves are the runs of Table 3, and the paper's "
        "numbers are those its text has for tanh at the end. The rate is constant: a point on the way is the end of a "
        "shorter run, and its proven ε that of a plan that stops there."
    ),
    jobs=_figure3_jobs,
    shown=_figure3,
)
