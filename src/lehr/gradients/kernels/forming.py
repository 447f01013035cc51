"""Every record's gradient of a convolution's weight, or its squared norm, formed in torch a few records at a time.

What is padded and unfolded lies in buffers that are made once and are small enough to stay in a cache.

Axes: B records, V views, G groups, C input and O output channels of one group, P places of the output, F places of the
filter.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from lehr.gradients.kernels.geometry import Geometry
from lehr.interfaces import at_least_float32

_CACHED_BYTES = 2 * 2**20
_FEWEST = 6  # records at once: each round costs a fifth of a millisecond, whatever it forms
_DEVICE_BYTES = 256 * 2**20


def formed(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> Tensor:  # noqa: N803
    """The gradients: one row per record, axes ``OFC`` of all groups."""
    grads: Tensor = _form(inputs_NCS, output_grads_NOP, *geometry.numbers(), geometry.groups, records, is_kept=True)
    return grads


def squared_norms(inputs_NCS: Tensor, output_grads_NOP: Tensor, geometry: Geometry, *, records: int) -> Tensor:  # noqa: N803
    """Of gradients that are formed and dropped."""
    norms: Tensor = _form(inputs_NCS, output_grads_NOP, *geometry.numbers(), geometry.groups, records, is_kept=False)
    return norms


@torch.library.custom_op("lehr::form_convolution", mutates_args=())
def _form(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    records: int,
    is_kept: bool,
) -> Tensor:
    geometry = Geometry(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups)
    found = _empty(inputs, output_grads, geometry, records, is_kept)
    views = inputs.shape[0] // records
    together = min(_together(inputs, output_grads, geometry, views), records)
    window = _Window(inputs, output_grads, geometry, num_images=together * views, views=views)
    grads, squares = (found.new_empty(0 if is_kept else together, window.num_numbers) for _ in range(2))
    for first in range(0, records, together):
        last = min(first + together, records)
        images = slice(first * views, last * views)
        own = found[first:last] if is_kept else grads[: last - first]
        window.multiply(inputs[images], output_grads[images], out=own)
        if not is_kept:
            torch.sum(torch.mul(own, own, out=squares[: last - first]), 1, out=found[first:last])
    return found


@_form.register_fake
def _(
    inputs: Tensor,
    output_grads: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
    records: int,
    is_kept: bool,
) -> Tensor:
    geometry = Geometry(tuple(kernel), tuple(stride), tuple(padding), tuple(dilation), groups)
    return _empty(inputs, output_grads, geometry, records, is_kept)


def _empty(inputs: Tensor, output_grads: Tensor, geometry: Geometry, records: int, is_kept: bool) -> Tensor:
    shape = (records, prod(geometry.weight_shape(inputs, output_grads))) if is_kept else (records,)
    return inputs.new_empty(shape, dtype=at_least_float32(inputs.dtype))


def _together(inputs: Tensor, output_grads: Tensor, geometry: Geometry, views: int) -> int:
    """How many records have their unfolded inputs in the cache at once."""
    unfolded = inputs.shape[1] * prod(geometry.kernel) * at_least_float32(inputs.dtype).itemsize
    record_bytes = views * prod(output_grads.shape[2:]) * unfolded
    return max(1, _DEVICE_BYTES // record_bytes) if inputs.is_cuda else max(_FEWEST, _CACHED_BYTES // record_bytes)


class _Window:
    """Padded images, and beside them what each place of the output meets of them."""

    def __init__(
        self, inputs: Tensor, output_grads: Tensor, geometry: Geometry, *, num_images: int, views: int
    ) -> None:
        self._geometry, self._views, self._places = geometry, views, tuple(output_grads.shape[2:])
        self.num_numbers = prod(geometry.weight_shape(inputs, output_grads))
        sizes = [size + 2 * more for size, more in zip(inputs.shape[2:], geometry.padding, strict=True)]
        dtype = at_least_float32(inputs.dtype)
        # The margin of zeros is written once; the images are written over one another within it.
        self._padded = inputs.new_zeros(num_images, *sizes, inputs.shape[1], dtype=dtype)
        pairs = zip(geometry.padding, inputs.shape[2:], strict=True)
        self._within = (slice(None), *(slice(more, more + size) for more, size in pairs))
        own = inputs.shape[1] // geometry.groups
        self._unfolded = inputs.new_empty(
            num_images // views, geometry.groups, views, *self._places, *geometry.kernel, own, dtype=dtype
        )

    def multiply(self, inputs: Tensor, output_grads: Tensor, *, out: Tensor) -> None:
        """Write the gradients of these records."""
        records, groups = out.shape[0], self._geometry.groups
        self._padded[: inputs.shape[0]][self._within].copy_(inputs.movedim(1, -1))
        unfolded = self._unfolded[:records]
        unfolded.copy_(self._met(records))
        outputs = output_grads.shape[1] // groups
        split = output_grads.reshape(records, self._views, groups, outputs, -1)
        left_GOP = split.permute(0, 2, 3, 1, 4).reshape(records * groups, outputs, -1).to(out.dtype)  # noqa: N806
        right_GPW = unfolded.reshape(records * groups, left_GOP.shape[2], -1)  # noqa: N806
        torch.bmm(left_GOP, right_GPW, out=out.view(records * groups, left_GOP.shape[1], right_GPW.shape[2]))

    def _met(self, records: int) -> Tensor:
        """The padded images seen through the filter, axes ``BGVPFC``, without copying them."""
        image, *spatial, channel = self._padded.stride()
        own = self._unfolded.shape[-1]
        steps = [stride * step for stride, step in zip(spatial, self._geometry.stride, strict=True)]
        reach = [stride * step for stride, step in zip(spatial, self._geometry.dilation, strict=True)]
        strides = (image * self._views, own * channel, image, *steps, *reach, channel)
        return self._padded.as_strided((records, *self._unfolded.shape[1:]), strides)
