"""Audits as a page of their own, or as sections of a run's page: verdict, bounds, and the curves of the attack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import special

from lehr.auditing import Audit, Floats, Verdict
from lehr.auditing.audit import (
    NO_GUARANTEE,
    allowed_tradeoff,
    assumptions_text,
    certified_text,
    claimed_text,
    explanation,
    percent,
    setup_text,
    share_of_claim,
    verdict_text,
)
from lehr.auditing.bounds import GAUSSIAN_TRADEOFF, mu_from_epsilon
from lehr.reports.chart import Chart, Line
from lehr.reports.page import Facts, Page, Paragraph, Section, Table, figure, note, render_page
from lehr.rounding import at_least, at_most

ROC = (
    "Each point is one decision threshold of the attack. Random guessing is the diagonal. The claim says that no "
    "attack gets above its line, whatever else the attacker knows."
)
TRADEOFF = "The same as two errors: the claim says that no attack gets below its line."
GAUSSIAN = " The dotted line is the best possible attack against Gaussian noise of exactly that ε."
METHOD = (
    "Canaries, made-up records with gradients as large as the clipping allows, were put into training or left out, "
    "each by a coin flip. An attacker who sees everything that was released then guesses about each. How often the "
    "guesses are right gives a lower bound on the true ε."
)


def sections(audit: Audit, *, title: str, number: int = 0) -> list[Section | Sequence[Section]]:
    """The sections about one audit; ``number`` distinguishes its charts from those of others on the same page."""
    first, *others = explanation(audit)
    rows = [
        ("Claimed", claimed_text(audit)),
        ("Certified", certified_text(audit)),
        ("Attack", audit.attack),
        ("Setup", setup_text(audit)),
        *(
            ("Checked", f"{check.statement} (p = {check.p_value:.2g}{'' if check.passed else ': it does not hold'})")
            for check in audit.checks
        ),
    ]
    bounds = [
        (
            at_least(bound.epsilon),
            percent(bound.confidence),
            bound.by + (" (decides)" if place == 0 else ""),
            assumptions_text(bound),
        )
        for place, bound in enumerate(audit.bounds)
    ]
    about = Section(
        title=title,
        badge=verdict_text(audit),
        is_bad=audit.verdict is not Verdict.NOT_REFUTED,
        parts=[
            Paragraph(first),
            *map(note, others),
            Facts(rows=rows),
            Table(
                title="Bounds and their assumptions",
                has_heading=True,
                headings=("ε ≥", "Confidence", "Bound", "Assumes"),
                rows=bounds,
            ),
        ],
    )
    return [about, tuple(map(figure, _charts(audit, number)))]


def render(audits: Sequence[Audit], *, title: str) -> str:
    """The page of several audits."""
    counts = [(word, sum(audit.verdict is kind for audit in audits)) for kind, word in _BAD.items()]
    found = [f"{count} {word}" for word, count in counts if count]
    summary = f"{' and '.join(found)} of {len(audits)}" if found else "Nothing is refuted"
    overview = Table(
        title="Claimed and certified",
        headings=("Attacked", "Verdict", "Claimed ε", "Certified ε", "Share"),
        rows=[
            (
                audit.subject,
                verdict_text(audit),
                at_most(audit.claimed_epsilon),
                at_least(audit.decisive.epsilon),
                share_of_claim(audit),
            )
            for audit in audits
        ],
        numeric=(False, False, True, True, True),
        notes=["Certified is what the attack proves at least. A claimed ε is rounded up, a certified one down."],
    )
    every = (sections(audit, title=audit.subject, number=number) for number, audit in enumerate(audits))
    return render_page(
        Page(
            title=f"{title}: {summary}",
            heading=title,
            headline=summary,
            is_bad=bool(found),
            introduction=[Paragraph(METHOD), note(NO_GUARANTEE)],
            blocks=[Section(title="Claimed and certified", parts=[overview]), *(one for part in every for one in part)],
            footer=f"Audited by Lehr {' and '.join(sorted({audit.library_version for audit in audits}))}.",
        )
    )


_BAD = {Verdict.REFUTED: "refuted", Verdict.SUSPICIOUS: "suspicious"}


def _charts(audit: Audit, number: int) -> Iterator[Chart]:
    if not audit.roc:
        return
    positives, found = ([point[side] for point in audit.roc] for side in (0, 1))
    lines = [("this attack", "solid", positives, [1 - rate for rate in found]), *_references(audit)]
    closer = GAUSSIAN if _is_gaussian(audit) else ""
    for kind, title, y_title, text in (
        ("roc", "True against false positives (ROC)", "true positive rate", ROC + closer),
        ("tradeoff", "Both errors (trade-off)", "false negative rate", TRADEOFF),
    ):
        yield Chart(
            element=f"audit-{kind}-{number}",
            title=title,
            note=text if number == 0 else "",
            x_title="false positive rate",
            y_title=y_title,
            x_format=".0%",
            y_format=".0%",
            point="%{y:.1%}<br>at %{x:.1%} false positives",
            from_zero=True,
            lines=tuple(
                Line(name=name, dash=dash, x=x, y=y if kind == "tradeoff" else [1 - rate for rate in y])
                for name, dash, x, y in lines
            ),
        )


def _references(audit: Audit) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """Lines to compare the attack with: false negative rates over false positive rates."""
    if math.isfinite(audit.claimed_epsilon):
        yield "the claim", "solid", *_points(allowed_tradeoff(audit.claimed_epsilon, audit.delta))
        if _is_gaussian(audit):
            yield "Gaussian noise of that ε", "dot", *_points(_gaussian(audit.claimed_epsilon, audit.delta))
    yield "guessing", "dash", [0.0, 1.0], [1.0, 0.0]


def _is_gaussian(audit: Audit) -> bool:
    return GAUSSIAN_TRADEOFF in audit.decisive.assumes and 0 < audit.claimed_epsilon < math.inf


def _gaussian(epsilon: float, delta: float) -> tuple[Floats, Floats]:
    """The trade-off curve of Gaussian noise with exactly this ε at δ."""
    positives, _ = allowed_tradeoff(epsilon, delta)
    return positives, special.ndtr(-special.ndtri(positives) - mu_from_epsilon(epsilon, delta=delta))


def _points(curve: tuple[Floats, Floats]) -> tuple[list[float], list[float]]:
    return curve[0].tolist(), curve[1].tolist()
