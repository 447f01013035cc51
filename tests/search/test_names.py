from __future__ import annotations

from lehr.cli import search as command
from lehr.search.names import PRUNERS, SAMPLERS


def test_the_help_text_names_all_of_them() -> None:
    assert all(name in command.SAMPLERS for name in SAMPLERS)
    assert all(name in command.PRUNERS for name in PRUNERS)
