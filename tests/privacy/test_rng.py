"""Random numbers: what they depend on, the law that they follow, and who can read the key."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from lehr.errors import InvalidValue, StoreError
from lehr.privacy import rng
from lehr.privacy.rng import RunKey

SECRET = bytes(range(100, 132))
KEY = RunKey(SECRET)
STEP = KEY.at(step=3, attempt=1)
MANY = 200_000
CPU = torch.device("cpu")


def normals(count: int, *, key: RunKey = KEY, step: int = 3, attempt: int = 1, purpose: str = "noise") -> Tensor:
    return key.at(step=step, attempt=attempt).normals(purpose, {"weight": torch.empty(count)})["weight"]


# What the numbers depend on


def test_uniforms_are_the_upper_bits_of_the_hash_of_their_names() -> None:
    """Written out once more, so that a change of the encoding, which would break every run on disk, is noticed."""
    fields = [b"lehr.rng/1", SECRET, b"uniforms", b"sampling", *(n.to_bytes(8, "big") for n in (3, 1, 0))]
    hashed = hashlib.shake_128(b"".join(len(part).to_bytes(8, "big") + part for part in fields)).digest(40)
    words = [int.from_bytes(hashed[first : first + 8], "little") for first in range(0, 40, 8)]
    assert STEP.uniforms("sampling", 5).tolist() == [(2 * (word >> 12) + 1) / 2**53 for word in words]


names = st.tuples(
    st.sampled_from(["uniforms", "normals", "content"]), st.text(min_size=1, max_size=3), st.integers(0, 300)
)


@given(one=names, other=names)
def test_different_names_have_different_bits(one: tuple[str, str, int], other: tuple[str, str, int]) -> None:
    assert (KEY._derived(*one).digest(16) == KEY._derived(*other).digest(16)) == (one == other)


def test_names_cannot_be_moved_into_their_neighbours() -> None:
    assert KEY._derived("a", "bc").digest(16) != KEY._derived("ab", "c").digest(16)
    assert KEY._derived("a", "b", "c").digest(16) != KEY._derived("a", "bc").digest(16)


def test_uniforms_and_normals_of_one_purpose_have_different_bits() -> None:
    uniforms = STEP.uniforms("noise", 2)
    remade = rng._box_muller(uniforms.clone())
    assert not remade.equal(normals(2))


def test_a_larger_count_only_adds_uniforms_at_the_end() -> None:
    largest = STEP.uniforms("sampling", 2 * rng._PART_WORDS + 9)
    for count in (0, 1, 7, rng._PART_WORDS, rng._PART_WORDS + 1, 2 * rng._PART_WORDS + 8):
        assert STEP.uniforms("sampling", count).equal(largest[:count])
    assert len(set(largest.tolist())) == len(largest)


def test_the_same_names_give_the_same_numbers() -> None:
    again = RunKey(SECRET).at(step=3, attempt=1)
    assert again.uniforms("sampling", 100).equal(STEP.uniforms("sampling", 100))
    assert normals(101, key=RunKey(SECRET)).equal(normals(101))
    assert again.generator("dropout", "cpu").get_state().equal(STEP.generator("dropout", "cpu").get_state())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"step": 4}, id="step"),
        pytest.param({"attempt": 0}, id="attempt"),
        pytest.param({"purpose": "other"}, id="purpose"),
        pytest.param({"key": RunKey(bytes(32))}, id="key"),
        pytest.param({"step": 1, "attempt": 3}, id="step and attempt changed places"),
    ],
)
def test_normals_of_other_names_are_independent(other: dict[str, object]) -> None:
    one, two = normals(MANY), normals(MANY, **other)  # type: ignore[arg-type]
    assert abs(correlation(one, two)) < 4
    assert abs(correlation(one.square(), two.square())) < 4


# Numbers that a shortened counter would confuse: neighbours, those that differ in one bit, and large ones.
FAR = sorted({0, *range(990, 1012), *(max(0, 2**b + d) for b in range(60) for d in (-1, 0, 1, 5)), 10**6, 10**12})


@pytest.mark.parametrize("name", ["step", "attempt"])
@pytest.mark.parametrize("kind", ["uniforms", "normals", "bits of a GPU", "seed", "generator"])
def test_no_two_steps_or_attempts_share_a_number(name: str, kind: str) -> None:
    def drawn(randomness: rng.StepRandomness) -> object:
        match kind:
            case "uniforms":
                return tuple(randomness.uniforms("sampling", 2).tolist())
            case "normals":
                return tuple(randomness.normals("noise", {"weight": torch.empty(2)})["weight"].tolist())
            case "bits of a GPU":
                return tuple(bits_of_a_gpu(randomness, "noise", 0, count=2).tolist())
            case "seed":
                return randomness.seed("dropout")
            case _:
                return tuple(torch.rand(2, generator=randomness.generator("dropout", CPU)).tolist())

    found = [drawn(KEY.at(**{"step": 7, "attempt": 7} | {name: number})) for number in FAR]
    assert len(set(found)) == len(FAR)


def test_all_64_bits_of_a_seed_vary() -> None:
    """torch keeps 32 bits of a seed on a CPU and all 64 on a GPU."""
    seeds = [KEY.at(step, 0).seed("dropout") for step in range(64)]
    assert len(set(seeds)) == 64
    assert int(np.bitwise_or.reduce(np.array(seeds, dtype=np.uint64))) == 2**64 - 1
    assert int(np.bitwise_and.reduce(np.array(seeds, dtype=np.uint64))) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_64_bits_of_a_seed_reach_a_gpu() -> None:
    seeds = [KEY.at(step, 0).generator("dropout", "cuda").initial_seed() % 2**64 for step in range(64)]
    assert seeds == [KEY.at(step, 0).seed("dropout") for step in range(64)]
    assert int(np.bitwise_or.reduce(np.array(seeds, dtype=np.uint64))) == 2**64 - 1
    low, high = (torch.Generator("cuda").manual_seed(seed) for seed in (5, 5 + 2**40))
    drawn = [torch.randn(4, generator=made, device="cuda").tolist() for made in (low, high)]
    assert drawn[0] != drawn[1]


def test_normals_of_several_parameters_are_one_stream_in_their_order() -> None:
    shapes = {"weight": torch.empty(40, 5), "bias": torch.empty(7), "scale": torch.empty(())}
    found = STEP.normals("noise", shapes)
    assert {name: value.shape for name, value in found.items()} == {name: like.shape for name, like in shapes.items()}
    assert torch.cat([value.flatten() for value in found.values()]).equal(normals(208))
    assert STEP.normals("noise", {}) == {}
    with pytest.raises(InvalidValue, match="one device"):
        STEP.normals("noise", {"here": torch.empty(2), "there": torch.empty(2, device="meta")})


def test_normals_of_two_parameters_are_independent() -> None:
    found = STEP.normals("noise", {"first": torch.empty(MANY), "second": torch.empty(MANY)})
    assert abs(correlation(found["first"], found["second"])) < 4


def test_the_numbers_of_a_pair_are_independent() -> None:
    radius_and_angle = rng._box_muller(STEP.uniforms("noise", MANY)).view(2, -1)
    for power in (1, 2):
        assert abs(correlation(*radius_and_angle**power)) < 4


def correlation(one: Tensor, two: Tensor) -> float:
    """The sample correlation in units of its standard deviation, if there is none."""
    return float(np.corrcoef(one.numpy(), two.numpy())[0, 1] * math.sqrt(len(one)))


def test_dependent_numbers_are_detected() -> None:
    one, two = normals(MANY), normals(MANY, step=9)
    assert correlation(one, one) > 100
    assert correlation(one, two + 0.05 * one) > 10


# The law that they follow


def tails(values: NDArray[np.float64]) -> float:
    """A p-value for the number of values beyond 3, 4 and 4.5 standard deviations."""
    p_values = [
        stats.binomtest(int((np.abs(values) > bound).sum()), len(values), 2 * stats.norm.sf(bound)).pvalue
        for bound in (3, 4, 4.5)
    ]
    return float(min(p_values))


@pytest.fixture(scope="module")
def million() -> NDArray[np.float64]:
    return normals(1_000_000).numpy()


def test_normals_follow_the_normal_law(million: NDArray[np.float64]) -> None:
    assert stats.kstest(million, stats.norm.cdf).pvalue > 1e-3
    assert tails(million) > 1e-3
    for power, moment in ((1, 0), (2, 1), (3, 0), (4, 3), (6, 15)):
        spread = np.std(million**power) / 1000
        assert abs(np.mean(million**power) - moment) < 4 * spread


def test_laws_close_to_the_normal_one_are_rejected(million: NDArray[np.float64]) -> None:
    assert stats.kstest(1.01 * million, stats.norm.cdf).pvalue < 1e-6
    assert stats.kstest(million + 0.02, stats.norm.cdf).pvalue < 1e-6
    assert tails(np.clip(million, -4, 4)) < 1e-6
    assert tails(million * np.sqrt(1.1)) < 1e-6


def test_the_far_tails_of_the_normals_are_there() -> None:
    """Of four million some 27 lie beyond 4.5: noise that is cut off there tells apart what ideal noise hides."""
    found = normals(4_000_000, step=5).numpy()
    assert tails(found) > 1e-3
    assert tails(np.clip(found, -4.5, 4.5)) < 1e-6


def test_uniforms_follow_the_uniform_law() -> None:
    found = STEP.uniforms("sampling", 1_000_000).numpy()
    assert stats.kstest(found, stats.uniform.cdf).pvalue > 1e-3
    assert stats.kstest(found**1.01, stats.uniform.cdf).pvalue < 1e-6
    lag = stats.pearsonr(found[:-1], found[1:])
    assert lag.pvalue > 1e-3


@pytest.mark.parametrize("angle", [2.0**-53, 0.25, 1 - 2.0**-53])
def test_extreme_words_make_finite_numbers(angle: float) -> None:
    ends = rng._uniforms(torch.tensor([0, -1])).tolist()
    assert ends == [2.0**-53, 1 - 2.0**-53]
    for radius in ends:
        found = rng._box_muller(torch.tensor([radius, angle], dtype=torch.float64))
        assert found.isfinite().all()
        assert found.norm().item() == pytest.approx(math.sqrt(-2 * math.log(radius)), rel=1e-12)


@pytest.mark.parametrize("count", [0, 1, 2, 3, rng._PART_WORDS - 1, rng._PART_WORDS + 1])
def test_any_number_of_normals(count: int) -> None:
    found = normals(count)
    assert found.shape == (count,)
    assert found.dtype == torch.float64


# The bits of a GPU

# Of RFC 8439, appendix A.1: a key and nonce of zeros, the blocks 0 and 1.
OF_ZEROS = """
76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586
9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f
"""


def reference_keystream(key: bytes, *, words: int, device: torch.device) -> Tensor:
    """ChaCha20 once more, in NumPy and on the CPU, whatever the device is."""
    state = np.zeros((16, -(-words // 8)), dtype=np.uint32)
    state[:4] = np.frombuffer(b"expand 32-byte k", dtype="<u4")[:, None]
    state[4:12] = np.frombuffer(key, dtype="<u4")[:, None]
    state[12] = np.arange(state.shape[1])
    mixed = state.copy()
    for _ in range(10):
        for diagonal in (0, 1):
            for column in range(4):
                a, b, c, d = (4 * row + (column + diagonal * row) % 4 for row in range(4))
                for target, added, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                    mixed[target] += mixed[added]
                    mixed[turned] ^= mixed[target]
                    mixed[turned] = mixed[turned] << np.uint32(bits) | mixed[turned] >> np.uint32(32 - bits)
    return torch.from_numpy((mixed + state).T.copy().view("<i8").ravel()[:words])


def bits_of_a_gpu(randomness: rng.StepRandomness, purpose: str, part: int, *, count: int) -> Tensor:
    """What ``_bits`` returns on a GPU, by the reference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lehr.privacy.chacha.keystream", reference_keystream)
        return randomness._bits("normals", purpose, part, count=count, device=torch.device("cuda"))


