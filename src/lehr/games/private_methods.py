"""Only a method with noise has a claim that a game can be played against."""

from __future__ import annotations

from lehr.errors import InvalidValue
from lehr.mechanism import Method


def a_private_method(method: Method) -> Method:
    """The method itself; refused where it has no noise."""
    if not method.is_private:
        raise InvalidValue("method", allowed="one with noise: without it there is no claim", given=method.name)
    return method
