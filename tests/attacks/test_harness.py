"""Temporary runs of the real loop, observed sums, likelihood ratios and guesses."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import make_plan
from lehr.attacks.harness import (
    ObservedNoise,
    best_number_of_guesses,
    bounds_from_guesses,
    check_private_method,
    log_likelihood_ratio,
    num_right,
    observed,
    plan_run,
    train_in_temporary_folder,
)
from lehr.auditing.bounds import epsilon_from_mu
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, ReleasedSum, StepOutcome
from lehr.methods.agd import agd
from lehr.methods.by_name import named
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import dpsgd
from lehr.privacy.rng import RunKey
from lehr.run.shape import Callback, Progress
from lehr.training.ending import Run

PRIVATE = InMemory(torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2)
PLAN = make_plan(delta=1e-3, records=60, expected_batch_size=12, steps=5, noise_multiplier=2.0)
LOSS = partial(cross_entropy, reduction="none")


class Steps(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def stepped(self, progress: Progress) -> None:
        self.steps.append(progress.step)


def train(key: RunKey | None = None, *callbacks: Callback) -> Run:
    network = nn.Linear(4, 2)
    nn.init.zeros_(network.weight)
    nn.init.zeros_(network.bias)
    run = plan_run(network, PRIVATE, method=named("dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)
    return train_in_temporary_folder(run, key=key, callbacks=callbacks)


def test_the_real_loop_takes_all_steps_of_the_plan_and_leaves_nothing_behind() -> None:
    steps = Steps()
    run = train(None, steps)
    assert steps.steps == [1, 2, 3, 4, 5]
    assert run.end.reason == "plan completed"
    assert run.proven.epsilon == PLAN.bound().epsilon
    assert not Path(run.directory).parent.exists()


def test_one_key_gives_one_run_and_no_key_another() -> None:
    key = RunKey(bytes(32))
    first, again, other = (run.model.weight for run in (train(key), train(key), train()))
    assert torch.equal(first, again)  # type: ignore[arg-type]
    assert not torch.equal(first, other)  # type: ignore[arg-type]


def test_a_method_that_needs_public_records_asks_for_them() -> None:
    with pytest.raises(InvalidValue, match="public"):
        plan_run(nn.Linear(4, 2), PRIVATE, method=named("sa-dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)


def test_an_observed_noise_is_the_same_to_the_bit() -> None:
    private = PrivateSum(values={"weight": torch.arange(6.0)}, sensitivity=0.5)
    given = {"noise_multiplier": 2.0, "randomness": RunKey(bytes(32)).at(3, 1), "state": {}}
    seen: list[tuple[PrivateSum, ReleasedSum]] = []
    method = observed(dpsgd(), lambda private, released: seen.append((private, released)))
    released, alone = (one.noise.release(private, **given) for one in (method, dpsgd()))  # type: ignore[arg-type]
    assert seen == [(private, released)]
    assert torch.equal(alone.values["weight"], released.values["weight"])
    assert (alone.noise_std, alone.noise_multiplier) == (released.noise_std, released.noise_multiplier)


def test_an_observed_noise_passes_everything_else_on() -> None:
    parameters = {"weight": torch.zeros(6)}
    for noise in (dpopt().noise, agd().noise):
        wrapped = ObservedNoise(noise, lambda private, released: None)
        assert (wrapped.needs_bounds, wrapped.needs_limit) == (noise.needs_bounds, noise.needs_limit)
        assert wrapped.event(2.0) == noise.event(2.0)
        state = noise.start(parameters)
        assert wrapped.factor(state) == noise.factor(state)
        released = ReleasedSum(values={"weight": torch.ones(6)}, noise_std=1.0, noise_multiplier=1.0)
        outcome = StepOutcome(released=released, divisor=2.0, is_accepted=False)
        assert str(wrapped.learn(state, outcome)) == str(noise.learn(state, outcome))


def test_a_method_without_noise_has_no_claim() -> None:
    method = named("dpsgd")
    assert check_private_method(method) is method
    with pytest.raises(InvalidValue, match=r"^method"):
        check_private_method(named("plain-sgd"))


@pytest.mark.parametrize("probability", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("distance", [0.1, 2.0])
def test_the_log_likelihood_ratio_is_that_of_the_two_densities(distance: float, probability: float) -> None:
    sums = torch.linspace(-30, 30, 25, dtype=torch.float64)  # in units of the noise
    found = log_likelihood_ratio(distance * sums, precision=distance**2, probability=probability)
    alone, moved = stats.norm.pdf(sums), stats.norm.pdf(sums, loc=distance)
    torch.testing.assert_close(found, torch.as_tensor(((1 - probability) * alone + probability * moved) / alone).log())


def test_the_log_likelihood_ratio_is_finite_where_the_densities_are_not() -> None:
    found = log_likelihood_ratio(torch.tensor([-1e6, 1e6], dtype=torch.float64), precision=1.0, probability=0.25)
    assert found.tolist() == pytest.approx([math.log(0.75), 1e6 - 0.5 + math.log(0.25)])


STATED = {"delta": 1e-5, "confidence": 0.95}


def test_the_largest_scores_are_guessed_present_and_the_smallest_absent() -> None:
    scores = np.arange(10.0)
    assert num_right(scores, scores >= 5, guesses=10) == 10
    assert num_right(-scores, scores >= 5, guesses=10) == 0
    assert num_right(scores, scores == 9, guesses=3) == 2  # nine and eight are guessed present, zero is not
    assert num_right(np.zeros(10), np.array([False, True] * 5), guesses=4) == 2  # equal ones by their order alone
    assert num_right(scores, scores >= 0, guesses=0) == 0
    with pytest.raises(InvalidValue, match=r"^guesses"):
        num_right(scores, scores >= 0, guesses=11)


@pytest.mark.parametrize("claimed", [0.0, 0.5, 3.0, 30.0, math.inf])
def test_there_is_a_number_of_guesses_for_every_claim(claimed: float) -> None:
    assert 0 < best_number_of_guesses(claimed_epsilon=claimed, canaries=500, **STATED) <= 500


def test_the_best_number_of_guesses_certifies_more_than_others() -> None:
    generator = np.random.default_rng(1)
    is_present = generator.random(2000) < 0.5
    scores = generator.standard_normal(2000) + 2.0 * is_present
    chosen = best_number_of_guesses(claimed_epsilon=epsilon_from_mu(2.0, delta=1e-5), canaries=2000, **STATED)
    best, every, few = (
        bounds_from_guesses(scores, is_present, guesses=guesses, **STATED)[0].epsilon for guesses in (chosen, 2000, 10)
    )
    assert best > max(every, few)


def test_null_scores_certify_nothing() -> None:
    generator = np.random.default_rng(2)
    certified = [
        bounds_from_guesses(generator.standard_normal(200), generator.random(200) < 0.5, guesses=40, **STATED)
        for _ in range(100)
    ]
    # Five of a hundred may, at this confidence; thirteen or more would be a chance of one in a thousand.
    assert sum(alone.epsilon > 0 for alone, _ in certified) < 13
    assert sum(with_tradeoff.epsilon > 0 for _, with_tradeoff in certified) < 13
