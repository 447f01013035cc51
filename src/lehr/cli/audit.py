"""``lehr audit``: attack a run, a configuration or every method, and hold what that shows against what is claimed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr import validate
from lehr.cli import answering
from lehr.cli.failing import REFUTED, complain
from lehr.cli.options import Json, Overwrite, example, refuse, required
from lehr.cli.release import TRAIN
from lehr.errors import InvalidValue, StoreError

if TYPE_CHECKING:
    from lehr.auditing import Audit
    from lehr.games.subjects import Subject
    from lehr.reports.audit_keeping import Kept
    from lehr.run_shape import Callback

GAMES = ("steps", "model")
EXAMPLE = example(TRAIN, "  lehr audit first --canaries 512\n")
PRIVATE = (
    "This is PRIVATE: it was computed from the records themselves, without noise, and is for their owner alone. "
    "It is neither in the certificate nor on the page of the run. Do not publish it."
)


def audit(
    what: Annotated[
        Path | None, typer.Argument(metavar="[RUN|CONFIG.toml]", help="The folder of a run, or a configuration.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Instead: a method by its name, or all of them.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="With --method: the ε that is claimed; 3.")] = None,
    delta: Annotated[float | None, typer.Option(help="With --method: its δ; 1e-5.")] = None,
    steps: Annotated[int | None, typer.Option(help="With --method: the steps of the plan; 400.")] = None,
    sampling_probability: Annotated[float | None, typer.Option(help="With --method: of a step; 0.1.")] = None,
    game: Annotated[
        str, typer.Option(help="steps: every released sum is seen; model: only the model of a RUN, on its records.")
    ] = "steps",
    canaries: Annotated[int | None, typer.Option(help="Made-up records to tell apart; 16384.")] = None,
    confidence: Annotated[float, typer.Option(help="Of what is certified.")] = 0.95,
    npz: Annotated[Path | None, typer.Option(metavar="FILE", help="With --game model: records of your own.")] = None,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same, as images.")] = None,
    test_npz: Annotated[Path | None, typer.Option(metavar="FILE", help="The test records of the run.")] = None,
    test_folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same, as images.")] = None,
    public_npz: Annotated[Path | None, typer.Option(metavar="FILE", help="The public records of the run.")] = None,
    public_folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same, as images.")] = None,
    image_side: Annotated[int | None, typer.Option(help="Scale the images of folders to this side.")] = None,
    channels: Annotated[int | None, typer.Option(help="Of the images of folders: 3, or 1 for grey.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda: whose kernels and noise are attacked.")] = "cpu",
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as one web page.")] = None,
    overwrite: Overwrite = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Attack a run, a configuration or every method: a lower bound on the true ε, held against the claimed one.

    Canaries are made-up records: what is found out about them is public. Of a RUN, the result goes into its folder, on
    its page, and into its certificate. Exit code 4 where a claim is refuted, or something is not as it is said to be.
    """
    from lehr.auditing.lower_bound import a_confidence

    a_confidence(confidence=confidence)
    validate.one_of(GAMES, game=game)
    numbers = {"epsilon": epsilon, "delta": delta, "steps": steps, "sampling_probability": sampling_probability}
    records = {
        "npz": npz,
        "folder": folder,
        "test_npz": test_npz,
        "test_folder": test_folder,
        "public_npz": public_npz,
        "public_folder": public_folder,
        "image_side": image_side,
        "channels": channels,
    }
    _refuse_what_is_not_asked(what, method, numbers)
    if report is not None:
        from lehr.files import whole_file

        whole_file.refuse_to_replace(report, overwrite=overwrite)
    if game == "model":
        other_device = None if device == "cpu" else device  # the model is asked where its weights are read
        refuse("game model", canaries=canaries, report=report, json=json or None, device=other_device)
        _attack_model(_a_run(what), records, confidence=confidence, data_dir=data_dir)
        return
    refuse("game steps", **records, data_dir=data_dir)
    from lehr.training.fit import a_device

    num_canaries = _a_number_of_canaries(canaries)
    a_device(device)  # one that is not there is refused before anything is planned
    subjects = _subjects(what, method, numbers)
    if what is not None and what.is_dir():
        from lehr.reports import audit_keeping

        audit_keeping.refuse_weaker(what, num_canaries=num_canaries, confidence=confidence)
    played = _played(subjects, num_canaries=num_canaries, confidence=confidence, device=device, quiet=quiet or json)
    audits = [one.audit for one in played]
    kept = _kept(what, audits)
    if report is not None:
        _write_page(report, audits, overwrite=overwrite)
    _answer(played, kept, report, json=json)
    _leave(audits)


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """An audit, and how long it took."""

    audit: Audit
    seconds: float


