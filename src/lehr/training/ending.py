"""What is left of a run that is over: weights, a certificate where one can be given, and a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from lehr.attempts import Allowance
from lehr.claims import Claim
from lehr.events import Event
from lehr.files import whole_file
from lehr.ledger import Ledger
from lehr.planning.plan import Plan
from lehr.planning.search_cost import Paid, RepeatedSelection
from lehr.reports import certificate_file, issuing, run_page, run_reading
from lehr.reports.certificate import Certificate, SharedBudget, Statements
from lehr.run_folder import RunFolder
from lehr.run_shape import End, Evaluation


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A run that is over. ``certificate`` is missing where nobody stated how the settings were chosen.

    ``proven`` is what holds for all that the plan allowed; its ε is infinite where nothing does. Where the run followed
    its paper's rule, ``published`` is what that rule says: a broken one names the reason, and is no guarantee.
    """

    directory: Path
    model: nn.Module
    plan: Plan
    end: End
    evaluations: tuple[Evaluation, ...]
    certificate: Certificate | None
    proven: Claim
    published: Claim | None = None
    promises_nothing: str | None = None  # why, where no run of this kind is certified: simulations, public records

    @property
    def accuracy(self) -> float | None:
        """That of the last evaluation."""
        return self.evaluations[-1].accuracy if self.evaluations else None


def certificate_for(
    allowance: Allowance,
    plan: Plan,
    stated: Statements,
    *,
    charged: Event | None = None,
    shared: SharedBudget | None = None,
    published: Claim | None = None,
    search: Paid | None = None,
) -> Certificate:
    """The certificate of a run at all that its plan allows; before the run it shows that there can be one.

    That of a trial is for the whole search. What was charged says nothing of what a selection could have shown.
    """
    event, cost = (allowance.event, None) if search is None else search.certified(allowance.event)
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


def close_ledger(ledger: Ledger, *, accepted: int) -> None:
    """Note how many candidates were accepted, and let nothing more be charged. Again, it does no harm."""
    if not ledger.is_finished():
        ledger.accepted(max(0, accepted - ledger.accepted_count()))
        ledger.finish()


def write(folder: RunFolder, weights: dict[str, Tensor], certificate: Certificate | None) -> None:
    """Put everything into the folder. Doing so again, after a crash in between, does no harm."""
    content = save({name: value.detach().cpu().contiguous().clone() for name, value in weights.items()})
    whole_file.write_bytes(folder.files.model, content)
    if certificate is not None:
        certificate_file.write(folder.files.certificate, certificate, overwrite=True)
    page = run_page.render(run_reading.read_run(folder.files.directory))
    whole_file.write(folder.files.report, page, overwrite=True)
