"""Triton kernels for weights in bfloat16: of two-dimensional convolutions, and of linear layers on sequences.

``_formed_norms`` accumulates one tile of one record's weight gradient over space, squares it, and drops or keeps it.
``_gram_norms`` does the same from the products of places, where a record has few of them.
``_gram_sums`` is for a linear layer: all products between two tiles of positions, without storing one.
``_weighted_parts`` adds up the gradients of many images, each scaled by its weight, in float32; ``_weighted_outer``
does it for a linear layer, and ``_add_parts`` where several programs shared a tile. Forming the gradients of one works
as for a convolution with one filter place.

``geometry`` is a ``convolutions.Geometry``. Axes of a tile: O output channels, W columns (filter position times
input channel), P positions of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lehr.gradients.precision import ROUNDINGS

MULTIPROCESSORS = 132  # of a large GPU
LEAST_POSITIONS = 512  # that a program adds up, so that its sum is worth being stored


@triton.jit
def _input_tile(
    x_ptr, image, place, column, in_range, height, width,
    stride_n, stride_h, stride_w, stride_c,
    out_w: tl.constexpr, channels: tl.constexpr, kernel_w: tl.constexpr, columns: tl.constexpr,
    step_h: tl.constexpr, step_w: tl.constexpr, pad_h: tl.constexpr, pad_w: tl.constexpr,
    reach_h: tl.constexpr, reach_w: tl.constexpr, one_filter_place: tl.constexpr,
):  # fmt: skip
    """``[P, W]``: what the filter meets at these output places."""
    row = (place // out_w) * step_h - pad_h
    col = (place % out_w) * step_w - pad_w
    if one_filter_place:  # the whole tile lies in one place of the filter, so its offset is one number
        first = tl.min(column, 0)
        filter_place = first // channels
        row = row + (filter_place // kernel_w) * reach_h
        col = col + (filter_place % kernel_w) * reach_w
        inside = in_range & (row >= 0) & (row < height) & (col >= 0) & (col < width)
        offset = row * stride_h + col * stride_w
        address = offset[:, None] + (column - filter_place * channels)[None, :] * stride_c
        return tl.load(x_ptr + image * stride_n + address, mask=inside[:, None], other=0.0)
    filter_place = column // channels
    channel = column % channels
    rows = row[:, None] + ((filter_place // kernel_w) * reach_h)[None, :]
    cols = col[:, None] + ((filter_place % kernel_w) * reach_w)[None, :]
    inside = in_range[:, None] & (column < columns)[None, :]
    inside = inside & (rows >= 0) & (rows < height) & (cols >= 0) & (cols < width)
    address = rows * stride_h + cols * stride_w + channel[None, :] * stride_c
    return tl.load(x_ptr + image * stride_n + address, mask=inside, other=0.0)


@triton.jit
def _grad_tile(dy_ptr, image, place, output, in_range, stride_n, stride_p, stride_o, outputs: tl.constexpr):
    """``[P, O]``: the output gradients at these places."""
    inside = in_range[:, None] & (output < outputs)[None, :]
    address = place[:, None] * stride_p + output[None, :] * stride_o
    return tl.load(dy_ptr + image * stride_n + address, mask=inside, other=0.0)


@triton.jit
def _formed_norms(
    x_ptr, dy_ptr, out_ptr, grads_ptr, height, width, x_n, x_h, x_w, x_c, dy_n, dy_p, dy_o,
    is_kept: tl.constexpr, views: tl.constexpr,
    places: tl.constexpr, out_w: tl.constexpr, channels: tl.constexpr, outputs: tl.constexpr,
    kernel_w: tl.constexpr, columns: tl.constexpr, step_h: tl.constexpr, step_w: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr, reach_h: tl.constexpr, reach_w: tl.constexpr,
    one_filter_place: tl.constexpr, tile_o: tl.constexpr, tile_w: tl.constexpr, tile_p: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    record = tl.program_id(1).to(tl.int64)
    w_tiles: tl.constexpr = (columns + tile_w - 1) // tile_w
    output = (tile // w_tiles) * tile_o + tl.arange(0, tile_o)
    column = (tile % w_tiles) * tile_w + tl.arange(0, tile_w)
    blocks: tl.constexpr = (places + tile_p - 1) // tile_p
    grad = tl.zeros([tile_o, tile_w], dtype=tl.float32)
    for block in range(views * blocks):
        image = record * views + block // blocks
        place = (block % blocks) * tile_p + tl.arange(0, tile_p)
        in_range = place < places
        dy = _grad_tile(dy_ptr, image, place, output, in_range, dy_n, dy_p, dy_o, outputs)
        x = _input_tile(
            x_ptr, image, place, column, in_range, height, width, x_n, x_h, x_w, x_c, out_w, channels, kernel_w,
            columns, step_h, step_w, pad_h, pad_w, reach_h, reach_w, one_filter_place,
        )  # fmt: skip
        grad = tl.dot(tl.trans(dy), x, grad)
    tl.store(out_ptr + record * tl.num_programs(0) + tile, tl.sum(grad * grad))
    if is_kept:
        inside = (output < outputs)[:, None] & (column < columns)[None, :]
        address = (record * outputs + output)[:, None] * columns + column[None, :]
        tl.store(grads_ptr + address, grad, mask=inside)


@triton.jit
def _gram_norms(
    x_ptr, dy_ptr, out_ptr, height, width, x_n, x_h, x_w, x_c, dy_n, dy_p, dy_o,
    rounding: tl.constexpr, places: tl.constexpr, out_w: tl.constexpr, channels: tl.constexpr, outputs: tl.constexpr,
    kernel_w: tl.constexpr, columns: tl.constexpr, step_h: tl.constexpr, step_w: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr, reach_h: tl.constexpr, reach_w: tl.constexpr,
    one_filter_place: tl.constexpr, tile_o: tl.constexpr, tile_w: tl.constexpr, tile_p: tl.constexpr,
):  # fmt: skip
    record = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, tile_p)
    in_range = place < places
    after = tl.zeros([tile_p, tile_p], dtype=tl.float32)
    for first in range(0, outputs, tile_o):
        output = first + tl.arange(0, tile_o)
        dy = _grad_tile(dy_ptr, record, place, output, in_range, dy_n, dy_p, dy_o, outputs)
        after = tl.dot(dy, tl.trans(dy), after)
    before = tl.zeros([tile_p, tile_p], dtype=tl.float32)
    for first in range(0, columns, tile_w):
        column = first + tl.arange(0, tile_w)
        x = _input_tile(
            x_ptr, record, place, column, in_range, height, width, x_n, x_h, x_w, x_c, out_w, channels, kernel_w,
            columns, step_h, step_w, pad_h, pad_w, reach_h, reach_w, one_filter_place,
        )  # fmt: skip
        before = tl.dot(x, tl.trans(x), before)
    # Where places nearly cancel, the error is in proportion to their own squares and not to what is left.
    own_place = place[:, None] == place[None, :]
    products = before * after
    apart = tl.sum(tl.where(own_place, products, 0.0))
    tl.store(out_ptr + record, tl.maximum(tl.sum(products), 0.0) + rounding * apart)


@triton.jit
def _position_products(ptr, first, second, in_first, in_second, size, stride_t, stride_d, tile_d: tl.constexpr):
    """``[P, P]``: the products between the vectors at two tiles of positions."""
    products = tl.zeros([first.shape[0], second.shape[0]], dtype=tl.float32)
    for start in range(0, size, tile_d):
        d = start + tl.arange(0, tile_d)
        inside = (d < size)[None, :]
        one = tl.load(ptr + first[:, None] * stride_t + d[None, :] * stride_d, mask=in_first[:, None] & inside, other=0)
        other = tl.load(
            ptr + second[:, None] * stride_t + d[None, :] * stride_d, mask=in_second[:, None] & inside, other=0
        )
        products = tl.dot(one, tl.trans(other), products)
    return products


@triton.jit
def _gram_sums(
    x_ptr, dy_ptr, out_ptr, positions, inputs, outputs, lost, x_b, x_t, x_i, dy_b, dy_t, dy_o,
    tile_t: tl.constexpr, tile_d: tl.constexpr,
):  # fmt: skip
    row, column, record = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if row > column:  # the same products as those of the mirrored tile, which counts twice
        return
    first, second = row * tile_t + tl.arange(0, tile_t), column * tile_t + tl.arange(0, tile_t)
    in_first, in_second = first < positions, second < positions
    before = _position_products(x_ptr + record * x_b, first, second, in_first, in_second, inputs, x_t, x_i, tile_d)
    after = _position_products(dy_ptr + record * dy_b, first, second, in_first, in_second, outputs, dy_t, dy_o, tile_d)
    is_own = (first[:, None] == second[None, :]) & in_first[:, None]
    products = before * after
    # What squares may lose to underflow is added where they are asked for.
    before, after = tl.where(is_own, before + lost * inputs, 0.0), tl.where(is_own, after + lost * outputs, 0.0)
    stride = tl.num_programs(2) * tl.num_programs(0) * tl.num_programs(1)
    out = out_ptr + (record * tl.num_programs(0) + row) * tl.num_programs(1) + column
    tl.store(out, tl.sum(products) * tl.where(row == column, 1.0, 2.0))
    tl.store(out + stride, tl.sum(tl.where(is_own, products, 0.0)))
    tl.store(out + 2 * stride, tl.sum(tl.sqrt(before) * tl.sqrt(after)))
    tl.store(out + 3 * stride, tl.sum(after))
    tl.store(out + 4 * stride, tl.sum(before))


@triton.jit
def _weighted_parts(
    x_ptr, dy_ptr, weight_ptr, out_ptr, height, width, x_n, x_h, x_w, x_c, dy_n, dy_p, dy_o, images, together,
    places: tl.constexpr, out_w: tl.constexpr, channels: tl.constexpr, outputs: tl.constexpr,
    kernel_w: tl.constexpr, columns: tl.constexpr, step_h: tl.constexpr, step_w: tl.constexpr,
    pad_h: tl.constexpr, pad_w: tl.constexpr, reach_h: tl.constexpr, reach_w: tl.constexpr,
    one_filter_place: tl.constexpr, tile_o: tl.constexpr, tile_w: tl.constexpr, tile_p: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    part = tl.program_id(1)
    w_tiles: tl.constexpr = (columns + tile_w - 1) // tile_w
    output = (tile // w_tiles) * tile_o + tl.arange(0, tile_o)
    column = (tile % w_tiles) * tile_w + tl.arange(0, tile_w)
    blocks: tl.constexpr = (places + tile_p - 1) // tile_p
    first = part * together
    count = tl.minimum(together, images - first)
    total = tl.zeros([tile_o, tile_w], dtype=tl.float32)
    for block in range(count * blocks):
        image = (first + block // blocks).to(tl.int64)
        weight = tl.load(weight_ptr + image)
        place = (block % blocks) * tile_p + tl.arange(0, tile_p)
        in_range = place < tl.where(weight == weight, places, 0)
        dy = _grad_tile(dy_ptr, image, place, output, in_range, dy_n, dy_p, dy_o, outputs)
        x = _input_tile(
            x_ptr, image, place, column, in_range, height, width, x_n, x_h, x_w, x_c, out_w, channels, kernel_w,
            columns, step_h, step_w, pad_h, pad_w, reach_h, reach_w, one_filter_place,
        )  # fmt: skip
        # Weighed after the product, in float32: what is summed is then exactly what the norm was taken of.
        total += tl.where(weight == weight, weight, 0.0) * tl.dot(tl.trans(dy), x)
    inside = (output < outputs)[:, None] & (column < columns)[None, :]
    address = (part * outputs + output)[:, None] * columns + column[None, :]
    tl.store(out_ptr + address, total, mask=inside)


@triton.jit
def _weighted_outer(
    x_ptr, dy_ptr, weight_ptr, out_ptr, part_ptr, records, positions, inputs, outputs, rounds, rest, together,
    x_b, x_t, x_i, dy_b, dy_t, dy_o, has_even_tiles: tl.constexpr,
    tile_o: tl.constexpr, tile_w: tl.constexpr, tile_p: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    across, blocks = tl.cdiv(inputs, tile_w), tl.cdiv(positions, tile_p)
    # This program's part of the records of the tiles that are left after the rounds, taken one after the other.
    first = program * together
    last = tl.minimum(first + together, rest * records)
    visits = rounds + tl.where(first < last, (last - 1) // records - first // records + 1, 0)
    for visit in range(visits):
        number = first // records + visit - rounds
        is_in_round = visit < rounds
        tile = tl.where(is_in_round, visit * programs + program, rounds * programs + number)
        begin = tl.where(is_in_round, 0, tl.maximum(first - number * records, 0))
        end = tl.where(is_in_round, records, tl.minimum(last - number * records, records))
        rows, columns = tl.arange(0, tile_o), tl.arange(0, tile_w)
        output, column = (tile // across) * tile_o + rows, (tile % across) * tile_w + columns
        # What lies beyond the edge is computed from other columns, and not stored.
        dy_columns, x_columns = (output % outputs)[None, :] * dy_o, (column % inputs)[None, :] * x_i
        total = tl.zeros([tile_o, tile_w], dtype=tl.float32)
        of_record = tl.zeros([tile_o, tile_w], dtype=tl.float32)
        for block in range((end - begin) * blocks):
            record = (begin + block // blocks).to(tl.int64)
            place = (block % blocks) * tile_p + tl.arange(0, tile_p)
            dy_place, x_place = record * dy_b + place[:, None] * dy_t, record * x_b + place[:, None] * x_t
            if has_even_tiles:
                dy = tl.load(dy_ptr + dy_place + dy_columns)
                x = tl.load(x_ptr + x_place + x_columns)
            else:
                inside = (place < positions)[:, None]
                dy = tl.load(dy_ptr + dy_place + dy_columns, mask=inside, other=0.0)
                x = tl.load(x_ptr + x_place + x_columns, mask=inside, other=0.0)
            of_record = tl.dot(tl.trans(dy), x, of_record)
            if block % blocks == blocks - 1:
                # Weighed after the product, in float32: what is summed is then exactly what the norm was taken of. A
                # weight that is not a number marks a record that is not counted, whatever it holds.
                weight = tl.load(weight_ptr + record)
                total = tl.where(weight == weight, total + weight * of_record, total)
                of_record = tl.zeros([tile_o, tile_w], dtype=tl.float32)
        if (begin == 0) & (end == records):
            inside = (output < outputs)[:, None] & (column < inputs)[None, :]
            address = output.to(tl.int64)[:, None] * inputs + column[None, :]
            tl.store(out_ptr + address, total.to(tl.float64), mask=inside)
        else:
            slot = 2 * program + (begin == 0).to(tl.int32)
            tl.store(part_ptr + (slot * tile_o + rows)[:, None] * tile_w + columns[None, :], total)


@triton.jit
def _add_parts(
    part_ptr, out_ptr, records, inputs, outputs, before, together,
    tile_o: tl.constexpr, tile_w: tl.constexpr, rows_at_once: tl.constexpr,
):  # fmt: skip
    """Add up, in order, what several programs have left of one tile."""
    number, across = tl.program_id(0), tl.cdiv(inputs, tile_w)
    first, last = number * records // together, ((number + 1) * records - 1) // together
    if first == last:
        return
    tile = before + number
    rows, columns = tl.program_id(1) * rows_at_once + tl.arange(0, rows_at_once), tl.arange(0, tile_w)
    total = tl.zeros([rows_at_once, tile_w], dtype=tl.float64)
    for program in range(first, last + 1):
        slot = 2 * program + (program == first).to(tl.int32)
        part = tl.load(part_ptr + (slot * tile_o + rows)[:, None] * tile_w + columns[None, :])
        total += part.to(tl.float64)
    output, column = (tile // across) * tile_o + rows, (tile % across) * tile_w + columns
    inside = (output < outputs)[:, None] & (column < inputs)[None, :]
    tl.store(out_ptr + output.to(tl.int64)[:, None] * inputs + column[None, :], total, mask=inside)


@dataclass(frozen=True)
class Tiling:
    """The sizes of a tile and how a block works on it."""

    tile_o: int
    tile_w: int
    tile_p: int
    num_warps: int
    num_stages: int


def _at_most(value: int, largest: int) -> int:
    return min(max(16, 1 << (value - 1).bit_length()), largest)


def norm_tiling(channels: int, outputs: int, filter_places: int, places: int) -> Tiling:
    """The fastest found on an H200 for the shapes of the benchmark."""
    tile_o, columns = _at_most(outputs, 128), channels * filter_places
    if channels < 64 and tile_o <= 32:
        return Tiling(tile_o, _at_most(columns, 128), _at_most(places, 128), 4, 2)
    if channels < 64:
        return Tiling(_at_most(outputs, 64), _at_most(columns, 64), _at_most(places, 64), 4, 3)
    return Tiling(tile_o, _at_most(columns, 128), _at_most(places, 64), 8 if tile_o == 128 else 4, 3)


def gram_tiling(channels: int, outputs: int, filter_places: int, places: int) -> Tiling:
    """As ``norm_tiling``, for the products of places."""
    tile_w = _at_most(channels if channels >= 16 else channels * filter_places, 128)
    return Tiling(_at_most(outputs, 64), tile_w, _at_most(places, 64), 4, 3)


def sum_tiling(channels: int, outputs: int, filter_places: int, places: int) -> Tiling:
    """As ``norm_tiling``, for the weighted sum."""
    widest, most_places = (128, 128) if places > 64 else (64, 64)
    return Tiling(
        _at_most(outputs, 64), _at_most(channels * filter_places, widest), _at_most(places, most_places), 4, 3
    )


def _tiles(tiling: Tiling, outputs: int, columns: int) -> int:
    return ceil(outputs / tiling.tile_o) * ceil(columns / tiling.tile_w)


def splits(images: int, channels: int, outputs: int, filter_places: int, places: int) -> int:
    """Enough partial sums to give each of a large GPU's 132 multiprocessors a few blocks."""
    tiles = _tiles(sum_tiling(channels, outputs, filter_places, places), outputs, channels * filter_places)
    blocks = 132 * (4 if places > 64 else 8)
    together = ceil(images / min(images, ceil(blocks / tiles)))
    return ceil(images / together)


