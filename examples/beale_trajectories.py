"""ADADP's trajectories on the Beale function (Xu et al. 2020, Figure 1), drawn, and how far noise moves them.

What is computed, and what the paper leaves open, is in ``experiments.toy_problems``.

    python -m examples.beale_trajectories [--out FOLDER] [--seeds N]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from examples import pictures
from experiments.toy_problems import (
    DRAWN,
    GRID,
    MINIMUM,
    PRINTED_DISTANCES,
    STEPS,
    beale,
    beale_trajectories,
    distances,
    medians,
)

COLOURS = {"DPSGD": "#d55e00", "ADADP (published)": "#009e73", "ADADP (proven)": "#0072b2"}


def draw(rows: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]], path: Path) -> None:
    """Of each setting and method, the trajectory whose distance is the median, over the contours."""
    figure, grid = plt.subplots(len(rows), 3, figsize=(9, 6), layout="constrained", sharex=True, sharey=True)
    xs, ys = np.meshgrid(np.linspace(-4, 4.5, 40), np.linspace(-1.5, 3, 34))
    for (title, (noisy, quiet)), line in zip(rows.items(), grid, strict=True):
        for (name, paths), axes in zip(noisy.items(), line, strict=True):
            found = distances(paths, quiet[name])
            median = paths[np.argsort(found)[len(found) // 2]]
            axes.contour(xs, ys, np.log10(beale(xs, ys) + 1e-3), levels=6, colors="#cccccc", linewidths=0.5)
            axes.plot(*median.T, color=COLOURS[name], linewidth=1, label="with noise")
            axes.plot(*quiet[name][0].T, color="black", linewidth=1.4, linestyle="--", label="without")
            axes.plot(*MINIMUM, marker="*", color="black", markersize=9)
            axes.set(xlim=(-4, 4.5), ylim=(-1.5, 3), title=f"{name}, {np.median(found):.2f}")
        line[0].set_ylabel(title)
    grid[0, 0].legend(frameon=False, loc="lower left")
    pictures.save(figure, path, decimals=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the picture goes")
    parser.add_argument("--seeds", type=int, default=100, help="how many the distances are over (default: 100)")
    given = parser.parse_args()
    out: Path = given.out
    normals = np.random.default_rng(0).standard_normal((given.seeds, STEPS, 2))
    rows = {}
    print(f"distance from the trajectory without noise, over {given.seeds} seeds")
    print(f"{'setting':18} {'method':18} {'median':>7} {'10 %':>6} {'90 %':>6} {'printed':>8}")
    for title, setting in DRAWN.items():
        noisy = beale_trajectories(setting, setting.noise_multiplier, normals)
        quiet = beale_trajectories(setting, 0.0, normals[:1])
        rows[title] = noisy, quiet
        for name, paths in noisy.items():
            printed = f"{PRINTED_DISTANCES[name]:.2f}" if name in PRINTED_DISTANCES else "–"
            low, median, high = np.quantile(distances(paths, quiet[name]), [0.1, 0.5, 0.9])
            print(f"{title:18} {name:18} {median:7.2f} {low:6.2f} {high:6.2f} {printed:>8}")
    over_grid = [medians(setting, normals) for setting in GRID]
    for name in ("ADADP (published)", "ADADP (proven)"):
        nearer = sum(found[name] < found["DPSGD"] for found in over_grid)
        print(f"{name} is moved less than DPSGD in {nearer} of {len(GRID)} settings")
    draw(rows, out / "beale.svg")


if __name__ == "__main__":
    main()
