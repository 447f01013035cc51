from __future__ import annotations

from lehr.compat.opacus.schedulers import ExponentialGradClip, LambdaGradClip, StepGradClip
from lehr.compat.opacus.schedulers.schedule import Schedule
from tests.compat.opacus.loops import private


def values(schedule: Schedule) -> list[float]:
    found = [schedule.optimizer.clip_rule().sensitivity]
    for _ in range(4):
        schedule.step()
        found.append(schedule.optimizer.clip_rule().sensitivity)
    return found


def test_schedules_are_opacuss_and_reach_the_clip_rule() -> None:
    assert values(ExponentialGradClip(private().optimizer, gamma=0.5)) == [1, 0.5, 0.25, 0.125, 0.0625]
    assert values(StepGradClip(private().optimizer, step_size=2, gamma=0.5)) == [1, 1, 0.5, 0.5, 0.25]
    by_function = LambdaGradClip(private().optimizer, scheduler_function=lambda epoch: 1 + epoch)
    assert values(by_function) == [1, 2, 3, 4, 5]
