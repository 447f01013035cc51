"""``lehr plan``: from any three of ε, noise, steps and batch size to the fourth, with a chart."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.options import (
    AdjacencyOption,
    Delta,
    ExpectedBatchSize,
    Json,
    NoiseMultiplier,
    Overwrite,
    Steps,
    example,
)
from lehr.events import Adjacency
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.accounting import Bound
    from lehr.claims import Claim
    from lehr.planning.outlook import Outlook
    from lehr.planning.plan import Plan
    from lehr.reports.curve import Point

EXAMPLE = example(
    "  lehr plan --epsilon 3 --delta 1e-5 --records 60000 --expected-batch-size 512 \\\n",
    "      --noise-multiplier 1.23 --html plan.html --save plan.json\n",
)
OWN_STEPS = (1.0,)


def plan(
    records: Annotated[int, typer.Option(help="Number of records, a public number that you state.")],
    delta: Delta,
    epsilon: Annotated[float | None, typer.Option(help="The most ε that the whole run may cost.")] = None,
    noise_multiplier: NoiseMultiplier = None,
    steps: Steps = None,
    expected_batch_size: ExpectedBatchSize = None,
    adjacency: AdjacencyOption = Adjacency.ADD_OR_REMOVE_ONE,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan as a web page.")] = None,
    save: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the plan as JSON.")] = None,
    overwrite: Overwrite = False,
    no_chart: Annotated[bool, typer.Option("--no-chart", help="Leave the chart out.")] = False,
    tan: Annotated[
        bool, typer.Option("--tan", help="Also: where it stands by its total noise, and what to run instead.")
    ] = False,
    json: Json = False,
) -> None:
    """Plan a private run: give any three of --epsilon, --noise-multiplier, --steps and --expected-batch-size.

    The fourth is found so that the run never costs more than --epsilon. With --tan, other settings at the same ε are
    compared with it by their total amount of noise.
    """
    from lehr.files import whole_file
    from lehr.planning.plan import make_plan

    for file in (save, html):
        if file is not None:
            whole_file.refuse_to_replace(file, overwrite=overwrite)
    with answering.working("Finding the plan"):
        found = make_plan(
            records=records,
            delta=delta,
            adjacency=adjacency,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            steps=steps,
            expected_batch_size=expected_batch_size,
        )
        bound, claim = found.bound(), found.claim()
    draws = not (json or no_chart)
    outlook = _outlook(found, draws=draws, in_full=json or html is not None) if tan else None
    if save is not None:
        _save(save, found, overwrite=overwrite)
    points = _points(found) if (draws and not tan) or html is not None else ()
    if html is not None:
        _write_page(html, found, bound, claim, points, outlook, overwrite=overwrite)
    if json:
        _answer_program(found, bound, claim, outlook, html=html, save=save)
        return
    _answer_person(found, bound)
    if outlook is not None:
        _look_ahead(outlook, draws=draws)
    elif draws:
        _draw(points)


def _save(path: Path, plan: Plan, *, overwrite: bool) -> None:
    from lehr.files import json_file

    json_file.write(path, plan.to_json(), overwrite=overwrite)


def _points(plan: Plan) -> tuple[Point, ...]:
    from lehr.reports import curve

    with answering.working("Counting ε against steps"):
        return curve.points(plan)


def _outlook(plan: Plan, *, draws: bool, in_full: bool) -> Outlook:
    from lehr.planning import outlook
    from lehr.planning.constant_eta import STEP_FACTORS

    drawn = STEP_FACTORS if in_full else OWN_STEPS if draws else ()
    with answering.working("Counting other settings by the tight accountant: seconds, with very many steps a minute"):
        return outlook.outlook(plan, step_factors=drawn)


def _write_page(
    path: Path,
    plan: Plan,
    bound: Bound,
    claim: Claim,
    points: tuple[Point, ...],
    outlook: Outlook | None,
    *,
    overwrite: bool,
) -> None:
    from lehr.files import whole_file
    from lehr.reports import plan_page

    page = plan_page.render(plan, bound=bound, claim=claim, points=points, outlook=outlook)
    whole_file.write(path, page, overwrite=overwrite)


def _answer_program(
    plan: Plan, bound: Bound, claim: Claim, outlook: Outlook | None, *, html: Path | None, save: Path | None
) -> None:
    answering.as_json(
        {
            "plan": plan.to_json(),
            "sampling_probability": plan.sampling_probability,
            "epsilon": bound.epsilon,
            "accountant": bound.accountant,
            "passed_over": [{"accountant": other.accountant, "reason": other.reason} for other in bound.passed_over],
            "claim": {"kind": claim.kind, "theorem": claim.theorem, "proof": claim.proof},
            "html": None if html is None else str(html),
            "save": None if save is None else str(save),
        }
        | ({} if outlook is None else {"tan": outlook.to_json()})
    )


def _answer_person(plan: Plan, bound: Bound) -> None:
    from lehr.reports.promising import delta_caution

    rows = {
        "ε": f"{at_most(bound.epsilon)}  at δ = {exactly(plan.delta)}, {plan.adjacency.value}",
        "noise multiplier": exactly(plan.noise_multiplier),
        "expected batch size": f"{plan.expected_batch_size:,.10g} of {plan.records:,} records",
        "sampling probability": f"{plan.sampling_probability:.6g}",
        "steps": f"{plan.steps:,}  ({plan.steps * plan.sampling_probability:.4g} passes over the data)",
        "counted by": bound.accountant,
    }
    if (caution := delta_caution(plan.delta, records=plan.records)) is not None:
        rows["caution"] = caution
    rows |= {f"not {other.accountant}": other.reason for other in bound.passed_over}
    answering.facts("Plan", rows)


def _draw(points: tuple[Point, ...]) -> None:
    from lehr.reports import terminal_chart

    answering.line(terminal_chart.draw(points, width=answering.width()))


def _look_ahead(outlook: Outlook, *, draws: bool) -> None:
    from lehr.reports import tan_chart, tan_words

    answering.facts("Total amount of noise", tan_words.facts(outlook.standing))
    if draws:
        answering.line(tan_chart.draw(outlook.curves, outlook.standing, width=answering.width()))
        answering.line()
    for table in tan_words.tables(outlook):
        answering.listing(table.title, table.headings, table.rows)
    for sentence in tan_words.sentences(outlook):
        answering.line(textwrap.fill(sentence, answering.width(), initial_indent="- ", subsequent_indent="  "))
