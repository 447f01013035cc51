"""``lehr account``: the ε of a run by every accountant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr import validate
from lehr.cli import answering
from lehr.cli.failing import NO
from lehr.cli.options import (
    ExpectedBatchSize,
    Json,
    NoiseMultiplier,
    PlanFile,
    Records,
    SamplingProbability,
    StepOptions,
    Steps,
    example,
    read_plan,
    refuse,
    required,
)
from lehr.errors import UnsupportedEvent
from lehr.events import Adjacency, Event, Repeated, to_json
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.accounting import Answer, Bound
    from lehr.planning.plan import Plan

EXAMPLE = example(
    "  lehr account --noise-multiplier 1.23 --expected-batch-size 512 --records 60000 \\\n",
    "      --steps 4698 --delta 1e-5\n",
)


def account(
    noise_multiplier: NoiseMultiplier = None,
    expected_batch_size: ExpectedBatchSize = None,
    records: Records = None,
    sampling_probability: SamplingProbability = None,
    steps: Steps = None,
    delta: Annotated[float | None, typer.Option(help="The δ of (ε, δ).")] = None,
    adjacency: Annotated[
        Adjacency | None, typer.Option(help="Which data sets are neighbours; add-or-remove-one unless given.")
    ] = None,
    plan: PlanFile = None,
    json: Json = False,
) -> None:
    """Count the ε of a run by every accountant. An estimate is no guarantee, whatever its number.

    The run is described by its options, or by --plan alone.
    """
    from lehr.accounting import answers, smallest_of

    step = StepOptions(
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        records=records,
        sampling_probability=sampling_probability,
    )
    if plan is not None:
        step.refuse_beside("plan")
        refuse("plan", steps=steps, delta=delta, adjacency=adjacency)
        from_file = read_plan(plan)
        event, delta, adjacency = from_file.event, from_file.delta, from_file.adjacency
    else:
        adjacency = adjacency or Adjacency.ADD_OR_REMOVE_ONE
        event = Repeated(step.event(adjacency=adjacency), validate.count(steps=required(steps=steps)))
        delta = required(delta=delta)
    with answering.working("Counting"):
        found = answers(event, delta=delta, adjacency=adjacency)
    try:
        smallest = smallest_of(found, event=event, delta=delta, adjacency=adjacency)
    except UnsupportedEvent:
        smallest = None
    (_answer_program if json else _answer_person)(event, delta, adjacency, found, smallest)
    if plan is not None and not json and from_file.simulates is not None:
        _say_that_nothing_is_promised(from_file)
    if smallest is None:
        raise typer.Exit(NO)


def _answer_program(
    event: Event, delta: float, adjacency: Adjacency, answers: tuple[Answer, ...], smallest: Bound | None
) -> None:
    answering.as_json(
        {
            "event": to_json(event),
            "delta": delta,
            "adjacency": adjacency.value,
            "epsilon": None if smallest is None else smallest.epsilon,
            "accountant": None if smallest is None else smallest.accountant,
            "answers": [
                {
                    "accountant": answer.accountant,
                    "epsilon": answer.epsilon,
                    "is_estimate": answer.is_estimate,
                    "reason": answer.reason,
                }
                for answer in answers
            ],
        }
    )


def _answer_person(
    event: Event, delta: float, adjacency: Adjacency, answers: tuple[Answer, ...], smallest: Bound | None
) -> None:
    rows = [(answer.accountant, _epsilon(answer), _note(answer, smallest)) for answer in answers]
    answering.listing(f"ε at δ = {exactly(delta)}, {adjacency.value}", ("accountant", "ε", ""), rows)
    answering.line(f"The run: {event}")


def _say_that_nothing_is_promised(plan: Plan) -> None:
    from lehr.planning.simulation import simulation_words

    answering.line(f"Nothing is promised to anybody by this plan: {simulation_words(plan)}")


def _epsilon(answer: Answer) -> str:
    return "–" if answer.epsilon is None else at_most(answer.epsilon)


def _note(answer: Answer, smallest: Bound | None) -> str:
    if answer.epsilon is None:
        return answer.reason
    if answer.is_estimate:
        return "an estimate, not a guarantee"
    is_smallest = smallest is not None and answer.accountant == smallest.accountant
    return "the smallest proven bound" if is_smallest else "a proven bound"