def _refuse_what_is_not_asked(what: Path | None, method: str | None, numbers: dict[str, Any]) -> None:
    if what is None:
        if method is None:
            raise InvalidValue(
                "audit", allowed="of a RUN, of a CONFIG.toml, or with --method NAME (or all)", given=None
            )
        return
    refuse("a run or a configuration", method=method, **numbers)
    if not what.exists():
        raise StoreError(f"cannot use {what}: there is neither the folder of a run nor a configuration")


def _a_number_of_canaries(given: int | None) -> int:
    from lehr.games.step_game import FEWEST_CANARIES, NUM_CANARIES

    return validate.count(minimum=FEWEST_CANARIES, canaries=NUM_CANARIES if given is None else given)


def _a_run(what: Path | None) -> Path:
    if what is None or not what.is_dir():
        given = None if what is None else str(what)
        raise InvalidValue("game", allowed="steps, but for the folder of a run: only that has a model", given=given)
    return what


def _subjects(what: Path | None, method: str | None, numbers: dict[str, Any]) -> Sequence[Subject]:
    from lehr.games import subjects

    with answering.working("Planning"):
        if what is None:
            said = {name: value for name, value in numbers.items() if value is not None}
            return subjects.named(required(method=method), **said)
        if what.is_dir():
            return [subjects.of_run(what)]
        from lehr.configuration import Configuration

        made, plan = Configuration.read(what).method_and_plan()
        return [subjects.Subject(name=made.name, method=made, plan=plan)]


def _played(
    subjects: Sequence[Subject], *, num_canaries: int, confidence: float, device: str, quiet: bool
) -> list[Played]:
    found = []
    for subject in subjects:
        began = time.monotonic()
        told: list[Callback] = [_progress(subject.name, quiet=quiet)]
        audit = subject.attacked(num_canaries=num_canaries, confidence=confidence, device=device, callbacks=told)
        found.append(Played(audit=audit, seconds=time.monotonic() - began))
    return found


def _progress(name: str, *, quiet: bool) -> Callback:
    from lehr.reports.audit_progress import GameProgress

    return GameProgress(name, quiet=quiet)


def _kept(what: Path | None, audits: Sequence[Audit]) -> Kept | None:
    if what is None or not what.is_dir():
        return None
    from lehr.reports import audit_keeping

    [audit] = audits
    return audit_keeping.keep(what, audit)


def _write_page(path: Path, audits: Sequence[Audit], *, overwrite: bool) -> None:
    from lehr.files import whole_file
    from lehr.reports import audit_page

    title = f"Audit of {audits[0].subject}" if len(audits) == 1 else f"Audit of {len(audits)} methods"
    whole_file.write(path, audit_page.render(audits, title=title), overwrite=overwrite)


def _answer(played: Sequence[Played], kept: Kept | None, report: Path | None, *, json: bool) -> None:
    if json:
        answering.as_json(_shape(played, kept, report))
    elif len(played) == 1:
        _tell(played[0].audit)
        _tell_kept(kept)
    else:
        _tell_all(played)
    if report is not None and not json:
        answering.line(f"{answering.printable(str(report))}: the same, with the curves of every attack")


