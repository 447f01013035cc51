"""The page of a run, and one page for several runs. Both are made from public values only.

claim_of, is_uncertified    what a run guarantees, and whether its certificate says so
render                      a run: its guarantee, scores, audit, configuration and cost, also while it goes on
render_comparison           several runs: the guarantee of each, a table, and their charts in common
ChartRun                    a run on charts, and at the end of the file the charts
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from lehr import accounting
from lehr.accounting.claims import Claim
from lehr.auditing import Verdict
from lehr.auditing.audit import certified_text, share_of_claim, verdict_text
from lehr.certificates.certificate import how_chosen
from lehr.certificates.guarantee import best_guess_text, guarantee_text, published_text
from lehr.certificates.run_reading import RunRecord, State
from lehr.errors import InvalidValue
from lehr.planning.budget import FILTER
from lehr.planning.plan import PRIVATE, USER, Plan
from lehr.reports import audit_page, prediction_page
from lehr.reports.chart import Chart, Line, thin
from lehr.reports.page import Block, Facts, Page, Paragraph, Section, Table, Tile, note, render_page, warning
from lehr.reports.plan_page import claim_facts
from lehr.reports.prediction_page import PredictionOutcome
from lehr.rounding import at_most, exactly, rounded_up
from lehr.run.shape import Evaluation

COST = "The number of records that a step drew is private: the page has expected numbers and whole minutes."
_SAME_TO = 1e-6  # ε, computed again on another machine


def claim_of(record: RunRecord) -> Claim | None:
    """The claim of the certificate, or that of the plan while there is none; None where nothing is guaranteed."""
    if not record.is_private:  # whatever certificate lies in its folder
        return None
    return record.proven if is_uncertified(record) or record.certificate is None else record.certificate.claim


def is_uncertified(record: RunRecord) -> bool:
    """Whether there is no certificate, or one that promises more than the run can: that of another run."""
    if record.certificate is None:
        return True
    own, certified = record.proven, record.certificate.claim
    if own is None or (certified.delta, certified.adjacency) != (own.delta, own.adjacency):
        return True
    return certified.epsilon < own.epsilon * (1 - _SAME_TO)


# One run.


def render(record: RunRecord, *, outcome: PredictionOutcome | None = None, baseline: RunRecord | None = None) -> str:
    """The page, with the outcome of a prediction, and beside the same network without privacy, where they are given."""
    claim, run = claim_of(record), ChartRun(record=record)
    believed = replace(record, certificate=None) if is_uncertified(record) else record
    if baseline is not None:
        check_baseline(record, baseline)
    scores = [chart for chart in _scores([run], by_epsilon=run.has_epsilon) if chart]
    audit = (
        [] if record.audit is None else audit_page.sections(record.audit, title="Audit", element="audit", is_short=True)
    )
    progress = Section(title="How it went", element="progress", parts=[Facts(rows=[*_progress_facts(believed)])])
    blocks: list[Block | Sequence[Block]] = [
        scores,
        [progress, *_over_steps([run]), _classes([run])],
        *([] if outcome is None else [prediction_page.section(outcome)]),
        audit,
        *([] if claim is None else [_computation(claim)]),
        _configuration(record),
    ]
    contents = [
        *([("Scores", scores[0].element)] if scores else []),
        ("How it went", "progress"),
        *([("Audit", "audit")] if audit else []),
        *([] if claim is None else [("How ε was computed", "computation")]),
        ("Configuration", "configuration"),
    ]
    version, begun = record.config.get("library_version", ""), record.config.get("created_on", "")
    guarantee = "no privacy" if claim is None else f"{claim.kind} ε = {at_most(claim.epsilon)}"
    return render_page(
        Page(
            title=f"{record.run}: {guarantee}",
            heading=f"Training run: {record.run}",
            state=record.state.value.capitalize(),
            tiles=[*_tiles(record, claim, baseline)],
            introduction=[*_guarantee(record, claim), *_cautions(record, baseline)],
            contents=contents,
            blocks=blocks,
            footer=f"Begun on {begun} with Lehr {version}. Computed by {accounting.version()}. {COST}",
        )
    )


def check_baseline(record: RunRecord, baseline: RunRecord) -> None:
    """An error unless the other run trained the same network without privacy, and was evaluated on the same records."""
    if baseline.is_private:
        raise InvalidValue("baseline", allowed="a run without privacy, such as method plain-sgd", given=baseline.method)
    if baseline.last is None:
        raise InvalidValue("baseline", allowed="a run that was evaluated", given=baseline.run)
    for section, key in (
        ("data", "name"),
        ("data", "evaluated_on"),
        ("model", "network"),
        ("model", "arguments"),
        ("model", "parameters"),
    ):
        own, other = record.config[section].get(key), baseline.config[section].get(key)
        if own != other:
            raise InvalidValue("baseline", allowed=f"a run with the same {section}: {key} {own}", given=other)


def _tiles(record: RunRecord, claim: Claim | None, baseline: RunRecord | None) -> Iterator[Tile]:
    """The first answers: how private, how good, whether an attack refuted it, and what is public."""
    last, audit = record.last, record.audit
    if claim is None:
        yield Tile(title="Privacy", value="No privacy", notes=[f"Because: {record.no_privacy_because}."], is_bad=True)
    else:
        unit, _ = _stated(record)
        guess = best_guess_text(epsilon=claim.epsilon, delta=claim.delta, unit=unit)
        at = f"at δ = {exactly(claim.delta)}, {claim.kind}"
        yield Tile(title="Privacy", value=f"ε = {at_most(claim.epsilon)}", notes=[at, f"{guess} 50 % is a coin toss."])
    if last is None:
        yield Tile(title="Accuracy", value="Not evaluated", notes=["There are no public records to evaluate on."])
    else:
        notes = [f"on {last.on}, after step {last.step:,}"]
        if baseline is not None and baseline.last is not None:
            notes.append(f"{baseline.last.score[1]} without privacy: the same network, trained without noise.")
        name, value = last.score
        yield Tile(title=name.capitalize(), value=value, notes=notes)
    if audit is not None:
        is_bad, (verdict, *_) = audit.verdict is not Verdict.NOT_REFUTED, verdict_text(audit).split(".")
        found = f"An attack shows {certified_text(audit)}: {share_of_claim(audit)} of the claim."
        yield Tile(title="Audit", value=verdict[:1].upper() + verdict[1:], notes=[found], is_bad=is_bad)
    elif claim is not None:
        yield Tile(title="Audit", value="Not audited", notes=["To attack the training code: lehr audit RUN"])
    if claim is not None:
        _, public = _stated(record)
        yield Tile(title="Treated as public", notes=[*public.split("; "), "ε does not protect these."])


def _guarantee(record: RunRecord, claim: Claim | None) -> Iterator[Paragraph]:
    if (published := record.published) is not None:
        show = note if published.is_proven else warning
        yield show(f"As published: ε = {published_text(published)}.")
    if claim is None:
        yield Paragraph(
            f"No privacy: {record.no_privacy_because}. The model may reveal any record that it was trained on."
        )
        return
    unit, _ = _stated(record)
    yield Paragraph(guarantee_text(epsilon=claim.epsilon, delta=claim.delta, adjacency=claim.adjacency, unit=unit))
    whole = "It holds for every step that the plan allowed, however many were taken, accepted or rejected."
    yield note(f"{whole} {_kind(claim, record)}")
    if record.trial_of is not None:
        yield note("It is for the whole search that this model was chosen by, not for this run alone.")
        yield from map(note, () if record.certificate is None else how_chosen(record.certificate))
    if seen := record.config["data"].get("public_records"):
        yield note(f"Training used public records: {seen}.")


def _cautions(record: RunRecord, baseline: RunRecord | None) -> Iterator[Paragraph]:
    """How to continue an interrupted run, and which number ε does not cover."""
    if record.state is State.GOING_ON:
        yield note(
            "This run is not finished. If it was interrupted, continue it with “lehr train --resume RUN”, or call "
            "lehr.fit again with resume=True and the same directory."
        )
    if baseline is not None and baseline.config["data"].get("declared", PRIVATE) == PRIVATE:
        yield warning("ε does not cover the accuracy without privacy: it was computed from the records without noise.")


def _stated(record: RunRecord) -> tuple[str, str]:
    """The unit of privacy, and what is treated as public."""
    stated = record.config["stated"]
    public = "; ".join(map(str, stated.get("treated_as_public") or ())) or "nothing was stated"
    unit = "one record" if record.plan is None else record.plan.unit_text
    return str(stated.get("unit_of_privacy", unit)), public


def _kind(claim: Claim, record: RunRecord) -> str:
    if not claim.is_proven:
        return f"This is not proven: the claim is {claim.kind}."
    if record.certificate is None:
        return "This is proven for the plan. There is no certificate yet."
    if is_uncertified(record):
        return "This is proven for the plan. The certificate in the folder states another ε: it is another run's."
    return "This is proven. Check the certificate beside this page: lehr certificate check certificate.json"


def _progress_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    plan, last, certificate = record.plan, record.last, record.certificate
    planned = "" if plan is None else f" of {'' if plan.limit is None else 'at most '}{plan.steps:,} planned"
    yield "steps taken", f"{record.steps_charged:,}{planned}"
    if plan is not None and plan.stops_at_accepted is not None:
        yield "ends once", f"{plan.stops_at_accepted:,} candidates are accepted"
    if last is not None:
        if last.accepted < last.step:
            yield "candidates accepted", f"{last.accepted:,} of {last.step:,} ({last.accepted / last.step:.1%})"
        if last.accuracy is not None:
            yield "accuracy", last.accuracy_text
        yield "loss", f"{last.loss:.4f}"
        for name, value in (last.metrics or {}).items():
            yield name, "–" if value is None else f"{value:.4g}"
        yield "evaluated", f"on {last.on}, after step {last.step:,}"
    if record.state is State.STOPPED and certificate is not None and certificate.ex_post is not None:
        yield "ε ex post (no guarantee)", at_most(certificate.ex_post.epsilon)
    yield from _constants(record).items()
    if plan is not None:
        expected = record.steps_charged * plan.expected_batch_size
        passes = record.steps_charged * plan.sampling_probability
        yield f"{plan.drawn}s used", f"{expected:,.0f} expected, {passes:.4g} passes over the data"
    if record.minutes is not None:
        yield "time", f"{record.minutes:,} minutes, pauses included"
    if certificate is not None and (budget := certificate.budget) is not None:
        used = f"{at_most(budget.spent_epsilon)} of {at_most(budget.epsilon)}"
        yield "budget of the records", f"{budget.dataset}: ε = {used} spent, this run included"


def _computation(claim: Claim) -> Section:
    facts = Facts(rows=[*claim_facts(claim)])
    return Section(title="How ε was computed", element="computation", parts=[facts], is_long=True, is_folded=True)


# The configuration in the words of whoever sets it. What is off, or not set, is left out.

_UNSET = ("", "–", "none", "no", "always", "constant", "not stated")
_NAMES = {
    "num_classes": "classes",
    "expected_batch_size": "batch size",
    "shape": "shape of a record",
    "evaluate_every": "steps between evaluations",
}
_SHAPES = ("trained", "frozen")  # the shapes of all weights
_REPEATED = ("settings", "is_known", "records", "asked", "noise_multiplier", "steps", "delta", "adjacency")


def _configuration(record: RunRecord) -> Section:
    config, plan = record.config, record.plan
    method, update = dict(config["method"]), dict(config["method"].get("update") or {})
    clipping, model = dict(method.get("clipping") or {}), dict(config["model"])
    network = model.pop("network", None) or "your own module"
    optimizer = {"name": update.pop("optimizer", None), **(update.pop("arguments", None) or {})}
    others = {key: value for key, value in method.items() if key not in ("name", "clipping", "update")}
    schedules = {} if plan is None else {"noise schedule": plan.to_json()["noise_schedule"]}
    groups: dict[str, dict[str, object]] = {
        "Method": {
            "method": record.method,
            **({} if plan is None else _plan_words(plan)),
            "clip norm": clipping.pop("clip_norm", None),
            "clipping": clipping,
            "optimizer": optimizer if optimizer["name"] else None,
            **update,
            **schedules,
            **others,
        },
        "Training": config["training"],
        "Network": {"network": {"name": network, **(model.pop("arguments", None) or {})}, **model},
        "Data": {"records": None if plan is None or plan.drawn == USER else f"{plan.records:,}", **config["data"]},
        "Statements": config["stated"],
    }
    parts = [Facts(title=title, rows=[*_setting_rows(settings)]) for title, settings in groups.items()]
    return Section(title="Configuration", element="configuration", parts=parts, is_long=True, has_columns=True)


def _plan_words(plan: Plan) -> dict[str, object]:
    passes = plan.steps * plan.sampling_probability
    return {
        "noise multiplier": plan.noise_multiplier,
        "batch size": f"{plan.expected_batch_size:,.10g} expected, of {plan.records:,} {plan.drawn}s",
        "records per user": plan.records_per_user,
        "most records of a user": plan.max_records_per_user,
        "steps": f"{plan.steps:,} ({passes:.4g} epochs)",
        "δ": exactly(plan.delta),
        "adjacency": plan.adjacency.value,
    }


def _setting_rows(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        text = _shape_text(value) if name == "shape" else _setting_text(value)
        if name in _SHAPES or text in _UNSET or (name in _REPEATED and not isinstance(value, str)):
            continue
        yield _NAMES.get(name, str(name).replace("_", " ")), text


def _shape_text(value: object) -> str:
    return " × ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else "–"


def _setting_text(value: object) -> str:
    """A setting as a person would write it: "sgd (momentum 0.9)"."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}" if value else "–"
        case Mapping():
            named = next((key for key in ("kind", "rule", "name") if key in value), None)
            rest = {key: text for key, each in value.items() if key != named and (text := _setting_text(each)) != "–"}
            words = ", ".join(f"{key} {text}" for key, text in rest.items())
            head = "" if named is None else _spaced(str(value[named])) if named == "rule" else str(value[named])
            return f"{head} ({words})" if head and words else head or words or "–"
        case list() | tuple():
            return ", ".join(map(_setting_text, value)) or "–"
        case _:
            return str(value).replace("as_model", "as the model").replace("(reduction='none')", "")


