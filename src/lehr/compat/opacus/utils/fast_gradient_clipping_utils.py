"""The criterion of ``grad_sample_mode="ghost"``. Its loss is a tensor like any other: one backward pass is enough here.

>>> import torch
>>> criterion = DPLossFastGradientClipping(None, None, torch.nn.CrossEntropyLoss())
>>> logits, words = torch.zeros(2, 3, 5), torch.zeros(2, 3, dtype=torch.long)
>>> criterion(logits.view(-1, 5), words.view(-1), shape=(2, 3)).shape
torch.Size([])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from lehr import validate
from lehr.errors import InvalidValue


class DPLossFastGradientClipping:
    """A criterion that can also be told the shape ``[records, positions]`` of what was flattened for it.

    Every record then has the same share in the loss, however many of its positions count.
    """

    def __init__(self, module: object, optimizer: object, criterion: Any, loss_reduction: str = "mean") -> None:
        self.module, self.optimizer, self.criterion = module, optimizer, criterion
        self.loss_reduction = validate.one_of(("mean", "sum"), loss_reduction=loss_reduction)
        reduction = getattr(criterion, "reduction", loss_reduction)
        if reduction != loss_reduction:
            allowed = f"one with the reduction {loss_reduction!r}, as make_private was told"
            raise InvalidValue("criterion", allowed=allowed, given=reduction)

    def __call__(self, *args: Any, shape: Sequence[int] | None = None, **kwargs: Any) -> Tensor:
        if shape is None:
            self._refuse_unequal_shares(*args, **kwargs)
            loss: Tensor = self.criterion(*args, **kwargs)
            return loss
        losses = self._one_by_one(*args, **kwargs).view(shape[0], shape[1])
        if self.loss_reduction == "sum":
            return losses.sum()
        targets = kwargs["target"] if "target" in kwargs else args[1]
        ignored = getattr(self.criterion, "ignore_index", None)
        if ignored is None:
            mean: Tensor = losses.mean()
            return mean
        counted = targets.view(shape[0], shape[1]) != ignored
        by_record: Tensor = losses.sum(1) / counted.sum(1).clamp_min(1)
        return by_record.mean()

    def _refuse_unequal_shares(self, *args: Any, **kwargs: Any) -> None:
        """A mean by weights of classes, or over what is not ignored, gives each record a share that others decide."""
        if self.loss_reduction != "mean" or not isinstance(self.criterion, nn.CrossEntropyLoss | nn.NLLLoss):
            return
        targets = kwargs["target"] if "target" in kwargs else args[1]
        if targets.is_floating_point():  # shares of classes, whose mean is over records
            return
        has_ignored = bool((targets == self.criterion.ignore_index).any())
        if self.criterion.weight is not None or has_ignored:
            allowed = "one with the same share for every record: told the shape [records, positions], or of sums"
            given = "targets that are ignored" if has_ignored else "a mean by weights of classes"
            raise InvalidValue("criterion", allowed=allowed, given=given)

    def _one_by_one(self, *args: Any, **kwargs: Any) -> Tensor:
        reduction, self.criterion.reduction = self.criterion.reduction, "none"
        try:
            losses: Tensor = self.criterion(*args, **kwargs)
            return losses
        finally:
            self.criterion.reduction = reduction
