from __future__ import annotations

import pytest
import torch

from lehr.compat.opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import network, private, sgd


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
    assert set(LambdaNoise(private().optimizer, noise_lambda=lambda epoch: 1.0).state_dict()) == {"base", "last_epoch"}


def test_an_optimizer_without_noise_is_refused() -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        ExponentialNoise(sgd(network()), gamma=0.9)


def test_a_value_that_is_not_positive_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: 0.0)
    with pytest.raises(InvalidValue, match="gamma"):
        ExponentialNoise(loop.optimizer, gamma=float(torch.tensor(float("nan"))))
