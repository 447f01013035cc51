"""Where the plan of a run stands by its total amount of noise (Sander, Stock & Sablayrolles 2023): one figure.

It takes a second or two to count, so that a page which is made at the end of every training goes without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from lehr.errors import AccountantFailed, InvalidValue
from lehr.planning import constant_eta, tan
from lehr.planning.outlook import Outlook
from lehr.planning.plan import Plan
from lehr.reports import tan_part, tan_words
from lehr.reports.chart import Figure
from lehr.reports.run_reading import RunRecord

OWN_STEPS = (1.0,)
SIMULATED = " This is the plan that the run simulates; the run itself protects nobody."


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The figure, and the numbers behind it by name."""

    figure: Figure
    facts: dict[str, str]


def position(record: RunRecord) -> Position | None:
    """Of the run, or of the plan that it stands for; None where the total amount of noise says nothing about it."""
    plan = record.plan
    if plan is None or (not record.is_private and plan.simulates is None):
        return None
    outlook = _outlook(plan.simulates or plan)
    figure = None if outlook is None else next(tan_part.figures(outlook), None)
    if outlook is None or figure is None:
        return None
    note = figure.note + (SIMULATED if plan.simulates is not None else "")
    titled = replace(figure, title="Where the plan stands: ε against noise at the same η", note=note)
    return Position(figure=titled, facts=dict(tan_words.facts(outlook.standing)))


@lru_cache(maxsize=64)  # a page that is asked for again while a run goes on has the same plan
def _outlook(plan: Plan) -> Outlook | None:
    try:
        standing = tan.standing(plan)
        curves = tuple(constant_eta.curves(plan, step_factors=OWN_STEPS))
    except (InvalidValue, AccountantFailed):  # steps that differ, neighbours by replacing, or no ε to compare
        return None
    return Outlook(plan=plan, standing=standing, other_batches=(), other_steps=(), twice_the_data=(), curves=curves)
