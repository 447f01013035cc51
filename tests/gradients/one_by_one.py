"""The slow engine that every other one is compared with: a plain loop over records.

Nothing here is clever. It shares with the other engines what a batch looks like and which layers are refused, and none
of their arithmetic.

Axes: B records, K views of one record, G groups of parameters.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lehr.gradients import batches
from lehr.gradients.batches import LossFn, check_groups, weight_of_each
from lehr.gradients.execution import FunctionalModel
from lehr.gradients.precision import margin
from lehr.gradients.refusals import refuse_reentrant_checkpoints, refuse_what_cannot_be_private
from lehr.interfaces import Clip, Groups, Inputs, at_least_float32


class OneByOneEngine:
    """Differentiates a model one record at a time and stores every gradient.

    ``loss_fn(outputs, targets)`` returns one loss per record. With ``views=K`` every input has a second axis of K
    augmented copies, whose gradients are averaged before a norm is taken.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, views: int = 1) -> None:
        refuse_what_cannot_be_private(model)
        self._model, self._loss_fn, self._views = model, loss_fn, views

    def gradients(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> StoredGradients:
        """The gradients of a batch, computed at once."""
        parameters = batches.trainable(self._model)
        device = next(iter(parameters.values())).device
        mask = batches.check_batch(inputs, targets, mask_B, views=self._views, device=device)
        rows = [self._gradient(list(parameters.values()), inputs, targets, index) for index in range(len(mask))]
        grads = {
            name: torch.stack([row[at] for row in rows]) if rows else parameter.new_zeros(0, *parameter.shape)
            for at, (name, parameter) in enumerate(parameters.items())
        }
        exact = {name: grad.to(at_least_float32(grad.dtype)) for name, grad in grads.items()}
        largest = max(margin(parameter.dtype, parameter.device) for parameter in parameters.values())
        return StoredGradients(exact, mask_B=mask, margin=largest)

    def _gradient(self, parameters: list[nn.Parameter], inputs: Inputs, targets: Any, index: int) -> list[Tensor]:
        own = batches.each(lambda leaf: leaf[index] if self._views > 1 else leaf[index : index + 1], inputs)
        target = batches.each(lambda leaf: leaf[index : index + 1].expand(self._views, *leaf.shape[1:]), targets)
        with torch.inference_mode(False), torch.enable_grad():
            # What was made in inference mode can be differentiated only as a copy.
            own, target = batches.each(lambda leaf: leaf.clone() if leaf.is_inference() else leaf, (own, target))
            losses = self._loss_fn(batches.call(self._with_buffers_apart, own), target)
            loss = batches.one_each(losses, num_records=self._views).mean()
            refuse_reentrant_checkpoints(self._model, loss)
            found = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return [grad.to_dense() if grad.is_sparse else grad for grad in found]

    def _with_buffers_apart(self, *args: Any, **kwargs: Any) -> Any:
        """What a forward pass writes into a buffer reaches neither the model nor the next record."""
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        return FunctionalModel(self._model)(buffers, args, kwargs)


class StoredGradients:
    """Every record's gradient in full, ``grads_B...``; the records that do not count are zeros."""

    def __init__(self, grads: dict[str, Tensor], *, mask_B: Tensor, margin: float) -> None:
        self._counted_B = mask_B & _norms(list(grads.values())).isfinite()
        self.grads = {name: self._counted(grad) for name, grad in grads.items()}
        self.names, self.margin = tuple(grads), margin

    def norms(self, groups: Groups | None = None) -> Tensor:
        whole = check_groups(groups, names=self.names)
        norms = [_norms([self.grads[name] for name in group]) for group in whole]
        return norms[0] if groups is None else torch.stack(norms, dim=1)

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        weight_of = weight_of_each(weights, groups, names=self.names, num_records=len(self._counted_B))
        scaled = {name: _like(weight_of[name].to(grad.dtype), grad) * grad for name, grad in self.grads.items()}
        return {name: self._counted(grad).sum(0, dtype=torch.float64) for name, grad in scaled.items()}

    def clipped_sum(self, clip: Clip) -> dict[str, Tensor]:
        clipped = clip(dict(self.grads))
        return {name: self._counted(grad).sum(0, dtype=torch.float64) for name, grad in clipped.items()}

    def _counted(self, grads: Tensor) -> Tensor:
        return torch.where(_like(self._counted_B, grads), grads, 0)


def _like(values_B: Tensor, grads: Tensor) -> Tensor:
    return values_B.reshape(-1, *(1 for _ in grads.shape[1:]))


def _norms(grads: list[Tensor]) -> Tensor:
    rows = [grad.reshape(grad.shape[0], grad.shape[1:].numel()) for grad in grads]
    # In float64: over millions of coordinates a sum of squares in float32 loses the fourth digit.
    wide: Tensor = torch.cat(rows, dim=1)
    norms: Tensor = wide.norm(dim=1, dtype=torch.float64).to(wide.dtype)
    return norms
