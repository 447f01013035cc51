"""The weight of a convolution: norms and weighted sums of per-record gradients, in torch; on a GPU also in Triton.

    Geometry       which input positions a filter meets
    Convolved      the contribution; public shape alone decides which way is the cheapest on this device
    form           gradients formed a few records at a time, in buffers small enough for a cache
    triton_...     calls of ``triton_kernels``, which is imported when first used

Axes: B records, V views, N images (records times views), G groups, C input channels, O output channels, S and P
positions before and after, F filter positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lehr.gradients.precision import (
    RECORDS_AT_ONCE,
    batched_product,
    everybody_counts,
    keep,
    records_at_once,
    rounding_of,
    rounding_of_sum,
    squares_at_most,
    sum_of_squares,
    sum_over_records,
    weigh,
    weighted_rows_of,
)
from lehr.interfaces import at_least_float32

# On a GPU, gradients that take fewer bytes than this are kept whatever else; a cache holds as many on a CPU. With more
# positions than this they are kept where they take about as many bytes as the images, or fewer.
_LITTLE_BYTES = 32 * 2**20
_MANY_POSITIONS = 512
_CACHED_BYTES = 2 * 2**20
_FEW_POSITIONS = 8
_FEWEST = 6  # records at once: each round costs a fifth of a millisecond, whatever it forms
_DEVICE_BYTES = 256 * 2**20
# torch multiplies matrices of float32 on a CPU by MKL, which is half as fast as oneDNN on some processors. oneDNN takes
# one product at a time, and so long to begin one that only these many multiplications are worth it.
_MANY = 2 * 10**6
_LINEAR: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
HAS_TRITON = find_spec("triton") is not None


@dataclass(frozen=True)
class Geometry:
    """One entry per spatial axis; ``padding`` is with zeros."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    def weight_shape(self, inputs_NCS: Tensor, output_grads_NOP: Tensor) -> tuple[int, ...]:
        """The shape of the weight: output channels, input channels of one group, filter."""
        return (output_grads_NOP.shape[1], inputs_NCS.shape[1] // self.groups, *self.kernel)

    def flat(self) -> list[int]:
        """All numbers in one list, for torch's operators; ``Geometry.of`` reads it."""
        return [self.groups, *self.kernel, *self.stride, *self.padding, *self.dilation]

    @classmethod
    def of(cls, flat: list[int]) -> Geometry:
        axes = len(flat) // 4
        kernel, stride, padding, dilation = (tuple(flat[1 + at * axes : 1 + (at + 1) * axes]) for at in range(4))
        return cls(kernel, stride, padding, dilation, flat[0])


ONE_PLACE = Geometry((1, 1), (1, 1), (0, 0), (1, 1))


def as_images(values_BTD: Tensor) -> Tensor:
    """Sequences as images of one column, on which a linear layer is a convolution with one filter place."""
    return values_BTD.transpose(1, 2).unsqueeze(3)


@dataclass(eq=False)
class Convolved:
    """The inputs, already padded where the padding is not with zeros, and the gradients of the outputs.

    Each record's gradient is a correlation of the two. Its norm is taken by forming it, or by products of positions
    (Bu et al. 2022, "Scalable and Efficient Training of Large Convolutional Neural Networks with Differential
    Privacy"). Where that is cheaper, every record's gradient is kept from its norm to the sum.
    """

    inputs_NCS: Tensor  # noqa: N815
    output_grads_NOP: Tensor  # noqa: N815
    geometry: Geometry
    records: int
    _kept: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.geometry.weight_shape(self.inputs_NCS, self.output_grads_NOP)

    @property
    def views(self) -> int:
        return self.inputs_NCS.shape[0] // max(1, self.records)

    def squared_norms(self) -> Tensor:
        """Per record, in float32 or better."""
        if not self.output_grads_NOP.numel():
            return self._zeros(self.records)
        if self.keeping_pays():
            return self.formed()[1]
        if self.is_for_triton():
            squares_B: Tensor = triton_norms(*self._arguments())
        elif self.gram_is_cheaper():
            squares_B = self.squares_by_gram()
        else:
            squares_B = _operator(form, form_operator)(*self._arguments(), is_kept=False)[1]
            if self.sum_is_formed():  # of the very same numbers
                return squares_B
        return squares_B + self._lost()

    def weighted_sum(self, weights_B: Tensor, counted_B: Tensor) -> Tensor:
        """In float32 or better. A record that is not counted adds exactly nothing, whatever it holds."""
        if not self.output_grads_NOP.numel():
            return self._zeros(*self.shape)
        if self.keeping_pays():
            return self._channels_first(weighted_rows_of(self.formed()[0], weights_B, counted_B))
        if self.sum_is_formed():
            marked_B = weights_B if everybody_counts(counted_B) else torch.where(counted_B, weights_B, torch.nan)
            factors = (self.inputs_NCS, self.output_grads_NOP, self.geometry.flat(), marked_B)
            summed: Tensor = _operator(sum_of_formed, sum_operator)(*factors)
            return self._channels_first(summed.reshape(self.shape[0], prod(self.geometry.kernel), -1))
        positions = self.views * prod(self.output_grads_NOP.shape[2:])
        is_whole = self.inputs_NCS.is_cuda and self.inputs_NCS.dtype is not torch.float64
        at_once = self.records if is_whole else records_at_once(self.inputs_NCS.dtype, positions=positions)

        def sum_of(some: slice) -> Tensor:
            part = self.taken(some.start, min(some.stop, self.records))
            return part.sum_at_once(*(values[some].repeat_interleave(self.views) for values in (weights_B, counted_B)))

        return sum_over_records(self.records, sum_of, at_once=at_once)

    def materialised(self) -> Tensor:
        if not self.output_grads_NOP.numel():
            return self._zeros(self.records, *self.shape)
        if self._kept is not None or self.is_for_triton() or torch.compiler.is_compiling():
            return self._channels_first(self.formed()[0])
        grads, _ = _form_result(*self._arguments(), is_kept=True)
        for _ in _formed(*self._arguments(), into=grads):
            pass
        outputs = self.output_grads_NOP.shape[1]
        return self._channels_first(grads.view(self.records, outputs, prod(self.geometry.kernel), -1))

    def taken(self, first: int, last: int) -> Convolved:
        images = slice(first * self.views, last * self.views)
        return Convolved(self.inputs_NCS[images], self.output_grads_NOP[images], self.geometry, last - first)

    def is_for_triton(self) -> bool:
        """Whether the Triton kernels know this convolution: two-dimensional, ungrouped, bfloat16, on a GPU."""
        is_narrow = self.inputs_NCS.dtype == self.output_grads_NOP.dtype == torch.bfloat16
        is_plain = self.inputs_NCS.dim() == 4 and self.geometry.groups == 1
        return HAS_TRITON and self.inputs_NCS.is_cuda and is_narrow and is_plain

    def keeping_pays(self) -> bool:
        """Whether reading every record's gradient again costs less than forming their sum.

        On a GPU that is so where many positions make one small gradient, and where the gradients are no larger than the
        images that need not be kept then; on a CPU wherever they had to be formed for their norms anyway and are no
        larger than twice the images, or in a cache four times.
        """
        inputs, grads = self.inputs_NCS, self.output_grads_NOP
        kept = at_least_float32(inputs.dtype).itemsize * prod(self.shape)
        held = inputs.element_size() * self.views * (inputs[0].numel() + grads[0].numel())
        if not inputs.is_cuda:
            is_small = kept <= 2 * held or (kept <= 4 * held and kept * self.records <= _LITTLE_BYTES)
            return is_small and not self.gram_is_cheaper()
        many_positions = self.views * prod(grads.shape[2:]) >= _MANY_POSITIONS
        return kept * self.records <= _LITTLE_BYTES or (many_positions and 4 * kept <= 5 * held)

    def sum_is_formed(self) -> bool:
        """Whether each record's gradient is formed before it is added to the sum, although its norm is known.

        On a CPU, where a sum over positions of all records would be taken in float64. With few positions, one product
        for all records takes less than one gradient each.
        """
        positions = self.views * prod(self.output_grads_NOP.shape[2:])
        return not self.inputs_NCS.is_cuda and positions >= _FEW_POSITIONS

    def gram_is_cheaper(self) -> bool:
        """Whether the products of positions take fewer multiplications than forming the gradient."""
        padded = [s + 2 * p for s, p in zip(self.inputs_NCS.shape[2:], self.geometry.padding, strict=True)]
        before, after = self.views * prod(padded), self.views * prod(self.output_grads_NOP.shape[2:])
        channels, outputs = self.inputs_NCS.shape[1], self.output_grads_NOP.shape[1]
        filter_size, groups = prod(self.geometry.kernel), self.geometry.groups
        by_positions = before**2 * channels + after**2 * (outputs + filter_size * groups)
        return by_positions < after * channels * outputs * filter_size // groups

    def squares_by_gram(self) -> Tensor:
        """Squared norms from the products of positions among themselves, summed over the filter."""
        padded, geometry = self.inputs_NCS, self.geometry
        if any(geometry.padding):
            padded = functional.pad(padded, [amount for amount in reversed(geometry.padding) for _ in range(2)])
        gram_before, gram_after = self._gram(padded), self._gram(self.output_grads_NOP)
        met = torch.zeros_like(gram_after)
        for position in product(*map(range, geometry.kernel)):
            # The part of the products before the convolution that this filter position meets.
            steps = zip(position, geometry.dilation, geometry.stride, self.output_grads_NOP.shape[2:], strict=True)
            across = [slice(at * apart, at * apart + step * (size - 1) + 1, step) for at, apart, step, size in steps]
            met = met + gram_before[(slice(None), slice(None), *across, slice(None), *across)]
        positions = self.views * prod(self.output_grads_NOP.shape[2:])
        squares = (gram_after * met).reshape(self.records, -1).sum(1).clamp_min(0)
        own = [gram.reshape(-1, positions, positions).diagonal(dim1=1, dim2=2) for gram in (gram_after, met)]
        return squares + rounding_of((own[0] * own[1]).reshape(self.records, -1).sum(1))

    def _gram(self, values_NCS: Tensor) -> Tensor:
        """The products of all positions of a record and group, each as views and space."""
        groups, channels = self.geometry.groups, values_NCS.shape[1] // self.geometry.groups
        split = values_NCS.reshape(self.records, self.views, groups, channels, -1)
        rows = split.permute(0, 2, 1, 4, 3).reshape(self.records * groups, -1, channels)
        sizes = (self.views, *values_NCS.shape[2:])
        return batched_product(rows, rows.transpose(1, 2)).reshape(-1, *sizes, *sizes)

    def formed(self) -> tuple[Tensor, Tensor]:
        """Every record's gradient, ``grads_BOFC``, and its squared norm."""
        if self._kept is None:
            if self.is_for_triton():
                grads, norms = triton_formed(*self._arguments())
            else:
                grads, norms = _operator(form, form_operator)(*self._arguments(), is_kept=True)
            outputs = self.output_grads_NOP.shape[1]
            self._kept = grads.reshape(self.records, outputs, prod(self.geometry.kernel), -1), norms
        return self._kept

    def sum_at_once(self, weights_N: Tensor, counted_N: Tensor) -> Tensor:
        """The sum over images of their gradients, each scaled by its weight."""
        inputs, grads = self.inputs_NCS, self.output_grads_NOP
        if self.is_for_triton():
            return self.sum_by_triton(weights_N, counted_N)
        # A sum that is rounded to bfloat16 moves by more than one record's worth, so the factors are widened first; and
        # on a CPU to float64: see precision.records_at_once.
        dtype = at_least_float32(inputs.dtype) if inputs.is_cuda else torch.float64
        factors = keep(inputs, counted_N).to(dtype), weigh(grads, weights_N, counted_N).to(dtype)
        summed: Tensor = (_unrounded_sum if inputs.is_cuda else _plain_sum)(*factors, self.geometry.flat())
        return summed

    def sum_by_triton(self, weights_N: Tensor, counted_N: Tensor) -> Tensor:
        # A weight that is not a number marks an image that is not counted; the kernel then does not load it at all.
        marked = torch.where(counted_N, weights_N.float(), torch.nan)
        parts: Tensor = triton_parts(self.inputs_NCS, self.output_grads_NOP, self.geometry.flat(), marked)
        outputs, channels = self.output_grads_NOP.shape[1], self.inputs_NCS.shape[1]
        return parts.sum(0, dtype=torch.float64).reshape(outputs, *self.geometry.kernel, channels).permute(0, 3, 1, 2)

    def _lost(self) -> Tensor:
        """What rounding and underflow can hide from a norm that is taken apart from the sum (Cauchy and Schwarz)."""
        before_B, after_B = self._squares(self.inputs_NCS), self._squares(self.output_grads_NOP)
        tiny = torch.finfo(before_B.dtype).tiny
        before, after = (tiny * values[0].numel() * self.views for values in (self.inputs_NCS, self.output_grads_NOP))
        lengths_B, dtype = before_B.sqrt() * after_B.sqrt(), self.output_grads_NOP.dtype
        # A gradient that is formed for the sum alone is longer than its norm by what forming it rounds.
        terms = self.views * prod(self.output_grads_NOP.shape[2:]) if self.sum_is_formed() else 0
        longer = terms * math.sqrt(prod(self.geometry.kernel))
        rounding_B = rounding_of_sum(lengths_B, dtype, before_B.device, terms=longer)
        return rounding_B.add(before_B, alpha=after).add(after_B, alpha=before)

    def _squares(self, values_NCS: Tensor) -> Tensor:
        """Of each record. Image by image first, since that leaves the memory format alone."""
        of_images = squares_at_most(values_NCS, range(1, values_NCS.dim()))
        return of_images if self.views == 1 else of_images.reshape(self.records, self.views).sum(1)

    def _arguments(self) -> tuple[Tensor, Tensor, list[int], int]:
        return self.inputs_NCS, self.output_grads_NOP, self.geometry.flat(), self.records

    def _channels_first(self, grads_OFC: Tensor) -> Tensor:
        channels_first = grads_OFC.movedim(-1, -2)
        return channels_first.reshape(*channels_first.shape[:-1], *self.geometry.kernel)

    def _zeros(self, *shape: int) -> Tensor:
        return self.output_grads_NOP.new_zeros(shape, dtype=at_least_float32(self.output_grads_NOP.dtype))


def more_views(uses: Sequence[Convolved]) -> Convolved:
    """To the weight a second use on images of the same size is one more view of the record."""
    records = uses[0].records
    inputs, output_grads = (
        torch.cat([values.view(records, use.views, *values.shape[1:]) for use, values in column], dim=1)
        for column in ([(use, use.inputs_NCS) for use in uses], [(use, use.output_grads_NOP) for use in uses])
    )
    return Convolved(inputs.flatten(0, 1), output_grads.flatten(0, 1), uses[0].geometry, records)


@torch.library.custom_op("lehr::convolution_sum", mutates_args=())
def _unrounded_sum(inputs: Tensor, output_grads: Tensor, geometry: list[int]) -> Tensor:
    """Without TF32, which torch uses for convolutions unless told otherwise: a record can be made to round one way."""
    as_they_are = {"enabled": None, "benchmark": None, "benchmark_limit": None, "deterministic": None}
    with torch.backends.cudnn.flags(allow_tf32=False, fp32_precision=None, **as_they_are):
        return _plain_sum(inputs, output_grads, geometry).contiguous()


@_unrounded_sum.register_fake
def _(inputs: Tensor, output_grads: Tensor, geometry: list[int]) -> Tensor:
    return inputs.new_empty(Geometry.of(geometry).weight_shape(inputs, output_grads))


def _plain_sum(inputs: Tensor, output_grads: Tensor, geometry: list[int]) -> Tensor:
    of = Geometry.of(geometry)
    weight = inputs.new_empty(1).expand(of.weight_shape(inputs, output_grads))
    settings = (of.stride, of.padding, of.dilation, False, [0] * len(of.kernel), of.groups)
    summed: Tensor
    _, summed, _ = torch.ops.aten.convolution_backward(
        output_grads, inputs, weight, None, *settings, (False, True, False)
    )
    return summed


def form(
    inputs: Tensor, output_grads: Tensor, geometry: list[int], records: int, is_kept: bool
) -> tuple[Tensor, Tensor]:
    """Every record's gradient, one row for each, axes ``OFC`` of all groups, and its squared norm; or that alone."""
    grads, squares = _form_result(inputs, output_grads, geometry, records, is_kept)
    channels = inputs.shape[1] // geometry[0]
    for some, own in _formed(inputs, output_grads, geometry, records, into=grads if is_kept else None):
        squares[some] = sum_of_squares(own.view(len(own), -1, channels))
    return grads, squares


def _form_result(
    inputs: Tensor, output_grads: Tensor, geometry: list[int], records: int, is_kept: bool
) -> tuple[Tensor, Tensor]:
    numbers, dtype = prod(Geometry.of(geometry).weight_shape(inputs, output_grads)), at_least_float32(inputs.dtype)
    return inputs.new_empty(records if is_kept else 0, numbers, dtype=dtype), inputs.new_empty(records, dtype=dtype)


def sum_of_formed(inputs: Tensor, output_grads: Tensor, geometry: list[int], weights: Tensor) -> Tensor:
    """The sum of every record's gradient, formed by itself, times its weight, axes ``OFC``, in float64.

    A weight that is not a number marks a record that is not counted. In float32 at most ``RECORDS_AT_ONCE`` are added.
    """
    total = _sum_result(inputs, output_grads, geometry, weights).zero_()
    part, added = torch.zeros_like(total, dtype=at_least_float32(inputs.dtype)), 0
    exact, counted = weights.to(part.dtype), ~weights.isnan()
    for some, own in _formed(inputs, output_grads, geometry, len(weights)):
        if added + len(own) > RECORDS_AT_ONCE:
            total += part
            part, added = part.zero_(), 0
        part.addmv_(keep(own, counted[some]).T, keep(exact[some], counted[some]))
        added += len(own)
    return total + part


def _sum_result(inputs: Tensor, output_grads: Tensor, geometry: list[int], weights: Tensor) -> Tensor:
    numbers = prod(Geometry.of(geometry).weight_shape(inputs, output_grads))
    return inputs.new_empty(numbers, dtype=torch.float64)


form_operator = torch.library.custom_op("lehr::form_convolution", form, mutates_args=())
form_operator.register_fake(_form_result)
sum_operator = torch.library.custom_op("lehr::sum_of_formed_convolutions", sum_of_formed, mutates_args=())
sum_operator.register_fake(_sum_result)


def _operator(function: Callable[..., Any], operator: Any) -> Any:
    """The operator for a compiler; otherwise the function, since an operator takes long to begin."""
    return operator if torch.compiler.is_compiling() else function


def _formed(
    inputs: Tensor, output_grads: Tensor, geometry: list[int], records: int, *, into: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Some records and their gradients, round by round; without a place to put them ``into``, they are overwritten."""
    of, dtype = Geometry.of(geometry), at_least_float32(inputs.dtype)
    views, groups = inputs.shape[0] // records, of.groups
    channels, outputs, places = inputs.shape[1] // groups, output_grads.shape[1] // groups, output_grads.shape[2:]
    columns = channels * prod(of.kernel)
    # As many records as have their unfolded inputs in the cache at once.
    record_bytes = views * prod(places) * groups * columns * dtype.itemsize
    fitting = max(1, _DEVICE_BYTES // record_bytes) if inputs.is_cuda else max(_FEWEST, _CACHED_BYTES // record_bytes)
    # Whatever the gradients are formed for, they are formed in the same rounds, and so rounded in the same way.
    together = min(fitting, records if inputs.is_cuda else min(records, RECORDS_AT_ONCE))
    # The margin of zeros is written once; the images are written over one another within it.
    sizes = [size + 2 * more for size, more in zip(inputs.shape[2:], of.padding, strict=True)]
    padded = inputs.new_zeros(together * views, *sizes, inputs.shape[1], dtype=dtype)
    within = [slice(more, more + size) for more, size in zip(of.padding, inputs.shape[2:], strict=True)]
    # The padded images seen through the filter, axes ``BGVPFC``, without copying them.
    unfolded = inputs.new_empty(together, groups, views, *places, *of.kernel, channels, dtype=dtype)
    image, *spatial, channel = padded.stride()
    steps, reach = ([s * by for s, by in zip(spatial, each, strict=True)] for each in (of.stride, of.dilation))
    met = padded.as_strided(unfolded.shape, (image * views, channels * channel, image, *steps, *reach, channel))
    multiplications = outputs * columns * views * prod(places)
    is_alone = _LINEAR is not None and inputs.device.type == "cpu" and dtype is torch.float32
    is_alone = is_alone and groups == 1 and multiplications >= _MANY
    grads = inputs.new_empty(0 if is_alone or into is not None else together, groups * outputs * columns, dtype=dtype)
    for first in range(0, records, together):
        some = slice(first, min(first + together, records))
        count, images = some.stop - first, slice(first * views, some.stop * views)
        padded[(slice(count * views), *within)].copy_(inputs[images].movedim(1, -1))
        unfolded[:count].copy_(met[:count])
        split = output_grads[images].reshape(count, views, groups, outputs, -1)
        left_GOP = split.permute(0, 2, 3, 1, 4).reshape(count * groups, outputs, -1).to(dtype)
        right_GPW = unfolded[:count].reshape(count * groups, left_GOP.shape[2], columns)
        if not is_alone:
            own = grads[:count] if into is None else into[some]
            torch.bmm(left_GOP, right_GPW, out=own.view(count * groups, outputs, columns))
            yield some, own
            continue
        for at in range(count):
            one = slice(first + at, first + at + 1)
            product_OW = _LINEAR(left_GOP[at], right_GPW[at].T, None, "none", [], "")
            if into is not None:
                into[one] = product_OW.view(1, -1)
            yield one, product_OW.view(1, -1)  # still in the cache


def _triton(name: str, last: str, returns: str) -> Callable[[Callable[..., Any]], Any]:
    """An operator that calls the function of this name in ``triton_kernels``; what it decorates gives the shapes."""

    def call(inputs: Tensor, output_grads: Tensor, geometry: list[int], last: Any) -> Any:
        from lehr.gradients import triton_kernels

        return getattr(triton_kernels, name)(inputs, output_grads, Geometry.of(geometry), last)

    def register(fake: Callable[..., Any]) -> Any:
        schema = f"(Tensor inputs, Tensor output_grads, int[] geometry, {last}) -> {returns}"
        operator = torch.library.custom_op(f"lehr::convolution_{name}", call, mutates_args=(), schema=schema)
        operator.register_fake(fake)
        return operator

    return register


@_triton("squared_norms", "int records", "Tensor")
def triton_norms(inputs: Tensor, output_grads: Tensor, geometry: list[int], records: int) -> Tensor:
    return inputs.new_empty(records, dtype=torch.float32)


@_triton("formed", "int records", "(Tensor, Tensor)")
def triton_formed(inputs: Tensor, output_grads: Tensor, geometry: list[int], records: int) -> tuple[Tensor, Tensor]:
    columns = prod(Geometry.of(geometry).kernel) * inputs.shape[1]
    grads = inputs.new_empty(records, output_grads.shape[1], columns, dtype=torch.float32)
    return grads, inputs.new_empty(records, dtype=torch.float32)


@_triton("weighted_parts", "Tensor weights", "Tensor")
def triton_parts(inputs: Tensor, output_grads: Tensor, geometry: list[int], weights: Tensor) -> Tensor:
    from lehr.gradients import triton_kernels

    filter_size, positions = prod(Geometry.of(geometry).kernel), prod(output_grads.shape[2:])
    parts = triton_kernels.splits(inputs.shape[0], inputs.shape[1], output_grads.shape[1], filter_size, positions)
    return inputs.new_empty(parts, output_grads.shape[1], filter_size * inputs.shape[1], dtype=torch.float32)


# Linear layers on sequences.


@torch.library.custom_op("lehr::gram_sums", mutates_args=())
def gram_sums(inputs: Tensor, output_grads: Tensor) -> Tensor:
    from lehr.gradients import triton_kernels

    return triton_kernels.gram_sums(inputs, output_grads)


@gram_sums.register_fake
def _(inputs: Tensor, output_grads: Tensor) -> Tensor:
    return inputs.new_empty(5, inputs.shape[0], dtype=torch.float32)


@torch.library.custom_op("lehr::weighted_outer", mutates_args=())
def weighted_outer(inputs: Tensor, output_grads: Tensor, weights: Tensor) -> Tensor:
    from lehr.gradients import triton_kernels

    return triton_kernels.weighted_outer(inputs, output_grads, weights)


@weighted_outer.register_fake
def _(inputs: Tensor, output_grads: Tensor, weights: Tensor) -> Tensor:
    return inputs.new_empty(output_grads.shape[2], inputs.shape[2], dtype=torch.float64)
