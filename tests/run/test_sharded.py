"""Sharded weights: the rows and the noise of each rank, and whole runs that equal a run of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from lehr.gradients.hooked import ShardedEngine
from lehr.interfaces import PrivateSum
from lehr.optim.averaging import ExponentialAverage
from lehr.optim.optimizers import adam
from lehr.privacy.clipping import FlatClip
from lehr.privacy.noise import DiscreteNoise, IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.distributed import Ranks
from lehr.run.sharded import Layout, ShardRandomness, Shards, _units, rows_of
from tests.several_ranks import charged, close, copied, prepared, together, train

KEY = RunKey(bytes(range(32)))
SIZES = {"frozen": (3,), "first": (5, 2), "second": (2,), "third": (7, 3)}
SHAPES = {name: torch.Size(size) for name, size in SIZES.items()}
TRAINED = ("first", "second", "third")


def layout(number: int, total: int) -> Layout:
    return Layout(shapes=SHAPES, trained=TRAINED, number=number, total=total)


def randomness(number: int, total: int) -> ShardRandomness:
    return ShardRandomness(key=KEY, step=3, attempt=1, layout=layout(number, total))


def empty(number: int, total: int) -> dict[str, Tensor]:
    return {name: torch.empty(layout(number, total).shape(name)) for name in TRAINED}


@pytest.mark.parametrize("total", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_each_row_is_on_one_rank_as_in_torch(length: int, total: int) -> None:
    rows = rows_of(length, total)
    assert [row for share in rows for row in share] == list(range(length))
    cut = [len(part) for part in torch.arange(length).chunk(total)]
    assert [len(share) for share in rows] == cut + [0] * (total - len(cut))


@pytest.mark.parametrize("total", [1, 2, 4, 9])
def test_noise_of_all_ranks_is_that_of_one_process(total: int) -> None:
    whole = KEY.at(3, 1).normals("noise", {name: torch.empty(SHAPES[name]) for name in TRAINED})
    shares = [randomness(number, total).normals("noise", empty(number, total)) for number in range(total)]
    for name in TRAINED:
        assert torch.cat([share[name] for share in shares]).equal(whole[name])


def test_no_two_ranks_use_the_same_noise() -> None:
    """The planted bug of sharded noise: every rank begins at the beginning."""
    drawn = [randomness(number, 4).normals("noise", empty(number, 4)) for number in range(4)]
    numbers = torch.cat([value.flatten() for share in drawn for value in share.values()])
    assert len(set(numbers.tolist())) == len(numbers) == layout(0, 4).count


@pytest.mark.parametrize("noise", [IsotropicNoise(), DiscreteNoise()], ids=["float", "discrete"])
def test_rows_are_released_with_the_noise_of_the_whole(noise: IsotropicNoise) -> None:
    whole = PrivateSum(values={name: torch.ones(SHAPES[name]) for name in TRAINED}, sensitivity=2.0)
    expected = noise.release(whole, noise_multiplier=1.5, randomness=KEY.at(3, 1))
    for number in range(3):
        held = {name: torch.ones(layout(number, 3).shape(name)) for name in TRAINED}
        share = PrivateSum(values=held, sensitivity=2.0)
        found = noise.release(share, noise_multiplier=1.5, randomness=randomness(number, 3))
        for name in TRAINED:
            rows = layout(number, 3).rows(name)
            assert found.values[name].equal(expected.values[name][rows.start : rows.stop])
        assert found.noise_std == expected.noise_std


def test_owner_of_tensors_in_a_checkpoint() -> None:
    of = layout(0, 2).owner
    assert of("model/first", torch.ones(3, 2)) == "first"
    assert of("optimizer/third/exp_avg", torch.ones(4, 3)) == "third"
    assert of("average/second", torch.ones(1)) == "second"
    assert of("optimizer/first/step", torch.tensor(3.0)) is None
    assert of("model/buffer", torch.ones(3)) is None
    assert of("average_count", torch.tensor(3)) is None


def test_owner_of_parameters_with_a_slash() -> None:
    shapes = {"a/b.weight": torch.Size((5, 2)), "a": torch.Size((3,))}
    of = Layout(shapes=shapes, trained=tuple(shapes), number=0, total=2).owner
    assert of("model/a/b.weight", torch.ones(3, 2)) == of("average/a/b.weight", torch.ones(3, 2)) == "a/b.weight"
    assert of("optimizer/a/b.weight/exp_avg", torch.ones(3, 2)) == "a/b.weight"
    assert of("optimizer/a/exp_avg", torch.ones(2)) == "a"


class Attention(nn.Module):
    """A layer that uses the weights of its inner layer itself, and a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        attended, _ = self.attention(x, x, x)
        found: Tensor = self.out(attended.mean(1))
        return found


def test_layers_that_are_sharded() -> None:
    model = Attention()
    assert _units(model) == [model, model.attention, model.out]


