"""ADADP's trajectories on the Beale function (Xu et al. 2020, Figure 1), and how far noise moves them.

The paper prints beta 1.5, gamma .1, gamma' .9, G 1e-6, 150 steps, and two distances from the trajectory without
noise: .90 for DPSGD, .21 for ADADP. It prints neither the start, nor the rates, nor C, nor sigma*, and its Beale
function has the last term cubed, which has no minimum: here it is squared, as everywhere else. "Without noise" is the
same algorithm with sigma* 0; without the clip as well, SGD leaves the plane at most of these rates.

What is not printed decides the outcome, so a grid of it is run. Two settings of the grid are drawn, both picked after
seeing it: one whose distances are near the printed ones, and one where the order is the other way round.

    python examples/beale_trajectories.py [--out FOLDER] [--seeds N]
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

STEPS = 150
LOCAL_FACTOR, DECAY, PRIOR_DECAY, THRESHOLD = 1.5, 0.1, 0.9, 1e-6
# Only the proven form can read a prior below zero, since it takes off the noise that it knows to be in there.
FLOOR = 1e-4
MINIMUM = (3.0, 0.5)
PRINTED = {"DPSGD": 0.90, "ADADP (published)": 0.21}
COLOURS = {"DPSGD": "#d55e00", "ADADP (published)": "#009e73", "ADADP (proven)": "#0072b2"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the paper leaves open."""

    start: tuple[float, float]
    rate: float  # of DPSGD
    adaptive_rate: float  # of ADADP
    clip_norm: float = 4.0
    noise_multiplier: float = 1.0


DRAWN = {
    "near the printed": Setting(start=(-2.0, 2.0), rate=0.05, adaptive_rate=0.02),
    "the other order": Setting(start=(1.0, 1.5), rate=0.05, adaptive_rate=0.05),
}
STARTS = [(1.0, 1.5), (-2.0, 2.0), (-3.0, 3.0), (3.0, 3.0), (1.0, -2.0), (-1.0, 1.0), (0.0, 2.0)]
GRID = [
    Setting(start=start, rate=rate, adaptive_rate=adaptive, clip_norm=clip_norm, noise_multiplier=noise)
    for start, rate, adaptive, clip_norm, noise in product(STARTS, (0.01, 0.05), (0.02, 0.05), (1.0, 4.0), (0.5, 1, 2))
]


