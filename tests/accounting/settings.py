"""Settings with known values, and random ones, for the tests of several accountants."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lehr.accounting.events import Event, Gaussian, PoissonSampled, Repeated


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A setting whose ε was computed independently, to three decimals."""

    noise_multiplier: float
    expected_batch_size: int
    records: int
    steps: int
    delta: float
    balle20: float
    pld: float
    tan: float | None = None
    mironov17: float | None = None
    steps_at_epsilon_3: int | None = None

    @property
    def step(self) -> PoissonSampled:
        return PoissonSampled(self.expected_batch_size / self.records, Gaussian(self.noise_multiplier))

    @property
    def event(self) -> Event:
        return Repeated(self.step, self.steps)


# DPSGD at ε 3, of which mironov17 allows just these steps; whole orders 2 to 64
DPSGD = (
    Reference(
        noise_multiplier=1.23,
        expected_batch_size=512,
        records=60_000,
        steps=4698,
        delta=1e-5,
        mironov17=2.9998,
        balle20=2.584,
        pld=2.366,
        steps_at_epsilon_3=7245,
    ),
    Reference(
        noise_multiplier=2.15,
        expected_batch_size=2048,
        records=60_000,
        steps=1157,
        delta=1e-5,
        mironov17=2.9994,
        balle20=2.588,
        pld=2.373,
        steps_at_epsilon_3=1771,
    ),
    Reference(
        noise_multiplier=1.54,
        expected_batch_size=1024,
        records=50_000,
        steps=1435,
        delta=1e-5,
        mironov17=2.9991,
        balle20=2.581,
        pld=2.361,
        steps_at_epsilon_3=2228,
    ),
)
# The settings of TAN's check (Sander, Stock & Sablayrolles 2023)
TAN = (
    Reference(
        noise_multiplier=2.5,
        expected_batch_size=16384,
        records=1_281_167,
        steps=72_000,
        delta=8e-7,
        balle20=7.954,
        pld=7.465,
        tan=8.215,
    ),
    Reference(
        noise_multiplier=2.5,
        expected_batch_size=32768,
        records=1_281_167,
        steps=18_000,
        delta=8e-7,
        balle20=7.980,
        pld=7.486,
        tan=8.215,
    ),
    Reference(
        noise_multiplier=3.0,
        expected_batch_size=4096,
        records=50_000,
        steps=2500,
        delta=1e-5,
        balle20=7.10,
        pld=6.58,
        tan=7.48,
    ),
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
        steps = round(2 * (eta * sigma / probability) ** 2)
        yield Drawn(
            noise_multiplier=sigma,
            sampling_probability=probability,
            steps=min(max(steps, 1), 10**5),
            delta=delta,
        )
