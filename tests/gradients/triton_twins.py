"""Measures how far the Triton kernels are from a loop over records: on a GPU as they are, elsewhere by an interpreter.

The interpreter has to be chosen before Triton is loaded, so this runs as a program of its own and prints JSON:
``TRITON_INTERPRET=1 python -m tests.gradients.triton_twins``. It has no bfloat16 products; there, float32 stands in.
"""

from __future__ import annotations

import json
from math import prod

import torch
from torch import Tensor

from lehr.gradients import convolutions, triton_kernels
from lehr.gradients.contributions import Outer
from tests.gradients.convolutions import Convolution, in_order_of_columns

SHAPES = {
    "one channel, filter of 8": Convolution(channels=1, outputs=16, sizes=(12, 12), kernel=8, stride=2, padding=3),
    "one channel, filter of 4, views": Convolution(channels=1, outputs=5, sizes=(9, 9), kernel=4, views=2),
    "3 channels, stride, views": Convolution(
        channels=3, outputs=16, sizes=(9, 7), kernel=3, stride=2, padding=1, views=2
    ),
    "3 channels, more places than a tile": Convolution(channels=3, outputs=8, sizes=(13, 14), kernel=3, padding=1),
    "16 channels": Convolution(channels=16, outputs=32, sizes=(8, 8), kernel=3, padding=1),
    "16 channels, dilation": Convolution(channels=16, outputs=10, sizes=(7, 7), kernel=3, dilation=2),
    "16 channels, filter of 1": Convolution(channels=16, outputs=20, sizes=(6, 6), kernel=1),
    "64 channels, a column of tiles": Convolution(channels=64, outputs=72, sizes=(5, 5), kernel=3, padding=1),
    "64 channels, filter of 1, stride": Convolution(channels=64, outputs=16, sizes=(6, 6), kernel=1, stride=2),
    "one place": Convolution(channels=4, outputs=6, sizes=(3, 3), kernel=3),
    "one column of places": Convolution(channels=4, outputs=6, sizes=(6, 3), kernel=3),
}


# Sequences for linear layers: records, positions, outputs, inputs.
SEQUENCES = {
    "short": (3, 5, 20, 24),
    "a few tiles": (2, 300, 70, 33),
    "wide": (3, 130, 200, 140),
    "two positions": (4, 2, 16, 16),
}


def distances(*, dtype: torch.dtype, device: str) -> dict[str, dict[str, float]]:
    """For every shape and every way, the distance to the loop, relative to what the loop gives."""
    found = {name: _of_shape(shape, dtype, device) for name, shape in SHAPES.items()}
    sequences = {f"sequence, {name}": _of_sequence(sizes, dtype, device) for name, sizes in SEQUENCES.items()}
    return {**found, **sequences, "layouts": _of_layouts(dtype, device)}


def _of_sequence(sizes: tuple[int, int, int, int], dtype: torch.dtype, device: str) -> dict[str, float]:
    """A linear layer: sums of products between positions, norms of what is formed, and the weighted sum."""
    records, positions, outputs, inputs = sizes
    torch.manual_seed(0)
    grads, values = (torch.randn(records, positions, size).to(device, dtype) for size in (outputs, inputs))
    left, right = grads.double().cpu(), values.double().cpu()
    formed = torch.einsum("bto,bti->boi", left, right)
    squares = [factor.square().sum(2) for factor in (left, right)]
    expected = torch.stack(
        [
            formed.square().sum((1, 2)),
            (squares[0] * squares[1]).sum(1),
            (squares[0] * squares[1]).sqrt().sum(1),
            squares[0].sum(1),
            squares[1].sum(1),
        ]
    )
    sums = convolutions.gram_sums(values, grads)
    weights_B, counted_B = torch.linspace(0, 1.5, records), torch.arange(records) > 0
    grads[0], values[0] = torch.nan, torch.inf
    part = Outer(grads, values, rows=outputs - 3)
    weighted = part._sum_by_triton(weights_B.to(device), counted_B.to(device))
    whole = torch.tensordot((weights_B * counted_B).double(), formed, dims=1)
    marked_B = weights_B.where(counted_B, torch.nan).to(device)
    by_few = {
        f"weighted sum by {few} programs": _distance(
            triton_kernels.weighted_outer(values, grads, marked_B, programs=few).float(), whole
        )
        for few in (1, 3, 5)  # tiles that are taken whole, and tiles that are shared
    }
    images = (convolutions.as_images(factor[1:]) for factor in (values, grads))
    norms = convolutions.triton_norms(*images, convolutions.ONE_PLACE.flat(), records - 1)
    return {
        **{f"sum {at}": _distance(*pair) for at, pair in enumerate(zip(sums, expected, strict=True))},
        "norms of what is formed": _distance(norms, expected[0, 1:]),
        "weighted sum": _distance(weighted.float(), whole),
        **by_few,
    }


