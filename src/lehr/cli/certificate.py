"""``lehr certificate`` and ``lehr release``: issue, show and check certificates, and release models with them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from lehr.accounting.events import Event
from lehr.accounting.ledger import Ledger
from lehr.certificates import issuing
from lehr.certificates.certificate import (
    NOT_STATED,
    Certificate,
    SharedBudget,
    Statements,
    certificate_text,
    certificate_to_json,
    read_certificate,
    write_certificate,
)
from lehr.certificates.checking import mismatches
from lehr.certificates.guarantee import claim_summary, delta_warning, published_text
from lehr.certificates.issuing import shared_budget
from lehr.cli import common
from lehr.cli.plan import read_plan, refuse_other_adjacency, steps_of
from lehr.errors import InvalidValue
from lehr.files import atomic
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan

CertificateFile = Annotated[Path, Argument(metavar="FILE", help="The certificate.")]

_ISSUE = """  lehr plan --steps 4698 --delta 1e-5 --records 60000 --expected-batch-size 512 \\
      --noise-multiplier 1.23 --save plan.json --no-chart
  lehr certificate issue certificate.json --plan plan.json --settings-chosen-on public \\
      --treated-as-public "the number of records" --steps-taken 4000
"""

_CHECK = "  lehr certificate check certificate.json\n"

app = common.group_app("Issue, show and check the privacy certificate of a model.", _ISSUE, _CHECK)


@app.command(epilog=common.example(_ISSUE))
def issue(
    file: CertificateFile,
    plan: Annotated[Path, Option(metavar="PLAN", help="The plan of the run, fixed before it began.")],
    settings_chosen_on: Annotated[str, Option(help="How the settings were chosen: fixed, public or private.")],
    settings_cost: Annotated[Path | None, Option(metavar="PLAN", help="If private: the plan of that search.")] = None,
    unit_of_privacy: Annotated[str, Option(help="What one record is.")] = "one record",
    records_per_person: Annotated[int | None, Option(help="Largest number of records of one person.")] = None,
    treated_as_public: Annotated[list[str] | None, Option(help="What is public; repeatable.")] = None,
    released: Annotated[list[str] | None, Option(help="What is released; repeatable.")] = None,
    raw_data_seen_by: Annotated[str | None, Option(help="Who must be trusted with the raw data.")] = None,
    data_collection: Annotated[str | None, Option(help="How the data was collected.")] = None,
    steps_taken: Annotated[int | None, Option(help="Steps that were taken; not needed with --budget.")] = None,
    ledger: Annotated[Path | None, Option(metavar="LEDGER", help="Read the steps from this ledger.")] = None,
    budget: Annotated[Path | None, Option(metavar="BUDGET", help="The budget that paid for the run.")] = None,
    run: Annotated[str | None, Option(help="The name of the run in the budget.")] = None,
    overwrite: common.Overwrite = False,
    json: common.Json = False,
) -> None:
    """Issue a certificate for all steps that a plan allows. Only a proven, finite ε is certified."""
    atomic.refuse_to_replace(file, overwrite=overwrite)
    made = _read_real_plan(plan)
    stated = Statements(
        settings_chosen_on=settings_chosen_on,
        unit_of_privacy=unit_of_privacy,
        records_per_person=records_per_person,
        records=made.records,
        treated_as_public=tuple(treated_as_public or ()),
        released=tuple(released or ("the trained model",)),
        raw_data_seen_by=raw_data_seen_by or NOT_STATED,
        data_collection=data_collection or NOT_STATED,
    ).of_unit(made.unit_text)
    with common.working("Counting"):
        certificate = issuing.issue(
            made.event,
            delta=made.delta,
            adjacency=made.adjacency,
            stated=stated,
            charged=_charged(made, run=run, steps_taken=steps_taken, ledger=ledger),
            settings_cost=_settings_cost(made, settings_cost),
            budget=_budget(budget, run),
        )
    write_certificate(file, certificate, overwrite=overwrite)
    text = f"{file}: ε = {common.epsilon_text(certificate)}, proven"
    common.print_answer(certificate_to_json(certificate), text, json=json)


def _read_real_plan(path: Path) -> Plan:
    """A plan, but no simulation: that is for records that need no protection, and guarantees nothing."""
    plan = read_plan(path)
    if plan.simulates is not None:
        raise InvalidValue("plan", allowed="no simulation, which is never certified", given="a simulation")
    return plan


def _charged(plan: Plan, *, run: str | None, steps_taken: int | None, ledger: Path | None) -> Event | None:
    if ledger is not None:
        common.refuse("ledger", steps_taken=steps_taken)
        with Ledger.open(ledger) as book:
            book.check_same(run=run, plan_event=plan.event, adjacency=plan.adjacency)
            return book.charged()
    return None if steps_taken is None else steps_of(plan.event, steps_taken=steps_taken)


def _settings_cost(plan: Plan, path: Path | None) -> Event | None:
    if path is None:
        return None
    search = _read_real_plan(path)
    refuse_other_adjacency(search.adjacency, expected=plan.adjacency)
    return search.event


def _budget(path: Path | None, run: str | None) -> SharedBudget | None:
    if path is None and run is None:
        return None
    with Budget.open(common.required(budget=path)) as budget:
        return shared_budget(budget.status(), run=common.required(run=run))


@app.command(epilog=common.example(_ISSUE, "  lehr certificate show certificate.json\n"))
def show(file: CertificateFile, json: common.Json = False) -> None:
    """Show a certificate as text. If it does not hold, the reasons come first and the exit code is 1."""
    certificate, wrong = _read_and_check(file)
    text = certificate_text(certificate, mismatches=wrong).rstrip()
    common.print_answer(certificate_to_json(certificate), text, json=json)
    _refuse(file, wrong)


@app.command(epilog=common.example(_ISSUE, _CHECK))
def check(file: CertificateFile, json: common.Json = False) -> None:
    """Recompute a certificate from its events. Exit code 1 if the result differs."""
    certificate, wrong = _read_and_check(file)
    if json:
        numbers = {"epsilon": certificate.epsilon, "delta": certificate.delta}
        common.print_json({"holds": not wrong, "mismatches": wrong, **numbers})
    elif not wrong:
        common.print_line(f"The certificate holds: ε = {common.epsilon_text(certificate)}.")
        common.print_line("That its events took place, and what it states about the data, is the word of its issuer.")
        records = certificate.stated.records
        if records is not None and (caution := delta_warning(certificate.delta, records=records)) is not None:
            common.print_line(f"Caution: {caution}.")
    _refuse(file, wrong)


def _read_and_check(file: Path) -> tuple[Certificate, tuple[str, ...]]:
    certificate = read_certificate(file)
    with common.working("Recomputing"):
        return certificate, mismatches(certificate)


def _refuse(file: Path, mismatches: tuple[str, ...]) -> None:
    for mismatch in mismatches:
        common.complain(f"{file}: {mismatch}")
    if mismatches:
        raise Exit(common.NO)


# lehr release


def release(
    run: Annotated[Path, Argument(metavar="RUN", help="The folder of the run.")],
    to: Annotated[Path, Option(metavar="FOLDER", help="A new folder for the model.")],
    settings_chosen_on: Annotated[
        str | None, Option(help="How the settings were chosen, if the run does not state it: fixed or public.")
    ] = None,
    budget: Annotated[Path | None, Option(metavar="BUDGET", help="The budget that paid for the run.")] = None,
    allow_no_privacy: Annotated[
        bool, Option("--allow-no-privacy", help="Release a model without any privacy guarantee.")
    ] = False,
    json: common.Json = False,
) -> None:
    """Write the model of a run, its certificate and its card to a new folder, and destroy the run's key.

    Nothing private is released. Afterwards the run can be neither resumed nor replayed.
    """
    from lehr.certificates import release

    with common.working("Checking the certificate, and releasing"):
        made = release.release(
            run, to, settings_chosen_on=settings_chosen_on, budget=budget, allow_no_privacy=allow_no_privacy
        )
    certificate, files = made.certificate, sorted(path.name for path in made.directory.iterdir())
    shape = {
        "released": made.directory,
        "files": files,
        "epsilon": certificate and certificate.epsilon,
        "delta": certificate and certificate.delta,
        "published": claim_summary(made.published),
    }
    promise = "no privacy guarantee"
    if certificate is not None:
        promise = f"ε = {common.epsilon_text(certificate)}, {certificate.claim.kind}"
    common.print_answer(
        shape,
        f"{made.directory}: {promise}",
        *([] if made.published is None else [f"ε as published: {published_text(made.published)}"]),
        *(f"  {name}" for name in files),
        "The run's key and everything else in its private folder are destroyed.",
        json=json,
    )


release_command = common.command_app(release, common.TRAIN, common.RELEASE)
certificate_command = app
