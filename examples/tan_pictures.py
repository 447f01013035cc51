"""The experiments of TAN on CIFAR-10, as pictures.

    python -m examples.tan_pictures

draws the three pictures of docs/tan.md from the kept outcomes of ``python -m experiments tan``.
It needs matplotlib.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples import pictures
from experiments import tan_runs
from experiments.experiment import Outcome, Outcomes, Size, Training
from experiments.store import ResultFile, outcomes_in
from experiments.tan_runs import LawLine

ROOT = Path(__file__).parents[1]
PAPER_REFERENCE = (74.0, 0.5)  # printed for batches of 4096, noise 3 and 2500 steps
FIRST, SECOND = "#3182bd", "#e6550d"
WHOLE = Size()


def kept(name: str) -> Outcomes:
    """The outcomes of an experiment."""
    return outcomes_in(ResultFile.read(ROOT / f"experiments/results/papers/tan_{name}.json"))


def draw_law(outcomes: Outcomes) -> Figure:
    """Accuracy over the batch, every run a cross, and the law of the small batches up to 4096."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for line, colour in ((tan_runs.SHORT, FIRST), (tan_runs.LONG, SECOND)):
        points = [
            (batch, 100 * value) for batch in line.batches for value in line.reached(outcomes, WHOLE, batch).values
        ]
        axes.plot(*zip(*points, strict=True), "x", color=colour, label=line.name)
        _draw_prediction(axes, line, outcomes, colour)
    mean, spread = PAPER_REFERENCE
    axes.axhspan(mean - spread, mean + spread, color="0.85", label="the paper at 4096, 2500 steps: 74.0 ± 0.5")
    axes.set_xscale("log", base=2)
    axes.set_xticks([64, 128, 256, 512, 1024, 2048, 4096], ["64", "128", "256", "512", "1024", "2048", "4096"])
    axes.set(xlabel="expected batch size, at one ratio of noise to batch", ylabel="test accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _draw_prediction(axes: Axes, line: LawLine, outcomes: Outcomes, colour: str) -> None:
    prediction = line.prediction(outcomes, WHOLE)
    if prediction is None:
        return
    reached = line.reached(outcomes, WHOLE, tan_runs.REFERENCE_BATCH)
    interval = prediction.interval(num_runs=max(1, len(reached.values)))
    predicted, along = 100 * prediction.accuracy, np.geomspace(64, tan_runs.REFERENCE_BATCH)
    axes.plot(along, [100 * prediction.law.at(batch) for batch in along], "--", color=colour, lw=1)
    axes.errorbar(
        [4096 * 1.08],
        [predicted],
        yerr=[[predicted - 100 * interval.lowest], [100 * interval.highest - predicted]],
        fmt="s",
        ms=4,
        color=colour,
        capsize=3,
        label=f"predicted from batches up to 512, {line.name}",
    )


def _order(side: str, views: int) -> list[Training]:
    return tan_runs.augmented_runs(WHOLE, views=views, network=("wide_resnet", {"order": side}))


def draw_order(outcomes: Outcomes) -> Figure:
    """Accuracy over the number of views, for both orders."""
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    views = (1, 4, 16)
    for side, name, colour in (("after", "norm after the activation", SECOND), ("before", "norm before it", FIRST)):
        found = [_accuracies(outcomes.get_all(_order(side, count))) for count in views]
        axes.plot(views, [sum(values) / len(values) for values in found], "-", color=colour, label=name)
        for count, values in zip(views, found, strict=True):
            axes.plot([count] * len(values), values, "x", color=colour)
    axes.set_xscale("log", base=2)
    axes.set_xticks(views, [str(count) for count in views])
    axes.set(xlabel="views of a record", ylabel="test accuracy, %")
    axes.legend(frameon=False, loc="center right")
    return figure


def draw_vit(outcomes: Outcomes) -> Figure:
    """Accuracy over the steps; several views are a full line, one view a dotted one."""
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    compared = (("NF-ResNet", tan_runs.NF_RESNET, 4.0, SECOND), ("vision transformer", tan_runs.VIT, 2.0, FIRST))
    for name, network, rate, colour in compared:
        for views, style in ((1, ":"), (4, "-")):
            runs = outcomes.get_all(tan_runs.augmented_runs(WHOLE, batch=256, network=network, rate=rate, views=views))
            for index, run in enumerate(runs):
                steps, heights = zip(*((step, 100 * share) for step, _, share, _ in run["trajectory"]), strict=True)
                label = None if index else f"{name}, views {views}"
                axes.plot(steps, heights, style, color=colour, lw=1.2, label=label)
    axes.set(xlabel="step", ylabel="test accuracy, %")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


def _accuracies(runs: list[Outcome]) -> list[float]:
    return [100 * run["accuracy"] for run in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures", help="where the pictures go")
    out: Path = parser.parse_args().out
    drawn = (("law", "figure4", draw_law), ("order", "figure5", draw_order), ("vit", "figure6", draw_vit))
    for name, experiment, draw in drawn:
        pictures.save(draw(kept(experiment)), out / f"tan_{name}.svg")


if __name__ == "__main__":
    main()
