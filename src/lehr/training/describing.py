"""config.json: everything about a run that was decided before its first step. All of it is public."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import lehr
from lehr.accounting.claims import Claim
from lehr.accounting.events import NOTHING, Event
from lehr.certificates.certificate import Statements
from lehr.certificates.guarantee import claim_to_json
from lehr.data.catalogue import CATALOGUE
from lehr.gradients.batches import LossFn
from lehr.planning import search_cost
from lehr.planning.plan import Plan, published_claim
from lehr.planning.search_cost import SearchPrice
from lehr.run.mechanism import Method
from lehr.run.shape import FORMAT, FORMAT_VERSION
from lehr.training.records import RunRecords


def config(
    *,
    run: str,
    method: Method,
    plan: Plan,
    data: RunRecords,
    model: Mapping[str, Any],
    options: Mapping[str, Any],
    recorded: Mapping[str, Mapping[str, Any]],
    public_records: str | None,
    evaluated_on: str | None,
    stated: Statements | None,
    budget: str | None,
    proven: Claim,
    beside: Event = NOTHING,
    search: SearchPrice | None = None,
) -> dict[str, Any]:
    """The configuration of a run, as JSON has it. ``proven`` is for all that it may do, noised scores included."""
    described: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "run": run,
        "library_version": lehr.__version__,
        "created_on": datetime.now(UTC).date().isoformat(),
        "method": method_words(method),
        "plan": plan.to_json(),
        "claims": _claims(method, plan, proven, beside),
        "data": {
            **recorded["data"],
            "name": data.name,
            "is_known": data.name in CATALOGUE,
            "declared": data.declared,
            "records": data.records,
            "num_classes": data.num_classes,
            "shape": list(data.like[0].shape[1:]),
            "preparation": data.preparation.to_json(),
            "public_records": public_records,
            "evaluated_on": evaluated_on,
        },
        "model": dict(model),
        "privacy": dict(recorded["privacy"]),
        "training": dict(options),
        "stated": None if stated is None else asdict(stated),
        "budget": budget,
        "trial_of": None if search is None else search_cost.to_json(search),
    }
    return {name: _as_json(value) for name, value in described.items()}


def model_words(model: nn.Module, loss_fn: LossFn, network: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What is written down about a model: how to build it, or at least the names and shapes of what is trained."""
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
    """Of a function, of the one within a partial, or of the class of a module: no address and no path."""
    inner = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    words = str(getattr(inner, "__name__", type(inner).__name__))
    given = loss_fn.keywords if isinstance(loss_fn, partial) else {}
    plain = {name: value for name, value in sorted(given.items()) if isinstance(value, bool | int | float | str)}
    return f"{words}({', '.join(f'{name}={value!r}' for name, value in plain.items())})" if plain else words


def _claims(method: Method, plan: Plan, proven: Claim, beside: Event) -> dict[str, Any]:
    """What is proven, and what the paper's rule says where the run follows it: each with its kind, and its premises."""
    published = None if method.published is None else published_claim(method.published, plan, beside=beside)
    return {
        "proven": claim_to_json(proven),
        "published": None if published is None else claim_to_json(published),
    }


def method_words(method: Method) -> dict[str, Any]:
    """What is written down about a method: its name, how it is made again, and all that came of it."""
    described = {
        "name": method.name,
        "settings": dict(method.settings),
        "clipping": _slot(method.clipping),
        "noise": _slot(method.noise),
        "update": method.update.to_json(),
        "acceptance": method.acceptance.to_json(),
    }
    return {name: _as_json(value) for name, value in described.items()}


def _slot(part: Any) -> dict[str, Any]:
    """Its kind and all its settings: a run that is resumed with others would put old noise under a new scale."""
    named = {field.name: getattr(part, field.name) for field in fields(part)} if is_dataclass(part) else {}
    settings = {name: _slot(value) if is_dataclass(value) else value for name, value in named.items()}
    return {"rule": type(part).__name__, **settings}


def _as_json(value: Any) -> Any:
    """With lists for tuples, as it will be read back."""
    match value:
        case Mapping():
            return {str(name): _as_json(part) for name, part in value.items()}
        case list() | tuple():
            return [_as_json(part) for part in value]
        case Tensor():  # such as the bounds of coordinates: too many to write down, and they must be the same
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            return {"shape": list(value.shape), "sha256": hashlib.sha256(content).hexdigest()}
        case _ if hasattr(value, "to_json"):
            return _as_json(value.to_json())
        case _:
            return value
