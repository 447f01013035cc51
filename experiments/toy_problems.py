"""Two toy problems: the Beale function (Figure 1 of ADADP) and a linear regression (Figure 1 of SA-DPSGD).

On the Beale function, ADADP's paper prints beta 1.5, gamma .1, gamma' .9, G 1e-6, 150 steps, and two distances from the
trajectory without noise: .90 for DPSGD, .21 for ADADP. It prints neither the start, nor the rates, nor C, nor sigma*,
and its Beale function has the last term cubed, which has no minimum: here it is squared, as everywhere else. "Without
noise" is the same algorithm with sigma* 0. The settings that are not printed decide the outcome, so a grid of them is
run. Two are shown, both picked after seeing the grid: one whose distances are near the printed ones, and one where the
order is reversed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from experiments import settings
from lehr.acceptance.annealed import Annealed
from lehr.gradients.materialised import MaterialisedEngine
from lehr.optim.optimizers import Updater, sgd
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling

STEPS = 150
LOCAL_FACTOR, DECAY, PRIOR_DECAY, THRESHOLD = 1.5, 0.1, 0.9, 1e-6
# Only the proven form can read a prior below zero, since it takes off the noise that it knows to be in there.
FLOOR = 1e-4
MINIMUM = (3.0, 0.5)
PRINTED_DISTANCES = {"DPSGD": 0.90, "ADADP (published)": 0.21}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings that the paper leaves open."""

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
    """The Beale function; its minimum is 0, at (3, 0.5)."""
    return np.asarray((1.5 - x + x * y) ** 2 + (2.25 - x + x * y**2) ** 2 + (2.625 - x + x * y**3) ** 2)


def gradient(points: np.ndarray) -> np.ndarray:
    """The gradient of the Beale function at each point."""
    x, y = points[:, 0], points[:, 1]
    a, b, c = 1.5 - x + x * y, 2.25 - x + x * y**2, 2.625 - x + x * y**3
    along_x = 2 * a * (y - 1) + 2 * b * (y**2 - 1) + 2 * c * (y**3 - 1)
    return np.stack([along_x, 2 * x * (a + 2 * b * y + 3 * c * y**2)], axis=1)


def clipped(grads: np.ndarray, clip_norm: float) -> np.ndarray:
    """Each gradient scaled down to the clip norm if it is longer."""
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


def beale_trajectories(setting: Setting, noise_multiplier: float, normals: np.ndarray) -> dict[str, np.ndarray]:
    """The three methods with the same random numbers."""
    return {
        "DPSGD": dpsgd(setting, noise_multiplier, normals),
        "ADADP (published)": adadp(setting, noise_multiplier, normals, is_proven=False),
        "ADADP (proven)": adadp(setting, noise_multiplier, normals, is_proven=True),
    }


