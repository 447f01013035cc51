"""The maker of random numbers: what the numbers depend on, what law they follow, and who gets hold of the key."""

from __future__ import annotations

import copy
import hashlib
import math
import os
import pickle
import resource
import stat
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
needs_permissions = pytest.mark.skipif(os.geteuid() == 0, reason="every folder can be written to by root")


def normals(count: int, *, key: RunKey = KEY, step: int = 3, attempt: int = 1, purpose: str = "noise") -> Tensor:
    return key.at(step=step, attempt=attempt).normals(purpose, {"weight": torch.empty(count)})["weight"]


# What the numbers depend on


def test_uniform_numbers_are_the_upper_bits_of_the_hash_of_all_that_names_them() -> None:
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


def test_what_belongs_to_one_name_cannot_be_moved_into_the_next() -> None:
    assert KEY._derived("a", "bc").digest(16) != KEY._derived("ab", "c").digest(16)
    assert KEY._derived("a", "b", "c").digest(16) != KEY._derived("a", "bc").digest(16)


def test_the_same_purpose_never_gives_the_same_bits_for_two_kinds_of_numbers() -> None:
    uniforms = STEP.uniforms("noise", 2)
    remade = rng._box_muller(uniforms.clone())
    assert not remade.equal(normals(2))


def test_more_uniform_numbers_only_add_to_their_end_also_across_calls_of_the_hash() -> None:
    largest = STEP.uniforms("sampling", 2 * rng._PART_WORDS + 9)
    for count in (0, 1, 7, rng._PART_WORDS, rng._PART_WORDS + 1, 2 * rng._PART_WORDS + 8):
        assert STEP.uniforms("sampling", count).equal(largest[:count])
    assert len(set(largest.tolist())) == len(largest)


def test_the_same_place_gives_the_same_numbers_bit_by_bit() -> None:
    again = RunKey(SECRET).at(step=3, attempt=1)
    assert again.uniforms("sampling", 100).equal(STEP.uniforms("sampling", 100))
    assert normals(101, key=RunKey(SECRET)).equal(normals(101))
    assert again.generator("dropout", "cpu").initial_seed() == STEP.generator("dropout", "cpu").initial_seed()


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
def test_normals_of_another_place_are_independent(other: dict[str, object]) -> None:
    one, two = normals(MANY), normals(MANY, **other)  # type: ignore[arg-type]
    assert abs(correlation(one, two)) < 4
    assert abs(correlation(one.square(), two.square())) < 4


# Numbers that a shortened counter would confuse: neighbours, those that differ in one bit, and large ones.
FAR = sorted({0, *range(990, 1012), *(max(0, 2**b + d) for b in range(60) for d in (-1, 0, 1, 5)), 10**6, 10**12})


@pytest.mark.parametrize("name", ["step", "attempt"])
@pytest.mark.parametrize("kind", ["uniforms", "normals", "normals of a GPU", "seed", "generator"])
def test_no_two_steps_and_no_two_attempts_of_the_longest_run_share_a_number(name: str, kind: str) -> None:
    cpu = torch.device("cpu")

    def drawn(randomness: rng.StepRandomness) -> object:
        match kind:
            case "uniforms":
                return tuple(randomness.uniforms("sampling", 2).tolist())
            case "normals":
                return tuple(randomness.normals("noise", {"weight": torch.empty(2)})["weight"].tolist())
            case "normals of a GPU":
                return tuple(randomness._normals_there("noise", 0, 2, cpu).tolist())
            case "seed":
                return randomness.seed("dropout")
            case _:
                return tuple(torch.rand(2, generator=randomness.generator("dropout", cpu)).tolist())

    found = [drawn(KEY.at(**{"step": 7, "attempt": 7} | {name: number})) for number in FAR]
    assert len(set(found)) == len(FAR)


