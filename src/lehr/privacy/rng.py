"""All random numbers of the library.

A run has one secret key, and every random number of the run is a function of it, the purpose, the step and the attempt
at that step. So the draw and the noise of step 400 need no earlier step, and a step that is repeated after a crash is
bit-identical.

>>> key = RunKey(bytes(32))  # only in an example: a run uses RunKey.fresh()
>>> step = key.at(step=400, attempt=0)
>>> step.uniforms("sampling", 3).equal(step.uniforms("sampling", 5)[:3])
True
>>> step.uniforms("sampling", 3).equal(key.at(step=400, attempt=1).uniforms("sampling", 3))
False

The bits come from SHAKE-128, a cryptographic hash with an output of any length, and on a GPU from the cipher ChaCha20
under keys of that hash. torch's generators have seeds of 32 bits on a CPU and 64 on a GPU, and from some outputs of the
first the rest follows. The assumptions are in ``privacy/rng.proof.md``.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue, StoreError
from lehr.files import atomic
from lehr.interfaces import at_least_float32
from lehr.privacy.rounded_normal import WORDS, candidates, cells_and_places, first_bits, settle

KEY_BYTES = 32
_DOMAIN = b"lehr.rng/1"
NUMBERS = "2"  # counts the changes of what numbers follow from a key; a run is not replayed with others
# Words of one call of the hash: small enough to stay in the processor's cache, and even, as pairs are made of them.
_PART_WORDS = 2**16
_PART_WORDS_ON_GPU = 2**22  # of one key: few, so that a rank can make its share without most of the others
MOST_JOINED = 2**26  # numbers that are copied into one piece, so that their noise is made by one kernel
_FRACTION = 2**52 - 1  # the bits of a float64 below its exponent
_ONES_EXPONENT = 0x3FF0_0000_0000_0000  # the bits of 1.0
_BELOW_ONE = 1 - 2.0**-53
_TWISTER_WORDS = 624
_TWISTER_STATE = slice(24, 24 + 8 * _TWISTER_WORDS)  # where torch keeps them, each in eight bytes
_NO_FOLLOWING = os.O_NOFOLLOW | os.O_CLOEXEC

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class RunKey:
    """The secret of a run: 256 bits. It is never printed, pickled or exported."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        given: object = self.secret
        if not isinstance(given, bytes) or len(given) != KEY_BYTES:
            shown = f"{len(given)} bytes" if isinstance(given, bytes) else type(given).__name__  # never the secret
            raise InvalidValue("secret", allowed=f"{KEY_BYTES} bytes", given=shown)

    @classmethod
    def fresh(cls) -> Self:
        """Return a new key from the entropy of the operating system."""
        return cls(secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the key in a file. A link, a file that others may read, and one of another length are refused."""
        # Without O_NONBLOCK, opening a pipe waits for a writer.
        with _opened(path, os.O_RDONLY | os.O_NONBLOCK, what="read") as descriptor:
            mode = os.fstat(descriptor).st_mode
            if not S_ISREG(mode):
                raise StoreError(f"cannot read the key {path}: it is not a file")
            if mode & 0o077:
                raise StoreError(f"cannot read the key {path}: others may read it, mode {mode & 0o777:04o}, not 0600")
            secret = os.read(descriptor, KEY_BYTES + 1)
        if len(secret) != KEY_BYTES:
            raise StoreError(f"cannot read the key {path}: it has {len(secret)} bytes and a key has {KEY_BYTES}")
        if not any(secret):  # a process was killed between overwriting it and removing its file
            raise StoreError(f"cannot read the key {path}: it was destroyed, as it is by a release")
        return cls(secret)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the key to a new file that only its owner may read. An existing file is not changed."""
        with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, what="write") as descriptor:
            try:
                os.fchmod(descriptor, 0o600)
                _write_all(descriptor, self.secret)
            except BaseException:
                os.unlink(path)
                raise
            atomic.flush_folder(Path(path).parent)

    @staticmethod
    def destroy(path: str | os.PathLike[str]) -> None:
        """Overwrite the key and remove its file, if there is one."""
        if not os.path.lexists(path):
            return
        with _opened(path, os.O_WRONLY | os.O_NONBLOCK, what="destroy") as descriptor:
            about = os.fstat(descriptor)
            if not S_ISREG(about.st_mode) or about.st_size > KEY_BYTES:
                raise StoreError(f"cannot destroy the key {path}: it is not a file of {KEY_BYTES} bytes; it stays")
            _write_all(descriptor, bytes(about.st_size))
            os.unlink(path)
            atomic.flush_folder(Path(path).parent)

    @staticmethod
    def fresh_attempt() -> int:
        """Return a random number for an attempt, so that no copy of the run's folder repeats it."""
        return secrets.randbits(59)

    def at(self, step: int, attempt: int) -> StepRandomness:
        """Return the randomness of one attempt at one step."""
        return StepRandomness(key=self, step=step, attempt=attempt)

    def fingerprint(self, *chunks: Bytes | Iterable[Bytes]) -> str:
        """Return a keyed hash of chunks of bytes, given one by one or by iterables; where one chunk ends matters.

        Without the key, a guess of the content cannot be confirmed.
        """
        hashed = hashlib.blake2b(key=self._derived("fingerprint").digest(KEY_BYTES), digest_size=32)
        for given in chunks:
            for chunk in (given,) if isinstance(given, bytes | bytearray | memoryview) else given:
                hashed.update(memoryview(chunk).nbytes.to_bytes(8, "big"))
                hashed.update(chunk)
        return hashed.hexdigest()

    def uniforms_of(self, contents: Iterable[Bytes], purpose: str) -> Tensor:
        """Return a number in (0, 1) for each content, which depends on that content alone."""
        key = self._derived("content", validate.text(purpose=purpose)).digest(KEY_BYTES)
        digests = (hashlib.blake2b(content, key=key, digest_size=8).digest() for content in contents)
        return _uniforms(_words(b"".join(digests)))

    def _derived(self, kind: str, *names: str | int) -> Any:
        """Return the hash of all that the bits depend on. Each field has its length before it, so no inputs collide."""
        fields = (_DOMAIN, self.secret, kind.encode(), *map(_field, names))
        return hashlib.shake_128(b"".join(len(part).to_bytes(8, "big") + part for part in fields))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("the key of a run is neither pickled nor copied; save it with RunKey.save")


