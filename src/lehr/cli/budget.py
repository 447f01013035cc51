"""``lehr budget``: the privacy budget of a data set, shared by every run on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from lehr.accounting.events import NOTHING, Adjacency, Event, counted, to_json
from lehr.accounting.ledger import Ledger
from lehr.cli import common
from lehr.cli.plan import AdjacencyOption, Delta, read_plan, refuse_other_adjacency, steps_of
from lehr.errors import InvalidValue
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import RECORD
from lehr.rounding import at_most, exactly

BudgetFile = Annotated[Path, Argument(metavar="FILE", help="The budget file.")]
Run = Annotated[str, Option(help="The name of the run, unique within the budget.")]
PlanFile = Annotated[Path, Option("--plan", metavar="PLAN", help="A plan written by `lehr plan --save`.")]
Continuing = Annotated[str | None, Option(metavar="HEAD", help="A head noted earlier: an older copy is refused.")]

_SET_UP = """  lehr plan --steps 1000 --delta 1e-5 --records 60000 --expected-batch-size 512 \\
      --noise-multiplier 2 --save plan.json --no-chart
  lehr budget create mnist.budget --dataset "MNIST, training half" --epsilon 3 --delta 1e-5
"""
_RESERVE = "  lehr budget reserve mnist.budget --run first --plan plan.json\n"
_SPEND = "  lehr budget spend mnist.budget --run first --steps 100\n"

app = common.group_app("Manage the privacy budget of a data set, which all runs on it share.", _SET_UP, _RESERVE)


@app.command(epilog=common.example(_SET_UP[_SET_UP.index("  lehr budget create") :]))
def create(
    file: BudgetFile,
    dataset: Annotated[str, Option(help="Your name for the data set; never a value computed from it.")],
    epsilon: Annotated[float, Option(help="The largest total ε of all runs.")],
    delta: Delta,
    adjacency: AdjacencyOption = Adjacency.ADD_OR_REMOVE_ONE,
    unit: Annotated[
        str, Option(help="What the limit protects, for good: a record, or a user with all their records.")
    ] = RECORD,
    expecting: Annotated[
        Path | None,
        Option(metavar="PLAN", help="The plan that will use most of the budget. More steps of it will then fit."),
    ] = None,
    json: common.Json = False,
) -> None:
    """Create a budget in a new file."""
    expected = None if expecting is None else read_plan(expecting).event
    with Budget.create(
        file, dataset=dataset, epsilon=epsilon, delta=delta, adjacency=adjacency, expecting=expected, unit=unit
    ) as budget:
        _show(budget, json=json)


@app.command(epilog=common.example(_SET_UP, _RESERVE, "  lehr budget show mnist.budget\n"))
def show(file: BudgetFile, continuing: Continuing = None, json: common.Json = False) -> None:
    """Show what is spent, and by which runs. A reservation counts in full until it is settled."""
    with Budget.open(file, continuing=continuing) as budget:
        _show(budget, json=json)


@app.command(epilog=common.example(_SET_UP, _RESERVE))
def reserve(
    file: BudgetFile,
    run: Run,
    plan: PlanFile,
    whole_budget: Annotated[
        bool,
        Option("--whole-budget", help="Give the whole budget to this plan. More steps fit, but no other run."),
    ] = False,
    continuing: Continuing = None,
    json: common.Json = False,
) -> None:
    """Reserve the cost of a plan before the run reads a record. Exit code 1 if it does not fit."""
    reserved = read_plan(plan)
    with Budget.open(file, continuing=continuing) as budget:
        refuse_other_adjacency(reserved.adjacency, expected=budget.status().adjacency)
        with common.working("Counting"):
            budget.reserve(reserved.event, run=run, whole_budget=whole_budget, unit=reserved.unit)
        _show(budget, json=json)


@app.command(epilog=common.example(_SET_UP, _RESERVE, _SPEND))
def spend(
    file: BudgetFile,
    run: Run,
    steps: Annotated[int, Option(help="How many steps of its reservation the run is about to take.")],
    continuing: Continuing = None,
    json: common.Json = False,
) -> None:
    """Record that steps of a reservation are used. Do this before you use what they release."""
    with Budget.open(file, continuing=continuing) as budget:
        budget.spend(run, steps_of(budget.reservation(run), steps=steps))
        _show(budget, json=json)


@app.command(epilog=common.example(_SET_UP, _RESERVE, _SPEND, "  lehr budget settle mnist.budget --run first\n"))
def settle(
    file: BudgetFile,
    run: Run,
    steps: Annotated[int | None, Option(help="Total steps taken, if `spend` has not recorded them.")] = None,
    ledger: Annotated[Path | None, Option(metavar="LEDGER", help="The ledger that has recorded its steps.")] = None,
    continuing: Continuing = None,
    json: common.Json = False,
) -> None:
    """End a run and give back what it did not use."""
    with Budget.open(file, continuing=continuing) as budget:
        given_back = _settle(budget, run, steps=steps, ledger=ledger)
        if json:
            common.print_json({"given_back": to_json(given_back), **_shape(budget)})
        else:
            common.print_line(f"Given back: {given_back}")
            _show(budget, json=False)


def _settle(budget: Budget, run: str, *, steps: int | None, ledger: Path | None) -> Event:
    if ledger is not None:
        common.refuse("ledger", steps=steps)
        with Ledger.open(ledger) as book:
            return budget.settle(run, ledger=book)
    if steps is not None:
        used = NOTHING if steps == 0 else steps_of(budget.reservation(run), steps=steps)
        return budget.settle(run, used=used)
    try:
        return budget.settle(run)
    except InvalidValue as error:
        if error.name != "used":
            raise
        allowed = "given (--steps or --ledger) if `lehr budget spend` has recorded nothing"
        raise InvalidValue("steps", allowed=allowed, given=None) from error


@app.command(epilog=common.example(_SET_UP, "  lehr budget fits mnist.budget --plan plan.json\n"))
def fits(file: BudgetFile, plan: PlanFile, continuing: Continuing = None, json: common.Json = False) -> None:
    """Show how many steps of a plan still fit. Exit code 1 if not all of its own do. Nothing is reserved."""
    wanted = read_plan(plan)
    if wanted.bands > 1:
        raise InvalidValue("plan", allowed="one without bands, whose steps cost nothing alone", given=wanted.bands)
    step, steps = wanted.step_event, wanted.steps
    whole = wanted.steps_per_event
    with Budget.open(file, continuing=continuing) as budget:
        refuse_other_adjacency(wanted.adjacency, expected=budget.status().adjacency)
        if wanted.unit != budget.unit:
            raise InvalidValue(
                "plan", allowed=f"one of {budget.unit}s, as the budget is", given=f"one of {wanted.unit}s"
            )
        with common.working("Counting"):
            largest = budget.largest_steps(step) * whole
    shape = {"step": to_json(step), "largest_steps": largest, "steps": steps, "fits": steps <= largest}
    common.print_answer(shape, f"{largest // whole:,} × {step} fit; asked for: {steps:,}", json=json)
    if steps > largest:
        raise Exit(common.NO)


def _show(budget: Budget, *, json: bool) -> None:
    if json:
        common.print_json(_shape(budget))
        return
    with common.working("Counting"):
        status = budget.status()
    common.print_facts(
        "Budget",
        {
            "data set": status.dataset,
            "limit": f"ε = {exactly(status.epsilon)} at δ = {exactly(status.delta)}, {status.adjacency.value}",
            "unit of privacy": f"a {status.unit}",
            "spent": f"ε = {at_most(status.epsilon_spent)}",
            "counted as": status.mode,
            "head": budget.head,
        },
    )
    if status.runs:
        common.print_table("Runs", ("run", "reserved", "used", "", "of"), [_row(run) for run in status.runs])


def _row(run: RunStatus) -> tuple[str, ...]:
    """Step counts if the run repeats one event, which fit a terminal; whole events otherwise."""
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
        **{name: getattr(status, name) for name in ("dataset", "epsilon", "delta", "mode", "orders", "epsilon_spent")},
        "adjacency": status.adjacency.value,
        "unit": status.unit,
        "runs": [
            {
                "run": run.run,
                **{name: to_json(getattr(run, name)) for name in ("reserved", "used", "charged")},
                "is_settled": run.is_settled,
            }
            for run in status.runs
        ],
    }


budget_command = app
