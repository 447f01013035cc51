"""SA-DPSGD's Figure 1: the trajectories of SGD, DPSGD and SA-DPSGD on linear regression (Fu et al. 2022).

What is computed, and with which settings, is in ``experiments.toy_problems``; this draws it, and prints the table.

    python -m examples.linear_regression_trajectories [--out FOLDER] [--seeds N]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from examples import pictures
from experiments.toy_problems import (
    CANDIDATES,
    NOT_PRIVATE,
    TRUE,
    Data,
    Path2D,
    data,
    drawn_paths,
    ends,
    epsilon_of,
)

COLOURS = {"SGD": "black", "DPSGD": "#0072b2", "SA-DPSGD": "#d55e00"}


def table(num_seeds: int) -> None:
    """The methods over so many seeds."""
    print(f"over {num_seeds} seeds: excess loss at the end, candidates drawn, and their ε at δ 1e-5")
    print(f"{'method':30} {'median':>8} {'10 %':>8} {'90 %':>8} {'candidates':>11} {'ε':>8}")
    for name, found in ends(num_seeds).items():
        low, median, high = np.quantile([end["excess"] for end in found], [0.1, 0.5, 0.9])
        if name == NOT_PRIVATE:
            print(f"{name:30} {median:8.4f}")
            continue
        drawn = int(np.median([end["candidates"] for end in found]))
        print(f"{name:30} {median:8.4f} {low:8.4f} {high:8.4f} {drawn:11} {epsilon_of(drawn):8.4g}")


def draw(private: Data, paths: dict[str, Path2D], where: Path) -> None:
    """The paths over the contours of the loss of all records."""
    figure, axes = plt.subplots(figsize=(6, 4.6), layout="constrained")
    slopes, intercepts = np.meshgrid(np.linspace(-1.5, 3.2, 50), np.linspace(-2.2, 2.0, 50))
    inputs, targets = (tensor.numpy().reshape(-1, 1, 1) for tensor in (private.inputs, private.targets))
    loss = ((slopes * inputs + intercepts - targets) ** 2).mean(axis=0) / 2
    axes.contour(slopes, intercepts, np.log(loss), levels=12, colors="#cccccc", linewidths=0.6)
    for name, path in paths.items():
        axes.plot(*np.array(path).T, color=COLOURS[name], linewidth=1.2, marker=".", markersize=3, label=name)
    axes.plot(*TRUE, marker="*", color="black", markersize=11, linestyle="none", label="true weights")
    axes.set(xlabel="slope", ylabel="intercept", title=f"{CANDIDATES} candidates each")
    axes.legend(frameon=False)
    pictures.save(figure, where, decimals=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the picture goes")
    parser.add_argument("--seeds", type=int, default=20, help="how many the table is over (default: 20)")
    given = parser.parse_args()
    out: Path = given.out
    table(given.seeds)
    draw(data()[0], drawn_paths(), out / "trajectories.svg")


if __name__ == "__main__":
    main()
