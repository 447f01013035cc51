"""The engine of a run: compiled where that pays and works, and fed with physical batches of one size."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lehr.errors import LehrError
from lehr.gradients.batches import LossFn, each
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import ClipRule, Inputs
from lehr.planning.plan import Plan

RECORDS_WORTH_COMPILING = 500_000  # compiling takes about a minute


def physical_batch_for(plan: Plan, device: torch.device) -> int:
    """A size whose padding, half of it on average, stays small beside a batch; on a GPU larger parts are faster."""
    parts = 8 if device.type == "cpu" else 4
    return max(1, min(1024, 8 * math.ceil(plan.expected_batch_size / parts / 8)))


def is_worth_compiling(plan: Plan) -> bool:
    """Whether a run is long enough."""
    return plan.steps * plan.expected_batch_size >= RECORDS_WORTH_COMPILING


def engine_for(
    model: nn.Module,
    loss_fn: LossFn,
    *,
    views: int,
    precision: str,
    compiled: bool,
    clip: ClipRule,
    example: Callable[[], tuple[Inputs, Any, Tensor]],
) -> tuple[GhostEngine, str]:
    """An engine that has run once, on a batch of padding, before anything is charged; and how it runs, in words.

    Where torch cannot compile the step, it is run as it is, with a warning that says why.
    """
    settings: dict[str, Any] = {"views": views, "precision": precision}
    if compiled:
        try:
            return _tried(GhostEngine(model, loss_fn, **settings), clip, example), "compiled"
        except LehrError:
            raise
        except Exception as error:  # whatever a compiler, or the lack of one, may raise
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(f"the step is not compiled, and slower: {why[0]}", stacklevel=2)
    return _tried(GhostEngine(model, loss_fn, compiled=False, **settings), clip, example), "not compiled"


def _tried(engine: GhostEngine, clip: ClipRule, example: Callable[[], tuple[Inputs, Any, Tensor]]) -> GhostEngine:
    inputs, targets, mask = example()
    engine.private_sum(clip, each(torch.zeros_like, inputs), each(torch.zeros_like, targets), mask)
    return engine
