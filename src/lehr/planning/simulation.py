"""Simulating a plan by smaller batches, and predicting its accuracy from such runs (Sander et al. 2023).

A step adds a mean over the batch and noise to the weights. With batch and noise multiplier shrunk by the same factor,
that noise is the same and the mean is over fewer records, so the steps go nearly the same way at a fraction of the
cost. The privacy is lost: the noise no longer hides anybody, and ε says so.

>>> reference = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
>>> cheap = simulate(reference, expected_batch_size=128)
>>> cheap.noise_multiplier, cheap.steps, cheap.simulates == reference
(0.09375, 2500, True)

At a constant ratio of noise to batch and a constant number of steps, accuracies lie near a straight line in log2 of the
batch (Figure 4 of the paper), fitted by least squares. The interval covers chance alone: it assumes that the line goes
on as it began, and that the run is made as the simulations were.

>>> reached = {64: (0.70, 0.71), 128: (0.70, 0.69), 256: (0.68, 0.69)}
>>> runs = [SimulatedRun(expected_batch_size=batch, accuracy=accuracy, seed=seed)
...     for batch, accuracies in reached.items() for seed, accuracy in enumerate(accuracies)]
>>> prediction = Prediction(reference=reference, runs=tuple(runs))
>>> round(prediction.accuracy, 3), prediction.doublings_beyond, prediction.compared_with([0.65]).is_inside
(0.645, 4.0, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, date, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
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
    """accuracy = level + slope · (log2 of the batch − center).

    ``residual_std`` is how far single runs lie from it. ``bend_p_value`` is the chance that runs around a straight line
    bend away from it as these do, judged by how much runs of one batch differ; None where that cannot be told.
    """

    center: float
    level: float
    slope: float
    residual_std: float
    spread: float  # of log2 of the batches around the center, as a sum of squares
    num_runs: int
    largest_batch: float
    bend_p_value: float | None

    def at(self, batch: float) -> float:
        """What the line says."""
        return self.level + self.slope * self._from_center(batch)

    def interval(self, batch: float, *, confidence: float, num_runs: int = 1) -> Interval:
        """Where the mean of so many further runs of that batch falls with that confidence.

        Both are in it: that the line itself is known from a few runs only, and that a further run strays from it.
        """
        share = 1 / validate.count(num_runs=num_runs) + 1 / self.num_runs + self._from_center(batch) ** 2 / self.spread
        reach = self._quantile(confidence) * self.residual_std * math.sqrt(share)
        return Interval(self.at(batch) - reach, self.at(batch) + reach)

    def slope_interval(self, *, confidence: float) -> Interval:
        """Where the true slope lies with that confidence."""
        reach = self._quantile(confidence) * self.residual_std / math.sqrt(self.spread)
        return Interval(self.slope - reach, self.slope + reach)

    def doublings_beyond(self, batch: float) -> float:
        """How many times the largest batch that was seen must be doubled to get there; 0 where it need not."""
        return max(0.0, _log2(batch) - math.log2(self.largest_batch))

    def _from_center(self, batch: float) -> float:
        return _log2(batch) - self.center

    def _quantile(self, confidence: float) -> float:
        """Of Student's distribution: the spread of the residuals is itself known from a few runs only."""
        return float(special.stdtrit(self.num_runs - 2, (1 + check_confidence(confidence=confidence)) / 2))


