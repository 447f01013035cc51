"""A step compiled into one graph."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch


def compiled_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Shapes are fixed, and whatever would break the graph is an error rather than a slow step.

    torch counts recompilations by the code of a function and stops after a few; every engine's step is the same code,
    so each gets a copy of it.
    """
    assert isinstance(step, FunctionType)
    own = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__, step.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False)
