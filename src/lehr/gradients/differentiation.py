"""One forward pass, one backward pass to the taps, and every parameter's contributions from what was heard.

Axes: B records, K views of one record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.layers import Layers
from lehr.gradients.precision import margin, narrow, widen
from lehr.gradients.reading import Manner, Outlet, Reading
from lehr.gradients.record_axis import Trace, as_traced, why_not_apart
from lehr.gradients.recurrent import under_vmap
from lehr.gradients.tape import OtherPath
from lehr.interfaces import Inputs, Tensors


class Differentiation:
    """A model's layers, a loss per record, the number of views, and the type that the model is run in."""

    def __init__(self, layers: Layers, loss_fn: LossFn, *, views: int, dtype: torch.dtype | None) -> None:
        self._layers = layers
        self._loss_fn = loss_fn
        self._views = views
        self._dtype = dtype

    def reading(self, manner: Manner, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> Reading:
        """What the first record leaves at every place when it is run so; its numbers are not looked at."""
        places = self._layers.tape.places

        def outputs_of(num_records: int) -> dict[str, Tensor]:
            some = batches.each(lambda leaf: leaf[:1].expand(num_records, *leaf.shape[1:]), (inputs, targets))
            return self._outputs(manner, parameters, buffers, *some)

        outputs = outputs_of(1)
        twice = {} if manner.is_record_by_record else outputs_of(2)
        shared = {key for key, output in twice.items() if key in outputs and output.shape[:1] == (1,)}
        outlets = {key: Outlet.of(places[key], output, is_shared=key in shared) for key, output in outputs.items()}
        return Reading(outlets, manner, self._views)

    def _outputs(
        self, manner: Manner, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any
    ) -> dict[str, Tensor]:
        """What leaves every place in a run that leaves no trace."""
        self._layers.tape.start(None)
        with torch.no_grad(), batches.random_numbers_apart(first_device(parameters)):
            apart = {name: buffer.clone() for name, buffer in buffers.items()}  # should a layer write to one
            values = self._as_run({**parameters, **apart}, manner)
            self._losses(values, self._images(inputs, manner), self._repeated(targets))
        _, outputs = self._layers.tape.stop()
        return outputs

    def gradients(
        self,
        reading: Reading,
        parameters: Tensors,
        buffers: Tensors,
        inputs: Inputs,
        targets: Any,
        mask_B: Tensor,  # noqa: N803
    ) -> ContributedGradients:
        """Of every record; traceable as one graph."""
        heard, tap_grads, copy_grads = self._heard(reading, parameters, buffers, inputs, targets, mask_B)
        num_records = mask_B.shape[0]
        sites = reading.sites(heard, tap_grads, num_records)
        contributions = self._layers.contributions(
            reading.places, sites, {**parameters, **buffers}, copied=copy_grads, num_records=num_records
        )
        return ContributedGradients(contributions, mask_B=mask_B, margin=self.margin(parameters))

    def why_not_together(
        self, reading: Reading, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any, *, num_records: int
    ) -> str | None:
        """Why it is not proven that a batch of so many records, run together, keeps them apart; None where it is.

        What is read of a record, the inputs of layers and the gradients of their outputs, must be a function of this
        record: so the forward pass, the loss and the backward pass are followed. Only shapes of the batch are used.
        """

        def compute(trace: Trace) -> Iterator[tuple[str, Tensor]]:
            weights = {name: trace.public(value, name) for name, value in parameters.items()}
            apart = {name: trace.public(value, name) for name, value in buffers.items()}
            given, expected = batches.each(trace.records, inputs), batches.each(trace.records, targets)
            everyone = torch.ones(trace.num_records, dtype=torch.bool, device=first_device(parameters))
            heard, grads, _ = self._heard(reading, weights, apart, given, expected, everyone)
            for key, place in reading.places.items():
                yield place.layer, reading.for_each(key, heard[key], trace.num_records)
                yield place.layer, grads[key]

        sizes = [size for leaf in batches.leaves((inputs, targets)) for size in leaf.shape[1:]]
        return why_not_apart(compute, self._layers.model, num_records=num_records, sizes=sizes)

    def _heard(
        self,
        reading: Reading,
        parameters: Tensors,
        buffers: Tensors,
        inputs: Inputs,
        targets: Any,
        mask_B: Tensor,  # noqa: N803
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """What goes into every place, and the gradients of what leaves it and of the copies."""
        num_records = mask_B.shape[0]
        values = self._as_run({**parameters, **buffers}, reading.manner)
        taps = reading.taps(num_records, device=mask_B.device)
        copies = reading.copies(values, num_records)

        def run(taps: Tensors, copies: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
            if not reading.manner.is_record_by_record:
                images = self._images(inputs, reading.manner)
                return self._listened(values, taps, images, self._repeated(targets), shared=reading.shared)
            return self._each_alone(values, taps, copies, inputs, targets)

        losses, pullback, heard = vjp(run, taps, copies, has_aux=True)  # type: ignore[misc]
        # A record's loss is the mean over its views, and so is its gradient.
        tap_grads, copy_grads = pullback(torch.full_like(losses, 1 / self._views))
        return heard, tap_grads, copy_grads

    def margin(self, parameters: Tensors) -> float:
        """See ``RecordGradients``."""
        # A frozen weight may be of whole numbers, as quantised ones are, which have no margin.
        rounded = [value for value in parameters.values() if value.is_floating_point()]
        return max(margin(self._dtype or value.dtype, value.device) for value in rounded)

    def _each_alone(
        self, values: Tensors, taps: Tensors, copies: Tensors, inputs: Inputs, targets: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        views = inputs if self._views > 1 else batches.each(lambda leaf: leaf.unsqueeze(1), inputs)
        repeated = batches.each(lambda leaf: leaf.unsqueeze(1).expand(-1, self._views, *leaf.shape[1:]), targets)

        def one(taps: Tensors, copies: Tensors, views: Inputs, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
            return self._listened({**values, **copies}, taps, views, targets)

        with under_vmap():
            result: tuple[Tensor, dict[str, Tensor]] = vmap(one, randomness="different")(taps, copies, views, repeated)
        return result

    def _listened(
        self, values: Tensors, taps: Tensors, inputs: Inputs, targets: Any, shared: Collection[str] = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        tape = self._layers.tape
        tape.start(taps, shared)
        losses = self._losses(values, inputs, targets)
        heard, _ = tape.stop()
        if heard.keys() != taps.keys():
            raise OtherPath(next(iter(heard.keys() ^ taps.keys())))
        return losses, heard

    def _losses(self, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        def model(*args: Any, **kwargs: Any) -> Any:
            return self._layers.called(values, args, kwargs)

        with as_traced():
            outputs = batches.call(model, narrow(inputs, self._dtype))
        losses = self._loss_fn(widen(outputs), targets)
        return batches.one_each(losses, num_records=batches.leaves(inputs)[0].shape[0])

    def _as_run(self, values: Tensors, manner: Manner) -> dict[str, Tensor]:
        """Weights in the type and memory format that the model is run in: images of one channel have no format."""
        narrowed: dict[str, Tensor] = narrow(dict(values), self._dtype)
        if not manner.is_channels_last or manner.is_record_by_record:
            return narrowed
        return {name: batches.channels_last(value) for name, value in narrowed.items()}

    def _images(self, inputs: Inputs, manner: Manner) -> Inputs:
        """All views of all records, one after another."""
        images = batches.flat_views(inputs, views=self._views)
        if manner.is_channels_last and not manner.is_record_by_record:
            images = batches.each(batches.channels_last, images)
        return images

    def _repeated(self, targets: Any) -> Any:
        """Each record's target once for every view."""
        if self._views == 1:
            return targets
        return batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets)


def first_device(values: Tensors) -> torch.device:
    """Where a model's values are."""
    return next(iter(values.values())).device
