"""The slots of a method on tape: all that passes through them is noted, and a second run is given what the first had.

In the second run noise is drawn and questions are answered as ever, and noted; but what goes on from there is what the
first run released. So both runs have the same weights and states before every step, and what differs within one is the
doing of the record that they differ in.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lehr.acceptance.always import Always
from lehr.acceptance.energy import Energy, PublicEnergy
from lehr.acceptance.proposal import Acceptance, Decision, Proposal
from lehr.games.overheard import NoisePassedOn
from lehr.interfaces import PrivateSum, ReleasedSum, SlotState, Taken, Tensors
from lehr.mechanism import Method, Noise
from lehr.rng import StepRandomness


class HeardSum(NamedTuple):
    """A sum before its noise and after it; ``noise_multiplier`` is what the mechanism asked for."""

    step: int
    private: PrivateSum
    released: ReleasedSum
    noise_multiplier: float


class HeardAnswer(NamedTuple):
    """What private records answered, with its noise: a change of the energy, or the place of a choice."""

    step: int
    answer: float


@dataclass(eq=False)
class Tape:
    """What one run did. ``noted`` has what must be the same for neighbours, by step and by what it is."""

    played: Tape | None = None
    step: int = 0
    noted: dict[tuple[int | None, str], list[str]] = field(default_factory=lambda: defaultdict(list))
    sums: list[HeardSum] = field(default_factory=list)
    answers: list[HeardAnswer] = field(default_factory=list)

    def note(self, what: str, value: object, *, step: int | None) -> None:
        """Keep a value that must not depend on the records."""
        self.noted[step, what].append(shown(value))

    def hear_sum(self, heard: HeardSum) -> ReleasedSum:
        """Keep the sum; what was released in its place on the tape that is played, or else by itself."""
        before = self.played.sums[len(self.sums) :] if self.played else []
        self.sums.append(heard._replace(private=_copied(heard.private), released=_copied(heard.released)))
        return _copied(before[0].released) if before and before[0].step == heard.step else heard.released

    def hear_answer(self, answer: float) -> float:
        """Keep the answer; the one in its place on the tape that is played, or else itself."""
        before = self.played.answers[len(self.answers) :] if self.played else []
        self.answers.append(HeardAnswer(self.step, answer))
        return before[0].answer if before and before[0].step == self.step else answer


class RecordedNoise(NoisePassedOn):
    """The noise of a method, on tape."""

    def __init__(self, noise: Noise, tape: Tape) -> None:
        super().__init__(noise)
        self._tape = tape

    def release(
        self, private: PrivateSum, *, noise_multiplier: float, randomness: StepRandomness, state: SlotState
    ) -> ReleasedSum:
        tape, step = self._tape, randomness.step
        tape.step = step
        tape.note("shape of the sum", _shapes(private.values), step=step)
        tape.note("stated sensitivity", private.sensitivity, step=step)
        tape.note("stated bounds", private.bounds, step=step)
        tape.note("state of the noise", state, step=step)
        released = super().release(private, noise_multiplier=noise_multiplier, randomness=randomness, state=state)
        tape.note("noise multiplier", (noise_multiplier, released.noise_multiplier), step=step)
        tape.note("noise std", released.noise_std, step=step)
        tape.note("shape of what is released", _shapes(released.values), step=step)
        return tape.hear_sum(HeardSum(step, private, released, noise_multiplier))

    def learn(self, state: SlotState, taken: Taken) -> SlotState:
        self._tape.note("divisor", taken.divisor, step=self._tape.step)
        self._tape.note("accepted", taken.is_accepted, step=self._tape.step)
        return super().learn(state, taken)


@dataclass(frozen=True, eq=False)
class RecordedAcceptance:
    """The acceptance of a method, on tape. It decides by itself, from the answers that the first run had."""

    inner: Acceptance
    tape: Tape

    @property
    def energy(self) -> Energy | None:
        return self.inner.energy

    @property
    def most_rejections(self) -> int | None:
        return self.inner.most_rejections

    def start(self) -> SlotState:
        return self.inner.start()

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return self.inner.combined(state, released)

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        recorded = RecordedProposal(proposal, self.tape, is_public=isinstance(self.energy, PublicEnergy))
        decision = self.inner.decide(state, recorded, released)
        self.tape.note("decision", (decision.step_scale, decision.keeps_momentum), step=self.tape.step)
        self.tape.note("state of the acceptance", decision.state, step=self.tape.step)
        return decision

    def to_json(self) -> dict[str, object]:
        return self.inner.to_json()


@dataclass(frozen=True, eq=False)
class RecordedProposal:
    """The candidates of a step, on tape. What public records answer must be the same, and is not replayed."""

    proposal: Proposal
    tape: Tape
    is_public: bool = field(kw_only=True)

    def change(self, step_scale: float = 1.0) -> float:
        return self._answer("change", step_scale, self.proposal.change(step_scale))

    def best(self, step_scales: Sequence[float]) -> int:
        return int(self._answer("best", tuple(step_scales), self.proposal.best(step_scales)))

    def uniform(self) -> float:
        return self.proposal.uniform()

    def _answer(self, kind: str, asked: object, answer: float) -> float:
        self.tape.note("question", (kind, asked), step=self.tape.step)
        if not self.is_public:
            return self.tape.hear_answer(answer)
        self.tape.note("answer of public records", answer, step=self.tape.step)
        return answer


def recorded(method: Method, tape: Tape) -> Method:
    """The method, on tape. One that accepts always asks nothing, and the loop knows it by its type."""
    accepts_always = isinstance(method.acceptance, Always)
    acceptance = method.acceptance if accepts_always else RecordedAcceptance(method.acceptance, tape)
    return replace(method, noise=RecordedNoise(method.noise, tape), acceptance=acceptance)


def shown(value: object) -> str:
    """A value as text that is equal where the value is, to the bit, and short where it is a tensor.

    >>> import torch
    >>> shown({"weight": torch.ones(3), "scale": 0.1})
    '{weight: 3 float32 of norm 1.73205 (1e7cacf3), scale: 0.1}'
    """
    match value:
        case Tensor():
            size = "x".join(map(str, value.shape)) or "one"
            kind = str(value.dtype).removeprefix("torch.")
            return f"{size} {kind} of norm {float(value.double().norm()):g} ({digest(value)})"
        case Mapping():
            return "{" + ", ".join(f"{name}: {shown(part)}" for name, part in value.items()) + "}"
        case list() | tuple():
            return "(" + ", ".join(map(shown, value)) + ")"
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


def _shapes(values: Tensors) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    return tuple((name, tuple(value.shape), str(value.dtype)) for name, value in values.items())


_Sum = TypeVar("_Sum", PrivateSum, ReleasedSum)


def _copied(summed: _Sum) -> _Sum:
    """With values of its own: whoever was given the other one may change it."""
    return replace(summed, values={name: value.detach().clone() for name, value in summed.values.items()})