def fit_law(runs: Sequence[tuple[float, float]]) -> Law:
    """The line through runs, each a batch and an accuracy."""
    batches = np.array([_log2(batch) for batch, _ in runs])
    accuracies = np.array([check_accuracy(accuracy=accuracy) for _, accuracy in runs])
    if len(batches) < FEWEST_RUNS or len(np.unique(batches)) < FEWEST_BATCHES:
        allowed = f"{FEWEST_RUNS} or more, of {FEWEST_BATCHES} or more batches: through fewer, any line goes"
        raise InvalidValue("runs", allowed=allowed, given=f"{len(batches)} of {len(np.unique(batches))}")
    center, level = float(batches.mean()), float(accuracies.mean())
    spread = float(np.square(batches - center).sum())
    slope = float((batches - center) @ (accuracies - level)) / spread
    residuals = accuracies - level - slope * (batches - center)
    return Law(
        center=center,
        level=level,
        slope=slope,
        residual_std=math.sqrt(float(residuals @ residuals) / (len(batches) - 2)),
        spread=spread,
        num_runs=len(batches),
        largest_batch=max(batch for batch, _ in runs),
        bend_p_value=_bend_p_value(batches, accuracies, residuals),
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


def _log2(batch: float) -> float:
    return math.log2(validate.positive(batch=batch))


def _bend_p_value(
    batches: NDArray[np.float64], accuracies: NDArray[np.float64], residuals: NDArray[np.float64]
) -> float | None:
    """The test of a parabola against the line, judged by how much runs of one batch differ among themselves.

    What extrapolation suffers from is a steady bend, since accuracies cannot rise for ever: one number, and not every
    way in which the means of the batches may miss a line, which few runs could tell from chance.
    """
    groups = [accuracies[batches == batch] for batch in np.unique(batches)]
    within = len(batches) - len(groups)
    inside = sum(float(np.square(group - group.mean()).sum()) for group in groups)
    if len(groups) < 3 or within < 1 or not inside > 0:
        return None
    straight = np.vander(batches - batches.mean(), 2)
    square = np.square(straight[:, 0])
    bend = square - straight @ np.linalg.lstsq(straight, square, rcond=None)[0]
    explained = float(bend @ residuals) ** 2 / float(bend @ bend)
    return float(special.fdtrc(1, within, explained / (inside / within)))


FORMAT, FORMAT_VERSION = "lehr prediction", 1
AGREES_TO = 1e-6  # numbers that follow from others, computed again on another machine
# What a run is like does not depend on these, or says it at length.
_LEFT_OUT = {
    "data": ("is_known",),
    "model": ("trained", "frozen"),
    "training": ("evaluate_every", "cryptographic_on_gpu"),
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
    """A prediction beside what was reached, by one run or by several on average."""

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
        """Whether the outcome is one of those that were predicted."""
        return self.interval.has(self.outcome)


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a run of the ``reference`` plan is expected to reach, from ``runs`` that simulate it.

    ``setting`` is what the runs were beside their plans, as their configurations have it; empty where it is not known.
    ``confidence`` is that of every interval.
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
        _check_day(self.predicted_on)
        _check_setting(self.setting)
        largest = self.reference.expected_batch_size
        for run in self.runs:
            if not run.expected_batch_size < largest:
                allowed = f"less than the {largest:g} of the plan that is predicted"
                raise InvalidValue("expected_batch_size", allowed=allowed, given=run.expected_batch_size)
        _ = self.law

    @cached_property
    def law(self) -> Law:
        """The line through the runs."""
        return fit_law([(run.expected_batch_size, run.accuracy) for run in self.runs])

    @property
    def accuracy(self) -> float:
        """What is predicted."""
        return _share(self.law.at(self.reference.expected_batch_size))

    @property
    def is_beyond_all_or_nothing(self) -> bool:
        """Whether the line leaves what accuracies can be on its way: then it does not hold there."""
        return self.law.at(self.reference.expected_batch_size) != self.accuracy

    @property
    def slope_interval(self) -> Interval:
        """What a doubling of the batch changes."""
        return self.law.slope_interval(confidence=self.confidence)

    @property
    def doublings_beyond(self) -> float:
        """How far beyond the largest batch that was seen the prediction reaches."""
        return self.law.doublings_beyond(self.reference.expected_batch_size)

    @property
    def cost(self) -> float:
        """The records that all simulated runs drew, over those that one run of the reference draws."""
        return sum(run.expected_batch_size for run in self.runs) / self.reference.expected_batch_size

    def interval(self, *, num_runs: int = 1, batch: float | None = None) -> Interval:
        """Where the mean of so many runs falls: of the reference, or of another batch in its place."""
        at = self.reference.expected_batch_size if batch is None else batch
        lowest, highest = self.law.interval(at, confidence=self.confidence, num_runs=num_runs)
        return Interval(_share(lowest), _share(highest))

    def compared_with(self, outcomes: Sequence[float]) -> Comparison:
        """The prediction beside the accuracies of runs of the reference."""
        reached = [check_accuracy(outcome=outcome) for outcome in outcomes]
        if not reached:
            raise InvalidValue("outcomes", allowed="one or more accuracies", given=outcomes)
        return Comparison(
            predicted=self.accuracy,
            interval=self.interval(num_runs=len(reached)),
            outcome=math.fsum(reached) / len(reached),
            num_runs=len(reached),
        )

    def other_settings(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """What another run's configuration has otherwise than the simulated runs had it, in words."""
        if not self.setting:
            return ("how the simulated runs were made is not known",)
        before, now = _undeclared(self.setting), _undeclared(setting_of(config))
        return tuple(words for name in SECTIONS for words in _differing(before[name], now[name], name))

    def may_reveal(self, config: Mapping[str, Any]) -> bool:
        """Whether another run protects records of the very name that simulations were made on, which protect nobody."""
        simulated, records = self.setting.get("data", {}), config["data"]
        is_private = records.get("declared", PRIVATE) == PRIVATE
        return is_private and bool(records.get("name")) and records.get("name") == simulated.get("name")

    def refuse_other_plan(self, plan: Plan | None) -> None:
        """An error for a run whose steps are not those that were predicted. Records and δ do not change a step."""
        if plan is None or _steps_of(plan) != _steps_of(self.reference):
            given = "none" if plan is None else plan_words(plan)
            raise InvalidValue(
                "prediction", allowed=f"one of the run's plan: {given}", given=plan_words(self.reference)
            )

    def to_json(self) -> dict[str, object]:
        """As a file has it: what was seen, and what follows from it."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "predicted_on": self.predicted_on,
            "library_version": self.library_version,
            "evaluated_on": self.evaluated_on,
            "confidence": self.confidence,
            "reference": self.reference.to_json(),
            "runs": [asdict(run) for run in self.runs],
            "setting": dict(self.setting),
            "follows": self._follows(),
        }

    def _follows(self) -> dict[str, float | None]:
        law, interval, slopes = self.law, self.interval(), self.slope_interval
        return {
            "accuracy": self.accuracy,
            "lowest": interval.lowest,
            "highest": interval.highest,
            "slope_per_doubling": law.slope,
            "slope_lowest": slopes.lowest,
            "slope_highest": slopes.highest,
            "residual_std": law.residual_std,
            "bend_p_value": law.bend_p_value,
            "doublings_beyond": self.doublings_beyond,
        }


def prediction_from_json(shape: object) -> Prediction:
    """The prediction of a JSON form. What is unknown, missing, or does not follow is refused."""
    own = [field.name for field in fields(Prediction)]
    given: dict[str, Any] = strict_json.fields("prediction", shape, ["format", "format_version", *own, "follows"])
    if given["format"] != FORMAT or given["format_version"] != FORMAT_VERSION:
        found = f"{given['format']} {given['format_version']}"
        raise InvalidValue("format", allowed=f"{FORMAT} {FORMAT_VERSION}", given=found)
    read = {
        "reference": Plan.from_json(given["reference"]),
        "runs": strict_json.list_of("runs", given["runs"], _read_run),
    }
    prediction = Prediction(**{**{name: given[name] for name in own}, **read})
    expected = prediction._follows()
    follows = strict_json.fields("follows", given["follows"], tuple(expected))
    for name, value in expected.items():
        if not _agree(value, follows[name]):
            raise InvalidValue(name, allowed=f"{value}, as follows from the runs", given=follows[name])
    return prediction


def setting_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is beside its plan, as its configuration has it: what would make another run of it."""
    return {
        section: {key: value for key, value in config[section].items() if key not in _LEFT_OUT.get(section, ())}
        for section in SECTIONS
    }


def plan_words(plan: Plan) -> str:
    """The numbers of a plan that a step depends on."""
    simulated = "" if plan.simulates is None else ", a simulation"
    batch = f"{plan.expected_batch_size:,.10g}"
    return f"{plan.steps:,} steps of batches of {batch} at noise multiplier {plan.noise_multiplier:.6g}{simulated}"


def _steps_of(plan: Plan) -> list[object]:
    return [getattr(plan, each.name) for each in fields(plan) if each.name not in ("records", "delta")]


def _undeclared(setting: Mapping[str, Any]) -> dict[str, Any]:
    """Without what the records were said to be, which changes no step."""
    return {**setting, "data": {key: value for key, value in setting["data"].items() if key != "declared"}}


def _check_setting(setting: object) -> None:
    if setting == {}:
        return
    for name, section in strict_json.fields("setting", setting, SECTIONS).items():
        if not isinstance(section, Mapping):
            raise InvalidValue(name, allowed="an object", given=section)


def _read_run(shape: object) -> SimulatedRun:
    given: dict[str, Any] = strict_json.fields("run", shape, [field.name for field in fields(SimulatedRun)])
    return SimulatedRun(**given)


def _agree(expected: float | None, given: object) -> bool:
    if expected is None or isinstance(given, bool) or not isinstance(given, int | float):
        return expected is given
    try:
        return math.isclose(expected, given, rel_tol=AGREES_TO, abs_tol=AGREES_TO)
    except OverflowError:  # a whole number beyond every float
        return False


def _differing(before: object, now: object, path: str) -> Iterator[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for name in sorted({*before, *now}):
            yield from _differing(before.get(name), now.get(name), f"{path}: {str(name).replace('_', ' ')}")
    elif before != now:
        yield f"{path} was {_said(before)} in the simulations and is {_said(now)}"


def _said(value: object) -> str:
    return "not stated" if value is None else str(value)


def _share(value: float) -> float:
    """Clip to [0, 1]."""
    return min(1.0, max(0.0, value))


def _check_day(predicted_on: object) -> None:
    try:
        date.fromisoformat(validate.text(predicted_on=predicted_on))
    except ValueError as error:
        raise InvalidValue("predicted_on", allowed="a day such as 2026-01-31", given=predicted_on) from error
