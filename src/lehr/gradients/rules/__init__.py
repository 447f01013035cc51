"""One file per kind of layer. Importing this package teaches every engine all of them."""

from lehr.gradients.rules import (
    attention,
    convolution,
    embedding,
    embedding_bag,
    frozen_batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    linear,
    prelu,
    rms_norm,
    transposed_convolution,
)

__all__ = [
    "attention",
    "convolution",
    "embedding",
    "embedding_bag",
    "frozen_batch_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "linear",
    "prelu",
    "rms_norm",
    "transposed_convolution",
]
