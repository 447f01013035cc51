"""Several processes, one run: real gloo processes, and the collectives by themselves."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lehr.errors import InvalidValue, RankLost
from lehr.interfaces import PrivateSum
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.distributed import ALONE, Ranks, device_of_rank, fingerprint_of, join_ranks, refuse_wrapped
from lehr.run.private_run import PrivateRun, UnplannedRunSpec
from tests.several_ranks import (
    STEPS,
    KillAt,
    charged,
    close,
    collectives,
    copied,
    interrupted_while_others_work,
    prepared,
    records,
    together,
    train,
)

KEY = RunKey(bytes(range(32)))
SAMPLING = PoissonSampling(expected_batch_size=20, records=40)


@pytest.mark.parametrize("total", [1, 2, 3, 7])
def test_shares_of_all_ranks_are_the_draw(total: int) -> None:
    places = torch.tensor([0, 1, 2, 5, 6, 7, 8, 20, 21, 35])
    shares = [Ranks(number=number, total=total).share_of(places) for number in range(total)]
    assert torch.cat(shares).sort().values.equal(places)


@pytest.mark.parametrize("places", [[], [0], [1, 4, 5, 9, 13]])
def test_largest_share_of_a_draw(places: list[int]) -> None:
    drawn = torch.tensor(places, dtype=torch.int64)
    expected = max(len(Ranks(number=number, total=3).share_of(drawn)) for number in range(3))
    assert Ranks(number=1, total=3).largest_share(drawn) == expected


def test_network_errors_are_lost_ranks() -> None:
    ranks = Ranks(total=2)
    for said, error in (("Gloo: Connection closed by peer", RankLost), ("mat1 and mat2 do not fit", RuntimeError)):
        with pytest.raises(error), ranks.session():
            raise RuntimeError(said)


def test_one_record_moves_only_itself_and_the_last_one() -> None:
    """Otherwise one record more would move others to another rank, and another batch, to be rounded otherwise."""
    ranks = Ranks(number=0, total=2), Ranks(number=1, total=2)
    with_it, without = torch.tensor([12, 3, 9, 4, 8]), torch.tensor([12, 8, 9, 4])
    shares = [(rank.share_of(with_it).tolist(), rank.share_of(without).tolist()) for rank in ranks]
    assert shares == [([12, 9, 8], [12, 9]), ([3, 4], [8, 4])]


def test_no_two_ranks_share_random_numbers() -> None:
    found = []
    for number in range(3):
        run = PrivateRun.open(UnplannedRunSpec(sampling=SAMPLING, num_records=40, physical_batch=4, key=KEY))
        run.ranks = Ranks(number=number, total=3)
        step = run.draw()
        with torch.random.fork_rng():
            step.seed_layers(torch.device("cpu"))
            found += [torch.rand(4), torch.rand(4, generator=step.generator("augmentation", torch.device("cpu")))]
    assert len({tuple(values.tolist()) for values in found}) == 6


def test_collectives_of_one_process() -> None:
    own = PrivateSum(values={"weight": torch.ones(2)}, sensitivity=1.0)
    assert join_ranks() is ALONE
    assert ALONE.reduce(own) is own
    assert ALONE.gather({"a": "b"}) == [{"a": "b"}]
    assert ALONE.purpose("layers") == "layers"


@pytest.mark.slow
@pytest.mark.parametrize("total", [2, 3])
def test_collectives_of_several_ranks(total: int, tmp_path: Path) -> None:
    said = collectives(tmp_path / "meeting", total)
    assert all(one == said[0] for one in said)
    found, refused = said[0]
    expected = torch.arange(5.0).double() / 3
    for rank in range(1, total):
        expected = expected + torch.arange(5.0).double() * (rank + 1) / 3
    assert found["reduced"]["a"] == expected.tolist()
    assert found["first"] == [0, math.inf]
    assert found["gathered"] == ["x" * rank for rank in range(total)]
    assert found["mine"] == [0.0] * 3
    assert "clipped to the same bound on every rank" in refused


def test_device_of_a_rank() -> None:
    for device in (torch.device("cpu"), torch.device("cuda", 1)):
        assert device_of_rank(device) == device


def test_fingerprint_of_weights() -> None:
    model = nn.Linear(3, 2)
    before = fingerprint_of(model.parameters(), KEY)
    with torch.no_grad():
        model.bias[1] += 1e-6
    assert fingerprint_of(model.parameters(), KEY) != before


@pytest.mark.usefixtures("met")
def test_distributed_models_are_refused() -> None:
    sharded = nn.Linear(3, 2)
    refuse_wrapped(sharded)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(InvalidValue, match="the module itself"):
        refuse_wrapped(DistributedDataParallel(nn.Linear(3, 2)))
    with pytest.raises(InvalidValue, match="sharded=True"):
        refuse_wrapped(sharded)


@pytest.mark.usefixtures("met")
def test_process_group_of_one() -> None:
    assert join_ranks() is ALONE


# Batches of two leave most of four ranks without a record; the last five have components with a state.
METHODS: dict[str, dict[str, Any]] = {
    "dpsgd": {},
    "tiny-batches": {"expected_batch_size": 2},
    "per-layer": {"method": "dpsgd-per-layer"},
    "quantile": {"settings": {"clip": "quantile"}},
    "sa-dpsgd": {"method": "sa-dpsgd"},
    "adadp": {"method": "adadp", "settings": {"learning_rate": 0.01}},
    "adadp, as published": {"method": "adadp", "settings": {"learning_rate": 0.01, "accounting": "published"}},
    "dpsur": {"method": "dpsur", "settings": {"test_batch_size": 30}},
}

RANKS = {name: (2, 4) if name in ("dpsgd", "tiny-batches") else (2,) for name in METHODS}


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path: Path) -> None:
    alone = prepared(tmp_path / "alone")
    two = copied(alone, "two")
    expected = train(alone)
    first, second = together(2, [(two, {})])
    assert close(first[0], expected)
    assert first == second
    assert charged(two) == charged(alone)


@pytest.mark.slow
def test_every_method_equals_one_process(tmp_path: Path) -> None:
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
def test_killed_rank_stops_the_run_which_resumes_bit_for_bit(tmp_path: Path) -> None:
    broken = prepared(tmp_path / "broken")
    whole = copied(broken, "whole")
    [first], [] = together(2, [(broken, {"misbehaves": {1: "dies"}})])
    assert first.startswith("RankLost: ")
    assert 0 < charged(broken)[0] < STEPS
    [resumed, expected], _ = together(2, [(broken, {}), (whole, {})])
    assert resumed == expected
    assert charged(broken) == charged(whole)
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_steps_repeated_by_another_number_of_ranks_are_charged_again(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    [], [second] = together(2, [(run, {"callbacks": [KillAt(5)]})])
    assert second.startswith("RankLost: ")
    before, _ = charged(run)
    assert before >= 5
    three = copied(run, "three")
    for resumed, directory in ((train(run), run), (together(3, [(three, {})])[0][0], three)):
        # Step 5 was charged and is taken again: the plan pays for one step less.
        repeated = before - 4
        assert charged(directory)[0] == STEPS
        assert resumed["end"].step == STEPS - repeated
        assert f"ended {repeated} steps early" in resumed["end"].reason


@pytest.mark.slow
def test_error_of_one_rank_stops_all_and_sends_its_type_only(tmp_path: Path) -> None:
    [first], [second], [third] = together(3, [(prepared(tmp_path / "run"), {"misbehaves": {2: "fails"}})])
    assert third == "ArithmeticError: what only this process should tell"
    for said in (first, second):
        assert said.startswith("RankLost: rank 2 stopped by ArithmeticError")
    assert 0 < charged(tmp_path / "run")[0] < STEPS


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_interrupted_rank_stops_the_others_at_once(who: int, tmp_path: Path) -> None:
    said = interrupted_while_others_work(tmp_path / "meeting", who)
    for (interrupted, _, seconds), (other, why, others_seconds) in zip(said[who], said[1 - who], strict=True):
        assert (interrupted, other) == ("KeyboardInterrupt", "RankLost")
        assert f"rank {who} stopped by KeyboardInterrupt" in why
        assert max(seconds, others_seconds) < 2.5
    assert len(said[0]) == 3


@pytest.mark.slow
def test_ctrl_c_of_one_rank_ends_all_of_them_with_a_checkpoint_of_the_same_step(tmp_path: Path) -> None:
    stopped = prepared(tmp_path / "stopped")
    whole = copied(stopped, "whole")
    assert together(2, [(stopped, {"misbehaves": {1: "interrupts"}, "checkpoint_seconds": 600})]) == [
        ["KeyboardInterrupt: "],
        ["KeyboardInterrupt: "],
    ]
    assert 0 < max(int(path.stem.removeprefix("step-")) for path in (stopped / "checkpoints").iterdir()) < STEPS
    assert "This run is not finished" in (stopped / "report.html").read_text(encoding="utf-8")
    [resumed, expected], _ = together(2, [(stopped, {}), (whole, {})])
    assert resumed == expected
    assert charged(stopped) == charged(whole)


@pytest.mark.slow
def test_hanging_rank_is_lost_after_the_timeout(tmp_path: Path) -> None:
    run = prepared(tmp_path / "run")
    [first], [] = together(2, [(run, {"misbehaves": {1: "hangs"}})], timeout=6)
    assert first.startswith("RankLost: a rank did not answer in time")
    assert 0 < charged(run)[0] < STEPS


@pytest.mark.slow
def test_rank_with_other_settings_is_refused_before_a_release(tmp_path: Path) -> None:
    """Other records, other settings, a method that cannot be sharded; and another bound, which nobody wrote down."""
    refused: dict[str, dict[str, Any]] = {
        "records must be the same on every rank": {"data": {1: records(5, 60)}},
        "settings must be the same on every rank": {"settings_of_rank": {1: {"clip_norm": 2.0}}},
        "method must be one that accepts every step": {"sharded": True, "method": "sa-dpsgd"},
    }
    jobs = [(tmp_path / f"run-{place}", {"resume": False, **job}) for place, job in enumerate(refused.values())]
    other_bound = {"unsaid_clip_norm": {0: 1.0, 1: 2.0}}
    unsaid = prepared(tmp_path / "unsaid", unsaid_clip_norm={0: 1.0})
    sharded = copied(unsaid, "unsaid, sharded")
    first, second = together(2, [*jobs, (unsaid, other_bound), (sharded, {"sharded": True, **other_bound})])
    assert first == second
    bound = "sensitivity must be clipped to the same bound on every rank"
    for said, expected in zip(first, [*refused, bound, bound], strict=True):
        assert said.startswith(f"InvalidValue: {expected}")
    assert not any(directory.exists() for directory, _ in jobs)


@pytest.mark.slow
def test_command_under_torchrun_prints_once(tmp_path: Path) -> None:
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