def _spaced(name: str) -> str:
    """The words of a class: "flat clip" of "FlatClip"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


# Several runs.

MOST_RUNS = 20  # on one chart
MEANING = (
    "Because of one record, anything concluded from a model becomes at most e^ε times as likely, except with a "
    "probability of about δ. A smaller ε protects more. Only a proven ε is a guarantee."
)


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The page of 2 to 20 runs."""
    if not 2 <= len(records) <= MOST_RUNS:
        raise InvalidValue("runs", allowed=f"2 to {MOST_RUNS} on one page", given=len(records))
    runs = _named(records)
    rows = [_comparison_row(run) for run in runs]
    table = Table(title="The runs", headings=[*rows[0]], rows=[[*row.values()] for row in rows], style="cards")
    others = [run.name for run in runs if not run.has_epsilon]
    left_out = [note(f"Not on the charts against ε: {'; '.join(others)}.")] if others else []
    return render_page(
        Page(
            title=f"{len(runs)} runs compared",
            heading=f"{len(runs)} runs compared",
            width="wide",
            introduction=[Paragraph(MEANING), *map(warning, _warnings(runs))],
            blocks=[
                Section(title="The runs", parts=[table, *left_out], is_long=True),
                _scores(runs, by_epsilon=True),
                _scores(runs, by_epsilon=False, suffix="-steps"),
                _over_steps(runs),
                _classes(runs),
            ],
            footer=f"Computed by {accounting.version()}.",
        )
    )


