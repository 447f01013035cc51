"""``lehr audit``: attack a run, a configuration or a method, and compare the certified ε with the claimed one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr import validate
from lehr.auditing import Audit, Verdict
from lehr.auditing.audit import (
    NO_GUARANTEE,
    assumptions_text,
    certified_text,
    claimed_text,
    explanation,
    percent,
    setup_text,
    share_of_claim,
    verdict_text,
)
from lehr.auditing.bounds import check_confidence
from lehr.certificates.issuing import why_not_certified
from lehr.cli import common
from lehr.cli.common import (
    REFUTED,
    TRAIN,
    Json,
    Overwrite,
    Quiet,
    command_app,
    complain,
    config_options,
    refuse,
    required,
)
from lehr.config import DATA_FORMS, RunConfig
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic
from lehr.reports import audit_file, audit_page
from lehr.reports.audit_file import KeptAudit
from lehr.reports.progress import AuditProgress
from lehr.rounding import at_least, at_most, exactly

if TYPE_CHECKING:
    from lehr.attacks.subjects import Subject

STEPS, MODEL = "steps", "model"
RECORDS = (*(part + form for part in ("", "test_", "public_") for form in DATA_FORMS), "image_side", "channels")
PRIVATE = (
    "This is PRIVATE: it was computed from the records themselves, without noise, and is for their owner alone. "
    "It is neither in the certificate nor on the page of the run. Do not publish it."
)


@config_options(*RECORDS, "data_dir")
def audit(
    what: Annotated[
        Path | None, typer.Argument(metavar="[RUN|CONFIG.toml]", help="Folder of a run, or a configuration file.")
    ] = None,
    *,
    method: Annotated[
        str | None, typer.Option(help="Audit a method by name, or all, instead of a run or a configuration.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="With --method: the claimed ε; 3 by default.")] = None,
    delta: Annotated[float | None, typer.Option(help="With --method: the claimed δ; 1e-5 by default.")] = None,
    steps: Annotated[int | None, typer.Option(help="With --method: number of steps; 400 by default.")] = None,
    sampling_probability: Annotated[
        float | None, typer.Option(help="With --method: sampling probability of each step; 0.1 by default.")
    ] = None,
    attack: Annotated[
        str, typer.Option(help="steps: attack every released sum. model: attack only the final model of a RUN.")
    ] = STEPS,
    canaries: Annotated[int | None, typer.Option(help="Number of canaries; 16384 by default.")] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    device: Annotated[str, typer.Option(help="cpu or cuda: where the attacked steps run.")] = "cpu",
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a web page.")] = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    json: Json = False,
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
        refuse("a run or a configuration", method=method, **numbers)
        if not what.exists():
            raise StoreError(f"cannot use {what}: there is neither the folder of a run nor a configuration")
    elif method is None:
        raise InvalidValue("audit", allowed="of a RUN, of a CONFIG.toml, or with --method NAME (or all)", given=None)
    if report is not None:
        atomic.refuse_to_replace(report, overwrite=overwrite)
    if attack == MODEL:
        other_device = None if device == "cpu" else device  # the model runs where its weights are read
        refuse("attack model", canaries=canaries, report=report, json=json or None, device=other_device)
        _attack_model(what, records, confidence=confidence)
        return
    refuse("attack steps", **records)
    done = _attack_steps(
        what, method, numbers, canaries=canaries, confidence=confidence, device=device, quiet=quiet or json
    )
    audits = [one for one, _ in done]
    kept = audit_file.keep(what, audits[0]) if what is not None and what.is_dir() else None
    if report is not None:
        title = f"Audit of {audits[0].subject}" if len(audits) == 1 else f"Audit of {len(audits)} methods"
        atomic.write(report, audit_page.render(audits, title=title), overwrite=overwrite)
    if json:
        _print_json(done, kept, report)
    else:
        _print_one(audits[0], kept) if len(audits) == 1 else _print_all(done)
        if report is not None:
            common.print_line(f"{report}: the same, with the curves of every attack")
    _exit(audits)


def _attack_steps(
    what: Path | None,
    method: str | None,
    numbers: dict[str, Any],
    *,
    canaries: int | None,
    confidence: float,
    device: str,
    quiet: bool,
) -> list[tuple[Audit, float]]:
    """Each audit, and how many seconds it took."""
    from lehr.attacks import step_attack
    from lehr.training.prepare import check_device

    number = step_attack.NUM_CANARIES if canaries is None else canaries
    validate.count(minimum=step_attack.FEWEST_CANARIES, canaries=number)
    check_device(device)  # before anything is planned
    with common.working("Planning"):
        subjects = _subjects(what, method, numbers)
    if what is not None and what.is_dir():
        audit_file.refuse_weaker(what, num_canaries=number, confidence=confidence)
    done = []
    for subject in subjects:
        began = time.monotonic()
        progress = [AuditProgress(subject.name, quiet=quiet)]
        one = step_attack.attack(
            subject.method,
            subject.plan,
            subject=subject.name,
            num_canaries=number,
            confidence=confidence,
            device=device,
            callbacks=progress,
        )
        done.append((one, time.monotonic() - began))
    return done


def _subjects(what: Path | None, method: str | None, numbers: dict[str, Any]) -> Sequence[Subject]:
    from lehr.attacks import subjects
    from lehr.training.prepare import method_and_plan

    if what is None:
        given = {name: value for name, value in numbers.items() if value is not None}
        return subjects.subjects_named(required(method=method), **given)
    if what.is_dir():
        return [subjects.subject_of_run(what)]
    made, plan = method_and_plan(RunConfig.read(what))
    return [subjects.Subject(name=made.name, method=made, plan=plan)]


def _attack_model(what: Path | None, records: dict[str, Any], *, confidence: float) -> None:
    """The result is for the owner of the records: printed with a warning, and kept in the private folder."""
    from lehr.attacks import final_model
    from lehr.training.prepare import config_of_run, read_data

    if what is None or not what.is_dir():
        given = None if what is None else str(what)
        raise InvalidValue("attack", allowed="steps; model only with the folder of a run", given=given)
    parts = read_data(config_of_run(what).with_options(**records))
    with common.working("Evaluating the model"):
        one = final_model.attack_run(what, confidence=confidence, **parts._asdict())
    path = audit_file.keep_private(what, one)
    _print_one(one, None)
    common.print_line(f"{PRIVATE}\nkept in {path}")
    _exit([one])


def _print_json(done: Sequence[tuple[Audit, float]], kept: KeptAudit | None, report: Path | None) -> None:
    bad = {Verdict.REFUTED: "refuted", Verdict.SUSPICIOUS: "suspicious"}
    common.print_json(
        {
            **{name: [one.subject for one, _ in done if one.verdict is kind] for kind, name in bad.items()},
            "audits": [{**one.to_json(), "seconds": round(seconds, 1)} for one, seconds in done],
            "kept": kept and kept.path,
            "not_certified_because": kept and kept.not_certified_because,
            "report": report,
        }
    )


def _print_one(audit: Audit, kept: KeptAudit | None) -> None:
    rows = {
        "claimed": claimed_text(audit),
        "certified": f"{certified_text(audit)} ({share_of_claim(audit)} of the claim)",
        "decided by": f"{audit.decisive.by}, assuming {assumptions_text(audit.decisive)}",
    }
    for bound in audit.bounds[1:]:
        rows[f"by {bound.by}"] = f"ε ≥ {at_least(bound.epsilon)}, assuming {assumptions_text(bound)}"
    if audit.checks:
        rows["checked"] = "; ".join(f"{check.statement} (p = {check.p_value:.2g})" for check in audit.checks)
    rows["setup"] = setup_text(audit)
    common.print_facts(f"Audit of {audit.subject}", rows)
    for sentence in explanation(audit):
        common.print_line(sentence)
    if kept is None:
        return
    again = "" if kept.replaced is None else f" (in place of an audit that was {kept.replaced.value})"
    common.print_line(f"kept in {kept.path}, and on the run's page{again}")
    if kept.not_certified_because is None:
        common.print_line("The run's certificate was issued again with this audit.")
    else:
        common.print_line(f"Not in the run's certificate: {kept.not_certified_because}.")


def _print_all(done: Sequence[tuple[Audit, float]]) -> None:
    first = done[0][0]
    rows = [
        (
            one.subject,
            at_most(one.claimed_epsilon),
            at_least(one.decisive.epsilon),
            share_of_claim(one),
            verdict_text(one),
            f"{seconds:.0f}",
        )
        for one, seconds in done
    ]
    title = f"Audit at δ = {exactly(first.delta)}, certified with {percent(first.decisive.confidence)} confidence"
    common.print_table(title, ("method", "claimed ε", "certified ε", "share", "verdict", "seconds"), rows)
    for one, _ in done:
        if why_not_certified(one) is not None:
            for sentence in explanation(one):
                common.print_line(f"{one.subject}: {sentence}")
    common.print_line(NO_GUARANTEE)


def _exit(audits: Sequence[Audit]) -> None:
    """Exit code 4, and a line on standard error, if an audit was not passed."""
    bad = [audit for audit in audits if audit.verdict is not Verdict.NOT_REFUTED]
    for audit in bad:
        complain(f"{audit.subject}: {verdict_text(audit)}")
    if bad:
        raise typer.Exit(REFUTED)


audit_command = command_app(audit, TRAIN, "  lehr audit first --canaries 512\n")
