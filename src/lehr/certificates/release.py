"""From a run to a model that may be handed out: weights, certificate and card, and nothing private.

Releasing ends the run. The folder is written whole or not at all; then the ledger is closed for good, and the key with
everything else in the run's private folder is destroyed: whoever has the key could take the noise off the model again.
A crash in between leaves a run that can be released again, to the same folder, which completes what was begun.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup
from safetensors.torch import save

from lehr.accounting.claims import Claim
from lehr.accounting.events import NOTHING, counted, is_part
from lehr.accounting.ledger import Ledger
from lehr.auditing import Verdict
from lehr.certificates import checking
from lehr.certificates.certificate import (
    SETTINGS_CHOSEN_ON,
    Certificate,
    SharedBudget,
    Statements,
    certificate_text,
    certificate_to_json,
    how_chosen,
    render_template,
    statements_from_json,
    write_certificate,
)
from lehr.certificates.guarantee import guarantee_text, published_text
from lehr.certificates.issuing import audit_result, issue, shared_budget
from lehr.certificates.released_model import (
    CARD,
    CERTIFICATE,
    CONFIG,
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    MODEL,
    config_from_json,
    read_weights,
)
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.errors import CertificateMismatch, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.planning.search_cost import RepeatedSelection
from lehr.privacy.rng import RunKey
from lehr.rounding import exactly, rounded_up
from lehr.run.folder import refuse_used
from lehr.run.shape import RunFiles


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
    is_ended = not files.private.is_dir()  # nothing is left that could be trained with
    lock = nullcontext() if is_ended else atomic.locked(files.lock, for_what=f"the run in {files.directory}")
    with lock:
        record = read_run(files.directory)
        _refuse_unreleasable(record, target)
        if record.is_private:
            record = replace(record, certificate=_certificate(record, files, settings_chosen_on, budget))
        elif not allow_no_privacy:
            allowed = f"given for a run without privacy (--allow-no-privacy): {record.no_privacy_because}"
            raise InvalidValue("allow_no_privacy", allowed=allowed, given=allow_no_privacy)
        else:
            record = replace(record, certificate=None)
        contents = _contents(record, files)
        if not _holds(target, contents):  # one that has them already is what a crash left behind
            refuse_used(target)
            with atomic.new_folder(target) as hidden:
                for name, content in contents.items():
                    atomic.write_bytes(hidden / name, content)
        _end(files)
    return Released(directory=target, certificate=record.certificate, published=record.published)


def public_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's configuration is released: how to build and feed the model, and how it was trained."""
    return {name: config.get(name) for name in FIELDS} | {"format": FORMAT, "format_version": FORMAT_VERSION}


def _refuse_unreleasable(record: RunRecord, target: Path) -> None:
    run = record.directory
    if record.state is State.GOING_ON:
        raise StoreError(f"cannot release {run}: the run is not over (resume it to its end)")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(run)):
        raise InvalidValue("to", allowed="a folder outside the run's own", given=str(target))
    if record.audit is not None and record.audit.verdict is not Verdict.NOT_REFUTED:
        found = f"its audit (audit.json) found the claim {record.audit.verdict.value}"
        raise CertificateMismatch(f"cannot release {run}: {found}; find out why, and audit it again")
    # A loop of another library need not say what its records are: its model is used there, and not by Lehr.
    if "integration" not in (record.config.get("training") or {}):
        try:
            config_from_json(public_config(record.config))
        except InvalidValue as error:
            raise StoreError(f"cannot release {run}: {error}") from error


def _certificate(
    record: RunRecord, files: RunFiles, settings_chosen_on: str | None, budget: str | os.PathLike[str] | None
) -> Certificate:
    """The certificate that the ledger, the plan and the budget give. A file in the folder that differs is refused."""
    plan = record.plan
    assert plan is not None  # a private run has one
    _refuse_other_ledger(record, files, plan)
    stated = _statements(record, plan, settings_chosen_on)
    search, published, audit = record.trial_of, record.published, record.audit
    event, cost = (record.planned, None) if search is None else search.certified(record.planned)
    shared = _shared_budget(record, budget)
    # A limit is not made of the events within it, nor is a selection of those of one trial; a budget says it itself.
    is_done = plan.limit is None and not isinstance(search, RepeatedSelection) and shared is None
    made = issue(
        event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        stated=stated,
        settings_cost=cost,
        charged=record.charged if is_done else None,
        published_claims=() if published is None or published.is_proven else (published,),
        budget=shared,
        audit=None if audit is None or audit.delta != plan.delta else audit_result(audit),
    )
    found = record.certificate
    if found is not None:
        _refuse_other_promise(found, made, files.certificate)
        made = replace(made, issued_on=found.issued_on)
    if made != found:
        write_certificate(files.certificate, made, overwrite=True)
    return made


