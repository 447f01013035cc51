"""Gaussian numbers on the integers, exactly: ⌊2⁴⁰ Z⌋ for a standard normal Z, from random bits.

No result of floating point decides a number unless an error far above its rounding would decide it alike; the few that
are left, about one in a million, are decided by arithmetic with as many digits as it takes. So the law is exact, and
every device gives the same integers for the same bits. The proof is in ``rounded_normal.proof.md``.

A candidate is a cell of [0, ∞), picked by Walker's alias method with integer weights, a place in the cell, and a sign.
It is accepted with the probability that turns the uniform law within a cell into the Gaussian one.

Canonne, Kamath & Steinke (2020), "The Discrete Gaussian for Differential Privacy", sample from another law on the
integers. Rounding is simpler to account for: an integer plus a rounded Gaussian is that integer plus the Gaussian,
rounded. Sampling by cells and lazily drawn digits follows Karney (2016), "Sampling exactly from the normal
distribution".
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

SCALE_BITS = 40  # the standard deviation is 2⁴⁰
CELL_BITS = 29  # a cell is 2²⁹ wide: 2048 of them are one standard deviation
COLUMN_BITS = 15  # of the alias table: a column for each cell up to 16 standard deviations, the last one for the rest
COIN_BITS = 63
FIRST_BITS = 20  # of the number that is compared with the probability of rejection
WORDS = 2  # of 64 bits for each candidate: sign and coin; column, first bits and place

_TAIL = 2**COLUMN_BITS - 1
_FAR = 6 * 2 ** (SCALE_BITS - CELL_BITS)  # cells from here on are decided with more digits
_MARGIN = 2.0**-30  # far above the rounding of a rejection's probability in float64, and all that it leaves out
_CELLS_PER_STD = 2 ** (SCALE_BITS - CELL_BITS)

MoreBits = Callable[[str, int], bytes]


class Weights(NamedTuple):
    """``scale`` times the density at the lower end of each cell, rounded up, and whatever is left for the tail."""

    scale: int
    of_cells: tuple[int, ...]


@cache
def weights() -> Weights:
    """Return the weights of all columns, which add up to the columns times 2⁶³."""
    with decimal.localcontext(decimal.Context(prec=60)):
        falls, slope = (-(Decimal(2) ** -23)).exp(), (-(Decimal(2) ** -22)).exp()
        densities = [Decimal(1)]  # e^(-h² / 2²³), of which two after another differ by e^(-(2h + 1) / 2²³)
        for _ in range(_TAIL - 1):
            densities.append(densities[-1] * falls)
            falls *= slope
        scale = int((2 ** (COLUMN_BITS + COIN_BITS) - 2**38) / sum(densities))
        upwards = Decimal(1) + Decimal(10) ** -40
        of_cells = [int(scale * density * upwards) + 1 for density in densities]
    return Weights(scale, (*of_cells, 2 ** (COLUMN_BITS + COIN_BITS) - sum(of_cells)))


@lru_cache(maxsize=8)
def alias_table(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the thresholds of the columns' coins, and the cell of a column whose coin is not below it."""
    left = list(weights().of_cells)
    full = 2**COIN_BITS
    thresholds, others = [full - 1] * len(left), list(range(len(left)))
    small = [cell for cell, weight in enumerate(left) if weight < full]
    large = [cell for cell, weight in enumerate(left) if weight >= full]
    while small:
        column, donor = small.pop(), large[-1]
        thresholds[column], others[column] = left[column], donor
        left[donor] -= full - left[column]
        if left[donor] < full:
            small.append(large.pop())
    return torch.tensor(thresholds, device=device), torch.tensor(others, device=device)


class Candidates(NamedTuple):
    """Integers, whether each is accepted, and whether more digits have to decide that."""

    values: Tensor
    is_accepted: Tensor
    is_unsettled: Tensor


