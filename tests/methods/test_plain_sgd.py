"""SGD without privacy: the same loop, and never a guarantee."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.errors import BudgetExceeded, InvalidValue
from lehr.methods.by_name import named
from lehr.methods.plain_sgd import plain_sgd
from lehr.optim.optimizers import sgd
from lehr.privacy.clipping import Unclipped
from lehr.privacy.noise import NoNoise
from lehr.privacy.rng import RunKey
from lehr.run.shape import Callback, Progress
from lehr.training.ending import Run
from tests.training.tiny import HELD, PRIVATE, fit_tiny, linear, new_budget

PLAIN: dict[str, Any] = {"method": "plain-sgd", "delta": None, "noise_multiplier": None}

EVERYBODY: dict[str, Any] = {**PLAIN, "records": HELD, "expected_batch_size": HELD}  # nothing is random


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise KeyboardInterrupt


def is_same(one: Run, other: Run) -> bool:
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_there_is_no_clip_and_no_noise() -> None:
    method = plain_sgd(learning_rate=0.2, momentum=0.5)
    assert (method.clipping, method.noise) == (Unclipped(), NoNoise())
    assert method.update == sgd(0.2, momentum=0.5)
    assert not method.is_private


def test_epsilon_is_infinite_everywhere_and_there_is_no_certificate(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", **PLAIN, settings_chosen_on="fixed")
    assert run.certificate is None
    assert not (tmp_path / "run/certificate.json").exists()
    assert run.proven.epsilon == run.end.epsilon_spent == math.inf
    assert run.published is None
    assert run.evaluations
    assert all(row.epsilon_spent == math.inf for row in run.evaluations)
    assert run.end.step == 5


def test_a_run_that_was_interrupted_goes_on_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: RunKey(bytes(range(32))))  # by which records are put into order
    whole = fit_tiny(tmp_path / "whole", **EVERYBODY)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(tmp_path / "run", **EVERYBODY, callbacks=[StopAt(3)])
    run = fit_tiny(tmp_path / "run", **EVERYBODY, resume=True)
    assert run.end.step == whole.end.step == 5
    assert run.evaluations == whole.evaluations
    assert is_same(run, whole)


def test_the_mean_of_all_gradients_is_taken_as_it_is(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", **EVERYBODY)
    model, (inputs, labels) = linear(), PRIVATE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(run.model.state_dict()[name], value)


@pytest.mark.parametrize(
    "said, name",
    [
        ({"epsilon": 3.0}, "epsilon"),
        ({"noise_multiplier": 1.0}, "noise_multiplier"),
        ({"steps": None}, "steps"),
        ({"accounting": "published"}, "accounting"),
    ],
    ids=str,
)
def test_what_has_no_meaning_without_privacy_is_refused_by_name(
    tmp_path: Path, said: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidValue) as caught:
        fit_tiny(tmp_path / "run", **{**PLAIN, **said})
    assert caught.value.name == name


def test_no_budget_pays_for_it(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(BudgetExceeded, match="to inf"):
        fit_tiny(tmp_path / "run", **PLAIN, budget=budget)


def test_what_is_written_down_says_that_there_is_no_noise(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", **PLAIN, steps=1)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert "NoNoise" in json.dumps(config["method"]["noise"])
    assert named("plain-sgd").name == config["method"]["name"]