def _shape(played: Sequence[Played], kept: Kept | None, report: Path | None) -> dict[str, object]:
    from lehr.auditing import Verdict

    bad = {Verdict.REFUTED: "refuted", Verdict.SUSPICIOUS: "suspicious"}
    return {
        **{name: [one.audit.subject for one in played if one.audit.verdict is kind] for kind, name in bad.items()},
        "audits": [{**one.audit.to_json(), "seconds": round(one.seconds, 1)} for one in played],
        "kept": None if kept is None else str(kept.path),
        "not_certified_because": None if kept is None else kept.not_certified_because,
        "report": None if report is None else str(report),
    }


def _tell(audit: Audit) -> None:
    from lehr.reports import audit_words
    from lehr.reports.rounding import at_least

    rows = {
        "claimed": audit_words.claimed(audit),
        "certified": f"{audit_words.certified(audit)} ({audit_words.share(audit)} of the claim)",
        "decided by": f"{audit.decisive.by}, assuming {audit_words.assumes(audit.decisive)}",
    }
    for bound in audit.bounds[1:]:
        rows[f"by {bound.by}"] = f"ε ≥ {at_least(bound.epsilon)}, assuming {audit_words.assumes(bound)}"
    if audit.checks:
        rows["checked"] = "; ".join(f"{check.statement} (p = {check.p_value:.2g})" for check in audit.checks)
    rows["played"] = audit_words.played(audit)
    answering.facts(f"Audit of {answering.printable(audit.subject)}", rows)
    for sentence in audit_words.sentences(audit):
        answering.line(answering.printable(sentence))


def _tell_kept(kept: Kept | None) -> None:
    if kept is None:
        return
    again = "" if kept.replaced is None else f" (in place of an audit that was {kept.replaced.value})"
    answering.line(f"kept in {answering.printable(str(kept.path))}, and on the run's page{again}")
    if kept.not_certified_because is None:
        answering.line("The run's certificate was issued again, and says so.")
    else:
        answering.line(answering.printable(f"Not in the run's certificate: {kept.not_certified_because}."))


def _tell_all(played: Sequence[Played]) -> None:
    from lehr.reports import audit_words
    from lehr.reports.rounding import at_least, at_most, exactly

    first = played[0].audit
    confidence = audit_words.percent(first.decisive.confidence)
    headings = ("method", "claimed ε", "certified ε", "share", "verdict", "seconds")
    rows = [
        (
            one.audit.subject,
            at_most(one.audit.claimed_epsilon),
            at_least(one.audit.decisive.epsilon),
            audit_words.share(one.audit),
            audit_words.verdict(one.audit),
            f"{one.seconds:.0f}",
        )
        for one in played
    ]
    answering.listing(f"Audit at δ = {exactly(first.delta)}, certified with {confidence} confidence", headings, rows)
    for one in played:
        if audit_words.kept_out_because(one.audit) is not None:
            for sentence in audit_words.sentences(one.audit):
                answering.line(answering.printable(f"{one.audit.subject}: {sentence}"))
    answering.line(audit_words.NO_GUARANTEE)


def _leave(audits: Sequence[Audit]) -> None:
    """A script learns it by the exit code, a person once more on standard error."""
    from lehr.auditing import Verdict
    from lehr.reports import audit_words

    found = [audit for audit in audits if audit.verdict is not Verdict.NOT_REFUTED]
    for audit in found:
        complain(f"{audit.subject}: {audit_words.verdict(audit)}")
    if found:
        raise typer.Exit(REFUTED)


def _attack_model(run: Path, records: dict[str, Any], *, confidence: float, data_dir: Path | None) -> None:
    """What comes of it is for the owner of the records: printed with a warning, and kept in the private folder."""
    from lehr.configuration import Configuration
    from lehr.games import final_model
    from lehr.reports import audit_keeping

    given = Configuration.of_run(run).with_words(data=records).given(data_dir)
    with answering.working("Asking the model"):
        audit = final_model.attack_run(run, confidence=confidence, **given)
    kept = audit_keeping.keep_private(run, audit)
    _tell(audit)
    answering.line(PRIVATE)
    answering.line(f"kept in {answering.printable(str(kept))}")
    _leave([audit])
