"""What an acceptance may ask about a candidate, of whom, and what it decides.

An acceptance never sees a record or a sum without noise. What it asks of private records is answered by
``lehr.run.loss_oracle`` with noise, and charged for every candidate, whether it asks or not.

    PublicEnergy    the mean loss on public records; it costs nothing
    PrivateEnergy   how the loss on private records changes, clipped, with noise
    PrivateChoice   which of several step sizes has the least loss on private records, chosen with noise
    Proposal, Decision, Acceptance   the candidates, the answer, and the protocol of an acceptance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, SlotState

_CLIPPED = ("records", "batch")


@dataclass(frozen=True)
class PublicEnergy:
    """The mean loss on public records."""

    def to_json(self) -> dict[str, object]:
        return {"kind": "public"}


@dataclass(frozen=True, kw_only=True)
class PrivateEnergy:
    """The change of the loss on a draw of private records of their own.

    With ``clipped="records"`` every record's change is clipped to ±``loss_clip`` and the sum is divided by the expected
    size of the draw: one record moves the sum by at most ``loss_clip``. With ``clipped="batch"``, as in DPSUR, the mean
    over the draw is clipped: records can move it by 2 ``loss_clip`` together, and so can one. ``noise_multiplier`` is
    over that.
    """

    loss_clip: float
    noise_multiplier: float
    expected_batch_size: float
    clipped: Literal["records", "batch"] = "records"

    def __post_init__(self) -> None:
        validate.positive(loss_clip=self.loss_clip)
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.positive(expected_batch_size=self.expected_batch_size)
        validate.one_of(_CLIPPED, clipped=self.clipped)

    def to_json(self) -> dict[str, object]:
        return {"kind": "private", **asdict(self)}


@dataclass(frozen=True, kw_only=True)
class PrivateChoice:
    """The step size with the least loss, chosen by report-noisy-max over losses clipped to [0, ``loss_clip``].

    One choice is ``epsilon``-differentially private for the records that are looked at: all of them, or a draw of an
    ``expected_batch_size``, which costs less.
    """

    loss_clip: float
    epsilon: float
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        validate.positive(loss_clip=self.loss_clip)
        validate.positive(epsilon=self.epsilon)
        if self.expected_batch_size is not None:
            validate.positive(expected_batch_size=self.expected_batch_size)

    def to_json(self) -> dict[str, object]:
        return {"kind": "private choice", **asdict(self)}


Energy: TypeAlias = "PublicEnergy | PrivateEnergy | PrivateChoice"
EnergyOfOne: TypeAlias = "PublicEnergy | PrivateEnergy"
_TYPE_OF: Mapping[str, Any] = {"public": PublicEnergy, "private": PrivateEnergy, "private choice": PrivateChoice}


def check_energy(*kinds: type, energy: object) -> None:
    """Refuse one that the acceptance cannot ask for: it would be charged, and never answered."""
    if not isinstance(energy, kinds):
        allowed = "a " + " or ".join(kind.__name__ for kind in kinds)
        raise InvalidValue("energy", allowed=allowed, given=type(energy).__name__)


def energy_from_json(shape: object) -> Energy:
    """The energy of a JSON form. Unknown kinds and fields and bad values are refused."""
    given = dict(shape) if isinstance(shape, dict) else {}
    kind = given.pop("kind", None)
    if not isinstance(kind, str) or kind not in _TYPE_OF:
        raise InvalidValue("energy", allowed="an object whose kind is one of " + ", ".join(_TYPE_OF), given=shape)
    known = {field.name for field in fields(_TYPE_OF[kind])}
    if given.keys() - known:
        raise InvalidValue(f"energy {kind}", allowed=f"with the fields {sorted(known)}", given=sorted(given))
    try:
        energy: Energy = _TYPE_OF[kind](**given)
    except TypeError as error:  # of a field that is missing
        raise InvalidValue(f"energy {kind}", allowed=f"with the fields {sorted(known)}", given=sorted(given)) from error
    return energy


class Proposal(Protocol):
    """The candidates along one released sum: the weights after a step of any size."""

    def change(self, step_scale: float = 1.0) -> float:
        """The energy at the candidate less the energy now; infinite where the candidate has none.

        An energy from private records is told once for each released sum.
        """

    def best(self, step_scales: Sequence[float]) -> int:
        """The place of the step size with the least energy."""

    def uniform(self) -> float:
        """A number in (0, 1), drawn for this candidate alone."""


class Decision(NamedTuple):
    """How far to go along the released sum, in steps; zero is a rejection. And the state after it.

    A rejection takes the weights back, and the optimizer too, unless it ``keeps_momentum``.
    """

    step_scale: float
    state: SlotState
    keeps_momentum: bool = False

    @property
    def is_accepted(self) -> bool:
        return self.step_scale != 0


class Acceptance(Protocol):
    """Says whether a candidate becomes the next weights, from a state of numbers and released tensors."""

    @property
    def energy(self) -> Energy | None:
        """What it asks about every candidate."""

    @property
    def most_rejections(self) -> int | None:
        """How many candidates in a row can be rejected at most; none where there is no end to it."""

    def start(self) -> SlotState:
        """The state before the first candidate."""

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        """What the candidate is made from: the sum that was just released, and perhaps earlier ones."""

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        """Whether the candidate is accepted; ``released`` is what it was made from."""

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
