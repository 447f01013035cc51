"""``lehr account``: the ε of a run by every accountant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.failing import NO
from lehr.cli.options import (
    ExpectedBatchSize,
    Json,
    NoiseMultiplier,
    PlanFile,
    Records,
    SamplingProbability,
    Steps,
    read_plan,
    refuse,
    required,
    step_event,
)
from lehr.events import Adjacency, Event, Repeated, to_json
from lehr.reports.rounding import at_most

if TYPE_CHECKING:
    from lehr.accounting import Answer

EXAMPLE = """\b
Example:
  lehr account --noise-multiplier 1.23 --expected-batch-size 512 --records 60000 \\
      --steps 4698 --delta 1e-5
"""


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
    from lehr.accounting import answers

    if plan is not None:
        refuse(
            "plan",
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            records=records,
            sampling_probability=sampling_probability,
            steps=steps,
            delta=delta,
            adjacency=adjacency,
        )
        from_file = read_plan(plan)
        event, delta, adjacency = from_file.event, from_file.delta, from_file.adjacency
    else:
        adjacency = adjacency or Adjacency.ADD_OR_REMOVE_ONE
        step = step_event(
            noise_multiplier=noise_multiplier,
            expected_batch_size=expected_batch_size,
            records=records,
            sampling_probability=sampling_probability,
            adjacency=adjacency,
        )
        event, delta = Repeated(step, required(steps=steps)), required(delta=delta)
    with answering.working("Counting"):
        found = answers(event, delta=delta, adjacency=adjacency)
    (_answer_program if json else _answer_person)(event, delta, adjacency, found)
    if _smallest(found) is None:
        raise typer.Exit(NO)


def _answer_program(event: Event, delta: float, adjacency: Adjacency, answers: tuple[Answer, ...]) -> None:
    smallest = _smallest(answers)
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


def _answer_person(event: Event, delta: float, adjacency: Adjacency, answers: tuple[Answer, ...]) -> None:
    smallest = _smallest(answers)
    rows = [(answer.accountant, _epsilon(answer), _note(answer, smallest)) for answer in answers]
    answering.listing(f"ε at δ = {delta:g}, {adjacency.value}", ("accountant", "ε", ""), rows)
    answering.line(f"The run: {event}")


def _epsilon(answer: Answer) -> str:
    return "–" if answer.epsilon is None else at_most(answer.epsilon)


def _note(answer: Answer, smallest: Answer | None) -> str:
    if answer.epsilon is None:
        return answer.reason
    if answer.is_estimate:
        return "an estimate, not a guarantee"
    return "the smallest proven bound" if answer is smallest else "a proven bound"


def _smallest(answers: tuple[Answer, ...]) -> Answer | None:
    bounds = [answer for answer in answers if answer.epsilon is not None and not answer.is_estimate]
    return min(bounds, key=lambda answer: answer.epsilon or 0.0, default=None)
