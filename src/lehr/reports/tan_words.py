"""What the total amount of noise says about a plan, in words and in tables, for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lehr.planning.outlook import Outlook
from lehr.planning.proposals import MoreData, Proposal, best_for_its_cost, cheapest_nearly_as_good
from lehr.planning.tan import AN_ESTIMATE, FAIR_FROM, Standing
from lehr.reports.rounding import at_most, rounded_up

LITTLE = 0.05  # a gain of signal below this is called little


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with a title, headings, rows, and what the reader should know about it."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    own: int | None = None  # which row is the plan itself


def facts(standing: Standing) -> Mapping[str, str]:
    """The numbers of a plan, by name."""
    total = standing.total
    return {
        "η of a step": f"{total.eta_step:.4g}",
        "η of the run": f"{total.eta:.4g}",
        "total noise, 1/η": f"{total.total_noise:.4g}",
        "ε, tight": f"{at_most(standing.epsilon)}, by {standing.accountant}; this one decides",
        "ε from η alone": f"{standing.epsilon_estimate:.4g}, {AN_ESTIMATE}; {_off(standing.estimate_off)}",
        "ε by rdp-balle20": f"{at_most(standing.epsilon_balle20)}, as in the paper; {_off(standing.balle20_off)}",
        "least ε at this η": f"{at_most(standing.epsilon_limit)}, with full batches and much noise",
        "privacy wall": _wall(standing),
        "signal q·√steps/σ": f"{total.signal:.4g}, {standing.share_of_ceiling:.1%} of the {standing.ceiling:.4g} that "
        "this ε allows",
    }


def sentences(outlook: Outlook) -> Iterator[str]:
    """The same for a reader: is the estimate fair, where is the wall, what is worth trying."""
    yield _fairness(outlook.standing)
    yield _standing_at_the_wall(outlook.standing)
    yield _dearer(outlook)
    yield from _cheaper(outlook)
    yield from _with_more_data(outlook)


def tables(outlook: Outlook) -> tuple[Table, ...]:
    """The proposals. A table without rows is left out."""
    best, nearly = best_for_its_cost(outlook.other_batches), cheapest_nearly_as_good(outlook.other_batches)
    remarks = {id(best): "most for its cost", id(nearly): "nearly as good"}
    batches = Table(
        title="Other batches, same steps, same ε",
        headings=("batch", "noise", "ε ≤", "signal", "gain", "cost", ""),
        rows=tuple(_batch_row(row, remarks.get(id(row), "")) for row in outlook.other_batches),
        own=next((place for place, row in enumerate(outlook.other_batches) if row.is_plan), None),
        note="The cost is the number of records looked at, batch times steps. Behind the wall, ε is more than a "
        "tenth above the least that the same η can have.",
    )
    steps = Table(
        title="Other steps at nearly the same η, same ε",
        headings=("batch", "steps", "noise", "ε ≤", "gain", "cost", "learning rate"),
        rows=tuple(_step_row(row) for row in outlook.other_steps),
        note="The learning rate is that of the plan times the factor, one over the steps. What fewer steps do to the "
        "accuracy, only a run or a simulation of it can tell.",
    )
    data = Table(
        title="Twice the records, half the δ",
        headings=("kept", "batch", "noise", "ε ≤", "from η", "cost"),
        rows=tuple(_data_row(row) for row in outlook.twice_the_data),
        note="Twice the batch on twice the records keeps η, and costs a little more ε only because δ is halved. What η "
        f"alone says is {AN_ESTIMATE}.",
    )
    return tuple(table for table in (batches, steps, data) if table.rows)


def noise(value: float) -> str:
    """A noise multiplier in five digits, rounded up: with it, too, the ε beside it holds."""
    return f"{rounded_up(value, digits=5):.5g}"


def _batch_row(row: Proposal, remark: str) -> tuple[str, ...]:
    remarks = ("your plan" if row.is_plan else remark, "behind the wall" if row.is_behind_wall else "")
    return (
        _batch(row.expected_batch_size),
        noise(row.noise_multiplier),
        at_most(row.epsilon),
        f"{row.signal:.3f}" if row.signal >= 0.1 else f"{row.signal:.3g}",
        "" if row.is_plan else f"{row.signal_gain:+.1%}",
        f"× {row.cost_factor:.3g}",
        ", ".join(filter(None, remarks)),
    )


def _step_row(row: Proposal) -> tuple[str, ...]:
    return (
        _batch(row.expected_batch_size),
        f"{row.steps:,}",
        noise(row.noise_multiplier),
        at_most(row.epsilon),
        f"{row.signal_gain:+.1%}",
        f"× {row.cost_factor:.3g}",
        f"× {row.learning_rate_factor:.4g}",
    )


def _data_row(row: MoreData) -> tuple[str, ...]:
    return (
        row.keeps,
        _batch(row.expected_batch_size),
        noise(row.noise_multiplier),
        at_most(row.epsilon),
        f"{row.epsilon_estimate:.4g}",
        f"× {row.cost_factor:.3g}",
    )


def _batch(size: float) -> str:
    return f"{size:,.10g}"


def _off(share: float) -> str:
    return f"{abs(share):.1%} {'above' if share >= 0 else 'below'} the tight ε"


def _wall(standing: Standing) -> str:
    if standing.wall is None:
        return "none found at this η and these steps"
    side = "clear of it" if standing.is_clear_of_wall else "behind it"
    return f"below a noise multiplier of {standing.wall:.3g}; the plan is {side}"


def _fairness(standing: Standing) -> str:
    sigma = noise(standing.noise_multiplier)
    numbers = (
        f"η alone says ε ≈ {standing.epsilon_estimate:.4g}, {AN_ESTIMATE}; the tight ε is {at_most(standing.epsilon)}."
    )
    if standing.is_estimate_fair:
        return f"With a noise multiplier of {sigma}, ε depends on little else than η. {numbers}"
    return f"A noise multiplier of {sigma} is below {FAIR_FROM:g}, where ε no longer follows from η. {numbers}"


def _standing_at_the_wall(standing: Standing) -> str:
    paid = (
        f"it pays {standing.above_limit:.1%} above the least ε that its η can have, {at_most(standing.epsilon_limit)}"
    )
    if standing.wall is None:
        return f"No privacy wall is found at this η and these steps; for the plan, {paid}."
    begins = (
        f"At this η and these steps the privacy wall begins below a noise multiplier of {standing.wall:.3g}, where ε "
        f"is {standing.tolerance:.0%} above that of much larger noise."
    )
    side = "stands clear of it" if standing.is_clear_of_wall else "stands behind it"
    return f"{begins} The plan {side}: {paid}."


def _dearer(outlook: Outlook) -> str:
    standing, best = outlook.standing, best_for_its_cost(outlook.other_batches)
    reached = f"The plan has {standing.share_of_ceiling:.1%} of the largest signal that this ε allows"
    if best is None:
        return f"{reached}; a larger batch brings no more."
    offer = (
        f"a batch of {_batch(best.expected_batch_size)} with a noise multiplier of {noise(best.noise_multiplier)} has "
        f"{best.signal_gain:.1%} more at {best.cost_factor:.3g} times the cost"
    )
    if best.signal_gain < LITTLE:
        return f"{reached}, so that larger batches gain little: {offer}."
    return f"{reached}. The most signal for its cost: {offer}."


def _cheaper(outlook: Outlook) -> Iterator[str]:
    batch = cheapest_nearly_as_good(outlook.other_batches)
    if batch is not None:
        yield (
            f"Cheaper, and nearly as good: a batch of {_batch(batch.expected_batch_size)} with a noise multiplier of "
            f"{noise(batch.noise_multiplier)} loses {-batch.signal_gain:.1%} of the signal at {batch.cost_factor:.3g} "
            "times the cost."
        )
    fewer = [row for row in outlook.other_steps if row.cost_factor < 1]
    if fewer:
        yield _fewer_steps(fewer[-1])


def _fewer_steps(row: Proposal) -> str:
    lost = f"loses {-row.signal_gain:.1%} of the signal" if row.signal_gain < 0 else "loses no signal"
    return (
        f"{row.steps:,} step{'s' * (row.steps > 1)} with a batch of {_batch(row.expected_batch_size)}, a noise "
        f"multiplier of {noise(row.noise_multiplier)} and {row.learning_rate_factor:.3g} times the learning rate cost "
        f"{row.cost_factor:.3g} times as much. This {lost}; whether so few steps are enough, a simulation can tell."
    )


def _with_more_data(outlook: Outlook) -> Iterator[str]:
    rows: Sequence[MoreData] = outlook.twice_the_data
    if rows:
        yield (
            f"Twice the records with the same batch, noise and steps would cost ε = {at_most(rows[0].epsilon)} at half "
            "the δ."
        )
