"""The figures of TAN. Sander, Stock & Sablayrolles (2023), "TAN Without a Burn: Scaling Laws of DP-SGD"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from experiments import tan_runs
from experiments.experiment import (
    Measurement,
    Outcome,
    Outcomes,
    Report,
    Row,
    Size,
    Statistic,
    Table,
    chart,
    experiment,
    mean_curve,
    report,
    table,
)
from experiments.tan_runs import (
    IMAGENET,
    IMAGENET_DELTA,
    IMAGENET_NOISE,
    NF_RESNET,
    RATE,
    RATE_SEED,
    SHORT_STEPS,
    VIT,
    WIDE_RESNET,
    Network,
    augmented_runs,
    imagenet,
    titled,
)
from lehr.planning.tan import ratio_curves
from lehr.reports.chart import Chart, Line

PAPER = "tan"
NOT_RUN = "ImageNet: not run"

# --- Figure 1: small batches predict the large one ------------------------------------------------------------------


@experiment(PAPER, "figure1", "Small batches predict the accuracy of the large one")
def figure1(outcomes: Outcomes, size: Size) -> Report:
    """The paper fits lines to runs on ImageNet by batches from 128 on and compares what they say with runs by batches
    of 16,384, for two settings. ImageNet is not available here. The same is done on CIFAR-10 with a WRN-16-4 over 600
    steps, without augmentation and with four views of each record.
    """
    lines = (tan_runs.SHORT, tan_runs.AUGMENTED)
    printed = table(
        "The stars of the picture, ImageNet, batches of 16,384 over 72,000 steps",
        "setting | paper [percent 1] | ours",
        (
            ("as De et al. (2022), the paper's reproduction", 0.302, NOT_RUN),
            ("with the settings found at batches of 128", 0.361, NOT_RUN),
        ),
    )
    return report(printed, tan_runs.predictions(lines, outcomes, size), tan_runs.law_chart(lines, outcomes, size))


# --- Figure 2: the privacy wall -------------------------------------------------------------------------------------

ETAS = (0.13, 0.95)
ETA_STEPS = (1125, 4500, 18_000, 72_000)
_SHOWN_NOISES = (0.5, 1.0, 2.0, 4.0, 8.0)


@experiment(PAPER, "figure2", "ε against the noise multiplier at constant η: the privacy wall")
def figure2(outcomes: Outcomes, size: Size) -> Report:
    """Each line has one number of steps, and each point samples as many records as keep η; η is 0.13 (ε from η alone:
    1) and 0.95 (8), δ 8·10⁻⁷. All of it is arithmetic, some seconds a line. The paper's accountant is rdp-balle20,
    drawn dotted; the tight one is pld. The paper does not print its numbers of steps; these are its reference of
    72,000 and quarters of it.
    """
    parts: list[Table | Chart] = []
    for eta in ETAS:
        found = {
            steps: outcomes.get(Measurement(function="tan_runs:constant_eta", arguments={"eta": eta, "steps": steps}))
            for steps in ETA_STEPS[: 2 if size.is_quick else None]
        }
        estimate = eta**2 + 2 * eta * math.sqrt(-math.log(IMAGENET_DELTA))
        parts.append(
            table(
                f"Proven ε at η = {eta:g}, δ = 8·10⁻⁷, by noise multiplier",
                ("noise multiplier [number 1]", *(f"{steps:,} steps [epsilon]" for steps in found)),
                ((noise, *(_epsilon_at(line, noise) for line in found.values())) for noise in _SHOWN_NOISES),
                f"From η alone, an estimate: ε ≈ {estimate:.2f}, which the paper rounds to {estimate:.0f}.",
            )
        )
        parts.append(_eta_chart(eta, {steps: line for steps, line in found.items() if line is not None}))
    return report(*parts)


def _epsilon_at(line: Outcome | None, noise: float) -> float | None:
    points = [] if line is None else zip(line["noise_multiplier"], line["epsilon"], strict=True)
    return next((epsilon for at, epsilon in points if math.isclose(at, noise, rel_tol=1e-6)), None)


def _eta_chart(eta: float, found: dict[int, Outcome]) -> Chart:
    return chart(
        x_title="noise multiplier σ",
        y_title=f"ε at η = {eta:g}",
        x_format="~g",
        y_format="~g",
        point="σ = %{x:.3g}: ε = %{y:.4g}",
        has_markers=True,
        lines=tuple(
            Line(name=f"{steps:,} steps{words}", x=outcome["noise_multiplier"], y=outcome[field], dash=dash)
            for words, field, dash in ((", tight", "epsilon", "solid"), (", as in the paper", "epsilon_balle20", "dot"))
            for steps, outcome in found.items()
        ),
        x_scale="log",
        y_scale="log",
    )


# --- Figure 3: where the approximation ends -------------------------------------------------------------------------

ETA_OF_A_STEP = 3.9e-3
_SHOWN_ORDERS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


@experiment(PAPER, "figure3", "The Rényi divergence of a step over its approximation")
def figure3(_: Outcomes, __: Size) -> Report:
    """At one η of a step, 3.9·10⁻³, each line is a noise multiplier. Where a line is near 1, ε depends on η alone; for
    noise multipliers of 2 and more that holds up to the orders that decide ε. All of it is arithmetic.
    """
    curves = ratio_curves(imagenet(batch=math.sqrt(2) * ETA_OF_A_STEP * IMAGENET_NOISE * IMAGENET).plan())
    by_order = [dict(zip(curve.orders, curve.ratios, strict=True)) for curve in curves]
    names = [f"σ = {curve.noise_multiplier:g}" for curve in curves]
    whole, near_one = [], []  # the right half of the picture has what stays below 2
    for name, ratios in zip(names, by_order, strict=True):
        near = {order: ratio for order, ratio in ratios.items() if ratio < 2}
        whole.append(Line(name=name, x=[*ratios], y=[*ratios.values()]))
        near_one += [Line(name=name, x=[*near], y=[*near.values()])] if near else []
    return report(
        table(
            "Rényi divergence of a step over α·η², at η of a step = 3.9·10⁻³",
            ("order α [count]", *(f"{name} [number]" for name in names)),
            ((int(alpha), *(ratios[alpha] for ratios in by_order)) for alpha in _SHOWN_ORDERS),
        ),
        *(
            chart(
                x_title="Rényi order α",
                y_title=f"divergence / (α·η²){enlarged}",
                x_format="~g",
                y_format="~g",
                point="α = %{x:g}: %{y:.4g}",
                has_markers=True,
                lines=tuple(lines),
                x_scale="log",
                y_scale=scale,
            )
            for lines, enlarged, scale in ((whole, "", "log"), (near_one, ", enlarged near 1", "linear"))
        ),
    )


# --- Figure 4: the law ----------------------------------------------------------------------------------------------


@experiment(PAPER, "figure4", "Accuracy at a constant ratio of noise to batch")
def figure4(outcomes: Outcomes, size: Size) -> Report:
    """The paper trains a WRN-16-4 on CIFAR-10 at constant ratios of noise to batch over 2500 steps and finds the
    accuracy almost constant; on ImageNet it falls with the batch. Here: CIFAR-10 at the ratio of 4096 and noise
    multiplier 3, over 2500 steps and over 600. From the batches up to 512 that of 4096 is predicted, and then
    compared. ImageNet is not available here.
    """
    lines = (tan_runs.SHORT, tan_runs.LONG)
    return report(
        tan_runs.accuracies(lines, outcomes, size),
        tan_runs.predictions(lines, outcomes, size),
        tan_runs.law_chart(lines, outcomes, size),
    )


@experiment(PAPER, "law", "A law that predicts batches it has not seen")
def law(outcomes: Outcomes, size: Size) -> Report:
    """Not in the paper. At a constant ratio of noise to batch, a step's mean gradient differs from that of all records
    by a variance in proportion to 1/B, and the noise on it does not change. To first order the accuracy is then
    a − b/B. Each batch is predicted from all others by this law and by the paper's line in the logarithm of B, on the
    runs of Figure 4 with a WRN-16-4 and on two cheaper lines of runs.
    """
    return report(
        tan_runs.left_out(tan_runs.LAW_LINES, outcomes, size), tan_runs.predictions(tan_runs.LAW_LINES, outcomes, size)
    )


# --- Figure 5: the order of norm and activation ---------------------------------------------------------------------

SIDES = ("after", "before")
VIEWS = (1, 4, 16)


@experiment(PAPER, "figure5", "The norm belongs after the activation")
def figure5(outcomes: Outcomes, size: Size) -> Report:
    """The paper trains a WRN-16-4 on CIFAR-10 with the norm before or after the activation and with 1, 4 and 16 views
    of a record, over 2500 steps, five runs each, at batches of 4096 and simulated by 512. Here: simulated by 512 over
    600 steps, and both as in the paper, three runs each. The picture's numbers are not printed.
    """
    found = {
        (side, views): outcomes.statistic(augmented_runs(size, views=views, network=("wide_resnet", {"order": side})))
        for side in SIDES
        for views in VIEWS
    }
    lines = (
        Line(
            name=f"norm {side} the activation",
            x=[float(views) for views in VIEWS for _ in found[side, views].values],
            y=[100 * value for views in VIEWS for value in found[side, views].values],
            is_scattered=True,
        )
        for side in SIDES
    )
    return report(
        table(
            titled("Where the norm stands, simulated by batches of 512, CIFAR-10", size),
            "views [count] | norm after the activation [percent 1] | norm before it [percent 1]",
            ((views, *(found[side, views] for side in SIDES)) for views in VIEWS),
        ),
        _whole_figure5(outcomes, size),
        chart(
            x_title="views of a record",
            y_title="test accuracy, %",
            x_format="~g",
            y_format="~g",
            point="%{x} views: %{y:.1f} %",
            has_markers=True,
            lines=tuple(line for line in lines if line.x),
            x_scale="log",
            x_ticks=tuple(map(float, VIEWS)),
        ),
    )


def _whole_figure5(outcomes: Outcomes, size: Size) -> Table:
    """As in the paper: over all of its steps. A quick version has fewer, and no large batch."""
    steps = SHORT_STEPS if size.is_quick else tan_runs.PAPER_STEPS
    batches = (512,) if size.is_quick else (512, tan_runs.REFERENCE_BATCH)

    def reached(batch: int, views: int, side: str) -> Statistic:
        network: Network = ("wide_resnet", {"order": side})
        jobs = augmented_runs(size, batch=batch, views=views, network=network, steps=steps)
        return outcomes.statistic(jobs)

    return table(
        titled(f"Where the norm stands over {steps} steps, CIFAR-10", size),
        "batch [count] | views [count] | norm after the activation [percent 1] | norm before it [percent 1]",
        ((batch, views, *(reached(batch, views, side) for side in SIDES)) for batch in batches for views in VIEWS),
    )


@experiment(PAPER, "headline", "The best setting for CIFAR-10 at an ε of 8 by the paper's rule")
def headline(outcomes: Outcomes, size: Size) -> Report:
    """Not a table of the paper: its recipe for CIFAR-10 at the ε of its headline on ImageNet. A WRN-16-4, batches of
    4096, 16 views, 2500 steps, and the least noise whose ε by rdp-balle20 is at most 8.
    """
    batch, noise = tan_runs.REFERENCE_BATCH, tan_runs.HEADLINE_NOISE
    steps = SHORT_STEPS if size.is_quick else tan_runs.PAPER_STEPS
    setting = replace(tan_runs.setting_of(batch, steps), noise_multiplier=noise)
    runs = augmented_runs(size, batch=batch, views=16, steps=steps, noise_multiplier=noise)
    costs = (None, None, None) if size.is_quick else tan_runs.epsilons(setting)
    return report(
        table(
            titled(f"WRN-16-4 with 16 views over {steps} steps, CIFAR-10", size),
            "batch [count] | noise multiplier [number] | ε by rdp-balle20 [epsilon 3] | "
            "ε from η, an estimate [number 3] | ε proven (pld) [epsilon 3] | accuracy [percent 1]",
            [(batch, noise, *costs, outcomes.statistic(runs))],
        )
    )


# --- Figure 6: a vision transformer ---------------------------------------------------------------------------------

_NETWORKS: dict[str, tuple[Network, float]] = {"NF-ResNet": (NF_RESNET, RATE), "vision transformer": (VIT, 2.0)}


@experiment(PAPER, "figure6", "A vision transformer against a network without norms")
def figure6(outcomes: Outcomes, size: Size) -> Report:
    """The paper compares both on ImageNet, simulated by batches of 256: the transformer is worse, and views matter
    more to it. ImageNet is not available here. These are small relatives of about the same size on CIFAR-10, over 600
    steps.
    """
    rows: list[Row] = []
    lines: list[Line] = []
    for name, (network, rate) in _NETWORKS.items():
        for views in (1, 4):
            jobs = augmented_runs(size, batch=256, views=views, network=network, rate=rate)
            found = outcomes.get_all(jobs)
            rows.append((name, found[0]["parameters"] if found else None, rate, views, outcomes.statistic(jobs)))
            if curve := mean_curve(found):
                lines.append(
                    Line(
                        name=f"{name}, {views} view{'s' * (views > 1)}",
                        x=[float(step) for step in curve],
                        y=[100 * accuracy for accuracy in curve.values()],
                        dash="solid" if views > 1 else "dot",
                    )
                )
    return report(
        table(
            titled("A vision transformer and a network without norms, simulated by batches of 256, CIFAR-10", size),
            "network | parameters [count] | learning rate [number 0] | views [count] | accuracy [percent 1]",
            rows,
            "The paper's picture is of ImageNet, which was not run, and its numbers are not printed.",
        ),
        chart(
            x_title="step",
            y_title="test accuracy, %",
            x_format="~g",
            y_format="~g",
            point="step %{x}: %{y:.1f} %",
            lines=tuple(lines),
        ),
    )


# --- Figure 7: norms of gradients -----------------------------------------------------------------------------------


@experiment(PAPER, "figure7", "Norms of records' gradients while training, with and without views")
def figure7(outcomes: Outcomes, size: Size) -> Report:
    """The paper draws histograms of the norms of gradients, averaged over the views of a record and before the clip:
    without augmentation more and more of them go to zero, with a strong one they stay together. Here: a WRN-16-4 on
    CIFAR-10, simulated by batches of 256 over 600 steps, 1024 training records, 8 views by SimCLR's augmentation.
    Norms are private values; they are looked at because CIFAR-10 is public.
    """
    looks = (0, 10, 20) if size.is_quick else (0, 50, 200, SHORT_STEPS)
    strong = "flip_crop" if size.is_quick else "simclr"  # digits have no colours
    rows: list[Row] = []
    charts: list[Chart] = []
    for augmentation, views in (("none", 1), (strong, 8)):
        outcome = outcomes.get(_norms_job(size, augmentation, views, looks)) or {"looks": []}
        words = "none" if views == 1 else f"{views} of {augmentation}"
        found = {look["step"]: look for look in outcome["looks"]}
        for step in looks:
            shares = (found.get(step, {}).get(name) for name in ("median", "share_below_a_tenth", "share_clipped"))
            rows.append((words, step, *shares))
        charts.append(_norms_chart(words, outcome))
    return report(
        table(
            titled("Norms of records' gradients before the clip at 1, CIFAR-10", size),
            "views | after step [count] | median norm [number] | below 0.1 [percent 1] | clipped [percent 1]",
            rows,
        ),
        *charts,
    )


def _norms_job(size: Size, augmentation: str, views: int, looks: Sequence[int]) -> Measurement:
    [run] = augmented_runs(size, batch=256, views=views, augmentation=augmentation, seeds=(0,))
    shape: dict[str, Any] = run.to_json()
    return Measurement(
        function="gradient_norms:norms_of_gradients",
        arguments={
            "data_name": shape["data"],
            "network": shape["network"],
            "augmentation": augmentation,
            "views": views,
            "batch": shape["simulated_batch_size"],
            "reference_batch": shape["expected_batch_size"],
            "steps": shape["steps"],
            "watched": 64 if size.is_quick else 1024,
            "looks": looks,
            "seed": 0,
        },
    )


def _norms_chart(words: str, outcome: Outcome) -> Chart:
    bins = [10 ** (index / 5 - 3.9) for index in range(30)]  # the middles, in logarithms
    return chart(
        x_title=f"norm of a record's gradient, views: {words}",
        y_title="share of the records, %",
        x_format="~g",
        y_format="~g",
        point="norm %{x:.2g}: %{y:.1f} %",
        from_zero=True,
        lines=tuple(
            Line(name=f"after step {look['step']}", x=bins, y=[100 * share for share in look["shares"]])
            for look in outcome["looks"]
        ),
        x_scale="log",
    )


# --- The learning rates, which are ours -----------------------------------------------------------------------------

# Name, network, batch, augmentation, and the rates that were tried.
_RATES: tuple[tuple[str, Network, int, str, tuple[float, ...]], ...] = (
    ("WRN-16-4", WIDE_RESNET, 512, "none", (2.0, 4.0, 8.0)),
    ("NF-ResNet", NF_RESNET, 512, "none", (1.0, 2.0, 4.0, 8.0)),
    ("vision transformer", VIT, 256, "flip_crop", (2.0, 4.0)),
)


@experiment(PAPER, "rates", "Learning rates that were tried before the figures")
def rates(outcomes: Outcomes, size: Size) -> Report:
    """Not in the paper. 600 steps that simulate batches of 4096 at noise multiplier 3, without augmentation (the
    vision transformer: shifted and mirrored), with a seed that no other run has.
    """
    rows: list[Row] = []
    for name, network, batch, augmentation, tried in _RATES:
        usual: dict[str, Any] = {"batch": batch, "augmentation": augmentation, "network": network, "views": 1}
        for rate in tried:
            jobs = augmented_runs(size, rate=rate, seeds=(RATE_SEED,), **usual)
            rows.append((name, batch, rate, outcomes.statistic(jobs).mean))
    title = titled("Learning rates, one run each with a seed of its own, CIFAR-10", size)
    return report(table(title, "network | batch [count] | learning rate [number 0] | accuracy [percent 1]", rows))


FIGURES = (figure1, figure2, figure3, figure4, law, figure5, headline, figure6, figure7, rates)
