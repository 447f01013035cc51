"""The options that several commands share, and what they describe: a plan file, one step, or a whole run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.events import Adjacency, Event, Gaussian, PoissonSampled, Repeated, counted

if TYPE_CHECKING:
    from lehr.planning.plan import Plan

Value = TypeVar("Value")

Json = Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")]
Delta = Annotated[float, typer.Option(help="The δ of (ε, δ).")]
AdjacencyOption = Annotated[Adjacency, typer.Option(help="Which data sets are neighbours.")]
NoiseMultiplier = Annotated[float | None, typer.Option(help="Noise standard deviation over the sensitivity.")]
ExpectedBatchSize = Annotated[float | None, typer.Option(help="Records in a batch, on average.")]
Records = Annotated[int | None, typer.Option(help="Number of records, a public number that you state.")]
SamplingProbability = Annotated[float | None, typer.Option(help="Instead of batch size and records.")]
Steps = Annotated[int | None, typer.Option(help="Number of steps.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace files that are there; never a budget.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan that `lehr plan --save` wrote.")]


def example(*lines: str) -> str:
    """Commands at the foot of a help text, each on its own line."""
    return "\b\nExample:\n" + "".join(lines)


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options that describe one step: the noise, and either batch size and records or the probability itself."""

    noise_multiplier: float | None
    expected_batch_size: float | None
    records: int | None
    sampling_probability: float | None

    def event(self, *, adjacency: Adjacency) -> Event:
        """The event of the step."""
        from lehr.planning.plan import Plan

        noise_multiplier = required(noise_multiplier=self.noise_multiplier)
        if self.sampling_probability is not None:
            refuse("sampling_probability", expected_batch_size=self.expected_batch_size, records=self.records)
            return PoissonSampled(self.sampling_probability, Gaussian(noise_multiplier))
        described = Plan(
            noise_multiplier=noise_multiplier,
            expected_batch_size=required(expected_batch_size=self.expected_batch_size),
            records=required(records=self.records),
            steps=1,
            delta=0.5,  # the event of a step depends neither on this nor on the steps
            adjacency=adjacency,
        )
        return described.step_event

    def refuse_beside(self, other: str) -> None:
        """An error where any of them is given though ``other`` describes the step."""
        refuse(other, **vars(self))


def steps_of(whole: Event, **named: int) -> Event:
    """So many steps of a run that repeats one event; the option's name is in the error."""
    [name] = named
    atoms = list(counted(whole))
    if len(atoms) != 1:
        raise InvalidValue(name, allowed="given only for a run that repeats one event", given=str(whole))
    return Repeated(atoms[0], validate.count(**named))


def read_plan(path: Path) -> Plan:
    """The plan in a file that ``lehr plan --save`` wrote."""
    from lehr.files import json_file, whole_file
    from lehr.planning.plan import Plan

    try:
        return json_file.read(path, Plan.from_json)
    except StoreError as error:
        if path.is_file() and whole_file.is_database(path):
            raise StoreError(f"cannot use {path}: it is not a plan, but a budget, a ledger or a database") from error
        raise


def refuse_other_adjacency(given: Adjacency, *, expected: Adjacency) -> None:
    """An error where two things are counted by different adjacencies: their noise multipliers do not mean the same."""
    if given is not expected:
        raise InvalidValue("adjacency", allowed=f"{expected.value} in every file of one run", given=given.value)


def required(**named: Value | None) -> Value:
    """An option's value, or an error that names it."""
    [(name, value)] = named.items()
    if value is None:
        raise InvalidValue(name, allowed=f"given (--{name.replace('_', '-')})", given=None)
    return value


def refuse(beside: str, **named: object) -> None:
    """An error for each option that says again what ``beside`` says already."""
    for name, value in named.items():
        if value is not None:
            raise InvalidValue(name, allowed=f"left out beside {beside}", given=value)
