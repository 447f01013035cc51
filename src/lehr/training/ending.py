"""The end of a run: its certificate, its report, and the ``Run`` that ``fit`` returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from lehr.accounting.claims import Claim
from lehr.accounting.events import Event
from lehr.certificates import issuing, run_reading
from lehr.certificates.certificate import Certificate, SharedBudget, Statements, write_certificate
from lehr.files import atomic
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.plan import Plan
from lehr.planning.search_cost import RepeatedSelection, SearchPrice
from lehr.reports import run_page
from lehr.run.folder import RunFolder
from lehr.run.replay import RunPlan
from lehr.run.shape import End, Evaluation


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A finished run. ``certificate`` is None unless ``settings_chosen_on`` was given.

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

    @property
    def accuracy(self) -> float | None:
        """The accuracy of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None


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
    page = run_page.render(run_reading.read_run(folder.files.directory))
    atomic.write(folder.files.report, page, overwrite=True)


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
