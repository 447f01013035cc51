"""Audits as a part of a run's page, or as one web page of their own: verdicts, bounds, and what an attack achieves.

The curves are counts as they are; what is certified is said beside them, with its confidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from lehr.auditing import Audit, Verdict
from lehr.auditing.curves import Curve, allowed_tradeoff
from lehr.auditing.gaussian_tradeoff import GAUSSIAN_TRADEOFF, mu_from_epsilon
from lehr.reports import audit_words, page_frame
from lehr.reports.chart import Chart, Line
from lehr.reports.rounding import at_least, at_most

TEMPLATE = "audit_page.html.jinja"
ROC = (
    "Each point is one way to guess who was in the data: to the right, how many of those who were not there are called "
    "members; upwards, how many members are found. Guessing at random is the diagonal. The claim says that no attack "
    "at all gets above its line, whatever else the attacker knows."
)
TRADEOFF = (
    "The same as errors: to the right, calling somebody a member who is not; upwards, missing one who is. The claim "
    "says that both errors together can never be small: no attack gets below its line."
)
GAUSSIAN = (
    " The dotted line is closer: the best that anybody can do against Gaussian noise of just that ε. An attack that "
    "comes near it leaves little room for a smaller ε."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What a page says of one audit."""

    subject: str
    verdict: str
    is_bad: bool
    sentences: tuple[str, ...]
    rows: tuple[tuple[str, str], ...]
    bounds: tuple[tuple[str, str, str, str], ...]
    charts: tuple[Chart, ...]
    explained: tuple[str, ...]  # what each chart shows, once on a page


def part(audit: Audit, *, place: int = 0) -> Part:
    """What is to be said of an audit; ``place`` tells its charts from those of others on the same page."""
    closer = GAUSSIAN if _is_gaussian(audit) else ""
    return Part(
        subject=audit.subject,
        verdict=audit_words.verdict(audit),
        is_bad=audit.verdict is not Verdict.NOT_REFUTED,
        sentences=tuple(audit_words.sentences(audit)),
        rows=tuple(_rows(audit)),
        bounds=tuple(
            (at_least(bound.epsilon), audit_words.percent(bound.confidence), bound.by, audit_words.assumes(bound))
            for bound in audit.bounds
        ),
        charts=tuple(_charts(audit, place)),
        explained=(ROC + closer, TRADEOFF) if place == 0 else (),
    )


def render(audits: Sequence[Audit], *, title: str) -> str:
    """Audits as a page of their own. Everything but the script of plotly is escaped."""
    parts = [part(audit, place=place) for place, audit in enumerate(audits)]
    return page_frame.render(
        TEMPLATE,
        charts=[chart for one in parts for chart in one.charts],
        heading=title,
        summary=_summary(audits),
        is_bad=any(one.is_bad for one in parts),
        audits=parts,
        rows=[
            (
                audit.subject,
                at_most(audit.claimed_epsilon),
                at_least(audit.decisive.epsilon),
                audit_words.share(audit),
                audit_words.verdict(audit),
            )
            for audit in audits
        ],
        versions=" and ".join(sorted({audit.library_version for audit in audits})),
    )


def _summary(audits: Sequence[Audit]) -> str:
    words = {Verdict.REFUTED: "refuted", Verdict.SUSPICIOUS: "suspicious"}
    counts = {word: sum(audit.verdict is kind for audit in audits) for kind, word in words.items()}
    found = [f"{count} {word}" for word, count in counts.items() if count]
    return f"{' and '.join(found)}, of {len(audits)}" if found else "Nothing is refuted"


def _rows(audit: Audit) -> Iterator[tuple[str, str]]:
    yield "Claimed", audit_words.claimed(audit)
    yield "Certified", audit_words.certified(audit)
    yield "Game", audit.game
    yield "Played", audit_words.played(audit)
    for check in audit.checks:
        yield "Checked", f"{check.statement} (p = {check.p_value:.2g}{'' if check.passed else ': it does not hold'})"


def _charts(audit: Audit, place: int) -> Iterator[Chart]:
    if not audit.roc:
        return
    positives, found = ([point[side] for point in audit.roc] for side in (0, 1))
    lines = [("this attack", "solid", positives, [1 - rate for rate in found]), *_compared(audit)]
    yield Chart(
        element=f"audit-roc-{place}",
        x_title="false positive rate",
        y_title="true positive rate",
        x_format=".0%",
        y_format=".0%",
        point="%{y:.1%} found<br>at %{x:.1%} false alarms",
        has_markers=False,
        from_zero=True,
        lines=tuple(Line(name=name, dash=dash, x=x, y=[1 - rate for rate in y]) for name, dash, x, y in lines),
    )
    yield Chart(
        element=f"audit-tradeoff-{place}",
        x_title="false positive rate",
        y_title="false negative rate",
        x_format=".0%",
        y_format=".0%",
        point="%{y:.1%} missed<br>at %{x:.1%} false alarms",
        has_markers=False,
        from_zero=True,
        lines=tuple(Line(name=name, dash=dash, x=x, y=y) for name, dash, x, y in lines),
    )


def _compared(audit: Audit) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """What the attack is to be seen against: false negative rates over false positive rates."""
    if math.isfinite(audit.claimed_epsilon):
        yield "the claim", "solid", *_points(allowed_tradeoff(audit.claimed_epsilon, audit.delta))
        if _is_gaussian(audit):
            yield "Gaussian noise of that ε", "dot", *_points(_gaussian(audit.claimed_epsilon, audit.delta))
    yield "guessing", "dash", [0.0, 1.0], [1.0, 0.0]


def _is_gaussian(audit: Audit) -> bool:
    return GAUSSIAN_TRADEOFF in audit.decisive.assumes and 0 < audit.claimed_epsilon < math.inf


def _gaussian(epsilon: float, delta: float) -> Curve:
    """The trade-off of Gaussian noise that has this ε at δ, and no smaller one."""
    positives = allowed_tradeoff(epsilon, delta).false_positive_rates
    rates = special.ndtr(-special.ndtri(positives) - mu_from_epsilon(epsilon, delta=delta))
    return Curve(false_positive_rates=positives, rates=np.asarray(rates))


def _points(curve: Curve) -> tuple[list[float], list[float]]:
    return curve.false_positive_rates.tolist(), curve.rates.tolist()