@pytest.mark.usefixtures("met")
def test_local_weights_share_memory_with_the_model() -> None:
    model = Attention()
    expected = {name: value.detach().clone() for name, value in model.named_parameters()}
    engine = ShardedEngine(model, nn.CrossEntropyLoss(reduction="none"))
    batch = torch.randn(6, 5, 4), torch.arange(6) % 3
    whole = engine.private_sum(FlatClip(1.0), *batch)
    shards = Shards(model, engine, Ranks(), torch.device("cpu"))
    spread = engine.private_sum(FlatClip(1.0), *batch)
    shards.bind()
    for name, value in spread.values.items():
        torch.testing.assert_close(value, whole.values[name])
    held = dict(shards.local.named_parameters())
    assert all(held[name].equal(value) for name, value in expected.items())
    with torch.no_grad():
        held["out.bias"].fill_(100.0)
        assert model(batch[0]).min() > 90


@pytest.mark.usefixtures("met")
def test_checkpoint_of_one_rank_is_unchanged() -> None:
    model = Attention()
    shards = Shards(model, ShardedEngine(model, nn.CrossEntropyLoss(reduction="none")), Ranks(), torch.device("cpu"))
    tensors = {"model/out.weight": torch.randn(3, 4), "optimizer/out.weight/step": torch.tensor(2.0)}
    found = shards.gathered(tensors)
    assert all(found[name].equal(value) for name, value in tensors.items())
    assert all(shards.rows_of_tensor(name, value).equal(value) for name, value in tensors.items())


# Whole runs. Processes take long to start: each group of them does several.
FEW = {"steps": 5}
JOBS: dict[str, dict[str, Any]] = {
    "dpsgd": FEW,
    "tiny batches": {**FEW, "expected_batch_size": 2},
    "adam, averaged": {**FEW, "settings": {"update": adam(0.05)}, "averaging": ExponentialAverage(decay=0.9)},
}


@pytest.mark.slow
@pytest.mark.parametrize("total, held", [(2, ([12, 3, 10, 2], [8, 2, 5, 1])), (4, ([8, 2, 5, 1], [8, 2, 5, 1]))])
def test_sharded_runs_equal_one_process(total: int, held: tuple[list[int], list[int]], tmp_path: Path) -> None:
    jobs_of = JOBS if total == 2 else {"tiny batches": JOBS["tiny batches"]}
    runs = {name: prepared(tmp_path / name, **job) for name, job in jobs_of.items()}
    spread = {name: copied(run, f"{name}, spread") for name, run in runs.items()}
    by_rank = together(total, [(spread[name], {**job, "sharded": True}) for name, job in jobs_of.items()])
    for (name, job), said in zip(jobs_of.items(), zip(*by_rank, strict=True), strict=True):
        alone = train(runs[name], **job)
        assert [answer["held"] for answer in said[:2]] == list(held), name
        for answer in said:
            assert close(answer, alone), name
            assert (answer["end"], answer["certificate"]) == (alone["end"], alone["certificate"])
            assert [row.step for row in answer["rows"]] == [row.step for row in alone["rows"]]
            assert [row.loss for row in answer["rows"]] == pytest.approx([row.loss for row in alone["rows"]], rel=1e-4)
        assert charged(spread[name]) == charged(runs[name])
        written = load_file(spread[name] / "model.safetensors")
        assert sorted(torch.cat([value.flatten() for value in written.values()]).tolist()) == sorted(said[0]["weights"])


@pytest.mark.slow
def test_killed_sharded_rank_stops_all_and_the_run_resumes(tmp_path: Path) -> None:
    steps = 8
    job = {"sharded": True, "steps": steps}
    broken = prepared(tmp_path / "broken", steps=steps)
    whole = copied(broken, "whole")
    [first], [] = together(2, [(broken, {**job, "misbehaves": {1: "dies"}})])
    assert first.startswith("RankLost: ")
    before, _ = charged(broken)
    assert 0 < before < steps
    alone = copied(broken, "alone")

    # The same ranks resume to the same bits as a run that was never stopped, and nothing is charged twice.
    [resumed, expected], _ = together(2, [(broken, job), (whole, job)])
    assert resumed == expected
    assert charged(broken) == charged(whole)
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    # Another number of ranks rounds differently: steps since the checkpoint are repeated with fresh noise and charged.
    end = train(alone, steps=steps)["end"]
    assert "steps early" in end.reason
    assert end.step < steps
    assert charged(alone)[0] == steps


@pytest.mark.slow
def test_error_of_one_sharded_rank_stops_all(tmp_path: Path) -> None:
    job = {"sharded": True, "misbehaves": {1: "fails"}}
    [first], [second] = together(2, [(prepared(tmp_path / "run"), job)])
    assert first.startswith("RankLost: ")
    assert second == "ArithmeticError: what only this process should tell"