def _named(records: Sequence[RunRecord]) -> list[ChartRun]:
    """The runs with distinct names; those without privacy have that in their name."""
    counts = Counter(record.run for record in records)
    runs = []
    for number, record in enumerate(records):
        name = record.run if counts[record.run] == 1 else f"{record.run} ({number + 1}: {record.directory.name})"
        if record.plan is not None and record.plan.simulates is not None:
            name += " [simulation: no privacy]"
        elif claim_of(record) is None:
            name += " [no privacy]"
        runs.append(ChartRun(record=record, name=name, colour=number))
    return runs


def _comparison_row(run: ChartRun) -> dict[str, str]:
    """The row of the table, by its headings."""
    record = run.record
    claim, last, data = claim_of(record), record.last, record.config["data"]
    guarantee, public = f"none: {record.no_privacy_because}", "–"
    if claim is not None:
        unit, public = _stated(record)
        whole = " for the whole search that it was chosen by" if record.trial_of is not None else ""
        certified = "of the plan, not certified" if is_uncertified(record) else "certified"
        guarantee = (
            f"ε = {at_most(claim.epsilon)} at δ = {exactly(claim.delta)}{whole}, {claim.kind} ({certified}), "
            f"for {unit}, {claim.adjacency.value}"
        )
    constants = _constants(record)
    accepted = f", {last.accepted:,} accepted" if last is not None and last.accepted < last.step else ""
    return {
        "run": run.name,
        "guarantee": guarantee,
        "treated as public": public,
        "ε as published": "–" if record.published is None else published_text(record.published),
        "method": record.method,
        "data": f"{data.get('name') or 'unnamed'}, declared {data.get('declared', PRIVATE)}",
        "accuracy": "–" if last is None else f"{last.accuracy_text} on {last.on}",
        "steps taken": f"{record.steps_charged:,}{accepted}",
        **{name: constants.get(name, "–") for name in ("noise multiplier", "clip norm")},
        "minutes": "–" if record.minutes is None else f"{record.minutes:,}",
        "state": record.state.value,
    }


