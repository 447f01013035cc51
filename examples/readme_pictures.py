"""Draws the pictures of the README from kept results. Needs matplotlib.

- docs/pictures/speed.svg: the time of a step, from benchmarks/results/step_h200.json
- docs/pictures/accuracy.svg: the accuracy of recipes against ε, from experiments/results/papers/recipes_accuracy.json

python -m examples.readme_pictures
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.experiment import Outcomes, Size
from experiments.recipes import EPSILONS, SETTINGS, Setting
from experiments.store import ResultFile, outcomes_in

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "step_h200.json"
ACCURACIES = ROOT / "experiments" / "results" / "papers" / "recipes_accuracy.json"


def times(measured: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """For each network that Opacus ran too: a step of Lehr, and of Opacus's best mode, over one of plain SGD."""
    cases: dict[str, dict[str, float]] = {}
    for row in measured["rows"]:
        if row["views"] == 1:
            cases.setdefault(f"{row['network']}\nbatch {row['batch']}", {})[row["who"]] = row["ratio"]
    best = {name: min((ratio for who, ratio in case.items() if "opacus" in who)) for name, case in cases.items()}
    return {name: (case["lehr"], best[name]) for name, case in cases.items()}


def draw(ratios: dict[str, tuple[float, float]]) -> Figure:
    """Bars of both, with a line where private training would cost nothing."""
    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
    axes = figure.add_subplot()
    for place, (lehr, opacus) in enumerate(ratios.values()):
        for shift, height, colour in ((-0.2, lehr, "#1f6f8b"), (0.2, opacus, "#c9c9c9")):
            axes.bar(place + shift, height, width=0.38, color=colour)
            axes.text(
                place + shift, height, f"{height:.2f}" if height < 2 else f"{height:.1f}", ha="center", va="bottom"
            )
    axes.axhline(1, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(ratios)), list(ratios))
    axes.set_ylabel("step time / non-private")
    axes.set_title("Lehr (left) and Opacus's fastest mode (right), NVIDIA H200", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def accuracies(setting: Setting, outcomes: Outcomes) -> dict[int, float]:
    """The mean accuracy in percent at each ε that was run."""
    means = {epsilon: outcomes.statistic(setting.runs(epsilon, Size())).mean for epsilon in EPSILONS}
    return {epsilon: 100 * mean for epsilon, mean in means.items() if mean is not None}


def others(setting: Setting) -> dict[int, float]:
    """The best accuracy that others report, at each ε where one is known."""
    found = {
        epsilon: re.findall(r"(\d+\.\d+) \(", text) for epsilon, text in zip(EPSILONS, setting.others, strict=True)
    }
    return {epsilon: max(map(float, several)) for epsilon, several in found.items() if several}


def draw_accuracies(outcomes: Outcomes) -> Figure:
    """A panel for each data set: Lehr's recipes as lines, the best of others as crosses."""
    shown: dict[str, list[tuple[Setting, dict[int, float]]]] = {}
    for setting in SETTINGS:
        if found := accuracies(setting, outcomes):
            shown.setdefault(setting.data, []).append((setting, found))
    figure = Figure(figsize=(7.2, 2.8), layout="constrained")
    for panel, lines in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown.values(), strict=True):
        reported = others(lines[0][0])
        for (setting, found), style in zip(lines, ("o-", "s-", "^-"), strict=False):
            recipe = "recipe" if setting is lines[0][0] else setting.recipes[0]
            recipe += " from a prior" if setting.prior else ""
            panel.plot(list(found), list(found.values()), style, color="#1f6f8b", label=f"Lehr, {recipe}")
            for epsilon, accuracy in found.items():
                ours = sorted(own[epsilon] for _, own in lines if epsilon in own)
                is_highest = accuracy == max(*ours, reported.get(epsilon, 0.0), 0.0)
                is_between = not is_highest and ours[0] < accuracy < ours[-1]
                place: dict[str, Any] = {"xytext": (0, 6 if is_highest else -15), "ha": "center"}
                place |= {"xytext": (7, -4), "ha": "left"} if is_between else {}
                panel.annotate(f"{accuracy:.1f}", (epsilon, accuracy), textcoords="offset points", **place)
        if reported:
            panel.plot(list(reported), list(reported.values()), "x", color="#8a8a8a", label="best reported elsewhere")
        panel.set_xscale("log")
        panel.set_xticks(EPSILONS, [str(epsilon) for epsilon in EPSILONS])
        panel.minorticks_off()
        panel.margins(x=0.14, y=0.25)
        panel.set_title(lines[0][0].title, fontsize=10)
        panel.set_xlabel("proven ε, δ = 10⁻⁵")
        panel.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("test accuracy (%)")
    legend = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(legend.values(), legend.keys(), fontsize=8, frameon=False, loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    mpl.rcParams["svg.hashsalt"] = "lehr"
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    out = parser.parse_args().out
    draw(times(measured)).savefig(out / "speed.svg", metadata={"Date": None})
    kept = outcomes_in(ResultFile.read(ACCURACIES))
    draw_accuracies(kept).savefig(out / "accuracy.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
