"""The engine for clips that look at coordinates: every record's gradient in full.

Recurrent layers work here, and a model that ``vmap`` cannot run is run on one record after another. ``private_sum``
forms the gradients of a few records at a time, so that its memory is bounded.

Axes: B records, K views of one record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from lehr import validate
from lehr.errors import LehrError, NotPrivate
from lehr.gradients import batches, execution
from lehr.gradients.batches import LossFn
from lehr.gradients.contributions import ContributedGradients, Materialised
from lehr.gradients.execution import FunctionalModel
from lehr.gradients.precision import keep, margin
from lehr.gradients.refusals import described, refuse_reentrant_checkpoints, refuse_what_cannot_be_private
from lehr.gradients.synthetic import DRAWS_IN_PYTHON
from lehr.interfaces import Clip, ClipRule, Inputs, PrivateSum, Tensors, at_least_float32

LOG = logging.getLogger("lehr")
PART_BYTES = 2**28  # of gradients that are formed at once


class StoredGradients(ContributedGradients):
    """Every record's gradient, ``{name: grads_B...}``, which can be clipped by coordinate."""

    def __init__(self, grads: Mapping[str, Tensor], *, mask_B: Tensor, margin: float) -> None:
        super().__init__({name: Materialised(own) for name, own in grads.items()}, mask_B=mask_B, margin=margin)
        self._grads = grads

    def clipped_sum(self, clip: Clip) -> dict[str, Tensor]:
        """See ``CoordinateGradients``."""
        exact = {name: grads.to(at_least_float32(grads.dtype)) for name, grads in self._grads.items()}
        clipped = clip({name: keep(grads, self._counted_B) for name, grads in exact.items()})
        return {name: keep(grads, self._counted_B).sum(0, dtype=torch.float64) for name, grads in clipped.items()}


