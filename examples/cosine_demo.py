"""ADADP's demonstration of shaped noise (Xu et al. 2020, section III-B), computed exactly and by simulation.

A query has the answer (10, 5) and the sensitivities (12, 6). Three ways to add Gaussian noise give the same privacy;
the paper compares them by the mean cosine between the noisy answer and the true one, and prints .52, .36 and .28.
Those are not the means: this computes them twice, and draws the printed ones beside them.

    python -m examples.cosine_demo [--out FOLDER]
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Ellipse

ANSWER = np.array([10.0, 5.0])
SENSITIVITIES = np.array([12.0, 6.0])
# name: (noise of the two coordinates, the mean cosine that the paper prints)
WAYS = {
    "like the sensitivity": ((17.0, 8.5), 0.52),
    "equal": ((13.5, 13.5), 0.36),
    "against the sensitivity": ((12.4, 24.8), 0.28),
}
COLOURS = ("#0072b2", "#e69f00", "#009e73")


def exact_mean_cosine(answer: np.ndarray, noise_std: np.ndarray, num_angles: int = 4096) -> float:
    """The cosine depends on the angle of the noisy answer alone, and the density of that angle has a closed form.

    With u the unit vector of the angle, P the inverse covariance and b = uPf / sqrt(uPu), the radius integrates to
    (1 + b sqrt(2 pi) Phi(b) exp(b^2 / 2)) exp(-fPf / 2) / (2 pi sqrt(det) uPu). The sum over equally spaced angles of
    such a smooth periodic function is its integral to rounding.
    """
    angles = np.arange(num_angles) * 2 * math.pi / num_angles
    units = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    precisions = noise_std**-2
    along = units**2 @ precisions
    b = units @ (precisions * answer) / np.sqrt(along)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2)) for value in b])
    radial = 1 + b * math.sqrt(2 * math.pi) * below * np.exp(b**2 / 2)
    density = radial * np.exp(-(answer**2 @ precisions) / 2) / (2 * math.pi * noise_std.prod() * along)
    cosines = units @ answer / np.linalg.norm(answer)
    return float((density * cosines).sum() / density.sum())


def simulated_mean_cosine(answer: np.ndarray, noise_std: np.ndarray, num_draws: int = 10_000) -> tuple[float, float]:
    """As the paper did it, with as many draws, and the standard error of that."""
    noisy = answer + noise_std * np.random.default_rng(0).standard_normal((num_draws, 2))
    cosines = noisy @ answer / (np.linalg.norm(noisy, axis=1) * np.linalg.norm(answer))
    return float(cosines.mean()), float(cosines.std() / math.sqrt(num_draws))


def draw(exact: list[float], path: Path) -> None:
    """Left, one standard deviation of the noise; right, the mean cosines and the printed ones."""
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lehr", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
    for (name, (noise_std, _)), colour in zip(WAYS.items(), COLOURS, strict=True):
        width, height = (2 * std for std in noise_std)
        left.add_patch(Ellipse((10, 5), width, height, fill=False, edgecolor=colour, linewidth=1.6, label=name))
    left.annotate("", xy=(10, 5), xytext=(0, 0), arrowprops={"arrowstyle": "->"})
    left.set(xlim=(-22, 42), ylim=(-30, 40), aspect="equal", title="the answer and the noise (one std)")
    left.legend(frameon=False, loc="upper left")
    places = np.arange(len(WAYS))
    right.bar(places - 0.2, exact, 0.4, color=COLOURS, label="exact")
    printed = [value for _, value in WAYS.values()]
    right.bar(places + 0.2, printed, 0.4, color="none", edgecolor=COLOURS, hatch="///", label="printed")
    right.set(title="mean cosine: exact (filled), printed (hatched)", ylim=(0, 0.6))
    right.set_xticks(places, ["like", "equal", "against"])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the picture goes")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    exact = []
    print(f"{'noise':24} {'std':>12} {'cost':>6} {'exact':>7} {'10 000 draws':>16} {'printed':>8}")
    for name, (stds, printed) in WAYS.items():
        noise_std = np.array(stds)
        cost = float(((SENSITIVITIES / noise_std) ** 2).sum())  # at most 1 with a noise multiplier of 1
        exact.append(exact_mean_cosine(ANSWER, noise_std))
        mean, error = simulated_mean_cosine(ANSWER, noise_std)
        shown = f"{mean:.3f} ± {error:.3f}"
        print(f"{name:24} {stds[0]:>5}, {stds[1]:<5} {cost:6.3f} {exact[-1]:7.4f} {shown:>16} {printed:8.2f}")
    draw(exact, out / "cosine.svg")


if __name__ == "__main__":
    main()
