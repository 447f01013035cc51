"""Random numbers on a GPU, by Triton kernels: the key stream of ChaCha20, and normal numbers made from it in registers.

The cipher is that of Bernstein (2008), whose counter has 64 bits; up to 2³² blocks it is also that of RFC 8439 (Nir &
Langley 2018). Every key is used for one stream, so the nonce is zero; the counter of blocks begins at zero.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_WORDS = 8  # of 64 bits
_BLOCKS_AT_ONCE = 128
_TILE = _BLOCK_WORDS * _BLOCKS_AT_ONCE  # normal numbers of one program


def keystream(key: bytes, *, words: int, device: torch.device) -> Tensor:
    """Return the first words of 64 bits of the stream of a 256-bit key, as int64 on this device."""
    blocks = -(-words // _BLOCK_WORDS)
    made = torch.empty(2 * _BLOCK_WORDS * blocks, dtype=torch.int32, device=device)
    if blocks:
        with torch.cuda.device_of(made):
            _fill[(triton.cdiv(blocks, _BLOCKS_AT_ONCE),)](made, blocks, *struct.unpack("<8i", key), _BLOCKS_AT_ONCE)
    return made.view(torch.int64)[:words]


def add_normals(key: bytes, values: Tensor | None, *, first: int, noise_std: float, out: Tensor) -> None:
    """Write values plus ``noise_std`` times the normal numbers of a key's stream, from number ``first`` on, to ``out``.

    Computed in float64 and rounded once. Without values they count as zero. Both tensors are contiguous.
    """
    count = out.numel()
    if not count:
        return
    # As bits: a float argument of a kernel has 32 of them.
    (std_bits,) = struct.unpack("<q", struct.pack("<d", noise_std))
    programs = triton.cdiv(first % _TILE + count, _TILE)
    with torch.cuda.device_of(out):
        _add_normals[(programs,)](
            out if values is None else values, out, first // _TILE, first % _TILE, count, std_bits,
            *struct.unpack("<8i", key), values is not None, _BLOCKS_AT_ONCE,
        )  # fmt: skip


@triton.jit
def _rotated(word, bits: tl.constexpr):
    return (word << bits) | (word >> (32 - bits))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _same(word, size: tl.constexpr):
    """``[size]``: a word of the key, for every block."""
    return tl.zeros([size], tl.uint32) + word.to(tl.uint32, bitcast=True)


@triton.jit
def _blocks(block, k0, k1, k2, k3, k4, k5, k6, k7, size: tl.constexpr):
    """The sixteen words of each of these blocks, ``[size]`` each."""
    # "expand 32-byte k", in four words.
    c0, c1 = tl.full([size], 0x61707865, tl.uint32), tl.full([size], 0x3320646E, tl.uint32)
    c2, c3 = tl.full([size], 0x79622D32, tl.uint32), tl.full([size], 0x6B206574, tl.uint32)
    k0, k1, k2, k3 = _same(k0, size), _same(k1, size), _same(k2, size), _same(k3, size)
    k4, k5, k6, k7 = _same(k4, size), _same(k5, size), _same(k6, size), _same(k7, size)
    low, high, zero = block.to(tl.uint32), (block >> 32).to(tl.uint32), tl.zeros([size], tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, low, high, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    return (
        x0 + c0, x1 + c1, x2 + c2, x3 + c3, x4 + k0, x5 + k1, x6 + k2, x7 + k3,
        x8 + k4, x9 + k5, x10 + k6, x11 + k7, x12 + low, x13 + high, x14, x15,
    )  # fmt: skip


@triton.jit(do_not_specialize=["blocks", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
def _fill(out_ptr, blocks, k0, k1, k2, k3, k4, k5, k6, k7, size: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * size + tl.arange(0, size)
    words = _blocks(block, k0, k1, k2, k3, k4, k5, k6, k7, size)
    first, inside = out_ptr + block * 16, block < blocks
    for place in tl.static_range(16):
        tl.store(first + place, words[place].to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def _uniform(low, high):
    """(2k + 1) / 2⁵³ with k the upper 52 bits of the word: what ``rng._uniforms`` makes of it."""
    word = (high.to(tl.uint64) << 32) | low.to(tl.uint64)
    # With the exponent of 1.0 the bits are the number 1 + k / 2⁵²; neither sum rounds.
    return ((word >> 12) | 0x3FF0000000000000).to(tl.float64, bitcast=True) - 1.0 + 2.0**-53


@triton.jit
def _put(values_ptr, out_ptr, place, count, std, normal, has_values: tl.constexpr):
    inside = (place >= 0) & (place < count)
    number = std * normal
    if has_values:
        number = tl.load(values_ptr + place, mask=inside, other=0.0).to(tl.float64) + number
    tl.store(out_ptr + place, number.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tile", "skipped", "count", "std_bits", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
def _add_normals(
    values_ptr, out_ptr, tile, skipped, count, std_bits, k0, k1, k2, k3, k4, k5, k6, k7,
    has_values: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    program, lane = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    words = _blocks((tile + program) * size + lane, k0, k1, k2, k3, k4, k5, k6, k7, size)
    std = tl.zeros([size], tl.int64) + std_bits
    std = std.to(tl.float64, bitcast=True)
    # The numbers of a program lie side by side in memory: a block has every ``size``-th of them.
    place = program * (8 * size) - skipped + lane
    for pair in tl.static_range(4):
        radius = tl.sqrt(-2.0 * tl.log(_uniform(words[4 * pair], words[4 * pair + 1])))
        angle = 6.283185307179586 * _uniform(words[4 * pair + 2], words[4 * pair + 3])
        _put(values_ptr, out_ptr, place + 2 * pair * size, count, std, radius * tl.cos(angle), has_values)
        _put(values_ptr, out_ptr, place + (2 * pair + 1) * size, count, std, radius * tl.sin(angle), has_values)
