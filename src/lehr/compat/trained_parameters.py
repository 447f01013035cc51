"""Whether an optimizer moves only what a private run gives noise to."""

from __future__ import annotations

from torch import nn, optim

from lehr.errors import InvalidValue


def refuse_other_parameters(model: nn.Module, optimizer: optim.Optimizer) -> None:
    """A parameter that nobody listens to would be trained without noise, and one may be added while training goes on.

    >>> import torch
    >>> head, backbone = nn.Linear(2, 1), nn.Linear(2, 2)
    >>> refuse_other_parameters(head, torch.optim.SGD(head.parameters(), lr=0.1))
    >>> refuse_other_parameters(head, torch.optim.SGD(backbone.parameters(), lr=0.1))
    Traceback (most recent call last):
    lehr.errors.InvalidValue: optimizer must be ...
    """
    if isinstance(optimizer, optim.LBFGS):
        allowed = "one that takes one gradient a step: a closure would look at the records again, uncharged"
        raise InvalidValue("optimizer", allowed=allowed, given="LBFGS")
    known = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    trained = [one for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    others = sum(id(parameter) not in known for parameter in trained)
    if others:
        allowed = "one over parameters that are trained privately, all of them trainable from the beginning"
        raise InvalidValue("optimizer", allowed=allowed, given=f"one with {others} other trainable parameters")
