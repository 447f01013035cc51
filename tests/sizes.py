"""Two sizes of long tests: a fixed part, which ``make test`` runs, and the rest, which ``make whole`` adds."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import pytest


def sizes(part: int, *, whole: int) -> list[object]:
    """For ``pytest.mark.parametrize``: the part is a slow test, the whole is run by ``make whole``."""
    return [pytest.param(part, marks=pytest.mark.slow), pytest.param(whole, marks=pytest.mark.whole)]


def cases(names: Iterable[str], *, always: Collection[str]) -> list[object]:
    """For ``pytest.mark.parametrize``: all names, of which ``make test`` runs only those in ``always``."""
    names = list(names)
    assert set(always) <= set(names)
    return [name if name in always else pytest.param(name, marks=pytest.mark.whole) for name in names]
