"""Two runs of the real loop on neighbouring data with the same randomness, compared in all that must be the same.

After Re:cord-play (Cebere et al. 2026, "Privacy in Theory, Bugs in Practice: Grey-Box Auditing of Differential Privacy
Libraries"): the first run is put on trace, and the second is given what the first released, so that both stand at the
same weights before every step. What a record may move is then the sum before its noise, by what is stated, and nothing
else: no random number more or less, no noise, no charge, no bit of a public file.

It is for whoever writes a method or changes the library, on data of their own. All that it says is **private**: the
sums are compared without noise, and nothing of that may be released.

One thing is let differ: how many numbers a sampler asks for, which follows the number of records that are held. Of the
stream that it asks, those for the records that both data sets have are the same; the record in question is put last.
"""

from __future__ import annotations

import copy
import hashlib
import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

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
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, StepOutcome, Tensors
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

    ``measured_sensitivity`` is the most that the record moved a sum, over what is stated for it: near one where the
    record is as loud as the clip allows, and never above. ``measured_question`` is the same of a change of the loss on
    private records, where an acceptance asks for one. In the ``steps_drawn`` the record was in the draw.
    """

    differences: tuple[Difference, ...]
    measured_sensitivity: float
    measured_question: float | None
    steps: int
    steps_drawn: tuple[int, ...]

    @property
    def passes(self) -> bool:
        """Whether nothing depends on the record but what may. It says little where the record was never drawn."""
        return not self.differences

    def __str__(self) -> str:
        """What was compared, and every difference."""
        count = len(self.differences)
        found = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
        question = "" if self.measured_question is None else f", and an answer by {self.measured_question:.2%}"
        lines = (
            "private, for developers: nothing of this may be released",
            f"{found} in {self.steps} steps, in {len(self.steps_drawn)} of which the record was drawn",
            f"the record moved a sum by {self.measured_sensitivity:.2%} of what is stated{question}",
            *map(str, self.differences),
        )
        return "\n".join(lines)


def compare(
    model: nn.Module,
    private: InMemory,
    changed_place: int,
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
    """Run with the record and without it; where records are replaced, with the ``replacement`` in its place.

    The model is left as it is. Without a ``key`` the randomness is fresh. It is for short runs: one of more than ten
    minutes writes checkpoints by the clock, which are then found to differ.
    """
    check_private_method(method)
    key = key or RunKey.fresh(cryptographic_on_gpu=True)
    one, other = Trace(), Trace()
    other.replayed = one
    for trace, records in zip(
        (one, other), neighbouring_records(private, changed_place, plan, replacement), strict=True
    ):
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
    return _Comparing(one=one, other=other, method=method, plan=plan, key=key, num_records=len(private)).comparison()


def neighbouring_records(
    private: InMemory, changed_place: int, plan: Plan, replacement: InMemory | None
) -> tuple[InMemory, InMemory]:
    """The records with the one in question at their end, and without it: the others have the same places in both."""
    num_records = validate.count(minimum=2, records_held=len(private))
    if not validate.count(minimum=0, changed_place=changed_place) < num_records:
        raise InvalidValue("changed_place", allowed=f"below {num_records}, the records held", given=changed_place)
    places = torch.arange(num_records)
    others = private.at(places[places != changed_place])
    one = joined(others, private.at(places[changed_place : changed_place + 1]))
    if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        if replacement is not None:
            raise InvalidValue("replacement", allowed="left out under add-or-remove-one", given=repr(replacement))
        return one, others
    if replacement is None or len(replacement) != 1:
        given = None if replacement is None else f"{len(replacement)} records"
        raise InvalidValue("replacement", allowed="one record where records are replaced", given=given)
    return one, joined(others, replacement)


def _run(run: TrainingRun, trace: Trace, key: RunKey) -> Exception | None:
    """Train, with everything that others can see on trace; an error that ends it is seen as well."""
    error = None
    with tempfile.TemporaryDirectory(prefix="lehr-recording-") as parent:
        where = Path(parent) / "run"
        with run.open(where) as opened:
            opened.key = TracingKey.of(key, _noting_draws(trace, run.plan.adjacency))
            try:
                run.train(opened, [_TracingCallback(trace, run.model)])
            except Exception as raised:  # of the user's model or of Lehr: that it comes, and what it says, is told
                trace.note(_ERROR, f"{type(raised).__name__}: {raised}".replace(parent, ""), step=None)
                error = raised
            assert opened.folder is not None
            for entry in opened.folder.ledger.entries():
                trace.note("ledger", replace(entry, at=""), step=None)
        _note_files(where, trace)
    return error


class _TracingCallback(Callback):
    """Notes what callbacks receive, and the weights that go with it."""

    def __init__(self, trace: Trace, model: nn.Module) -> None:
        self._trace, self._model = trace, model

    def started(self, start: Start) -> None:
        self._trace.note("start that is told", replace(start, directory=Path()), step=None)

    def stepped(self, progress: Progress) -> None:
        self._trace.note("progress that is told", progress, step=progress.step - 1)
        weights = {name: digest(value) for name, value in self._model.state_dict().items()}
        self._trace.note(WEIGHTS, weights, step=progress.step - 1)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._trace.note("score that is told", evaluation, step=evaluation.step - 1)

    def ended(self, end: End) -> None:
        self._trace.note("end that is told", end, step=None)


def _noting_draws(trace: Trace, adjacency: Adjacency) -> DrawListener:
    """A listener to draws. Where the number of records is private, how much a sampler asks for is not noted."""

    def listener(draw: Draw) -> None:
        if adjacency is Adjacency.ADD_OR_REMOVE_ONE and draw.purpose in SAMPLING:
            draw = draw._replace(how_many=None)
            if trace.notes[draw.step, DRAWS][-1:] == [str(tuple(draw[1:]))]:  # more of the same stream
                return
        trace.notes[draw.step, DRAWS].append(str(tuple(draw[1:])))

    return listener


def _note_files(where: Path, trace: Trace) -> None:
    """Every file: of a public one its content, but for the date, and of one that is for nobody else its size."""
    files = RunFiles(where)
    today = read_config(where)["created_on"].encode()
    for path in sorted(found for found in where.rglob("*") if found.is_file()):
        is_public = path != files.ledger and not path.is_relative_to(files.private)
        if path == files.ledger:  # it has times in it, and was noted line by line
            about = "there"
        else:
            content = path.read_bytes()
            if path == files.report:  # as it would be had the run taken no time: by the clock, two runs differ
                content = run_page.render(replace(read_run(where), minutes=None)).encode()
            digested = hashlib.blake2b(content.replace(today, b""), digest_size=4).hexdigest()
            about = f"{len(content)} bytes" + (f" ({digested})" if is_public else "")
        trace.note(f"file {path.relative_to(where)}", about, step=None)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """One sum of both runs, and how much of it may be rounding."""

    one: SumEntry
    other: SumEntry
    is_drawn: bool
    sensitivity_factor: float
    rounding: float  # of a sum, relative to what one record can add to it

    @cached_property
    def moved(self) -> dict[str, Tensor]:
        """How far the record moved each coordinate."""
        one, other = self.one.private.values, self.other.private.values
        return {name: (one[name].double() - other[name].double()).abs() for name in one}

    @property
    def stated(self) -> float:
        return self.sensitivity_factor * self.one.private.sensitivity

    @property
    def of_stated(self) -> float:
        """The norm over what is stated for it, or a coordinate over its bound, whichever is more."""
        norm = _norm(self.moved) / self.stated
        return max(norm, _largest_ratio(self.moved, self.one.private.bounds, self.sensitivity_factor, self.slack))

    @property
    def of_charged(self) -> float:
        """The norm in units of the noise, over what the charged noise multiplier lets it be."""
        ratios = {
            name: torch.where(value > self.slack, value / self.one.released.std_of(name), 0.0)
            for name, value in self.moved.items()
        }
        return _norm(ratios) * self.one.noise_multiplier / self.sensitivity_factor

    @property
    def slack(self) -> float:
        return self.rounding * self.one.private.sensitivity

    @property
    def has_same_noise(self) -> bool:
        """Whether the same noise was added to both, up to the rounding of what was released."""
        for name, value in self.one.released.values.items():
            noises = [
                entry.released.values[name].double() - entry.private.values[name].double()
                for entry in (self.one, self.other)
            ]
            size = value.double().abs() + self.other.released.values[name].double().abs()
            if not bool(((noises[0] - noises[1]).abs() <= torch.finfo(value.dtype).eps * size).all()):
                return False
        return True

    def differences(self) -> Iterator[Difference]:
        if not self.is_drawn and not _norm(self.moved) <= self.slack:
            yield self._difference("sum, though the record was not drawn", "moved", "as it was")
        if self.is_drawn and not self.of_stated <= 1 + self.rounding:
            given = f"moved by {self.of_stated:.6g} times what is stated"
            yield self._difference("sum before its noise", given, "as it was")
        if self.is_drawn and not self.of_charged <= 1 + self.rounding:
            given = f"moved by {self.of_charged:.6g} times what the noise that is charged covers"
            yield self._difference("sum over its noise", given, "as it was")
        if not self.has_same_noise:
            yield self._difference("noise that was added", "one", "another")

    def _difference(self, what: str, one: str, other: str) -> Difference:
        return Difference(what=what, step=self.one.step, one=one, other=other)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Comparing:
    """Two traces, the first with the record and the second without."""

    one: Trace
    other: Trace
    method: Method
    plan: Plan
    key: RunKey
    num_records: int

    def comparison(self) -> Comparison:
        steps = list(self._steps())
        found = [*self._of_notes(), *(found for step in steps for found in step.differences()), *self._of_answers()]
        return Comparison(
            differences=_up_to_the_first_other_weights(found),
            measured_sensitivity=max((step.of_stated for step in steps), default=0.0),
            measured_question=max(self._moved_answers().values(), default=None),
            steps=len(self.one.sums),
            steps_drawn=tuple(step.one.step for step in steps if step.is_drawn),
        )

    def _steps(self) -> Iterator[_Step]:
        sampling = counted_under(
            self.plan.adjacency, expected_batch_size=self.plan.expected_batch_size, records=self.plan.records
        )
        for one, other in zip(self.one.sums, self.other.sums, strict=False):  # that one is longer is found in the notes
            if _shapes(one) != _shapes(other):
                return
            places = sampling.draw(self.num_records, self.key.at(one.step, 0))
            eps = max((torch.finfo(value.dtype).eps for value in one.private.values.values()), default=0.0)
            yield _Step(
                one=one,
                other=other,
                is_drawn=bool((places == self.num_records - 1).any()),
                sensitivity_factor=sampling.sensitivity_factor,
                rounding=4 * eps * (len(places) + 1),
            )

    def _of_notes(self) -> Iterator[Difference]:
        for step, what in dict.fromkeys([*self.one.notes, *self.other.notes]):
            pairs = zip_longest(self.one.notes[step, what], self.other.notes[step, what], fillvalue=_NOTHING)
            differing = next((pair for pair in pairs if pair[0] != pair[1]), None)
            if differing is not None:
                yield Difference(what=what, step=step, one=differing[0], other=differing[1])

    def _of_answers(self) -> Iterator[Difference]:
        for step, moved in self._moved_answers().items():
            if not moved <= 1 + _ROUNDING_OF_ANSWERS:
                given = f"moved by {moved:.6g} times what is stated"
                yield Difference(what="answer of private records", step=step, one=given, other="as it was")

    def _moved_answers(self) -> dict[int, float]:
        """How far the record moved each answer, over what is stated: under the same noise, that is the difference."""
        energy = self.method.acceptance.energy
        if not isinstance(energy, PrivateEnergy):  # a choice is a place among candidates, and says nothing about sums
            return {}
        stated = _stated_for(energy, self.plan)
        pairs = zip(self.one.answers, self.other.answers, strict=False)
        return {one.step: abs(one.answer - other.answer) / stated for one, other in pairs if one.step == other.step}


def _stated_for(energy: PrivateEnergy, plan: Plan) -> float:
    """How far one record may move the answer: a clipped mean within its range, a sum by its clip over its divisor."""
    if energy.clipped == "batch":
        return 2 * energy.loss_clip
    is_replacing = plan.adjacency is Adjacency.REPLACE_ONE
    return (2 if is_replacing else 1) * energy.loss_clip / energy.expected_batch_size


def _up_to_the_first_other_weights(found: Sequence[Difference]) -> tuple[Difference, ...]:
    """In order of steps. After a step that led to other weights, everything may differ, and says nothing more."""
    last = min((one.step for one in found if one.what == WEIGHTS and one.step is not None), default=math.inf)
    kept = (one for one in found if one.step is None or one.step <= last)
    return tuple(sorted(kept, key=lambda one: math.inf if one.step is None else one.step))


def _norm(values: Tensors) -> float:
    return math.hypot(*(float(value.norm()) for value in values.values()))


def _largest_ratio(moved: Tensors, bounds: Tensors | None, sensitivity_factor: float, slack: float) -> float:
    """Of a coordinate to its bound, where it moved by more than rounding can."""
    if bounds is None:
        return 0.0
    ratios = (
        torch.where(value > slack, value / (sensitivity_factor * bounds[name].double()), 0.0)
        for name, value in moved.items()
    )
    return max(float(ratio.max()) for ratio in ratios)


def _shapes(entry: SumEntry) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in entry.private.values.items()}


class Draw(NamedTuple):
    """Random numbers that were asked for. Of a generator, and of a seed, it is not known how many it will give."""

    step: int
    attempt: int
    kind: str
    purpose: str
    how_many: int | None = None


DrawListener: TypeAlias = Callable[[Draw], None]


@dataclass(frozen=True, kw_only=True)
class TracingKey(RunKey):
    """Gives the numbers that the key gives, and tells ``listener`` of each draw."""

    listener: DrawListener = field(repr=False)

    @classmethod
    def of(cls, key: RunKey, listener: DrawListener) -> TracingKey:
        """The same key, listened to."""
        return cls(secret=key.secret, cryptographic_on_gpu=key.cryptographic_on_gpu, listener=listener)

    def at(self, step: int, attempt: int) -> TracingRandomness:
        return TracingRandomness(key=self, step=step, attempt=attempt, listener=self.listener)


@dataclass(frozen=True, kw_only=True)
class TracingRandomness(StepRandomness):
    """The random numbers of a step, each draw told."""

    listener: DrawListener = field(repr=False)

    def uniforms(self, purpose: str, count: int) -> Tensor:
        self._tell("uniforms", purpose, count)
        if purpose == ORDER:  # of all orders the one in which the record in question, the last, moves nobody
            return (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
        return super().uniforms(purpose, count)

    def normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._tell("normals", purpose, sum(tensor.numel() for tensor in like.values()))
        return super().normals(purpose, like)

    def generator(self, purpose: str, device: torch.device | str) -> torch.Generator:
        self._tell("generator", purpose)
        return super().generator(purpose, device)

    def seed(self, purpose: str) -> int:
        self._tell("seed", purpose)
        return super().seed(purpose)

    def _tell(self, kind: str, purpose: str, count: int | None = None) -> None:
        self.listener(Draw(self.step, self.attempt, kind, purpose, count))


class SumEntry(NamedTuple):
    """A sum before its noise and after it; ``noise_multiplier`` is what the mechanism asked for."""

    step: int
    private: PrivateSum
    released: ReleasedSum
    noise_multiplier: float


class AnswerEntry(NamedTuple):
    """What private records answered, with its noise: a change of the energy, or the place of a choice."""

    step: int
    answer: float


@dataclass(eq=False)
class Trace:
    """What one run did. ``notes`` has what must be the same for neighbours, by step and by what it is."""

    replayed: Trace | None = None
    step: int = 0
    notes: dict[tuple[int | None, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    sums: list[SumEntry] = field(default_factory=list)
    answers: list[AnswerEntry] = field(default_factory=list)

    def note(self, what: str, value: object, *, step: int | None) -> None:
        """Keep a value that must not depend on the records."""
        self.notes[step, what].append(value_text(value))

    def add_sum(self, entry: SumEntry) -> ReleasedSum:
        """Keep the sum; what was released in its place on the trace that is replayed, or else by itself."""
        before = self.replayed.sums[len(self.sums) :] if self.replayed else []
        self.sums.append(entry._replace(private=_copy_sum(entry.private), released=_copy_sum(entry.released)))
        return _copy_sum(before[0].released) if before and before[0].step == entry.step else entry.released

    def add_answer(self, answer: float) -> float:
        """Keep the answer; the one in its place on the trace that is replayed, or else itself."""
        before = self.replayed.answers[len(self.answers) :] if self.replayed else []
        self.answers.append(AnswerEntry(self.step, answer))
        return before[0].answer if before and before[0].step == self.step else answer


class TracingNoise(Wrapper):
    """The noise of a method, on trace."""

    def __init__(self, noise: Noise, trace: Trace) -> None:
        super().__init__(noise)
        self._trace = trace

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        step = self._trace.step = randomness.step
        released: ReleasedSum = self.inner.release(
            private, noise_multiplier=noise_multiplier, randomness=randomness, state=state
        )
        for what, value in {
            "shape of the sum": _tensor_shapes(private.values),
            "stated sensitivity": private.sensitivity,
            "stated bounds": private.bounds,
            "state of the noise": state,
            "noise multiplier": (noise_multiplier, released.noise_multiplier),
            "noise std": released.noise_std,
            "shape of what is released": _tensor_shapes(released.values),
        }.items():
            self._trace.note(what, value, step=step)
        return self._trace.add_sum(SumEntry(step, private, released, noise_multiplier))

    def learn(self, state: SlotState, taken: StepOutcome) -> SlotState:
        self._trace.note("divisor", taken.divisor, step=self._trace.step)
        self._trace.note("accepted", taken.is_accepted, step=self._trace.step)
        learned: SlotState = self.inner.learn(state, taken)
        return learned


class TracingAcceptance(Wrapper):
    """The acceptance of a method, on trace. It decides by itself, from the answers that the first run had."""

    def __init__(self, acceptance: Acceptance, trace: Trace) -> None:
        super().__init__(acceptance)
        self._trace = trace

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        asked = TracingProposal(proposal, self._trace, is_public=isinstance(self.inner.energy, PublicEnergy))
        decision: Decision = self.inner.decide(state, asked, released)
        self._trace.note("decision", (decision.step_scale, decision.keeps_momentum), step=self._trace.step)
        self._trace.note("state of the acceptance", decision.state, step=self._trace.step)
        return decision


@dataclass(frozen=True, eq=False)
class TracingProposal:
    """The candidates of a step, on trace. What public records answer must be the same, and is not replayed."""

    proposal: Proposal
    trace: Trace
    is_public: bool = field(kw_only=True)

    def change(self, step_scale: float = 1.0) -> float:
        return self._answer("change", step_scale, self.proposal.change(step_scale))

    def best(self, step_scales: Sequence[float]) -> int:
        return int(self._answer("best", tuple(step_scales), self.proposal.best(step_scales)))

    def uniform(self) -> float:
        return self.proposal.uniform()

    def _answer(self, kind: str, asked: object, answer: float) -> float:
        self.trace.note("question", (kind, asked), step=self.trace.step)
        if not self.is_public:
            return self.trace.add_answer(answer)
        self.trace.note("answer of public records", answer, step=self.trace.step)
        return answer


def traced(method: Method, trace: Trace) -> Method:
    """The method, on trace. One that accepts always asks nothing, and the loop knows it by its type."""
    accepts_always = isinstance(method.acceptance, Always)
    acceptance = method.acceptance if accepts_always else TracingAcceptance(method.acceptance, trace)
    return replace(method, noise=TracingNoise(method.noise, trace), acceptance=acceptance)


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
        case str():
            return value
        case _ if is_dataclass(value):
            return str(value)
        case _:
            return repr(value)


def digest(value: Tensor) -> str:
    """A short hash of the bits of a tensor."""
    content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def _tensor_shapes(values: Tensors) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, tuple(value.shape), str(value.dtype)) for name, value in values.items())


_Sum = TypeVar("_Sum", PrivateSum, ReleasedSum)


def _copy_sum(summed: _Sum) -> _Sum:
    """With values of its own: whoever was given the other one may change it."""
    return replace(summed, values={name: value.detach().clone() for name, value in summed.values.items()})