def beale(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Lowest, and zero, at (3, 0.5)."""
    return np.asarray((1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2)


def gradient(points: np.ndarray) -> np.ndarray:
    """Of the Beale function, at each of these points."""
    x, y = points[:, 0], points[:, 1]
    a, b, c = 1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3
    along_x = 2 * a * (y - 1) + 2 * b * (y**2 - 1) + 2 * c * (y**3 - 1)
    return np.stack([along_x, 2 * x * (a + 2 * b * y + 3 * c * y**2)], axis=1)


def clipped(grads: np.ndarray, clip_norm: float) -> np.ndarray:
    """Each gradient scaled down to the clip norm, where it is longer."""
    return np.asarray(grads / np.maximum(1, np.linalg.norm(grads, axis=1, keepdims=True) / clip_norm))


def dpsgd(setting: Setting, noise_multiplier: float, normals: np.ndarray) -> np.ndarray:
    """One trajectory for each row of normals."""
    points = np.tile(setting.start, (len(normals), 1))
    path = []
    for step in range(STEPS):
        noise = noise_multiplier * setting.clip_norm * normals[:, step]
        points = points - setting.rate * (clipped(gradient(points), setting.clip_norm) + noise)
        path.append(points)
    return np.stack(path, axis=1)


def adadp(setting: Setting, noise_multiplier: float, normals: np.ndarray, *, is_proven: bool) -> np.ndarray:
    """Algorithm 1 of the paper; the proven form learns its prior from what was released, the published one does not."""
    points = np.tile(setting.start, (len(normals), 1))
    second_moment, prior = np.zeros_like(points), np.zeros_like(points)
    path = []
    for step in range(STEPS):
        grads = gradient(points)
        scale = np.sqrt(np.maximum(prior, FLOOR if is_proven else 0.0))
        is_local = scale.var(axis=1, keepdims=True) > THRESHOLD
        bounds = LOCAL_FACTOR * scale
        bounded = np.where(is_local, np.clip(grads, -bounds, bounds), clipped(grads, setting.clip_norm))
        noise_std = noise_multiplier * np.where(is_local, np.sqrt(2) * bounds, setting.clip_norm)
        released = bounded + noise_std * normals[:, step]
        second_moment = (1 - DECAY) * second_moment + DECAY * released**2
        learned = released**2 - noise_std**2 if is_proven else grads**2
        prior = PRIOR_DECAY * prior + (1 - PRIOR_DECAY) * learned
        points = points - setting.adaptive_rate * released / (np.sqrt(second_moment) + 1e-8)
        path.append(points)
    return np.stack(path, axis=1)


def trajectories(setting: Setting, noise_multiplier: float, normals: np.ndarray) -> dict[str, np.ndarray]:
    """The three methods with the same random numbers."""
    return {
        "DPSGD": dpsgd(setting, noise_multiplier, normals),
        "ADADP (published)": adadp(setting, noise_multiplier, normals, is_proven=False),
        "ADADP (proven)": adadp(setting, noise_multiplier, normals, is_proven=True),
    }


def distances(path: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The paper's: the mean over the steps of how far apart two trajectories are, for each row."""
    return np.asarray(np.linalg.norm(path - reference, axis=2).mean(axis=1))


def medians(setting: Setting, normals: np.ndarray) -> dict[str, float]:
    """The median distance of each method; a trajectory that leaves the plane is infinitely far."""
    with np.errstate(over="ignore", invalid="ignore"):
        noisy = trajectories(setting, setting.noise_multiplier, normals)
        quiet = trajectories(setting, 0.0, normals[:1])
        found = {name: distances(paths, quiet[name]) for name, paths in noisy.items()}
    return {name: float(np.median(np.nan_to_num(each, nan=np.inf))) for name, each in found.items()}


def draw(rows: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray]]], path: Path) -> None:
    """Of each setting and method, the trajectory whose distance is the median, over the contours."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lehr", "font.size": 9})
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
    figure.savefig(path, metadata={"Date": None})
    # One decimal of a point is enough to see, and six make the file twice as large.
    path.write_text(re.sub(r"(\d\.\d)\d{2,}", r"\1", path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the picture goes")
    parser.add_argument("--seeds", type=int, default=100, help="how many the distances are over (default: 100)")
    given = parser.parse_args()
    out: Path = given.out
    out.mkdir(parents=True, exist_ok=True)
    normals = np.random.default_rng(0).standard_normal((given.seeds, STEPS, 2))
    rows = {}
    print(f"distance from the trajectory without noise, over {given.seeds} seeds")
    print(f"{'setting':18} {'method':18} {'median':>7} {'10 %':>6} {'90 %':>6} {'printed':>8}")
    for title, setting in DRAWN.items():
        noisy = trajectories(setting, setting.noise_multiplier, normals)
        quiet = trajectories(setting, 0.0, normals[:1])
        rows[title] = noisy, quiet
        for name, paths in noisy.items():
            printed = f"{PRINTED[name]:.2f}" if name in PRINTED else "–"
            low, median, high = np.quantile(distances(paths, quiet[name]), [0.1, 0.5, 0.9])
            print(f"{title:18} {name:18} {median:7.2f} {low:6.2f} {high:6.2f} {printed:>8}")
    over_grid = [medians(setting, normals) for setting in GRID]
    for name in ("ADADP (published)", "ADADP (proven)"):
        nearer = sum(found[name] < found["DPSGD"] for found in over_grid)
        print(f"{name} is moved less than DPSGD in {nearer} of {len(GRID)} settings")
    draw(rows, out / "beale.svg")


if __name__ == "__main__":
    main()
