"""From a run to a model that may leave the house: weights, certificate and card, and nothing private.

Releasing ends the run. The folder is written whole or not at all; then the ledger is closed for good, and the key with
everything else in the run's private folder is destroyed: whoever has the key could take the noise off the model again.
A crash in between leaves a run that can be released again, to the same folder, which completes what was begun.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save

from lehr.auditing import Verdict
from lehr.claims import Claim
from lehr.errors import CertificateMismatch, InvalidValue, StoreError
from lehr.events import NOTHING, counted, is_part
from lehr.files import lock, new_folder, strict_json, whole_file
from lehr.ledger import Ledger
from lehr.planning.budget import Budget
from lehr.planning.search_cost import RepeatedSelection
from lehr.released_model import FIELDS, FORMAT, FORMAT_VERSION, ReleasedFiles, config_from_json, read_weights
from lehr.reports import audit_words, certificate_file, checking, model_card
from lehr.reports.certificate import Certificate, SharedBudget, Statements
from lehr.reports.issuing import issue, shared_budget
from lehr.reports.run_reading import RunRecord, State, read_run
from lehr.rng import RunKey
from lehr.run_shape import RunFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Released:
    """What was released, and where. ``certificate`` is None where the model promises nothing.

    ``published`` is what the paper's rule says, where the run followed it.
    """

    directory: Path
    certificate: Certificate | None
    published: Claim | None = None


def release(
    run_directory: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    settings_chosen_on: str | None = None,
    budget: str | os.PathLike[str] | None = None,
    allow_no_privacy: bool = False,
) -> Released:
    """Write the model of a run to the new folder ``to``, and destroy the run's key.

    A run that stopped before the end of its plan may be released: its certificate is for the whole plan. One that is
    still to be resumed is refused; one about which nothing is proven, for want of noise or of a theorem, is released
    only with ``allow_no_privacy``, and its card begins with that. Where it was not stated before the run on which data
    its settings were chosen ("fixed", "public"), ``settings_chosen_on`` states it now.

    The certificate is computed anew from the run's ledger, its plan and the ``budget`` that paid for it, which must be
    given where one did. A certificate in the run's folder that promises anything else is refused.
    """
    files, target = RunFiles(Path(run_directory)), Path(to)
    with _nobody_training(files):
        record = read_run(files.directory)
        _refuse_unfinished(record, target)
        _refuse_unreadable(record)
        _refuse_refuted(record, files)
        if record.is_private:
            record = replace(record, certificate=_certificate(record, files, settings_chosen_on, budget))
        elif not allow_no_privacy:
            allowed = f"given for a run without privacy (--allow-no-privacy): {record.no_privacy_because}"
            raise InvalidValue("allow_no_privacy", allowed=allowed, given=allow_no_privacy)
        else:
            record = replace(record, certificate=None)
        _put(target, _contents(record, files))
        _end(files)
    return Released(directory=target, certificate=record.certificate, published=record.published)


def public_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration is released: how to build and feed the model, and how it was trained."""
    return {name: config.get(name) for name in FIELDS} | {"format": FORMAT, "format_version": FORMAT_VERSION}


def _refuse_unfinished(record: RunRecord, target: Path) -> None:
    if record.state is State.GOING_ON:
        raise StoreError(f"cannot release {record.directory}: the run is not over (resume it to its end)")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(record.directory)):
        raise InvalidValue("to", allowed="a folder outside the run's own", given=str(target))


def _refuse_unreadable(record: RunRecord) -> None:
    """A model that was released could not be used where its configuration is not one of a released model.

    A loop of another library need not say what its records are, and its model is used there.
    """
    training = record.config.get("training")
    if isinstance(training, dict) and "door" in training:
        return
    try:
        config_from_json(public_config(record.config))
    except InvalidValue as error:
        raise StoreError(f"cannot release {record.directory}: {error}") from error


def _refuse_refuted(record: RunRecord, files: RunFiles) -> None:
    """What an attack has found is not to be passed over in silence; a new audit takes the place of the old one."""
    if record.audit is not None and record.audit.verdict is not Verdict.NOT_REFUTED:
        raise CertificateMismatch(
            f"cannot release {record.directory}: its audit ({files.audit.name}) found the claim "
            f"{record.audit.verdict.value}; find out why, and audit it again"
        )


