"""Simulating a plan by smaller batches, and predicting its accuracy from such runs (Sander et al. 2023).

A step adds a mean over the batch and noise to the weights. With batch and noise multiplier shrunk by the same factor,
that noise is the same and the mean is over fewer records, so the steps go nearly the same way at a fraction of the
cost. The privacy is lost: the noise no longer hides anybody, and ε says so.

>>> reference = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
>>> cheap = simulate(reference, expected_batch_size=128)
>>> cheap.noise_multiplier, cheap.steps, cheap.simulates == reference
(0.09375, 2500, True)

At a constant ratio of noise to batch, the noise of a step is the same for every batch size B. What differs is the
sampling error of the mean gradient, whose variance is proportional to 1/B. To first order the accuracy is therefore
a − b/B, fitted by least squares. (The paper draws a line in the logarithm of B. It keeps rising, while accuracies level
off: docs/tan.md compares both.) The interval covers chance alone: it assumes that the law holds, and that the run is
made as the simulations were.

>>> reached = {64: (0.65, 0.66), 128: (0.67, 0.68), 256: (0.68, 0.69)}
>>> runs = [SimulatedRun(expected_batch_size=batch, accuracy=accuracy, seed=seed)
...     for batch, accuracies in reached.items() for seed, accuracy in enumerate(accuracies)]
>>> prediction = Prediction(reference=reference, runs=tuple(runs))
>>> round(prediction.accuracy, 3), prediction.compared_with([0.70]).is_inside
(0.694, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import special

import lehr
from lehr import validate
from lehr.accounting.events import NOTHING, Adjacency
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.plan import PRIVATE, SECTIONS, Plan


def simulate(plan: Plan, *, expected_batch_size: float) -> Plan:
    """The plan with a smaller batch, and with the same ratio of noise to batch and the same steps.

    It is for records that need no protection: a run of it is labelled a simulation and is never certified.
    """
    check_can_be_simulated(plan)
    batch = validate.positive(expected_batch_size=expected_batch_size)
    if not batch < plan.expected_batch_size:
        allowed = f"less than the {plan.expected_batch_size:g} of the plan that is simulated"
        raise InvalidValue("expected_batch_size", allowed=allowed, given=expected_batch_size)
    noise_multiplier = plan.noise_multiplier * batch / plan.expected_batch_size
    return replace(plan, expected_batch_size=batch, noise_multiplier=noise_multiplier, simulates=plan)


def check_can_be_simulated(plan: Plan) -> None:
    """The law is about the noise on sums of gradients: a plan that does more to the records is not simulated by it."""
    if plan.simulates is not None:
        raise InvalidValue("plan", allowed="one that is no simulation itself", given="a simulation")
    if plan.noise_multiplier == 0:
        raise InvalidValue("noise_multiplier", allowed="a number > 0 in a plan that is simulated", given=0)
    if plan.asked != NOTHING or plan.limit is not None or plan.stops_at_accepted is not None:
        allowed = "of steps that are all taken and ask the records for nothing else"
        raise InvalidValue("plan", allowed=allowed, given="one whose method asks, stops or pays as it goes")
    if plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
        raise InvalidValue("plan", allowed="one with Poisson sampling", given=plan.adjacency.value)


def simulation_words(plan: Plan) -> str:
    """What a simulation is, for everywhere that it is shown; only of a plan that is one."""
    assert plan.simulates is not None
    large, small = plan.simulates, plan
    return (
        f"it is a simulation of batches of {large.expected_batch_size:,.10g} at noise multiplier "
        f"{large.noise_multiplier:.6g} by batches of {small.expected_batch_size:,.10g} at {small.noise_multiplier:.6g}"
    )


# The law.

FEWEST_RUNS, FEWEST_BATCHES = 3, 2
LARGEST_CONFIDENCE = 0.999_999  # beyond it, quantiles are far out in tails that no handful of runs knows


class Interval(NamedTuple):
    """Everything between two numbers, both included."""

    lowest: float
    highest: float

    def has(self, value: float) -> bool:
        """Whether the value is between them."""
        return self.lowest <= value <= self.highest


@dataclass(frozen=True, kw_only=True, slots=True)
class Law:
    """accuracy = limit + coefficient / batch.

    ``residual_std`` is the standard deviation of single runs around it. ``bend_p_value`` is the p-value of a test for a
    parabola in 1 / batch against this law, by the differences among runs of one batch; None without such runs.
    """

    limit: float
    coefficient: float
    residual_std: float
    mean_inverse: float  # of 1 / batch over the runs
    spread: float  # of 1 / batch around its mean, as a sum of squares
    num_runs: int
    bend_p_value: float | None

    def at(self, batch: float) -> float:
        """The accuracy by the law."""
        return self.limit + self.coefficient * _inverse(batch)

    def interval(self, batch: float, *, confidence: float, num_runs: int = 1) -> Interval:
        """Where the mean of ``num_runs`` further runs of that batch falls with that confidence.

        It covers the errors of the fitted law and of the further runs, by Student's distribution: the standard
        deviation is itself estimated from few runs.
        """
        share = 1 / validate.count(num_runs=num_runs) + 1 / self.num_runs
        share += (_inverse(batch) - self.mean_inverse) ** 2 / self.spread
        quantile = float(special.stdtrit(self.num_runs - 2, (1 + check_confidence(confidence=confidence)) / 2))
        reach = quantile * self.residual_std * math.sqrt(share)
        return Interval(self.at(batch) - reach, self.at(batch) + reach)


def fit_law(runs: Sequence[tuple[float, float]]) -> Law:
    """The law of runs, each a batch and an accuracy, by least squares."""
    inverses = np.array([_inverse(batch) for batch, _ in runs])
    accuracies = np.array([check_accuracy(accuracy=accuracy) for _, accuracy in runs])
    groups = [accuracies[inverses == inverse] for inverse in np.unique(inverses)]
    if len(inverses) < FEWEST_RUNS or len(groups) < FEWEST_BATCHES:
        allowed = f"{FEWEST_RUNS} or more, of {FEWEST_BATCHES} or more batches: fewer fit any law"
        raise InvalidValue("runs", allowed=allowed, given=f"{len(inverses)} of {len(groups)}")
    mean_inverse, level = float(inverses.mean()), float(accuracies.mean())
    away = inverses - mean_inverse
    spread = float(away @ away)
    coefficient = float(away @ (accuracies - level)) / spread
    residuals = accuracies - level - coefficient * away
    # The test is for a parabola and not for every way in which the means of the batches may miss the law: few runs
    # could not tell the others from chance.
    bend_p_value, within = None, len(inverses) - len(groups)
    inside = sum(float(np.square(group - group.mean()).sum()) for group in groups)
    if len(groups) >= 3 and within >= 1 and inside > 0:
        scaled = away / np.abs(away).max()
        straight = np.vander(scaled, 2)
        bend = scaled**2 - straight @ np.linalg.lstsq(straight, scaled**2, rcond=None)[0]
        explained = float(bend @ residuals) ** 2 / float(bend @ bend)
        bend_p_value = float(special.fdtrc(1, within, explained / (inside / within)))
    return Law(
        limit=level - coefficient * mean_inverse,
        coefficient=coefficient,
        residual_std=math.sqrt(float(residuals @ residuals) / (len(inverses) - 2)),
        mean_inverse=mean_inverse,
        spread=spread,
        num_runs=len(inverses),
        bend_p_value=bend_p_value,
    )


def check_confidence(**named: object) -> float:
    """The confidence of an interval: a number above zero, and not so near to one that no interval is meant."""
    [(name, value)] = named.items()
    if not (confidence := validate.delta(**named)) <= LARGEST_CONFIDENCE:
        raise InvalidValue(name, allowed=f"at most {LARGEST_CONFIDENCE}", given=value)
    return confidence


def check_accuracy(**named: object) -> float:
    """A share of records: a number in [0, 1]."""
    [(name, value)] = named.items()
    if not (accuracy := validate.non_negative(**named)) <= 1:
        raise InvalidValue(name, allowed="a number in [0, 1]", given=value)
    return accuracy


def _inverse(batch: float) -> float:
    return 1 / validate.positive(batch=batch)


# The prediction, and its file.

FORMAT, FORMAT_VERSION = "lehr prediction", 2  # version 1 had a line in log2 of the batch
# What a run is like does not depend on these, or says it at length.
_LEFT_OUT = {
    "data": ("is_known",),
    "model": ("trained", "frozen"),
    "training": ("evaluate_every",),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedRun:
    """A run by smaller batches, and what it reached; ``seed`` is that of its first weights."""

    expected_batch_size: float
    accuracy: float
    seed: int = 0

    def __post_init__(self) -> None:
        batch = validate.positive(expected_batch_size=self.expected_batch_size)
        object.__setattr__(self, "expected_batch_size", batch)
        object.__setattr__(self, "accuracy", check_accuracy(accuracy=self.accuracy))
        validate.count(minimum=0, seed=self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A prediction and the outcome of one run, or the mean of several."""

    predicted: float
    interval: Interval
    outcome: float
    num_runs: int

    @property
    def difference(self) -> float:
        """By how much more was reached than predicted."""
        return self.outcome - self.predicted

    @property
    def is_inside(self) -> bool:
        """Whether the outcome is within the interval."""
        return self.interval.has(self.outcome)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run of the ``reference`` plan is expected to reach, from ``runs`` that simulate it.

    ``setting`` is how the runs were made apart from their plans, as their configurations have it; empty where it is not
    known. ``confidence`` is that of every interval.
    """

    reference: Plan
    runs: tuple[SimulatedRun, ...]
    confidence: float = 0.95
    evaluated_on: str = "test"
    setting: Mapping[str, Any] = field(default_factory=dict)
    predicted_on: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    library_version: str = lehr.__version__

    def __post_init__(self) -> None:
        check_can_be_simulated(self.reference)
        check_confidence(confidence=self.confidence)
        for name in ("evaluated_on", "library_version"):
            validate.text(**{name: getattr(self, name)})
        try:
            date.fromisoformat(validate.text(predicted_on=self.predicted_on))
        except ValueError as error:
            raise InvalidValue("predicted_on", allowed="a day such as 2026-01-31", given=self.predicted_on) from error
        if self.setting != {}:
            for name, section in strict_json.fields("setting", self.setting, SECTIONS).items():
                strict_json.check_object(name, section)
        largest = self.reference.expected_batch_size
        for run in self.runs:
            if not run.expected_batch_size < largest:
                allowed = f"less than the {largest:g} of the plan that is predicted"
                raise InvalidValue("expected_batch_size", allowed=allowed, given=run.expected_batch_size)
        _ = self.law

    @cached_property
    def law(self) -> Law:
        """The law that the runs follow."""
        return fit_law([(run.expected_batch_size, run.accuracy) for run in self.runs])

    @property
    def accuracy(self) -> float:
        """What is predicted."""
        return _clipped(self.law.at(self.reference.expected_batch_size))

    @property
    def is_beyond_all_or_nothing(self) -> bool:
        """Whether the law gives an accuracy outside [0, 1]: then it does not hold there."""
        return self.law.at(self.reference.expected_batch_size) != self.accuracy

    @property
    def cost(self) -> float:
        """The records that all simulated runs drew, over those that one run of the reference draws."""
        return sum(run.expected_batch_size for run in self.runs) / self.reference.expected_batch_size

    def interval(self, *, num_runs: int = 1, batch: float | None = None) -> Interval:
        """Where the mean of so many runs falls: of the reference, or of another batch in its place."""
        at = self.reference.expected_batch_size if batch is None else batch
        return Interval(*map(_clipped, self.law.interval(at, confidence=self.confidence, num_runs=num_runs)))

    def compared_with(self, outcomes: Sequence[float]) -> Comparison:
        """The prediction and the accuracies of runs of the reference."""
        reached = [check_accuracy(outcome=outcome) for outcome in outcomes]
        if not reached:
            raise InvalidValue("outcomes", allowed="one or more accuracies", given=outcomes)
        interval, mean = self.interval(num_runs=len(reached)), math.fsum(reached) / len(reached)
        return Comparison(predicted=self.accuracy, interval=interval, outcome=mean, num_runs=len(reached))

    def other_settings(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The settings of another run's configuration that differ from those of the simulated runs, in words."""
        if not self.setting:
            return ("how the simulated runs were made is not known",)
        now = setting_of(config)
        return tuple(words for name in SECTIONS for words in _differing(self.setting[name], now[name], name))

    def may_reveal(self, config: Mapping[str, Any]) -> bool:
        """Whether another run protects records of the very name that simulations were made on, which protect nobody."""
        simulated, records = self.setting.get("data", {}), config["data"]
        is_private = records.get("declared", PRIVATE) == PRIVATE
        return is_private and bool(records.get("name")) and records.get("name") == simulated.get("name")

    def refuse_other_plan(self, plan: Plan | None) -> None:
        """An error for a run whose steps are not those that were predicted. Records and δ do not change a step."""
        reference, keys = self.reference, [each.name for each in fields(Plan) if each.name not in ("records", "delta")]
        if plan is None or any(getattr(plan, key) != getattr(reference, key) for key in keys):
            allowed = f"one of the run's plan: {'none' if plan is None else plan_words(plan)}"
            raise InvalidValue("prediction", allowed=allowed, given=plan_words(reference))

    def to_json(self) -> dict[str, object]:
        """As a file has it: what was seen, and what follows from it."""
        interval = self.interval()
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            **{each.name: getattr(self, each.name) for each in fields(self)},
            "reference": self.reference.to_json(),
            "runs": [asdict(run) for run in self.runs],
            "setting": dict(self.setting),
            "follows": {
                "accuracy": self.accuracy,
                "lowest": interval.lowest,
                "highest": interval.highest,
                "limit": self.law.limit,
                "coefficient": self.law.coefficient,
                "residual_std": self.law.residual_std,
                "bend_p_value": self.law.bend_p_value,
            },
        }


