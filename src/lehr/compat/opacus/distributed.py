"""Opacus's names for training on several processes: they can be imported, and say how Lehr does it."""

from __future__ import annotations

from torch import nn

from lehr.errors import InvalidValue

INSTEAD = "of lehr.fit under torchrun, which trains it on several processes"


def average_gradients(model: nn.Module) -> None:
    """Refused: clipped sums of several processes are added up before noise is added, once."""
    raise InvalidValue("average_gradients", allowed=f"part {INSTEAD}", given=type(model).__name__)


class DifferentiallyPrivateDistributedDataParallel(nn.Module):
    """Refused: the model needs no wrapper."""

    def __init__(self, model: nn.Module) -> None:
        raise InvalidValue("module", allowed=f"the model itself, as an argument {INSTEAD}", given=type(self).__name__)
