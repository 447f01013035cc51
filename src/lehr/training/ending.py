"""The end of a run: its certificate, its report, and the ``Run`` that ``fit`` returns."""

from __future__ import annotations

import html
import math
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from lehr.accounting.claims import Claim
from lehr.accounting.events import Event
from lehr.certificates import issuing, run_reading
from lehr.certificates.certificate import Certificate, SharedBudget, Statements, write_certificate
from lehr.files import atomic
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import RECORD, Plan
from lehr.planning.search_cost import RepeatedSelection, SearchPrice
from lehr.reports import run_page
from lehr.rounding import at_most, exactly
from lehr.run.folder import RunFolder
from lehr.run.replay import RunPlan
from lehr.run.shape import End, Evaluation, RunFiles


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Run:
    """A finished run. ``certificate`` is None unless ``settings_chosen_on`` was given: ``no_certificate_because``.

    ``proven`` is the claim for everything the plan allowed; its ε is infinite if nothing is proven. ``published`` is
    the claim by the paper's rule, if the run follows it. If that rule is broken, the claim gives the reason.
    """

    directory: Path
    model: nn.Module
    plan: Plan
    end: End
    evaluations: tuple[Evaluation, ...]
    certificate: Certificate | None
    proven: Claim
    published: Claim | None = None
    promises_nothing: str | None = None  # why runs of this kind are never certified
    is_withheld: bool = False  # the settings were chosen on these records by earlier fits of this process

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None

    @property
    def no_certificate_because(self) -> str:
        """Why there is no certificate, and what adds one; empty if there is one."""
        if self.certificate is not None:
            return ""
        if self.promises_nothing is not None or not math.isfinite(self.proven.epsilon):
            return f"nothing is guaranteed: {self.promises_nothing or 'it was trained without noise that is enough'}"
        if self.is_withheld:
            return "earlier fits of this process chose the settings on these records; give every fit the same budget="
        return (
            "pass settings_chosen_on= to fit: 'fixed', 'public' or 'private'; "
            f"for this run: lehr release {shlex.quote(str(self.directory))} --to FOLDER --settings-chosen-on fixed"
        )

    def write_report(self, path: Path | str | None = None, *, baseline: Run | None = None) -> Path:
        """Write the report, by default over the one in the run folder, and return its path.

        ``baseline`` is a run of the same network without privacy, whose accuracy is then shown beside. It was computed
        without noise: ε does not cover it.
        """
        to = Path(path) if path is not None else RunFiles(self.directory).report
        plain = None if baseline is None else run_reading.read_run(baseline.directory)
        page = run_page.render(run_reading.read_run(self.directory), baseline=plain)
        atomic.write(to, page, overwrite=True)
        return to

    def _facts(self) -> dict[str, str]:
        promised = self.proven if self.certificate is None else self.certificate
        unit = "" if self.plan.unit == RECORD else f", for {self.plan.unit_text}"
        guarantee = f"{at_most(promised.epsilon)} at δ = {exactly(promised.delta)}, {self.proven.kind}{unit}"
        if self.promises_nothing is not None or not math.isfinite(promised.epsilon):
            guarantee = "no privacy"
        score, value = self.evaluations[-1].score if self.evaluations else ("accuracy", "not evaluated")
        return {
            "directory": str(self.directory),
            "ended": f"{self.end.reason}, {self.end.step:,} steps",
            "ε": guarantee,
            score: value,
            "certificate": "issued" if self.certificate is not None else f"none: {self.no_certificate_because}",
            "report": str(RunFiles(self.directory).report),
        }

    def __repr__(self) -> str:
        return "\n".join(("Run", *(f"  {name + ':':13}{value}" for name, value in self._facts().items())))

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
            for name, value in self._facts().items()
        )
        return f"<table>{''.join(rows)}</table>"


def certificate_for(
    run_plan: RunPlan,
    plan: Plan,
    stated: Statements,
    *,
    charged: Event | None = None,
    shared: SharedBudget | None = None,
    published: Claim | None = None,
    search: SearchPrice | None = None,
) -> Certificate:
    """The certificate for everything the plan allows; for a trial, for the whole search.

    Before a run, this checks that it can be certified. ``charged`` is ignored for a selection among several trials,
    because other trials could have been selected.
    """
    event, cost = (run_plan.event, None) if search is None else search.certified(run_plan.event)
    return issuing.issue(
        event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        stated=stated,
        settings_cost=cost,
        charged=None if isinstance(search, RepeatedSelection) else charged,
        budget=shared,
        published_claims=() if published is None or published.is_proven else (published,),
    )


def write(folder: RunFolder, certificate: Certificate | None) -> None:
    """Write the certificate and the report to the run folder. It can be called again after a crash."""
    if certificate is not None:
        write_certificate(folder.files.certificate, certificate, overwrite=True)
    _write_report(folder)


def _write_report(folder: RunFolder) -> None:
    page = run_page.render(run_reading.read_run(folder.files.directory))
    atomic.write(folder.files.report, page, overwrite=True)


@contextmanager
def report_if_interrupted(folder: RunFolder | None) -> Iterator[None]:
    """Write the report of what was done if Ctrl-C ends the run. Only rank 0 has the folder."""
    try:
        yield
    except KeyboardInterrupt:
        if folder is not None:
            _write_report(folder)
        raise


def dataset_of(budget: Path) -> str:
    """The data set of a budget."""
    with Budget.open(budget) as account:
        return account.dataset


def expected_budget(budget: Path, run_plan: RunPlan, run: str) -> SharedBudget:
    """The budget as it will be after it has reserved the run's plan."""
    with Budget.open(budget) as account:
        status = account.status()
    others = tuple(paid for paid in status.runs if paid.run != run)
    ours = RunStatus(run=run, reserved=run_plan.event)
    return issuing.shared_budget(replace(status, runs=(*others, ours)), run=run)


def shared_budget(budget: Path, run: str) -> SharedBudget:
    """The budget as it is, for the certificate of a run that it pays for."""
    with Budget.open(budget) as account:
        return issuing.shared_budget(account.status(), run=run)
