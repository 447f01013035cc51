"""The two sizes of a test that takes long: a part, which every change must pass, and the whole, which takes minutes."""

from __future__ import annotations

import pytest


def sizes(part: int, *, whole: int) -> list[object]:
    """For ``pytest.mark.parametrize``: the part is a slow test, the whole is run by ``make whole``."""
    return [pytest.param(part, marks=pytest.mark.slow), pytest.param(whole, marks=pytest.mark.whole)]