def _of_shape(shape: Convolution, dtype: torch.dtype, device: str) -> dict[str, float]:
    inputs, output_grads = shape.batch(dtype, device)
    geometry, records = shape.geometry, shape.records
    arguments = (inputs, output_grads, geometry.flat(), records)
    expected = shape.grads_by_loop(inputs, output_grads)
    squares = expected.flatten(1).square().sum(1)
    norms, (grads, kept_norms) = convolutions.triton_norms(*arguments), convolutions.triton_formed(*arguments)
    found = {
        "norms": _distance(norms, squares),
        "norms with what is kept": _distance(kept_norms, squares),
        "what is kept": _distance(grads, in_order_of_columns(expected).flatten(2)),
        "sum": _distance_of_sum(shape, inputs, output_grads, expected),
    }
    for is_gram in (True, False) if shape.views == 1 and prod(shape.places) <= 64 else ():
        by_choice = triton_kernels.squared_norms(inputs, output_grads, geometry, records, gram=is_gram)
        found[f"norms, gram {is_gram}"] = _distance(by_choice, squares)
    return found


def _distance_of_sum(shape: Convolution, inputs: Tensor, output_grads: Tensor, expected: Tensor) -> float:
    """With weights of many sizes, a record of weight zero, and one that is not counted and holds no numbers."""
    inputs, output_grads = inputs.clone(), output_grads.clone()
    inputs[: shape.views] = torch.inf
    output_grads[: shape.views] = torch.nan
    weights_B = torch.linspace(0, 1.5, shape.records).roll(-1)
    counted_B = torch.arange(shape.records) > 0
    of_images = (values.repeat_interleave(shape.views).to(inputs.device) for values in (weights_B, counted_B))
    found = shape.part(inputs, output_grads).sum_by_triton(*of_images)
    assert found.dtype is torch.float64
    return _distance(found.float(), torch.tensordot((weights_B * counted_B).double(), expected, dims=1))


def _of_layouts(dtype: torch.dtype, device: str) -> dict[str, float]:
    """Output gradients as they can leave a backward pass: expanded, transposed, cut out of something larger."""
    shape = Convolution(channels=3, outputs=8, sizes=(6, 6), kernel=3)
    inputs, output_grads = shape.batch(dtype, device)
    larger = torch.cat([output_grads] * 2, dim=3)
    layouts = {
        "contiguous": output_grads.contiguous(),
        "transposed": output_grads.transpose(2, 3),
        "the same in every row": output_grads[:, :, :1].expand(-1, -1, 4, -1),
        "the same in every column": output_grads[:, :, :, :1].expand(-1, -1, -1, 4),
        "the same everywhere": output_grads[:, :, :1, :1].expand(-1, -1, 4, 4),
        "cut out": larger[:, :, :, 2:6],
    }
    return {
        name: _distance(
            convolutions.triton_norms(inputs, values, shape.geometry.flat(), shape.records),
            shape.grads_by_loop(inputs, values).flatten(1).square().sum(1),
        )
        + _distance_of_sum(shape, inputs, values, shape.grads_by_loop(inputs, values))
        for name, values in layouts.items()
    } | {"contiguous inputs": _with_contiguous_inputs(shape, inputs.contiguous(), output_grads)}


def _with_contiguous_inputs(shape: Convolution, inputs: Tensor, output_grads: Tensor) -> float:
    expected = shape.grads_by_loop(inputs, output_grads)
    norms = convolutions.triton_norms(inputs, output_grads, shape.geometry.flat(), shape.records)
    return _distance(norms, expected.flatten(1).square().sum(1))


def _distance(found: Tensor, expected: Tensor) -> float:
    assert found.dtype is torch.float32
    assert found.shape == expected.shape
    return float((found.cpu().double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    print(json.dumps(distances(dtype=torch.float32, device="cpu")))  # noqa: T201
