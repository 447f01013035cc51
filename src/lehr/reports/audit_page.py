"""Audits as a page of their own, or as sections of a run's page: verdict, bounds, and the curves of the attack."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy import special

from lehr.auditing import Audit, Verdict
from lehr.auditing.audit import (
    NO_GUARANTEE,
    allowed_tradeoff,
    assumptions_text,
    certified_text,
    claimed_text,
    explanation,
    setup_text,
    share_of_claim,
    verdict_text,
)
from lehr.auditing.bounds import GAUSSIAN_TRADEOFF, mu_from_epsilon
from lehr.reports.chart import Chart, Line
from lehr.reports.page import Facts, Page, Paragraph, Section, Table, note, render_page
from lehr.rounding import at_least, at_most

ROC = (
    "Each point is one decision threshold of the attack. Random guessing is the diagonal. The claim says that no "
    "attack gets above its line, whatever else the attacker knows. Dotted: the best possible attack against Gaussian "
    "noise of exactly that ε."
)
METHOD = (
    "Canaries, made-up records with gradients as large as the clipping allows, were put into training or left out, "
    "each by a coin flip. An attacker who sees everything that was released then guesses about each. How often the "
    "guesses are right gives a lower bound on the true ε."
)


def audit_facts(audit: Audit) -> dict[str, str]:
    """The claim, the bounds and what they rest on."""
    facts = {
        "claimed": claimed_text(audit),
        "certified": f"{certified_text(audit)} ({share_of_claim(audit)} of the claim)",
        "decided by": f"{audit.decisive.by}, assuming {assumptions_text(audit.decisive)}",
    }
    for bound in audit.bounds[1:]:
        facts[f"by {bound.by}"] = f"ε ≥ {at_least(bound.epsilon)}, assuming {assumptions_text(bound)}"
    if audit.checks:
        facts["checked"] = "; ".join(
            f"{check.statement} (p = {check.p_value:.2g}{'' if check.passed else ': it does not hold'})"
            for check in audit.checks
        )
    return {**facts, "attack": audit.attack, "setup": setup_text(audit)}


def audit_table(audits: Sequence[Audit]) -> Table:
    """What is claimed and what is certified, a row for each audit."""
    return Table(
        title="Claimed and certified",
        headings=("method", "claimed ε", "certified ε", "share", "verdict"),
        rows=[
            (
                audit.subject,
                at_most(audit.claimed_epsilon),
                at_least(audit.decisive.epsilon),
                share_of_claim(audit),
                verdict_text(audit),
            )
            for audit in audits
        ],
        notes=["Certified is what the attack proves at least. A claimed ε is rounded up, a certified one down."],
    )


def sections(
    audit: Audit, *, title: str, number: int = 0, element: str = "", is_short: bool = False
) -> list[Section | Chart]:
    """The blocks about one audit; ``number`` distinguishes its chart from those of others on the same page."""
    first, *others = explanation(audit)
    rows = [*audit_facts(audit).items()]
    facts = [Facts(rows=rows[:3]), Facts(rows=rows[3:], fold="Other bounds, checks, setup")]
    about = Section(
        title=title,
        element=element,
        badge=verdict_text(audit),
        is_bad=audit.verdict is not Verdict.NOT_REFUTED,
        parts=[Paragraph(first), *map(note, others), *(facts if is_short else [Facts(rows=rows)])],
    )
    return [about, _roc_chart(audit, number)]


def render(audits: Sequence[Audit], *, title: str) -> str:
    """The page of several audits."""
    bad = [audit.verdict for audit in audits if audit.verdict is not Verdict.NOT_REFUTED]
    counts = [f"{bad.count(verdict)} {verdict.name.lower()}" for verdict in dict.fromkeys(bad)]
    summary = f"{' and '.join(counts)} of {len(audits)}" if bad else "Nothing is refuted"
    every = (sections(audit, title=audit.subject, number=number) for number, audit in enumerate(audits))
    return render_page(
        Page(
            title=f"{title}: {summary}",
            heading=title,
            headline=summary,
            is_bad=bool(bad),
            introduction=[Paragraph(METHOD), note(NO_GUARANTEE)],
            blocks=[audit_table(audits), *(block for part in every for block in part)],
            footer=f"Audited by Lehr {' and '.join(sorted({audit.library_version for audit in audits}))}.",
        )
    )


def _roc_chart(audit: Audit, number: int) -> Chart:
    return Chart(
        element=f"audit-roc-{number}",
        title="True against false positives (ROC)",
        note=ROC if number == 0 else "",
        x_title="false positive rate",
        y_title="true positive rate",
        x_format=".0%",
        y_format=".0%",
        from_zero=True,
        lines=tuple(_roc_lines(audit)) if audit.roc else (),
    )


def _roc_lines(audit: Audit) -> Iterator[Line]:
    """The attack, and what it is compared with."""
    yield Line(name="this attack", x=[x for x, _ in audit.roc], y=[y for _, y in audit.roc])
    epsilon, delta = audit.claimed_epsilon, audit.delta
    if math.isfinite(epsilon):
        positives, negatives = allowed_tradeoff(epsilon, delta)
        yield Line(name="the claim", x=positives.tolist(), y=(1 - negatives).tolist())
        if epsilon > 0 and GAUSSIAN_TRADEOFF in audit.decisive.assumes:
            rates = special.ndtr(special.ndtri(positives) + mu_from_epsilon(epsilon, delta=delta))
            yield Line(name="Gaussian noise of that ε", dash="dot", x=positives.tolist(), y=rates.tolist())
    yield Line(name="guessing", dash="dash", x=[0.0, 1.0], y=[0.0, 1.0])
