"""Settings with known values, random ones, and an exact profile, for the tests of several accountants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import special

from lehr.accounting.events import Event, Gaussian, PoissonSampled, Repeated
from lehr.accounting.privacy_loss import Direction


@dataclass(frozen=True)
class Reference:
    """A setting whose ε was computed independently, to three decimals or two."""

    noise_multiplier: float
    expected_batch_size: int
    records: int
    steps: int
    delta: float
    balle20: float
    pld: float
    tan: float = math.nan
    mironov17: float = math.nan
    steps_at_epsilon_3: int = 0
    precision: float = 5e-4

    @property
    def step(self) -> PoissonSampled:
        return PoissonSampled(self.expected_batch_size / self.records, Gaussian(self.noise_multiplier))

    @property
    def event(self) -> Event:
        return Repeated(self.step, self.steps)


# DPSGD at ε 3, of which mironov17 allows just these steps; whole orders 2 to 64
DPSGD = (
    Reference(1.23, 512, 60_000, 4698, 1e-5, 2.584, 2.366, mironov17=2.9998, steps_at_epsilon_3=7245),
    Reference(2.15, 2048, 60_000, 1157, 1e-5, 2.588, 2.373, mironov17=2.9994, steps_at_epsilon_3=1771),
    Reference(1.54, 1024, 50_000, 1435, 1e-5, 2.581, 2.361, mironov17=2.9991, steps_at_epsilon_3=2228),
)
# The settings of TAN's check (Sander, Stock & Sablayrolles 2023)
TAN = (
    Reference(2.5, 16384, 1_281_167, 72_000, 8e-7, 7.954, 7.465, tan=8.215),
    Reference(2.5, 32768, 1_281_167, 18_000, 8e-7, 7.980, 7.486, tan=8.215),
    Reference(3.0, 4096, 50_000, 2500, 1e-5, 7.10, 6.58, tan=7.48, precision=5e-3),
)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A random setting."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    delta: float

    @property
    def event(self) -> Event:
        return Repeated(PoissonSampled(self.sampling_probability, Gaussian(self.noise_multiplier)), self.steps)


def in_the_whole_box(count: int, *, seed: int) -> Iterator[Drawn]:
    """Noise 0.3 to 1000, probability 1e-7 to 1, up to 10⁷ steps, delta 1e-12 to 0.1; its corners come first."""
    sides = ((0.3, 1000.0), (1e-7, 1.0), (1, 10**7), (1e-12, 0.1))
    corners = np.array(np.meshgrid(*sides)).reshape(4, -1).T
    random = np.random.default_rng(seed)
    logs = np.log(np.array(sides))
    drawn = np.exp(random.uniform(logs[:, 0], logs[:, 1], (max(count - len(corners), 0), 4)))
    for sigma, probability, steps, delta in np.concatenate([corners, drawn])[:count].tolist():
        yield Drawn(
            noise_multiplier=sigma,
            sampling_probability=min(probability, 1.0),
            steps=round(steps),
            delta=min(delta, 0.1),
        )


def in_usual_ranges(count: int, *, seed: int) -> Iterator[Drawn]:
    """Noise 0.5 to 20, probability 1e-4 to 1, up to 10⁵ steps, delta 1e-8 to 1e-4; ε mostly between 0.1 and 20.

    An ε is drawn too, and the steps that the total amount of noise gives for it.
    """
    random = np.random.default_rng(seed)
    for _ in range(count):
        sigma = math.exp(random.uniform(math.log(0.5), math.log(20)))
        probability, delta = 10 ** random.uniform(-4, 0), 10 ** random.uniform(-8, -4)
        epsilon = math.exp(random.uniform(math.log(0.1), math.log(20)))
        root = math.sqrt(-math.log(delta))
        eta = math.sqrt(root**2 + epsilon) - root
        steps = min(max(round(2 * (eta * sigma / probability) ** 2), 1), 10**5)
        yield Drawn(noise_multiplier=sigma, sampling_probability=probability, steps=steps, delta=delta)


def exact_profile(probability: float, sigma: float, direction: Direction, epsilon: float) -> float:
    """δ at ε of one Poisson-sampled Gaussian step: the losses above ε are the outcomes on one side of a threshold."""
    removing = direction is Direction.REMOVE
    odds = (math.expm1(epsilon if removing else -epsilon) + probability) / probability
    if odds <= 0:
        return 0.0
    threshold, side = sigma**2 * math.log(odds) + 0.5, -1 if removing else 1
    absent = float(special.ndtr(side * threshold / sigma))
    present = float(special.ndtr(side * (threshold - 1) / sigma))
    mixture = (1 - probability) * absent + probability * present
    return mixture - math.exp(epsilon) * absent if removing else absent - math.exp(epsilon) * mixture
