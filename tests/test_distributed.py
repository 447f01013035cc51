"""Several processes, one run: real processes that meet by gloo, and the parts of their meeting by themselves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lehr.clipping.flat import FlatClip
from lehr.distributed import ALONE, Order, Ranks, device_of_rank, fingerprint_of, joined, refuse_wrapped
from lehr.errors import InvalidValue, RankLost
from lehr.interfaces import ClipRule, Inputs, PrivateSum
from lehr.loop import Share
from lehr.rng import RunKey
from tests.several_ranks import (
    STEPS,
    KillAt,
    charged,
    close,
    copied,
    interrupted_between_words_and_sum,
    interrupted_while_others_work,
    prepared,
    records,
    together,
    train,
)

KEY = RunKey(bytes(range(32)))


@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_the_shares_of_all_ranks_are_the_draw_and_no_two_have_a_record_in_common(total: int) -> None:
    places = torch.tensor([0, 1, 2, 5, 6, 7, 8, 20, 21, 35])
    shares = [Ranks(number=number, total=total).own(places) for number in range(total)]
    assert torch.cat(shares).sort().values.equal(places)


@pytest.mark.parametrize("places", [[], [0], [1, 4, 5, 9, 13]])
def test_every_rank_knows_the_largest_share_of_a_draw(places: list[int]) -> None:
    drawn = torch.tensor(places, dtype=torch.int64)
    expected = max(len(Ranks(number=number, total=3).own(drawn)) for number in range(3))
    assert Ranks(number=1, total=3).largest_share(drawn) == expected


def test_an_error_of_the_network_is_a_lost_rank_and_one_of_the_program_is_not() -> None:
    ranks = Ranks()
    for said, error in (("Gloo: Connection closed by peer", RankLost), ("mat1 and mat2 do not fit", RuntimeError)):
        with pytest.raises(error), ranks.side_by_side():
            raise RuntimeError(said)


def test_where_the_last_of_a_draw_takes_the_place_of_a_record_all_others_stay_where_they_are() -> None:
    """Otherwise one record more would move others to another rank, and another batch, to be rounded otherwise."""
    ranks = Ranks(number=0, total=2), Ranks(number=1, total=2)
    with_it, without = torch.tensor([12, 3, 9, 4, 8]), torch.tensor([12, 8, 9, 4])
    shares = [(rank.own(with_it).tolist(), rank.own(without).tolist()) for rank in ranks]
    assert shares == [([12, 9, 8], [12, 9]), ([3, 4], [8, 4])]


class Drawing:
    """An engine that sums what its layers drew by themselves."""

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor) -> PrivateSum:  # noqa: N803
        assert isinstance(inputs, Tensor)
        return PrivateSum(values={"dropped": torch.rand(4), "views": inputs.flatten()}, sensitivity=1.0)


def test_no_two_ranks_augment_or_drop_by_the_same_numbers() -> None:
    found = []
    for number in range(3):
        share = Share(
            engine=Drawing(),
            private=records(0, 6),
            views=lambda inputs, generator: torch.rand(2, generator=generator),
            physical_batch=6,
            device=torch.device("cpu"),
            ranks=Ranks(number=number, total=3),
        )
        [part] = share.parts(torch.arange(6), FlatClip(1.0), KEY.at(0, 0))
        found.append(part.values)
    for name in ("dropped", "views"):
        assert len({tuple(values[name].tolist()) for values in found}) == 3


def test_alone_there_is_nobody_to_talk_to() -> None:
    own = PrivateSum(values={"weight": torch.ones(2)}, sensitivity=1.0)
    assert joined() is ALONE
    assert list(ALONE.shares(own)) == []
    assert ALONE.environment({"a": "b"}, split="") == {"a": "b"}
    assert ALONE.environment(None, split="") is None
    assert ALONE.purpose("layers") == "layers"
    ALONE.hand_out(KEY)
    assert ALONE._key is None  # it outlives the run


def test_a_device_that_is_no_gpu_or_that_has_a_number_stays_as_it_is() -> None:
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        assert device_of_rank(device) == device


def test_weights_that_differ_in_one_number_have_another_fingerprint() -> None:
    model = nn.Linear(3, 2)
    before = fingerprint_of(model, KEY)
    with torch.no_grad():
        model.bias[1] += 1e-6
    assert fingerprint_of(model, KEY) != before


def test_a_rank_whose_weights_are_not_those_of_the_first_stops_the_run() -> None:
    rank, model = Ranks(number=1, total=2), nn.Linear(3, 2)
    rank._key = KEY
    rank._refuse_other_weights(model, fingerprint_of(model, KEY))
    rank._refuse_other_weights(model, None)
    with pytest.raises(RankLost, match="rank 1 has other weights"):
        rank._refuse_other_weights(nn.Linear(3, 2), fingerprint_of(model, KEY))


@pytest.mark.usefixtures("met")
def test_a_model_that_another_engine_shares_out_is_refused() -> None:
    sharded = nn.Linear(3, 2)
    refuse_wrapped(sharded)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InvalidValue, match="the module itself"):
        refuse_wrapped(DistributedDataParallel(nn.Linear(3, 2)))
    with pytest.raises(InvalidValue, match="sharded=True"):
        refuse_wrapped(sharded)


@pytest.mark.usefixtures("met")
def test_a_meeting_of_one_is_no_meeting() -> None:
    assert joined() is ALONE


# Batches of two leave most of four ranks without a record; the others have slots that carry something along.
METHODS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "tiny-batches": {"expected_batch_size": 2},
    "per-layer": {"method": "dpsgd-per-layer"},
    "sa-dpsgd": {"method": "sa-dpsgd"},
    "adadp": {"method": "adadp", "settings": {"learning_rate": 0.01}},
    "adadp, as published": {"method": "adadp", "settings": {"learning_rate": 0.01, "accounting": "published"}},
    "dpsur": {"method": "dpsur", "settings": {"test_batch_size": 30}},
}

RANKS = {name: (2, 4) if name in ("dpsgd", "tiny-batches") else (2,) for name in METHODS}


@pytest.mark.slow
def test_a_run_of_two_processes_is_that_of_one_with_its_noise_once(tmp_path: Path) -> None:
    alone = prepared(tmp_path / "alone")
    two = copied(alone, "two")
    expected = train(alone)
    first, second = together(2, [(two, {})])
    assert close(first[0], expected)
    assert first == second
    assert charged(two) == charged(alone)


@pytest.mark.slow
def test_every_method_ends_where_one_process_with_the_same_key_ends(tmp_path: Path) -> None:
    expected = {}
    for name, job in METHODS.items():
        run = prepared(tmp_path / name, **job)
        for total in RANKS[name]:
            copied(run, f"{name}-{total}")
        expected[name] = train(run, **job), charged(run)
    for total in (2, 4):
        jobs = {name: (tmp_path / f"{name}-{total}", job) for name, job in METHODS.items() if total in RANKS[name]}
        by_rank = together(total, list(jobs.values()))
        for (name, (run, _)), said in zip(jobs.items(), zip(*by_rank, strict=True), strict=True):
            alone, alone_charged = expected[name]
            assert all(answer == said[0] for answer in said), name
            assert close(said[0], alone), name
            assert (said[0]["end"], said[0]["certificate"]) == (alone["end"], alone["certificate"])
            assert charged(run) == alone_charged


@pytest.mark.slow
def test_a_killed_rank_stops_the_run_which_goes_on_as_if_it_never_was(tmp_path: Path) -> None:
    broken = prepared(tmp_path / "broken")
    whole = copied(broken, "whole")
    [first], [] = together(2, [(broken, {"misbehaves": {1: "dies"}})])
    assert first.startswith("RankLost: rank 1 is lost")
    assert 0 < charged(broken)[0] < STEPS
    [resumed], _ = together(2, [(broken, {})])
    [expected], _ = together(2, [(whole, {})])
    assert resumed == expected
    assert charged(broken) == charged(whole)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("total", [1, 3])
def test_what_is_taken_again_by_another_number_of_ranks_is_charged_again(total: int, tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    [], [second] = together(2, [(run, {"callbacks": [KillAt(5)]})])
    assert second.startswith("RankLost: rank 0 is lost")
    before, _ = charged(run)
    assert before >= 5
    resumed = train(run) if total == 1 else together(total, [(run, {})])[0][0]
    # Step 5 was charged and is taken again: the plan pays for one step less.
    repeated = before - 4
    assert charged(run)[0] == STEPS
    assert resumed["end"].step == STEPS - repeated
    assert f"plan spent {repeated} steps early" in resumed["end"].reason


@pytest.mark.slow
def test_an_error_of_one_rank_is_told_by_its_kind_and_ends_all(tmp_path: Path) -> None:
    first, second, third = together(3, [(prepared(tmp_path / "run"), {"misbehaves": {2: "fails"}})])
    assert first == ["RankLost: rank 2 stopped by ArithmeticError, of which it tells itself: the run stops"]
    assert second == ["RankLost: rank 0 stopped by RankLost, of which it tells itself"]
    assert third == ["ArithmeticError: what only this process should tell"]


@pytest.mark.slow
def test_what_was_in_memory_never_takes_the_place_of_a_sum_that_was_broken_off(tmp_path: Path) -> None:
    """Words are shorter than a sum: put in its place they would leave most of it as it was, and be released with it."""
    [first], [second] = interrupted_between_words_and_sum(tmp_path / "meeting")
    assert first.startswith("RankLost: rank 1 is lost: its connection is closed")
    assert second == "KeyboardInterrupt: "


@pytest.mark.slow
@pytest.mark.parametrize("busy_with", ["a collective", "sending words", "receiving a sum"])
@pytest.mark.parametrize("who", [0, 1])
def test_an_interrupted_rank_does_not_wait_for_others_who_do_not_listen(
    who: int, busy_with: str, tmp_path: Path
) -> None:
    said = interrupted_while_others_work(tmp_path / "meeting", who, busy_with)
    [(interrupted, seconds)], [(other, others_seconds)] = said[who], said[1 - who]
    assert (interrupted, other) == ("KeyboardInterrupt", "RankLost")
    assert max(seconds, others_seconds) < 20


class _Dropping:
    """Where an exception is dropped, as in the callbacks that Python calls while it collects garbage."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_drops_ends_the_run_before_the_next_step() -> None:
    reached = []

    def run() -> None:
        with ALONE.leading():
            _Dropping()
            reached.append("the next step")
            ALONE.order(Order(step=0, attempt=0, clipping={}), nn.Linear(1, 1))
            reached.append("too far")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert reached == ["the next step"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ALONE.leading():
        ALONE.order(Order(step=0, attempt=0, clipping={}), nn.Linear(1, 1))  # it is over


def test_who_handles_interrupts_themselves_goes_on_to_do_so() -> None:
    heard = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with ALONE.leading():
            signal.raise_signal(signal.SIGINT)
            ALONE.tell("nobody")
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [signal.SIGINT]


@pytest.mark.slow
def test_a_rank_that_clips_to_another_bound_than_it_was_written_down_stops_the_run(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run", unsaid_clip_norm={0: 1.0})
    [first], [second] = together(2, [(run, {"unsaid_clip_norm": {0: 1.0, 1: 2.0}})])
    assert first == "InvalidValue: sum must be clipped to 1.0 on every rank; given: '2.0 on rank 1'"
    assert second == "RankLost: rank 0 stopped by InvalidValue, of which it tells itself"


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost_after_the_time_that_the_program_allows(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    [first], [] = together(2, [(run, {"misbehaves": {1: "hangs"}})], timeout=6)
    assert first.startswith("RankLost: rank 1 is lost: it did not answer in time")
    assert 0 < charged(run)[0] < STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    "differing, what",
    [({"data": {1: records(5, 60)}}, "records"), ({"settings_of_rank": {1: {"clip_norm": 2.0}}}, "settings")],
)
def test_a_rank_with_other_records_or_settings_is_refused_before_anything_is_spent(
    differing: dict[str, Any], what: str, tmp_path: Path
) -> None:
    [first], [second] = together(2, [(tmp_path / "run", {"resume": False, **differing})])
    assert first.startswith(f"InvalidValue: {what} must be the same on every rank")
    assert "rank 0 stopped" in second
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_command_runs_under_torchrun_and_speaks_once(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    # Without the dashes torchrun takes --run for an option of its own.
    lehr = ["--", sys.executable, "-c", "from lehr.cli.main import main; main()"]
    words = ["train", "--dataset=digits", "--epsilon=8", "--steps=3", "--expected-batch-size=64", "--json"]
    command = [*torchrun, *lehr, *words, "--run", str(tmp_path / "run")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["steps"] == 3
    assert charged(tmp_path / "run")[0] == 3
    [attempt] = (tmp_path / "run" / "private" / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(attempt)["environment"]["ranks"].startswith("2: ")
