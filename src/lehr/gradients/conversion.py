"""Two ways to replace BatchNorm. Both return a new model and leave the given one as it was.

>>> from torch import nn
>>> group_norm_instead(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
12
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lehr import validate
from lehr.errors import NotPrivate
from lehr.gradients.refusals import described, lacks_shapes
from lehr.gradients.rules import by_fixed_statistics, per_channel, per_channel_grads
from lehr.interfaces import LayerRule, Tap, register_layer_rule

NUM_GROUPS = 32
CHANNELS_PER_GROUP = 4


def group_norm_instead(
    model: nn.Module, *, num_groups: int = NUM_GROUPS, min_channels_per_group: int = CHANNELS_PER_GROUP
) -> nn.Module:
    """A copy of the model with a GroupNorm in the place of every BatchNorm, its gain and shift taken over.

    Each has as many groups as divide its channels evenly, at most ``num_groups`` of them, and none with fewer than
    ``min_channels_per_group`` channels, unless the layer as a whole has fewer. A group of one number is normalised to
    nothing: that is what becomes of one channel at the end of a network, where images have shrunk to one pixel.
    """
    at_most = validate.count(num_groups=num_groups)
    at_least = validate.count(minimum=2, min_channels_per_group=min_channels_per_group)
    return _replaced(model, lambda path, layer: _group_norm(path, layer, num_groups=at_most, min_channels=at_least))


def frozen_statistics(model: nn.Module) -> nn.Module:
    """A copy of the model with every BatchNorm fixed to the running statistics that it has; they never change again.

    The statistics become part of the model that is released. They must come from public data, or their release must
    have been paid for: statistics that were gathered from the private records give those away. Gain and shift stay
    parameters and are trained like any other.
    """
    return _replaced(model, _fixed)


def groups_for(num_channels: int, *, num_groups: int, min_channels_per_group: int) -> int:
    """The largest number of groups that divides the channels evenly within both limits."""
    most = min(num_groups, num_channels // min_channels_per_group)
    return max((count for count in range(1, most + 1) if num_channels % count == 0), default=1)


def _group_norm(path: str, layer: _BatchNorm, *, num_groups: int, min_channels: int) -> nn.Module:
    if layer.num_features < 2:
        raise NotPrivate(
            layer=described(path, layer),
            reason="it has a single channel, which GroupNorm would normalise by itself",
            instead="frozen_statistics(model), or a model without this layer",
        )
    groups = groups_for(layer.num_features, num_groups=num_groups, min_channels_per_group=min_channels)
    replacement = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    if layer.affine:
        replacement.register_parameter("weight", _copied(layer.weight))
        replacement.register_parameter("bias", _copied(layer.bias))
    return replacement


def _copied(parameter: Tensor | None) -> nn.Parameter | None:
    return None if parameter is None else nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


def _fixed(path: str, layer: _BatchNorm) -> nn.Module:
    if layer.running_mean is None or layer.running_var is None:
        raise NotPrivate(
            layer=described(path, layer),
            reason="it has no running statistics that could be kept (track_running_stats=False)",
            instead="group_norm_instead(model)",
        )
    std = torch.sqrt(layer.running_var + layer.eps)
    return FixedStatistics(layer.running_mean, std, weight=layer.weight, bias=layer.bias)


def _replaced(model: nn.Module, replacement: Callable[[str, _BatchNorm], nn.Module]) -> nn.Module:
    """A copy with every BatchNorm replaced; one that stands in several places is replaced by one in all of them."""
    for path, layer in model.named_modules():
        if lacks_shapes(layer):
            reason, instead = (
                "its parameters have no shape yet",
                "run the model once on public or synthetic records first",
            )
            raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)
    copied = nn.ModuleList([copy.deepcopy(model)])  # so that a model that is itself a BatchNorm has a parent
    made: dict[nn.Module, nn.Module] = {}
    for parent_name, parent in list(copied.named_modules()):
        for child_name, child in list(parent._modules.items()):
            if not isinstance(child, _BatchNorm):
                continue
            if child not in made:
                path = f"{parent_name}.{child_name}".removeprefix("0").removeprefix(".")
                made[child] = replacement(path, child).train(child.training)
            setattr(parent, child_name, made[child])
    return copied[0]


class FixedStatistics(nn.Module):
    """``(input - mean) / std * weight + bias`` per channel, the same in training and in evaluation.

    ``mean`` and ``std`` are buffers; ``weight`` and ``bias`` are parameters, or None.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("mean", mean.detach().clone())
        self.register_buffer("std", std.detach().clone())
        self.weight, self.bias = _copied(weight), _copied(bias)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  (torch's own keyword)
        outputs = (input - per_channel(self.mean, input)) / per_channel(self.std, input)
        outputs = outputs if self.weight is None else outputs * per_channel(self.weight, input)
        return outputs if self.bias is None else outputs + per_channel(self.bias, input)

    def extra_repr(self) -> str:
        return f"{self.mean.numel()}, affine={self.weight is not None}"


def _forward(layer: FixedStatistics, tap: Tap, input: Tensor) -> Tensor:  # noqa: A002
    return by_fixed_statistics(layer, tap, input, mean=layer.mean, inverse_std=layer.std.reciprocal())


register_layer_rule(FixedStatistics, LayerRule(contributions=per_channel_grads, forward=_forward))