def _warnings(runs: Sequence[ChartRun]) -> Iterator[str]:
    """What makes the runs hard to compare."""
    claims = [claim for run in runs if (claim := claim_of(run.record)) is not None]
    for text, values in (
        ("These runs have different δ: their ε are not comparable", {exactly(claim.delta) for claim in claims}),
        ("These runs have different adjacency: their ε are not comparable", {one.adjacency.value for one in claims}),
        ("These runs were trained on different data", {str(run.record.config["data"].get("name")) for run in runs}),
        ("These runs were evaluated on different records", {on for run in runs for on in run.evaluated_on}),
    ):
        if len(values) > 1:
            yield f"{text} ({', '.join(sorted(values))})."


# Charts. A chart that has nothing to show has no lines.

STEPS, EPSILON = "steps", "ε spent (proven)"
POINTS = 300  # of one chart, all lines together: the page has to stay small
FEWEST_OF_A_LINE = 12
MANY_CLASSES = 30  # more cannot be told apart on a chart, and are sorted instead
CHARGED = (
    "Each point has the ε of a run planned to end there. A run that ended early is still charged for the whole plan: "
    "the dotted line leads to that proven ε."
)
CLASSES = "Only public records are evaluated by class."


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartRun:
    """A run and its name on a chart, empty where it is the only one."""

    record: RunRecord
    name: str = ""
    colour: int | None = None  # the same on every chart

    @property
    def has_epsilon(self) -> bool:
        """Whether each evaluation has an ε that the model itself promises; a trial of a search has none."""
        rows, record = self.record.evaluations, self.record
        is_own = record.trial_of is None and record.is_private
        return is_own and bool(rows) and all(math.isfinite(row.epsilon_spent) for row in rows)

    @property
    def evaluated_on(self) -> tuple[str, ...]:
        """The names of the sets of records that the model was evaluated on."""
        return tuple(dict.fromkeys(row.on for row in self.record.evaluations))

    @property
    def charged(self) -> float | None:
        """The proven ε of a run that ended early, where that is more than it had spent.

        Only a budget that is kept as a filter gives back what was not used.
        """
        record = self.record
        is_filtered = record.certificate is not None and record.certificate.claim.accountant == FILTER
        ended_early = record.state in (State.ACCEPTED, State.STOPPED) and not is_filtered
        if not (self.has_epsilon and ended_early) or record.proven is None:
            return None
        epsilon = rounded_up(record.proven.epsilon, digits=5)
        return epsilon if epsilon > record.evaluations[-1].epsilon_spent else None

    def line(self, name: str, points: Sequence[tuple[float, float]], **style: Any) -> Line:
        """A line in the colour of the run; numbers have six digits, which keeps the page small."""
        xs, ys = [x for x, _ in points], [float(f"{y:.6g}") for _, y in points]
        return Line(name=name, x=xs, y=ys, **{"colour": self.colour, **style})


