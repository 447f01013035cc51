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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save

from lehr.accounting.claims import Claim
from lehr.accounting.events import NOTHING, counted, is_part
from lehr.accounting.ledger import Ledger
from lehr.auditing import Verdict
from lehr.certificates import checking
from lehr.certificates.certificate import (
    SETTINGS_IN_WORDS,
    AuditResult,
    Certificate,
    SharedBudget,
    Statements,
    certificate_text,
    certificate_to_json,
    how_chosen,
    statements_from_json,
    write_certificate,
)
from lehr.certificates.guarantee import guarantee_text, published_text
from lehr.certificates.issuing import audit_result, issue, shared_budget
from lehr.certificates.released_model import (
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    ReleasedFiles,
    config_from_json,
    read_weights,
)
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.errors import CertificateMismatch, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.planning.budget import Budget
from lehr.planning.search_cost import RepeatedSelection
from lehr.privacy.rng import RunKey
from lehr.rounding import at_most, exactly
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
    if isinstance(training, dict) and "integration" in training:
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
        write_certificate(files.certificate, made, overwrite=True)
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
        stated = statements_from_json(said)
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
        audit=None if audit is None or audit.delta != plan.delta else audit_result(audit),
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
        names.card.name: model_card_text(replace(record, config=config)).encode(),
    }
    if record.certificate is not None:
        shape = certificate_to_json(record.certificate)
        contents[names.certificate.name] = (strict_json.dumps(shape) + "\n").encode()
    return contents


def _put(target: Path, contents: Mapping[str, bytes]) -> None:
    """Make the folder with these files in one step. One that has them already is what a crash left behind."""
    with _failing_by_name(target):
        if _holds(target, contents):
            return
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise StoreError(f"cannot release to {target}: it is there already and not an empty folder")
        with atomic.new_folder(target) as beside:
            for name, content in contents.items():
                _write(beside / name, content)


def _holds(target: Path, contents: Mapping[str, bytes]) -> bool:
    if not target.is_dir() or {path.name for path in target.iterdir()} != set(contents):
        return False
    # Of another file, or of something that is no file, no more is read than tells the two apart.
    return all(_is_same(target / name, content) for name, content in contents.items())


def _is_same(path: Path, content: bytes) -> bool:
    try:
        return atomic.read_bytes(path, at_most=len(content)) == content
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
            atomic.flush_folder(files.private)


@contextmanager
def _nobody_training(files: RunFiles) -> Iterator[None]:
    """Hold the lock that training holds."""
    if not files.private.is_dir():  # nothing is left that could be trained with
        yield
        return
    held = atomic.take_lock(files.lock, for_what=f"the run in {files.directory}")
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


def model_card_text(record: RunRecord) -> str:
    """The whole card, in Markdown. Text that comes from the run is escaped."""
    parts = (f"## {heading}\n\n{_list(part(record))}" for heading, part in _PARTS.items())
    return "\n\n".join((*_head(record), *parts, *_fenced_parts(record))) + "\n"


def markdown_text(value: object) -> str:
    """A value of the run as one line of Markdown in which no mark-up of its own takes effect.

    >>> print(markdown_text("a_b <script>"), markdown_text([1, 28, 28]), markdown_text({"momentum": 0.9}))
    a\\_b &lt;script&gt; 1 × 28 × 28 (momentum 0.9)
    """
    match value:
        case dict():
            return f"({_settings(value)})"
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


def _head(record: RunRecord) -> Iterator[str]:
    promised = record.certificate
    if promised is None:
        yield f"# {_no_guarantee(record)}"
        yield f"The name of this model is {markdown_text(record.run)}."
        return
    yield f"# {markdown_text(record.run)}: a model trained with differential privacy"
    sentence = guarantee_text(
        epsilon=promised.epsilon,
        delta=promised.delta,
        adjacency=promised.adjacency,
        unit=promised.stated.unit_of_privacy,
    )
    yield f"> {markdown_text(sentence)}"


def _what_it_is(record: RunRecord) -> Iterator[str]:
    model, data = record.config["model"], record.config["data"]
    if model.get("network"):
        yield f"Network: {markdown_text(model['network'])} {markdown_text(model.get('arguments') or {})}"
    else:
        yield "Network: one of the trainer's own, which is not part of this folder"
    yield f"Weights: {markdown_text(model.get('parameters'))}, in `model.safetensors`"
    if data.get("shape"):  # a loop that is not Lehr's has records of its own kind
        yield f"Takes: records of the shape {markdown_text(data['shape'])}, as bytes or as numbers in [0, 1]"
    if data.get("num_classes") is not None:
        yield f"Gives: scores for {markdown_text(data['num_classes'])} classes"


def _no_guarantee(record: RunRecord) -> str:
    because = markdown_text(record.no_privacy_because)
    return f"No privacy guarantee: {because}, and this model may reveal any record that it was trained on"


def _privacy(record: RunRecord) -> Iterator[str]:
    promised = record.certificate
    if promised is None:
        yield _no_guarantee(record)
    else:
        yield from _promise_model_card(promised)
    if record.published is not None:
        yield f"ε as published: {markdown_text(published_text(record.published))}"


