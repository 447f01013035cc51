"""Checkpoints of a private loop: tensors and plain values, and steps that are never forgotten."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import torch

from lehr.compat.opacus.accountants.accountant import History
from lehr.compat.opacus.optimizers.optimizer import DPOptimizer
from lehr.errors import DamagedFile, InvalidValue

ENGINES = "engines"  # those whose steps are in a checkpoint
CLIP_NORM = "adaptive_clip_norm"  # where it is what adaptive clipping has learnt


def parts(optimizer: Any, noise_scheduler: Any, grad_clip_scheduler: Any) -> dict[str, Any]:
    """What a checkpoint has beside the weights, by the names that it has there; what is not given is left out."""
    named = {
        "optimizer_state_dict": optimizer,
        "noise_scheduler_state_dict": noise_scheduler,
        "grad_clip_scheduler_state_dict": grad_clip_scheduler,
    }
    return {name: part for name, part in named.items() if part is not None}


def read(path: str | os.PathLike[str] | IO[bytes], **options: Any) -> dict[str, Any]:
    """The content of a checkpoint. What would run code when it is read is refused."""
    if options.get("weights_only", True) is not True:
        raise InvalidValue(
            "torch_load_kwargs", allowed="without weights_only=False: a file may hold code", given=options
        )
    found = torch.load(path, **{**options, "weights_only": True})
    missing = {"module_state_dict", "privacy_accountant_state_dict"} - set(found)
    if missing:
        raise DamagedFile(f"{path} is not a checkpoint of a private loop: it has no {', '.join(sorted(missing))}")
    return dict(found)


def with_steps_since(
    state: Mapping[str, Any], *, engine: str, taken: Mapping[tuple[float, float], int]
) -> dict[str, Any]:
    """The state of the accountant of a checkpoint. One that this engine did not write has none of the steps it took.

    >>> state = {"privacy_accountant_state_dict": {"mechanism": "prv", "history": [(1.0, 0.1, 5)]}, "engines": ["one"]}
    >>> with_steps_since(state, engine="other", taken={(1.0, 0.1): 2})["history"]
    [(1.0, 0.1, 5), (1.0, 0.1, 2)]
    >>> with_steps_since(state, engine="one", taken={(1.0, 0.1): 2})["history"]
    [(1.0, 0.1, 5)]
    """
    saved = dict(state["privacy_accountant_state_dict"])
    if engine not in state.get(ENGINES, ()):
        saved["history"] = [*saved.get("history", []), *((*kind, steps) for kind, steps in taken.items())]
    return saved


def no_fewer_steps(saved: Mapping[str, Any], known: History) -> dict[str, Any]:
    """The state of an accountant, in which no kind of step was taken less often than is known already.

    >>> no_fewer_steps({"mechanism": "prv", "history": [(1.0, 0.1, 5)]}, [(1.0, 0.1, 7)])["history"]
    [(1.0, 0.1, 7)]
    """
    counts: dict[tuple[float, float], int] = {}
    for history in (saved.get("history", []), known):
        taken: dict[tuple[float, float], int] = {}
        for noise_multiplier, sample_rate, steps in history:
            kind = (noise_multiplier, sample_rate)
            taken[kind] = taken.get(kind, 0) + steps
        counts = {kind: max(counts.get(kind, 0), taken.get(kind, 0)) for kind in {**counts, **taken}}
    return {**saved, "history": [(*kind, steps) for kind, steps in counts.items()]}


def use_up(optimizer: DPOptimizer, history: History) -> None:
    """Count the steps of a checkpoint against what the optimizer may still take."""
    if optimizer.allowed is not None:
        planned = optimizer.allowed.event
        kind = (planned.event.noise_multiplier, planned.sampling_probability)
        taken = sum(steps for *taken_kind, steps in history if tuple(taken_kind) == kind)
        optimizer.allowed.used = max(optimizer.allowed.used, taken)
