"""``lehr certificate``: what a released model promises, issued, shown and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.failing import NO, Commands, complain
from lehr.cli.options import (
    Json,
    Overwrite,
    example,
    read_plan,
    refuse,
    refuse_other_adjacency,
    required,
    steps_of,
)
from lehr.errors import InvalidValue
from lehr.events import Event
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.planning.plan import Plan
    from lehr.reports.certificate import AuditResult, Certificate, SharedBudget

CertificateFile = Annotated[Path, typer.Argument(metavar="FILE", help="The certificate.")]

_ISSUE = """  lehr plan --steps 4698 --delta 1e-5 --records 60000 --expected-batch-size 512 \\
      --noise-multiplier 1.23 --save plan.json --no-chart
  lehr certificate issue certificate.json --plan plan.json --settings-chosen-on public \\
      --treated-as-public "the number of records" --steps-taken 4000
"""

app = typer.Typer(
    cls=Commands,
    help="What a released model promises: issue, show and check.",
    epilog=example(_ISSUE, "  lehr certificate check certificate.json\n"),
    rich_markup_mode=None,
)


@app.command(epilog=example(_ISSUE))
def issue(
    file: CertificateFile,
    plan: Annotated[Path, typer.Option(metavar="PLAN", help="The plan of the run, fixed before it began.")],
    settings_chosen_on: Annotated[str, typer.Option(help="fixed (before any data was seen), public or private data.")],
    settings_cost: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="The plan of what chose the settings on private data.")
    ] = None,
    unit_of_privacy: Annotated[str, typer.Option(help="What one record is.")] = "one record",
    records_per_person: Annotated[int | None, typer.Option(help="The most records that one person may have.")] = None,
    treated_as_public: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    released: Annotated[list[str] | None, typer.Option(help="May be given several times.")] = None,
    raw_data_seen_by: Annotated[str | None, typer.Option(help="Who must be trusted with the raw data.")] = None,
    data_collection: Annotated[str | None, typer.Option(help="How the data was collected.")] = None,
    steps_taken: Annotated[int | None, typer.Option(help="Steps that were taken; a budget knows them.")] = None,
    ledger: Annotated[Path | None, typer.Option(metavar="LEDGER", help="Instead of --steps-taken.")] = None,
    budget: Annotated[Path | None, typer.Option(metavar="BUDGET", help="The budget that paid for the run.")] = None,
    run: Annotated[str | None, typer.Option(help="The name of the run in the budget.")] = None,
    audit_method: Annotated[str | None, typer.Option(help="How the model was attacked.")] = None,
    audit_epsilon: Annotated[float | None, typer.Option(help="The ε that the attack shows at least.")] = None,
    audit_confidence: Annotated[float | None, typer.Option(help="The confidence of the attack, such as 0.95.")] = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Issue a certificate for the largest number of steps that a plan allows. Only a proven, finite ε is certified."""
    from lehr.files import whole_file
    from lehr.reports import certificate_file, issuing
    from lehr.reports.certificate import NOT_STATED, Statements

    whole_file.refuse_to_replace(file, overwrite=overwrite)
    made = read_plan(plan)
    _refuse_simulation(made)
    stated = Statements(
        settings_chosen_on=settings_chosen_on,
        unit_of_privacy=unit_of_privacy,
        records_per_person=records_per_person,
        records=made.records,
        treated_as_public=tuple(treated_as_public or ()),
        released=tuple(released or ("the trained model",)),
        raw_data_seen_by=raw_data_seen_by or NOT_STATED,
        data_collection=data_collection or NOT_STATED,
    )
    with answering.working("Counting"):
        certificate = issuing.issue(
            made.event,
            delta=made.delta,
            adjacency=made.adjacency,
            stated=stated,
            charged=_charged(made, run=run, steps_taken=steps_taken, ledger=ledger),
            settings_cost=_settings_cost(made, settings_cost),
            budget=_budget(budget, run),
            audit=_audit(audit_method, audit_epsilon, audit_confidence),
        )
    certificate_file.write(file, certificate, overwrite=overwrite)
    if json:
        answering.as_json(certificate_file.to_json(certificate))
    else:
        answering.line(f"{file}: ε = {at_most(certificate.epsilon)} at δ = {exactly(certificate.delta)}, proven")


