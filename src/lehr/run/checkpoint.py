"""Checkpoints: everything that is needed to resume a run, in one safetensors file that is written atomically.

Weights, buffers, the optimizer's state and averages are tensors; counters and the state of acceptance are in the
header. All of them are computed from released values. There are no generators: randomness follows from the run's key
and the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from lehr import validate
from lehr.errors import DamagedFile, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.privacy.rng import RunKey

FORMAT = "lehr-checkpoint-1"
KEPT = 2


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A run after ``step`` steps."""

    step: int
    accepted: int
    attempt: int
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]  # JSON: the states of the update, the averaging and acceptance


def write(folder: Path, checkpoint: Checkpoint, key: RunKey) -> None:
    """Write a checkpoint, and delete all but the newest few."""
    header = {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint) if field.name != "tensors"}
    tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in checkpoint.tensors.items()}
    text = json.dumps(header, allow_nan=False)
    # One entry of metadata: safetensors writes several in any order, and equal checkpoints must be equal files.
    content = save(tensors, metadata={FORMAT: f"{_seal(key, text, tensors)} {text}"})
    atomic.write_bytes(folder / f"step-{checkpoint.step:010d}.safetensors", content)
    for old in _files(folder)[:-KEPT]:
        old.unlink(missing_ok=True)


def latest(folder: Path, key: RunKey) -> Checkpoint | None:
    """The newest checkpoint, or None."""
    files = _files(folder)
    return read(files[-1], key) if files else None


def _seal(key: RunKey, header: str, tensors: Mapping[str, Tensor]) -> str:
    """A keyed hash: only this run can have written the file. Other weights would reveal a replayed step's noise."""
    kinds = json.dumps({name: [str(value.dtype), list(value.shape)] for name, value in sorted(tensors.items())})
    contents = (value.reshape(-1).view(torch.uint8).numpy().data for _, value in sorted(tensors.items()))
    return key.fingerprint(header.encode(), kinds.encode(), contents)


def read(path: Path, key: RunKey) -> Checkpoint:
    """Read a checkpoint. It contains no code."""
    try:
        with atomic.opened(path, at_most=atomic.LARGEST_TENSORS), safe_open(path, framework="pt") as file:
            seal, _, text = (file.metadata() or {})[FORMAT].partition(" ")
            header = strict_json.loads(text)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if seal != _seal(key, text, tensors):
            raise InvalidValue("checkpoint", allowed="one that this run wrote, unchanged", given="another")
        return _checkpoint(header, tensors)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, KeyError, InvalidValue) as error:
        raise DamagedFile(
            f"{path} is no checkpoint, or damaged ({error}); without it the run resumes earlier"
        ) from error


def _checkpoint(header: object, tensors: dict[str, Tensor]) -> Checkpoint:
    given: dict[str, Any] = strict_json.fields("header", header, ("step", "accepted", "attempt", "numbers"))
    counts = {name: validate.count(minimum=0, **{name: given[name]}) for name in ("step", "accepted", "attempt")}
    return Checkpoint(**counts, numbers=dict(given["numbers"]), tensors=tensors)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("step-*.safetensors"))
