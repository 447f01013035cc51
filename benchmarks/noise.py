"""Whether the noise is what the accountant counts: ``python -m benchmarks.noise [--device cuda] --save FILE``.

Draws numbers as a training step does and tests, for each device and generator: their distribution (Kolmogorov-Smirnov),
their variance, how many lie beyond 3 to 5.5 standard deviations, and the correlation of streams that must be
independent: neighbouring steps, steps 65,536 apart, attempts, purposes, runs, and coordinates beside one another.
A fault planted on purpose (noise cut off at 4.5, half the noise, two steps that share a stream) must be found.

``--cost NETWORK`` times a private step instead, from a batch to a released sum, with noise in floating point and with
discrete noise; the networks are those of ``benchmarks.step``. With ``--bands 16 64 256`` it compares ordinary
noise with correlated noise of so many bands, of the matrix and of its inverse, as of the middle of a run: milliseconds
of the sum of gradients and of its noise, in turns, what is held between two steps, and what a release takes on top.

``--errors`` prints the noise of the weights with each number of bands, with bands of the inverse and with tree
aggregation, at the same proven ε and relative to independent noise, for SGD with the default momentum.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy import signal, stats
from torch import Tensor

from benchmarks import parse_options, save
from benchmarks.step import (
    CLIP_NORM,
    GIB,
    NETWORKS,
    NOISE_MULTIPLIER,
    Case,
    data,
    gib_of_one_step,
    model_for,
    record_losses,
)
from lehr.accounting.events import NOISES
from lehr.config import BANDED_INVERSE, MOMENTUM
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import PrivateSum
from lehr.planning.plan import make_plan
from lehr.privacy.bands import (
    band_coefficients,
    inverse_coefficients,
    moved_by_record,
    relative_error,
    square_root_coefficients,
    workload_column,
)
from lehr.privacy.clipping import FlatClip
from lehr.privacy.correlated import CorrelatedNoise, InverseCorrelatedNoise
from lehr.privacy.noise import IsotropicNoise, isotropic_noise
from lehr.privacy.rng import RunKey, StepRandomness

STEPS = 4096  # of a run with correlated noise
SAMPLED = 2**20  # for the distribution; the tails are counted in all numbers
THRESHOLDS = (3.0, 4.0, 4.5, 5.0, 5.5)
SMALLEST_P_VALUE = 1e-6  # of one test, so that an honest run of all of them fails once in thousands

Normals = Callable[[StepRandomness, str, int], Tensor]


def drawn(randomness: StepRandomness, purpose: str, count: int, *, device: str) -> Tensor:
    """Numbers as a step gets them."""
    return randomness.normals(purpose, {"all": torch.empty(count, device=device)})["all"]


def distribution(values: Tensor) -> dict[str, float]:
    """The p-values of the tests of one stream."""
    some = values[:SAMPLED].cpu().numpy()
    square = float(values.double().square().sum())
    found = {
        "Kolmogorov-Smirnov": float(stats.kstest(some, "norm").pvalue),
        "mean": two_sided(float(values.mean()) * math.sqrt(len(values))),
        "variance": float(2 * min(stats.chi2.cdf(square, len(values)), stats.chi2.sf(square, len(values)))),
        "neighbouring coordinates": correlation(values[:-1], values[1:]),
    }
    for threshold in THRESHOLDS:
        beyond = int((values.abs() > threshold).sum())
        expected = 2 * stats.norm.sf(threshold) * len(values)
        found[f"beyond {threshold}"] = float(
            min(1.0, 2 * min(stats.poisson.cdf(beyond, expected), stats.poisson.sf(beyond - 1, expected)))
        )
    return found


def correlation(one: Tensor, other: Tensor) -> float:
    """The p-value of two streams being independent."""
    return two_sided(float((one.double() * other.double()).sum()) / math.sqrt(len(one)))


def two_sided(normal: float) -> float:
    return float(2 * stats.norm.sf(abs(normal)))


def independence(normals: Normals, key: RunKey, count: int) -> dict[str, float]:
    """The p-values of streams that must not know of one another."""
    here = normals(key.at(1_000, 0), "noise", count)
    others = {
        "next step": normals(key.at(1_001, 0), "noise", count),
        "65,536 steps later": normals(key.at(1_000 + 2**16, 0), "noise", count),
        "2^32 steps later": normals(key.at(1_000 + 2**32, 0), "noise", count),
        "next attempt": normals(key.at(1_000, 1), "noise", count),
        "another purpose": normals(key.at(1_000, 0), "energy", count),
        "another run": normals(RunKey.fresh().at(1_000, 0), "noise", count),
    }
    return {name: correlation(here, other) for name, other in others.items()}


def faults(normals: Normals) -> dict[str, Normals]:
    """What must be found."""
    return {
        "cut off at 4.5": lambda at, purpose, count: normals(at, purpose, count).clamp(-4.5, 4.5),
        "half the noise": lambda at, purpose, count: normals(at, purpose, count) / 2,
        "steps share a stream": lambda at, purpose, count: normals(at.key.at(1_000, at.attempt), purpose, count),
        "repeats after 65,536 steps": lambda at, purpose, count: normals(
            at.key.at(at.step % 2**16, at.attempt), purpose, count
        ),
    }


def tested(normals: Normals, count: int) -> dict[str, Any]:
    key = RunKey.fresh()
    p_values = {**distribution(normals(key.at(0, 0), "noise", count)), **independence(normals, key, count // 8)}
    return {"p_values": p_values, "passed": min(p_values.values()) >= SMALLEST_P_VALUE}


def rows(device: str, count: int) -> Iterator[dict[str, Any]]:
    def normals(at: StepRandomness, purpose: str, number: int) -> Tensor:
        return drawn(at, purpose, number, device=device)

    begun = time.monotonic()
    yield {"fault": None, "device": device, "numbers": count, **tested(normals, count)}
    print(f"{count} numbers: {time.monotonic() - begun:.1f} s", flush=True)
    for name, faulty in faults(normals).items():
        yield {"fault": name, "device": device, "numbers": count, **tested(faulty, count)}


def step_costs(case: Case, *, rounds: int = 15) -> Iterator[dict[str, Any]]:
    """Milliseconds of a private step with each kind of noise, timed in turns, and of the noise alone."""
    model, (images, labels) = model_for(case), data(case)
    engine = GhostEngine(model, record_losses, precision="as_model" if case.device == "cpu" else case.precision)
    mask = torch.ones(case.batch, dtype=torch.bool, device=case.device)
    clip, key = FlatClip(CLIP_NORM), RunKey.fresh()
    times: dict[tuple[str, str], list[float]] = {}
    for step in range(rounds + 1):
        for kind in NOISES:
            begun = _now(case.device)
            private = engine.private_sum(clip, images.squeeze(1), labels, mask)
            summed = _now(case.device)
            noise = isotropic_noise(kind)
            noise.release(private, noise_multiplier=NOISE_MULTIPLIER, randomness=key.at(step, 0))
            ended = _now(case.device)
            if step:  # the first one compiles and makes tables
                times.setdefault((kind, "step"), []).append(1e3 * (ended - begun))
                times.setdefault((kind, "noise"), []).append(1e3 * (ended - summed))
    parameters = sum(value.numel() for value in model.parameters())
    for kind in NOISES:
        step_ms, noise_ms = (statistics.median(times[kind, part]) for part in ("step", "noise"))
        ratio = step_ms / statistics.median(times["float", "step"])
        row = {"noise": kind, "parameters": parameters, "ms": step_ms, "noise_ms": noise_ms, "ratio": ratio}
        print(f"{case.label}, {kind}: {step_ms:.1f} ms, noise {noise_ms:.1f} ms, ratio {ratio:.2f}", flush=True)
        yield {**asdict(case), **row}


def errors() -> Iterator[dict[str, Any]]:
    """One row for each setting and kind of noise."""
    for batch, steps in ((512, 117), (512, 468), (4096, 147), (8192, 500)):
        for epsilon in (1.0, 3.0, 8.0):
            shape: dict[str, Any] = {"epsilon": epsilon, "records": 60_000, "delta": 1e-5, "steps": steps}
            shape["expected_batch_size"] = batch
            sigma = make_plan(**shape).noise_multiplier
            found: dict[str, float] = {}
            for bands in (2, 4, 8, 16, 32, 64):
                if bands * batch <= shape["records"]:
                    column = inverse_coefficients(band_coefficients(bands=bands, steps=steps, momentum=MOMENTUM), steps)
                    made = make_plan(**shape, bands=bands)
                    found[f"{bands} bands"] = made.noise_multiplier * relative_error(column, momentum=MOMENTUM) / sigma
            for bands in (2, 8):
                made = make_plan(**shape, bands=bands, correlation=BANDED_INVERSE)
                noise = InverseCorrelatedNoise.of(
                    bands=bands, steps=steps, num_groups=made.num_groups, momentum=MOMENTUM
                )
                error = relative_error(noise.column(steps), momentum=MOMENTUM)
                found[f"{bands} of the inverse"] = made.noise_multiplier * error / sigma
            tree = tree_aggregation_error(steps=steps, num_groups=made.num_groups)
            found["tree"] = made.noise_multiplier * tree / sigma
            print(f"{batch}, {steps}, {epsilon:g}:", " | ".join(f"{name} {each:.3f}" for name, each in found.items()))
            yield {**shape, "errors": found}


def tree_aggregation_error(*, steps: int, num_groups: int) -> float:
    """The error of weights with a binary tree over the steps (Kairouz et al. 2021), over that of independent noise.

    The noise of a sum is that of the nodes that make it up. A record that enters every ``num_groups`` steps moves each
    node by the number of its entries below it; noise is relative to the most that any group moves.
    """
    height = (steps - 1).bit_length()
    nodes = [(level, first) for level in range(height + 1) for first in range(0, steps, 2**level)]
    sums = np.zeros((steps, len(nodes)))
    moved = np.zeros(num_groups)
    for index, (level, first) in enumerate(nodes):
        last = first + 2**level
        if last <= steps:
            for end in range(last, min(last + 2**level, steps + 1)):  # sums of so many steps that have this node
                sums[end - 1, index] = (end >> level) << level == last and (end >> level) & 1
            if sums[:, index].any():  # the other nodes are part of no sum, and need not be released
                moved += np.bincount(np.arange(first, last) % num_groups, minlength=num_groups) ** 2
    weights = signal.lfilter([1.0], [1.0, -MOMENTUM], sums, axis=0)
    independent = np.cumsum(workload_column(steps, momentum=MOMENTUM) ** 2)
    return math.sqrt(float(moved.max() * np.mean((weights**2).sum(axis=1)) / np.mean(independent)))


def correlated_noises(bands: Iterable[int]) -> Iterator[tuple[str, int, IsotropicNoise]]:
    """Ordinary noise, and both kinds of correlated noise. None of their coefficients is zero, which would cost less."""
    yield "independent", 1, IsotropicNoise()
    for count in bands:
        yield "banded", count, CorrelatedNoise(band_coefficients(bands=count, steps=STEPS))
    for count in bands:
        inverse = inverse_coefficients(square_root_coefficients(count), count)
        norm = 1.001 * moved_by_record(tuple(inverse.tolist()), steps=STEPS, num_groups=STEPS)
        yield (
            "banded-inverse",
            count,
            InverseCorrelatedNoise(tuple((norm * inverse).tolist()), num_groups=STEPS, steps=STEPS),
        )


def begin_in_the_middle(noise: IsotropicNoise, randomness: StepRandomness, like: dict[str, Tensor]) -> int:
    """Fill the memory of correlated noise as all steps before this one would. Return the bytes that it holds."""
    if not isinstance(noise, CorrelatedNoise) or isinstance(noise, InverseCorrelatedNoise):
        return 0
    noise.correlated(replace(randomness, step=0), like)
    memory = noise._memory
    memory.steps = randomness.step  # the numbers are others than they would be, which takes as long
    while len(memory.outputs) < len(noise.coefficients) - 1:
        memory.outputs.append({name: value.clone() for name, value in memory.outputs[0].items()})
    return sum(value.nbytes for held in memory.outputs for value in held.values())


def correlated_costs(case: Case, bands: list[int], *, rounds: int = 9) -> Iterator[dict[str, Any]]:
    """Milliseconds and memory of a private step with each noise."""
    model, (images, labels) = model_for(case), data(case)
    engine = GhostEngine(model, record_losses, precision="as_model" if case.device == "cpu" else case.precision)
    mask = torch.ones(case.batch, dtype=torch.bool, device=case.device)
    clip, key = FlatClip(CLIP_NORM), RunKey.fresh()
    parameters = sum(value.numel() for value in model.parameters())

    def summed() -> PrivateSum:
        return engine.private_sum(clip, images.squeeze(1), labels, mask)

    sums = [1e3 * _seconds(summed, device=case.device) for _ in range(rounds + 2)][2:]  # the first ones compile
    private, sum_ms, usual = summed(), statistics.median(sums), 0.0
    for kind, count, noise in correlated_noises(bands):
        # One after the other, because the memory of all of them together may not fit; ordinary noise beside each.
        held = begin_in_the_middle(noise, key.at(max(bands), 0), private.values)
        steps, times = itertools.count(max(bands)), dict[IsotropicNoise, list[float]]()

        def release(noise: IsotropicNoise, steps: Iterator[int]) -> object:
            return noise.release(private, noise_multiplier=NOISE_MULTIPLIER, randomness=key.at(next(steps), 0))

        others = itertools.count()
        for turn in range(rounds + 2):
            for each, counter in {IsotropicNoise(): others, noise: steps}.items():
                seconds = _seconds(partial(release, each, counter), device=case.device)
                if turn > 1:
                    times.setdefault(each, []).append(1e3 * seconds)
        usual, noise_ms = (statistics.median(times[each]) for each in (IsotropicNoise(), noise))
        gib = gib_of_one_step(partial(release, noise, steps), device=case.device)
        ratio = (sum_ms + noise_ms) / (sum_ms + usual)
        print(
            f"{case.label}, {kind}, {count} bands: sum {sum_ms:.1f} ms, noise {noise_ms:.1f} ms, ordinary {usual:.1f}, "
            f"step ratio {ratio:.2f}, held {held / GIB:.3f} GiB, on top {gib:.3f} GiB",
            flush=True,
        )
        yield {
            **asdict(case),
            "noise": kind,
            "bands": count,
            "parameters": parameters,
            "sum_ms": sum_ms,
            "noise_ms": noise_ms,
            "ordinary_noise_ms": usual,
            "ratio": ratio,
            "held_gib": held / GIB,
            "gib": gib,
        }
        del noise


def _seconds(step: Callable[[], object], *, device: str) -> float:
    begun = _now(device)
    step()
    return _now(device) - begun


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    given = parse_options(
        __doc__,
        numbers={"type": int, "default": 2**26, "help": "how many numbers of one step"},
        cost={"choices": sorted(NETWORKS), "help": "time a step of this network instead"},
        errors={"action": "store_true", "help": "print the noise of the weights instead"},
        bands={"type": int, "nargs": "*", "help": "with --cost: correlated noise of so many bands, and of its inverse"},
        batch={"type": int, "default": 256, "help": "records of that step"},
    )
    if given.errors:
        save(given, rows=list(errors()))
        return
    if given.cost is not None:
        precision = "float32" if given.device == "cpu" else "bfloat16"
        case = Case(network=given.cost, batch=given.batch, device=given.device, precision=precision)
        save(given, rows=list(correlated_costs(case, given.bands) if given.bands else step_costs(case)))
        return
    found = []
    for row in rows(given.device, given.numbers):
        found.append(row)
        print(row["fault"] or "as it is", "passed" if row["passed"] else "failed", flush=True)
    save(given, rows=found)
    if [row["passed"] for row in found] != [True] + [False] * (len(found) - 1):
        raise SystemExit("the noise is not as it should be, or a planted fault was not found")


if __name__ == "__main__":
    main()
