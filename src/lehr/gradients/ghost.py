"""The fast engine: norms and weighted sums of per-record gradients without storing one of them.

One forward pass, one backward pass to the outputs of the layers, norms from pairs of inputs and output gradients, and one
weighted sum from the same pairs; ``private_sum`` compiles all of it, the clip rule included, into one graph.

Axes: B records, K views of one record, N = B·K images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from lehr import validate
from lehr.gradients import batches
from lehr.gradients.batches import Inputs, LossFn
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.layers import Layers
from lehr.gradients.precision import PRECISIONS, first_dtype, margin, narrow, widen
from lehr.gradients.tape import Place
from lehr.interfaces import ClipRule, PrivateSum, Site, Tensors


@dataclass(frozen=True)
class Outlet:
    """What leaves one place, per record: ``[K, ...]``."""

    place: Place
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_channels_last: bool

    def tap(self, num_records: int, *, stacked: bool, device: torch.device) -> Tensor:
        """Zeros in the shape and memory format of the output: all records stacked, or image after image."""
        shape = (num_records, *self.shape) if stacked else (num_records * self.shape[0], *self.shape[1:])
        zeros = torch.zeros(shape, dtype=self.dtype, device=device)
        return zeros.contiguous(memory_format=torch.channels_last) if self.is_channels_last and not stacked else zeros


@dataclass(frozen=True)
class Reading:
    """How a model is read: which places report, and which parameters are given to each record as a copy of its own."""

    outlets: dict[str, Outlet]
    bare: frozenset[str]
    record_by_record: bool


class GhostEngine:
    """Differentiates a model record by record.

    ``loss_fn(outputs, targets)`` returns one loss per record (``reduction="none"``). With ``views=K`` every input has a
    second axis of K augmented copies, whose gradients are averaged before a norm is taken.
    """

    def __init__(
        self, model: nn.Module, loss_fn: LossFn, *, views: int = 1, precision: str = "as_model", compiled: bool = True
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._views = validate.count(views=views)
        self._dtype = PRECISIONS[validate.one_of(PRECISIONS, precision=precision)]
        self._layers = Layers(model)
        self._compiled = compiled
        self._steps: dict[Any, Any] = {}
        self._readings: dict[Any, Reading] = {}

    def gradients(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> ContributedGradients:  # noqa: N803
        """The gradients of a batch, computed at once and not compiled."""
        reading, *arguments = self._prepared(inputs, targets, mask_B)
        with torch.no_grad():
            return self._differentiate(reading, *arguments)

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:  # noqa: N803
        """The clipped sum over a batch, in one compiled graph."""
        reading, *arguments = self._prepared(inputs, targets, mask_B)
        with torch.no_grad():
            values = self._step(reading, clip)(*arguments)
        return PrivateSum(values=values, sensitivity=clip.sensitivity)

    def _step(self, reading: Reading, clip: ClipRule) -> Any:
        key = (id(reading), id(clip))
        if key not in self._steps:
            def step(*arguments: Any) -> dict[str, Tensor]:
                return clip(self._differentiate(reading, *arguments)).values

            self._steps[key] = torch.compile(step, fullgraph=True, dynamic=False) if self._compiled else step
        return self._steps[key]

    def _prepared(self, inputs: Inputs, targets: Any, mask_B: Tensor | None) -> tuple[Any, ...]:  # noqa: N803
        num_records = batches.num_records(inputs, targets)
        parameters = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        buffers = dict(self._model.named_buffers())
        if mask_B is None:
            mask_B = torch.ones(num_records, dtype=torch.bool, device=next(iter(parameters.values())).device)  # noqa: N806
        reading = self._reading(parameters, buffers, inputs, targets)
        return reading, parameters, buffers, inputs, targets, mask_B

    def _reading(self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> Reading:
        key = tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in batches.leaves(inputs))
        if key not in self._readings:
            bare = self._layers.without_rule()
            outlets = self._outlets(parameters, buffers, inputs, targets)
            self._readings[key] = Reading(outlets, bare, bool(bare))
        return self._readings[key]

    def _outlets(self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> dict[str, Outlet]:
        one = batches.each(lambda leaf: leaf[:1], inputs)
        one_target = batches.each(lambda leaf: leaf[:1], targets)
        tape = self._layers.tape
        tape.start(None)
        with torch.no_grad():
            self._losses(narrow({**parameters, **buffers}, self._dtype), self._images(one), self._repeated(one_target))
        _, outputs = tape.stop()
        return {
            key: Outlet(
                tape.places[key],
                (self._views, *(output.reshape(self._views, -1, *output.shape[1:]).shape[2:])),
                output.dtype,
                output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last),
            )
            for key, output in outputs.items()
        }

    def _differentiate(
        self, reading: Reading, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any, mask_B: Tensor  # noqa: N803
    ) -> ContributedGradients:
        num_records = mask_B.shape[0]
        values = narrow({**parameters, **buffers}, self._dtype)
        taps = {
            key: outlet.tap(num_records, stacked=reading.record_by_record, device=mask_B.device)
            for key, outlet in reading.outlets.items()
        }
        bare = {name: values[name].expand(num_records, *values[name].shape) for name in sorted(reading.bare)}

        def run(taps: Tensors, bare: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
            if reading.record_by_record:
                one = lambda taps, bare, inputs, targets: self._listened({**values, **bare}, taps, inputs, targets)  # noqa: E731
                split = batches.each(lambda leaf: leaf if self._views > 1 else leaf.unsqueeze(1), inputs)
                again = batches.each(lambda leaf: leaf.unsqueeze(1).expand(-1, self._views, *leaf.shape[1:]), targets)
                return vmap(one, randomness="different")(taps, bare, split, again)
            return self._listened(values, taps, self._images(inputs), self._repeated(targets))

        losses, pullback, seen = vjp(run, taps, bare, has_aux=True)
        tap_grads, bare_grads = pullback(torch.full_like(losses, 1 / self._views))
        sites = {
            key: Site(self._by_record(seen[key], reading), self._by_record(tap_grads[key], reading))
            for key in reading.outlets
        }
        places = {key: outlet.place for key, outlet in reading.outlets.items()}
        contributions = self._layers.contributions(places, sites, parameters, bare=bare_grads)
        return ContributedGradients(
            contributions, mask_B=mask_B, margin=margin(self._dtype or first_dtype(parameters))
        )

    def _listened(self, values: Tensors, taps: Tensors, inputs: Inputs, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
        tape = self._layers.tape
        tape.start(taps)
        losses = self._losses(values, inputs, targets)
        seen, _ = tape.stop()
        return losses, seen

    def _losses(self, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        narrowed = narrow(inputs, self._dtype)
        outputs = batches.call(lambda *args, **kwargs: functional_call(self._layers.model, dict(values), args, kwargs), narrowed)
        return self._loss_fn(widen(outputs), targets)

    def _images(self, inputs: Inputs) -> Inputs:
        flat = batches.each(lambda leaf: leaf.flatten(0, 1), inputs) if self._views > 1 else inputs
        return batches.each(batches.channels_last, flat)

    def _repeated(self, targets: Any) -> Any:
        return batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets) if self._views > 1 else targets

    def _by_record(self, values: Tensor, reading: Reading) -> Tensor:
        """Axes ``BK...``, whichever way the model was run."""
        return values if reading.record_by_record else values.unflatten(0, (-1, self._views))
