"""What an audit certifies: ε is at least this, with this confidence."""

from __future__ import annotations

from dataclasses import dataclass

from lehr import validate
from lehr.errors import InvalidValue


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """ε at ``delta`` is at least ``epsilon``, except with probability 1 − ``confidence`` over the game that was played.

    ``by`` names the bound, ``assumes`` what it rests on beyond the game itself: empty where that is nothing. An
    ``epsilon`` of 0 says that nothing was certified.
    """

    epsilon: float
    delta: float
    confidence: float
    by: str
    assumes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        validate.non_negative(epsilon=self.epsilon)
        a_delta(delta=self.delta)
        a_confidence(confidence=self.confidence)
        validate.text(by=self.by)
        if not isinstance(self.assumes, tuple):
            raise InvalidValue("assumes", allowed="a tuple of sentences", given=self.assumes)
        for sentence in self.assumes:
            validate.text(assumes=sentence)


def a_delta(**named: object) -> float:
    """The δ of a bound that needs none: zero is allowed, and asks about ε alone."""
    value = validate.non_negative(**named)
    if not value < 1:
        (name,) = named
        raise InvalidValue(name, allowed="a number in [0, 1)", given=value)
    return value


def a_confidence(**named: object) -> float:
    """A number strictly between zero and one."""
    value = validate.positive(**named)
    if not value < 1:
        (name,) = named
        raise InvalidValue(name, allowed="a number in (0, 1)", given=value)
    return value
