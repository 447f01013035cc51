"""How much likelier what was released is with a record than without it, where it is drawn by a coin."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def log_likelihood_ratio(along: Tensor, *, precision: float, probability: float) -> Tensor:
    """The logarithm of the ratio, element by element, of Gaussian noise with the record, by a coin, to noise alone.

    ``along`` is what was released along the record, by the precision of the noise: a sum that the record is in has
    ``precision`` more of it on average, which is also its variance.

    >>> log_likelihood_ratio(torch.tensor([2.0, 0.0]), precision=4.0, probability=1.0)
    tensor([ 0., -2.])
    """
    if_drawn = along - precision / 2
    if probability == 1:
        return if_drawn
    if_not_drawn = torch.full_like(if_drawn, math.log1p(-probability))
    return torch.logaddexp(if_not_drawn, math.log(probability) + if_drawn)