class MaterialisedEngine:
    """Differentiates a model record by record with ``vmap``.

    ``loss_fn(outputs, targets)`` returns one loss per record. With ``views=K`` every input has a second axis of K
    augmented copies, whose gradients are averaged before a norm is taken.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, views: int = 1) -> None:
        refuse_what_cannot_be_private(model)
        self._model = model
        self._loss_fn = loss_fn
        self._views = validate.count(views=views)
        self._loops: dict[Any, bool] = {}
        self.loops = False  # whether records are always run one after another
        batches.trainable(model)

    def gradients(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> StoredGradients:
        """The gradients of a batch, all of them at once."""
        refuse_what_cannot_be_private(self._model)
        parameters = batches.trainable(self._model)
        mask = batches.check_batch(inputs, targets, mask_B, views=self._views, device=self._device)
        largest = max(margin(parameter.dtype, parameter.device) for parameter in parameters.values())
        return StoredGradients(self._gradients(inputs, targets), mask_B=mask, margin=largest)

    def parts(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> Iterator[StoredGradients]:
        """The gradients of as many records at a time as fit into memory, at least one; of an empty batch, one part."""
        mask = batches.check_batch(inputs, targets, mask_B, views=self._views, device=self._device)
        parameters = batches.trainable(self._model).values()
        size = max(1, PART_BYTES // max(1, sum(own.numel() * own.element_size() for own in parameters)))
        for first in range(0, max(1, len(mask)), size):
            yield self.gradients(*batches.take((inputs, targets, mask), slice(first, first + size)))

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:
        """The clipped sum over a batch."""

        def add(one: PrivateSum, other: PrivateSum) -> PrivateSum:
            return replace(one, values={name: value + other.values[name] for name, value in one.values.items()})

        return reduce(add, map(clip, self.parts(inputs, targets, mask_B)))

    @property
    def _device(self) -> torch.device:
        return next(self._model.parameters()).device

    def _gradients(self, inputs: Inputs, targets: Any) -> dict[str, Tensor]:
        """Of all records at once or, where that fails, of one after another.

        ``vmap`` cannot run every model: some branch on the values of a record, or use operations that it does not know.
        And where Python itself tosses a coin, one would be tossed for all records. What is the case is found out at the
        first batch of each kind.
        """
        if not batches.num_records(inputs, targets):  # vmap has no empty maps
            return {name: own.new_zeros(0, *own.shape) for name, own in batches.trainable(self._model).items()}
        state = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        state |= {name: buffer.clone() for name, buffer in self._model.named_buffers()}  # which may be written to
        flags = tuple(layer.training for layer in self._model.modules())
        kind = (flags, tuple((leaf.dim(), leaf.dtype) for leaf in batches.leaves((inputs, targets))))
        if self.loops or self._loops.get(kind):
            return self._looped(state, inputs, targets)
        if kind in self._loops:
            return self._mapped(state, inputs, targets)
        before, why = execution.rng_states(self._device), DRAWS_IN_PYTHON
        try:
            found = self._mapped(state, inputs, targets)
            self._loops[kind] = execution.rng_states(self._device)[0] != before[0]
        except LehrError:
            raise
        except Exception as error:  # whatever vmap or the model may raise; the loop raises what is the model's
            if execution.is_out_of_memory(error):
                raise
            self._loops[kind], why = True, execution.vmap_error(error)
        if not self._loops[kind]:
            return found
        execution.restore_rng(before)
        LOG.warning("the model is run on one record after another, which is slow: %s", why)
        return self._looped(state, inputs, targets)

    def _mapped(self, state: Tensors, inputs: Inputs, targets: Any) -> dict[str, Tensor]:
        """The gradients of these records, all at once."""
        names = set(batches.trainable(self._model))
        num_records = batches.num_records(inputs, targets)
        own = execution.recurrent_parameters(self._model)
        each = {name: state[name].expand(num_records, *state[name].shape) for name in own}
        trained = {name: each.get(name, state[name]) for name in names}
        others = {name: each.get(name, state[name]) for name in state.keys() - names}
        axes = [{name: 0 if name in own else None for name in values} for values in (trained, others)]
        called = FunctionalModel(self._model)  # anew for every batch: weights may have been tied since the last

        def loss(trained: Tensors, others: Tensors, inputs: Inputs, targets: Any) -> Tensor:
            def model(*args: Any, **kwargs: Any) -> Any:
                return called({**trained, **others}, args, kwargs)

            return _record_loss(model, self._loss_fn, inputs, targets, views=self._views)

        one_by_one = vmap(grad(loss), in_dims=(*axes, 0, 0), randomness="different")
        with execution.under_vmap(has_cells=bool(own)):
            found: dict[str, Tensor] = one_by_one(trained, others, inputs, targets)
        return {name: found[name] for name in state if name in names}

    def _looped(self, state: Tensors, inputs: Inputs, targets: Any) -> dict[str, Tensor]:
        """The same by a plain backward pass for each."""
        rows = gradients_one_by_one(self._model, self._loss_fn, state, inputs, targets, views=self._views)
        return {
            name: torch.stack([torch.zeros_like(state[name]) if grads is None else grads for grads in column])
            for name, column in ((name, [row[name] for row in rows]) for name in rows[0])
        }


def gradients_one_by_one(
    model: nn.Module,
    loss_fn: LossFn,
    values: Tensors,
    inputs: Inputs,
    targets: Any,
    *,
    views: int,
    copies_weights: bool = True,
) -> list[dict[str, Tensor | None]]:
    """The gradient of each record by a plain backward pass; None for a parameter that its loss does not depend on.

    Made-up records need no copies of the weights.
    """
    names = list(batches.trainable(model))
    written = values.keys() if copies_weights else dict(model.named_buffers()).keys()

    def of_one(inputs: Inputs, targets: Any) -> dict[str, Tensor | None]:
        # A model may write into its buffers, or into frozen weights.
        own = {name: value.clone() if name in written else value.detach() for name, value in values.items()}

        def differentiated() -> dict[str, Tensor | None]:
            # Inside, since checkpointed activations are computed again in the backward pass.
            loss = _record_loss(model, loss_fn, inputs, targets, views=views)
            refuse_reentrant_checkpoints(model, loss)
            try:
                trained = [own[name] for name in names]
                found: Sequence[Tensor | None] = torch.autograd.grad(loss, trained, allow_unused=True)
            except RuntimeError as error:
                if execution.is_out_of_memory(error):
                    raise
                # What torch says of a private record is not passed on.
                reason = f"a plain backward pass through it fails ({type(error).__name__})"
                instead = "operations that do not change in place what a layer was given"
                raise NotPrivate(layer=described("", model), reason=reason, instead=instead) from None
            dense = (grads.to_dense() if grads is not None and grads.is_sparse else grads for grads in found)
            return dict(zip(names, dense, strict=True))

        for name in names:
            own[name].requires_grad_()
        found: dict[str, Tensor | None] = FunctionalModel(model, differentiated)(own, (), {})
        return found

    with torch.inference_mode(False), torch.enable_grad():
        return [of_one(*batches.take((inputs, targets), at)) for at in range(batches.num_records(inputs, targets))]


def _record_loss(model: Callable[..., Any], loss_fn: LossFn, inputs: Inputs, targets: Any, *, views: int) -> Tensor:
    """The loss of one record, its views averaged."""
    split = inputs if views > 1 else batches.each(lambda leaf: leaf.unsqueeze(0), inputs)
    batch_of_one = batches.each(lambda leaf: leaf.unsqueeze(0), targets)
    again = batches.each(lambda leaf: leaf.squeeze(0), batches.view_targets(batch_of_one, views=views))
    return batches.one_each(loss_fn(batches.call(model, split), again), num_records=views).mean()