def _scores(runs: Sequence[ChartRun], *, by_epsilon: bool, suffix: str = "") -> list[Chart]:
    """Accuracy and loss, against ε or against steps; a line for each run and set of records."""
    charts = []
    for name, y_format in (("accuracy", ".0%"), ("loss", "")):
        lines, charged = [], []
        for run in runs if not by_epsilon else [run for run in runs if run.has_epsilon]:
            for number, on in enumerate(run.evaluated_on):
                rows = [row for row in run.record.evaluations if row.on == on and getattr(row, name) is not None]
                if not rows:
                    continue
                title = ", ".join(filter(None, (run.name, on if len(run.evaluated_on) > 1 or not run.name else "")))
                points = [(_epsilon(row) if by_epsilon else row.step, getattr(row, name)) for row in rows]
                lines.append(run.line(title, points))
                if by_epsilon and run.charged is not None:
                    colour = number if run.colour is None else run.colour
                    ends = [points[-1], (run.charged, points[-1][1])]
                    charged.append(run.line(f"{title}, charged", ends, dash="dot", colour=colour))
        if not lines and any(run.evaluated_on for run in runs):  # a regression has no accuracy
            continue
        x_title = EPSILON if by_epsilon else STEPS
        charts.append(
            _chart(
                name + suffix,
                f"{name.capitalize()} against {x_title}",
                runs,
                [*lines, *charged],
                y_title=name,
                y_format=y_format,
                x_title=x_title,
                note=CHARGED if charged else "",
            )
        )
    return charts


