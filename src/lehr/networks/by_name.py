"""The networks by their names, built from words and numbers that a configuration can hold.

>>> network = build("paper_cnn", activation="relu")
>>> build("paper_cnn", activation="tempered_sigmoid(mnist)")[1]
TemperedSigmoid(scale=1.97, inverse_temperature=2.27, offset=1.15)
>>> default_for((3, 32, 32), num_classes=10)
('cifar_cnn', {'num_classes': 10})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.activations import activation_named
from lehr.networks.alexnet_like import alexnet_like
from lehr.networks.convolutional import cifar_cnn, paper_cnn, pooled_cnn
from lehr.networks.group_norm_resnet import group_norm_resnet
from lehr.networks.nf_resnet import nf_resnet, nf_resnet50
from lehr.networks.projected_mlp import projected_mlp
from lehr.networks.small import small_cnn
from lehr.networks.vision_transformer import vision_transformer
from lehr.networks.wide_resnet import wide_resnet

NETWORKS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            alexnet_like,
            cifar_cnn,
            group_norm_resnet,
            nf_resnet,
            nf_resnet50,
            paper_cnn,
            pooled_cnn,
            projected_mlp,
            small_cnn,
            vision_transformer,
            wide_resnet,
        )
    }
)

LARGEST = 64 * 1024**3  # bytes of weights and buffers
DEEPEST = 1000  # layers


def build(name: str, /, **arguments: object) -> nn.Module:
    """The network of this name, with fresh weights from torch's generator, of ``LARGEST`` bytes at most."""
    function = NETWORKS[validate.one_of(NETWORKS, network=name)]
    known = inspect.signature(function).parameters
    for argument in arguments:
        if argument not in known:
            raise InvalidValue(f"argument of {name}", allowed="one of " + ", ".join(known), given=argument)
    said = dict(arguments)
    if "activation" in arguments:
        arguments = {**arguments, "activation": activation_named(arguments["activation"])}
    try:
        _refuse_deep(arguments.get("depth"), *_listed(arguments.get("num_blocks")))
        with torch.device("meta"):  # which takes no memory
            num_bytes = sum(each.nbytes for each in function(**arguments).state_dict().values())
        if num_bytes > LARGEST:
            raise InvalidValue(f"bytes of {name}", allowed=f"at most {LARGEST:,}", given=num_bytes)
        return function(**arguments)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # what torch says of a number that is none
        if isinstance(error, InvalidValue):
            raise
        raise InvalidValue(
            f"arguments of {name}", allowed=f"such that it can be built ({error})", given=said
        ) from error


def _refuse_deep(*counts: object) -> None:
    for count in counts:
        if isinstance(count, int) and count > DEEPEST:
            raise InvalidValue("depth", allowed=f"at most {DEEPEST}", given=count)


def _listed(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def default_for(shape: Sequence[int], *, num_classes: int) -> tuple[str, dict[str, object]]:
    """The name and the arguments of a network that suits images of this shape (channels, height, width)."""
    match tuple(shape):
        case (1, 28, 28):
            return "paper_cnn", {"num_classes": num_classes}
        case (3, 32, 32):
            return "cifar_cnn", {"num_classes": num_classes}
        case (channels, height, width) if height == width:
            return "small_cnn", {"in_channels": channels, "image_side": height, "num_classes": num_classes}
        case _:
            allowed = "named where the records are no square images (channels, side, side)"
            raise InvalidValue("network", allowed=allowed, given=tuple(shape))