@dataclass(frozen=True, slots=True)
class StepRandomness:
    """The random numbers of one attempt at one step, with a separate stream for each purpose."""

    key: RunKey
    step: int
    attempt: int

    def __post_init__(self) -> None:
        validate.count(minimum=0, step=self.step)
        validate.count(minimum=0, attempt=self.attempt)

    def uniforms(self, purpose: str, count: int) -> Tensor:
        """Return uniform numbers in (0, 1), in float64 on the CPU. A larger ``count`` only adds numbers at the end."""
        return torch.cat([*self._uniform_parts("uniforms", purpose, count), torch.empty(0, dtype=torch.float64)])

    def normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return standard normal numbers in float64, in these shapes and on this device.

        They are one stream, cut in the order of the names: the same names in another order get other numbers.
        """
        return self._cut(purpose, like, rounded=False)

    def rounded_normals(self, purpose: str, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ⌊2⁴⁰ Z⌋ for standard normal numbers Z, as int64, in these shapes and on this device.

        Their law is exact for uniform bits (``rounded_normal``). Cut as ``normals`` are, from a stream of their own.
        """
        return self._cut(purpose, like, rounded=True)

    def noisy(
        self, purpose: str, values: Mapping[str, Tensor], noise_std: float | Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the values plus ``noise_std`` times ``normals``, added in float64 and then rounded once.

        On a GPU the numbers are never stored.
        """
        wide = {name: at_least_float32(value.dtype) for name, value in values.items()}
        if isinstance(noise_std, Mapping) or not all(value.is_cuda for value in values.values()):
            found = self.normals(purpose, values)
            stds = [noise_std[name] for name in found] if isinstance(noise_std, Mapping) else noise_std
            torch._foreach_mul_(list(found.values()), stds)
            torch._foreach_add_(list(found.values()), [values[name] for name in found])
            return {name: value.to(wide[name]) for name, value in found.items()}
        spans, _ = self.spans(values)
        given, begins = list(values.values()), [first for first, _ in spans]
        is_row = all(last == first for (_, last), (first, _) in pairwise(spans))
        whole = one_piece(given) if is_row else None
        is_small = len({value.dtype for value in given}) == 1 and sum(value.numel() for value in given) <= MOST_JOINED
        if whole is None and is_row and is_small:  # starting many small kernels takes longer than a copy
            whole = torch.cat([value.flatten() for value in given])
        if whole is not None:
            out = torch.empty_like(whole, dtype=wide[next(iter(values))])
            self._add_on_gpu(purpose, whole, first=begins[0], noise_std=noise_std, out=out)
            parts = out.split_with_sizes([value.numel() for value in given])
            return {name: part.view(values[name].shape) for name, part in zip(values, parts, strict=True)}
        released = {}
        for first, (name, value) in zip(begins, values.items(), strict=True):
            released[name] = torch.empty(value.shape, dtype=wide[name], device=value.device)
            self._add_on_gpu(purpose, value.contiguous(), first=first, noise_std=noise_std, out=released[name])
        return released

    def normals_between(
        self,
        purpose: str,
        spans: Iterable[tuple[int, int]],
        *,
        count: int,
        device: torch.device,
        rounded: bool = False,
    ) -> list[Tensor]:
        """Return those of ``count`` standard normal numbers in each span, from its first index to before its last.

        If the spans are in rising order, no number is made twice. Spans that overlap may share memory.

        >>> step = RunKey(bytes(32)).at(step=0, attempt=0)
        >>> whole = step.normals("noise", {"all": torch.empty(9)})["all"]
        >>> (found,) = step.normals_between("noise", [(4, 7)], count=9, device=torch.device("cpu"))
        >>> found.equal(whole[4:7])
        True
        """
        is_gpu = device.type == "cuda"
        size = _PART_WORDS_ON_GPU if is_gpu else _PART_WORDS
        make, dtype = (self._rounded_normals, torch.int64) if rounded else (self._normals, torch.float64)

        @lru_cache(maxsize=1)
        def made(part: int) -> Tensor:
            return make(purpose, part, min(size, count - size * part), device)

        def between(first: int, last: int) -> Tensor:
            if not 0 <= first <= last <= count:
                raise InvalidValue("first, last", allowed=f"0 <= first <= last <= {count}", given=(first, last))
            if is_gpu and not rounded:
                out = torch.empty(last - first, dtype=dtype, device=device)
                self._add_on_gpu(purpose, None, first=first, noise_std=1.0, out=out)
                return out
            parts = range(first // size, math.ceil(last / size))
            pieces = [made(part)[max(0, first - size * part) : last - size * part] for part in parts]
            return pieces[0] if len(pieces) == 1 else torch.cat([torch.empty(0, dtype=dtype, device=device), *pieces])

        return [between(first, last) for first, last in spans]

    def spans(self, like: Mapping[str, Tensor]) -> tuple[list[tuple[int, int]], int]:
        """Return where the numbers of these tensors lie in a stream, and how long the stream is."""
        ends = list(accumulate((tensor.numel() for tensor in like.values()), initial=0))
        return list(pairwise(ends)), ends[-1]

    def _cut(self, purpose: str, like: Mapping[str, Tensor], *, rounded: bool) -> dict[str, Tensor]:
        devices = {tensor.device for tensor in like.values()} or {torch.device("cpu")}
        if len(devices) > 1:
            raise InvalidValue("like", allowed="tensors on one device", given=sorted(map(str, devices)))
        spans, count = self.spans(like)
        cut = self.normals_between(purpose, spans, count=count, device=devices.pop(), rounded=rounded)
        return {name: part.view(tensor.shape) for part, (name, tensor) in zip(cut, like.items(), strict=True)}

    def generator(self, purpose: str, device: torch.device | str) -> torch.Generator:
        """Return a torch generator, for augmentation and dropout.

        On a CPU its whole state comes from the key: torch keeps 32 bits of a seed, which can all be tried. On a GPU it
        is seeded with 64 bits.
        """
        made = torch.Generator(device=device).manual_seed(self.seed(purpose))
        if made.device.type == "cpu":
            state = made.get_state()
            words = np.frombuffer(self._derived("generator, state", purpose, 0).digest(4 * _TWISTER_WORDS), dtype="<u4")
            state[_TWISTER_STATE] = torch.from_numpy(words.astype("<u8").view(np.uint8))
            made.set_state(state)
        return made

    def seed(self, purpose: str) -> int:
        """Return the 64 bits that such a generator is seeded with."""
        return int.from_bytes(self._derived("generator, seed", purpose, 0).digest(8), "little")

    def _normals(self, purpose: str, part: int, length: int, device: torch.device) -> Tensor:
        words = self._bits("normals", purpose, part, count=length + length % 2, device=device)
        return _box_muller(_uniforms(words))[:length].to(device)

    def _add_on_gpu(self, purpose: str, values: Tensor | None, *, first: int, noise_std: float, out: Tensor) -> None:
        from lehr.privacy.chacha import add_normals  # Triton is not needed elsewhere

        key = self._derived("normals, key", purpose, 0).digest(KEY_BYTES)
        add_normals(key, values, first=first, noise_std=noise_std, out=out)

    def _rounded_normals(self, purpose: str, part: int, length: int, device: torch.device) -> Tensor:
        """Draw candidates, and again for those that are rejected, about one in 5,000."""
        values = torch.empty(length, dtype=torch.int64, device=device)
        pending, trial = torch.arange(length, device=device), 0
        while len(pending):
            bits = self._bits("rounded normals", purpose, part, trial, count=WORDS * len(pending), device=device)
            words = bits.to(device).view(WORDS, -1)
            found = candidates(words)
            values[pending] = found.values
            is_rejected = ~found.is_accepted
            for index in found.is_unsettled.nonzero().squeeze(1).tolist():  # about one in a million
                magnitude = self._settled(words[:, index : index + 1].cpu(), purpose, part, trial, index)
                if magnitude is not None:
                    values[pending[index]] = magnitude if found.values[index] >= 0 else ~magnitude
                    is_rejected[index] = False
            pending, trial = pending[is_rejected], trial + 1
        return values

    def _settled(self, words: Tensor, purpose: str, *parts: int) -> int | None:
        """Decide about one candidate with bits of its own."""

        def more(name: str, num_bytes: int) -> bytes:
            return bytes(self._derived(f"rounded normals, {name}", purpose, *parts).digest(num_bytes))

        cell, place = map(int, cells_and_places(words))
        return settle(cell, place, int(first_bits(words)), more)

    def _bits(self, kind: str, purpose: str, *parts: int, count: int, device: torch.device) -> Tensor:
        """Return words of 64 bits as int64: on a GPU made there by ChaCha20, otherwise on the CPU by SHAKE-128."""
        if device.type != "cuda":
            return _words(self._derived(kind, purpose, *parts).digest(8 * count))
        from lehr.privacy.chacha import keystream  # Triton is not needed elsewhere

        key = self._derived(f"{kind}, key", purpose, *parts).digest(KEY_BYTES)
        return keystream(key, words=count, device=device)

    def _uniform_parts(self, kind: str, purpose: str, count: int) -> Iterator[Tensor]:
        for part, first in enumerate(range(0, validate.count(minimum=0, count=count), _PART_WORDS)):
            num_words = min(_PART_WORDS, count - first)
            yield _uniforms(_words(self._derived(kind, purpose, part).digest(8 * num_words)))

    def _derived(self, kind: str, purpose: str, *parts: int) -> Any:
        return self.key._derived(kind, validate.text(purpose=purpose), self.step, self.attempt, *parts)


def _words(digest: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(digest, dtype="<i8").copy())


def _uniforms(words: Tensor) -> Tensor:
    """(2k + 1) / 2⁵³ with k the upper 52 bits of each word: exact, symmetric about a half, and never 0 or 1."""
    bits = (words >> 12).bitwise_and_(_FRACTION)
    # With the exponent of 1.0 the bits are the number 1 + k / 2⁵², and taking away 1 - 2⁻⁵³ does not round.
    bits.bitwise_or_(_ONES_EXPONENT)
    return bits.view(torch.float64).sub_(_BELOW_ONE)


def _box_muller(uniforms: Tensor) -> Tensor:
    """Return as many standard normal numbers as there are uniform ones, from pairs of a radius and an angle."""
    radii, angles = uniforms.view(2, -1)
    radii.log_().mul_(-2).sqrt_()
    angles.mul_(2 * math.pi)
    return torch.cat([torch.cos(angles).mul_(radii), torch.sin(angles).mul_(radii)])


def one_piece(values: Sequence[Tensor]) -> Tensor | None:
    """Return the tensors as one vector without a copy; None unless they lie one after another in memory."""
    places = [(value.untyped_storage().data_ptr(), value.storage_offset()) for value in values]
    ends = accumulate((value.numel() for value in values), initial=places[0][1] if places else 0)
    is_one = len({(value.dtype, value.device) for value in values}) == 1 and all(
        value.is_contiguous() and place == (places[0][0], begin)
        for value, place, begin in zip(values, places, ends, strict=False)
    )
    return values[0].as_strided((sum(value.numel() for value in values),), (1,)) if is_one else None


def _field(value: str | int) -> bytes:
    return value.encode() if isinstance(value, str) else value.to_bytes(8, "big")


@contextmanager
def _opened(path: str | os.PathLike[str], flags: int, *, what: str) -> Iterator[int]:
    """Open the file, never the target of a link; errors name the file."""
    try:
        descriptor = os.open(path, flags | _NO_FOLLOWING, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        reason = "it is a link, and a key is a file" if os.path.islink(path) else error.strerror
        raise StoreError(f"cannot {what} the key {path}: {reason}") from error


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
    os.fsync(descriptor)
