"""SA-DPSGD. Fu et al. (2022), "SA-DPSGD: Differentially Private SGD based on Simulated Annealing".

In this file: Tables 1 and 3, Figure 1 (a linear regression), Figure 3 (accuracy along training), Figure 4 (one setting
changed at a time), and other rates for the network of Papernot et al. on CIFAR-10, where the paper leaves its network
open. Settings and schemes are in ``sa_dpsgd_runs``, the comparison at one proven ε in ``sa_dpsgd_acceptance``.
"""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from experiments import sa_dpsgd_acceptance, sa_dpsgd_runs
from experiments.experiment import (
    Cell,
    Experiment,
    Measurement,
    Outcome,
    Outcomes,
    Report,
    Size,
    Statistic,
    Table,
    columns,
    experiment,
    statistic,
)
from experiments.sa_dpsgd_runs import (
    CIFAR_10,
    CLIP_NORM,
    DIGITS,
    FREE,
    KEPT,
    MNIST,
    ON_OTHER_NETWORK,
    PLAIN,
    SCHEMES,
    TANH,
    Scheme,
    Setting,
    most_candidates,
    proven_epsilon,
    proven_on_the_way,
    published_epsilon,
    runs_of,
    settings_of,
    titled,
)
from lehr.reports.chart import Chart, Line

PAPER = "sa-dpsgd"
CANDIDATES, ACCEPTED, ACCURACY, LOSS = range(4)  # what a row of a trajectory has
_MOMENTUM = (
    "Runs have momentum 0.9, which the paper does not mention, unless it is said that they have none; its settings are "
    "those of Tramèr and Boneh (2021), who have it. Nor does it say what a rejection does to the momentum: it is kept, "
    "as in the code of DPSUR (Fu et al. 2024), which is by two of its three authors and others, or taken back, where a "
    "row says so."
)

# The steps that the published rule allows at ε 3 with other batches on MNIST, and how often runs are scored.
STEPS_OF_BATCHES: Mapping[int, int] = {256: 19_582, 512: 4698, 1024: 1076, 2048: 220}
_EVALUATIONS = {256: 500, 512: MNIST.evaluate_every, 1024: 50, 2048: 10}


def with_batch(batch: int) -> Setting:
    """MNIST with another batch, and as many steps as that may have."""
    return replace(MNIST, batch=batch, steps=STEPS_OF_BATCHES[batch], evaluate_every=_EVALUATIONS[batch])


# --- Table 1: the accuracy of the schemes at a published ε of 3 -----------------------------------------------------

# The free settings that the paper prints, both in its Figure 4.
_FREE_SETTINGS = (
    ("batch 256", with_batch(256), KEPT, 0.9889),
    ("rate 1.5", replace(MNIST, rate=1.5), KEPT, 0.9881),
    ("rate 1.5, momentum taken back", replace(MNIST, rate=1.5), sa_dpsgd_runs.SEEN, None),
)


@experiment(PAPER, "table1", "Accuracy of five schemes on three data sets at a published ε of 3")
def table1(outcomes: Outcomes, size: Size) -> Report:
    """The paper compares DPSGD with ReLU and tanh, AUTO-S and SA-DPSGD on MNIST, FashionMNIST and CIFAR-10. SA-DPSGD's
    published rule charges accepted candidates only, which is no guarantee: the proven ε of what its runs may draw
    stands beside it. It is run with the momentum of rejected candidates kept, as in the code of DPSUR by two of its
    authors, and taken back. Its paper also accepts and scores on the same test records; it is run so, and once more
    with the test records halved. Both DPSGD and SA-DPSGD are run at a proven ε of 3, too. Free settings are printed for
    MNIST alone.
    """
    return Report(tables=tuple(_table1_of(setting, outcomes, size) for setting in settings_of(size)))


