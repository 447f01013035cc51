from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import make_plan
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.games.staging import planned, staged
from lehr.methods.by_name import named
from lehr.rng import RunKey
from lehr.run_shape import Callback, Progress
from lehr.training.ending import Run

PRIVATE = InMemory(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)
PLAN = make_plan(delta=1e-3, records=60, expected_batch_size=12, steps=5, noise_multiplier=2.0)
LOSS = partial(cross_entropy, reduction="none")


class Steps(Callback):
    def __init__(self) -> None:
        self.taken: list[int] = []

    def stepped(self, progress: Progress) -> None:
        self.taken.append(progress.step)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(4, 2)


def run(key: RunKey | None = None, steps: Steps | None = None) -> Run:
    told = () if steps is None else (steps,)
    decided = planned(network(), PRIVATE, method=named("dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)
    return staged(decided, key=key, callbacks=told)


def test_all_steps_of_the_plan_are_taken_by_the_real_loop() -> None:
    steps = Steps()
    done = run(steps=steps)
    assert steps.taken == [1, 2, 3, 4, 5]
    assert done.end.reason == "plan completed"
    assert done.proven.epsilon == PLAN.bound().epsilon


def test_nothing_is_left_behind() -> None:
    done = run()
    assert not done.directory.exists()
    assert not Path(done.directory).parent.exists()


def test_one_key_gives_one_run_and_no_key_another() -> None:
    key = RunKey(bytes(32))
    first, again, other = run(key), run(key), run()
    assert torch.equal(first.model.weight, again.model.weight)  # type: ignore[arg-type]
    assert not torch.equal(first.model.weight, other.model.weight)  # type: ignore[arg-type]


def test_what_a_method_needs_is_asked_for_as_everywhere() -> None:
    with pytest.raises(InvalidValue, match="public"):
        planned(network(), PRIVATE, method=named("sa-dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)
