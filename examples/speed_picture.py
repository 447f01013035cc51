"""Draws docs/pictures/speed.svg, the picture of the README, from benchmarks/results/step_h200.json. Needs matplotlib.

python -m examples.speed_picture
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "benchmarks" / "results" / "step_h200.json"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    mpl.rcParams["svg.hashsalt"] = "lehr"
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))
    draw(times(measured)).savefig(parser.parse_args().out / "speed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
