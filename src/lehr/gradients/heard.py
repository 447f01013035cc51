"""What a loop that calls ``loss.backward()`` itself left behind at every place of its model.

Axes: N images, records times views, in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lehr.errors import InvalidValue
from lehr.gradients.tape import Place


@dataclass(frozen=True)
class Passage:
    """What went into one place, as it was then, and what its output looks like."""

    place: Place
    inputs: Tensor
    inputs_version: int
    output: Tensor  # its shape and type; it has no memory
    is_alone: bool = False  # each image was run alone: behind the image axis stands all that one image had there

    def flaw(self, num_images: int) -> tuple[str, str] | None:
        """Why no gradients of single records follow from this, and the way out; or nothing."""
        if self.inputs.shape[:1] != (num_images,) or self.output.shape[:1] != (num_images,):
            return f"it was given {tuple(self.inputs.shape)}, which does not begin with the {num_images} records", (
                "keep the record axis first and apart from others, or use the materialised engine"
            )
        if self.inputs._version != self.inputs_version:
            return "its input was changed in place since", "the same operation out of place"
        return None


@dataclass
class Heard:
    """One batch: filled by the forward pass, then by the backward pass, then read once."""

    num_images: int | None = None
    num_passes: int = 0
    backward_began: bool = False
    passages: dict[str, Passage] = field(default_factory=dict)
    output_grads: dict[str, Tensor] = field(default_factory=dict)
    own_grads: dict[str, Tensor] = field(default_factory=dict)
    rows: Sequence[int] | None = None  # in a try: which of the two made-up images each row of the batch is
    has_shared: bool = False  # a layer was run once for all images, as one for positions may be
    number: Tensor | None = None  # inside a function that vmap runs once for each image: the number of the image
    _calls: dict[str, int] = field(default_factory=dict)

    def begin_pass(self, num_images: int, *, at_most: int) -> None:
        """The model as a whole is run."""
        if self.num_passes >= at_most:
            raise InvalidValue("num_passes", allowed=_MORE_PASSES, given=at_most)
        self.num_passes += 1
        if self.num_images is None:
            self.num_images = num_images

    def images_of(self, values: Sequence[Any]) -> int:
        """The number of images: as the model's inputs had it, or as these have it where the model was not run whole."""
        if self.num_images is not None:
            return self.num_images
        shapes = [value.shape for value in values if isinstance(value, Tensor) and value.dim()]
        if not shapes:
            raise InvalidValue("inputs", allowed="tensors that begin with the record axis", given="none")
        return int(shapes[0][0])

    def call_of(self, layer: str) -> int:
        """The number of this call of a layer."""
        self._calls[layer] = self._calls.get(layer, 0) + 1
        return self._calls[layer] - 1

    def put_inputs(self, place: Place, inputs: Tensor, output: Tensor, *, is_alone: bool = False) -> None:
        kept = inputs.detach()
        shape = torch.empty_like(output, device="meta", requires_grad=False)
        self.passages[place.key] = Passage(place, kept, kept._version, shape, is_alone)

    def add_output_grads(self, key: str, grads: Tensor) -> None:
        """A second backward pass through the same graph adds to the first."""
        self.backward_began = True
        _add(self.output_grads, key, grads)

    def add_own_grads(self, parameter: str, grads: Tensor) -> None:
        """Gradients of a parameter that every image had a copy of, ``grads_N...``."""
        self.backward_began = True
        _add(self.own_grads, parameter, grads)

    def refuse_after_backward(self) -> None:
        if self.backward_began:
            raise InvalidValue("loop", allowed=_ONE_BATCH_AT_A_TIME, given="a forward pass after the backward pass")


_ONE_BATCH_AT_A_TIME = (
    "such that gradients() is called between a backward pass and the next forward pass; a batch that is skipped needs "
    "forget(), a pass that is not trained on torch.no_grad(), and activation checkpointing is not supported"
)


_MORE_PASSES = (
    "the number of forward passes over the same records that make up one loss; other batches need a backward pass "
    "and gradients() each, and passes that are not trained on torch.no_grad()"
)


def _add(sums: dict[str, Tensor], key: str, values: Tensor) -> None:
    sums[key] = sums[key] + values.detach() if key in sums else values.detach()
