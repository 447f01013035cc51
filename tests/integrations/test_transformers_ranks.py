"""The trainer of transformers on two processes: the same run as on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from tests.integrations.ranks import alone, in_turn

pytest.importorskip("transformers")
from transformers import TrainerCallback

from tests.integrations.test_transformers import (
    OWNERS,
    RECORDS,
    USERS,
    Sentences,
    a_bert,
    a_gpt2,
    a_trainer,
    adapted,
    steps_charged,
)
from tests.integrations.test_transformers import a_lora as a_llama_lora

pytestmark = pytest.mark.slow
STEPS = 4
PUBLIC = {"eval_dataset": Sentences(), "eval_dataset_is_public": True}


EQUAL: dict[str, dict[str, Any]] = {
    "bert": PUBLIC,
    "gpt2": {"model": "gpt2", "arguments": {"gradient_checkpointing": True}},
    "lora": {"model": "lora", "privacy": {"expected_batch_size": 1}},  # most shares are empty
    "users": {"owners": OWNERS, "privacy": USERS},
}
SHARDED: dict[str, dict[str, Any]] = {
    "sharded bert": {**PUBLIC, "sharded": True},
    "sharded lora": {
        "model": "llama lora",
        "sharded": True,
        "privacy": {"expected_batch_size": 1, "physical_batch": 1},
        "arguments": {"optim": "sgd", "learning_rate": 0.5},
    },
    "sharded users": {"owners": OWNERS, "privacy": USERS, "sharded": True},
}
STOPPED = {"stopped": {"stop": 3}, "stopped once": {"stop": 3}}
SHARDED_STOPPED: dict[str, dict[str, Any]] = {name: {"stop": 3, "sharded": True} for name in ("cut", "cut once")}


class Turned(Sentences):
    """The same records in another order."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(RECORDS - 1 - index)


REFUSED: dict[str, dict[str, Any]] = {
    "a record": {"dataset_of_rank": {1: Turned()}},
    "settings": {"clip_norm_of_rank": {1: 2.0}},
    "model": {"is_wrapped": True},
    "sharded": {"sharded_on_rank": 0},
    "owners": {"owners": OWNERS, "owners_of_rank": {1: OWNERS[::-1]}, "privacy": USERS},
}


class StopAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


def train(folder: Path, rank: int, **job: Any) -> dict[str, Any]:
    """One process's part of a training."""
    job = {**job}
    makes = {"bert": a_bert, "gpt2": a_gpt2, "lora": a_lora, "llama lora": a_llama_lora}
    make = makes[job.pop("model", "bert")]
    model = make()
    if job.pop("is_wrapped", False):
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    elif rank:
        with torch.no_grad():  # the first weights are those of rank 0, whatever the others have
            for value in model.parameters():
                value.add_(0.1)
    if (others := job.pop("owners_of_rank", {}).get(rank)) is not None:
        job["owners"] = others
    if job.pop("sharded_on_rank", None) == rank:
        job["sharded"] = True
    resume, stop, dataset = job.pop("resume", None), job.pop("stop", None), job.pop("dataset_of_rank", {}).get(rank)
    arguments = {
        "max_steps": STEPS,
        "save_strategy": "steps",
        "save_steps": 2,
        "seed": rank,
        **job.pop("arguments", {}),
    }
    arguments |= {"eval_strategy": "steps", "eval_steps": 2} if "eval_dataset" in job else {}
    clip_norm = job.pop("clip_norm_of_rank", {}).get(rank, 1.0)
    privacy = {
        "clip_norm": clip_norm,
        "expected_batch_size": 8,
        "settings_chosen_on": "fixed",
        **job.pop("privacy", {}),
    }
    is_causal = make is not a_bert
    trainer = a_trainer(
        folder,
        model,
        dataset or Sentences(is_causal=is_causal),
        arguments=arguments,
        privacy=privacy,
        callbacks=[StopAfter(stop)] if stop else [],
        **job,
    )
    output = trainer.train(resume_from_checkpoint=resume)
    history = trainer.state.log_history
    held = trainer._shards.local if trainer._shards is not None else trainer.model
    return {
        "rank": rank,
        "weights": torch.cat([whole(value).flatten() for value in trainer.model.parameters()]).tolist(),
        "rows": sum(value.numel() for value in held.parameters()),
        "grad_norms": [row["grad_norm"] for row in history if "grad_norm" in row],
        "steps": output.global_step,
        "epsilon": trainer.epsilon_spent,
        "certificate": trainer.certificate,
        "logged": sorted({name for row in history for name in row} | output.metrics.keys()),
        "evaluated": [row["eval_loss"] for row in history if "eval_loss" in row],
        "wrapped": type(trainer.model_wrapped).__name__.removeprefix("FSDP"),
        "public": sorted(trainer.certificate.stated.treated_as_public) if trainer.certificate else [],
    }


def whole(value: torch.Tensor) -> torch.Tensor:
    """The whole of a parameter, on every rank."""
    return value.full_tensor().detach() if isinstance(value, DTensor) else value.detach()