def distances(path: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The paper's distance: the mean over steps of how far apart two trajectories are, for each row."""
    return np.asarray(np.linalg.norm(path - reference, axis=2).mean(axis=1))


def medians(setting: Setting, normals: np.ndarray) -> dict[str, float]:
    """The median distance of each method; a trajectory that leaves the plane is infinitely far."""
    with np.errstate(over="ignore", invalid="ignore"):
        noisy = beale_trajectories(setting, setting.noise_multiplier, normals)
        quiet = beale_trajectories(setting, 0.0, normals[:1])
        found = {name: distances(paths, quiet[name]) for name, paths in noisy.items()}
    return {name: float(np.median(np.nan_to_num(each, nan=np.inf))) for name, each in found.items()}


def beale_over_seeds(
    *, device: str | None, data_dir: str | None, seeds: int, grid: Sequence[int] | None = None
) -> dict[str, Any]:
    """The distances of each method at both settings, a trajectory of each, and the order over the grid.

    Neither a device nor records are used. ``grid`` has indices into the grid; by default all.
    """
    normals = torch.randn(seeds, STEPS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    over_grid = [medians(GRID[index], normals) for index in (range(len(GRID)) if grid is None else grid)]
    settings: dict[str, dict[str, Any]] = {}
    for title, setting in DRAWN.items():
        noisy = beale_trajectories(setting, setting.noise_multiplier, normals)
        quiet = beale_trajectories(setting, 0.0, normals[:1])
        settings[title] = {}
        for name, paths in noisy.items():
            found = distances(paths, quiet[name])
            typical = paths[np.argsort(found)[len(found) // 2]]  # whose distance is the median
            settings[title][name] = {
                **dict(zip(("low", "median", "high"), np.quantile(found, [0.1, 0.5, 0.9]).tolist(), strict=True)),
                "with_noise": typical.round(3).tolist(),
                "without_noise": quiet[name][0].round(3).tolist(),
            }
    moved_less = {name: sum(found[name] < found["DPSGD"] for found in over_grid) for name in over_grid[0]}
    del moved_less["DPSGD"]
    return {"settings": settings, "moved_less_than_dpsgd": moved_less, "grid": len(over_grid)}


# --- Linear regression ----------------------------------------------------------------------------------------------

NUM_RECORDS, NUM_PUBLIC, BATCH, CANDIDATES = 500, 200, 25, 60
CLIP_NORM, NOISE_MULTIPLIER, RATE = 1.0, 5.0, 0.5
ACCEPTANCE = Annealed(initial_inverse_temperature=10.0, rejection_threshold=10)
TRUE, START = (2.0, -1.0), (-1.0, 1.5)

NOT_PRIVATE = "SGD, not private"

Path2D: TypeAlias = list[tuple[float, float]]  # slope and intercept, from the start on


class Data(NamedTuple):
    """Inputs and targets of some records."""

    inputs: Tensor
    targets: Tensor


def records(count: int, seed: int) -> Data:
    """y = 2 x - 1 with Gaussian noise of standard deviation 1/2."""
    generator = torch.Generator().manual_seed(seed)
    inputs, noise = (torch.randn(count, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    return Data(inputs, TRUE[0] * inputs + TRUE[1] + 0.5 * noise)


def data() -> tuple[Data, Data]:
    """The private and the public records."""
    return records(NUM_RECORDS, seed=0), records(NUM_PUBLIC, seed=1)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of each record."""
    return (outputs - targets).square().flatten(1).sum(1) / 2


def initial_model() -> nn.Linear:
    """The model at the start of every trajectory."""
    model = nn.Linear(1, 1, dtype=torch.float64)
    nn.init.constant_(model.weight, START[0])
    nn.init.constant_(model.bias, START[1])
    return model


def weights_of(model: nn.Linear) -> tuple[float, float]:
    """The slope and the intercept."""
    return model.weight.item(), model.bias.item()


@dataclass(frozen=True)
class Candidate:
    """What acceptance may use: the change of the public loss, and a uniform number."""

    energy_change: float
    randomness: StepRandomness

    def uniform(self) -> float:
        return self.randomness.uniforms("acceptance", 1).item()

    def change(self, step_scale: float = 1.0) -> float:
        return self.energy_change

    def best(self, step_scales: Sequence[float]) -> int:
        return 0


def sgd_path(private: Data) -> Path2D:
    """Gradient descent on all records, without clipping and noise."""
    model = initial_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    path = [weights_of(model)]
    for _ in range(CANDIDATES):
        optimizer.zero_grad()
        losses(model(private.inputs), private.targets).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        path.append(weights_of(model))
    return path


def private_path(private: Data, public: Data | None, key: RunKey, *, most_accepted: int | None = None) -> Path2D:
    """DPSGD, or SA-DPSGD where there are public records: the weights after every candidate.

    It ends after ``CANDIDATES``, or with ``most_accepted`` once so many were accepted.
    """
    model = initial_model()
    engine, updater = MaterialisedEngine(model, losses), Updater(sgd(RATE), model)
    sampling = PoissonSampling(expected_batch_size=BATCH, records=NUM_RECORDS)
    clip, noise, state = FlatClip(CLIP_NORM), IsotropicNoise(), ACCEPTANCE.start()
    path, num_accepted = [weights_of(model)], 0

    def energy() -> float:
        with torch.no_grad():
            return 0.0 if public is None else losses(model(public.inputs), public.targets).mean().item()

    while len(path) <= CANDIDATES if most_accepted is None else num_accepted < most_accepted:
        # The records of this candidate, the sum of their clipped gradients, and that sum with its noise.
        step = len(path) - 1
        randomness = key.at(step=step, attempt=0)
        indices = sampling.draw(NUM_RECORDS, randomness)
        clipped_sum = clip(engine.gradients(private.inputs[indices], private.targets[indices]))
        released = noise.release(clipped_sum, noise_multiplier=NOISE_MULTIPLIER, randomness=randomness)

        # From here on nothing is private: the candidate, and whether it is accepted.
        snapshot, before = updater.snapshot(), energy()
        updater.step(released, divisor=BATCH, step=step)
        is_accepted = True
        if public is not None:
            decision = ACCEPTANCE.decide(state, Candidate(energy() - before, randomness), released)
            is_accepted, state = decision.is_accepted, decision.state
        if not is_accepted:
            updater.restore(snapshot)
        num_accepted += is_accepted
        path.append(weights_of(model))
    return path


def excess(path: Path2D, private: Data) -> float:
    """How far the mean loss of all records is above its minimum at the end of a path."""
    design = torch.cat([private.inputs, torch.ones_like(private.inputs)], dim=1)
    best = torch.linalg.lstsq(design, private.targets).solution.flatten()
    off = torch.tensor(path[-1], dtype=torch.float64) - best
    return float((design @ off).square().mean() / 2)


@cache
def epsilon_of(num_candidates: int) -> float:
    """The proven ε of so many candidates at a δ of 1e-5."""
    return settings.proven(BATCH / NUM_RECORDS, NOISE_MULTIPLIER, num_candidates)


def drawn_paths() -> dict[str, Path2D]:
    """One trajectory of each method, for the picture."""
    (private, public), key = data(), RunKey(bytes(32))
    return {
        "DPSGD": private_path(private, None, key),
        "SA-DPSGD": private_path(private, public, key),
        "SGD": sgd_path(private),
    }


def ends(num_seeds: int) -> dict[str, list[dict[str, float]]]:
    """Where the methods end, over so many seeds: the excess loss, the candidates drawn, and their ε."""
    private, public = data()
    keys = [RunKey(seed.to_bytes(32, "big")) for seed in range(num_seeds)]
    runs = {
        NOT_PRIVATE: [sgd_path(private)],
        "DPSGD": [private_path(private, None, key) for key in keys],
        "SA-DPSGD, as many candidates": [private_path(private, public, key) for key in keys],
        "SA-DPSGD, as many accepted": [private_path(private, public, key, most_accepted=CANDIDATES) for key in keys],
    }
    return {
        name: [
            {"excess": excess(path, private), "candidates": len(path) - 1}
            | ({} if name == NOT_PRIVATE else {"epsilon": epsilon_of(len(path) - 1)})
            for path in paths
        ]
        for name, paths in runs.items()
    }


def linear_regression_trajectories(*, device: str, data_dir: str | None, seeds: int) -> dict[str, Any]:
    """The values of SA-DPSGD's Figure 1. Neither a device nor records are used."""
    return {"paths": drawn_paths(), "ends": ends(seeds), "true": TRUE}
