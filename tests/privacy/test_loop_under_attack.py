"""Attacks on the loop that once worked. Each must end in an error, or in fresh randomness that is paid for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import fit
from lehr.acceptance.proposal import PrivateEnergy
from lehr.acceptance.rules import NoisyTest
from lehr.accounting.events import counted
from lehr.accounting.ledger import Ledger
from lehr.data import InMemory
from lehr.errors import DamagedFile, InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.clipping import FlatClip
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import NoisyScore, PublicScore
from lehr.run.mechanism import Method
from lehr.run.shape import Callback, Progress

KEY = RunKey(bytes(range(32)))
STEPS = 6


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise KeyboardInterrupt


class Shifted(nn.Module):
    """Adds a buffer that no checkpoint has."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + self.get_buffer("shift")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(60, 6, generator=generator), torch.randint(0, 2, (60,), generator=generator)


def network(*between: nn.Module, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), *(between or (nn.Tanh(),)), nn.Linear(5, 2))


def plain_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def life(where: Path, model: nn.Module | None = None, *, stop: int | None = None, **more: Any) -> None:
    """One process of a run; where it stops, that is by Ctrl-C."""
    settings: dict[str, Any] = {
        "noise_multiplier": 5.0,
        "expected_batch_size": 60,
        "steps": STEPS,
        "delta": 1e-3,
        "records": 60,
        "num_classes": 2,
        "loss_fn": plain_loss,
        "checkpoint_seconds": 1e9,
        "compiled": False,
        "quiet": True,
        "directory": where,
        "callbacks": [] if stop is None else [StopAt(stop)],
    }
    with nullcontext() if stop is None else pytest.raises(KeyboardInterrupt):
        fit(model or network(), data(), **{**settings, **more})


def attempts(where: Path) -> list[int]:
    return [json.loads(line)["number"] for line in (where / "private/attempts.jsonl").read_text().splitlines()]


def charged(where: Path) -> int:
    with Ledger.open(where / "ledger.db") as ledger:
        return sum(counted(ledger.charged()).values())


def other_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none") * 1e-9


other_loss.__name__ = plain_loss.__name__  # "a bug was fixed in it"