@app.command(epilog=example(_ISSUE, "  lehr certificate show certificate.json\n"))
def show(file: CertificateFile, json: Json = False) -> None:
    """Show a certificate as a page of text, headed by what is wrong with it (exit code 1) where it does not hold."""
    from lehr.reports import certificate_file, wording

    certificate = certificate_file.read(file)
    found = _mismatches(certificate)
    if json:
        answering.as_json(certificate_file.to_json(certificate))
    else:
        for line in wording.page(certificate, mismatches=found).rstrip().split("\n"):
            answering.line(answering.printable(line))
    _refuse(file, found)


@app.command(epilog=example(_ISSUE, "  lehr certificate check certificate.json\n"))
def check(file: CertificateFile, json: Json = False) -> None:
    """Recompute a certificate from its events; exit code 1 where it says anything else."""
    from lehr.reports import certificate_file
    from lehr.reports.promising import delta_caution

    certificate = certificate_file.read(file)
    found = _mismatches(certificate)
    if json:
        answering.as_json(
            {"holds": not found, "mismatches": found, "epsilon": certificate.epsilon, "delta": certificate.delta}
        )
    elif not found:
        answering.line(
            f"The certificate holds: ε = {at_most(certificate.epsilon)} at δ = {exactly(certificate.delta)}."
        )
        answering.line("That its events took place, and what it states about the data, is the word of its issuer.")
        records = certificate.stated.records
        if records is not None and (caution := delta_caution(certificate.delta, records=records)) is not None:
            answering.line(f"Caution: {caution}.")
    _refuse(file, found)


def _mismatches(certificate: Certificate) -> tuple[str, ...]:
    from lehr.reports.checking import mismatches

    with answering.working("Recomputing"):
        return mismatches(certificate)


def _refuse(file: Path, mismatches: tuple[str, ...]) -> None:
    for mismatch in mismatches:
        complain(f"{file}: {mismatch}")
    if mismatches:
        raise typer.Exit(NO)


def _refuse_simulation(plan: Plan) -> None:
    """A simulation is for records that need no protection, and promises nothing."""
    if plan.simulates is not None:
        raise InvalidValue("plan", allowed="no simulation, which is never certified", given="a simulation")


def _charged(plan: Plan, *, run: str | None, steps_taken: int | None, ledger: Path | None) -> Event | None:
    if ledger is not None:
        from lehr.ledger import Ledger

        refuse("ledger", steps_taken=steps_taken)
        with Ledger.open(ledger) as book:
            book.refuse_other(run=run, plan_event=plan.event, adjacency=plan.adjacency)
            return book.charged()
    return None if steps_taken is None else steps_of(plan.event, steps_taken=steps_taken)


def _settings_cost(plan: Plan, path: Path | None) -> Event | None:
    if path is None:
        return None
    search = read_plan(path)
    _refuse_simulation(search)
    refuse_other_adjacency(search.adjacency, expected=plan.adjacency)
    return search.event


def _budget(path: Path | None, run: str | None) -> SharedBudget | None:
    if path is None:
        if run is not None:
            required(budget=path)
        return None
    from lehr.planning.budget import Budget
    from lehr.reports.issuing import shared_budget

    with Budget.open(path) as budget:
        return shared_budget(budget.status(), run=required(run=run))


def _audit(method: str | None, epsilon: float | None, confidence: float | None) -> AuditResult | None:
    if method is None and epsilon is None and confidence is None:
        return None
    from lehr.reports.certificate import AuditResult

    return AuditResult(
        method=required(audit_method=method),
        epsilon_lower_bound=required(audit_epsilon=epsilon),
        confidence=required(audit_confidence=confidence),
    )
