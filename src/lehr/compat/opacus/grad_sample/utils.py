"""Functions of the user's own that compute the gradients of one kind of layer, as rules of Lehr."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.interfaces import Contributions, LayerRule, Site, layer_rules, register_layer_rule

GradSampler: TypeAlias = Callable[[Any, list[Tensor], Tensor], Mapping[nn.Parameter, Tensor]]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS: set[type[nn.Module]] = set()


def register_grad_sampler(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Let a function compute the gradients of layers of these kinds, in every engine of Lehr.

    It is called as in Opacus, ``function(layer, [activations], backprops)``, but with one record at a time: however it
    is written, no record's gradient can depend on another record. Kinds for which Lehr has a rule keep it.
    """

    def register(function: _Function) -> _Function:
        for kind in [kinds] if isinstance(kinds, type) else kinds:
            if kind in layer_rules() and kind not in _KINDS:
                raise InvalidValue("kinds", allowed="layers that Lehr has no rule for", given=kind.__name__)
            register_layer_rule(kind, LayerRule(contributions=_by_record(function)))
            _KINDS.add(kind)
        return function

    return register


def register_norm_sampler(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Nothing is needed: norms follow from what ``register_grad_sampler`` was given."""
    return lambda function: function


def _by_record(function: GradSampler) -> Callable[[nn.Module, Mapping[str, Site]], Contributions]:
    def contributions(layer: nn.Module, sites: Mapping[str, Site]) -> Contributions:
        site = sites["output"]
        own = {name: parameter for name, parameter in layer.named_parameters(recurse=False) if parameter.requires_grad}
        found = [
            [function(layer, [inputs], grads) for inputs, grads in zip(*views, strict=True)]
            for views in zip(site.inputs.unsqueeze(2), site.output_grads.unsqueeze(2), strict=True)
        ]
        return {
            name: torch.stack([torch.stack([one[parameter][0] for one in views]).sum(0) for views in found])
            if found
            else parameter.new_zeros(0, *parameter.shape)
            for name, parameter in own.items()
        }

    return contributions
