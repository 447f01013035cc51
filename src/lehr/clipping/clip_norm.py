"""Which clip norms are allowed: those that float32 arithmetic can divide by, and divide, without leaving its range."""

from __future__ import annotations

from lehr import validate
from lehr.errors import InvalidValue

# A float32 norm whose squares underflow is off by far less than the smallest, and a norm never exceeds about 2e19, so
# neither C / norm nor the comparison with C can leave the range of float32.
SMALLEST_CLIP_NORM = 1e-9
LARGEST_CLIP_NORM = 1e9


def a_clip_norm(**named: object) -> float:
    """A number that can be a clip norm."""
    value = validate.at_least(SMALLEST_CLIP_NORM, **named)
    if not value <= LARGEST_CLIP_NORM:
        (name,) = named
        raise InvalidValue(name, allowed=f"a number <= {LARGEST_CLIP_NORM:g}", given=value)
    return value
