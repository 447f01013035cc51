"""A run as one web page that needs no network: what it promises, how it went, how it was attacked, set up, and paid.

It is made from public values only, can be made while the run goes on, and says which of the two it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

from lehr import accounting
from lehr.claims import Claim, Standing
from lehr.planning.extrapolation import Prediction
from lehr.planning.plan import Plan
from lehr.reports import audit_page, page_frame, prediction_page, run_charts, run_claims, run_cost
from lehr.reports.chart import thinned
from lehr.reports.rounding import at_most, exactly
from lehr.reports.run_charts import Drawn
from lehr.reports.run_position import Position
from lehr.reports.run_reading import RunRecord, State
from lehr.reports.wording import best_guess, guarantee, how_chosen
from lehr.run_shape import SECTIONS

TEMPLATE = "run_page.html.jinja"
MILESTONES = 20
_SAME_TO = 1e-6  # ε, counted again on another machine
NO_PRIVACY = (
    "No privacy: {because}. The model may reveal any record that it was trained on. Nothing is promised to anybody."
)


def render(record: RunRecord, *, prediction: Prediction | None = None, position: Position | None = None) -> str:
    """The whole page, with what was predicted, and where the plan stands, where these are given.

    Text that comes from the run is escaped.
    """
    claim, drawn = promised(record), Drawn(record=record)
    figures = {
        "scores": [*run_charts.scores([drawn], by_epsilon=drawn.has_epsilon)],
        "steps": [*run_charts.spent([drawn])],
        "annealing": [*run_charts.acceptance([drawn]), *run_charts.temperature([drawn])],
        "mechanism": [*run_charts.noise([drawn]), *run_charts.clip([drawn])],
        "classes": [*run_charts.classes([drawn])],
    }
    believed = replace(record, certificate=None) if is_uncertified(record) else record
    audit = None if record.audit is None else audit_page.part(record.audit)
    predicted = None if prediction is None else prediction_page.part(prediction, record)
    return page_frame.render(
        TEMPLATE,
        charts=[
            *(figure.chart for figure in chain.from_iterable(figures.values())),
            *(() if position is None else (position.figure.chart,)),
            *(() if audit is None else audit.charts),
            *(() if predicted is None else (predicted.chart,)),
        ],
        figures=figures,
        position=position,
        audit=audit,
        prediction=predicted,
        cost=run_cost.rows(believed),
        run=record.run,
        epsilon=math.inf if claim is None else claim.epsilon,
        delta=None if claim is None else claim.delta,
        promise=tuple(_promise(record, claim)),
        state=record.state.value,
        is_completed=record.state in (State.COMPLETED, State.ACCEPTED, State.SPENT),
        published=record.published,
        published_because="" if record.published is None else run_claims.because(record.published),
        standing=_standing(believed),
        milestones=thinned(record.evaluations, most=MILESTONES),
        num_evaluations=len(record.evaluations),
        places=drawn.places,
        settings={section: dict(_flat(_shown(section, record.config[section]))) for section in (*SECTIONS, "stated")},
        plan={} if record.plan is None else dict(_flat(record.plan.to_json())),
        claim=claim,
        assumed=[] if claim is None else [p.statement for p in claim.premises if p.standing is Standing.ASSUMED],
        has_spent=claim is not None and record.trial_of is None,
        certificate=believed.certificate,
        library_version=str(record.config.get("library_version", "")),
        created_on=str(record.config.get("created_on", "")),
        version=accounting.version(),
    )


def promised(record: RunRecord) -> Claim | None:
    """The claim of the certificate, or that of the plan while there is none; None where nothing is promised."""
    if not record.is_private:  # whatever certificate lies in its folder
        return None
    return record.proven if is_uncertified(record) or record.certificate is None else record.certificate.claim.claim


def is_uncertified(record: RunRecord) -> bool:
    """Whether no certificate is there, or one that promises more than the run can: that of another run."""
    if record.certificate is None:
        return True
    own, given = record.proven, record.certificate.claim.claim
    if own is None or (given.delta, given.adjacency) != (own.delta, own.adjacency):
        return True
    return given.epsilon < own.epsilon * (1 - _SAME_TO)


def _promise(record: RunRecord, claim: Claim | None) -> Iterator[str]:
    if claim is None:
        yield NO_PRIVACY.format(because=record.no_privacy_because)
        return
    stated = record.config["stated"]
    unit = str(stated.get("unit_of_privacy", "one record"))
    yield guarantee(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit=unit)
    yield best_guess(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit=unit)
    yield _kind(claim, record)
    yield "It is for every step that the plan allowed, however many were taken, accepted or rejected."
    yield f"It is about {unit}. What is true of all records together is what the model is to learn, and is not hidden."
    if record.trial_of is not None:
        yield "It is for the whole search that this model was chosen by, and not for this run alone."
        yield from () if record.certificate is None else how_chosen(record.certificate)
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    yield f"Treated as public: {public}."
    if seen := record.config["data"].get("public_records"):
        yield f"Training itself looked at public records: {seen}."


def _kind(claim: Claim, record: RunRecord) -> str:
    if not claim.is_proven:
        return f"This is not proven: the claim is {claim.kind}."
    if record.certificate is None:
        return "This is proven for the plan. There is no certificate of it yet."
    if is_uncertified(record):
        return "This is proven for the plan. The certificate in its folder says another ε: it is another run's."
    return "This is proven. The certificate beside this page can be checked: lehr certificate check certificate.json"


def _most_steps(plan: Plan) -> str:
    """Under a limit, the steps of a plan are far more than it admits."""
    return f"{plan.steps:,}" if plan.limit is None else f"at most {plan.steps:,}"


def _standing(record: RunRecord) -> dict[str, str]:
    rows = {"State": record.state.value, "Method": record.method}
    planned = "" if record.plan is None else f" of {_most_steps(record.plan)} planned"
    rows["Steps taken" if record.plan is not None else "Steps"] = f"{record.steps_charged:,}{planned}"
    enough = None if record.plan is None else record.plan.stops_at_accepted
    if enough is not None:
        rows["Ends once"] = f"{enough:,} candidates are accepted"
    last = record.last
    if last is not None:
        if last.step and (run_charts.is_choosy(record) or enough is not None):
            rows["Candidates accepted"] = f"{last.accepted:,} of {last.step:,} ({last.accepted / last.step:.1%})"
        rows["Accuracy"] = f"{last.accuracy:.2%}"
        rows["Loss"] = f"{last.loss:.4f}"
        rows["Evaluated"] = f"on {last.on}, after step {last.step:,}"
    if record.state is State.STOPPED and record.certificate is not None and record.certificate.ex_post is not None:
        rows["ε ex post (no guarantee)"] = at_most(record.certificate.ex_post.epsilon)
    return rows


def _shown(section: str, settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of a section without the shapes of all weights, which can be hundreds."""
    return {name: value for name, value in settings.items() if section != "model" or name not in _LONG}


_LONG = ("trained", "frozen")


def _flat(shape: Mapping[str, object], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values of nested settings, as words."""
    for name, value in shape.items():
        words = before + str(name).replace("_", " ")
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{words}: ")
        else:
            yield words, _words(value)


def _words(value: object) -> str:
    match value:
        case None | {}:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return exactly(value)
        case list() | tuple():
            return ", ".join(map(_words, value)) or "–"
        case _:
            return str(value)