def _epsilon(row: Evaluation) -> float:
    return rounded_up(row.epsilon_spent, digits=5)  # still a bound in the digits that are shown


class _Series(NamedTuple):
    """One number of each evaluation, against steps; None is left out."""

    title: str
    y_title: str
    value: Callable[[Evaluation], float | None]
    note: str
    is_of: Callable[[ChartRun], bool] = lambda run: True
    y_format: str = ""
    is_number: bool = False  # shown as a number where it is constant

    def points(self, record: RunRecord) -> list[tuple[int, float]]:
        """Steps and values."""
        by_step = {row.step: self.value(row) for row in record.evaluations}
        return [(step, number) for step, number in by_step.items() if number is not None]


_SERIES = {
    "spent": _Series(
        title="ε spent against steps",
        y_title=EPSILON,
        value=_epsilon,
        note="The ε spent after a step is that of a run planned to end there. A run that stops early because of what "
        "it saw is still charged for all of its planned steps.",
        is_of=lambda run: run.has_epsilon,
    ),
    "acceptance": _Series(
        title="Share of candidates accepted",
        y_title="accepted",
        value=lambda row: row.accepted / row.step if row.step else None,
        note="A rejected candidate is charged like every other.",
        is_of=lambda run: any(row.accepted < row.step for row in run.record.evaluations),
        y_format=".0%",
    ),
    "noise": _Series(
        title="Noise multiplier",
        y_title="noise multiplier",
        value=lambda row: row.noise_multiplier,
        note="The noise over the sensitivity of a sum. It is public: planned, or computed from released values.",
        is_number=True,
    ),
    "clip": _Series(
        title="Clip norm",
        y_title="clip norm",
        value=lambda row: row.clip_norm,
        note="The sensitivity that the noise is scaled by. It is public: scheduled, or computed from released values.",
        is_number=True,
    ),
}