def _certificate(
    record: RunRecord, files: RunFiles, settings_chosen_on: str | None, budget: str | os.PathLike[str] | None
) -> Certificate:
    """The certificate that the ledger, the plan and the budget give. A file in the folder that differs is refused."""
    _refuse_another_ledger(record, files)
    made = _issued(record, _statements(record, settings_chosen_on), budget)
    found = record.certificate
    if found is not None:
        _refuse_another_promise(found, made, files.certificate)
        made = replace(made, issued_on=found.issued_on)
    if made != found:
        certificate_file.write(files.certificate, made, overwrite=True)
    return made


def _refuse_another_promise(found: Certificate, made: Certificate, path: Path) -> None:
    checking.check(found)
    expected = _promise(made)
    differing = [name for name, value in _promise(found).items() if value != expected[name]]
    if not math.isclose(found.epsilon, made.epsilon, rel_tol=checking.TOLERANCE):  # another machine may have rounded
        differing.append("epsilon")
    if differing:
        raise CertificateMismatch(
            f"{path} is not the certificate of this run: its {', '.join(differing)} is not what the run's ledger, plan "
            "and budget give; remove it, and release again"
        )


def _promise(certificate: Certificate) -> dict[str, object]:
    return {
        "event": counted(certificate.event),
        "settings_cost": counted(certificate.settings_cost or NOTHING),
        "delta": certificate.delta,
        "adjacency": certificate.adjacency,
        "stated": certificate.stated,
    }


def _refuse_another_ledger(record: RunRecord, files: RunFiles) -> None:
    plan = record.plan
    assert plan is not None  # a private run has one
    if not files.ledger.is_file():
        raise StoreError(f"cannot release {record.directory}: it has no {files.ledger.name}, which says what was done")
    with Ledger.open(files.ledger) as ledger:
        ledger.refuse_other(run=record.run, adjacency=plan.adjacency)
        if ledger.delta != plan.delta or not is_part(plan.event, of=ledger.plan_event):
            raise CertificateMismatch(f"{files.ledger} is the ledger of another plan than that of {files.config}")


def _statements(record: RunRecord, settings_chosen_on: str | None) -> Statements:
    """What a person said about the run: before it, in a certificate that was issued since, or now."""
    plan, said = record.plan, record.config["stated"]
    assert plan is not None
    if said:
        stated = certificate_file.statements_from_json(said)
    elif record.certificate is not None:
        stated = record.certificate.stated
    else:
        public = tuple(_treated_as_public(record))
        stated = Statements(settings_chosen_on=_chosen_on(record, settings_chosen_on), treated_as_public=public)
    if settings_chosen_on not in (None, stated.settings_chosen_on):
        allowed = f"what was stated for the run ({stated.settings_chosen_on})"
        raise InvalidValue("settings_chosen_on", allowed=allowed, given=settings_chosen_on)
    return stated if stated.records is not None else replace(stated, records=plan.records)


def _issued(record: RunRecord, stated: Statements, budget: str | os.PathLike[str] | None) -> Certificate:
    plan = record.plan
    assert plan is not None
    published, search, audit = record.published, record.trial_of, record.audit
    event, cost = (record.planned, None) if search is None else search.certified(record.planned)
    shared = _shared_budget(record, budget)
    # A limit is not made of the events within it, nor is a selection of those of one trial; a budget says it itself.
    is_done = plan.limit is None and not isinstance(search, RepeatedSelection) and shared is None
    return issue(
        event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        stated=stated,
        settings_cost=cost,
        charged=record.charged if is_done else None,
        published_claims=() if published is None or published.is_proven else (published,),
        budget=shared,
        audit=None if audit is None or audit.delta != plan.delta else audit_words.for_certificate(audit),
    )


def _shared_budget(record: RunRecord, path: str | os.PathLike[str] | None) -> SharedBudget | None:
    """What the budget that paid for the run says now."""
    dataset = record.config.get("budget")
    if (path is None) != (dataset is None):
        which = "left out: no budget" if dataset is None else f"given: the budget of {dataset!r}"
        raise InvalidValue("budget", allowed=f"{which} paid for the run", given=path)
    if path is None:
        return None
    with Budget.open(path) as account:
        if account.dataset != dataset:
            raise InvalidValue("budget", allowed=f"that of {dataset!r}", given=account.dataset)
        shared = shared_budget(account.status(), run=record.run)
    if record.trial_of is None and not is_part(record.charged, of=shared.charged):
        raise CertificateMismatch(f"the budget paid for {shared.charged}, and the ledger says {record.charged}")
    return shared


