"""The engine for clips that look at coordinates: gradients in full, a few records at a time.

Memory is bounded. Where the gradients of the whole batch fit into ``kept_bytes`` they are computed once and kept;
otherwise they are computed again for every question, a chunk at a time, from the same parameters and the same random
numbers, and nothing larger than a chunk is ever held. Recurrent layers work here, and a model that ``vmap`` cannot run
is run on one record after another.

Axes: B records, K views of one record, G groups of parameters.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from lehr import validate
from lehr.errors import LehrError, NotPrivate
from lehr.gradients import batches, execution
from lehr.gradients.batches import LossFn, checked_groups, checked_mask, weight_of_each
from lehr.gradients.execution import FunctionalModel, WithoutHooks, shown
from lehr.gradients.precision import keep, margin, rows, sum_of_squares, uncast, weighted_rows
from lehr.gradients.refusals import described, refuse_reentrant_checkpoints, refuse_what_cannot_be_private
from lehr.gradients.synthetic import DRAWS_IN_PYTHON
from lehr.interfaces import Clip, ClipRule, Groups, Inputs, PrivateSum, Tensors, at_least_float32

LOG = logging.getLogger("lehr")
KEPT_BYTES = 2**28
Compute: TypeAlias = Callable[[slice], dict[str, Tensor]]


class MaterialisedEngine:
    """Differentiates a model record by record with ``vmap``.

    ``loss_fn(outputs, targets)`` returns one loss per record. With ``views=K`` every input has a second axis of K
    augmented copies, whose gradients are averaged before a norm is taken. ``chunk_records`` is the number of records
    whose gradients are formed at once; where it is not given, as many as fit into ``kept_bytes``, and at least one.
    A batch must not be changed in place before its gradients have been used.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        views: int = 1,
        chunk_records: int | None = None,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        refuse_what_cannot_be_private(model)
        self._model = model
        self._loss_fn = loss_fn
        self._views = validate.count(views=views)
        self._chunk_records = None if chunk_records is None else validate.count(chunk_records=chunk_records)
        self._loops: dict[Any, bool] = {}
        self.loops = False  # whether records are always run one after another
        self._kept_bytes = validate.count(minimum=0, kept_bytes=kept_bytes)
        batches.trainable(model)

    def gradients(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> ChunkedGradients:
        """The gradients of a batch, computed when they are asked for, with the parameters as they are now."""
        refuse_what_cannot_be_private(self._model)
        parameters = batches.trainable(self._model)
        num_records = batches.num_records(inputs, targets)
        batches.check_views(inputs, views=self._views)
        mask = checked_mask(mask_B, num_records=num_records, device=next(iter(parameters.values())).device)
        fitting = self._kept_bytes // max(1, bytes_per_record(parameters))
        return ChunkedGradients(
            self._computation(inputs, targets),
            shapes={name: parameter.detach() for name, parameter in parameters.items()},
            mask_B=mask,
            margin=max(margin(parameter.dtype, parameter.device) for parameter in parameters.values()),
            chunk_records=self._chunk_records or max(1, fitting),
            kept=num_records <= fitting,
        )

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:
        """The clipped sum over a batch."""
        return clip(self.gradients(inputs, targets, mask_B))

    def _computation(self, inputs: Inputs, targets: Any) -> Compute:
        """What gives the gradients of a slice of the records, however often and however late it is asked."""
        values = [*self._model.named_parameters(), *self._model.named_buffers()]
        state = {name: value.detach().clone() for name, value in values}
        flags = tuple(layer.training for layer in self._model.modules())
        kind = (flags, tuple((leaf.dim(), leaf.dtype) for leaf in batches.leaves((inputs, targets))))

        def compute(chunk: slice) -> dict[str, Tensor]:
            part = batches.each(lambda leaf: leaf[chunk], (inputs, targets))
            if self.loops:
                return self._looped(state, *part)
            if kind not in self._loops:
                return self._first(kind, state, *part)
            return (self._looped if self._loops[kind] else self._mapped)(state, *part)

        return compute

    def _first(self, kind: Any, state: Tensors, inputs: Inputs, targets: Any) -> dict[str, Tensor]:
        """The first gradients for a kind of batch: of all records at once or, where that fails, of one after another.

        ``vmap`` cannot run every model: some branch on the values of a record, or use operations that it does not know.
        And where Python itself tosses a coin, one would be tossed for all records.
        """
        device = next(iter(state.values())).device
        before, of_python, why = execution.torch_rng_states(device), execution.python_rng_states(), DRAWS_IN_PYTHON
        try:
            found = self._mapped(state, inputs, targets)
            self._loops[kind] = of_python != execution.python_rng_states()
        except (LehrError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever vmap or the model may raise; the loop raises what is the model's
            self._loops[kind], why = True, shown(error)
        if not self._loops[kind]:
            return found
        execution.restore_torch_rng(device, before)
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
            return self._loss(lambda *args, **kwargs: called({**trained, **others}, args, kwargs), inputs, targets)

        one_by_one = vmap(grad(loss), in_dims=(*axes, 0, 0), randomness="different")
        with execution.under_vmap(has_cells=bool(own)):
            found: dict[str, Tensor] = one_by_one(trained, others, inputs, targets)
        return {name: found[name] for name in state if name in names}

    def _looped(self, state: Tensors, inputs: Inputs, targets: Any) -> dict[str, Tensor]:
        """The same by a plain backward pass for each."""
        names = list(batches.trainable(self._model))
        rows = [
            self._of_one(state, names, *batches.each(lambda leaf, at=at: leaf[at], (inputs, targets)))  # type: ignore[misc]
            for at in range(batches.num_records(inputs, targets))
        ]
        return {name: torch.stack([row[at] for row in rows]) for at, name in enumerate(names)}

    def _of_one(self, state: Tensors, names: list[str], inputs: Inputs, targets: Any) -> Sequence[Tensor]:
        values = {name: value.clone() for name, value in state.items()}  # a model may write into its buffers

        def differentiated() -> Sequence[Tensor]:
            # Inside, since checkpointed activations are computed again in the backward pass.
            loss = self._loss(self._model, inputs, targets)
            refuse_reentrant_checkpoints(self._model, loss)
            try:
                trained = [values[name] for name in names]
                return torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
            except RuntimeError as error:
                # What torch says of a private record is not passed on.
                reason = f"a plain backward pass through it fails ({type(error).__name__})"
                raise NotPrivate(layer=described("", self._model), reason=reason, instead=_PLAIN) from None

        with torch.inference_mode(False), torch.enable_grad():
            for name in names:
                values[name].requires_grad_()
            inside = {f"layer.{name}": value for name, value in values.items()}
            found: Sequence[Tensor] = FunctionalModel(WithoutHooks(self._model, differentiated))(inside, (), {})
        return [grads.to_dense() if grads.is_sparse else grads for grads in found]

    def _loss(self, model: Callable[..., Any], inputs: Inputs, targets: Any) -> Tensor:
        """The loss of one record, its views averaged."""
        split = inputs if self._views > 1 else batches.each(lambda leaf: leaf.unsqueeze(0), inputs)
        again = batches.each(lambda leaf: leaf.unsqueeze(0).expand(self._views, *leaf.shape), targets)
        losses = self._loss_fn(batches.call(model, split), again)
        return batches.one_each(losses, num_records=self._views).mean()


_PLAIN = "operations that do not change in place what a layer was given"


class ChunkedGradients:
    """Gradients that are formed a chunk of records at a time."""

    def __init__(
        self,
        compute: Compute,
        *,
        shapes: Mapping[str, Tensor],
        mask_B: Tensor,
        margin: float,
        chunk_records: int,
        kept: bool,
    ) -> None:
        self._compute = compute
        self._rng_states: dict[int, list[Tensor]] = {}
        self._shapes = shapes
        self._mask_B = mask_B
        self._margin = margin
        self._chunks = [slice(start, start + chunk_records) for start in range(0, len(mask_B), chunk_records)]
        self._kept: list[dict[str, Tensor]] | None = [] if kept else None
        self._squared_BP: Tensor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    @property
    def margin(self) -> float:
        return self._margin

    def norms(self, groups: Groups | None = None) -> Tensor:
        if self._squared_BP is None:
            found = [_squared(grads, self.names) for _, grads, _ in self._counted_chunks()]
            self._squared_BP = torch.cat(found) if found else self._zeros(0, len(self.names))
        whole = checked_groups(groups, names=self.names)
        of_group = [[self.names.index(name) for name in group] for group in whole]
        norms_BG = torch.stack([self._squared_BP[:, index].sum(1) for index in of_group], dim=1).sqrt()
        return norms_BG[:, 0] if groups is None else norms_BG

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        weight_of = weight_of_each(weights, groups, names=self.names, num_records=len(self._mask_B))
        sums = self._empty_sums()
        for chunk, grads, counted_B in self._counted_chunks():
            for name, weights_B in weight_of.items():
                chosen = torch.where(counted_B, weights_B[chunk], 0).to(grads[name].dtype)
                with uncast(chosen.device):
                    sums[name] += weighted_rows(chosen, rows(grads[name])).reshape(sums[name].shape)
        return sums

    def clipped_sum(self, clip: Clip) -> dict[str, Tensor]:
        sums = self._empty_sums()
        for _, grads, counted_B in self._counted_chunks():
            for name, clipped in clip(grads).items():
                sums[name] += keep(clipped, counted_B).sum(0, dtype=torch.float64)
        return sums

    def _counted_chunks(self) -> Iterator[tuple[slice, dict[str, Tensor], Tensor]]:
        """Each chunk's records, their gradients in float32 or better, zero where they do not count, and which do."""
        if self._kept == []:
            self._kept = list(map(self._gradients_of, self._chunks))
        for at, chunk in enumerate(self._chunks):
            found = self._gradients_of(chunk) if self._kept is None else self._kept[at]
            exact = {name: grads.to(at_least_float32(grads.dtype)) for name, grads in found.items()}
            squared_BP = _squared(exact, self.names)
            counted_B = self._mask_B[chunk] & squared_BP.sum(1).isfinite()
            kept = {name: keep(grads, counted_B) for name, grads in exact.items()}
            yield chunk, self._no_larger_than_reported(kept, chunk), counted_B

    def _no_larger_than_reported(self, grads: dict[str, Tensor], chunk: slice) -> dict[str, Tensor]:
        """Kernels may round differently the second time; what is summed is never above the norm that was reported."""
        if self._squared_BP is None or self._kept is not None:
            return grads
        first_BP, again_BP = self._squared_BP[chunk], _squared(grads, self.names)
        scales_BP = torch.where(again_BP > first_BP, (first_BP / again_BP).sqrt(), 1)
        return {
            name: grads[name] * scales_BP[:, index].reshape(-1, *(1 for _ in grads[name].shape[1:]))
            for index, name in enumerate(self.names)
        }

    def _gradients_of(self, chunk: slice) -> dict[str, Tensor]:
        """The first run draws from torch's generators like any code; a later one repeats its draws, without a trace."""
        device = self._mask_B.device
        if chunk.start not in self._rng_states:
            self._rng_states[chunk.start] = execution.torch_rng_states(device)
            return self._compute(chunk)
        with batches.random_numbers_apart(device):
            execution.restore_torch_rng(device, self._rng_states[chunk.start])
            return self._compute(chunk)

    def _empty_sums(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(shape, dtype=torch.float64) for name, shape in self._shapes.items()}

    def _zeros(self, *shape: int) -> Tensor:
        some = next(iter(self._shapes.values()))
        return some.new_zeros(shape, dtype=at_least_float32(some.dtype))


def bytes_per_record(parameters: Mapping[str, Tensor]) -> int:
    """What one record's gradient takes in memory."""
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters.values())


def _squared(grads: Mapping[str, Tensor], names: tuple[str, ...]) -> Tensor:
    """Squared norms, ``squared_BP``: one column for each parameter."""
    return torch.stack([sum_of_squares(grads[name]) for name in names], dim=1)