def test_the_reference_is_chacha20() -> None:
    found = reference_keystream(bytes(32), words=16, device=torch.device("cpu")).numpy().tobytes()
    assert found.hex() == OF_ZEROS.replace("\n", "")


def by_kernel(program: str, *arguments: str) -> bytes:
    """What a program prints in hex: on a GPU, elsewhere in Triton's interpreter, chosen before Triton is loaded."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    finished = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, device, *arguments],
        env={**os.environ, **({} if device == "cuda" else {"TRITON_INTERPRET": "1"})},
        capture_output=True,
        text=True,
        check=True,
    )
    return bytes.fromhex(finished.stdout)


def test_the_kernel_is_chacha20() -> None:
    program = (
        "import sys, torch; from lehr.privacy.chacha import keystream; "
        "device, key, words = torch.device(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3]); "
        "print(keystream(key, words=words, device=device).cpu().numpy().tobytes().hex())"
    )
    for key, words in ((bytes(32), 16), (SECRET, 1100), (SECRET[::-1], 0)):
        found = by_kernel(program, key.hex(), str(words))
        assert found == reference_keystream(key, words=words, device=CPU).numpy().tobytes()


def reference_normals(key: bytes, count: int) -> Tensor:
    """The numbers of a key on a GPU: of each 128 blocks the first number, then of each the second, and so on."""
    tiles = -(-count // 1024)
    pairs = rng._uniforms(reference_keystream(key, words=1024 * tiles, device=CPU)).view(-1, 2)
    numbers = rng._box_muller(pairs.T.contiguous().flatten()).view(2, -1)
    return numbers.T.reshape(tiles, 128, 8).transpose(1, 2).flatten()[:count]


NORMALS = """
import json, sys, torch
from lehr.privacy.chacha import add_normals
device, key, std = torch.device(sys.argv[1]), bytes.fromhex(sys.argv[2]), float(sys.argv[3])
for first, count, kind in json.loads(sys.argv[4]):
    values = torch.arange(count, dtype=getattr(torch, kind), device=device) if kind else None
    out = torch.empty(count, dtype=torch.float64, device=device)
    add_normals(key, values, first=first, noise_std=std, out=out)
    print(out.cpu().numpy().tobytes().hex())