def squared_norms(
    inputs: Tensor, output_grads: Tensor, geometry: Any, records: int, *, gram: bool | None = None
) -> Tensor:
    """Per record, in float32: by the products of positions where that takes fewer multiplications, else by forming."""
    (images, channels, height, width), outputs = inputs.shape, output_grads.shape[1]
    places, columns = prod(output_grads.shape[2:]), channels * prod(geometry.kernel)
    output_grads = _in_rows(output_grads)
    if gram is None:
        gram = images == records and places <= 64 and places * (outputs + columns) < outputs * columns
    if not gram:
        return _form(inputs, output_grads, None, geometry, records)
    norms = inputs.new_empty(records, dtype=torch.float32)
    _gram_norms[(records,)](
        inputs, output_grads, norms, height, width, *_strides(inputs, output_grads),
        **_shape(inputs, output_grads, geometry),
        **_options(gram_tiling(channels, outputs, prod(geometry.kernel), places), channels),
        rounding=ROUNDINGS * torch.finfo(torch.float32).eps,
    )  # fmt: skip
    return norms


def formed(inputs: Tensor, output_grads: Tensor, geometry: Any, records: int) -> tuple[Tensor, Tensor]:
    """Every record's gradient, ``[records, outputs, columns]``, and its squared norm, both in float32."""
    columns = inputs.shape[1] * prod(geometry.kernel)
    grads = inputs.new_empty(records, output_grads.shape[1], columns, dtype=torch.float32)
    return grads, _form(inputs, output_grads, grads, geometry, records)


