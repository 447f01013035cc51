"""From a run to a model that may leave the house: weights, certificate and card, and nothing private.

Releasing ends the run. The folder is written whole or not at all; then the ledger is closed for good, and the key with
everything else in the run's private folder is destroyed: whoever has the key could take the noise off the model again.
A crash in between leaves a run that can be released again, to the same folder, which completes what was begun.
"""

from __future__ import annotations

import os
import re
import secrets
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
from lehr.events import is_part
from lehr.files import lock, strict_json, whole_file
from lehr.ledger import Ledger
from lehr.planning.search_cost import RepeatedSelection
from lehr.released_model import FIELDS, FORMAT, FORMAT_VERSION, ReleasedFiles, read_weights
from lehr.reports import audit_words, certificate_file, checking, model_card
from lehr.reports.certificate import Certificate, Statements
from lehr.reports.issuing import issue
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
    allow_no_privacy: bool = False,
) -> Released:
    """Write the model of a run to the new folder ``to``, and destroy the run's key.

    A run that stopped before the end of its plan may be released: its certificate is for the whole plan. One that is
    still to be resumed, and one without a certificate that holds, are refused; one about which nothing is proven, for
    want of noise or of a theorem, is released only with ``allow_no_privacy``, and its card begins with that. Where it
    was not stated before the run on which data its settings were chosen ("fixed", "public"), ``settings_chosen_on``
    states it now.
    """
    files, target = RunFiles(Path(run_directory)), Path(to)
    with _nobody_training(files):
        record = read_run(files.directory)
        _refuse_unfinished(record, target)
        _refuse_refuted(record, files)
        if record.is_private:
            record = replace(record, certificate=_certificate(record, files, settings_chosen_on))
        elif not allow_no_privacy:
            allowed = f"given for a run without privacy (--allow-no-privacy): {record.no_privacy_because}"
            raise InvalidValue("allow_no_privacy", allowed=allowed, given=allow_no_privacy)
        _put(target, _contents(record, files))
        _end(files)
    return Released(directory=target, certificate=record.certificate, published=record.published)


def public_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration is released: how to build and feed the model, and how it was trained."""
    return {name: config.get(name) for name in FIELDS} | {"format": FORMAT, "format_version": FORMAT_VERSION}


def _refuse_unfinished(record: RunRecord, target: Path) -> None:
    if record.state is State.GOING_ON:
        raise StoreError(f"cannot release {record.directory}: the run is not over (resume it to its end)")
    if target.resolve().is_relative_to(record.directory.resolve()):
        raise InvalidValue("to", allowed="a folder outside the run's own", given=str(target))


def _refuse_refuted(record: RunRecord, files: RunFiles) -> None:
    """What an attack has found is not to be passed over in silence; a new audit takes the place of the old one."""
    if record.audit is not None and record.audit.verdict is not Verdict.NOT_REFUTED:
        raise CertificateMismatch(
            f"cannot release {record.directory}: its audit ({files.audit.name}) found the claim "
            f"{record.audit.verdict.value}; find out why, and audit it again"
        )


def _certificate(record: RunRecord, files: RunFiles, settings_chosen_on: str | None) -> Certificate:
    """A certificate that holds for the run; it is issued now where there is none."""
    promised = record.certificate
    if promised is None:
        promised = _issued(record, settings_chosen_on)
        certificate_file.write(files.certificate, promised)
    if settings_chosen_on not in (None, promised.stated.settings_chosen_on):
        allowed = f"what the run's certificate says ({promised.stated.settings_chosen_on})"
        raise InvalidValue("settings_chosen_on", allowed=allowed, given=settings_chosen_on)
    checking.check(promised)
    if record.plan is None or promised.adjacency is not record.plan.adjacency:
        raise CertificateMismatch("the certificate in the run's folder is for another adjacency than its plan")
    if not is_part(record.counted_for, of=promised.event):
        raise CertificateMismatch("the certificate in the run's folder does not cover what its plan allowed")
    return promised


def _issued(record: RunRecord, settings_chosen_on: str | None) -> Certificate:
    plan = record.plan
    assert plan is not None  # a private run has one
    settings_chosen_on = _chosen_on(record, settings_chosen_on)
    stated = Statements(
        settings_chosen_on=settings_chosen_on, records=plan.records, treated_as_public=tuple(_treated_as_public(record))
    )
    published, search = record.published, record.trial_of
    event, cost = (record.planned, None) if search is None else search.certified(record.planned)
    is_done = plan.limit is None and not isinstance(search, RepeatedSelection)
    return issue(
        event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        stated=stated,
        settings_cost=cost,
        # A limit is not made of the events within it, nor is a selection of those of one trial.
        charged=record.charged if is_done else None,
        published_claims=() if published is None or published.is_proven else (published,),
        audit=None if record.audit is None else audit_words.for_certificate(record.audit),
    )


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
        parent = target.resolve().parent
        parent.mkdir(parents=True, exist_ok=True)
        temporary = parent / f".{secrets.token_hex(8)}.part"
        try:
            temporary.mkdir()
            for name, content in contents.items():
                _write(temporary / name, content)
            whole_file.flush_folder(temporary)
            temporary.rename(target.resolve())
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        whole_file.flush_folder(parent)


def _holds(target: Path, contents: Mapping[str, bytes]) -> bool:
    if not target.is_dir() or {path.name for path in target.iterdir()} != set(contents):
        return False
    return all((target / name).read_bytes() == content for name, content in contents.items())


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
