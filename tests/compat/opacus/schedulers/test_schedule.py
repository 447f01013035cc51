from __future__ import annotations

import math

import pytest
import torch

from lehr.compat.opacus import PrivacyEngine
from lehr.compat.opacus.schedulers import ExponentialNoise, LambdaGradClip, LambdaNoise, StepNoise
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import network, private, sgd, take_steps


def test_a_state_goes_on_where_it_was() -> None:
    loop = private()
    schedule = StepNoise(loop.optimizer, step_size=2, gamma=0.5)
    schedule.step()
    later = StepNoise(private().optimizer, step_size=2, gamma=0.5)
    later.load_state_dict(schedule.state_dict())
    later.step()
    assert later.optimizer.noise_multiplier == 0.5
    with pytest.raises(InvalidValue, match="surprise"):
        later.load_state_dict({"surprise": 1})


def test_a_state_has_no_function_and_no_optimizer() -> None:
    assert set(LambdaNoise(private().optimizer, noise_lambda=lambda epoch: 1.0).state_dict()) == {"last_epoch"}


def test_an_optimizer_without_noise_is_refused() -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        ExponentialNoise(sgd(network()), gamma=0.9)


def test_a_state_moves_the_value_that_was_stated() -> None:
    """A loop that goes on has the noise of one that was never stopped, for the noise that it was told itself."""
    schedule = StepNoise(private().optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        schedule.step()
    later = StepNoise(private(noise_multiplier=8.0).optimizer, step_size=2, gamma=0.5)
    for _ in range(2):
        later.load_state_dict(schedule.state_dict())
        assert later.optimizer.noise_multiplier == 2.0
    assert later.state_dict() == schedule.state_dict()


def test_a_schedule_without_noise_runs_and_every_such_step_costs_everything() -> None:
    loop = private()
    schedule = LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: float(epoch == 0))
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) < 100
    schedule.step()
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) == math.inf


def test_a_schedule_cannot_change_what_was_planned() -> None:
    loop = private(epochs=1)
    LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: 0.0)
    with pytest.raises(InvalidValue, match="step"):
        take_steps(loop, 1)


def test_no_certificate_is_for_a_loop_without_noise() -> None:
    engine = PrivacyEngine(delta=1e-4, settings_chosen_on="fixed")
    with pytest.raises(InvalidValue):
        private(engine, noise_multiplier=0.0, epochs=1)


def test_a_value_that_means_nothing_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: -1.0)
    with pytest.raises(InvalidValue, match="max_grad_norm"):
        LambdaGradClip(loop.optimizer, scheduler_function=lambda epoch: 0.0)
    with pytest.raises(InvalidValue, match="gamma"):
        ExponentialNoise(loop.optimizer, gamma=float(torch.tensor(float("nan"))))
