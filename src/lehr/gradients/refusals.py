"""Layers that cannot be private as they are set up, refused by name with a way out.

Only what can be seen without running the model is refused here: a layer of the user's own that looks at several records
at once is not recognised by its class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

import lehr.gradients.rules  # noqa: F401  (teaches the rules, which refuse as well)
from lehr.errors import NotPrivate
from lehr.interfaces import layer_rule

_CONVERT = "group_norm_instead(model), or frozen_statistics(model), both of lehr.gradients.conversion"
_WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


def refuse_what_cannot_be_private(model: nn.Module) -> None:
    """Raise for the first layer that mixes records, or that learns from them without noise."""
    for name, layer in model.named_modules():
        for reason, instead in _reasons(layer):
            raise NotPrivate(layer=described(name, layer), reason=reason, instead=instead)


def _reasons(layer: nn.Module) -> Iterator[tuple[str, str]]:
    """Why a layer cannot be private, and what to do instead."""
    if lacks_shapes(layer):
        yield "its parameters have no shape yet", "run the model once on public or synthetic records"
    if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
        reason = "it normalises each record with statistics of the whole batch, so every output depends on every record"
        yield reason, _CONVERT
    # Also of classes that are not torch's, which are known by the name that everyone gives these buffers.
    if layer.training and layer._buffers.get("running_mean") is not None:
        instead = f"{_CONVERT}; where its statistics are fixed anyway, call its eval()"
        instead = "track_running_stats=False" if isinstance(layer, _InstanceNorm) else instead
        yield "in training mode it keeps running statistics of the records, which are released without noise", instead
    # This happens in the forward pass, so a frozen table is not safe from it either.
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        yield "max_norm rewrites the rows that records look up, without noise", "max_norm=None"
    if any(isinstance(hook, _WEIGHT_HOOKS) for hook in layer._forward_pre_hooks.values()):
        instead = (
            "weight_norm or spectral_norm of torch.nn.utils.parametrizations; for pruning, torch.nn.utils.prune.remove"
        )
        yield "a hook computes its weight, out of sight of the layer that is differentiated", instead
    rule = layer_rule(layer)
    refusal = None if rule is None or rule.refuses is None else rule.refuses(layer)
    if refusal is not None:  # the reason and, behind a semicolon, the way out
        reason, _, instead = refusal.partition("; ")
        yield reason, instead or "set the layer up without it, or freeze its parameters"


def refuse_reentrant_checkpoints(model: nn.Module, *outputs: Tensor) -> None:
    """They run their layers again inside the backward pass, where torch's ``grad`` does not look for parameters."""
    if any(node.name() == "CheckpointFunctionBackward" for node in graph_of(outputs)):
        reason = "activations are checkpointed by torch.utils.checkpoint with use_reentrant=True"
        raise NotPrivate(layer=described("", model), reason=reason, instead="use_reentrant=False")


def graph_of(outputs: Iterable[Tensor]) -> set[Any]:
    """Every node that a backward pass from here goes through."""
    nodes: list[Any] = [output.grad_fn for output in outputs]
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            nodes += [before for before, _ in node.next_functions]
    return seen


def described(name: str, layer: nn.Module) -> str:
    """The path of a layer and its class."""
    return f"{name or 'the model itself'} ({type(layer).__name__})"


def lacks_shapes(layer: nn.Module) -> bool:
    """A lazy layer that has not been run yet."""
    return isinstance(layer, LazyModuleMixin) and bool(layer.has_uninitialized_params())
