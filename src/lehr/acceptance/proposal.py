"""Energies that an acceptance may ask for, and the protocol between an acceptance and the loop.

An acceptance never sees a record or a sum without noise. Energies from private records are computed by
``lehr.run.loss_oracle`` with noise, and charged for every candidate, whether they are asked for or not.

    PublicEnergy    the mean loss on public records; it costs nothing
    PrivateEnergy   how the loss on private records changes, clipped, with noise
    PrivateChoice   which of several step sizes has the least loss on private records, chosen with noise
    Proposal, Decision, Acceptance   the candidates, the decision, and the protocol of an acceptance
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from lehr import validate
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.interfaces import ComponentState, ReleasedSum

_CLIPPED = ("records", "batch")


class _Energy:
    kind: ClassVar[str]

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"kind": self.kind, **vars(self)}


@dataclass(frozen=True)
class PublicEnergy(_Energy):
    """The mean loss on public records."""

    kind: ClassVar[str] = "public"


@dataclass(frozen=True, kw_only=True)
class PrivateEnergy(_Energy):
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
    kind: ClassVar[str] = "private"

    def __post_init__(self) -> None:
        validate.positive(loss_clip=self.loss_clip)
        validate.positive(noise_multiplier=self.noise_multiplier)
        validate.positive(expected_batch_size=self.expected_batch_size)
        validate.one_of(_CLIPPED, clipped=self.clipped)


@dataclass(frozen=True, kw_only=True)
class PrivateChoice(_Energy):
    """The step size with the least loss, chosen by report-noisy-max over losses clipped to [0, ``loss_clip``].

    One choice is ``epsilon``-differentially private for the records that are used: all of them, or a draw of an
    ``expected_batch_size``, which costs less.
    """

    loss_clip: float
    epsilon: float
    expected_batch_size: float | None = None
    kind: ClassVar[str] = "private choice"

    def __post_init__(self) -> None:
        validate.positive(loss_clip=self.loss_clip)
        validate.positive(epsilon=self.epsilon)
        if self.expected_batch_size is not None:
            validate.positive(expected_batch_size=self.expected_batch_size)


Energy: TypeAlias = "PublicEnergy | PrivateEnergy | PrivateChoice"
EnergyOfOne: TypeAlias = "PublicEnergy | PrivateEnergy"
_ENERGIES: Mapping[str, Any] = {energy.kind: energy for energy in (PublicEnergy, PrivateEnergy, PrivateChoice)}


def check_energy(*kinds: type, energy: object) -> None:
    """Refuse an energy that the acceptance cannot ask for: it would be charged and never used."""
    if not isinstance(energy, kinds):
        allowed = "a " + " or ".join(kind.__name__ for kind in kinds)
        raise InvalidValue("energy", allowed=allowed, given=type(energy).__name__)


def energy_from_json(shape: object) -> Energy:
    """Return the energy of a JSON form. Unknown kinds and fields and bad values are refused."""
    given = dict(strict_json.check_object("energy", shape))
    kind = validate.one_of(_ENERGIES, energy=given.pop("kind", None))
    try:
        energy: Energy = _ENERGIES[kind](**given)
    except TypeError as error:  # of a field that is missing or unknown
        raise InvalidValue(f"energy {kind}", allowed=f"with its own fields ({error})", given=sorted(given)) from error
    return energy


class Proposal(Protocol):
    """The candidates along one released sum: the weights after a step of any size."""

    def change(self, step_scale: float = 1.0) -> float:
        """Return the energy at the candidate minus the energy now; infinity where the candidate has none.

        An energy from private records is computed once for each released sum.
        """

    def best(self, step_scales: Sequence[float]) -> int:
        """Return the index of the step size with the least energy."""

    def uniform(self) -> float:
        """Return a number in (0, 1), drawn for this candidate alone."""


class Decision(NamedTuple):
    """How far to go along the released sum, in steps (zero is a rejection), and the state after it.

    A rejection restores the weights, and the optimizer too, unless it ``keeps_momentum``.
    """

    step_scale: float
    state: ComponentState
    keeps_momentum: bool = False

    @property
    def is_accepted(self) -> bool:
        return self.step_scale != 0


class Acceptance(Protocol):
    """Decides whether a candidate becomes the next weights, from a state of numbers and released tensors."""

    @property
    def energy(self) -> Energy | None:
        """The energy that it asks for, for every candidate."""

    @property
    def most_rejections(self) -> int | None:
        """The most candidates that can be rejected in a row; None where there is no limit."""

    def start(self) -> ComponentState:
        """Return the state before the first candidate."""

    def combined(self, state: ComponentState, released: ReleasedSum) -> ReleasedSum:
        """Return what the candidate is made from: the sum that was just released, and perhaps earlier ones."""

    def decide(self, state: ComponentState, proposal: Proposal, released: ReleasedSum) -> Decision:
        """Decide on the candidate that was made from ``released``."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