def _promise_model_card(promised: Certificate) -> Iterator[str]:
    kind, theorem = markdown_text(promised.claim.kind), markdown_text(promised.claim.claim.theorem)
    yield f"ε = {at_most(promised.epsilon)} is {kind}: {theorem}"
    yield "It is for everything that the plan allowed, however much of it was done"
    yield from (f"Assumed: {markdown_text(assumption)}" for assumption in promised.assumptions)
    yield "Treated as public: " + (
        "; ".join(map(markdown_text, promised.stated.treated_as_public)) or "nothing was stated"
    )
    yield _attacked(promised.audit)
    yield "Settings: " + SETTINGS_IN_WORDS[promised.stated.settings_chosen_on].removesuffix(".")
    yield from (f"How they were chosen: {markdown_text(line.removesuffix('.'))}" for line in how_chosen(promised))
    yield "`lehr certificate check certificate.json` computes every ε of the certificate again"


def _attacked(audit: AuditResult | None) -> str:
    if audit is None:
        return "Attacked: no audit is reported"
    return (
        f"Attacked: {markdown_text(audit.method)}; this shows ε of at least {exactly(audit.epsilon_lower_bound)} "
        f"with confidence {exactly(audit.confidence)}, which does not refute the guarantee, and cannot give one"
    )


def _data(record: RunRecord) -> Iterator[str]:
    data, stated = record.config["data"], record.config["stated"]
    yield f"Name, as stated: {markdown_text(data.get('name'))}"
    if record.plan is not None:
        yield f"Number of records, as stated: {record.plan.records:,}"
    yield f"Unit of privacy: {markdown_text(stated.get('unit_of_privacy', 'one record'))}"
    yield f"How it was collected: {markdown_text(stated.get('data_collection', 'not stated'))}"
    if data.get("public_records"):
        yield f"Public records that training looked at: {markdown_text(data['public_records'])}"


def _training(record: RunRecord) -> Iterator[str]:
    plan = record.plan
    yield f"Method: {_settings(record.config['method'])}"
    if plan is not None:
        yield (
            f"Plan: {plan.steps:,} steps of {plan.expected_batch_size:,.10g} records on average, "
            f"noise multiplier {exactly(plan.noise_multiplier)}"
        )
        if plan.stops_at_accepted is not None:
            yield f"The run ends once {plan.stops_at_accepted:,} candidates are accepted; {record.accepted:,} were"
    if record.state is State.STOPPED:
        yield f"The run {record.state.value}; {record.steps_charged:,} steps were charged"
    yield f"Training: {_settings(record.config['training'])}"
    yield f"Library: Lehr {markdown_text(record.config.get('library_version', ''))}"


def _evaluation(record: RunRecord) -> Iterator[str]:
    last = record.last
    if last is None:
        yield "None was made"
        return
    yield f"Accuracy {last.accuracy:.2%} and loss {last.loss:.4f}, after step {last.step:,}"
    yield f"On these records: {markdown_text(last.on)}"


def _limits(record: RunRecord) -> Iterator[str]:
    if record.certificate is not None:
        yield "The guarantee is for each record by itself: several records of one person are protected less"
        yield "It covers this model; what else was done with the same records is not part of it"
        yield "It says what training reveals about a record, not whether what the model says is right or fair"
    yield "A score of this model on private records is itself private, and is not to be published as it is"
    yield "Accuracy on other records than those above may be lower"


_PARTS: Mapping[str, Callable[[RunRecord], Iterator[str]]] = {
    "What it is": _what_it_is,
    "Privacy": _privacy,
    "Data": _data,
    "How it was trained": _training,
    "Evaluation": _evaluation,
    "Limits": _limits,
}


def _fenced_parts(record: RunRecord) -> Iterator[str]:
    yield f"## How to use it\n\nIn this folder:\n\n{_fenced(_example(record), language='python')}"
    if record.certificate is not None:
        yield f"## The certificate in words\n\n{_fenced(certificate_text(record.certificate), language='text')}"


def _example(record: RunRecord) -> str:
    shape = ", ".join(str(int(length)) for length in record.config["data"]["shape"])
    if not shape:
        return _OWN_EXAMPLE
    if record.config["model"].get("network"):
        return _EXAMPLE.format(own="", model="", shape=shape)
    own = "from your_project import your_network  # it is not part of this folder\n"
    return _EXAMPLE.format(own=own, model=", model=your_network()", shape=shape)


_EXAMPLE = """import torch
from lehr.certificates import released_model
{own}
model = released_model.load("."{model})
predicted = released_model.predict(".", torch.zeros(2, {shape}){model})
print(predicted.classes, predicted.probabilities)"""


_OWN_EXAMPLE = """from lehr.certificates import released_model
from your_project import your_network  # it is not part of this folder

model = released_model.load(".", model=your_network())"""


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}." for sentence in sentences)


def _settings(shape: Mapping[str, object]) -> str:
    """Settings in one line; what is not set is left out."""
    given = ((name, value) for name, value in shape.items() if value is not None and value not in ("", {}, []))
    return ", ".join(f"{markdown_text(str(name).replace('_', ' '))} {markdown_text(value)}" for name, value in given)


def _fenced(text: str, *, language: str) -> str:
    longest = max((len(marks) for marks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