def cells_and_places(words: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cell of each candidate and the place in it, of two rows of 64 uniform bits for each."""
    first, second = words
    thresholds, others = alias_table(words.device)
    columns = (second >> (64 - COLUMN_BITS)).bitwise_and_(2**COLUMN_BITS - 1)
    is_own = (first & (2**COIN_BITS - 1)) < thresholds.index_select(0, columns)
    return torch.where(is_own, columns, others.index_select(0, columns)), second & (2**CELL_BITS - 1)


def first_bits(words: Tensor) -> Tensor:
    """Return the first bits of the number that decides whether a candidate is rejected."""
    return (words[1] >> CELL_BITS).bitwise_and_(2**FIRST_BITS - 1)


def candidates(words: Tensor) -> Candidates:
    """Return a candidate for each column of ``words``, on their device."""
    cells, places = cells_and_places(words)
    # ln of the density at the lower end of the cell, less that at the place.
    drops = (cells << (CELL_BITS + 1)).add_(places).double()
    drops.mul_(places.double()).mul_(2.0 ** -(2 * SCALE_BITS + 1))
    rejections = (drops / -6).add_(0.5).mul_(drops).neg_().add_(1).mul_(drops)  # 1 - e^-drop, to drop³
    drawn = first_bits(words).double().mul_(2.0**-FIRST_BITS)
    is_near = cells < _FAR
    is_accepted = (drawn >= rejections + _MARGIN).logical_and_(is_near)
    is_rejected = (drawn.add_(2.0**-FIRST_BITS) <= rejections.sub_(_MARGIN)).logical_and_(is_near)
    signs = words[0] >> COIN_BITS  # 0 or -1: ⌊-y⌋ = ~⌊y⌋
    values = cells.bitwise_left_shift_(CELL_BITS).add_(places).bitwise_xor_(signs)
    return Candidates(values, is_accepted, is_rejected.logical_or_(is_accepted).logical_not_())


def settle(cell: int, place: int, first: int, more: MoreBits) -> int | None:
    """Return the magnitude of a candidate, or None if it is rejected; decided with as many digits as it takes.

    ``first`` are its first bits, and ``more(name, n)`` the first n bytes of an endless stream of that name.
    """
    scale, of_cells = weights()
    magnitude, weight = (cell << CELL_BITS) + place, Fraction(of_cells[cell])
    if cell == _TAIL:
        # Blocks of one standard deviation, each with half the probability of the one before.
        block = _leading_zeros(more)
        magnitude = (cell << CELL_BITS) + (block << SCALE_BITS) + _bits(more("place", SCALE_BITS // 8))
        weight /= _CELLS_PER_STD * 2 ** (block + 1)
    num_bytes = 8
    while True:
        num_bits = 8 * num_bytes
        fraction = _bits(more("fraction", num_bytes))
        drawn = (first << num_bits) + _bits(more("drawn", num_bytes))
        unit = 2 ** (FIRST_BITS + num_bits)
        least, _ = _densities((magnitude << num_bits) + fraction + 1, num_bits)
        _, most = _densities((magnitude << num_bits) + fraction, num_bits)
        if Fraction(unit - drawn, unit) <= scale * least / weight:
            return magnitude
        if Fraction(unit - drawn - 1, unit) >= scale * most / weight:
            return None
        num_bytes *= 2


def _densities(numerator: int, num_bits: int) -> tuple[Fraction, Fraction]:
    """Return numbers below and above e^(-y² / 2 / 2⁸⁰), for y the numerator over 2^num_bits."""
    digits = num_bits // 2 + 40  # more than the decimal digits of so many bits
    with decimal.localcontext(decimal.Context(prec=digits, Emin=decimal.MIN_EMIN, Emax=decimal.MAX_EMAX)):
        exponent = Decimal(numerator) ** 2 / Decimal(2) ** (2 * num_bits + 2 * SCALE_BITS + 1)
        density = Fraction((-exponent).exp())
    return density * (1 - Fraction(1, 10 ** (digits - 10))), density * (1 + Fraction(1, 10 ** (digits - 10)))


def _bits(given: bytes) -> int:
    return int.from_bytes(given, "big")


def _leading_zeros(more: MoreBits) -> int:
    """Return the number of zeros before the first one of a stream: n with probability 2^-(n + 1)."""
    num_bytes = 8
    while not (found := _bits(more("block", num_bytes))):
        num_bytes *= 2
    return 8 * num_bytes - found.bit_length()