@pytest.mark.parametrize(
    "first, second",
    [
        pytest.param({}, {"loss_fn": other_loss}, id="code of the loss"),
        pytest.param({}, {"model": lambda: network(nn.ReLU())}, id="activation"),
        pytest.param(
            {"model": lambda: network(nn.Dropout(0.1))}, {"model": lambda: network(nn.Dropout(0.7))}, id="dropout rate"
        ),
        pytest.param({"model": lambda: network(Shifted(0.0))}, {"model": lambda: network(Shifted(1.0))}, id="buffer"),
    ],
)
def test_a_program_that_changed_between_two_lives_never_puts_old_noise_on_new_sums(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    def made(settings: dict[str, Any]) -> dict[str, Any]:
        return {name: value() if name == "model" else value for name, value in settings.items()}

    life(tmp_path / "run", stop=3, **made(first))
    life(tmp_path / "run", resume=True, **made(second))
    assert len(set(attempts(tmp_path / "run"))) == 2
    assert charged(tmp_path / "run") == STEPS


def test_other_settings_of_a_partial_loss_are_refused(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=3, loss_fn=partial(cross_entropy, reduction="none"))
    with pytest.raises(InvalidValue, match="loss"):
        life(tmp_path / "run", resume=True, loss_fn=partial(cross_entropy, reduction="none", label_smoothing=0.5))


def test_switches_that_round_otherwise_begin_a_new_attempt(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        life(tmp_path / "run", resume=True, stop=1)
    torch.set_float32_matmul_precision("medium")
    try:
        life(tmp_path / "run", resume=True)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(set(attempts(tmp_path / "run"))) == 3


def test_subtracting_two_lives_of_a_step_does_not_take_the_noise_off(tmp_path: Path) -> None:
    """The second life's loss has no gradient to speak of: with the same noise, the difference would be the raw sum."""
    where, names = tmp_path / "run", ("0.weight", "0.bias", "2.weight", "2.bias")

    def weights() -> Tensor:
        tensors = load_file(where / "checkpoints/step-0000000001.safetensors")
        return torch.cat([tensors[f"model/{name}"].flatten() for name in names])

    life(where, stop=2, checkpoint_seconds=0)
    first = weights()
    (where / "checkpoints/step-0000000001.safetensors").unlink()
    life(where, resume=True, stop=2, checkpoint_seconds=0, loss_fn=other_loss)
    private = GhostEngine(network(), plain_loss, compiled=False).private_sum(FlatClip(0.1), *data())
    raw_sum = torch.cat([private.values[name].flatten() for name in names])
    recovered = (weights() - first) * 60 / 0.5  # the divisor, and the learning rate
    noise_std = 5.0 * 0.1
    assert float((recovered - raw_sum).std()) > 0.5 * noise_std


def test_deleted_checkpoints_mean_fresh_randomness_that_is_paid_for(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=3)
    for file in (tmp_path / "run/checkpoints").iterdir():
        file.unlink()
    life(tmp_path / "run", network(seed=77), resume=True)
    assert len(set(attempts(tmp_path / "run"))) == 2
    assert charged(tmp_path / "run") == STEPS


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=3)
    life(tmp_path / "other", network(seed=5), stop=2)
    shutil.copy(tmp_path / "other/checkpoints/step-0000000000.safetensors", tmp_path / "run/checkpoints")
    with pytest.raises(DamagedFile, match="this run wrote"):
        life(tmp_path / "run", resume=True)


def test_copies_of_a_folder_never_meet_in_an_attempt(tmp_path: Path) -> None:
    life(tmp_path / "one", stop=3)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    for name in ("one", "two"):
        life(tmp_path / name, resume=True, loss_fn=other_loss)
    assert attempts(tmp_path / "one")[1] != attempts(tmp_path / "two")[1]


def test_a_lost_list_of_attempts_does_not_begin_at_nought_again(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=3)
    (tmp_path / "run/private/attempts.jsonl").unlink()
    life(tmp_path / "run", resume=True)
    assert attempts(tmp_path / "run") != [0]


def test_an_older_ledger_put_back_is_charged_again_before_a_step_is_taken(tmp_path: Path) -> None:
    life(tmp_path / "run", stop=1)
    shutil.copy(tmp_path / "run/ledger.db", tmp_path / "old.db")
    life(tmp_path / "run", resume=True, stop=5, checkpoint_seconds=0)
    for file in (tmp_path / "run").glob("ledger.db*"):
        file.unlink()
    shutil.copy(tmp_path / "old.db", tmp_path / "run/ledger.db")
    life(tmp_path / "run", resume=True)
    assert charged(tmp_path / "run") == STEPS


class Along(nn.Module):
    """Mixes records, and only where it is used and not trained."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs if self.training else inputs * inputs.mean(dim=0, keepdim=True)


@pytest.mark.parametrize(
    "model, loss",
    [
        pytest.param(nn.Identity(), lambda o, t: plain_loss(o, t) * plain_loss(o, t).mean() * 50, id="loss"),
        pytest.param(Along(), plain_loss, id="model"),
    ],
)
def test_what_looks_along_the_batch_cannot_widen_a_noisy_score(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    inputs, targets = torch.cat([torch.randn(80, 2), torch.full((1, 2), 50.0)]), torch.randint(0, 2, (81,))
    pairs = []
    for num in (80, 81):
        held = InMemory(inputs[:num], targets[:num])
        scorer = NoisyScore(
            records=held, loss_fn=loss, prepare=lambda x: x, noise_multiplier=1e-9, stated_records=1000.0
        )
        score = scorer.score(model.eval(), KEY.at(0, 0))
        pairs.append(torch.tensor([1000 * score.loss / 4, 1000 * (score.accuracy or 0)]))
    assert float((pairs[0] - pairs[1]).norm()) <= 2**0.5 + 1e-4


def test_labels_in_a_column_are_not_compared_with_every_record() -> None:
    held = InMemory(torch.randn(5, 2), torch.zeros(5, 1, dtype=torch.int64))
    scorer = PublicScore(records=held, loss_fn=lambda o, t: plain_loss(o, t[:, 0]), prepare=lambda x: x)
    with pytest.raises(InvalidValue, match=r"^targets must be"):
        scorer.score(nn.Identity())


def test_every_word_of_a_cpu_generator_comes_from_the_key() -> None:
    """Of a seed torch keeps 32 bits: trying them all would show what dropout and augmentation drew."""
    step = KEY.at(3, 0)
    made = step.generator("layers", "cpu")
    guessed = torch.Generator().manual_seed(step.seed("layers") & 0xFFFFFFFF)
    assert not torch.equal(torch.rand(8, generator=made), torch.rand(8, generator=guessed))


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6, bias=False)
            self.second = nn.Linear(6, 6, bias=False)
            self.second.weight = self.first.weight
            self.last = nn.Linear(6, 2)

        def forward(self, inputs: Tensor) -> Tensor:
            out: Tensor = self.last(self.second(self.first(inputs)))
            return out

    life(tmp_path / "run", Tied(), stop=3)
    life(tmp_path / "run", Tied(), resume=True)
    assert charged(tmp_path / "run") == STEPS


def test_private_records_handed_over_as_test_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"^test must be"):
        life(tmp_path / "run", test=data())


def other_test(**changed: Any) -> NoisyTest:
    said: dict[str, Any] = {"loss_clip": 0.1, "noise_multiplier": 5.0, "expected_batch_size": 30, "clipped": "batch"}
    return NoisyTest(energy=PrivateEnergy(**{**said, **changed}))


ASKING = replace(dpsgd(), acceptance=other_test())


@pytest.mark.parametrize(
    "first, second",
    [
        pytest.param(dpopt(), dpopt(least_share=0.5), id="shape of the noise"),
        pytest.param(dpopt(), dpopt(found_by="projected-gradient"), id="how the shape is found"),
        pytest.param(dpopt(memory=0.5), dpopt(memory=0.9), id="memory"),
        pytest.param(ASKING, replace(ASKING, acceptance=other_test(noise_multiplier=9.0)), id="noise of a question"),
        pytest.param(ASKING, replace(ASKING, acceptance=other_test(loss_clip=0.5)), id="clip of a question"),
        pytest.param(ASKING, replace(ASKING, acceptance=other_test(clipped="records")), id="what is clipped"),
    ],
)
def test_slots_that_were_set_up_otherwise_never_use_old_noise_again(
    tmp_path: Path, first: Method, second: Method
) -> None:
    """The same noise under two scales, or on two sums, can be taken off."""
    life(tmp_path / "run", stop=3, method=first)
    with suppress(InvalidValue):
        life(tmp_path / "run", resume=True, method=second)
        assert len(set(attempts(tmp_path / "run"))) == 2
