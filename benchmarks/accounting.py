"""How long computing ε takes: ``python -m benchmarks.accounting`` prints a table.

Each figure is the median of several runs in a fresh process; ratios compare two ways within one run, because the
machines that this runs on are shared and noisy.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from dp_accounting import pld

from benchmarks import parse_options, save
from lehr.accounting import EpsilonCurve, bound, version
from lehr.accounting.calibration import Target, smallest_noise_multiplier
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.accounting.pld import PLD

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
DELTA = 1e-5
MILLION = 10**6


def one_query(steps: int) -> None:
    """One tight ε, nothing remembered from before."""
    PLD.epsilon(Repeated(STEP, steps), delta=DELTA, adjacency=Adjacency.ADD_OR_REMOVE_ONE)


def one_query_by_dp_accounting(steps: int) -> None:
    """The same by dp-accounting on its default grid."""
    one = pld.privacy_loss_distribution.from_gaussian_mechanism(
        STEP.event.noise_multiplier, sampling_prob=STEP.sampling_probability
    )
    one.self_compose(steps).get_epsilon_for_delta(DELTA)


def running_epsilon(steps: int) -> None:
    """ε after every step of a run, in turn."""
    curve = EpsilonCurve(STEP, delta=DELTA, largest_steps=steps)
    for step in range(steps + 1):
        curve.at(step)


def curve_of_200_points(steps: int) -> None:
    """What a chart needs."""
    curve = EpsilonCurve(STEP, delta=DELTA, largest_steps=steps)
    for point in range(1, 201):
        curve.drawn_at(steps * point // 200)


def calibrate_noise() -> None:
    """The least noise for ε 3 in 4698 steps."""
    probability = STEP.sampling_probability
    smallest_noise_multiplier(
        lambda sigma: Repeated(PoissonSampled(probability, Gaussian(sigma)), 4698), Target(3.0, DELTA)
    )


MEASURED: dict[str, tuple[Callable[[], None], float]] = {  # what is run, and by what its seconds are divided
    "one pld query, 4698 steps, s": (lambda: one_query(4698), 1),
    "one pld query, 10^6 steps, s": (lambda: one_query(MILLION), 1),
    "the same by dp-accounting, 4698 steps, s": (lambda: one_query_by_dp_accounting(4698), 1),
    "running epsilon, 1000 steps, ms a step": (lambda: running_epsilon(1000), 1),
    "running epsilon, 7245 steps, ms a step": (lambda: running_epsilon(7245), 7.245),
    "running epsilon, 10^6 steps, ms a step": (lambda: running_epsilon(MILLION), 1000),
    "curve of 200 points over 10^6 steps, s": (lambda: curve_of_200_points(MILLION), 1),
    "noise for epsilon 3, s": (calibrate_noise, 1),
}


def seconds_in_fresh_process(name: str) -> float:
    """Imports and caches of one measurement must not help another."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.accounting", "--only", name], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def measure(repeats: int) -> dict[str, float]:
    """The median of every figure."""
    figures = {}
    for name, (_, divisor) in MEASURED.items():
        figures[name] = statistics.median(seconds_in_fresh_process(name) for _ in range(repeats)) / divisor
        print(f"{name:45} {figures[name]:9.4f}", flush=True)
    return figures


def main() -> None:
    given = parse_options(
        __doc__,
        repeats={"type": int, "default": 3},
        only={"choices": MEASURED, "help": "run one measurement and print its seconds"},
    )
    if given.only:
        begun = time.perf_counter()
        MEASURED[given.only][0]()
        print(time.perf_counter() - begun)
        return
    figures = measure(given.repeats)
    save(
        given,
        accountants=version(),
        config={"step": str(STEP), "delta": DELTA, "median_of": given.repeats},
        epsilon={str(steps): bound(Repeated(STEP, steps), delta=DELTA).epsilon for steps in (4698, MILLION)},
        figures={name: round(value, 5) for name, value in figures.items()},
    )


if __name__ == "__main__":
    main()
