"""The figures of TAN. Sander, Stock & Sablayrolles (2023), "TAN Without a Burn: Scaling Laws of DP-SGD"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lehr.papers import tan_law
from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job, Measurement, Training
from lehr.papers.table import Cell, Column, Measured, Shown, Table, measured
from lehr.papers.tan_epsilons import IMAGENET_DELTA, divergence_ratios
from lehr.papers.tan_runs import (
    NF_RESNET,
    RATE,
    SHORT_STEPS,
    VIT,
    WIDE_RESNET,
    Network,
    by_seed,
    order,
    quick,
    scored_run,
    titled,
    tried_rate,
    vit,
)
from lehr.reports.chart import Chart, Line

PAPER = "tan"
NOT_RUN = "ImageNet: not run"


def _accuracies(outcomes: Outcomes, jobs: Sequence[Training]) -> Measured:
    return measured([outcome["accuracy"] for outcome in outcomes.of_all([*jobs])])


# --- Figure 1: small batches foretell the large one -----------------------------------------------------------------

_FIGURE1_LINES = (tan_law.SHORT, tan_law.AUGMENTED)


def _figure1_jobs(size: Size) -> list[Job]:
    return [*by_seed([jobs for line in _FIGURE1_LINES for jobs in line.jobs(size)])]


def _figure1(outcomes: Outcomes, size: Size) -> Shown:
    printed = Table(
        title="The stars of the picture, ImageNet, batches of 16,384 over 72,000 steps",
        columns=(Column(title="setting"), Column(title="paper", kind="percent", digits=1), Column(title="ours")),
        rows=(
            ("as De et al. (2022), the paper's reproduction", 0.302, NOT_RUN),
            ("with the settings found at batches of 128", 0.361, NOT_RUN),
        ),
    )
    return Shown(
        tables=(printed, tan_law.predictions(_FIGURE1_LINES, outcomes, size)),
        charts=tan_law.chart("tan-figure1", _FIGURE1_LINES, outcomes, size),
    )


FIGURE1 = Experiment(
    paper=PAPER,
    name="figure1",
    title="Small batches foretell the accuracy of the large one",
    about=(
        "The paper fits lines to runs on ImageNet by batches from 128 on and compares what they say with runs by "
        "batches of 16,384, for two settings. ImageNet cannot be had here. The same is done on CIFAR-10 with a "
        "WRN-16-4 over 600 steps, without augmentation and with four views of each record."
    ),
    jobs=_figure1_jobs,
    shown=_figure1,
)


# --- Figure 2: the privacy wall -------------------------------------------------------------------------------------

ETAS = (0.13, 0.95)
ETA_STEPS = (1125, 4500, 18_000, 72_000)
_SHOWN_NOISES = (0.5, 1.0, 2.0, 4.0, 8.0)


def _line_job(eta: float, steps: int) -> Measurement:
    return Measurement(function="tan_epsilons:constant_eta", arguments={"eta": eta, "steps": steps})


def _eta_steps(size: Size) -> tuple[int, ...]:
    return ETA_STEPS[:2] if size.is_quick else ETA_STEPS


def _figure2_jobs(size: Size) -> list[Job]:
    return [_line_job(eta, steps) for eta in ETAS for steps in _eta_steps(size)]


def _figure2(outcomes: Outcomes, size: Size) -> Shown:
    found = {(eta, steps): outcomes.of(_line_job(eta, steps)) for eta in ETAS for steps in _eta_steps(size)}
    charts = [_eta_chart(eta, {steps: found[eta, steps] for steps in _eta_steps(size)}) for eta in ETAS]
    return Shown(
        tables=tuple(_eta_table(eta, {steps: found[eta, steps] for steps in _eta_steps(size)}) for eta in ETAS),
        charts=tuple(chart for chart in charts if chart.lines),
    )


def _eta_table(eta: float, found: dict[int, Outcome | None]) -> Table:
    columns = [Column(title=f"{steps:,} steps", kind="epsilon", digits=2) for steps in found]
    return Table(
        title=f"Proven ε at η = {eta:g}, δ = 8·10⁻⁷, by noise multiplier",
        columns=(Column(title="noise multiplier", kind="number", digits=1), *columns),
        rows=tuple((noise, *(_epsilon_at(line, noise) for line in found.values())) for noise in _SHOWN_NOISES),
        notes=(
            f"From η alone, an estimate: ε ≈ {_estimate(eta):.2f}, which the paper rounds to {_estimate(eta):.0f}.",
        ),
    )


def _estimate(eta: float) -> float:
    return eta**2 + 2 * eta * math.sqrt(-math.log(IMAGENET_DELTA))


def _epsilon_at(line: Outcome | None, noise: float) -> float | None:
    if line is None:
        return None
    near = [
        epsilon
        for at, epsilon in zip(line["noise_multiplier"], line["epsilon"], strict=True)
        if abs(at - noise) < 1e-6 * noise
    ]
    return near[0] if near else None


def _eta_chart(eta: float, found: dict[int, Outcome | None]) -> Chart:
    lines = [
        Line(name=f"{steps:,} steps{words}", x=outcome["noise_multiplier"], y=outcome[field], dash=dash)
        for words, field, dash in ((", tight", "epsilon", "solid"), (", as in the paper", "epsilon_balle20", "dot"))
        for steps, outcome in found.items()
        if outcome is not None
    ]
    return Chart(
        element=f"tan-figure2-eta-{100 * eta:.0f}",
        x_title="noise multiplier σ",
        y_title=f"ε at η = {eta:g}",
        x_format="~g",
        y_format="~g",
        point="σ = %{x:.3g}: ε = %{y:.4g}",
        has_markers=True,
        from_zero=False,
        lines=tuple(lines),
        x_scale="log",
        y_scale="log",
    )


FIGURE2 = Experiment(
    paper=PAPER,
    name="figure2",
    title="ε against the noise multiplier at constant η: the privacy wall",
    about=(
        "Each line has one number of steps, and each point samples as many records as keep η; η is 0.13 (ε from η "
        "alone: 1) and 0.95 (8), δ 8·10⁻⁷. All of it is arithmetic, some seconds a line. The paper's accountant is "
        "rdp-balle20, drawn dotted; the tight one is pld. The paper does not print its numbers of steps; these are its "
        "reference of 72,000 and quarters of it."
    ),
    jobs=_figure2_jobs,
    shown=_figure2,
)


# --- Figure 3: where the approximation ends -------------------------------------------------------------------------

ETA_OF_A_STEP = 3.9e-3
_SHOWN_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def _figure3(_: Outcomes, __: Size) -> Shown:
    curves = divergence_ratios(ETA_OF_A_STEP)
    by_order = [dict(zip(curve.orders, curve.ratios, strict=True)) for curve in curves]
    table = Table(
        title="Rényi divergence of a step over α·η², at η of a step = 3.9·10⁻³",
        columns=(
            Column(title="order α", kind="count"),
            *(Column(title=f"σ = {curve.noise_multiplier:g}", kind="number", digits=2) for curve in curves),
        ),
        rows=tuple((int(alpha), *(ratios[alpha] for ratios in by_order)) for alpha in _SHOWN_ORDERS),
    )
    lines = tuple(Line(name=f"σ = {curve.noise_multiplier:g}", x=curve.orders, y=curve.ratios) for curve in curves)
    return Shown(tables=(table,), charts=(_ratio_chart("whole", lines), _ratio_chart("near-one", _near_one(lines))))


def _near_one(lines: Sequence[Line]) -> tuple[Line, ...]:
    """The right half of the picture: what stays below 2."""
    kept = [[(x, y) for x, y in zip(line.x, line.y, strict=True) if y < 2] for line in lines]
    return tuple(
        Line(name=line.name, x=[x for x, _ in points], y=[y for _, y in points])
        for line, points in zip(lines, kept, strict=True)
        if points
    )


def _ratio_chart(which: str, lines: tuple[Line, ...]) -> Chart:
    return Chart(
        element=f"tan-figure3-{which}",
        x_title="Rényi order α",
        y_title="divergence / (α·η²)" + (", enlarged near 1" if which == "near-one" else ""),
        x_format="~g",
        y_format="~g",
        point="α = %{x:g}: %{y:.4g}",
        has_markers=True,
        from_zero=False,
        lines=lines,
        x_scale="log",
        y_scale="log" if which == "whole" else "linear",
    )


FIGURE3 = Experiment(
    paper=PAPER,
    name="figure3",
    title="The Rényi divergence of a step over its approximation",
    about=(
        "At one η of a step, 3.9·10⁻³, each line is a noise multiplier. Where a line is near 1, ε depends on η alone; "
        "for noise multipliers of 2 and more that holds up to the orders that decide ε. All of it is arithmetic."
    ),
    jobs=lambda size: [],
    shown=_figure3,
)


# --- Figure 4: the law ----------------------------------------------------------------------------------------------

_FIGURE4_LINES = (tan_law.SHORT, tan_law.LONG)


def _figure4_jobs(size: Size) -> list[Job]:
    return [job for line in _FIGURE4_LINES for job in by_seed(line.jobs(size))]


def _figure4(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(
        tables=(
            tan_law.accuracies(_FIGURE4_LINES, outcomes, size),
            tan_law.predictions(_FIGURE4_LINES, outcomes, size),
        ),
        charts=tan_law.chart("tan-figure4", _FIGURE4_LINES, outcomes, size),
    )


FIGURE4 = Experiment(
    paper=PAPER,
    name="figure4",
    title="Accuracy at a constant ratio of noise to batch",
    about=(
        "The paper trains a WRN-16-4 on CIFAR-10 at constant ratios of noise to batch over 2500 steps and finds the "
        "accuracy almost constant; on ImageNet it falls with the batch. Here: CIFAR-10 at the ratio of 4096 and noise "
        "multiplier 3, over 2500 steps and over 600. From the batches up to 512 that of 4096 is foretold, and then "
        "compared. ImageNet cannot be had here."
    ),
    jobs=_figure4_jobs,
    shown=_figure4,
)


# --- Figure 5: the order of norm and activation ---------------------------------------------------------------------

SIDES = ("after", "before")
VIEWS = (1, 4, 16)


def _figure5_jobs(size: Size) -> list[Job]:
    return [*by_seed([order(size, side=side, views=views) for views in reversed(VIEWS) for side in SIDES])]


def _figure5(outcomes: Outcomes, size: Size) -> Shown:
    found = {
        (side, views): _accuracies(outcomes, order(size, side=side, views=views)) for side in SIDES for views in VIEWS
    }
    table = Table(
        title=titled("Where the norm stands, simulated by batches of 512, CIFAR-10", size),
        columns=(
            Column(title="views", kind="count"),
            Column(title="norm after the activation", kind="percent", digits=1),
            Column(title="norm before it", kind="percent", digits=1),
        ),
        rows=tuple((views, *(found[side, views] for side in SIDES)) for views in VIEWS),
    )
    lines = [
        Line(
            name=f"norm {side} the activation",
            x=[float(views) for views in VIEWS for _ in found[side, views].values],
            y=[100 * value for views in VIEWS for value in found[side, views].values],
            is_scattered=True,
        )
        for side in SIDES
        if any(found[side, views].values for views in VIEWS)
    ]
    return Shown(tables=(table,), charts=(_views_chart(tuple(lines)),) if lines else ())


def _views_chart(lines: tuple[Line, ...]) -> Chart:
    return Chart(
        element="tan-figure5",
        x_title="views of a record",
        y_title="test accuracy, %",
        x_format="~g",
        y_format="~g",
        point="%{x} views: %{y:.1f} %",
        has_markers=True,
        from_zero=False,
        lines=lines,
        x_scale="log",
        x_ticks=tuple(float(views) for views in VIEWS),
    )


FIGURE5 = Experiment(
    paper=PAPER,
    name="figure5",
    title="The norm belongs after the activation",
    about=(
        "The paper trains a WRN-16-4 on CIFAR-10 with the norm before or after the activation and with 1, 4 and 16 "
        "views of a record, over 2500 steps, five runs each, at batches of 4096 and simulated by 512. Here: simulated "
        "by 512 over 600 steps, three runs each. The picture's numbers are not printed."
    ),
    jobs=_figure5_jobs,
    shown=_figure5,
)


# --- Figure 6: a vision transformer ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class _Compared:
    name: str
    network: Network
    rate: float


_COMPARED = (
    _Compared(name="NF-ResNet", network=NF_RESNET, rate=RATE),
    _Compared(name="vision transformer", network=VIT, rate=2.0),
)
_FIGURE6_VIEWS = (1, 4)


def _figure6_runs(size: Size, one: _Compared, views: int) -> list[Training]:
    return vit(size, network=one.network, rate=one.rate, views=views)


def _figure6_jobs(size: Size) -> list[Job]:
    return [*by_seed([_figure6_runs(size, one, views) for views in reversed(_FIGURE6_VIEWS) for one in _COMPARED])]


def _figure6(outcomes: Outcomes, size: Size) -> Shown:
    found = {
        (one, views): outcomes.of_all([*_figure6_runs(size, one, views)])
        for one in _COMPARED
        for views in _FIGURE6_VIEWS
    }
    lines = tuple(_trajectory(one, views, runs) for (one, views), runs in found.items() if runs)
    table = Table(
        title=titled("A vision transformer and a network without norms, simulated by batches of 256, CIFAR-10", size),
        columns=(
            Column(title="network"),
            Column(title="parameters", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            Column(title="views", kind="count"),
            Column(title="accuracy", kind="percent", digits=1),
        ),
        rows=tuple(_figure6_row(one, views, runs) for (one, views), runs in found.items()),
        notes=("The paper's picture is of ImageNet, which was not run, and its numbers are not printed.",),
    )
    return Shown(tables=(table,), charts=(_trajectory_chart(lines),) if lines else ())


def _figure6_row(one: _Compared, views: int, runs: list[Outcome]) -> tuple[Cell, ...]:
    parameters = runs[0]["parameters"] if runs else None
    accuracy = measured([run["accuracy"] for run in runs])
    return (one.name, parameters, one.rate, views, accuracy)


def _trajectory(one: _Compared, views: int, runs: list[Outcome]) -> Line:
    """The mean over the runs that are there."""
    by_step: dict[int, list[float]] = {}
    for run in runs:
        for step, _, accuracy, _ in run["trajectory"]:
            by_step.setdefault(step, []).append(accuracy)
    return Line(
        name=f"{one.name}, {views} view{'s' * (views > 1)}",
        x=[float(step) for step in by_step],
        y=[100 * sum(values) / len(values) for values in by_step.values()],
        dash="solid" if views > 1 else "dot",
    )


def _trajectory_chart(lines: tuple[Line, ...]) -> Chart:
    return Chart(
        element="tan-figure6",
        x_title="step",
        y_title="test accuracy, %",
        x_format="~g",
        y_format="~g",
        point="step %{x}: %{y:.1f} %",
        has_markers=False,
        from_zero=False,
        lines=lines,
    )


FIGURE6 = Experiment(
    paper=PAPER,
    name="figure6",
    title="A vision transformer against a network without norms",
    about=(
        "The paper compares both on ImageNet, simulated by batches of 256: the transformer is worse, and views matter "
        "more to it. ImageNet cannot be had here. These are small relatives of about the same size on CIFAR-10, over "
        "600 steps."
    ),
    jobs=_figure6_jobs,
    shown=_figure6,
)


# --- Figure 7: norms of gradients -----------------------------------------------------------------------------------

_WATCHED = (("none", 1), ("simclr", 8))
_QUICK_WATCHED = (("none", 1), ("flip_crop", 8))  # digits have no colours
_LOOKS, _QUICK_LOOKS = (0, 50, 200, SHORT_STEPS), (0, 10, 20)


def _norms_job(size: Size, augmentation: str, views: int) -> Measurement:
    run = scored_run(batch=256, views=views, seed=0, augmentation=augmentation)
    run = quick(run) if size.is_quick else run
    return Measurement(
        function="tan_norms:norms_of_gradients",
        arguments={
            "data_name": run.data,
            "network": run.network,
            "augmentation": augmentation,
            "views": run.views,
            "batch": run.simulated_batch_size,
            "reference_batch": run.expected_batch_size,
            "steps": run.steps,
            "watched": 64 if size.is_quick else 1024,
            "looks": _QUICK_LOOKS if size.is_quick else _LOOKS,
            "seed": 0,
        },
    )


def _watched(size: Size) -> tuple[tuple[str, int], ...]:
    return _QUICK_WATCHED if size.is_quick else _WATCHED


def _figure7_jobs(size: Size) -> list[Job]:
    return [_norms_job(size, augmentation, views) for augmentation, views in _watched(size)]


def _figure7(outcomes: Outcomes, size: Size) -> Shown:
    found = {
        (augmentation, views): outcomes.of(_norms_job(size, augmentation, views))
        for augmentation, views in _watched(size)
    }
    looks = _QUICK_LOOKS if size.is_quick else _LOOKS
    table = Table(
        title=titled("Norms of records' gradients before the clip at 1, CIFAR-10", size),
        columns=(
            Column(title="views"),
            Column(title="after step", kind="count"),
            Column(title="median norm", kind="number", digits=2),
            Column(title="below 0.1", kind="percent", digits=1),
            Column(title="clipped", kind="percent", digits=1),
        ),
        rows=tuple(_norms_row(which, outcome, step) for which, outcome in found.items() for step in looks),
    )
    charts = [_norms_chart(which, outcome) for which, outcome in found.items() if outcome is not None]
    return Shown(tables=(table,), charts=tuple(charts))


def _views_words(which: tuple[str, int]) -> str:
    augmentation, views = which
    return "none" if views == 1 else f"{views} of {augmentation}"


def _norms_row(which: tuple[str, int], outcome: Outcome | None, step: int) -> tuple[Cell, ...]:
    seen = [look for look in (outcome["looks"] if outcome else ()) if look["step"] == step]
    numbers = [seen[0][name] if seen else None for name in ("median", "share_below_a_tenth", "share_clipped")]
    return (_views_words(which), step, *numbers)


def _norms_chart(which: tuple[str, int], outcome: Outcome) -> Chart:
    bins = [10 ** (place / 5 - 3.9) for place in range(30)]  # the middles, in logarithms
    return Chart(
        element=f"tan-figure7-{which[0]}",
        x_title=f"norm of a record's gradient, views: {_views_words(which)}",
        y_title="share of the records, %",
        x_format="~g",
        y_format="~g",
        point="norm %{x:.2g}: %{y:.1f} %",
        has_markers=False,
        from_zero=True,
        lines=tuple(
            Line(name=f"after step {look['step']}", x=bins, y=[100 * share for share in look["shares"]])
            for look in outcome["looks"]
        ),
        x_scale="log",
    )


FIGURE7 = Experiment(
    paper=PAPER,
    name="figure7",
    title="Norms of records' gradients while training, with and without views",
    about=(
        "The paper draws histograms of the norms of gradients, averaged over the views of a record and before the "
        "clip: without augmentation more and more of them go to zero, with a strong one they stay together. Here: a "
        "WRN-16-4 on CIFAR-10, simulated by batches of 256 over 600 steps, 1024 training records, 8 views by SimCLR's "
        "augmentation. Norms are private values; they are looked at because CIFAR-10 is public."
    ),
    jobs=_figure7_jobs,
    shown=_figure7,
)


# --- The learning rates, which are ours -----------------------------------------------------------------------------

_RATES: tuple[tuple[str, Network, tuple[float, ...]], ...] = (
    ("WRN-16-4", WIDE_RESNET, (2.0, 4.0, 8.0)),
    ("NF-ResNet", NF_RESNET, (1.0, 2.0, 4.0, 8.0)),
    ("vision transformer", VIT, (2.0, 4.0)),
)


def _rates_jobs(size: Size) -> list[Job]:
    return [
        job for _, network, rates in _RATES for rate in rates for job in tried_rate(size, network=network, rate=rate)
    ]


def _rates(outcomes: Outcomes, size: Size) -> Shown:
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            256 if network is VIT else 512,
            rate,
            _accuracies(outcomes, tried_rate(size, network=network, rate=rate)).mean,
        )
        for name, network, rates in _RATES
        for rate in rates
    ]
    table = Table(
        title=titled("Learning rates, one run each with a seed of its own, CIFAR-10", size),
        columns=(
            Column(title="network"),
            Column(title="batch", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            Column(title="accuracy", kind="percent", digits=1),
        ),
        rows=tuple(rows),
    )
    return Shown(tables=(table,))


RATES = Experiment(
    paper=PAPER,
    name="rates",
    title="Learning rates that were tried before the figures",
    about=(
        "Not in the paper. 600 steps that simulate batches of 4096 at noise multiplier 3, without augmentation (the "
        "vision transformer: shifted and mirrored), with a seed that no other run has."
    ),
    jobs=_rates_jobs,
    shown=_rates,
)

FIGURES = (FIGURE1, FIGURE2, FIGURE3, FIGURE4, FIGURE5, FIGURE6, FIGURE7, RATES)
