"""Whether the noise is what the accountant counts: ``python -m benchmarks.noise [--device cuda] --save FILE``.

Draws numbers as a training step does and tests, for each device and generator: their distribution (Kolmogorov-Smirnov),
their variance, how many lie beyond 3 to 5.5 standard deviations, and the correlation of streams that must be
independent: neighbouring steps, steps 65,536 apart, attempts, purposes, runs, and coordinates beside one another.
A fault planted on purpose (noise cut off at 4.5, half the noise, two steps that share a stream) must be found.

``--cost NETWORK`` times a private step instead, from a batch to a released sum, with noise in floating point and with
discrete noise; the networks are those of ``benchmarks.step``.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from scipy import stats
from torch import Tensor

from benchmarks import parse_options, save
from benchmarks.step import CLIP_NORM, NETWORKS, NOISE_MULTIPLIER, Case, data, model_for, record_losses
from lehr.accounting.events import NOISES
from lehr.gradients.ghost import GhostEngine
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import isotropic_noise
from lehr.privacy.rng import RunKey, StepRandomness

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


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    given = parse_options(
        __doc__,
        numbers={"type": int, "default": 2**26, "help": "how many numbers of one step"},
        cost={"choices": sorted(NETWORKS), "help": "time a step of this network instead"},
        batch={"type": int, "default": 256, "help": "records of that step"},
    )
    if given.cost is not None:
        precision = "float32" if given.device == "cpu" else "bfloat16"
        case = Case(network=given.cost, batch=given.batch, device=given.device, precision=precision)
        save(given, rows=list(step_costs(case)))
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
