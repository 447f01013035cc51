"""How config.json describes a model and a method. All of it is public."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lehr.gradients.batches import LossFn
from lehr.run.mechanism import Method


def model_words(model: nn.Module, loss_fn: LossFn, network: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A model as JSON: how to build it, and the names and shapes of its parameters."""
    trained = {name: list(value.shape) for name, value in model.named_parameters() if value.requires_grad}
    frozen = [name for name, value in model.named_parameters() if not value.requires_grad]
    return {
        "network": network,
        "arguments": dict(arguments),
        "parameters": sum(value.numel() for value in model.parameters() if value.requires_grad),
        "trained": trained,
        "frozen": frozen,
        "loss": _name_of(loss_fn),
    }


def _name_of(loss_fn: Any) -> str:
    """The name of the function or class, with the plain arguments of a partial; no address and no path."""
    inner = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    words = str(getattr(inner, "__name__", type(inner).__name__))
    given = loss_fn.keywords if isinstance(loss_fn, partial) else {}
    plain = {name: value for name, value in sorted(given.items()) if isinstance(value, bool | int | float | str)}
    return f"{words}({', '.join(f'{name}={value!r}' for name, value in plain.items())})" if plain else words


def method_words(method: Method) -> dict[str, Any]:
    """A method as JSON: its name, the settings to build it from, and its components."""
    described = {
        "name": method.name,
        "settings": dict(method.settings),
        "clipping": _slot(method.clipping),
        "noise_rule": _slot(method.noise),
        "update": method.update.to_json(),
        "acceptance": method.acceptance.to_json(),
    }
    return {name: as_json(value) for name, value in described.items()}


def _slot(part: Any) -> dict[str, Any]:
    """A component's class and all its settings. They must not change on resume: replayed noise would be rescaled."""
    named = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
    settings = {name: _slot(value) if is_dataclass(value) else value for name, value in named.items()}
    return {"rule": type(part).__name__, **settings}


def as_json(value: Any) -> Any:
    """A value as JSON types, equal to what is read back."""
    match value:
        case Mapping():
            return {str(name): as_json(part) for name, part in value.items()}
        case list() | tuple():
            return [as_json(part) for part in value]
        case Tensor():  # such as the bounds of coordinates, which are too many to record
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            return {"shape": list(value.shape), "sha256": hashlib.sha256(content).hexdigest()}
        case _ if hasattr(value, "to_json"):
            return as_json(value.to_json())
        case _:
            return value
