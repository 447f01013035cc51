"""Two runs of the real loop on neighbouring data with the same randomness, compared in all that must be the same.

After Re:cord-play (Cebere et al. 2026, "Privacy in Theory, Bugs in Practice: Grey-Box Auditing of Differential Privacy
Libraries"): the first run is put on tape, and the second is given what the first released, so that both stand at the
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.acceptance.energy import PrivateEnergy
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.events import Adjacency
from lehr.games.private_methods import a_private_method
from lehr.games.recorded_randomness import Draw, Listener, RecordedKey
from lehr.games.recorded_slots import HeardSum, Tape, digest, recorded
from lehr.games.staging import planned
from lehr.gradients.batches import LossFn
from lehr.interfaces import Tensors
from lehr.mechanism import Method
from lehr.planning.plan import Plan
from lehr.reports import run_page
from lehr.reports.run_reading import read_run
from lehr.rng import RunKey
from lehr.run_folder import RunFolder, read_config
from lehr.run_shape import Callback, End, Evaluation, Progress, RunFiles, Start
from lehr.sampling import counted_under
from lehr.sampling.physical import ORDER
from lehr.training.planned import Planned

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

    def lines(self) -> list[str]:
        """For people: what was compared, and every difference."""
        count = len(self.differences)
        found = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
        question = "" if self.measured_question is None else f", and an answer by {self.measured_question:.2%}"
        return [
            "private, for developers: nothing of this may be released",
            f"{found} in {self.steps} steps, in {len(self.steps_drawn)} of which the record was drawn",
            f"the record moved a sum by {self.measured_sensitivity:.2%} of what is stated{question}",
            *map(str, self.differences),
        ]

    def __str__(self) -> str:
        return "\n".join(self.lines())


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
    a_private_method(method)
    key = key or RunKey.fresh(cryptographic_on_gpu=True)
    one, other = Tape(), Tape()
    other.played = one
    for tape, records in zip((one, other), neighbours(private, changed_place, plan, replacement), strict=True):
        run = planned(
            copy.deepcopy(model),
            records,
            method=recorded(method, tape),
            plan=plan,
            loss_fn=loss_fn,
            num_classes=num_classes,
            public=public,
            physical_batch=physical_batch,
        )
        error = _run(run, tape, key)
    if error is not None and one.noted[None, _ERROR] == other.noted[None, _ERROR]:
        raise error  # of both runs
    return _Comparing(one=one, other=other, method=method, plan=plan, key=key, num_held=len(private)).comparison()


def neighbours(
    private: InMemory, changed_place: int, plan: Plan, replacement: InMemory | None
) -> tuple[InMemory, InMemory]:
    """The records with the one in question at their end, and without it: the others have the same places in both."""
    num_held = validate.count(minimum=2, records_held=len(private))
    if not validate.count(minimum=0, changed_place=changed_place) < num_held:
        raise InvalidValue("changed_place", allowed=f"below {num_held}, the records held", given=changed_place)
    places = torch.arange(num_held)
    others = private.at(places[places != changed_place])
    one = _joined(others, private.at(places[changed_place : changed_place + 1]))
    if plan.adjacency is Adjacency.ADD_OR_REMOVE_ONE:
        if replacement is not None:
            raise InvalidValue("replacement", allowed="left out under add-or-remove-one", given=repr(replacement))
        return one, others
    if replacement is None or len(replacement) != 1:
        given = None if replacement is None else f"{len(replacement)} records"
        raise InvalidValue("replacement", allowed="one record where records are replaced", given=given)
    return one, _joined(others, replacement)


def _joined(others: InMemory, last: InMemory) -> InMemory:
    return InMemory(torch.cat([others.inputs, last.inputs]), torch.cat([others.targets, last.targets]))


def _run(run: Planned, tape: Tape, key: RunKey) -> Exception | None:
    """Train, with everything that others can see on tape; an error that ends it is seen as well."""
    error = None
    with tempfile.TemporaryDirectory(prefix="lehr-recording-") as parent:
        where = Path(parent) / "run"
        with run.begun(where) as folder:
            folder.key = RecordedKey.of(key, _noting_draws(tape, run.plan.adjacency))
            try:
                run.trained(folder, [_Told(tape, run.model)])
            except Exception as raised:  # of the user's model or of Lehr: that it comes, and what it says, is told
                tape.note(_ERROR, f"{type(raised).__name__}: {raised}".replace(parent, ""), step=None)
                error = raised
            _note_ledger(folder, tape)
        _note_files(where, tape)
    return error


class _Told(Callback):
    """Notes what callbacks are told, and the weights that go with it."""

    def __init__(self, tape: Tape, model: nn.Module) -> None:
        self._tape, self._model = tape, model

    def started(self, start: Start) -> None:
        self._tape.note("start that is told", replace(start, directory=Path()), step=None)

    def stepped(self, progress: Progress) -> None:
        self._tape.note("progress that is told", progress, step=progress.step - 1)
        weights = {name: digest(value) for name, value in self._model.state_dict().items()}
        self._tape.note(WEIGHTS, weights, step=progress.step - 1)

    def evaluated(self, evaluation: Evaluation) -> None:
        self._tape.note("score that is told", evaluation, step=evaluation.step - 1)

    def ended(self, end: End) -> None:
        self._tape.note("end that is told", end, step=None)


def _noting_draws(tape: Tape, adjacency: Adjacency) -> Listener:
    """A listener to draws. Where the number of records is private, how much a sampler asks for is not noted."""

    def listener(draw: Draw) -> None:
        if adjacency is Adjacency.ADD_OR_REMOVE_ONE and draw.purpose in SAMPLING:
            draw = draw._replace(how_many=None)
            if tape.noted[draw.step, DRAWS][-1:] == [str(tuple(draw[1:]))]:  # more of the same stream
                return
        tape.noted[draw.step, DRAWS].append(str(tuple(draw[1:])))

    return listener


def _note_ledger(folder: RunFolder, tape: Tape) -> None:
    for entry in folder.ledger.entries():
        tape.note("ledger", replace(entry, at=""), step=None)


def _note_files(where: Path, tape: Tape) -> None:
    """Every file: of a public one its content, but for the date, and of one that is for nobody else its size."""
    files = RunFiles(where)
    today = read_config(where)["created_on"].encode()
    for path in sorted(found for found in where.rglob("*") if found.is_file()):
        is_public = path != files.ledger and not path.is_relative_to(files.private)
        if path == files.ledger:  # it has times in it, and was noted line by line
            about = "there"
        else:
            content = _timeless_report(where) if path == files.report else path.read_bytes()
            digested = hashlib.blake2b(content.replace(today, b""), digest_size=4).hexdigest()
            about = f"{len(content)} bytes" + (f" ({digested})" if is_public else "")
        tape.note(f"file {path.relative_to(where)}", about, step=None)


def _timeless_report(where: Path) -> bytes:
    """The page as it would be had the run taken no time: by the clock, two runs of the same steps differ."""
    return run_page.render(replace(read_run(where), minutes=None)).encode()


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """One sum of both runs, and how much of it may be rounding."""

    one: HeardSum
    other: HeardSum
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
                heard.released.values[name].double() - heard.private.values[name].double()
                for heard in (self.one, self.other)
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
    """Two tapes, the first with the record and the second without."""

    one: Tape
    other: Tape
    method: Method
    plan: Plan
    key: RunKey
    num_held: int

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
            places = sampling.draw(self.num_held, self.key.at(one.step, 0))
            eps = max((torch.finfo(value.dtype).eps for value in one.private.values.values()), default=0.0)
            yield _Step(
                one=one,
                other=other,
                is_drawn=bool((places == self.num_held - 1).any()),
                sensitivity_factor=sampling.sensitivity_factor,
                rounding=4 * eps * (len(places) + 1),
            )

    def _of_notes(self) -> Iterator[Difference]:
        for step, what in dict.fromkeys([*self.one.noted, *self.other.noted]):
            pairs = zip_longest(self.one.noted[step, what], self.other.noted[step, what], fillvalue=_NOTHING)
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


def _shapes(heard: HeardSum) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in heard.private.values.items()}
