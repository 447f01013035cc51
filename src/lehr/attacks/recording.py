"""Two runs of the real loop on neighbouring data with the same randomness, compared in all that must be equal.

After Re:cord-play (Cebere et al. 2026, "Privacy in Theory, Bugs in Practice: Grey-Box Auditing of Differential Privacy
Libraries"): the first run is recorded, and the second is given what the first released, so that both have the same
weights before every step. The record may then move the sum before its noise, by at most the sensitivity, and nothing
else: no random number, no noise, no charge, no bit of a public file.

It is for developers of a method or of the library, on data of their own. The result is **private**: sums are compared
without noise, and nothing of that may be released.

One difference is allowed: how many numbers a sampler asks for follows the number of records. The record in question is
put last, so that the numbers of all other records are the same.
"""

from __future__ import annotations

import copy
import hashlib
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.acceptance.proposal import Acceptance, Decision, PrivateEnergy, Proposal, PublicEnergy
from lehr.acceptance.rules import Always
from lehr.accounting.events import Adjacency
from lehr.attacks.harness import Wrapper, check_private_method, joined, plan_run
from lehr.certificates.run_reading import read_run
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, StepOutcome, Tensors
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import ORDER, counted_under
from lehr.reports import run_page
from lehr.run.folder import read_config
from lehr.run.mechanism import Method, Noise
from lehr.run.shape import Callback, End, Evaluation, Progress, RunFiles, Start
from lehr.training.training_run import TrainingRun

WEIGHTS = "weights after the step"
DRAWS = "random numbers drawn"
# The purposes of which a count may follow the number of records, held or drawn.
SAMPLING = ("sampling", "energy sampling", ORDER)

_ERROR, _NOTHING = "error", "nothing"
_ROUNDING_OF_ANSWERS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Something that depends on the record and must not. ``one`` is with it; no ``step`` means the run as a whole."""

    what: str
    step: int | None
    one: str
    other: str

    def __str__(self) -> str:
        where = "in all" if self.step is None else f"step {self.step}"
        return f"{where}: {self.what}: {self.one} with the record, {self.other} without"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two runs compare. There must be no ``differences``. All of it is private.

    ``measured_sensitivity`` is the most that the record moved a sum, over the stated sensitivity: near one where the
    record saturates the clip, and never above. ``measured_query`` is the same of a loss change on private records, for
    methods that ask for one. ``steps_drawn`` are the steps in which the record was drawn.
    """

    differences: tuple[Difference, ...]
    measured_sensitivity: float
    measured_query: float | None
    steps: int
    steps_drawn: tuple[int, ...]

    @property
    def passes(self) -> bool:
        """Whether only the sum depends on the record. It says little where the record was never drawn."""
        return not self.differences

    def __str__(self) -> str:
        count = len(self.differences)
        found = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
        query = "" if self.measured_query is None else f", and an answer by {self.measured_query:.2%}"
        lines = (
            "private, for developers: nothing of this may be released",
            f"{found} in {self.steps} steps, in {len(self.steps_drawn)} of which the record was drawn",
            f"the record moved a sum by {self.measured_sensitivity:.2%} of what is stated{query}",
            *map(str, self.differences),
        )
        return "\n".join(lines)


