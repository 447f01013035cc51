"""The engine of a run: compiled where that pays and works, and fed with physical batches of one size."""

from __future__ import annotations

import math
import warnings
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.stats import poisson
from torch import Tensor, nn

from lehr.clipping.scheduled import ScheduledClip
from lehr.errors import InvalidValue, LehrError
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.made_up import MadeUp
from lehr.gradients.materialised import MaterialisedEngine
from lehr.gradients.precision import PRECISIONS
from lehr.gradients.sharded import ShardedEngine
from lehr.interfaces import Clipping, ClipRule, Inputs
from lehr.loop import Engine
from lehr.planning.plan import Plan
from lehr.training.public_plan import expected_steps

AnyEngine = TypeVar("AnyEngine", GhostEngine, MaterialisedEngine, ShardedEngine)
RECORDS_WORTH_COMPILING = 500_000  # compiling takes about a minute
LARGEST_PHYSICAL_BATCH = 1024
MOST_COMPILED_RULES = 4
OWN_COST = (90.0, 128.0)  # of one physical batch, in records: on a CPU, on a GPU


def physical_batch_for(plan: Plan, device: torch.device, *, ranks: int = 1) -> int:
    """The size with the least work in it: padding on the one hand, what each batch costs by itself on the other.

    Of several ranks each has its share of a draw.

    >>> cpu = torch.device("cpu")
    >>> small = Plan(noise_multiplier=1.0, expected_batch_size=64, records=1464, steps=60, delta=1e-4)
    >>> large = Plan(noise_multiplier=1.0, expected_batch_size=2048, records=60_000, steps=1000, delta=1e-5)
    >>> physical_batch_for(small, cpu), physical_batch_for(large, cpu)
    (80, 712)
    """
    share = plan.expected_batch_size / ranks
    most = share + 4 * math.sqrt(share)
    sizes = range(8, min(LARGEST_PHYSICAL_BATCH, 8 * math.ceil(most / 8)) + 8, 8)
    return min(sizes, key=lambda size: _work(share, size, own_cost=OWN_COST[device.type == "cuda"]))


def _work(expected: float, size: int, *, own_cost: float) -> float:
    """The records run for one draw on average, each physical batch counted as so many more."""
    draws = poisson(expected)  # close to the law of a draw, and an upper bound on its spread
    fewest, most = int(draws.ppf(1e-6)), int(draws.ppf(1 - 1e-6)) + 1
    sizes = np.arange(fewest, most + 1)
    batches = np.maximum(1, np.ceil(sizes / size))
    return float((draws.pmf(sizes) * batches).sum() * (size + own_cost))


def is_worth_compiling(plan: Plan, clipping: Clipping) -> bool:
    """Whether a run is long enough, and its clip does not change too often to be compiled."""
    if rules_of(clipping, plan.steps) > MOST_COMPILED_RULES:
        return False
    return expected_steps(plan) * plan.expected_batch_size >= RECORDS_WORTH_COMPILING


def engine_for(
    model: nn.Module,
    loss_fn: LossFn,
    *,
    views: int,
    precision: str,
    compiled: bool,
    clipping: Clipping,
    padding: tuple[Inputs, Any, Tensor],
) -> tuple[Engine, str]:
    """An engine that has run once, on a batch of padding, before anything is charged; and how it runs, in words.

    Where torch cannot compile the step, it is run as it is, with a warning that says why.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    if clipping.needs_coordinates:
        if PRECISIONS[precision] is not None:
            allowed = "as_model for a clip that looks at coordinates"
            raise InvalidValue("precision", allowed=allowed, given=precision)
        return _tried(MaterialisedEngine(model, loss_fn, views=views), clip, padding), "in full, not compiled"
    settings: dict[str, Any] = {"views": views, "precision": precision}
    if compiled:
        try:
            engine = _tried(GhostEngine(model, loss_fn, **settings), clip, padding)
            return engine, "in full, not compiled" if engine.is_in_full else "compiled"
        except LehrError:
            raise
        except Exception as error:  # whatever a compiler, or the lack of one, may raise
            why = str(error).strip().splitlines() or [type(error).__name__]
            warnings.warn(f"the step is not compiled, and slower: {why[0]}", stacklevel=2)
    engine = _tried(GhostEngine(model, loss_fn, compiled=False, **settings), clip, padding)
    return engine, "in full, not compiled" if engine.is_in_full else "not compiled"


def sharded_engine_for(
    model: nn.Module, loss_fn: LossFn, *, views: int, clipping: Clipping, padding: tuple[Inputs, Any, Tensor]
) -> tuple[ShardedEngine, str]:
    """An engine for weights that will be spread out, tried while they are whole, on the CPU and on two records or more.

    The other engine is tried first: it looks closer at whether model and loss keep records apart.
    """
    clip = clipping.rule(clipping.start(batches.trainable(model)), 0)
    _tried(GhostEngine(model, loss_fn, views=views, compiled=False), clip, padding)
    return _tried(ShardedEngine(model, loss_fn, views=views), clip, padding), "sharded, not compiled"


def try_every_rule(clipping: Clipping, steps: int) -> None:
    """Refuse a schedule of the clip norm that leaves what a clip norm can be, before anything is spent."""
    if isinstance(clipping, ScheduledClip):
        for step in range(steps):
            clipping.rule({}, step)


def rules_of(clipping: Clipping, steps: int) -> int:
    """How many rules a schedule goes through, as far as that matters: each would be compiled by itself."""
    if not isinstance(clipping, ScheduledClip):
        return 1
    found = {clipping.rule({}, 0)}
    for step in range(1, steps):
        found.add(clipping.rule({}, step))
        if len(found) > MOST_COMPILED_RULES:
            break
    return len(found)


def _tried(engine: AnyEngine, clip: ClipRule, padding: tuple[Inputs, Any, Tensor]) -> AnyEngine:
    engine.private_sum(clip, *padding)
    inputs, targets, nobody = padding
    rows = [place % 2 for place in range(len(nobody))]
    records = MadeUp(is_positive=True, is_wide=False).batch(inputs, num_images=len(nobody), rows=rows)
    made_up = engine.private_sum(clip, records, targets, torch.ones_like(nobody)).values
    if not any(bool(value.any()) for value in made_up.values()):
        reason = "the gradients of made-up records are all zero or not finite: a run would learn nothing but its noise"
        warnings.warn(reason, stacklevel=2)
    return engine
