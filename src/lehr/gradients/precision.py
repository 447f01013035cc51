"""Numerics: products and sums in float32 or better, what rounding can hide from a norm, and the margins for it.

batched_product, sum_of_products, weigh, ...           arithmetic whose sums are never narrower than float32
rounding_of, rounding_of_scaling, rounding_of_sum      what is added to a squared norm for what rounding can hide
margin                                                 how far a summed gradient may exceed its reported norm
narrow, widen                                          the type that a model is run in
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import Any

import torch
from torch import Tensor

from lehr.gradients.batches import each
from lehr.interfaces import at_least_float32

HALF = (torch.bfloat16, torch.float16)
ROUNDINGS = 16  # measured on sums that cancel, with a reserve, by tests/gradients/test_contributions.py
# torch's norm goes through the numbers once and stores none of their squares, but adds them up one after the other: its
# error grows with their number, to 2e-6 of 1024 equal ones and to 2e-3 of a million.
MOST_ADDED_IN_ORDER = 1024
# Records whose gradients are summed in float32, or over positions in float64, before all else is added in float64.
RECORDS_AT_ONCE = 64
MOST_POSITIONS = 2**16  # of all of them together
MOST_SUM_BYTES = 2**28  # of sums of a few records each that are held at once
_UNIT = 2**-20  # of a position's length that counts as lost to rounding


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for each record, in float32 or better."""
    if left.dtype not in HALF:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right``, in float32 or better, where the right one may be of half precision; perhaps many at once."""
    if right.dtype not in HALF:
        return left @ right
    if not right.is_cuda:
        return left.float() @ right.float()
    multiply = torch.mm if right.dim() == 2 else torch.bmm
    # What rounding the left factor leaves out is held by a second one: rounding that the record chose would add up.
    rounded = left.to(right.dtype)
    rest = (left - rounded).to(right.dtype)
    return multiply(rounded, right, out_dtype=torch.float32) + multiply(rest, right, out_dtype=torch.float32)


def sum_of_products(left_BTL: Tensor, right_BTR: Tensor) -> Tensor:
    """The sum over records and positions of ``left ⊗ right``, in float64: of a few records at a time before that."""
    records, positions = left_BTL.shape[:2]
    at_once = records_at_once(right_BTR.dtype, positions=positions)
    rounds, rest = divmod(records, at_once)
    size = 4 * rounds * left_BTL.shape[2] * right_BTR.shape[2]
    if left_BTL.is_cuda and not rest and size <= MOST_SUM_BYTES:  # all rounds in one launch
        left, right = (factor.reshape(rounds, at_once * positions, -1) for factor in (left_BTL, right_BTR))
        return product(left.transpose(1, 2), right).sum(0, dtype=torch.float64)

    def sum_of(some: slice) -> Tensor:
        left, right = left_BTL[some].flatten(0, 1), right_BTR[some].flatten(0, 1)
        if positions > 1 and not left.is_cuda:
            left, right = left.double(), right.double()
        return product(left.T, right)

    return sum_over_records(records, sum_of, at_once=at_once)


def records_at_once(factors: torch.dtype, *, positions: int) -> int:
    """How many records are added up before their sum is put to the others, where each has so many positions.

    Positions that cancel are rounded, and round others, by what they were before: in float32 a sum over them is taken
    in float64, and in float64 of one record after the other.
    """
    if positions > 1 and factors is torch.float64:
        return 1
    return max(1, min(RECORDS_AT_ONCE, MOST_POSITIONS // max(1, positions)))


def sum_over_records(records: int, sum_of: Callable[[slice], Tensor], *, at_once: int = RECORDS_AT_ONCE) -> Tensor:
    """Sums over a few records at a time, added up in float64: see ``lehr.gradients.precision``."""
    total = sum_of(slice(0, at_once)).double()
    for first in range(at_once, records, at_once):
        total += sum_of(slice(first, first + at_once))
    return total


def weighted_rows(weights_B: Tensor, rows_BP: Tensor) -> Tensor:
    """The sum of the rows, each times its weight, in float64."""
    return sum_over_records(len(rows_BP), lambda some: weights_B[some] @ rows_BP[some])


def weighted_rows_of(grads: Tensor, weights_B: Tensor, counted_B: Tensor) -> Tensor:
    """The weighted sum of stored gradients, ``grads_B...``, over the records that count."""
    exact = grads.to(at_least_float32(grads.dtype))
    if exact.device.type == "cpu" and not torch.compiler.is_compiling():
        weights = keep(weights_B, counted_B).to(exact.dtype)
        return weighted_rows(weights, rows(keep(exact, counted_B))).reshape(grads.shape[1:])
    # Compiled, this is one pass over the gradients; and on a GPU a product of matrices may be rounded to TF32.
    return weigh(exact, weights_B, counted_B).sum(0, dtype=torch.float64)


def sum_of_squares(values: Tensor) -> Tensor:
    """Per record, over every other axis, in float32 or better."""
    exact = values.to(at_least_float32(values.dtype))
    return rows(_squares_of_rows(exact) if _is_short(exact) else exact.square()).sum(1)


def _is_short(values: Tensor) -> bool:
    """Whether the last axis may be added up in order, and is long enough for that to be faster, on a CPU."""
    is_eager = values.device.type == "cpu" and not torch.compiler.is_compiling()
    return is_eager and values.dim() > 1 and 16 <= values.shape[-1] <= MOST_ADDED_IN_ORDER


def _squares_of_rows(values: Tensor) -> Tensor:
    """Squares added up along a short last axis."""
    lengths: Tensor = torch.linalg.vector_norm(values, dim=-1)
    return lengths.square()


def rows(values: Tensor) -> Tensor:
    """One row per record, also where there are no records or a record has a single number."""
    return values.reshape(values.shape[0], values.shape[1:].numel())


def weigh(values: Tensor, weights_B: Tensor, counted_B: Tensor) -> Tensor:
    """Every record scaled by its weight, in float32 or better; exact zeros where it is not counted.

    A record can be made so that rounding moves all its numbers in one direction. In half precision, and where positions
    cancel, what is summed would then be many times longer than the norm that it was clipped by.
    """
    exact = values.to(at_least_float32(values.dtype))
    scaled = (exact * _like(weights_B, values)).to(exact.dtype)
    if everybody_counts(counted_B):
        return scaled
    return torch.where(_like(counted_B, values), scaled, 0)  # by selection, since 0 times infinity is no number


def keep(values: Tensor, counted_B: Tensor) -> Tensor:
    """Every counted record as it is, exact zeros for the others."""
    if everybody_counts(counted_B):
        return values
    return torch.where(_like(counted_B, values), values, 0)


def everybody_counts(counted_B: Tensor) -> bool:
    """Whether nobody has to be left out, where that is known at once: a GPU would be waited for, a compiler cannot ask.

    What is computed is the same to the bit either way.
    """
    if counted_B.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    known = counted_B.__dict__  # asked for every parameter, and answered once
    if "everybody_counts" not in known:
        known["everybody_counts"] = bool(counted_B.all())
    return bool(known["everybody_counts"])


def _like(values_B: Tensor, other: Tensor) -> Tensor:
    return values_B.reshape(-1, *(1 for _ in other.shape[1:]))


def rounding_of(squares_apart_B: Tensor) -> Tensor:
    """How far rounding can move a squared norm that is a sum of products between positions, of both signs.

    ``squares_apart`` adds up each position's square alone. Where positions nearly cancel, the error is in proportion to
    these and not to what is left, and a norm that is reported too small is clipped too little; so this is added to the
    square. Errors are taken to be independent between positions.
    """
    return ROUNDINGS * torch.finfo(squares_apart_B.dtype).eps * squares_apart_B


def rounding_of_scaling(squares_apart_B: Tensor, factors: torch.dtype, *, positions: int) -> Tensor:
    """What two factors of half precision that stand for a scaled one leave out, even if all of it points one way.

    Each position is off by at most ``u ** 2`` of its length, all of them by at most ``u ** 2 * sqrt(positions)`` of the
    root of the squares apart. With 64 times the square of that in the squared norm, the sum of the two lengths is at
    most ``sqrt(1 + 1 / 64)`` times the root, which is half the margin of half precision.
    """
    left_out = (torch.finfo(factors).eps / 2) ** 2
    return 64 * positions * left_out**2 * squares_apart_B


def rounding_of_sum(lengths_B: Tensor, factors: torch.dtype, device: torch.device, *, terms: float = 0) -> Tensor:
    """What a sum over positions, each scaled before it is added, can be off by, in the squared norm.

    ``lengths`` adds up each position's length. Every position is off by a rounding of its own, whatever is left of the
    sum, and a record can be made so that all of them point one way. What is added is many times that, so that no record
    that is clipped has positions longer than ``2 ** 19`` clip norms: what others are rounded by while they are summed.
    A sum of so many ``terms`` in float32 or better is off by at most half of what is then said.
    """
    is_tf32 = factors is torch.float32 and device.type == "cuda"
    unit = 2**-10 if is_tf32 else torch.finfo(factors).eps if factors is torch.float64 else _UNIT
    unit = max(unit, terms * torch.finfo(at_least_float32(factors)).eps / 2)
    return (2 * unit * lengths_B).square()


def squares_at_most(values: Tensor, axes: Sequence[int]) -> Tensor:
    """Squares added up along the axes, and as much as may have been lost where they underflowed."""
    exact = values.to(at_least_float32(values.dtype))
    lost = prod([exact.shape[axis] for axis in axes]) * torch.finfo(exact.dtype).tiny
    if tuple(axes) == (exact.dim() - 1,) and _is_short(exact):
        return _squares_of_rows(exact) + lost
    return exact.square().sum(tuple(axes)) + lost


def uncast(device: torch.device) -> AbstractContextManager[None]:
    """Where the caller has autocast on, sums would be taken, and rounded, in half precision."""
    return torch.autocast(device.type, enabled=False)


# How much larger than its reported norm the gradient of a record can be when it is summed, relative to the norm. The
# largest that tests/gradients/test_precision.py sees, which fails at a quarter of these: 4e-16 in float64, 1.3e-7 in
# float32, and 1e-7 in bfloat16, where norms and sums are taken in float32 from the same rounded factors. A compiler may
# take the norm of a number before it is rounded and the sum after, which in bfloat16 is 2 ** -8, a quarter of the
# margin; and on a GPU half of the margin covers what products.rounding_of_scaling describes.
MARGINS = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 2**-6, torch.float16: 2**-6}
# On a GPU, where it is asked to, torch rounds both factors of a product of matrices to TF32, by 2 ** -11 each. The norm
# may be too small by as much as the sum is too large: 2 ** -9 in all. Convolutions are summed without TF32.
TF32_MARGIN = 2**-7
# What float32 sums over records may be off by, in clip norms, and differently with and without a record; of float64 the
# noise takes care: mechanism.proof.md.
ROUNDING_OF_SUMS = 2**-9
PRECISIONS = {"as_model": None, "bfloat16": torch.bfloat16}


def margin(dtype: torch.dtype, device: torch.device | None = None) -> float:
    """For a model that runs in this type on this device: of a norm, and of the sums that the record is in.

    On a GPU float32 has the margin of TF32 whether or not torch is set to use it: the setting can change after a step
    was compiled, and the difference to a clip norm is less than a hundredth.
    """
    if dtype is torch.float32 and device is not None and device.type == "cuda":
        return TF32_MARGIN + ROUNDING_OF_SUMS
    return MARGINS[dtype] + (0 if dtype is torch.float64 else ROUNDING_OF_SUMS)


def narrow(values: Any, dtype: torch.dtype | None) -> Any:
    """Floating point tensors in the type that the model runs in; with none, as they are."""
    if dtype is None:
        return values
    return each(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, values)


def widen(values: Any) -> Any:
    """Floating point tensors in float32 or better."""
    return each(lambda leaf: leaf.to(at_least_float32(leaf.dtype)) if leaf.is_floating_point() else leaf, values)
