"""Random bits on a GPU: the key stream of ChaCha20 (Bernstein 2008; Nir & Langley 2018, RFC 8439), by a Triton kernel.

Every key is used for one stream, so the nonce is zero; the counter of blocks begins at zero.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK_WORDS = 8  # of 64 bits
_BLOCKS_AT_ONCE = 128


def keystream(key: bytes, *, words: int, device: torch.device) -> Tensor:
    """Return the first words of 64 bits of the stream of a 256-bit key, as int64 on this device."""
    blocks = -(-words // _BLOCK_WORDS)
    made = torch.empty(2 * _BLOCK_WORDS * blocks, dtype=torch.int32, device=device)
    if blocks:
        with torch.cuda.device_of(made):
            _fill[(triton.cdiv(blocks, _BLOCKS_AT_ONCE),)](made, blocks, *struct.unpack("<8i", key), _BLOCKS_AT_ONCE)
    return made.view(torch.int64)[:words]


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


@triton.jit(do_not_specialize=["blocks", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"])
def _fill(out_ptr, blocks, k0, k1, k2, k3, k4, k5, k6, k7, size: tl.constexpr):
    block = tl.program_id(0) * size + tl.arange(0, size)
    # "expand 32-byte k", in four words.
    c0, c1 = tl.full([size], 0x61707865, tl.uint32), tl.full([size], 0x3320646E, tl.uint32)
    c2, c3 = tl.full([size], 0x79622D32, tl.uint32), tl.full([size], 0x6B206574, tl.uint32)
    k0, k1, k2, k3 = _same(k0, size), _same(k1, size), _same(k2, size), _same(k3, size)
    k4, k5, k6, k7 = _same(k4, size), _same(k5, size), _same(k6, size), _same(k7, size)
    counter, zero = block.to(tl.uint32), tl.zeros([size], tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = c0, c1, c2, c3, k0, k1, k2, k3
    x8, x9, x10, x11, x12, x13, x14, x15 = k4, k5, k6, k7, counter, zero, zero, zero
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    first, inside = out_ptr + block * 16, block < blocks
    tl.store(first, (x0 + c0).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 1, (x1 + c1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 2, (x2 + c2).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 3, (x3 + c3).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 4, (x4 + k0).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 5, (x5 + k1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 6, (x6 + k2).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 7, (x7 + k3).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 8, (x8 + k4).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 9, (x9 + k5).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 10, (x10 + k6).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 11, (x11 + k7).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 12, (x12 + counter).to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 13, x13.to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 14, x14.to(tl.int32, bitcast=True), mask=inside)
    tl.store(first + 15, x15.to(tl.int32, bitcast=True), mask=inside)
