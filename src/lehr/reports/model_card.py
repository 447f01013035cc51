"""The model card that is released with a model: what it is, what it promises, how it came about, how it is used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from lehr.reports import run_claims, wording
from lehr.reports.certificate import AuditResult, Certificate
from lehr.reports.rounding import at_most, exactly
from lehr.reports.run_reading import RunRecord, State


def page(record: RunRecord) -> str:
    """The whole card, in Markdown. Text that comes from the run is escaped."""
    parts = (f"## {heading}\n\n{_list(part(record))}" for heading, part in _PARTS.items())
    return "\n\n".join((*_head(record), *parts, *_fenced_parts(record))) + "\n"


def said(value: object) -> str:
    """A value of the run as one line of Markdown in which no mark-up of its own takes effect.

    >>> print(said("a_b <script>"), said([1, 28, 28]), said({"momentum": 0.9, "nesterov": False}))
    a\\_b &lt;script&gt; 1 × 28 × 28 (momentum 0.9, nesterov no)
    """
    match value:
        case dict():
            return f"({_settings(value)})"
        case list() | tuple():
            return " × ".join(map(said, value))
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
        yield f"The name of this model is {said(record.run)}."
        return
    yield f"# {said(record.run)}: a model trained with differential privacy"
    sentence = wording.guarantee(
        epsilon=promised.epsilon,
        delta=promised.delta,
        adjacency=promised.adjacency,
        unit=promised.stated.unit_of_privacy,
    )
    yield f"> {said(sentence)}"


def _what_it_is(record: RunRecord) -> Iterator[str]:
    model, data = record.config["model"], record.config["data"]
    if model.get("network"):
        yield f"Network: {said(model['network'])} {said(model.get('arguments') or {})}"
    else:
        yield "Network: one of the trainer's own, which is not part of this folder"
    yield f"Weights: {said(model.get('parameters'))}, in `model.safetensors`"
    if data.get("shape"):  # a loop that is not Lehr's has records of its own kind
        yield f"Takes: records of the shape {said(data['shape'])}, as bytes or as numbers in [0, 1]"
    if data.get("num_classes") is not None:
        yield f"Gives: scores for {said(data['num_classes'])} classes"


def _no_guarantee(record: RunRecord) -> str:
    because = said(record.no_privacy_because)
    return f"No privacy guarantee: {because}, and this model may reveal any record that it was trained on"


def _privacy(record: RunRecord) -> Iterator[str]:
    promised = record.certificate
    if promised is None:
        yield _no_guarantee(record)
    else:
        yield from _promise(promised)
    if record.published is not None:
        yield f"ε as published: {said(run_claims.as_published(record.published))}"


def _promise(promised: Certificate) -> Iterator[str]:
    yield f"ε = {at_most(promised.epsilon)} is {said(promised.claim.kind)}: {said(promised.claim.claim.theorem)}"
    yield "It is for everything that the plan allowed, however much of it was done"
    yield from (f"Assumed: {said(assumption)}" for assumption in promised.assumptions)
    yield "Treated as public: " + ("; ".join(map(said, promised.stated.treated_as_public)) or "nothing was stated")
    yield _attacked(promised.audit)
    yield "Settings: " + wording.SETTINGS_IN_WORDS[promised.stated.settings_chosen_on].removesuffix(".")
    yield from (f"How they were chosen: {said(line.removesuffix('.'))}" for line in wording.how_chosen(promised))
    yield "`lehr certificate check certificate.json` computes every ε of the certificate again"


def _attacked(audit: AuditResult | None) -> str:
    if audit is None:
        return "Attacked: no audit is reported"
    return (
        f"Attacked: {said(audit.method)}; this shows ε of at least {exactly(audit.epsilon_lower_bound)} "
        f"with confidence {exactly(audit.confidence)}, which does not refute the guarantee, and cannot give one"
    )


def _data(record: RunRecord) -> Iterator[str]:
    data, stated = record.config["data"], record.config["stated"]
    yield f"Name, as stated: {said(data.get('name'))}"
    if record.plan is not None:
        yield f"Number of records, as stated: {record.plan.records:,}"
    yield f"Unit of privacy: {said(stated.get('unit_of_privacy', 'one record'))}"
    yield f"How it was collected: {said(stated.get('data_collection', 'not stated'))}"
    if data.get("public_records"):
        yield f"Public records that training looked at: {said(data['public_records'])}"


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
    yield f"Library: Lehr {said(record.config.get('library_version', ''))}"


def _evaluation(record: RunRecord) -> Iterator[str]:
    last = record.last
    if last is None:
        yield "None was made"
        return
    yield f"Accuracy {last.accuracy:.2%} and loss {last.loss:.4f}, after step {last.step:,}"
    yield f"On these records: {said(last.on)}"


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
        yield f"## The certificate in words\n\n{_fenced(wording.page(record.certificate), language='text')}"


def _example(record: RunRecord) -> str:
    shape = ", ".join(str(int(length)) for length in record.config["data"]["shape"])
    if not shape:
        return _OWN_EXAMPLE
    if record.config["model"].get("network"):
        return _EXAMPLE.format(own="", model="", shape=shape)
    own = "from your_project import your_network  # it is not part of this folder\n"
    return _EXAMPLE.format(own=own, model=", model=your_network()", shape=shape)


_EXAMPLE = """import torch
from lehr import released_model
{own}
model = released_model.load("."{model})
predicted = released_model.predict(".", torch.zeros(2, {shape}){model})
print(predicted.classes, predicted.probabilities)"""


_OWN_EXAMPLE = """from lehr import released_model
from your_project import your_network  # it is not part of this folder

model = released_model.load(".", model=your_network())"""


def _list(sentences: Iterable[str]) -> str:
    return "\n".join(f"- {sentence}." for sentence in sentences)


def _settings(shape: Mapping[str, object]) -> str:
    """Settings in one line; what is not set is left out."""
    given = ((name, value) for name, value in shape.items() if value is not None and value not in ("", {}, []))
    return ", ".join(f"{said(str(name).replace('_', ' '))} {said(value)}" for name, value in given)


def _fenced(text: str, *, language: str) -> str:
    longest = max((len(marks) for marks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
