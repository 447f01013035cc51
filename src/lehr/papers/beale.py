"""Trajectories on the Beale function, and how far noise moves them: Figure 1 of ADADP (Xu et al. 2020).

The paper prints beta 1.5, gamma .1, gamma' .9, G 1e-6, 150 steps, and two distances from the trajectory without
noise: .90 for DPSGD, .21 for ADADP. It prints neither the start, nor the rates, nor C, nor sigma*, and its Beale
function has the last term cubed, which has no minimum: here it is squared, as everywhere else. "Without noise" is the
same algorithm with sigma* 0; without the clip as well, SGD leaves the plane at most of these rates.

What is not printed decides the outcome, so a grid of it is run. Two settings of the grid are shown, both picked after
seeing it: one whose distances are near the printed ones, and one where the order is the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

STEPS = 150
LOCAL_FACTOR, DECAY, PRIOR_DECAY, THRESHOLD = 1.5, 0.1, 0.9, 1e-6
# Only the proven form can read a prior below zero, since it takes off the noise that it knows to be in there.
FLOOR = 1e-4
MINIMUM = (3.0, 0.5)
METHODS = ("DPSGD", "ADADP (published)", "ADADP (proven)")
PRINTED = {"DPSGD": 0.90, "ADADP (published)": 0.21}


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


def over_seeds(
    *, device: str | None, data_dir: str | None, seeds: int, grid: Sequence[int] | None = None
) -> dict[str, Any]:
    """The distances of each method at both settings, a trajectory of each, and the order over the grid.

    Nothing is trained: neither a device nor records are used. ``grid`` names places of the grid, otherwise all of them.
    """
    import torch

    normals = torch.randn(seeds, STEPS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    places = range(len(GRID)) if grid is None else grid
    over_grid = [medians(GRID[place], normals) for place in places]
    return {
        "settings": {title: _of_setting(setting, normals) for title, setting in DRAWN.items()},
        "moved_less_than_dpsgd": {
            name: sum(found[name] < found["DPSGD"] for found in over_grid) for name in METHODS if name != "DPSGD"
        },
        "grid": len(over_grid),
    }


def _of_setting(setting: Setting, normals: np.ndarray) -> dict[str, Any]:
    noisy = trajectories(setting, setting.noise_multiplier, normals)
    quiet = trajectories(setting, 0.0, normals[:1])
    return {name: _of_method(paths, quiet[name]) for name, paths in noisy.items()}


def _of_method(paths: np.ndarray, quiet: np.ndarray) -> dict[str, Any]:
    """The distances, and the trajectory whose distance is the median."""
    found = distances(paths, quiet)
    low, median, high = np.quantile(found, [0.1, 0.5, 0.9]).tolist()
    typical = paths[np.argsort(found)[len(found) // 2]]
    return {
        "low": low,
        "median": median,
        "high": high,
        "with_noise": typical.round(3).tolist(),
        "without_noise": quiet[0].round(3).tolist(),
    }
