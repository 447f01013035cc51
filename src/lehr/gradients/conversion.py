"""Two ways to replace BatchNorm. Both return a new model and leave the given one as it was.

>>> from torch import nn
>>> group_norm_instead(nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48)))[1].num_groups
12
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import lehr.gradients.rules  # noqa: F401  (registers the rules)
from lehr import validate
from lehr.errors import NotPrivate
from lehr.gradients.refusals import described, lacks_shapes
from lehr.interfaces import layer_rules, register_layer_rule

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
    return _replaced(model, partial(_group_norm, num_groups=at_most, min_channels_per_group=at_least))


def frozen_statistics(model: nn.Module) -> nn.Module:
    """A copy of the model with every BatchNorm fixed to the running statistics that it has; they never change again.

    The statistics become part of the model that is released. They must come from public data, or their release must
    have been paid for: statistics that were gathered from the private records give those away. Gain and shift stay
    parameters and are trained like any other.
    """
    return _replaced(model, _fixed)


class FixedStatistics(_BatchNorm):
    """A BatchNorm, of images of any dimension, that uses its running statistics in training as well."""

    def train(self, mode: bool = True) -> FixedStatistics:
        return super().train(mode=False)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  (torch's own keyword)
        pass


register_layer_rule(FixedStatistics, layer_rules()[nn.BatchNorm2d])


def groups_for(num_channels: int, *, num_groups: int, min_channels_per_group: int) -> int:
    """The largest number of groups that divides the channels evenly within both limits."""
    most = min(num_groups, num_channels // min_channels_per_group)
    return max((count for count in range(1, most + 1) if num_channels % count == 0), default=1)


def _group_norm(path: str, layer: _BatchNorm, **limits: int) -> nn.Module:
    if layer.num_features < 2:
        reason = "it has a single channel, which GroupNorm would normalise by itself"
        instead = "frozen_statistics(model), or a model without this layer"
        raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)
    groups = groups_for(layer.num_features, **limits)
    replacement = nn.GroupNorm(groups, layer.num_features, eps=layer.eps, affine=layer.affine)
    replacement.weight, replacement.bias = layer.weight, layer.bias
    return replacement.train(layer.training)


def _fixed(path: str, layer: _BatchNorm) -> nn.Module:
    if layer.running_mean is None or layer.running_var is None:
        reason = "it has no running statistics that could be kept (track_running_stats=False)"
        raise NotPrivate(layer=described(path, layer), reason=reason, instead="group_norm_instead(model)")
    fixed = FixedStatistics(layer.num_features)
    vars(fixed).update(vars(layer))
    return fixed.eval()


def _replaced(model: nn.Module, replacement: Callable[[str, _BatchNorm], nn.Module]) -> nn.Module:
    """A copy with every BatchNorm replaced; one that stands in several places is replaced by one in all of them."""
    for path, layer in model.named_modules():
        if lacks_shapes(layer):
            instead = "run the model once on public or synthetic records first"
            raise NotPrivate(layer=described(path, layer), reason="its parameters have no shape yet", instead=instead)
    copied = nn.ModuleList([copy.deepcopy(model)])  # so that a model that is itself a BatchNorm has a parent
    made: dict[nn.Module, nn.Module] = {}
    for parent_name, parent in list(copied.named_modules()):
        for child_name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                path = f"{parent_name}.{child_name}".removeprefix("0").removeprefix(".")
                made[child] = made.get(child) or replacement(path, child)
                setattr(parent, child_name, made[child])
    return copied[0]