def _refuse_other_ledger(record: RunRecord, files: RunFiles, plan: Plan) -> None:
    if not files.ledger.is_file():
        raise StoreError(f"cannot release {record.directory}: it has no {files.ledger.name}, which says what was done")
    with Ledger.open(files.ledger) as ledger:
        ledger.check_same(run=record.run, adjacency=plan.adjacency)
        if ledger.delta != plan.delta or not is_part(plan.event, of=ledger.plan_event):
            raise CertificateMismatch(f"{files.ledger} is the ledger of another plan than that of {files.config}")


def _refuse_other_promise(found: Certificate, made: Certificate, path: Path) -> None:
    checking.check(found)
    differing = [name for name in ("delta", "adjacency", "stated") if getattr(found, name) != getattr(made, name)]
    for name in ("event", "settings_cost"):
        before, now = (counted(getattr(each, name) or NOTHING) for each in (found, made))
        differing += [name] if before != now else []
    if not math.isclose(found.epsilon, made.epsilon, rel_tol=checking.TOLERANCE):  # another machine may have rounded
        differing.append("epsilon")
    if differing:
        raise CertificateMismatch(
            f"{path} is not the certificate of this run: its {', '.join(differing)} is not what the run's ledger, plan "
            "and budget give; remove it, and release again"
        )


def _statements(record: RunRecord, plan: Plan, settings_chosen_on: str | None) -> Statements:
    """What a person stated about the run: before it, in a certificate that was issued since, or now."""
    if record.config["stated"]:
        stated = statements_from_json(record.config["stated"])
    elif record.certificate is not None:
        stated = record.certificate.stated
    elif record.trial_of is not None:
        stated = Statements(settings_chosen_on="private", treated_as_public=_treated_as_public(record, plan))
    elif settings_chosen_on is not None:
        stated = Statements(settings_chosen_on=settings_chosen_on, treated_as_public=_treated_as_public(record, plan))
    else:
        allowed = "stated, for the certificate (--settings-chosen-on fixed, or public)"
        raise InvalidValue("settings_chosen_on", allowed=allowed, given=None)
    if settings_chosen_on not in (None, stated.settings_chosen_on):
        allowed = f"what was stated for the run ({stated.settings_chosen_on})"
        raise InvalidValue("settings_chosen_on", allowed=allowed, given=settings_chosen_on)
    stated = stated.of_unit(plan.unit_text)
    return stated if stated.records is not None else replace(stated, records=plan.records)


def _treated_as_public(record: RunRecord, plan: Plan) -> tuple[str, ...]:
    data, is_held_out = record.config["data"], record.config["training"].get("held_out_fraction")
    named = (data.get("public_records"), None if is_held_out else data.get("evaluated_on"))
    return (f"the number of {plan.drawn}s", *(str(name) for name in named if name))


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


def _contents(record: RunRecord, files: RunFiles) -> dict[str, bytes]:
    """Every file of the release by its name: the same bytes each time, so that a release can be repeated."""
    config = {name: _without_paths(value) for name, value in record.config.items()}
    contents = {
        # No word that the run's own file may hold.
        MODEL: save(read_weights(files.model), metadata={"format": "pt"}),
        CONFIG: strict_json.text(public_config(config)).encode(),
        CARD: model_card_text(replace(record, config=config)).encode(),
    }
    if record.certificate is not None:
        contents[CERTIFICATE] = strict_json.text(certificate_to_json(record.certificate)).encode()
    return contents


def _holds(target: Path, contents: Mapping[str, bytes]) -> bool:
    if not target.is_dir() or {path.name for path in target.iterdir()} != set(contents):
        return False
    try:
        # Of a larger file, or of something that is no file, no more is read than tells the two apart.
        return all(
            atomic.read_bytes(target / name, at_most=len(content)) == content for name, content in contents.items()
        )
    except StoreError:
        return False


def _end(files: RunFiles) -> None:
    """Close the ledger, then destroy what is private. Each part may have been done before."""
    if files.ledger.is_file():
        with Ledger.open(files.ledger) as ledger:
            ledger.finish()
    RunKey.destroy(files.key)
    if files.private.is_dir():
        try:
            for path in files.private.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            atomic.flush_folder(files.private)
        except OSError as error:
            raise StoreError(f"cannot destroy {files.private}: {error.strerror}") from error


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


