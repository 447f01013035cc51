"""``lehr audit``: attack a run, a configuration or a method, and compare the certified ε with the claimed one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from lehr import validate
from lehr.auditing import Audit, Verdict
from lehr.auditing.audit import NO_GUARANTEE, explanation, percent, verdict_text
from lehr.auditing.bounds import check_confidence
from lehr.cli import common
from lehr.config import DATA_FORMS, RunConfig
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic
from lehr.reports import audit_file, audit_page
from lehr.reports.audit_file import AuditUpdate
from lehr.reports.progress import TrainingProgress
from lehr.rounding import exactly

if TYPE_CHECKING:
    from lehr.attacks.subjects import Subject

STEPS, MODEL = "steps", "model"
RECORDS = (*(part + form for part in ("", "test_", "public_") for form in DATA_FORMS), "image_side", "channels")
PRIVATE = (
    "This is PRIVATE: it was computed from the records themselves, without noise, and is for their owner alone. "
    "It is neither in the certificate nor on the page of the run. Do not publish it."
)


@common.config_options(*RECORDS, "data_dir")
def audit(
    what: Annotated[
        Path | None, Argument(metavar="[RUN|CONFIG.toml]", help="Folder of a run, or a configuration file.")
    ] = None,
    *,
    method: Annotated[
        str | None, Option(help="Audit a method by name, or all, instead of a run or a configuration.")
    ] = None,
    epsilon: Annotated[float | None, Option(help="With --method: the claimed ε; 3 by default.")] = None,
    delta: Annotated[float | None, Option(help="With --method: the claimed δ; 1e-5 by default.")] = None,
    steps: Annotated[int | None, Option(help="With --method: number of steps; 400 by default.")] = None,
    sampling_probability: Annotated[float | None, Option(help="With --method: 0.1 by default.")] = None,
    attack: Annotated[str, Option(help="steps: every released sum. model: only the final model of a RUN.")] = STEPS,
    canaries: Annotated[int | None, Option(help="Number of canaries; 16384 by default.")] = None,
    confidence: Annotated[float, Option(help="Confidence of the lower bound.")] = 0.95,
    device: Annotated[str, Option(help="cpu or cuda: where the attacked steps run.")] = "cpu",
    report: Annotated[Path | None, Option(metavar="FILE", help="Write a web page.")] = None,
    overwrite: common.Overwrite = False,
    quiet: common.Quiet = False,
    json: common.Json = False,
    **records: Any,
) -> None:
    """Attack a run, a configuration or a method. The result is a lower bound on the true ε, compared with the claim.

    Canaries are synthetic records, so the result is public. The audit of a RUN is added to its folder, its page and its
    certificate. Exit code 4 if a claim is refuted or a check fails.
    """
    check_confidence(confidence=confidence)
    validate.one_of((STEPS, MODEL), attack=attack)
    numbers = {"epsilon": epsilon, "delta": delta, "steps": steps, "sampling_probability": sampling_probability}
    if what is not None:
        common.refuse("a run or a configuration", method=method, **numbers)
        if not what.exists():
            raise StoreError(f"cannot use {what}: there is neither the folder of a run nor a configuration")
    elif method is None:
        raise InvalidValue("audit", allowed="of a RUN, of a CONFIG.toml, or with --method NAME (or all)", given=None)
    if report is not None:
        atomic.refuse_to_replace(report, overwrite=overwrite)
    run = what if what is not None and what.is_dir() else None
    if attack == MODEL:
        other_device = None if device == "cpu" else device  # the model runs where its weights are read
        common.refuse("attack model", canaries=canaries, report=report, json=json or None, device=other_device)
        if run is None:
            raise InvalidValue("attack", allowed="steps; model only with the folder of a run", given=attack)
        _attack_model(run, records, confidence=confidence)
        return
    common.refuse("attack steps", **records)
    from lehr.attacks import step_attack
    from lehr.training.prepare import check_device

    number = step_attack.NUM_CANARIES if canaries is None else canaries
    validate.count(minimum=step_attack.FEWEST_CANARIES, canaries=number)
    check_device(device)  # before anything is planned
    with common.working("Planning"):
        subjects = _subjects(what, method, numbers)
    if run is not None:
        audit_file.refuse_weaker(run, num_canaries=number, confidence=confidence)
    audits, seconds = [], []
    options: dict[str, Any] = {"num_canaries": number, "confidence": confidence, "device": device}
    for subject in subjects:
        began = time.monotonic()
        callbacks = [TrainingProgress(quiet=quiet or json, label=f"attacking {subject.name}")]
        audits.append(
            step_attack.attack(subject.method, subject.plan, subject=subject.name, callbacks=callbacks, **options)
        )
        seconds.append(round(time.monotonic() - began, 1))
    update = None if run is None else audit_file.keep(run, audits[0])
    if report is not None:
        title = f"Audit of {audits[0].subject}" if len(audits) == 1 else f"Audit of {len(audits)} methods"
        atomic.write(report, audit_page.render(audits, title=title), overwrite=overwrite)
    _print_json(audits, seconds, update, report) if json else _print(audits, update, report)
    _exit(audits)


def _subjects(what: Path | None, method: str | None, numbers: dict[str, Any]) -> Sequence[Subject]:
    from lehr.attacks import subjects
    from lehr.training.prepare import method_and_plan

    if what is None:
        given = {name: value for name, value in numbers.items() if value is not None}
        return subjects.subjects_named(common.required(method=method), **given)
    if what.is_dir():
        return [subjects.subject_of_run(what)]
    made, plan = method_and_plan(RunConfig.read(what))
    return [subjects.Subject(name=made.name, method=made, plan=plan)]


def _attack_model(run: Path, records: dict[str, Any], *, confidence: float) -> None:
    """The result is for the owner of the records: printed with a warning, and kept in the private folder."""
    from lehr.attacks import final_model
    from lehr.training.prepare import config_of_run
    from lehr.training.records import read_data

    parts = read_data(config_of_run(run).with_options(**records))
    with common.working("Evaluating the model"):
        one = final_model.attack_run(run, parts.data, test=parts.test, public=parts.public, confidence=confidence)
    path = audit_file.keep_private(run, one)
    _print([one], None, None)
    common.print_line(f"{PRIVATE}\nkept in {path}")
    _exit([one])


def _print_json(
    audits: Sequence[Audit], seconds: Sequence[float], update: AuditUpdate | None, report: Path | None
) -> None:
    common.print_json(
        {
            "refuted": [one.subject for one in audits if one.verdict is Verdict.REFUTED],
            "suspicious": [one.subject for one in audits if one.verdict is Verdict.SUSPICIOUS],
            "audits": [{**one.to_json(), "seconds": took} for one, took in zip(audits, seconds, strict=True)],
            "kept": update and update.path,
            "not_certified_because": update and update.not_certified_because,
            "report": report,
        }
    )


def _print(audits: Sequence[Audit], update: AuditUpdate | None, report: Path | None) -> None:
    first = audits[0]
    if len(audits) == 1:
        common.print_facts(f"Audit of {first.subject}", audit_page.audit_facts(first))
        lines = [*explanation(first)]
    else:
        table = audit_page.audit_table(audits)
        title = f"Audit at δ = {exactly(first.delta)}, certified with {percent(first.decisive.confidence)} confidence"
        common.print_table(title, table.headings, table.rows)
        bad = [one for one in audits if one.verdict is not Verdict.NOT_REFUTED]
        lines = [*(f"{one.subject}: {' '.join(explanation(one))}" for one in bad), NO_GUARANTEE]
    if update is not None:
        again = "" if update.replaced is None else f" (in place of an audit that was {update.replaced.value})"
        because = update.not_certified_because
        lines += [
            f"kept in {update.path}, and on the run's page{again}",
            "The run's certificate was issued again with this audit."
            if because is None
            else f"Not in the run's certificate: {because}.",
        ]
    if report is not None:
        lines.append(f"{report}: the same, with the curves of every attack")
    common.print_line("\n".join(lines))


def _exit(audits: Sequence[Audit]) -> None:
    """Exit code 4, and a line on standard error, if an audit was not passed."""
    bad = [audit for audit in audits if audit.verdict is not Verdict.NOT_REFUTED]
    for one in bad:
        common.complain(f"{one.subject}: {verdict_text(one)}")
    if bad:
        raise Exit(common.REFUTED)


audit_command = common.command_app(audit, common.TRAIN, "  lehr audit first --canaries 512\n")
