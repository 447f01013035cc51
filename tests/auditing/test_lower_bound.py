"""What an audit may certify."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lehr.auditing.lower_bound import LowerBound, a_confidence, a_delta
from lehr.errors import InvalidValue

_SOUND: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "confidence": 0.95, "by": "a bound", "assumes": ("a thing",)}


def test_nothing_certified_at_no_delta_is_a_bound() -> None:
    assert LowerBound(epsilon=0.0, delta=0.0, confidence=0.5, by="a bound").assumes == ()


@pytest.mark.parametrize(
    "name, bad",
    [
        ("epsilon", -0.1),
        ("epsilon", math.inf),
        ("epsilon", math.nan),
        ("delta", 1.0),
        ("delta", -1e-9),
        ("delta", math.nan),
        ("confidence", 0.0),
        ("confidence", 1.0),
        ("confidence", math.nan),
        ("by", " "),
        ("assumes", "one sentence"),
        ("assumes", ("",)),
    ],
)
def test_what_is_no_bound_is_refused_by_name(name: str, bad: object) -> None:
    with pytest.raises(InvalidValue, match=f"^{name} must be"):
        LowerBound(**{**_SOUND, name: bad})


def test_the_checks_return_what_they_allow() -> None:
    assert a_delta(delta=0) == 0
    assert a_confidence(confidence=0.99) == 0.99