def _form(inputs: Tensor, output_grads: Tensor, grads: Tensor | None, geometry: Any, records: int) -> Tensor:
    (images, channels, height, width), outputs = inputs.shape, output_grads.shape[1]
    output_grads = _in_rows(output_grads)
    tiling = norm_tiling(channels, outputs, prod(geometry.kernel), prod(output_grads.shape[2:]))
    tiles = _tiles(tiling, outputs, channels * prod(geometry.kernel))
    norms = inputs.new_empty(records, tiles, dtype=torch.float32)
    _formed_norms[(tiles, records)](
        inputs, output_grads, norms, norms if grads is None else grads, height, width,
        *_strides(inputs, output_grads), is_kept=grads is not None, views=images // records,
        **_shape(inputs, output_grads, geometry), **_options(tiling, channels),
    )  # fmt: skip
    return norms.sum(1)


def weighted_parts(inputs: Tensor, output_grads: Tensor, geometry: Any, weights: Tensor) -> Tensor:
    """``[parts, outputs, columns]``: partial sums over the images, in float32."""
    (images, channels, height, width), outputs = inputs.shape, output_grads.shape[1]
    filter_size, places = prod(geometry.kernel), prod(output_grads.shape[2:])
    columns = channels * filter_size
    output_grads = _in_rows(output_grads)
    tiling = sum_tiling(channels, outputs, filter_size, places)
    parts = splits(images, channels, outputs, filter_size, places)
    sums = inputs.new_empty(parts, outputs, columns, dtype=torch.float32)
    _weighted_parts[(_tiles(tiling, outputs, columns), parts)](
        inputs, output_grads, weights, sums, height, width, *_strides(inputs, output_grads),
        images, ceil(images / parts), **_shape(inputs, output_grads, geometry), **_options(tiling, channels),
    )  # fmt: skip
    return sums


