"""``lehr budget``: the privacy budget of a data set, shared by every run on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr import validate
from lehr.cli import answering
from lehr.cli.failing import NO, Commands
from lehr.cli.options import (
    AdjacencyOption,
    Delta,
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
    refuse_other_adjacency,
    steps_of,
)
from lehr.errors import InvalidValue
from lehr.events import NOTHING, Adjacency, Event, counted, to_json
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.planning.budget import Budget, RunStatus

BudgetFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the budget.")]
Run = Annotated[str, typer.Option(help="The name of the run, its own within the budget.")]
ReservedPlan = Annotated[Path, typer.Option("--plan", metavar="PLAN", help="A plan that `lehr plan --save` wrote.")]
Continuing = Annotated[
    str | None, typer.Option(metavar="HEAD", help="A head noted down earlier: refuse an older copy of the file.")
]

_SET_UP = """  lehr plan --steps 1000 --delta 1e-5 --records 60000 --expected-batch-size 512 \\
      --noise-multiplier 2 --save plan.json --no-chart
  lehr budget create mnist.budget --dataset "MNIST, training half" --epsilon 3 --delta 1e-5
"""
_RESERVE = "  lehr budget reserve mnist.budget --run first --plan plan.json\n"
_SPEND = "  lehr budget spend mnist.budget --run first --steps 100\n"

app = typer.Typer(
    cls=Commands,
    help="The privacy budget of a data set, shared by every run on it.",
    epilog=example(_SET_UP, _RESERVE),
    rich_markup_mode=None,
)


@app.command(epilog=example(_SET_UP[_SET_UP.index("  lehr budget create") :]))
def create(
    file: BudgetFile,
    dataset: Annotated[str, typer.Option(help="Your name for the data set; never anything computed from it.")],
    epsilon: Annotated[float, typer.Option(help="The most ε that all runs together may cost.")],
    delta: Delta,
    adjacency: AdjacencyOption = Adjacency.ADD_OR_REMOVE_ONE,
    expecting: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="The plan that will fill most of it; more of it will then fit.")
    ] = None,
    json: Json = False,
) -> None:
    """Open a budget, in a new file."""
    from lehr.planning.budget import Budget

    expected = None if expecting is None else read_plan(expecting).event
    with Budget.create(
        file, dataset=dataset, epsilon=epsilon, delta=delta, adjacency=adjacency, expecting=expected
    ) as budget:
        _show(budget, json=json)


@app.command(epilog=example(_SET_UP, _RESERVE, "  lehr budget show mnist.budget\n"))
def show(file: BudgetFile, continuing: Continuing = None, json: Json = False) -> None:
    """What is spent, and by which runs. A reservation that is not settled counts in full."""
    with _opened(file, continuing) as budget:
        _show(budget, json=json)


@app.command(epilog=example(_SET_UP, _RESERVE))
def reserve(
    file: BudgetFile,
    run: Run,
    plan: ReservedPlan,
    whole_budget: Annotated[
        bool,
        typer.Option("--whole-budget", help="Give all of it to this plan: more fits, and nothing after it."),
    ] = False,
    continuing: Continuing = None,
    json: Json = False,
) -> None:
    """Set a plan's cost aside before the run touches a record. Refused (exit code 1) where it does not fit."""
    reserved = read_plan(plan)
    with _opened(file, continuing) as budget:
        refuse_other_adjacency(reserved.adjacency, expected=budget.status().adjacency)
        with answering.working("Counting"):
            budget.reserve(reserved.event, run=run, whole_budget=whole_budget)
        _show(budget, json=json)


@app.command(epilog=example(_SET_UP, _RESERVE, _SPEND))
def spend(
    file: BudgetFile,
    run: Run,
    steps: Annotated[int, typer.Option(help="How many steps of its reservation the run is about to use.")],
    continuing: Continuing = None,
    json: Json = False,
) -> None:
    """Record that a part of a reservation is used, before what it released is used."""
    with _opened(file, continuing) as budget:
        budget.spend(run, steps_of(budget.reservation(run).event, steps=steps))
        _show(budget, json=json)


@app.command(epilog=example(_SET_UP, _RESERVE, _SPEND, "  lehr budget settle mnist.budget --run first\n"))
def settle(
    file: BudgetFile,
    run: Run,
    steps: Annotated[int | None, typer.Option(help="Steps used in all, where `spend` has not recorded them.")] = None,
    ledger: Annotated[Path | None, typer.Option(metavar="LEDGER", help="The run's ledger, which has them.")] = None,
    continuing: Continuing = None,
    json: Json = False,
) -> None:
    """End a run and give back what it did not use."""
    with _opened(file, continuing) as budget:
        given_back = _settled(budget, run, steps=steps, ledger=ledger)
        if json:
            answering.as_json({"given_back": to_json(given_back), **_shape(budget)})
        else:
            answering.line(f"Given back: {answering.printable(str(given_back))}")
            _show(budget, json=False)


