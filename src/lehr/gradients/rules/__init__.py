"""One file per kind of layer. Importing this package teaches every engine all of them."""

from lehr.gradients.rules import convolution, group_norm, linear

__all__ = ["convolution", "group_norm", "linear"]