def compare(
    model: nn.Module,
    private: InMemory,
    index: int,
    *,
    method: Method,
    plan: Plan,
    loss_fn: LossFn,
    num_classes: int,
    replacement: InMemory | None = None,
    public: InMemory | None = None,
    physical_batch: int | None = None,
    key: RunKey | None = None,
) -> Comparison:
    """Run with the record at ``index`` and without it; under replace-one, with the ``replacement`` in its place.

    The model is left as it is. Without a ``key`` the randomness is fresh. It is for short runs: one of more than ten
    minutes writes checkpoints by the clock, which then differ.
    """
    check_private_method(method)
    if plan.largest_batch is not None:
        allowed = "one whose batches are not cut: there, a record takes the place of another"
        raise InvalidValue("plan", allowed=allowed, given=plan.largest_batch)
    if plan.bands > 1:
        raise InvalidValue("plan", allowed="one without bands: a record moves the noise of no step", given=plan.bands)
    key = key or RunKey.fresh()
    one = Trace()
    other = Trace(replayed=one)
    neighbours = neighbouring_records(private, index, plan, replacement)
    for trace, records in zip((one, other), neighbours, strict=True):
        run = plan_run(
            copy.deepcopy(model),
            records,
            method=traced(method, trace),
            plan=plan,
            loss_fn=loss_fn,
            num_classes=num_classes,
            public=public,
            physical_batch=physical_batch,
        )
        error = _run(run, trace, key)
    if error is not None and one.notes[None, _ERROR] == other.notes[None, _ERROR]:
        raise error  # of both runs
    steps = list(_compared_sums(one, other, plan, key, num_records=len(private)))
    answers = _moved_answers(one, other, method, plan)
    differences = [*_different_notes(one, other), *(difference for step in steps for difference in step.differences())]
    differences += [
        _moved("answer of private records", step, moved, "what is stated")
        for step, moved in answers.items()
        if not moved <= 1 + _ROUNDING_OF_ANSWERS
    ]
    # After a step that led to other weights, everything may differ.
    last = min((each.step for each in differences if each.what == WEIGHTS and each.step is not None), default=math.inf)
    differences = [each for each in differences if each.step is None or each.step <= last]
    return Comparison(
        differences=tuple(sorted(differences, key=lambda each: math.inf if each.step is None else each.step)),
        measured_sensitivity=max((step.of_stated for step in steps), default=0.0),
        measured_query=max(answers.values(), default=None),
        steps=len(one.sums),
        steps_drawn=tuple(step.one.step for step in steps if step.is_drawn),
    )


def neighbouring_records(
    private: InMemory, index: int, plan: Plan, replacement: InMemory | None
) -> tuple[InMemory, InMemory]:
    """The records with the one at ``index`` last, and without it: all others have the same indices in both."""
    num_records = validate.count(minimum=2, records_held=len(private))
    if not validate.count(minimum=0, index=index) < num_records:
        raise InvalidValue("index", allowed=f"below {num_records}, the records held", given=index)
    indices = torch.arange(num_records)
    others = private.at(indices[indices != index])
    one = joined(others, private.at(indices[indices == index]))
    if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        if replacement is not None:
            raise InvalidValue("replacement", allowed="left out under add-or-remove-one", given=repr(replacement))
        return one, others
    if replacement is None or len(replacement) != 1:
        given = None if replacement is None else f"{len(replacement)} records"
        raise InvalidValue("replacement", allowed="one record where records are replaced", given=given)
    return one, joined(others, replacement)


# Recording a run


class SumEntry(NamedTuple):
    """A sum before its noise and after it; ``noise_multiplier`` is what the mechanism asked for."""

    step: int
    private: PrivateSum
    released: ReleasedSum
    noise_multiplier: float


