"""Phases: one plan, one stream of draws, and noise for the parameters that a phase trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lehr
from lehr.accounting.events import counted
from lehr.errors import InvalidValue
from lehr.methods import by_name
from lehr.run.folder import RunFolder
from lehr.run.phases import Phase, check_phases, first_steps, phases_from_json, with_phase_rates

HEAD_FIRST: list[dict[str, Any]] = [{"steps": 3, "trained": ["head"], "learning_rate": 2.0}, {}]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Tanh())
    model.add_module("head", nn.Linear(8, 10))
    return model


class Watch(lehr.Callback):
    """Copies the weights after every step."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.weights = model, [self._copied(model)]

    def stepped(self, progress: object) -> None:
        self.weights.append(self._copied(self.model))

    @staticmethod
    def _copied(model: nn.Module) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in model.named_parameters()}

    def moved(self, name: str) -> list[bool]:
        """Whether each step changed this parameter."""
        pairs = zip(self.weights, self.weights[1:], strict=False)
        return [not torch.equal(before[name], after[name]) for before, after in pairs]


def trained(where: Path, **options: Any) -> tuple[lehr.Run, Watch]:
    model = network()
    watch = Watch(model)
    usual: dict[str, Any] = {"epsilon": 8, "delta": 1e-4, "steps": 6, "batch_size": 64, "learning_rate": 0.5}
    run = lehr.fit(model, "digits", directory=where, callbacks=[watch], quiet=True, **{**usual, **options})
    return run, watch


def test_a_phase_moves_its_own_parameters(tmp_path: Path) -> None:
    run, watch = trained(tmp_path / "run", phases=HEAD_FIRST)
    assert watch.moved("1.weight") == [False] * 3 + [True] * 3
    assert watch.moved("head.weight") == [True] * 6
    assert [row.learning_rate for row in run.evaluations] == [2.0] * 3 + [0.5] * 3
    assert all(value.requires_grad for value in run.model.parameters())


def test_phases_cost_what_the_plan_costs(tmp_path: Path) -> None:
    with_phases, _ = trained(tmp_path / "phases", phases=HEAD_FIRST)
    without, _ = trained(tmp_path / "whole")
    assert with_phases.plan == without.plan
    assert with_phases.end.epsilon_spent == without.end.epsilon_spent
    with RunFolder.open(tmp_path / "phases") as folder:
        assert sum(counted(folder.ledger.charged()).values()) == 6


def test_one_phase_may_train_a_part_of_the_network(tmp_path: Path) -> None:
    run, watch = trained(tmp_path / "run", phases=[{"trained": ["head"]}])
    assert watch.moved("1.weight") == [False] * 6
    assert watch.moved("head.bias") == [True] * 6
    assert run.end.step == 6


def test_one_phase_is_a_run_without_phases(tmp_path: Path) -> None:
    run, watch = trained(tmp_path / "run", phases=[{}])
    assert watch.moved("1.weight") == [True] * 6
    assert run.end.step == 6


class Stop(lehr.Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def stepped(self, progress: Any) -> None:
        if progress.step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_stopped_run_goes_on_in_its_phase(at: int, tmp_path: Path) -> None:
    """Around the change of phases: the optimizer then has the state of some parameters only."""
    options: dict[str, Any] = {"phases": HEAD_FIRST, "checkpoint_seconds": 0.0}
    model, where = network(), tmp_path / "run"
    usual: dict[str, Any] = {"epsilon": 8, "delta": 1e-4, "steps": 6, "batch_size": 64, "learning_rate": 0.5}
    with pytest.raises(KeyboardInterrupt):
        lehr.fit(model, "digits", directory=where, callbacks=[Stop(at)], quiet=True, **usual, **options)
    assert all(value.requires_grad for value in model.parameters())
    run = lehr.fit(network(), "digits", directory=where, resume=True, quiet=True, **usual, **options)
    assert (run.end.step, run.end.reason) == (6, "plan completed")
    assert run.end.epsilon_spent <= 8  # the repeated step was not charged again


def test_views_may_differ(tmp_path: Path) -> None:
    phases = [{"steps": 2, "views": 1}, {"views": 3}]
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))
    options: dict[str, Any] = {"epsilon": 8, "delta": 1e-4, "steps": 4, "batch_size": 64, "augmentation": "flip_crop"}
    run = lehr.fit(model, "digits", directory=tmp_path / "run", phases=phases, quiet=True, **options)
    assert run.end.step == 4


@pytest.mark.parametrize(
    "shape",
    [
        [],
        [{"steps": 3}],
        [{}, {}],
        [{"steps": 0}, {}],
        [{"steps": 3, "views": 0}, {}],
        [{"steps": 3, "learning_rate": -1.0}, {}],
        [{"steps": 3, "trained": "head"}, {}],
        [{"steps": 3, "layers": ["head"]}, {}],
        "head first",
    ],
)
def test_bad_phases_are_refused(shape: Any) -> None:
    with pytest.raises(InvalidValue):
        phases_from_json(shape)


def test_layers_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue) as error:
        trained(tmp_path / "run", phases=[{"steps": 3, "trained": ["tail"]}, {}])
    assert error.value.name == "path"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["adadp", "sa-dpsgd", "agd"])
def test_methods_with_a_state_for_all_parameters_are_refused(method: str) -> None:
    phases = phases_from_json(HEAD_FIRST)
    with pytest.raises(InvalidValue) as error:
        check_phases(phases, by_name.named(method), steps=6, is_sharded=False)
    assert error.value.name == "phases"


def test_phases_must_fit_into_the_plan() -> None:
    phases, method = phases_from_json(HEAD_FIRST), by_name.named("dpsgd")
    check_phases(phases, method, steps=4, is_sharded=False)
    for bad in ({"steps": 3}, {"steps": 4, "is_sharded": True}):
        with pytest.raises(InvalidValue):
            check_phases(phases, method, **{"is_sharded": False, **bad})  # type: ignore[arg-type]


def test_rates_follow_the_schedule_of_the_method() -> None:
    phases = (Phase(steps=10, learning_rate=4.0), Phase())
    method = with_phase_rates(by_name.named("dpsgd", learning_rate=2.0), phases)
    assert [method.update.schedule.factor(step) for step in (0, 9, 10)] == [2.0, 2.0, 1.0]
    assert first_steps(phases) == [0, 10]
