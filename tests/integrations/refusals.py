"""Errors by what they are about, not by their sentences."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.errors import InvalidValue, NotPrivate


def invalid(name: str) -> Any:
    """Expect ``InvalidValue`` for the argument of this name."""
    return pytest.raises(InvalidValue, check=lambda error: error.name == name)


def not_private(layer: str) -> Any:
    """Expect ``NotPrivate`` for a layer whose description has this in it."""
    return pytest.raises(NotPrivate, check=lambda error: layer in error.layer)
