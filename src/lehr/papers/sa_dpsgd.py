"""The tables and figures of SA-DPSGD. Fu et al. (2022), "SA-DPSGD: Differentially Private Stochastic Gradient Descent
based on Simulated Annealing".

One set of runs serves Tables 1 and 3 and Figure 3. Figure 2 is a drawing of the algorithm, and nothing to compute.
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job, Measurement
from lehr.papers.sa_dpsgd_acceptance import EXPERIMENTS as ACCEPTANCE
from lehr.papers.sa_dpsgd_costs import most_candidates, proven_epsilon, proven_on_the_way, published_epsilon
from lehr.papers.sa_dpsgd_curves import EXPERIMENTS as CURVES
from lehr.papers.sa_dpsgd_networks import EXPERIMENTS as NETWORKS
from lehr.papers.sa_dpsgd_runs import (
    AUTO_S,
    CIFAR_10,
    FREE,
    KEPT,
    MNIST,
    ON_OTHER_NETWORK,
    PLAIN,
    PLAIN_BATCH,
    PLAIN_RATE,
    RELU,
    SCHEMES,
    SEEN,
    TANH,
    WITHOUT_MOMENTUM,
    Scheme,
    Setting,
    compared_runs,
    plain_run,
    proven_run,
    runs_of,
    seeds_of,
    settings_of,
    titled,
)
from lehr.papers.sa_dpsgd_sweeps import EXPERIMENTS as SWEEPS
from lehr.papers.sa_dpsgd_sweeps import with_batch
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.reports.chart import Chart, Line

_PAPER = "sa-dpsgd"
_MOMENTUM = (
    "Runs have momentum 0.9, which the paper does not mention, unless it is said that they have none; its settings are "
    "those of Tramèr and Boneh (2021), who have it. Nor does it say what a rejection does to the momentum: it is kept, "
    "as in the code of DPSUR (Fu et al. 2024), which is by two of its three authors and others, or taken back, where a "
    "row says so."
)


# Table 1: the accuracy of the schemes at a published ε of 3.

# The free settings that the paper prints, both in its Figure 4.
_FREE_SETTINGS = (
    ("batch 256", with_batch(256), KEPT, 0.9889),
    ("rate 1.5", replace(MNIST, rate=1.5), KEPT, 0.9881),
    ("rate 1.5, momentum taken back", replace(MNIST, rate=1.5), SEEN, None),
)


def _table1_jobs(size: Size) -> list[Job]:
    everywhere = [(setting, seed) for setting in settings_of(size) for seed in seeds_of(setting, size)]
    plain = [plain_run(setting, seed) for setting, seed in everywhere]
    proven = [proven_run(setting, method, seed) for setting, seed in everywhere for method in ("dpsgd", "sa-dpsgd")]
    free = [run for _, setting, scheme, _ in _FREE_SETTINGS for run in runs_of(setting, scheme, size)]
    still = [run for setting in settings_of(size) for run in runs_of(setting, WITHOUT_MOMENTUM, size)]
    others = [run for scheme in _ON_OTHER_NETWORK for run in runs_of(ON_OTHER_NETWORK, scheme, size)]
    return [*compared_runs(size), *plain, *proven, *still, *([] if size.is_quick else [*others, *free])]


_ON_OTHER_NETWORK = (RELU, TANH, AUTO_S)


_TABLE1_COLUMNS = (
    Column(title="method"),
    Column(title="paper", kind="percent"),
    Column(title="ours", kind="percent"),
    Column(title="published ε", kind="number"),
    Column(title="proven ε", kind="epsilon"),
    Column(title="candidates drawn", kind="count"),
    Column(title="ε of those drawn", kind="epsilon"),
    Column(title="what differs"),
)


def _table1(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=tuple(_table1_of(setting, outcomes, size) for setting in settings_of(size)))


def _table1_of(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    return Table(
        title=titled(setting, size, "accuracy in percent at a published ε of 3 (SA-DPSGD, Table 1)"),
        columns=_TABLE1_COLUMNS,
        rows=(
            *(_scheme_row(setting, scheme, outcomes, size) for scheme in (*SCHEMES, WITHOUT_MOMENTUM)),
            *_other_network_rows(setting, outcomes, size),
            *_free_rows(setting, outcomes, size),
            *(_proven_row(setting, method, outcomes, size) for method in ("dpsgd", "sa-dpsgd")),
            _plain_row(setting, outcomes, size),
        ),
        notes=(
            _MOMENTUM,
            "Proven is the ε of all that a run's plan allows. The published rule ends at a number of accepted "
            f"candidates and charges no others; up to {setting.rejection_threshold + 1} may be drawn for each.",
            "The ε of the candidates that were drawn is known only afterwards, and is no guarantee.",
        ),
    )


def _scheme_row(setting: Setting, scheme: Scheme, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    return _row(
        setting,
        title=scheme.title,
        printed=setting.printed.get(scheme.title),
        found=outcomes.of_all([*runs_of(setting, scheme, size)]),
        is_annealed=scheme.is_annealed,
        differs=scheme.differs,
    )


def _other_network_rows(setting: Setting, outcomes: Outcomes, size: Size) -> list[tuple[Cell, ...]]:
    """What the accuracies on CIFAR-10 are with the network of the other paper that this one refers to."""
    return [
        _row(
            ON_OTHER_NETWORK,
            title=f"{scheme.title}, network of Papernot et al.",
            printed=None,
            found=outcomes.of_all([*runs_of(ON_OTHER_NETWORK, scheme, size)]),
            is_annealed=False,
            differs="means over space in the place of maxima and of the hidden layer: too slow at this rate",
        )
        for scheme in (_ON_OTHER_NETWORK if setting is CIFAR_10 else ())
    ]


def _free_rows(setting: Setting, outcomes: Outcomes, size: Size) -> list[tuple[Cell, ...]]:
    if setting is MNIST:
        return [
            _row(
                free,
                title=f"{FREE}: {name}",
                printed=printed,
                found=outcomes.of_all([*runs_of(free, scheme, size)]),
                is_annealed=True,
                differs="the other settings stay; scored as SA-DPSGD above",
            )
            for name, free, scheme, printed in _FREE_SETTINGS
        ]
    if FREE not in setting.printed:
        return []
    nothing = "not run: the paper does not print these settings"
    return [(FREE, setting.printed[FREE], None, None, None, None, None, nothing)]


def _row(
    setting: Setting, *, title: str, printed: float | None, found: list[Outcome], is_annealed: bool, differs: str
) -> tuple[Cell, ...]:
    """A scheme where it has cost a published ε of 3."""
    candidates = most_candidates(setting) if is_annealed else setting.steps
    return (
        title,
        printed,
        measured([accuracy_at(outcome, setting.steps) for outcome in found]),
        published_epsilon(setting, setting.steps),
        proven_epsilon(setting, candidates),
        measured([outcome["candidates"] for outcome in found]) if is_annealed else setting.steps,
        measured([outcome["epsilon_of_candidates_drawn"] for outcome in found]) if is_annealed else None,
        differs,
    )


def accuracy_at(outcome: Outcome, accepted: int) -> float | None:
    """The accuracy of a run once so many candidates were accepted; none where it was not looked at then."""
    if outcome["accepted"] == accepted:
        return float(outcome["accuracy"])
    rows = [row for row in outcome["trajectory"] if row[1] == accepted]
    return float(rows[-1][2]) if rows else None


_METHODS = {"dpsgd": "DPSGD, tanh", "sa-dpsgd": "SA-DPSGD, tanh"}


def _proven_row(setting: Setting, method: str, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    found = outcomes.of_all([proven_run(setting, method, seed) for seed in seeds_of(setting, size)])
    return (
        f"{_METHODS[method]}, at a proven ε of 3",
        None,
        measured([outcome["accuracy"] for outcome in found]),
        None,
        proven_epsilon(setting, setting.proven_steps),
        setting.proven_steps,
        None,
        "not in the paper: every candidate is charged; scored on the half of the test records not looked at",
    )


def _plain_row(setting: Setting, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    found = outcomes.of_all([plain_run(setting, seed) for seed in seeds_of(setting, size)])
    epochs = round(setting.plain_steps * PLAIN_BATCH / setting.records)
    return (
        PLAIN,
        setting.printed.get(PLAIN),
        measured([outcome["accuracy"] for outcome in found]),
        None,
        None,
        setting.plain_steps,
        None,
        f"tanh; batch {PLAIN_BATCH}, rate {PLAIN_RATE} and {epochs} passes are ours, the paper prints none",
    )


# Table 3: the ε at which an accuracy is first reached.

_TABLE3_COLUMNS = (
    Column(title="accuracy", kind="percent", digits=0),
    Column(title="method"),
    Column(title="paper, published ε", kind="number"),
    Column(title="ours, published ε", kind="number"),
    Column(title="ours, proven ε", kind="epsilon"),
    Column(title="runs that reached it"),
    Column(title="what the proven ε is"),
)
_PROVEN_OF_A_PLAN = "of a plan that stops there"
_PROVEN_AFTERWARDS = "of those drawn until then: no guarantee"


def _table3_jobs(size: Size) -> list[Job]:
    return [*compared_runs(size)]


def _table3(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=tuple(_table3_of(setting, outcomes, size) for setting in settings_of(size)))


def _table3_of(setting: Setting, outcomes: Outcomes, size: Size) -> Table:
    furthest = published_epsilon(setting, setting.last_step)
    return Table(
        title=titled(setting, size, "ε at which an accuracy is first reached (SA-DPSGD, Table 3)"),
        columns=_TABLE3_COLUMNS,
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
    accuracy = setting.accuracies[place]
    found = outcomes.of_all([*runs_of(setting, scheme, size)])
    firsts = [first for outcome in found if (first := first_reached(outcome, accuracy)) is not None]
    is_everywhere = len(firsts) == len(found)
    return (
        accuracy,
        scheme.title,
        _printed_cost(setting, scheme, place),
        measured([published_epsilon(setting, accepted) for _, accepted in firsts]) if is_everywhere else None,
        measured([proven_on_the_way(setting, drawn) for drawn, _ in firsts]) if is_everywhere else None,
        f"{len(firsts)} of {len(found)}" if found else None,
        _PROVEN_AFTERWARDS if scheme.is_annealed else _PROVEN_OF_A_PLAN,
    )


def _printed_cost(setting: Setting, scheme: Scheme, place: int) -> float | str | None:
    if scheme.title not in setting.printed_costs:
        return None
    printed = setting.printed_costs[scheme.title][place]
    return "not within 6" if printed is None else printed


def first_reached(outcome: Outcome, accuracy: float) -> tuple[int, int] | None:
    """How many candidates were drawn and accepted when a run first had an accuracy, where it ever had."""
    for drawn, accepted, found, _ in outcome["trajectory"]:
        if found >= accuracy:
            return drawn, accepted
    return None


# Figure 1: trajectories on linear regression.


def _figure1_job(size: Size) -> Measurement:
    seeds = (3 if size.is_quick else 20) if size.seeds is None else size.seeds
    return Measurement(function="linear_regression:trajectories", arguments={"seeds": seeds})


def _figure1_jobs(size: Size) -> list[Job]:
    return [_figure1_job(size)]


def _figure1(outcomes: Outcomes, size: Size) -> Shown:
    outcome = outcomes.of(_figure1_job(size))
    quick = "Quick, over few seeds. " if size.is_quick else ""
    table = Table(
        title=f"{quick}Linear regression: where the methods end (SA-DPSGD, Figure 1)",
        columns=(
            Column(title="method"),
            Column(title="excess loss, median", kind="number", digits=4),
            Column(title="a tenth is below", kind="number", digits=4),
            Column(title="a tenth is above", kind="number", digits=4),
            Column(title="candidates drawn, median", kind="count"),
            Column(title="proven ε of those", kind="epsilon"),
        ),
        rows=tuple(_end_row(*row) for row in outcome["ends"].items()) if outcome else (),
        notes=("The paper prints no setting: all of them are ours. Every candidate is charged, accepted or not.",),
    )
    return Shown(tables=(table,), charts=(_paths(outcome),) if outcome else ())


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
        x_format="",
        y_format="",
        point="slope %{x:.3f}<br>intercept %{y:.3f}",
        has_markers=True,
        from_zero=False,
        lines=(*lines, true),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper=_PAPER,
        name="table1",
        title="Accuracy of five schemes on three data sets at a published ε of 3",
        about=(
            "The paper compares DPSGD with ReLU and tanh, AUTO-S and SA-DPSGD on MNIST, FashionMNIST and CIFAR-10. "
            "SA-DPSGD's published rule charges accepted candidates only, which is no guarantee: the proven ε of what "
            "its runs may draw stands beside it. It is run with the momentum of rejected candidates kept, as in the "
            "code of DPSUR by two of its authors, and taken back. Its paper also accepts and scores on the same "
            "test records; it is run so, and once more with the test records halved. Both DPSGD and SA-DPSGD are run "
            "at a proven ε of 3, too. "
            "Free settings are printed for MNIST alone."
        ),
        jobs=_table1_jobs,
        shown=_table1,
    ),
    Experiment(
        paper=_PAPER,
        name="table3",
        title="ε that each scheme needs for given accuracies",
        about=(
            "The published ε at the first evaluation at which a run has an accuracy, averaged over runs, from the same "
            "runs as Table 1. DPSGD and AUTO-S go on to ε 6 on MNIST and FashionMNIST, all others end at ε 3. The "
            "proven ε stands beside it: that of a plan that stops there, or, where candidates are rejected, of all "
            "that were drawn until then, which is known only afterwards."
        ),
        jobs=_table3_jobs,
        shown=_table3,
    ),
    Experiment(
        paper=_PAPER,
        name="figure1",
        title="Trajectories on linear regression",
        about=(
            "The paper draws the weights of DPSGD and SA-DPSGD on linear regression, and prints no setting. Here with "
            "settings of ours, beside SGD without noise; SA-DPSGD at DPSGD's number of candidates, which costs the "
            "same, and at its number of accepted ones, which costs more and is how the paper compares."
        ),
        jobs=_figure1_jobs,
        shown=_figure1,
    ),
    *CURVES,
    *SWEEPS,
    *ACCEPTANCE,
    *NETWORKS,
)
