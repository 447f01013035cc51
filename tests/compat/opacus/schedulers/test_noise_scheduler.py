from __future__ import annotations

from lehr.compat.opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise
from lehr.compat.opacus.schedulers.schedule import Schedule
from tests.compat.opacus.loops import private, take_steps


def values(schedule: Schedule) -> list[float]:
    found = [schedule.optimizer.noise_multiplier]
    for _ in range(4):
        schedule.step()
        found.append(schedule.optimizer.noise_multiplier)
    return found


def test_schedules_are_opacuss() -> None:
    assert values(ExponentialNoise(private().optimizer, gamma=0.5)) == [1, 0.5, 0.25, 0.125, 0.0625]
    assert values(StepNoise(private().optimizer, step_size=2, gamma=0.5)) == [1, 1, 0.5, 0.5, 0.25]
    assert values(LambdaNoise(private().optimizer, noise_lambda=lambda epoch: 1 / (epoch + 1)))[:3] == [1, 0.5, 1 / 3]


def test_every_step_is_charged_with_the_noise_that_it_has() -> None:
    loop = private()
    schedule = ExponentialNoise(loop.optimizer, gamma=0.5)
    take_steps(loop, 2)
    schedule.step()
    take_steps(loop, 1)
    assert loop.engine.accountant.history == [(1.0, 0.2, 2), (0.5, 0.2, 1)]