def a_lora() -> Any:
    return adapted(a_gpt2(), "LoraConfig", r=2, target_modules=["c_attn"], fan_in_fan_out=True)


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return torch.allclose(torch.tensor(one["weights"]), torch.tensor(other["weights"]), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def by_rank(folder: Path) -> list[dict[str, Any]]:
    """What both ranks say of every job. They are started once, because importing transformers takes seconds."""
    resumed = {"stopped": {"resume": True}, "cut": {"resume": True, "sharded": True}}
    jobs = (EQUAL, SHARDED, REFUSED, STOPPED, SHARDED_STOPPED, resumed)
    return in_turn(2, folder / "two", train, [job for some in jobs for job in some.items()])


@pytest.mark.parametrize("name", [*EQUAL, *SHARDED])
def test_two_ranks_equal_one_process(name: str, folder: Path, by_rank: list[dict[str, Any]]) -> None:
    first, second = (said[name] for said in by_rank)
    job = {**EQUAL, **SHARDED}[name]
    expected = alone(folder / "one" / name, train, **{**job, "sharded": False})
    if name in SHARDED:
        assert first["rows"] + second["rows"] == expected["rows"]
        assert first["rows"] < 0.6 * expected["rows"]
    assert first["weights"] == second["weights"]
    assert close(first, expected)
    for what in ("steps", "epsilon", "certificate", "logged", "wrapped"):
        assert first[what] == second[what] == expected[what], what
    assert first["evaluated"] == pytest.approx(expected["evaluated"], rel=1e-4)
    assert first["grad_norms"] == pytest.approx(expected["grad_norms"], rel=1e-4)
    assert bool(first["evaluated"]) == ("eval_dataset" in job)
    assert not {"loss", "train_loss", "total_flos"} & {*first["logged"]}
    two, one = folder / "two" / name, folder / "one" / name
    assert steps_charged(two) == steps_charged(one) == STEPS
    assert files(two / "out-privacy") == files(one / "out-privacy")
    # Beside random states, which transformers keeps for every process.
    assert {path for path in files(two / "out") if "rng_state" not in path} == {
        path for path in files(one / "out") if "rng_state" not in path
    }


@pytest.mark.parametrize("name", REFUSED)
def test_ranks_that_differ_are_refused_before_anything_begins(
    name: str, folder: Path, by_rank: list[dict[str, Any]]
) -> None:
    first, second = (said[name] for said in by_rank)
    assert first == second
    assert first["error"].startswith(f"InvalidValue: {name} must be")
    assert not (folder / "two" / name / "out-privacy").exists()


def test_a_resumed_run_charges_repeated_steps(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    # The third step was charged twice, so that the plan of four ends one step earlier.
    assert steps_charged(folder / "two" / "stopped") == STEPS
    assert [said["stopped"]["steps"] for said in by_rank] == [STEPS - 1] * 2
    assert by_rank[0]["stopped"]["weights"] == by_rank[1]["stopped"]["weights"]


def test_one_process_resumes_the_run_of_two(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    assert by_rank[0]["stopped once"]["error"] == "KeyboardInterrupt: "
    assert steps_charged(folder / "two" / "stopped once") == STEPS - 1
    resumed = alone(folder / "two" / "stopped once", train, resume=True)
    assert steps_charged(folder / "two" / "stopped once") == STEPS
    assert resumed["steps"] == STEPS - 1


def test_a_checkpoint_of_sharded_weights_is_that_of_one_process(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    assert "error" not in by_rank[0]["sharded bert"]
    alone(folder / "one" / "checkpoint", train, **PUBLIC)
    found, expected = (
        path / "out" / "checkpoint-2" for path in (folder / "two" / "sharded bert", folder / "one" / "checkpoint")
    )
    weights = [load_file(path / "model.safetensors") for path in (found, expected)]
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)
    states = [torch.load(path / "optimizer.pt", weights_only=True) for path in (found, expected)]
    assert len(states[0]["state"]) == len(weights[0])
    torch.testing.assert_close(*(one["state"] for one in states), rtol=1e-4, atol=1e-5)
    assert states[0]["param_groups"] == states[1]["param_groups"]
    released = load_file(folder / "two" / "sharded bert" / "out-privacy" / "model.safetensors")
    assert sum(value.numel() for value in released.values()) == len(by_rank[0]["sharded bert"]["weights"])


def test_a_sharded_run_is_resumed_sharded_or_by_one_process(folder: Path, by_rank: list[dict[str, Any]]) -> None:
    assert steps_charged(folder / "two" / "cut") == STEPS
    assert [said["cut"]["steps"] for said in by_rank] == [STEPS - 1] * 2
    assert by_rank[0]["cut once"]["error"] == "KeyboardInterrupt: "
    resumed = alone(folder / "two" / "cut once", train, resume=True)
    assert (resumed["steps"], steps_charged(folder / "two" / "cut once")) == (STEPS - 1, STEPS)
    assert close(by_rank[0]["cut"], resumed)  # with one key, they draw the same


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
