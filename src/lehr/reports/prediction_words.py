"""What a prediction says, in sentences that a page and a terminal share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lehr.planning.extrapolation import Comparison, Prediction, plan_words
from lehr.planning.scaling_law import Interval
from lehr.reports.rounding import at_most, exactly
from lehr.reports.run_reading import RunRecord, State

BENDS_BELOW = 0.05
SAYS_LITTLE_ABOVE = 0.5
CAVEAT = (
    "The interval is about chance alone: it takes for granted that the line goes on as it began, and that the run is "
    "made as the simulated ones were, on records like theirs."
)
REVEALED = (
    "The simulated runs were made on records of the same name, which were declared to need no protection; this run "
    "protects its records. Where they are the same, its guarantee is worth little: the simulated runs have told about "
    "them what it keeps back."
)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """A prediction beside a run: how it compares, or why it does not yet, and what was otherwise."""

    comparison: Comparison | None
    not_compared_because: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """In three words."""
        if self.comparison is None:
            return "not compared"
        return "inside the interval" if self.comparison.is_inside else "outside the interval"


def reached(prediction: Prediction, record: RunRecord) -> Reached:
    """What became of a prediction; of another plan than the run's it is refused."""
    prediction.refuse_other_plan(record.plan)
    rows = [row for row in record.evaluations if row.on == prediction.evaluated_on]
    warnings = tuple(_warnings(prediction, record.config))
    if record.state is not State.COMPLETED:
        because = f"the run is not at the end of its plan: {record.state.value}"
        return Reached(comparison=None, not_compared_because=because, warnings=warnings)
    if not rows:
        because = f"the run was not evaluated on {prediction.evaluated_on}, as the simulated ones were"
        return Reached(comparison=None, not_compared_because=because, warnings=warnings)
    return Reached(comparison=prediction.compared_with([rows[-1].accuracy]), warnings=warnings)


def predicted(prediction: Prediction) -> str:
    """The prediction itself."""
    batch = f"{prediction.reference.expected_batch_size:,.10g}"
    return (
        f"A run at B = {batch} is predicted to reach {percent(prediction.accuracy)} "
        f"({_confidence(prediction)}: {between(prediction.interval())}), measured on {len(prediction.runs)} simulated "
        "runs that protect nobody."
    )


def sentences(prediction: Prediction) -> Iterator[str]:
    """What the prediction rests on, and what speaks against it."""
    law = prediction.law
    lowest, highest = (f"{100 * end:+.2f}" for end in prediction.slope_interval)
    yield (
        f"Each doubling of the batch changes the accuracy by {100 * law.slope:+.2f} points "
        f"({_confidence(prediction)}: {lowest} to {highest}); single runs stray from the line by "
        f"{100 * law.residual_std:.2f} points."
    )
    if (interval := prediction.interval()).highest - interval.lowest > SAYS_LITTLE_ABOVE:
        yield "So wide an interval says next to nothing: more seeds or more batches narrow it."
    yield from objections(prediction)
    yield CAVEAT


def objections(prediction: Prediction) -> Iterator[str]:
    """What makes the interval too narrow, where it can be told."""
    law = prediction.law
    if prediction.is_beyond_all_or_nothing:
        yield "On its way the line leaves what accuracies can be: it does not hold there, and predicts nothing."
    if law.bend_p_value is not None and law.bend_p_value < BENDS_BELOW:
        yield (
            f"The simulated runs bend away from a line (p = {law.bend_p_value:.2g}): the prediction is likely off by "
            "more than the interval says."
        )
    if prediction.doublings_beyond > _doublings_seen(prediction):
        yield (
            f"The prediction reaches {_times(prediction.doublings_beyond)} beyond the largest simulated batch, farther "
            f"than the {_times(_doublings_seen(prediction))} that were seen."
        )


def facts(prediction: Prediction) -> Iterator[tuple[str, str]]:
    """The numbers behind it."""
    reference, interval = prediction.reference, prediction.interval()
    yield "Predicted", f"{percent(prediction.accuracy)} ({_confidence(prediction)}: {between(interval)})"
    yield "Reference", plan_words(reference)
    promised = f"{at_most(reference.bound().epsilon)} at δ = {exactly(reference.delta)}"
    yield "Its ε on private records", f"{promised}, if there are {reference.records:,}"
    yield "Simulated runs", f"{len(prediction.runs)}, scored on {prediction.evaluated_on}"
    yield "Their cost", f"{prediction.cost:.2g} times the records of one run of the reference"
    yield "Reaches beyond them", _times(prediction.doublings_beyond)


def comparison_sentence(prediction: Prediction, found: Comparison) -> str:
    """What was predicted, what came, and how far apart they are."""
    side = "inside" if found.is_inside else "outside"
    return (
        f"{percent(found.predicted)} was predicted ({_confidence(prediction)}: {between(found.interval)}) and "
        f"{percent(found.outcome)} was reached: {side} the interval, {100 * found.difference:+.2f} points from what "
        "was predicted."
    )


def percent(share: float) -> str:
    """A share with one digit behind the point."""
    return f"{100 * share:.1f} %"


def between(interval: Interval) -> str:
    """Both ends, rounded outwards.

    >>> between(Interval(0.6182, 0.6435))
    '61.8–64.4 %'
    """
    lowest, highest = math.floor(_tenths(interval.lowest)) / 10, math.ceil(_tenths(interval.highest)) / 10
    return f"{lowest:.1f}–{highest:.1f} %"


def _tenths(share: float) -> float:
    """Of a percent; a last bit that no digit shows is not rounded away from."""
    return round(1000 * share, 6)


def _warnings(prediction: Prediction, config: Mapping[str, Any]) -> Iterator[str]:
    if prediction.may_reveal(config):
        yield REVEALED
    if others := prediction.other_settings(config):
        yield f"This run is at another setting than the simulated ones: {'; '.join(others)}."
    yield from objections(prediction)


def _doublings_seen(prediction: Prediction) -> float:
    batches = [run.expected_batch_size for run in prediction.runs]
    return math.log2(max(batches) / min(batches))


def _confidence(prediction: Prediction) -> str:
    return f"{100 * prediction.confidence:.6g} %"


def _times(doublings: float) -> str:
    return f"{doublings:.3g} doubling{'' if doublings == 1 else 's'}"