@dataclass(eq=False)
class Trace:
    """What one run did.

    ``notes`` has what must be the same for neighbours, by step and name; ``answers`` has each answer of private
    records, with its noise, and its step. A trace with a ``replayed`` one releases what that one released.
    """

    replayed: Trace | None = None
    step: int = 0
    notes: dict[tuple[int | None, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    sums: list[SumEntry] = field(default_factory=list)
    answers: list[tuple[int, float]] = field(default_factory=list)

    def note(self, what: str, value: object, *, step: int | None) -> None:
        """Keep a value that must not depend on the records."""
        self.notes[step, what].append(value_text(value))

    def add_sum(self, entry: SumEntry) -> ReleasedSum:
        """Keep the sum; the sum to go on with is that of the replayed trace, if it has one of this step."""
        before = self.replayed.sums[len(self.sums) :] if self.replayed else []
        self.sums.append(entry._replace(private=_copy_sum(entry.private), released=_copy_sum(entry.released)))
        return _copy_sum(before[0].released) if before and before[0].step == entry.step else entry.released

    def add_answer(self, answer: float) -> float:
        """Keep the answer; the answer to go on with is that of the replayed trace, if it has one of this step."""
        before = self.replayed.answers[len(self.answers) :] if self.replayed else []
        self.answers.append((self.step, answer))
        return before[0][1] if before and before[0][0] == self.step else answer


def traced(method: Method, trace: Trace) -> Method:
    """The method, recorded. One that always accepts asks nothing, and the loop knows it by its type."""
    accepts_always = isinstance(method.acceptance, Always)
    acceptance = method.acceptance if accepts_always else TracingAcceptance(method.acceptance, trace)
    return replace(method, noise=TracingNoise(method.noise, trace), acceptance=acceptance)


class TracingNoise(Wrapper):
    """The noise of a method, recorded."""

    def __init__(self, noise: Noise, trace: Trace) -> None:
        super().__init__(noise)
        self._trace = trace

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: ComponentState
    ) -> ReleasedSum:
        step = self._trace.step = randomness.step
        released: ReleasedSum = self.inner.release(
            private, noise_multiplier=noise_multiplier, randomness=randomness, state=state
        )
        for what, value in {
            "shape of the sum": _shapes(private.values),
            "stated sensitivity": private.sensitivity,
            "stated bounds": private.bounds,
            "state of the noise": state,
            "noise multiplier": (noise_multiplier, released.noise_multiplier),
            "noise std": released.noise_std,
            "shape of what is released": _shapes(released.values),
        }.items():
            self._trace.note(what, value, step=step)
        return self._trace.add_sum(SumEntry(step, private, released, noise_multiplier))

    def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
        self._trace.note("divisor", taken.divisor, step=self._trace.step)
        self._trace.note("accepted", taken.is_accepted, step=self._trace.step)
        learned: ComponentState = self.inner.learn(state, taken)
        return learned


class TracingAcceptance(Wrapper):
    """The acceptance of a method, recorded. It decides by itself, from the answers of the first run."""

    def __init__(self, acceptance: Acceptance, trace: Trace) -> None:
        super().__init__(acceptance)
        self._trace = trace

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        is_public = isinstance(self.inner.energy, PublicEnergy)
        decision: Decision = self.inner.decide(state, TracingProposal(proposal, self._trace, is_public), released)
        self._trace.note("decision", (decision.step_scale, decision.keeps_momentum), step=self._trace.step)
        self._trace.note("state of the acceptance", decision.state, step=self._trace.step)
        return decision


@dataclass(frozen=True, eq=False)
class TracingProposal:
    """The candidates of a step, recorded. Answers of public records must be equal, and are not replayed."""

    proposal: Proposal
    trace: Trace
    is_public: bool

    def change(self, step_scale: float = 1.0) -> float:
        return self._answer("change", step_scale, self.proposal.change(step_scale))

    def best(self, step_scales: Sequence[float]) -> int:
        return int(self._answer("best", tuple(step_scales), self.proposal.best(step_scales)))

    def uniform(self) -> float:
        return self.proposal.uniform()

    def _answer(self, kind: str, asked: object, answer: float) -> float:
        self.trace.note("query", (kind, asked), step=self.trace.step)
        if not self.is_public:
            return self.trace.add_answer(answer)
        self.trace.note("answer of public records", answer, step=self.trace.step)
        return answer


@dataclass(frozen=True, kw_only=True)
class TracingKey(RunKey):
    """Gives the numbers of the key, and notes each draw. Under add-or-remove-one a sampler's count is not noted."""

    trace: Trace = field(repr=False)
    adjacency: Adjacency

    def at(self, step: int, attempt: int) -> TracingRandomness:
        return TracingRandomness(key=self, step=step, attempt=attempt)


@dataclass(frozen=True, kw_only=True)
class TracingRandomness(StepRandomness):
    """The random numbers of a step; each draw is noted."""

    key: TracingKey

    def uniforms(self, purpose: str, count: int) -> Tensor:
        self._note("uniforms", purpose, count)
        if purpose == ORDER:  # the order in which the record in question, the last, moves no other
            return (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
        return super().uniforms(purpose, count)

    def normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._note("normals", purpose, sum(tensor.numel() for tensor in like.values()))
        return super().normals(purpose, like)

    def noisy(
        self, purpose: str, values: Mapping[str, Tensor], noise_std: float | Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        noted = len(self.key.trace.notes[self.step, DRAWS])
        released = super().noisy(purpose, values, noise_std)
        if len(self.key.trace.notes[self.step, DRAWS]) == noted:  # on a GPU, without ``normals``
            self._note("normals", purpose, sum(value.numel() for value in values.values()))
        return released

    def rounded_normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._note("rounded normals", purpose, sum(tensor.numel() for tensor in like.values()))
        return super().rounded_normals(purpose, like)

    def generator(self, purpose: str, device: torch.device | str) -> torch.Generator:
        self._note("generator", purpose)
        return super().generator(purpose, device)

    def seed(self, purpose: str) -> int:
        self._note("seed", purpose)
        return super().seed(purpose)

    def _note(self, kind: str, purpose: str, count: int | None = None) -> None:
        notes = self.key.trace.notes[self.step, DRAWS]
        has_private_count = self.key.adjacency is Adjacency.ADD_OR_REMOVE_ONE and purpose in SAMPLING
        draw = str((self.attempt, kind, purpose, None if has_private_count else count))
        if not has_private_count or notes[-1:] != [draw]:  # a sampler may ask for more of the same stream
            notes.append(draw)


class _TracingCallback(Callback):
    """Notes what callbacks receive, and the weights at that time."""

    def __init__(self, trace: Trace, model: nn.Module) -> None:
        self._trace, self._model = trace, model

    def started(self, start: Start) -> None:
        self._trace.note("callback at the start", replace(start, directory=Path()), step=None)

    def stepped(self, progress: Progress) -> None:
        self._trace.note("callback after a step", progress, step=progress.step - 1)
        weights = {name: digest(value) for name, value in self._model.state_dict().items()}
        self._trace.note(WEIGHTS, weights, step=progress.step - 1)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._trace.note("callback after an evaluation", evaluation, step=evaluation.step - 1)

    def ended(self, end: End) -> None:
        self._trace.note("callback at the end", end, step=None)


def _run(run: TrainingRun, trace: Trace, key: RunKey) -> Exception | None:
    """Train, and record everything that others can see; an error that ends the run is recorded and returned."""
    error = None
    with tempfile.TemporaryDirectory(prefix="lehr-recording-") as parent:
        directory = Path(parent) / "run"
        with run.open(directory) as opened:
            opened.key = TracingKey(
                secret=key.secret,
                trace=trace,
                adjacency=run.plan.adjacency,
            )
            try:
                run.train(opened, [_TracingCallback(trace, run.model)])
            except Exception as raised:  # of the user's model or of Lehr
                trace.note(_ERROR, f"{type(raised).__name__}: {raised}".replace(parent, ""), step=None)
                error = raised
            assert opened.folder is not None
            for entry in opened.folder.ledger.entries():
                trace.note("ledger", replace(entry, at=""), step=None)
        _note_files(directory, trace)
    return error


def _note_files(directory: Path, trace: Trace) -> None:
    """Every file: of a public one its content, but for the date, and of a private one its size."""
    files = RunFiles(directory)
    today = read_config(directory)["created_on"].encode()
    for path in sorted(found for found in directory.rglob("*") if found.is_file()):
        content = path.read_bytes()
        if path == files.report:  # as it would be had the run taken no time: by the clock, two runs differ
            content = run_page.render(replace(read_run(directory), minutes=None)).encode()
        digested = hashlib.blake2b(content.replace(today, b""), digest_size=4).hexdigest()
        about = f"{len(content)} bytes" + ("" if path.is_relative_to(files.private) else f" ({digested})")
        if path == files.ledger:  # it has times in it, and was noted line by line
            about = "there"
        trace.note(f"file {path.relative_to(directory)}", about, step=None)


# Comparing two traces


def _different_notes(one: Trace, other: Trace) -> Iterator[Difference]:
    for step, what in dict.fromkeys([*one.notes, *other.notes]):
        for pair in zip_longest(one.notes[step, what], other.notes[step, what], fillvalue=_NOTHING):
            if pair[0] != pair[1]:
                yield Difference(what=what, step=step, one=pair[0], other=pair[1])
                break


def _moved(what: str, step: int, ratio: float, of: str) -> Difference:
    return Difference(what=what, step=step, one=f"moved by {ratio:.6g} times {of}", other="as it was")


def _compared_sums(one: Trace, other: Trace, plan: Plan, key: RunKey, *, num_records: int) -> Iterator[_ComparedSum]:
    sampling = counted_under(
        plan.adjacency, expected_batch_size=plan.expected_batch_size, records=plan.records, bins=plan.bins
    )
    for first, second in zip(one.sums, other.sums, strict=False):  # another length, or shape, is found in the notes
        if _shapes(first.private.values) != _shapes(second.private.values):
            return
        indices = sampling.draw(num_records, key.at(first.step, 0))
        eps = max((torch.finfo(value.dtype).eps for value in first.private.values.values()), default=0.0)
        yield _ComparedSum(
            one=first,
            other=second,
            is_drawn=bool((indices == num_records - 1).any()),
            factor=sampling.sensitivity_factor,
            rounding=4 * eps * (len(indices) + 1),
        )


class _ComparedSum:
    """One sum of both runs. ``rounding`` is how much of it, relative to what one record can add, may be rounding."""

    def __init__(self, *, one: SumEntry, other: SumEntry, is_drawn: bool, factor: float, rounding: float) -> None:
        self.one, self.other, self.is_drawn, self.rounding = one, other, is_drawn, rounding
        first, second, bounds = one.private.values, other.private.values, one.private.bounds
        self._slack = rounding * one.private.sensitivity
        moved = {name: (first[name].double() - second[name].double()).abs() for name in first}
        # Coordinates that moved by no more than rounding count as unmoved where they are divided.
        clear = {name: torch.where(value > self._slack, value, 0.0) for name, value in moved.items()}
        self._norm = _norm(moved)
        of_bounds = [float((value / (factor * bounds[name].double())).max()) for name, value in clear.items() if bounds]
        # The norm over the stated sensitivity, or a coordinate over its bound, whichever is more.
        self.of_stated = max(self._norm / (factor * one.private.sensitivity), *of_bounds, 0.0)
        # The norm in units of the noise, over what the charged noise multiplier covers.
        in_noise = {name: value / one.released.std_of(name) for name, value in clear.items()}
        self.of_charged = _norm(in_noise) * one.noise_multiplier / factor

    def differences(self) -> Iterator[Difference]:
        step, most = self.one.step, 1 + self.rounding
        if not self.is_drawn and not self._norm <= self._slack:
            yield Difference(what="sum, though the record was not drawn", step=step, one="moved", other="as it was")
        if self.is_drawn and not self.of_stated <= most:
            yield _moved("sum before its noise", step, self.of_stated, "what is stated")
        if self.is_drawn and not self.of_charged <= most:
            yield _moved("sum over its noise", step, self.of_charged, "what the charged noise covers")
        if not all(map(self._has_same_noise, self.one.released.values)):
            yield Difference(what="noise that was added", step=step, one="one", other="another")

    def _has_same_noise(self, name: str) -> bool:
        """Whether the same noise was added to both, up to the rounding of what was released."""
        private = [entry.private.values[name].double() for entry in (self.one, self.other)]
        released = [entry.released.values[name].double() for entry in (self.one, self.other)]
        difference = (released[0] - private[0]) - (released[1] - private[1])
        size = torch.finfo(self.one.released.values[name].dtype).eps * (released[0].abs() + released[1].abs())
        return bool((difference.abs() <= size).all())


def _moved_answers(one: Trace, other: Trace, method: Method, plan: Plan) -> dict[int, float]:
    """By step, how far the record moved an answer over what is stated: with the same noise, that is the difference.

    One record may move a clipped mean within its range, and a sum by its clip over its divisor.
    """
    energy = method.acceptance.energy
    if not isinstance(energy, PrivateEnergy):  # a choice is the index of a candidate, and says nothing about sums
        return {}
    stated = 2 * energy.loss_clip
    if energy.clipped != "batch":
        is_replacing = plan.adjacency is Adjacency.REPLACE_ONE
        stated = (2 if is_replacing else 1) * energy.loss_clip / energy.expected_batch_size
    pairs = zip(one.answers, other.answers, strict=False)
    return {first[0]: abs(first[1] - second[1]) / stated for first, second in pairs if first[0] == second[0]}


# Values


def value_text(value: object) -> str:
    """A value as text that is equal where the value is, to the bit, and short where it is a tensor.

    >>> import torch
    >>> value_text({"weight": torch.ones(3), "scale": 0.1})
    '{weight: 3 float32 of norm 1.73205 (1e7cacf3), scale: 0.1}'
    """
    match value:
        case Tensor():
            size = "x".join(map(str, value.shape)) or "one"
            kind = str(value.dtype).removeprefix("torch.")
            return f"{size} {kind} of norm {float(value.double().norm()):g} ({digest(value)})"
        case Mapping():
            return "{" + ", ".join(f"{name}: {value_text(part)}" for name, part in value.items()) + "}"
        case list() | tuple():
            return "(" + ", ".join(map(value_text, value)) + ")"
        case _:
            return str(value) if isinstance(value, str) or is_dataclass(value) else repr(value)


def digest(value: Tensor) -> str:
    """A short hash of the bits of a tensor."""
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def _norm(values: Tensors) -> float:
    return math.hypot(*(float(value.norm()) for value in values.values()))


def _shapes(values: Tensors) -> tuple[Any, ...]:
    return tuple((name, tuple(value.shape), str(value.dtype)) for name, value in values.items())


_Sum = TypeVar("_Sum", PrivateSum, ReleasedSum)


def _copy_sum(summed: _Sum) -> _Sum:
    """A copy whose values are not changed by later steps."""
    return replace(summed, values={name: value.detach().clone() for name, value in summed.values.items()})
