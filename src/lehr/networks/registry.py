"""Networks by name, built from the words and numbers of a configuration.

>>> network = build("paper_cnn", activation="relu")
>>> build("paper_cnn", activation="tempered_sigmoid(mnist)")[1]
TemperedSigmoid(scale=1.97, inverse_temperature=2.27, offset=1.15)
>>> default_for((3, 32, 32), num_classes=10)
('cifar_cnn', {'num_classes': 10})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import nn

from lehr import validate
from lehr.errors import InvalidValue
from lehr.networks.activations import activation_by_name
from lehr.networks.residual import group_norm_resnet, nf_resnet, nf_resnet50, wide_resnet
from lehr.networks.resnet9 import resnet9
from lehr.networks.scattering import scattering_cnn, scattering_linear
from lehr.networks.small import cifar_cnn, mlp, paper_cnn, pooled_cnn, projected_mlp, small_cnn
from lehr.networks.vision_transformer import vision_transformer

Builder = TypeVar("Builder", bound=Callable[..., nn.Module])

NETWORKS: dict[str, Callable[..., nn.Module]] = {}

LARGEST = 64 * 1024**3  # bytes of weights and buffers
DEEPEST = 1000  # layers


def register(function: Builder) -> Builder:
    """Make a function that builds a network available by its name."""
    NETWORKS[function.__name__] = function
    return function


_SMALL: list[Callable[..., nn.Module]] = [cifar_cnn, mlp, paper_cnn, pooled_cnn, projected_mlp, small_cnn]
_SCATTERING: list[Callable[..., nn.Module]] = [scattering_cnn, scattering_linear]
_RESIDUAL: list[Callable[..., nn.Module]] = [group_norm_resnet, nf_resnet, nf_resnet50, resnet9, wide_resnet]
for _function in [*_SMALL, *_SCATTERING, *_RESIDUAL, vision_transformer]:
    register(_function)


def build(name: str, /, **arguments: object) -> nn.Module:
    """Return the network of this name with fresh weights from torch's generator, of at most ``LARGEST`` bytes."""
    if ":" in str(name):
        allowed = "a name; in Python pass your own module, on the command line use --network package.module:factory"
        raise InvalidValue("network", allowed=allowed, given=name)
    function = NETWORKS[validate.one_of(NETWORKS, network=name)]
    known = inspect.signature(function).parameters
    for argument in arguments:
        if argument not in known:
            raise InvalidValue(f"argument of {name}", allowed="one of " + ", ".join(known), given=argument)
    given = dict(arguments)
    if "activation" in arguments:
        arguments["activation"] = activation_by_name(arguments["activation"])
    try:
        blocks = arguments.get("num_blocks")
        for count in (arguments.get("depth"), *(blocks if isinstance(blocks, list | tuple) else ())):
            if isinstance(count, int) and count > DEEPEST:
                raise InvalidValue("depth", allowed=f"at most {DEEPEST}", given=count)
        with torch.device("meta"):  # which takes no memory
            num_bytes = sum(each.nbytes for each in function(**arguments).state_dict().values())
        if num_bytes > LARGEST:
            raise InvalidValue(f"bytes of {name}", allowed=f"at most {LARGEST:,}", given=num_bytes)
        return function(**arguments)
    except InvalidValue:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:  # raised by torch for impossible numbers
        allowed = f"such that it can be built ({error})"
        raise InvalidValue(f"arguments of {name}", allowed=allowed, given=given) from error


def default_for(shape: Sequence[int], *, num_classes: int) -> tuple[str, dict[str, object]]:
    """Return name and arguments of a network that suits rows of numbers, or images (channels, height, width)."""
    match tuple(shape):
        case (1, 28, 28):
            return "paper_cnn", {"num_classes": num_classes}
        case (3, 32, 32):
            return "cifar_cnn", {"num_classes": num_classes}
        case (channels, height, width) if height == width:
            return "small_cnn", {"in_channels": channels, "image_side": height, "num_classes": num_classes}
        case (inputs,):
            return "mlp", {"inputs": inputs, "num_classes": num_classes}
        case _:
            allowed = "named where the records are neither rows of numbers nor square images (channels, side, side)"
            raise InvalidValue("network", allowed=allowed, given=tuple(shape))