"""


def test_the_kernel_makes_normals_of_the_stream_and_adds_them_with_the_whole_standard_deviation() -> None:
    whole, std = reference_normals(SECRET, 3000), 1 + 2.0**-40  # float32 does not have it
    assert stats.kstest(whole.numpy(), stats.norm.cdf).pvalue > 1e-3
    after_32_bits = 8 * 2**32
    asked = [(0, 3000, ""), (1020, 1100, ""), (7, 1025, "float32"), (5, 0, ""), (after_32_bits, 3, "")]
    made = by_kernel(NORMALS, SECRET.hex(), repr(std), json.dumps(asked))
    parts = torch.from_numpy(np.frombuffer(made).copy()).split_with_sizes([count for _, count, _ in asked])
    for found, (first, count, kind) in zip(parts[:-1], asked[:-1], strict=True):
        values = torch.arange(count) if kind else torch.zeros(count)
        assert found.numpy() == pytest.approx(
            (values + std * whole[first : first + count]).numpy(), rel=1e-14, abs=2e-15
        )
    assert not parts[-1].allclose(whole[:3], rtol=1e-3)  # the counter has more than 32 bits


def test_tensors_that_lie_one_after_another_are_one_piece() -> None:
    whole = torch.arange(10.0)
    parts = [
        part.view(shape) for part, shape in zip(whole.split_with_sizes([6, 1, 3]), [(2, 3), (), (3,)], strict=True)
    ]
    found = rng.one_piece(parts)
    assert found is not None
    assert found.equal(whole)
    assert found.data_ptr() == whole.data_ptr()
    others = {
        "a gap": [parts[0], parts[2]],
        "another order": parts[::-1],
        "turned": [parts[0].T, *parts[1:]],
        "other memory": [parts[0], parts[1].clone(), parts[2]],
        "nothing": [],
    }
    assert {name: rng.one_piece(other) for name, other in others.items()} == dict.fromkeys(others)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("is_one", [True, False])
def test_noise_on_a_gpu_is_that_of_the_normals(is_one: bool) -> None:
    whole = torch.arange(40_000, dtype=torch.float64, device="cuda")
    values = {"one": whole[:30_000].view(3, -1), "two": whole[30_000:] if is_one else whole[30_000:].clone()}
    noise, found = STEP.normals("noise", values), STEP.noisy("noise", values, 2.5)
    for name, value in values.items():
        assert found[name].cpu().numpy() == pytest.approx((value + 2.5 * noise[name]).cpu().numpy(), rel=1e-14)
    narrow = STEP.noisy("noise", {name: value.bfloat16() for name, value in values.items()}, 2.5)
    assert {value.dtype for value in narrow.values()} == {torch.float32}


def test_every_stream_of_a_gpu_has_its_own_key() -> None:
    found = bits_of_a_gpu(STEP, "noise", 0, count=MANY)
    assert found.equal(bits_of_a_gpu(STEP, "noise", 0, count=MANY))
    uniforms = rng._uniforms(found)
    assert stats.kstest(uniforms.numpy(), stats.uniform.cdf).pvalue > 1e-3
    others = [
        bits_of_a_gpu(KEY.at(4, 1), "noise", 0, count=MANY),
        bits_of_a_gpu(STEP, "noise", 1, count=MANY),
        bits_of_a_gpu(STEP, "score", 0, count=MANY),
        bits_of_a_gpu(RunKey(bytes(32)).at(3, 1), "noise", 0, count=MANY),
        STEP._bits("normals", "noise", 0, count=MANY, device=CPU),
    ]
    for other in others:
        assert abs(correlation(uniforms, rng._uniforms(other))) < 4


@pytest.mark.parametrize("count", [7, 65_535, 65_536, 65_537, 150_000])
def test_shares_of_the_normals_make_up_the_whole(count: int) -> None:
    whole = STEP.normals("noise", {"all": torch.empty(count)})["all"]
    cuts = sorted({0, 1, 3, count // 3, min(count, 65_536), count - 1, count})
    shares = STEP.normals_between("noise", pairwise(cuts), count=count, device=torch.device("cpu"))
    assert torch.cat(shares).equal(whole)


def test_spans_can_be_in_any_order_but_not_out_of_range() -> None:
    whole = STEP.normals("noise", {"all": torch.empty(150_000)})["all"]
    spans = [(140_000, 150_000), (0, 0), (5, 70_000), (5, 70_000)]
    shares = STEP.normals_between("noise", spans, count=150_000, device=torch.device("cpu"))
    assert all(share.equal(whole[first:last]) for share, (first, last) in zip(shares, spans, strict=True))
    for wrong in ((-1, 2), (3, 2), (0, 6)):
        with pytest.raises(InvalidValue, match="first, last"):
            STEP.normals_between("noise", [wrong], count=5, device=torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_shares_of_the_normals_of_a_gpu_make_up_the_whole() -> None:
    part = rng._PART_WORDS_ON_GPU
    device, count = torch.device("cuda"), part + 11
    whole = STEP.normals("noise", {"all": torch.empty(count, device=device)})["all"]
    cuts = (0, 5, part - 3, part + 4, count)
    shares = STEP.normals_between("noise", pairwise(cuts), count=count, device=device)
    assert torch.cat(shares).equal(whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_normals_on_a_gpu() -> None:
    like = {"weight": torch.empty(MANY, device="cuda")}
    found = STEP.normals("noise", like)["weight"]
    assert found.device.type == "cuda"
    assert found.dtype == torch.float64
    assert stats.kstest(found.cpu().numpy(), stats.norm.cdf).pvalue > 1e-3
    assert found.equal(STEP.normals("noise", like)["weight"])
    expected = reference_normals(STEP._derived("normals, key", "noise", 0).digest(rng.KEY_BYTES), MANY)
    assert found.cpu().numpy() == pytest.approx(expected.numpy(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("step, attempt", [(-1, 0), (0, -1), (1.5, 0), (math.nan, 0), (True, 0), (0, 10**19)])
def test_impossible_steps_and_attempts_are_refused(step: int, attempt: int) -> None:
    with pytest.raises(InvalidValue):
        KEY.at(step=step, attempt=attempt)


@pytest.mark.parametrize("purpose", ["", "  "])
def test_purposes_and_counts_are_checked(purpose: str) -> None:
    for draw in (
        lambda: STEP.uniforms(purpose, 1),
        lambda: STEP.generator(purpose, "cpu"),
        lambda: normals(1, purpose=purpose),
    ):
        with pytest.raises(InvalidValue, match="purpose"):
            draw()
    with pytest.raises(InvalidValue, match="count"):
        STEP.uniforms("sampling", -1)


# Contents: fingerprints, and a number for each record


def test_a_fingerprint_follows_key_content_and_chunks() -> None:
    found = KEY.fingerprint(b"ab", b"c")
    assert (
        found == KEY.fingerprint(b"ab", b"c") == KEY.fingerprint(iter([b"ab", b"c"])) == KEY.fingerprint([b"ab"], b"c")
    )
    assert found == KEY.fingerprint(bytearray(b"ab"), memoryview(b"c"))
    others = [KEY.fingerprint(*chunks) for chunks in ([b"a", b"bc"], [b"abc"], [b"ab", b"c", b""], [])]
    assert len({found, RunKey(bytes(32)).fingerprint(b"ab", b"c"), *others}) == 6
    assert len(found) == 64
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert KEY.fingerprint(array.data) == KEY.fingerprint(array.tobytes())


@given(contents=st.lists(st.binary(max_size=20), max_size=8), left_out=st.integers(0, 7))
@settings(max_examples=40)
def test_the_number_of_a_record_depends_on_no_other(contents: list[bytes], left_out: int) -> None:
    found = KEY.uniforms_of(contents, "split").tolist()
    assert found == [KEY.uniforms_of([content], "split").item() for content in contents]
    fewer = KEY.uniforms_of(contents[:left_out] + contents[left_out + 1 :], "split").tolist()
    assert fewer == found[:left_out] + found[left_out + 1 :]


def test_the_numbers_of_records_are_uniform() -> None:
    contents = [number.to_bytes(4, "big") for number in range(20_000)]
    split, other = KEY.uniforms_of(contents, "split"), KEY.uniforms_of(contents, "other")
    assert stats.kstest(split.numpy(), stats.uniform.cdf).pvalue > 1e-3
    assert abs(correlation(split, other)) < 4


# The key


def test_a_fresh_key_is_never_the_same_twice() -> None:
    assert len({RunKey.fresh().secret for _ in range(10)}) == 10
    for shown in (repr(KEY), str(KEY), repr(STEP), f"{STEP}"):
        assert repr(SECRET)[2:10] not in shown
        assert SECRET.hex()[:8] not in shown


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "0" * 32, bytearray(32), 5])
def test_other_keys_are_refused_without_showing_them(secret: bytes) -> None:
    with pytest.raises(InvalidValue, match="secret must be 32 bytes") as caught:
        RunKey(secret)
    assert "\\x00" not in str(caught.value)


@pytest.mark.parametrize("thing", [KEY, STEP], ids=["key", "step"])
def test_the_key_is_not_pickled_and_not_copied(thing: object) -> None:
    for way in (pickle.dumps, copy.copy if thing is KEY else copy.deepcopy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            way(thing)


def test_a_saved_key_is_private_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        KEY.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RunKey.load(path) == KEY
    with pytest.raises(StoreError, match="exists"):  # a key is never overwritten
        RunKey(bytes(32)).save(path)
    assert RunKey.load(path) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    KEY.save(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StoreError, match=f"{mode:04o}"):
        RunKey.load(tmp_path / "key")


@pytest.mark.parametrize("length", [0, 31, 33, 5000])
def test_a_key_file_of_another_length_is_refused_and_not_destroyed(tmp_path: Path, length: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"x" * length)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="a key has 32"):
        RunKey.load(path)
    if length > 32:
        with pytest.raises(StoreError, match="cannot destroy"):
            RunKey.destroy(path)
        assert path.read_bytes() == b"x" * length


def test_links_are_not_followed(tmp_path: Path) -> None:
    target, link, nowhere = tmp_path / "target", tmp_path / "link", tmp_path / "nowhere"
    KEY.save(target)
    link.symlink_to(target)
    nowhere.symlink_to(tmp_path / "missing")
    for attack in (lambda: RunKey.load(link), lambda: RunKey.destroy(link), lambda: KEY.save(nowhere)):
        with pytest.raises(StoreError, match="it is a link"):
            attack()
    assert RunKey.load(target) == KEY
    assert not (tmp_path / "missing").exists()


def test_folders_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StoreError, match="not a file"):
            RunKey.load(path)
        with pytest.raises(StoreError, match="cannot destroy"):
            RunKey.destroy(path)
    with pytest.raises(StoreError, match="cannot read the key"):
        RunKey.load(tmp_path / "key")
    with pytest.raises(StoreError, match="cannot write the key"):
        KEY.save(tmp_path / "missing" / "key")


@contextmanager
def no_room() -> Iterator[None]:
    """Every write to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_no_part_of_a_key(tmp_path: Path) -> None:
    with no_room(), pytest.raises(StoreError, match="cannot write the key"):
        KEY.save(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_destroyed_key_is_overwritten_and_gone(tmp_path: Path) -> None:
    path, beside = tmp_path / "key", tmp_path / "beside"
    KEY.save(path)
    os.link(path, beside)
    RunKey.destroy(path)
    assert not path.exists()
    assert beside.read_bytes() == bytes(32)
    with pytest.raises(StoreError, match="destroyed"):
        RunKey.load(beside)  # as after a kill between the two
    RunKey.destroy(path)