def prediction_from_json(shape: object) -> Prediction:
    """The prediction of a JSON form. What is unknown or missing is refused; what follows is computed again."""
    own = [each.name for each in fields(Prediction)]
    given: dict[str, Any] = strict_json.fields("prediction", shape, ["format", "format_version", *own, "follows"])
    if (given["format"], given["format_version"]) != (FORMAT, FORMAT_VERSION):
        found = f"{given['format']} {given['format_version']}"
        raise InvalidValue("format", allowed=f"{FORMAT} {FORMAT_VERSION}", given=found)
    read = {
        "reference": Plan.from_json(given["reference"]),
        "runs": strict_json.list_of("runs", given["runs"], _read_run),
    }
    return Prediction(**{**{name: given[name] for name in own}, **read})


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """How a run is made apart from its plan, as its configuration has it."""
    return {
        section: {key: value for key, value in config[section].items() if key not in _LEFT_OUT.get(section, ())}
        for section in SECTIONS
    }


def plan_words(plan: Plan) -> str:
    """The numbers of a plan that a step depends on."""
    simulated = "" if plan.simulates is None else ", a simulation"
    batch = f"{plan.expected_batch_size:,.10g}"
    return f"{plan.steps:,} steps of batches of {batch} at noise multiplier {plan.noise_multiplier:.6g}{simulated}"


def _read_run(shape: object) -> SimulatedRun:
    given: dict[str, Any] = strict_json.fields("run", shape, [each.name for each in fields(SimulatedRun)])
    return SimulatedRun(**given)


def _differing(before: object, now: object, path: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        # What the records are declared to be changes no step.
        for name in sorted({*before, *now} - ({"declared"} if path == "data" else set())):
            yield from _differing(before.get(name), now.get(name), f"{path}: {str(name).replace('_', ' ')}")
    elif before != now:
        was, is_now = ("not stated" if value is None else value for value in (before, now))
        yield f"{path} was {was} in the simulations and is {is_now}"


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))