def _table1_of(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    rows = [
        _row(setting, scheme, outcomes, size, printed=setting.printed.get(scheme.title), differs=scheme.differs)
        for scheme in (*SCHEMES, sa_dpsgd_runs.WITHOUT_MOMENTUM)
    ]
    if setting is CIFAR_10:  # with the network of the other paper that this one refers to
        differs = "means over space in the place of maxima and of the hidden layer: too slow at this rate"
        rows += [
            _row(ON_OTHER_NETWORK, scheme, outcomes, size, note=", network of Papernot et al.", differs=differs)
            for scheme in SCHEMES[:3]
        ]
    if setting is MNIST:
        differs = "the other settings stay; scored as SA-DPSGD above"
        rows += [
            (f"{FREE}: {name}", *_row(free, scheme, outcomes, size, printed=printed, differs=differs)[1:])
            for name, free, scheme, printed in _FREE_SETTINGS
        ]
    elif FREE in setting.printed:
        nothing = "not run: the paper does not print these settings"
        rows.append((FREE, setting.printed[FREE], None, None, None, None, None, nothing))
    rows += [_proven_row(setting, method, outcomes, size) for method in ("dpsgd", "sa-dpsgd")]
    return Table(
        title=titled(setting, size, "accuracy in percent at a published ε of 3 (SA-DPSGD, Table 1)"),
        columns=columns(
            "method | paper [percent] | ours [percent] | published ε [number] | proven ε [epsilon]",
            "candidates drawn [count] | ε of those drawn [epsilon] | what differs",
        ),
        rows=(*rows, _plain_row(setting, outcomes, size)),
        notes=(
            _MOMENTUM,
            "Proven is the ε of all that a run's plan allows. The published rule ends at a number of accepted "
            f"candidates and charges no others; up to {setting.rejection_threshold + 1} may be drawn for each.",
            "The ε of the candidates that were drawn is known only afterwards, and is no guarantee.",
        ),
    )


def _row(
    setting: Setting,
    scheme: Scheme,
    outcomes: Outcomes,
    size: Size,
    *,
    differs: str,
    note: str = "",
    printed: float | None = None,
) -> tuple[Cell, ...]:
    """A scheme where it has cost a published ε of 3."""
    found, is_annealed = outcomes.of_all(runs_of(setting, scheme, size)), scheme.is_annealed
    return (
        scheme.title + note,
        printed,
        statistic(accuracy_at(outcome, setting.steps) for outcome in found),
        published_epsilon(setting, setting.steps),
        proven_epsilon(setting, most_candidates(setting) if is_annealed else setting.steps),
        statistic(outcome["candidates"] for outcome in found) if is_annealed else setting.steps,
        statistic(outcome["epsilon_of_candidates_drawn"] for outcome in found) if is_annealed else None,
        differs,
    )


def accuracy_at(outcome: Outcome, accepted: int) -> float | None:
    """The accuracy of a run once so many candidates were accepted; None where it was not evaluated then."""
    if outcome["accepted"] == accepted:
        return float(outcome["accuracy"])
    rows = [row for row in outcome["trajectory"] if row[ACCEPTED] == accepted]
    return float(rows[-1][ACCURACY]) if rows else None


def _proven_row(setting: Setting, method: str, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    return (
        f"{method.upper()}, tanh, at a proven ε of 3",
        None,
        outcomes.statistic(sa_dpsgd_runs.proven_runs(setting, method, range(size.seeds or setting.seeds))),
        None,
        proven_epsilon(setting, setting.proven_steps),
        setting.proven_steps,
        None,
        "not in the paper: every candidate is charged; scored on the half of the test records not looked at",
    )


def _plain_row(setting: Setting, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    batch, rate = sa_dpsgd_runs.PLAIN_BATCH, sa_dpsgd_runs.PLAIN_RATE
    epochs = round(setting.plain_steps * batch / setting.records)
    ours = outcomes.statistic(sa_dpsgd_runs.plain_runs(setting, size))
    differs = f"tanh; batch {batch}, rate {rate} and {epochs} passes are ours, the paper prints none"
    return (PLAIN, setting.printed.get(PLAIN), ours, None, None, setting.plain_steps, None, differs)


# --- Table 3: the ε at which an accuracy is first reached -----------------------------------------------------------


@experiment(PAPER, "table3", "ε that each scheme needs for given accuracies")
def table3(outcomes: Outcomes, size: Size) -> Report:
    """The published ε at the first evaluation at which a run has an accuracy, averaged over runs, from the same runs as
    Table 1. DPSGD and AUTO-S go on to ε 6 on MNIST and FashionMNIST, all others end at ε 3. The proven ε stands beside
    it: that of a plan that stops there, or, where candidates are rejected, of all that were drawn until then, which is
    known only afterwards.
    """
    return Report(tables=tuple(_table3_of(setting, outcomes, size) for setting in settings_of(size)))


def _table3_of(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    furthest = published_epsilon(setting, setting.last_step)
    return Table(
        title=titled(setting, size, "ε at which an accuracy is first reached (SA-DPSGD, Table 3)"),
        columns=columns(
            "accuracy [percent 0] | method | paper, published ε [number] | ours, published ε [number]",
            "ours, proven ε [epsilon] | runs that reached it | what the proven ε is",
        ),
        rows=tuple(
            _cost_row(setting, scheme, place, outcomes, size)
            for place in range(len(setting.accuracies))
            for scheme in SCHEMES
        ),
        notes=(
            f"Looked at every {setting.evaluate_every} candidates. DPSGD and AUTO-S run to a published ε of "
            f"{furthest:.2f}, SA-DPSGD to {published_epsilon(setting, setting.steps):.2f}. A mean is given where "
            "all runs reach the accuracy.",
            "The first time that a run is above an accuracy is partly luck: the test records are looked at many times.",
            _MOMENTUM,
        ),
    )


def _cost_row(setting: Setting, scheme: Scheme, place: int, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    accuracy, found = setting.accuracies[place], outcomes.of_all(runs_of(setting, scheme, size))
    reached = [[row for row in outcome["trajectory"] if row[ACCURACY] >= accuracy] for outcome in found]
    firsts = [rows[0] for rows in reached if rows]
    is_everywhere = len(firsts) == len(found)
    printed: Cell = None
    if scheme.title in setting.printed_costs:
        printed = setting.printed_costs[scheme.title][place] or "not within 6"
    return (
        accuracy,
        scheme.title,
        printed,
        statistic(published_epsilon(setting, row[ACCEPTED]) for row in firsts) if is_everywhere else None,
        statistic(proven_on_the_way(setting, row[CANDIDATES]) for row in firsts) if is_everywhere else None,
        f"{len(firsts)} of {len(found)}" if found else None,
        "of those drawn until then: no guarantee" if scheme.is_annealed else "of a plan that stops there",
    )


# --- Figure 1: trajectories on linear regression --------------------------------------------------------------------


@experiment(PAPER, "figure1", "Trajectories on linear regression")
def figure1(outcomes: Outcomes, size: Size) -> Report:
    """The paper draws the weights of DPSGD and SA-DPSGD on linear regression, and prints no setting. Here with settings
    of ours, beside SGD without noise; SA-DPSGD at DPSGD's number of candidates, which costs the same, and at its number
    of accepted ones, which costs more and is how the paper compares.
    """
    arguments = {"seeds": size.seeds or (3 if size.is_quick else 20)}
    job = Measurement(function="toy_problems:linear_regression_trajectories", arguments=arguments)
    outcome = outcomes.of(job)
    quick = "Quick, over few seeds. " if size.is_quick else ""
    table = Table(
        title=f"{quick}Linear regression: where the methods end (SA-DPSGD, Figure 1)",
        columns=columns(
            "method | excess loss, median [number 4] | a tenth is below [number 4] | a tenth is above [number 4]",
            "candidates drawn, median [count] | proven ε of those [epsilon]",
        ),
        rows=tuple(_end_row(*row) for row in outcome["ends"].items()) if outcome else (),
        notes=("The paper prints no setting: all of them are ours. Every candidate is charged, accepted or not.",),
    )
    return Report(tables=(table,), charts=(_paths(outcome),) if outcome else ())


def _end_row(name: str, ends: list[dict[str, float]]) -> tuple[Cell, ...]:
    excess = [end["excess"] for end in ends]
    drawn = round(statistics.median(end["candidates"] for end in ends))
    epsilon = statistics.median_low(end["epsilon"] for end in ends) if "epsilon" in ends[0] else None
    tenths: list[float | None] = [None, None]
    if len(excess) > 1:
        tenths = [*statistics.quantiles(excess, n=10, method="inclusive")]
    return name, statistics.median(excess), tenths[0], tenths[-1], drawn, epsilon


def _paths(outcome: Outcome) -> Chart:
    lines = [
        Line(name=name, x=[slope for slope, _ in path], y=[intercept for _, intercept in path])
        for name, path in outcome["paths"].items()
    ]
    true = Line(name="true weights", x=[outcome["true"][0]], y=[outcome["true"][1]], is_mark=True)
    return Chart(
        element="trajectories",
        x_title="slope",
        y_title="intercept",
        point="slope %{x:.3f}<br>intercept %{y:.3f}",
        has_markers=True,
        lines=(*lines, true),
    )


# --- Figure 3: loss and accuracy along training ---------------------------------------------------------------------

_EPSILONS = (1.5, 2.0, 2.5, 3.0)
_POINTS = 80  # of a line; more cannot be told apart, and make a page large


@dataclass(frozen=True, kw_only=True, slots=True)
class _Axis:
    """What a line goes along: a count of each run, and what that count costs."""

    name: str
    title: str
    count: int  # its place in a row of a trajectory
    epsilon: Callable[[Setting, int], float]


_PUBLISHED = _Axis(name="published", title="published ε", count=ACCEPTED, epsilon=published_epsilon)
_PROVEN = _Axis(
    name="proven", title="proven ε of the candidates drawn so far", count=CANDIDATES, epsilon=proven_on_the_way
)


@experiment(PAPER, "figure3", "Loss and accuracy of the schemes against ε")
def figure3(outcomes: Outcomes, size: Size) -> Report:
    """The paper draws test loss and accuracy against its published ε on all three data sets. Here from the same runs
    as Tables 1 and 3, and once more against the proven ε of the candidates that were drawn, where the rejected ones
    are counted.
    """
    settings = settings_of(size)
    pairs = ((LOSS, _PUBLISHED), (ACCURACY, _PUBLISHED), (ACCURACY, _PROVEN))
    charts = [_curve_chart(setting, *pair, outcomes, size) for setting in settings for pair in pairs]
    return Report(
        tables=tuple(_curve_table(setting, outcomes, size) for setting in settings),
        charts=tuple(chart for chart in charts if chart.lines),
        notes=(
            "A line is a mean over runs; each run counts with its last evaluation so far. Along the proven ε, "
            "candidates that were rejected are counted: for SA-DPSGD that is known only afterwards, and no guarantee.",
        ),
    )


def value_at(outcome: Outcome, along: int, count: int, value: int) -> float | None:
    """What the last evaluation of a run had that was made at such a count or before it."""
    rows: Sequence[Sequence[Any]] = outcome["trajectory"]
    place = bisect_right(rows, count, key=lambda row: row[along])
    return float(rows[place - 1][value]) if place else None


def most_accepted(setting: Setting, epsilon: float) -> int:
    """How many accepted steps have a published ε of at most so much, as far as the runs go."""
    counts = range(1, setting.last_step + 1)
    return bisect_right(counts, epsilon, key=lambda count: published_epsilon(setting, count))


def _curve_chart(setting: Setting, value: int, axis: _Axis, outcomes: Outcomes, size: Size) -> Chart:
    name, form = ("accuracy", ".1%") if value == ACCURACY else ("loss", ".3g")
    lines = [_line(setting, scheme, value, axis, outcomes.of_all(runs_of(setting, scheme, size))) for scheme in SCHEMES]
    return Chart(
        element=f"{setting.data}-{name}-{axis.name}",
        x_title=axis.title,
        y_title=f"{setting.title}: {name}",
        y_format=".0%" if value == ACCURACY else "",
        point=f"ε %{{x:.3g}}<br>{name} %{{y:{form}}}",
        lines=tuple(line for line in lines if line.x),
    )


def _line(setting: Setting, scheme: Scheme, value: int, axis: _Axis, found: list[Outcome]) -> Line:
    """The mean over runs at evenly spaced counts: from where every run was evaluated, to what all runs have."""
    last = min((outcome["trajectory"][-1][axis.count] for outcome in found), default=0)
    grid = sorted({max(1, round(last * place / _POINTS)) for place in range(1, _POINTS + 1)}) if found else []
    points = [(count, [value_at(outcome, axis.count, count, value) for outcome in found]) for count in grid]
    means = [(count, statistic(values).mean or 0.0) for count, values in points if None not in values]
    return Line(
        name=scheme.title,
        x=[axis.epsilon(setting, count) for count, _ in means],
        y=[mean for _, mean in means],
        dash="dash" if scheme.scored_on == "half" else "solid",
    )


def _curve_table(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    def row(scheme: Scheme) -> tuple[Cell, ...]:
        found = outcomes.of_all(runs_of(setting, scheme, size))

        def over_runs(epsilon: float, value: int) -> Statistic:
            count = most_accepted(setting, epsilon)
            return statistic(value_at(outcome, ACCEPTED, count, value) for outcome in found)

        accuracies = (over_runs(epsilon, ACCURACY) for epsilon in _EPSILONS)
        return (scheme.title, *accuracies, over_runs(_EPSILONS[-1], LOSS))

    return Table(
        title=titled(setting, size, "accuracy in percent on the way to a published ε of 3 (SA-DPSGD, Figure 3)"),
        columns=columns(
            "method",
            *(f"at ε {epsilon:g} [percent]" for epsilon in _EPSILONS),
            f"loss at ε {_EPSILONS[-1]:g} [number 3]",
        ),
        rows=tuple(map(row, SCHEMES)),
        notes=("Each run counts with its last evaluation before that ε.",),
    )


# --- Figure 4: one setting changed at a time ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting that is moved: its values, the settings that they give, and what the paper prints at some of them."""

    title: str
    points: tuple[tuple[float, Setting], ...]
    printed: Mapping[float, float] = field(default_factory=dict)


def _sweep(title: str, base: Setting, name: str, values: Sequence[float], printed: Mapping[float, float]) -> Sweep:
    changed: Callable[..., Any] = replace
    return Sweep(title, tuple((value, changed(base, **{name: value})) for value in values), printed)


SWEEPS = (
    _sweep("learning rate", MNIST, "rate", (0.1, 0.25, 0.5, 1.0, 1.5, 2.0), {1.5: 0.9881}),
    Sweep("batch size", tuple((batch, with_batch(batch)) for batch in STEPS_OF_BATCHES), {256: 0.9889}),
    _sweep("initial temperature Q0", MNIST, "initial_inverse_temperature", (0.1, 1.0, 10.0, 100.0), {}),
    _sweep("rejection threshold", MNIST, "rejection_threshold", (1, 2, 5, 10, 20), {}),
)
_QUICK_SWEEPS = (
    _sweep("learning rate", DIGITS, "rate", (0.1, 0.5, 2.0), {}),
    _sweep("rejection threshold", DIGITS, "rejection_threshold", (1, 10), {}),
)


@experiment(PAPER, "figure4", "SA-DPSGD with other rates, batches, temperatures and thresholds")
def figure4(outcomes: Outcomes, size: Size) -> Report:
    """The paper moves one setting at a time on MNIST, at a published ε of 3, and names the best points: a rate of 1.5
    with 98.81 and a batch of 256 with 98.89 percent. Other points are ours, as the paper prints none. Accuracy is
    scored on the records that acceptance looked at, as in the paper.
    """
    sweeps, seeds = (_QUICK_SWEEPS if size.is_quick else SWEEPS), range(size.seeds or 3)
    found = {
        sweep.title: [
            outcomes.of_all(sa_dpsgd_runs.run_of(setting, KEPT, seed) for seed in seeds) for _, setting in sweep.points
        ]
        for sweep in sweeps
    }
    charts = [_sweep_chart(sweep, found[sweep.title]) for sweep in sweeps]
    return Report(
        tables=tuple(_sweep_table(sweep, found[sweep.title], size) for sweep in sweeps),
        charts=tuple(chart for chart in charts if chart.lines[0].x),
        notes=("As in the paper, accuracy is that of the test records that acceptance looked at: not a fair score.",),
    )


def _sweep_table(sweep: Sweep, found: list[list[Outcome]], size: Size) -> Table:
    return Table(
        title=titled(sweep.points[0][1], size, f"{sweep.title} of SA-DPSGD at a published ε of 3 (its Figure 4)"),
        columns=columns(
            f"{sweep.title} | paper [percent] | ours [percent] | accepted [count] | candidates drawn [count]",
            "proven ε of all that may be drawn [epsilon]",
        ),
        rows=tuple(
            (
                f"{value:g}",
                sweep.printed.get(value),
                statistic(outcome["accuracy"] for outcome in runs),
                setting.steps,
                statistic(outcome["candidates"] for outcome in runs),
                proven_epsilon(setting, most_candidates(setting)),
            )
            for (value, setting), runs in zip(sweep.points, found, strict=True)
        ),
    )


def _sweep_chart(sweep: Sweep, found: list[list[Outcome]]) -> Chart:
    values = [value for value, _ in sweep.points]
    means = [statistic(outcome["accuracy"] for outcome in runs).mean for runs in found]
    known = [(value, mean) for value, mean in zip(values, means, strict=True) if mean is not None]
    return Chart(
        element=f"sweep-{sweep.title.replace(' ', '-').lower()}",
        x_title=sweep.title,
        y_title="accuracy",
        y_format=".1%",
        point=f"{sweep.title} %{{x}}<br>accuracy %{{y:.2%}}",
        has_markers=True,
        x_scale="linear" if sweep.title == "learning rate" else "log",
        x_ticks=tuple(values),
        lines=(Line(name=KEPT.title, x=[value for value, _ in known], y=[mean for _, mean in known]),),
    )


# --- Other rates for the other network on CIFAR-10 ------------------------------------------------------------------

SEED = 100  # that no table has
# Rate, momentum, and whether pixels are left as they are, not standardised.
TRIED = (
    *((rate, 0.9, False) for rate in (0.1, 0.3, 2.0, 4.0, 8.0)),
    *((rate, 0.9, True) for rate in (1.0, 0.3)),
    *((rate, 0.0, False) for rate in (1.0, 4.0)),
)


@experiment(PAPER, "cifar-10-rates", "The network of Papernot et al. on CIFAR-10 at other rates")
def rates(outcomes: Outcomes, size: Size) -> Report:
    """SA-DPSGD's paper refers to two others for its networks. On CIFAR-10 they differ, and with this one the paper's
    accuracies do not come out at its rate. Here other rates, momentum and pixels, one run each.
    """
    setting = DIGITS if size.is_quick else ON_OTHER_NETWORK
    rows: list[tuple[Cell, ...]] = []
    for rate, momentum, is_plain in TRIED[: 2 if size.is_quick else None]:
        job = sa_dpsgd_runs.training_of(
            setting,
            TANH.method,
            SEED,
            {"learning_rate": rate, "clip_norm": CLIP_NORM, "momentum": momentum},
            steps=setting.last_step,
            evaluate_every=setting.steps // 7,
            is_plain=is_plain,
        )
        pixels = "as they are" if is_plain else "standardised"
        rows.append((rate, momentum, pixels, outcomes.statistic([job]).mean))
    table = Table(
        title=titled(setting, size, "DPSGD with tanh at other rates, one run each"),
        columns=columns("rate [number 1] | momentum [number 1] | pixels | accuracy [percent]"),
        rows=tuple(rows),
    )
    return Report(tables=(table,))


EXPERIMENTS: tuple[Experiment, ...] = (
    table1,
    table3,
    figure1,
    figure3,
    figure4,
    *sa_dpsgd_acceptance.EXPERIMENTS,
    rates,
)