def _chosen_on(record: RunRecord, stated: str | None) -> str:
    """On which data the settings were chosen: of a trial that is known."""
    if record.trial_of is not None and stated in (None, "private"):
        return "private"
    if record.trial_of is not None:
        raise InvalidValue("settings_chosen_on", allowed="private: the run was a trial of a search", given=stated)
    if stated is None:
        allowed = "stated, for the certificate (--settings-chosen-on fixed, or public)"
        raise InvalidValue("settings_chosen_on", allowed=allowed, given=None)
    return stated


def _treated_as_public(record: RunRecord) -> Iterator[str]:
    data = record.config["data"]
    yield "the number of records"
    if data.get("public_records"):
        yield str(data["public_records"])
    if data.get("evaluated_on") and not record.config["training"].get("held_out_fraction"):
        yield str(data["evaluated_on"])


def _contents(record: RunRecord, files: RunFiles) -> dict[str, bytes]:
    """Every file of the release by its name: the same bytes each time, so that a release can be repeated."""
    names = ReleasedFiles(Path())
    weights = read_weights(files.model)
    config = {name: _without_paths(value) for name, value in record.config.items()}
    contents = {
        names.model.name: save(weights, metadata={"format": "pt"}),  # no word that the run's own file may hold
        names.config.name: (strict_json.dumps(public_config(config)) + "\n").encode(),
        names.card.name: model_card.page(replace(record, config=config)).encode(),
    }
    if record.certificate is not None:
        shape = certificate_file.to_json(record.certificate)
        contents[names.certificate.name] = (strict_json.dumps(shape) + "\n").encode()
    return contents


def _put(target: Path, contents: Mapping[str, bytes]) -> None:
    """Make the folder with these files in one step. One that has them already is what a crash left behind."""
    with _failing_by_name(target):
        if _holds(target, contents):
            return
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(f"cannot release to {target}: it is there already and not an empty folder")
        with new_folder.made(target) as beside:
            for name, content in contents.items():
                _write(beside / name, content)


def _holds(target: Path, contents: Mapping[str, bytes]) -> bool:
    if not target.is_dir() or {path.name for path in target.iterdir()} != set(contents):
        return False
    # Of another file, or of something that is no file, no more is read than tells the two apart.
    return all(_is_same(target / name, content) for name, content in contents.items())


def _is_same(path: Path, content: bytes) -> bool:
    try:
        return whole_file.read_bytes(path, at_most=len(content)) == content
    except StoreError:
        return False


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _end(files: RunFiles) -> None:
    """Close the ledger, then destroy what is private. Each part may have been done before."""
    if files.ledger.is_file():
        with Ledger.open(files.ledger) as ledger:
            ledger.finish()
    RunKey.destroy(files.key)
    if files.private.is_dir():
        with _failing_by_name(files.private):
            for path in files.private.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            whole_file.flush_folder(files.private)


@contextmanager
def _nobody_training(files: RunFiles) -> Iterator[None]:
    """Hold the lock that training holds."""
    if not files.private.is_dir():  # nothing is left that could be trained with
        yield
        return
    held = lock.taken(files.lock, for_what=f"the run in {files.directory}")
    try:
        yield
    finally:
        os.close(held)


@contextmanager
def _failing_by_name(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot release to {path}: {error.strerror}") from error


# Beginnings of a path: of a folder or a home, of a drive, of an address.
_PATH = re.compile(r"(?:~[^/\\\s]*|\.{1,2}|[A-Za-z]:|file:/?)?[/\\]")
_WORD_OF_PATH = re.compile(rf"(?<!\S){_PATH.pattern}\S*")


def _without_paths(value: object) -> object:
    """The same value; what looks like a path keeps its last part only, for it may name a person or a machine."""
    match value:
        case dict():
            return {name: _without_paths(item) for name, item in value.items()}
        case list() | tuple():
            return [_without_paths(item) for item in value]
        case str() if _PATH.match(value):
            return _last_part(value)
        case str():
            return _WORD_OF_PATH.sub(lambda found: _last_part(found.group()), value)
        case _:
            return value


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