@app.command(
    epilog=example(_SET_UP, "  lehr budget fits mnist.budget --plan plan.json\n"),
)
def fits(
    file: BudgetFile,
    noise_multiplier: NoiseMultiplier = None,
    expected_batch_size: ExpectedBatchSize = None,
    records: Records = None,
    sampling_probability: SamplingProbability = None,
    steps: Steps = None,
    plan: PlanFile = None,
    continuing: Continuing = None,
    json: Json = False,
) -> None:
    """How many steps still fit. With --plan or --steps: whether that many do (exit code 1 if not). Reserves nothing."""
    described = StepOptions(
        noise_multiplier=noise_multiplier,
        expected_batch_size=expected_batch_size,
        records=records,
        sampling_probability=sampling_probability,
    )
    if steps is not None:
        validate.count(steps=steps)
    with _opened(file, continuing) as budget:
        adjacency = budget.status().adjacency
        if plan is None:
            step = described.event(adjacency=adjacency)
        else:
            described.refuse_beside("plan")
            refuse("plan", steps=steps)
            wanted = read_plan(plan)
            refuse_other_adjacency(wanted.adjacency, expected=adjacency)
            step, steps = wanted.step_event, wanted.steps
        with answering.working("Counting"):
            largest = budget.largest_steps(step)
    it_fits = None if steps is None else steps <= largest
    if json:
        answering.as_json({"step": to_json(step), "largest_steps": largest, "steps": steps, "fits": it_fits})
    else:
        answering.line(f"{largest:,} × {step} fit" + ("" if steps is None else f"; asked for: {steps:,}"))
    if it_fits is False:
        raise typer.Exit(NO)


def _opened(file: Path, continuing: str | None) -> Budget:
    from lehr.planning.budget import Budget

    return Budget.open(file, continuing=continuing)


def _settled(budget: Budget, run: str, *, steps: int | None, ledger: Path | None) -> Event:
    if ledger is not None:
        from lehr.ledger import Ledger

        refuse("ledger", steps=steps)
        with Ledger.open(ledger) as book:
            return budget.settle(run, ledger=book)
    if steps is not None:
        used = NOTHING if steps == 0 else steps_of(budget.reservation(run).event, steps=steps)
        return budget.settle(run, used=used)
    try:
        return budget.settle(run)
    except InvalidValue as error:
        if error.name != "used":
            raise
        allowed = "given (--steps, or --ledger) where nothing was recorded with `lehr budget spend`"
        raise InvalidValue("steps", allowed=allowed, given=None) from error


def _show(budget: Budget, *, json: bool) -> None:
    if json:
        answering.as_json(_shape(budget))
        return
    with answering.working("Counting"):
        status = budget.status()
    answering.facts(
        "Budget",
        {
            "data set": status.dataset,
            "limit": f"ε = {exactly(status.epsilon)} at δ = {exactly(status.delta)}, {status.adjacency.value}",
            "spent": f"ε = {at_most(status.epsilon_spent)}",
            "counted as": status.mode,
            "head": budget.head,
        },
    )
    if status.runs:
        answering.listing("Runs", ("run", "reserved", "used", "", "of"), [_row(run) for run in status.runs])


def _row(run: RunStatus) -> tuple[str, ...]:
    """Counts where the run repeats one event, which fit a terminal; whole events otherwise."""
    state = "settled" if run.is_settled else "open"
    atoms = list(counted(run.reserved))
    if len(atoms) != 1:
        return run.run, str(run.reserved), str(run.used), state, ""
    reserved, used = (sum(counted(event).values()) for event in (run.reserved, run.used))
    return run.run, f"{reserved:,}", f"{used:,}", state, str(atoms[0])


def _shape(budget: Budget) -> dict[str, object]:
    status = budget.status()
    return {
        "head": budget.head,
        "dataset": status.dataset,
        "epsilon": status.epsilon,
        "delta": status.delta,
        "adjacency": status.adjacency.value,
        "mode": status.mode,
        "orders": status.orders,
        "epsilon_spent": status.epsilon_spent,
        "runs": [
            {
                "run": run.run,
                "reserved": to_json(run.reserved),
                "used": to_json(run.used),
                "charged": to_json(run.charged),
                "is_settled": run.is_settled,
            }
            for run in status.runs
        ],
    }
