"""A recommended plan: batch, steps and noise from ε and the number of records alone, with reasons and alternatives.

>>> found = recommend_plan(epsilon=3.0, records=50_000)
>>> found.plan.expected_batch_size, found.plan.steps, found.plan.delta
(6827.0, 500, 1e-05)
>>> print(f"{found.plan.noise_multiplier:.2f}, learning rate {found.learning_rate:g}")
4.36, learning rate 3.84

The rules for batch, steps and learning rate are those of the recipes, which were measured on hold-outs of image data.
Alternatives at the same ε are compared by their signal q·√steps/σ (``lehr.planning.tan``) and by their compute.
Correlated noise is recommended where it clearly pays: at the same ε, SGD with momentum then collects less noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lehr import validate
from lehr.accounting.events import Adjacency
from lehr.config import BANDED_INVERSE, CLIP_NORM, MOMENTUM
from lehr.errors import AccountantFailed, InvalidValue, Unreachable
from lehr.planning.plan import Plan, make_plan
from lehr.planning.tan import TIGHT
from lehr.privacy.bands import (
    Floats,
    band_coefficients,
    inverse_band_coefficients,
    inverse_coefficients,
    relative_error,
)

SHARE = 8192 / 60_000  # of the records, in a batch
STEPS = 500
PASSES = 40  # of a run without a recipe

# The learning rate times the steps, for MNIST's number of records and ε = 3. At one ε, the noise of a step grows with
# the root of the number of steps, so that this product alone decides how much noise the weights collect. The best one
# grows with a power of the signal, ε times the number of records (hold-outs of FashionMNIST and CIFAR-10).
TRAVEL, TRAVEL_POWER = 2200.0, 0.75

LEAST_GAIN = 0.1  # the share of noise that correlated noise must save: such a run is harder to resume and to check
BANDS_TRIED = (2, 4, 8, 16, 32, 64)
INVERSE_BANDS = 2  # with momentum, more are hardly better (docs/methods.md)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternative:
    """Another plan at the same ε, and how it compares with the recommended one."""

    name: str
    plan: Plan
    signal: float  # over that of the recommended plan; more is better
    compute: float  # records that are looked at, over those of the recommended plan
    learning_rate: float

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        numbers = ("expected_batch_size", "steps", "noise_multiplier")
        own = {name: getattr(self, name) for name in ("name", "signal", "compute", "learning_rate")}
        return {**own, **{name: getattr(self.plan, name) for name in numbers}}


@dataclass(frozen=True, kw_only=True, slots=True)
class Recommendation:
    """A plan, a learning rate to start from, why, and what else could be done at the same ε."""

    plan: Plan
    epsilon: float
    learning_rate: float  # for clip norm CLIP_NORM and momentum MOMENTUM
    reasons: Mapping[str, str]  # of each number that was chosen
    alternatives: tuple[Alternative, ...]

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "plan": self.plan.to_json(),
            "learning_rate": self.learning_rate,
            "clip_norm": CLIP_NORM,
            "momentum": MOMENTUM,
            "reasons": dict(self.reasons),
            "alternatives": [each.to_json() for each in self.alternatives],
        }


def recommend_plan(
    *,
    epsilon: float,
    records: int,
    delta: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE,
    noise_multiplier: float | None = None,
    steps: int | None = None,
    expected_batch_size: float | None = None,
) -> Recommendation:
    """Choose what is not given of noise, steps and batch, so that the run stays within ``epsilon``.

    All numbers are public, so this costs no privacy. Of the three, at most one may be given; ``make_plan`` takes two.
    """
    validate.positive(epsilon=epsilon)
    given = {"noise_multiplier": noise_multiplier, "steps": steps, "expected_batch_size": expected_batch_size}
    fixed = {name: value for name, value in given.items() if value is not None}
    if len(fixed) > 1:
        allowed = "at most one of noise_multiplier, steps and expected_batch_size; make_plan takes two of them"
        raise InvalidValue("the setting", allowed=allowed, given=", ".join(fixed))
    batch = recommended_batch_size(records) if expected_batch_size is None else expected_batch_size
    plan = make_plan(
        epsilon=epsilon,
        records=records,
        delta=delta,
        adjacency=adjacency,
        noise_multiplier=noise_multiplier,
        expected_batch_size=batch,
        steps=recommended_steps(records, batch) if steps is None and noise_multiplier is None else steps,
    )
    alternatives = tuple(_alternatives(plan, epsilon))
    learning_rate = recommended_learning_rate(epsilon=epsilon, records=records, steps=plan.steps)
    reasons = dict(_reasons(plan, fixed, alternatives))
    if adjacency is Adjacency.ADD_OR_REMOVE_ONE and noise_multiplier is None:
        banded, noise = _with_bands(plan, epsilon)
        reasons["bands"] = _bands_reason(banded, noise)
        if 1 - noise >= LEAST_GAIN:
            first, *others = (replace(each, signal=each.signal * noise) for each in alternatives)
            best = Alternative(name=first.name, plan=banded, signal=1.0, compute=1.0, learning_rate=learning_rate)
            plan, alternatives = banded, (best, replace(first, name="independent noise"), *others)
    return Recommendation(
        plan=plan,
        epsilon=epsilon,
        learning_rate=learning_rate,
        reasons=reasons,
        alternatives=alternatives,
    )


def recommended_batch_size(records: int) -> int:
    """A fixed share of the records."""
    return max(1, round(SHARE * validate.count(records=records)))


def recommended_steps(records: int, expected_batch_size: float) -> int:
    """The steps of the recipes; with a smaller batch, as many passes over the data."""
    ratio = recommended_batch_size(records) / validate.positive(expected_batch_size=expected_batch_size)
    return max(STEPS, round(STEPS * ratio))


def recommended_learning_rate(*, epsilon: float, records: int, steps: int, travel: float = TRAVEL) -> float:
    """A learning rate for SGD with clip norm 0.1 and momentum 0.9, in three digits."""
    return float(f"{travel * signal_of(epsilon, records) ** TRAVEL_POWER / steps:.3g}")


def signal_of(epsilon: float, records: int) -> float:
    """ε times the number of records, over that of MNIST at ε = 3: how little noise a step has."""
    return epsilon * records / (3 * 60_000)


def usual_batch_size(records: int) -> int:
    """The batch of a run without a recipe."""
    return min(records, round(4 * math.sqrt(records)))


def usual_steps(records: int, expected_batch_size: float) -> int:
    """The steps of a run without a recipe: so many passes over the data."""
    return max(1, round(PASSES * records / validate.positive(expected_batch_size=expected_batch_size)))


def _with_bands(plan: Plan, epsilon: float) -> tuple[Plan, float]:
    """The best of some plans with correlated noise at the same ε, and the noise of its weights over the plan's own.

    Which number of bands is best is estimated by the central limit of the cost of cycles (Dong et al. 2019), and
    counted exactly for that one.
    """
    inverse = _calibrate(plan, epsilon, bands=INVERSE_BANDS, correlation=BANDED_INVERSE)
    column = _inverse_column(inverse)
    found = [(inverse, inverse.noise_multiplier * relative_error(column, momentum=MOMENTUM))]
    estimates = {
        bands: relative_error(_column(bands, plan.steps), momentum=MOMENTUM) * _sigma(plan, bands, inverse)
        for bands in BANDS_TRIED
        if bands <= plan.steps and bands * plan.expected_batch_size <= plan.records
    }
    if estimates:
        bands = min(estimates, key=lambda each: estimates[each])
        banded = _calibrate(plan, epsilon, bands=bands)
        error = relative_error(_column(bands, plan.steps), momentum=MOMENTUM)
        found.append((banded, banded.noise_multiplier * error))
    best, noise = min(found, key=lambda each: each[1])
    return best, noise / plan.noise_multiplier


def _column(bands: int, steps: int) -> Floats:
    return inverse_coefficients(band_coefficients(bands=bands, steps=steps, momentum=MOMENTUM), steps)


def _inverse_column(plan: Plan) -> Floats:
    column = np.zeros(plan.steps)
    found = inverse_band_coefficients(bands=plan.bands, steps=plan.steps, num_groups=plan.num_groups, momentum=MOMENTUM)
    column[: len(found)] = found
    return column


def _sigma(plan: Plan, bands: int, single: Plan) -> float:
    """About the noise multiplier of so many bands, from that of a plan with a single Gaussian mechanism."""
    rate = bands * plan.sampling_probability
    cycles = math.ceil(plan.steps / bands)
    return 1 / math.sqrt(math.log1p(1 / (single.noise_multiplier * rate) ** 2 / cycles))


def _bands_reason(banded: Plan, noise: float) -> str:
    which = f"{banded.bands} bands{' of the inverse matrix' if banded.correlation == BANDED_INVERSE else ''}"
    share = f"{abs(1 - noise):.0%} {'less' if noise < 1 else 'more'} noise in the weights at the same ε"
    if 1 - noise >= LEAST_GAIN:
        return f"{which}: {share} (momentum {MOMENTUM:g}); the run is charged as a whole and resumed only bit for bit"
    return f"none: {which}, the best tried, have {share} (momentum {MOMENTUM:g})"


def _alternatives(plan: Plan, epsilon: float) -> Iterator[Alternative]:
    """The plan itself, other batches and steps, and what a run without a recipe does; those out of reach are absent."""
    batch, steps, records = plan.expected_batch_size, plan.steps, plan.records
    usual = usual_batch_size(records)
    found = {
        "recommended": (batch, steps),
        "a quarter of the batch": (batch / 4, steps),
        "half the batch": (batch / 2, steps),
        "twice the batch": (2 * batch, steps),
        "half the steps": (batch, steps // 2),
        "twice the steps": (batch, 2 * steps),
        f"4·√records, {PASSES} epochs": (usual, usual_steps(records, usual)),
    }
    own, seen = _signal(plan), set[tuple[float, int]]()
    for name, (size, count) in found.items():
        pair = max(1.0, float(round(size))) if size != batch else batch, max(1, count)
        if pair in seen or pair[0] > records:
            continue
        seen.add(pair)
        try:
            each = plan if pair == (batch, steps) else _calibrate(plan, epsilon, batch=pair[0], steps=pair[1])
        except (Unreachable, AccountantFailed):
            continue
        yield Alternative(
            name=name,
            plan=each,
            signal=_signal(each) / own,
            compute=each.expected_batch_size * each.steps / (batch * steps),
            learning_rate=recommended_learning_rate(epsilon=epsilon, records=records, steps=each.steps),
        )


def _calibrate(
    plan: Plan, epsilon: float, *, batch: float | None = None, steps: int | None = None, **bands: Any
) -> Plan:
    return make_plan(
        epsilon=epsilon,
        records=plan.records,
        delta=plan.delta,
        adjacency=plan.adjacency,
        expected_batch_size=plan.expected_batch_size if batch is None else batch,
        steps=plan.steps if steps is None else steps,
        accountant=TIGHT if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE else None,  # faster than all of them
        **bands,
    )


def _signal(plan: Plan) -> float:
    return plan.sampling_probability * math.sqrt(plan.steps) / plan.noise_multiplier


def _reasons(plan: Plan, fixed: dict[str, float], alternatives: tuple[Alternative, ...]) -> Iterator[tuple[str, str]]:
    others = {each.name: each for each in alternatives}
    if "expected_batch_size" not in fixed:
        compared = [
            f"{name} {'adds' if others[name].signal > 1 else 'loses'} {abs(others[name].signal - 1):.1%} of the signal"
            for name in ("half the batch", "twice the batch")
            if name in others
        ]
        share = f"{plan.sampling_probability:.1%} of the records, the share that the recipes use"
        yield "batch", "; ".join([share, *compared])
    if "noise_multiplier" in fixed:
        yield "steps", "the largest number that this ε allows with that noise"
        return
    if "steps" not in fixed:
        twice = others.get("twice the steps")
        more = "" if twice is None else f"; twice the steps adds {twice.signal - 1:.1%} of the signal"
        passes = "" if plan.steps == STEPS else "as many passes over the data "
        yield "steps", f"{passes}as in the recipe for networks of your own{more}"
    yield "noise", "the least that keeps the whole run within ε"