def _constants(record: RunRecord) -> dict[str, str]:
    """The noise multiplier and the clip norm, where the run did not change them."""
    values = {
        each.y_title: {number for _, number in each.points(record)} for each in _SERIES.values() if each.is_number
    }
    return {name: f"{numbers.pop():.6g}, constant" for name, numbers in values.items() if len(numbers) == 1}


def _over_steps(runs: Sequence[ChartRun]) -> list[Chart]:
    """ε, acceptance, noise and clip norm against steps, as far as the runs have them."""
    charts = []
    for element, series in _SERIES.items():
        points_of = [(run, points) for run in filter(series.is_of, runs) if (points := series.points(run.record))]
        if series.is_number and all(len({number for _, number in points}) == 1 for _, points in points_of):
            continue  # a constant is a number and not a chart
        lines = [run.line(run.name or series.y_title, points) for run, points in points_of]
        style = {"y_title": series.y_title, "y_format": series.y_format, "note": series.note, "from_zero": True}
        charts.append(_chart(element, series.title, runs, lines, **style))
    return charts


def _classes(runs: Sequence[ChartRun]) -> Chart:
    """The accuracy of each class at the last evaluation that has it."""
    shares_of = []
    for run in runs:
        rows = [row.accuracy_by_class for row in run.record.evaluations if row.accuracy_by_class]
        if rows and any(share is not None for share in rows[-1]):
            shares_of.append((run, [math.nan if share is None else share for share in rows[-1]]))
    most = max((len(shares) for _, shares in shares_of), default=0)
    style: dict[str, Any] = {"x_title": "class", "x_ticks": tuple(map(float, range(most)))}
    if is_sorted := most > MANY_CLASSES:
        shares_of = [(run, sorted(share for share in shares if math.isfinite(share))) for run, shares in shares_of]
        style = {"x_title": "classes, from the worst to the best"}
    lines = [run.line(run.name or "accuracy", [*enumerate(shares)], is_bars=not is_sorted) for run, shares in shares_of]
    title = "Accuracy of each class"
    return _chart(
        "classes", title, runs, lines, y_title="accuracy", y_format=".0%", note=CLASSES, from_zero=True, **style
    )


def _chart(element: str, title: str, runs: Sequence[ChartRun], lines: Sequence[Line], **style: Any) -> Chart:
    """The chart, with thin lines."""
    most = max(FEWEST_OF_A_LINE, POINTS // max(1, len(lines)))
    style = {"x_title": STEPS, "x_format": "" if style.get("x_title") == EPSILON else ",d", **style}
    return Chart(
        element=element,
        title=title,
        lines=tuple(replace(line, x=thin(line.x, most=most), y=thin(line.y, most=most)) for line in lines),
        has_markers=True,
        names_lines=len(runs) > 1,
        **style,
    )