def test_all_64_bits_of_a_gpus_seed_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps 32 bits of a seed on a CPU and all 64 on a GPU, so what it is seeded with is looked at."""
    seeds: list[int] = []

    class Seeded(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            seeds.append(seed)
            return super().manual_seed(seed)

    monkeypatch.setattr(torch, "Generator", Seeded)
    for step in range(64):
        KEY.at(step, 0)._normals_there("noise", 0, 1, torch.device("cpu"))
        KEY.at(step, 0)._normals_there("noise", 1, 1, torch.device("cpu"))
        KEY.at(step, 0).generator("dropout", "cpu")
    for made in (seeds[0::3], seeds[1::3], seeds[2::3]):
        assert len(set(made)) == 64
        ever_set, always_set = (np.bitwise_or.reduce, np.bitwise_and.reduce)
        assert int(ever_set(np.array(made, dtype=np.uint64))) == 2**64 - 1
        assert int(always_set(np.array(made, dtype=np.uint64))) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_all_64_bits_of_a_seed_reach_the_generator_of_a_gpu() -> None:
    seeds = [KEY.at(step, 0).generator("dropout", "cuda").initial_seed() % 2**64 for step in range(64)]
    assert seeds == [KEY.at(step, 0).seed("dropout") for step in range(64)]
    assert int(np.bitwise_or.reduce(np.array(seeds, dtype=np.uint64))) == 2**64 - 1
    low, high = (torch.Generator("cuda").manual_seed(seed) for seed in (5, 5 + 2**40))
    drawn = [torch.randn(4, generator=made, device="cuda").tolist() for made in (low, high)]
    assert drawn[0] != drawn[1]


def test_normals_of_two_names_are_one_stream_in_the_order_given() -> None:
    shapes = {"weight": torch.empty(40, 5), "bias": torch.empty(7), "scale": torch.empty(())}
    found = STEP.normals("noise", shapes)
    assert {name: value.shape for name, value in found.items()} == {name: like.shape for name, like in shapes.items()}
    assert torch.cat([value.flatten() for value in found.values()]).equal(normals(208))


def test_normals_of_two_names_are_independent() -> None:
    found = STEP.normals("noise", {"first": torch.empty(MANY), "second": torch.empty(MANY)})
    assert abs(correlation(found["first"], found["second"])) < 4


def test_the_numbers_of_a_pair_are_independent() -> None:
    radius_and_angle = rng._box_muller(STEP.uniforms("noise", MANY)).view(2, -1)
    for power in (1, 2):
        assert abs(correlation(*radius_and_angle**power)) < 4


def correlation(one: Tensor, two: Tensor) -> float:
    """The sample correlation in units of its standard deviation, if there is none."""
    return float(np.corrcoef(one.numpy(), two.numpy())[0, 1] * math.sqrt(len(one)))


def test_equal_and_nearly_equal_numbers_are_found_to_be_dependent() -> None:
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


def test_laws_close_to_the_normal_one_are_found_out(million: NDArray[np.float64]) -> None:
    assert stats.kstest(1.01 * million, stats.norm.cdf).pvalue < 1e-6
    assert stats.kstest(million + 0.02, stats.norm.cdf).pvalue < 1e-6
    assert tails(np.clip(million, -4, 4)) < 1e-6
    assert tails(million * np.sqrt(1.1)) < 1e-6


@pytest.mark.parametrize("on_gpu", [False, True], ids=["cpu", "the way of a GPU"])
def test_the_far_tails_of_the_normals_are_there(on_gpu: bool) -> None:
    """Of four million some 27 lie beyond 4.5: noise that is cut off there tells apart what ideal noise hides."""
    step, count = KEY.at(step=5, attempt=0), 4_000_000
    found = (step._normals_there("noise", 0, count, torch.device("cpu")) if on_gpu else normals(count, step=5)).numpy()
    assert tails(found) > 1e-3
    assert tails(np.clip(found, -4.5, 4.5)) < 1e-6


def test_uniform_numbers_follow_the_uniform_law_and_never_reach_its_ends() -> None:
    found = STEP.uniforms("sampling", 1_000_000).numpy()
    assert stats.kstest(found, stats.uniform.cdf).pvalue > 1e-3
    assert stats.kstest(found**1.01, stats.uniform.cdf).pvalue < 1e-6
    lag = stats.pearsonr(found[:-1], found[1:])
    assert lag.pvalue > 1e-3


def test_the_smallest_and_the_largest_word_lie_inside_the_open_interval() -> None:
    found = rng._uniforms(bytes(8) + b"\xff" * 8)
    assert found.tolist() == [2.0**-53, 1 - 2.0**-53]


@pytest.mark.parametrize("radius", [2.0**-53, 1 - 2.0**-53])
@pytest.mark.parametrize("angle", [2.0**-53, 0.25, 1 - 2.0**-53])
def test_the_extreme_uniform_numbers_make_finite_normals(radius: float, angle: float) -> None:
    found = rng._box_muller(torch.tensor([radius, angle], dtype=torch.float64))
    assert found.isfinite().all()
    assert found.norm().item() == pytest.approx(math.sqrt(-2 * math.log(radius)), rel=1e-12)


@pytest.mark.parametrize("count", [0, 1, 2, 3, rng._PART_WORDS - 1, rng._PART_WORDS + 1])
def test_any_number_of_normals_can_be_had(count: int) -> None:
    found = normals(count)
    assert found.shape == (count,)
    assert found.dtype == torch.float64


def test_of_no_names_there_are_no_normals() -> None:
    assert STEP.normals("noise", {}) == {}


def test_normals_for_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(InvalidValue, match="one device"):
        STEP.normals("noise", {"here": torch.empty(2), "there": torch.empty(2, device="meta")})


def test_the_way_of_the_gpu_makes_normals_of_its_own_stream() -> None:
    """On a CPU here; the same generator of torch, seeded in the same way, as on a GPU."""
    found = STEP._normals_there("noise", 0, MANY, torch.device("cpu"))
    assert stats.kstest(found.numpy(), stats.norm.cdf).pvalue > 1e-3
    assert found.equal(STEP._normals_there("noise", 0, MANY, torch.device("cpu")))
    assert abs(correlation(found, KEY.at(step=4, attempt=1)._normals_there("noise", 0, MANY, torch.device("cpu")))) < 4
    assert abs(correlation(found, normals(MANY))) < 4


def test_the_way_of_the_gpu_has_another_stream_for_each_part() -> None:
    first, second = (STEP._normals_there("noise", part, MANY, torch.device("cpu")) for part in range(2))
    assert abs(correlation(first, second)) < 4


@pytest.mark.parametrize("count", [7, 65_535, 65_536, 65_537, 150_000])
def test_shares_of_the_normals_put_together_are_the_normals(count: int) -> None:
    whole = STEP.normals("noise", {"all": torch.empty(count)})["all"]
    cuts = sorted({0, 1, 3, count // 3, min(count, 65_536), count - 1, count})
    shares = STEP.normals_between("noise", pairwise(cuts), count=count, device=torch.device("cpu"))
    assert torch.cat(shares).equal(whole)


def test_spans_may_stand_in_any_order() -> None:
    whole = STEP.normals("noise", {"all": torch.empty(150_000)})["all"]
    spans = [(140_000, 150_000), (0, 0), (5, 70_000), (5, 70_000)]
    shares = STEP.normals_between("noise", spans, count=150_000, device=torch.device("cpu"))
    assert all(share.equal(whole[first:last]) for share, (first, last) in zip(shares, spans, strict=True))


@pytest.mark.parametrize("first, last", [(-1, 2), (3, 2), (0, 6)])
def test_normals_that_are_not_there_are_refused(first: int, last: int) -> None:
    with pytest.raises(InvalidValue, match="first, last"):
        STEP.normals_between("noise", [(first, last)], count=5, device=torch.device("cpu"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_shares_of_a_gpus_normals_put_together_are_the_normals() -> None:
    device, count = torch.device("cuda"), 2**24 + 11
    whole = STEP.normals("noise", {"all": torch.empty(count, device=device)})["all"]
    cuts = (0, 5, 2**24 - 3, 2**24 + 4, count)
    shares = STEP.normals_between("noise", pairwise(cuts), count=count, device=device)
    assert torch.cat(shares).equal(whole)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_the_normals_are_there_and_the_cryptographic_ones_are_those_of_the_cpu() -> None:
    like = {"weight": torch.empty(MANY, device="cuda")}
    found = STEP.normals("noise", like)["weight"]
    assert found.device.type == "cuda"
    assert found.dtype == torch.float64
    assert stats.kstest(found.cpu().numpy(), stats.norm.cdf).pvalue > 1e-3
    assert found.equal(STEP.normals("noise", like)["weight"])
    secure = RunKey(SECRET, cryptographic_on_gpu=True).at(step=3, attempt=1).normals("noise", like)["weight"]
    assert secure.device.type == "cuda"
    assert secure.cpu().equal(normals(MANY))


def test_generators_of_two_places_differ_and_one_place_repeats() -> None:
    def drawn(step: int, purpose: str) -> list[float]:
        made = KEY.at(step=step, attempt=0).generator(purpose, "cpu")
        return torch.rand(4, generator=made).tolist()

    assert drawn(1, "augmentation") == drawn(1, "augmentation")
    assert len({tuple(drawn(step, purpose)) for step in (1, 2) for purpose in ("augmentation", "dropout")}) == 4


@pytest.mark.parametrize("step, attempt", [(-1, 0), (0, -1), (1.5, 0), (math.nan, 0), (True, 0), (0, 10**19)])
def test_a_step_or_attempt_that_is_none_is_refused(step: int, attempt: int) -> None:
    with pytest.raises(InvalidValue):
        KEY.at(step=step, attempt=attempt)


@pytest.mark.parametrize("purpose", ["", "  "])
def test_a_purpose_has_a_name(purpose: str) -> None:
    for asked in (
        lambda: STEP.uniforms(purpose, 1),
        lambda: STEP.generator(purpose, "cpu"),
        lambda: normals(1, purpose=purpose),
    ):
        with pytest.raises(InvalidValue, match="purpose"):
            asked()


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(InvalidValue, match="count"):
        STEP.uniforms("sampling", -1)


# Contents: fingerprints, and a number for each record


def test_a_fingerprint_depends_on_key_content_and_where_chunks_end() -> None:
    found = KEY.fingerprint(b"ab", b"c")
    assert (
        found == KEY.fingerprint(b"ab", b"c") == KEY.fingerprint(iter([b"ab", b"c"])) == KEY.fingerprint([b"ab"], b"c")
    )
    assert found == KEY.fingerprint(bytearray(b"ab"), memoryview(b"c"))
    others = [KEY.fingerprint(*chunks) for chunks in ([b"a", b"bc"], [b"abc"], [b"ab", b"c", b""], [])]
    assert len({found, RunKey(bytes(32)).fingerprint(b"ab", b"c"), *others}) == 6
    assert len(found) == 64


def test_a_fingerprint_of_an_array_counts_its_bytes() -> None:
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert KEY.fingerprint(array.data) == KEY.fingerprint(array.tobytes())


@given(contents=st.lists(st.binary(max_size=20), max_size=8), left_out=st.integers(0, 7))
@settings(max_examples=40)
def test_the_number_of_a_record_does_not_depend_on_any_other(contents: list[bytes], left_out: int) -> None:
    found = KEY.uniforms_of(contents, "split").tolist()
    assert found == [KEY.uniforms_of([content], "split").item() for content in contents]
    fewer = KEY.uniforms_of(contents[:left_out] + contents[left_out + 1 :], "split").tolist()
    assert fewer == found[:left_out] + found[left_out + 1 :]


def test_the_numbers_of_records_are_uniform_and_of_two_purposes_independent() -> None:
    contents = [number.to_bytes(4, "big") for number in range(20_000)]
    split, other = KEY.uniforms_of(contents, "split"), KEY.uniforms_of(contents, "other")
    assert stats.kstest(split.numpy(), stats.uniform.cdf).pvalue > 1e-3
    assert abs(correlation(split, other)) < 4


# The key


def test_a_fresh_key_is_never_the_same_twice() -> None:
    assert len({RunKey.fresh().secret for _ in range(10)}) == 10
    assert RunKey.fresh(cryptographic_on_gpu=True).cryptographic_on_gpu


@pytest.mark.parametrize("secret", [b"", bytes(31), bytes(33), "0" * 32, bytearray(32), 5])
def test_a_key_of_another_length_or_type_is_refused_without_showing_it(secret: bytes) -> None:
    with pytest.raises(InvalidValue, match="secret must be 32 bytes") as caught:
        RunKey(secret)
    assert "\\x00" not in str(caught.value)


def test_the_secret_is_not_in_what_is_printed() -> None:
    for shown in (repr(KEY), str(KEY), repr(STEP), f"{STEP}"):
        assert repr(SECRET)[2:10] not in shown
        assert SECRET.hex()[:8] not in shown


@pytest.mark.parametrize("thing", [KEY, STEP], ids=["key", "step"])
def test_the_key_is_not_pickled_and_not_copied(thing: object) -> None:
    for way in (pickle.dumps, copy.copy if thing is KEY else copy.deepcopy, copy.deepcopy):
        with pytest.raises(TypeError, match="neither pickled nor copied"):
            way(thing)


def test_a_saved_key_is_loaded_and_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        KEY.save(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert RunKey.load(path) == KEY
    assert RunKey.load(path, cryptographic_on_gpu=True).cryptographic_on_gpu


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    KEY.save(path)
    with pytest.raises(StoreError, match=r"cannot write the key .*exists"):
        RunKey(bytes(32)).save(path)
    assert RunKey.load(path) == KEY


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o644])
def test_a_key_that_others_may_know_is_refused(tmp_path: Path, mode: int) -> None:
    KEY.save(tmp_path / "key")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(StoreError, match=f"its mode is {mode:04o}.*0600 is allowed"):
        RunKey.load(tmp_path / "key")


@pytest.mark.parametrize("length", [0, 31, 33, 5000])
def test_a_key_file_of_another_length_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(bytes(length))
    path.chmod(0o600)
    with pytest.raises(StoreError, match="bytes and a key has 32"):
        RunKey.load(path)


def test_a_link_in_place_of_the_key_is_neither_read_nor_written_nor_destroyed(tmp_path: Path) -> None:
    target, link, nowhere = tmp_path / "target", tmp_path / "link", tmp_path / "nowhere"
    KEY.save(target)
    link.symlink_to(target)
    nowhere.symlink_to(tmp_path / "missing")
    for attack in (lambda: RunKey.load(link), lambda: RunKey.destroy(link), lambda: KEY.save(nowhere)):
        with pytest.raises(StoreError, match="it is a link"):
            attack()
    assert RunKey.load(target) == KEY
    assert not (tmp_path / "missing").exists()


def test_a_folder_or_a_pipe_in_place_of_the_key_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(StoreError, match=r"cannot read the key .* not a file"):
            RunKey.load(path)
        with pytest.raises(StoreError, match="cannot destroy the key"):
            RunKey.destroy(path)


def test_a_key_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot read the key .*key: No such file"):
        RunKey.load(tmp_path / "key")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write the key .*No such file"):
        KEY.save(tmp_path / "missing" / "key")


@needs_permissions
def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StoreError, match=r"cannot write the key .*Permission denied"):
            KEY.save(tmp_path / "key")
    finally:
        tmp_path.chmod(0o700)


@contextmanager
def no_room() -> Iterator[None]:
    """Every write to a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_there_is_no_room_no_part_of_a_key_is_left(tmp_path: Path) -> None:
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


def test_what_is_not_a_key_is_not_destroyed(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis"
    thesis.write_bytes(b"x" * 1000)
    with pytest.raises(StoreError, match="it stays"):
        RunKey.destroy(thesis)
    assert thesis.read_bytes() == b"x" * 1000