def outer_tiling(inputs: int, outputs: int, positions: int) -> Tiling:
    """As ``norm_tiling``, for the weighted sum of a linear layer."""
    tile_o, tile_w, tile_p = _at_most(outputs, 128), _at_most(inputs, 128), _at_most(positions, 64)
    return Tiling(tile_o, tile_w, tile_p, 8 if tile_o * tile_w > 64 * 128 else 4, 4)


def weighted_outer(
    inputs_BTI: Tensor, output_grads_BTO: Tensor, weights_B: Tensor, *, programs: int = MULTIPROCESSORS
) -> Tensor:
    """``[outputs, inputs]``, in float64: the sum over records of their gradients, each scaled by its weight.

    The programs take whole tiles in turn, as long as there is one for each. Of the tiles that are left, each takes as
    many records as the others.
    """
    (records, positions, inputs), outputs = inputs_BTI.shape, output_grads_BTO.shape[2]
    tiling = outer_tiling(inputs, outputs, positions)
    tiles = _tiles(tiling, outputs, inputs)
    rounds, rest = divmod(tiles, programs)
    together = max(ceil(rest * records / programs), ceil(LEAST_POSITIONS / positions))
    total = inputs_BTI.new_empty(outputs, inputs, dtype=torch.float64)
    parts = inputs_BTI.new_empty(programs, 2, tiling.tile_o, tiling.tile_w, dtype=torch.float32)
    _weighted_outer[(programs,)](
        inputs_BTI, output_grads_BTO, weights_B, total, parts, records, positions, inputs, outputs,
        rounds, rest, together, *inputs_BTI.stride(), *output_grads_BTO.stride(),
        has_even_tiles=positions % tiling.tile_p == 0,
        tile_o=tiling.tile_o, tile_w=tiling.tile_w, tile_p=tiling.tile_p,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    if rest:
        rows = min(tiling.tile_o, 16)
        _add_parts[(rest, tiling.tile_o // rows)](
            parts, total, records, inputs, outputs, rounds * programs, together,
            tile_o=tiling.tile_o, tile_w=tiling.tile_w, rows_at_once=rows,
        )  # fmt: skip
    return total


def position_tiling(positions: int) -> Tiling:
    """As ``norm_tiling``, for the products between positions."""
    tile = _at_most(positions, 128)
    return Tiling(tile, 64, tile, 8 if tile == 128 else 4, 4)


GRAM_SUMS = 5


def gram_sums(inputs_BTI: Tensor, output_grads_BTO: Tensor) -> Tensor:
    """``[5, records]``, sums over the positions of a sequence, from which its norm follows.

    All products between positions of the input times those of the output gradient; those of a position with itself;
    the lengths of both at each position, multiplied; squares of the output gradients; squares of the inputs.
    """
    (records, positions, inputs), outputs = inputs_BTI.shape, output_grads_BTO.shape[2]
    tiling = position_tiling(positions)
    tiles = ceil(positions / tiling.tile_p)
    sums = inputs_BTI.new_zeros(GRAM_SUMS, records, tiles * tiles, dtype=torch.float32)
    _gram_sums[(tiles, tiles, records)](
        inputs_BTI, output_grads_BTO, sums, positions, inputs, outputs, torch.finfo(torch.float32).tiny,
        *inputs_BTI.stride(), *output_grads_BTO.stride(), tile_t=tiling.tile_p, tile_d=tiling.tile_w,
        num_warps=tiling.num_warps, num_stages=tiling.num_stages,
    )  # fmt: skip
    return sums.sum(2)


def _in_rows(output_grads: Tensor) -> Tensor:
    """Places at equal distances in memory, which the kernels count on; a backward pass may leave them otherwise."""
    (height, width), (row, column) = output_grads.shape[2:], output_grads.stride()[2:]
    if height == 1 or width == 1 or row == width * column:
        return output_grads
    return output_grads.contiguous(memory_format=torch.channels_last)


def _strides(inputs: Tensor, output_grads: Tensor) -> tuple[int, ...]:
    x_n, x_c, x_h, x_w = inputs.stride()
    place = output_grads.stride(3 if output_grads.shape[3] > 1 else 2)
    return x_n, x_h, x_w, x_c, output_grads.stride(0), place, output_grads.stride(1)


def _shape(inputs: Tensor, output_grads: Tensor, geometry: Any) -> dict[str, int]:
    (step_h, step_w), (pad_h, pad_w), (reach_h, reach_w) = geometry.stride, geometry.padding, geometry.dilation
    return {
        "places": prod(output_grads.shape[2:]), "out_w": output_grads.shape[3], "channels": inputs.shape[1],
        "outputs": output_grads.shape[1], "kernel_w": geometry.kernel[1],
        "columns": inputs.shape[1] * prod(geometry.kernel), "step_h": step_h, "step_w": step_w,
        "pad_h": pad_h, "pad_w": pad_w, "reach_h": reach_h, "reach_w": reach_w,
    }  # fmt: skip


def _options(tiling: Tiling, channels: int) -> dict[str, int | bool]:
    return {
        "one_filter_place": channels % tiling.tile_w == 0, "tile_o": tiling.tile_o, "tile_w": tiling.tile_w,
        "tile_p": tiling.tile_p, "num_warps": tiling.num_warps, "num_stages": tiling.num_stages,
    }  # fmt: skip