def model_card_text(record: RunRecord) -> str:
    """The whole card, in Markdown. Text that comes from the run is escaped."""
    promised, published = record.certificate, record.published
    values: dict[str, Any] = {
        "record": record,
        "published": None if published is None else published_text(published),
        "front_matter": "\n".join(_yaml(_front_matter(record))),
    }
    if promised is not None:
        text = certificate_text(promised).rstrip()
        longest = max((len(marks) for marks in re.findall("`+", text)), default=0)
        values |= {
            "guarantee": guarantee_text(
                epsilon=promised.epsilon,
                delta=promised.delta,
                adjacency=promised.adjacency,
                unit=promised.stated.unit_of_privacy,
            ),
            "settings": SETTINGS_CHOSEN_ON[promised.stated.settings_chosen_on],
            "how_chosen": list(how_chosen(promised)),
            "certificate_text": text,
            "certificate_fence": "`" * max(3, longest + 1),
        }
    return render_template("model_card.md.jinja", finalize=markdown_text, **values)


def _front_matter(record: RunRecord) -> dict[str, object]:
    """What Hugging Face's hub reads of a model card: tags, scores, and the guarantee. Keys are our own words."""
    data, promised, last = record.config["data"], record.certificate, record.last
    tags = ["lehr", record.method] if promised is None else ["lehr", "differential-privacy", record.method]
    guarantee: dict[str, object] = {"guarantee": "none", "because": record.no_privacy_because}
    if promised is not None:
        guarantee = {
            "guarantee": promised.claim.kind,
            "epsilon": rounded_up(promised.epsilon, digits=5),
            "delta": promised.delta,
            "unit": promised.stated.unit_of_privacy,
            "adjacency": promised.adjacency.value,
            "public": list(promised.stated.treated_as_public),
            "certificate": CERTIFICATE,
        }
    task = "image-classification" if len(data.get("shape") or ()) == 3 else "other"
    name = str(data.get("name") or "not named")
    metrics = []
    if last is not None:
        score, _ = last.score
        metrics = [{"type": score, "name": f"{score} on {last.on}", "value": getattr(last, score)}]
    results = [{"task": {"type": task}, "dataset": {"type": name, "name": name}, "metrics": metrics}]
    return {
        "library_name": "lehr",
        **({} if task == "other" else {"pipeline_tag": task}),
        "tags": tags,
        **({"model-index": [{"name": record.run, "results": results}]} if metrics else {}),
        "differential_privacy": guarantee,
    }


def _yaml(value: object, indent: str = "") -> Iterator[str]:
    """Lines of YAML. Text is quoted as in JSON, which YAML contains; mark-up is escaped."""
    assert isinstance(value, dict | list)
    pairs = [("- ", each) for each in value] if isinstance(value, list) else [(f"{k}: ", v) for k, v in value.items()]
    for before, each in pairs:
        if isinstance(each, dict | list) and each:
            yield f"{indent}{before}".rstrip()
            yield from _yaml(each, indent + "  ")
        else:
            shown = "".join(mark if mark.isprintable() else " " for mark in each) if isinstance(each, str) else each
            text = re.sub(r"[<>\[\]`]", lambda mark: f"\\u{ord(mark[0]):04x}", json.dumps(shown, ensure_ascii=False))
            is_number = isinstance(each, float) and "." not in text
            yield indent + before + (text.replace("e", ".0e") if is_number else text)  # YAML reads 1e-05 as a word


def markdown_text(value: object, *, is_nested: bool = False) -> str:
    """A value of the run as one line of Markdown in which no mark-up of its own takes effect.

    >>> print(markdown_text("a_b <script>"), markdown_text([1, 28, 28]), markdown_text({"momentum": 0.9}))
    a\\_b &lt;script&gt; 1 × 28 × 28 momentum 0.9
    """
    match value:
        case Markup():
            return value
        case dict():
            given = {name: item for name, item in value.items() if item is not None and item not in ("", {}, [])}
            texts = {str(name).replace("_", " "): markdown_text(item, is_nested=True) for name, item in given.items()}
            text = ", ".join(f"{markdown_text(name)} {text}" for name, text in texts.items())
            return f"({text})" if is_nested else text
        case list() | tuple():
            return " × ".join(map(markdown_text, value))
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return exactly(value)
        case _:
            line = _MARKS.sub(r"\\\1", " ".join(str(value).split()))
            return _ENTITY.sub("&amp;", line).replace("<", "&lt;").replace(">", "&gt;")


_MARKS = re.compile(r"([\\`*_\[\]#|~$])")  # a link needs its brackets
_ENTITY = re.compile(r"&(?=#?\w+;)")
