"""Guesses are made about the clearest records, their number without looking, and null guesses certify nothing."""

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
        self.taken: list[int] = []

    def stepped(self, progress: Progress) -> None:
        self.taken.append(progress.step)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(4, 2)


def run(key: RunKey | None = None, steps: Steps | None = None) -> Run:
    told = () if steps is None else (steps,)
    decided = plan_run(network(), PRIVATE, method=named("dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)
    return train_in_temporary_folder(decided, key=key, callbacks=told)


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
        plan_run(network(), PRIVATE, method=named("sa-dpsgd"), plan=PLAN, loss_fn=LOSS, num_classes=2)


CLIPPED = PrivateSum(values={"weight": torch.arange(6.0)}, sensitivity=0.5)


def test_what_is_heard_is_what_went_in_and_what_came_out() -> None:
    heard: list[tuple[PrivateSum, ReleasedSum]] = []
    noise = observed(dpsgd(), lambda private, released: heard.append((private, released))).noise
    released = noise.release(CLIPPED, noise_multiplier=2.0, randomness=RunKey(bytes(32)).at(0, 0), state={})
    assert heard == [(CLIPPED, released)]


def test_the_noise_is_the_same_to_the_bit() -> None:
    method = dpsgd()
    given = {"noise_multiplier": 2.0, "randomness": RunKey(bytes(32)).at(3, 1), "state": {}}
    alone = method.noise.release(CLIPPED, **given)  # type: ignore[arg-type]
    listened_to = observed(method, lambda private, released: None).noise.release(CLIPPED, **given)  # type: ignore[arg-type]
    assert torch.equal(alone.values["weight"], listened_to.values["weight"])
    assert (alone.noise_std, alone.noise_multiplier) == (listened_to.noise_std, listened_to.noise_multiplier)


def test_everything_else_is_passed_on() -> None:
    parameters = {"weight": torch.zeros(6)}
    for method in (dpopt(), agd()):
        listened_to = ObservedNoise(method.noise, lambda private, released: None)
        assert listened_to.needs_bounds == method.noise.needs_bounds
        assert listened_to.needs_limit == method.noise.needs_limit
        assert listened_to.event(2.0) == method.noise.event(2.0)
        state = method.noise.start(parameters)
        assert listened_to.start(parameters).keys() == state.keys()
        assert listened_to.factor(state) == method.noise.factor(state)
        released = ReleasedSum(values={"weight": torch.ones(6)}, noise_std=1.0, noise_multiplier=1.0)
        taken = StepOutcome(released=released, divisor=2.0, is_accepted=False)
        assert str(listened_to.learn(state, taken)) == str(method.noise.learn(state, taken))


DISTANCES = torch.linspace(-30, 30, 25, dtype=torch.float64)  # in units of the noise, where sums are along the record


@pytest.mark.parametrize("probability", [1e-4, 0.3, 1.0])
@pytest.mark.parametrize("distance", [0.1, 2.0])
def test_it_is_the_logarithm_of_the_ratio_of_the_two_densities(distance: float, probability: float) -> None:
    found = log_likelihood_ratio(distance * DISTANCES, precision=distance**2, probability=probability)
    alone, moved = stats.norm.pdf(DISTANCES), stats.norm.pdf(DISTANCES, loc=distance)
    expected = torch.as_tensor(((1 - probability) * alone + probability * moved) / alone).log()
    torch.testing.assert_close(found, expected)


def test_it_is_finite_where_the_densities_are_not() -> None:
    far = torch.tensor([-1e6, 1e6], dtype=torch.float64)
    found = log_likelihood_ratio(far, precision=1.0, probability=0.25)
    assert found.tolist() == pytest.approx([math.log(0.75), 1e6 - 0.5 + math.log(0.25)])


def test_a_method_with_noise_is_handed_back() -> None:
    method = named("dpsgd")
    assert check_private_method(method) is method


def test_a_method_without_noise_has_no_claim() -> None:
    with pytest.raises(InvalidValue, match="method must be one with noise: without it there is no claim"):
        check_private_method(named("plain-sgd"))


STATED = {"delta": 1e-5, "confidence": 0.95}


def test_the_largest_are_guessed_there_and_the_smallest_not() -> None:
    scores = np.arange(10.0)
    is_present = scores >= 5
    assert num_right(scores, is_present, guesses=10) == 10
    assert num_right(-scores, is_present, guesses=10) == 0
    assert num_right(scores, scores == 9, guesses=3) == 2  # nine and eight are guessed there, zero is not


def test_equal_scores_are_guessed_by_their_order_alone() -> None:
    is_present = np.array([False, True] * 5)
    assert num_right(np.zeros(10), is_present, guesses=4) == 2


def test_no_guess_is_no_right_one() -> None:
    assert num_right(np.arange(4.0), np.ones(4, dtype=bool), guesses=0) == 0


def test_more_guesses_than_records_are_refused() -> None:
    with pytest.raises(InvalidValue, match="guesses"):
        num_right(np.zeros(3), np.ones(3, dtype=bool), guesses=4)


@pytest.mark.parametrize("claimed", [0.0, 0.5, 3.0, 30.0, math.inf])
def test_there_is_a_number_of_guesses_for_every_claim(claimed: float) -> None:
    found = best_number_of_guesses(claimed_epsilon=claimed, canaries=500, **STATED)
    assert 0 < found <= 500


def test_a_number_that_was_chosen_certifies_more_than_one_that_was_not() -> None:
    generator = np.random.default_rng(1)
    is_present = generator.random(2000) < 0.5
    scores = generator.standard_normal(2000) + 2.0 * is_present
    chosen = best_number_of_guesses(claimed_epsilon=epsilon_from_mu(2.0, delta=1e-5), canaries=2000, **STATED)
    best, all_of_them, few = (
        bounds_from_guesses(scores, is_present, guesses=guesses, **STATED)[0].epsilon for guesses in (chosen, 2000, 10)
    )
    assert best > max(all_of_them, few)


def test_null_scores_certify_nothing() -> None:
    generator = np.random.default_rng(2)
    certified = [
        bounds_from_guesses(generator.standard_normal(200), generator.random(200) < 0.5, guesses=40, **STATED)
        for _ in range(100)
    ]
    # Five of a hundred may, at this confidence; thirteen or more would be a chance of one in a thousand.
    assert sum(alone.epsilon > 0 for alone, _ in certified) < 13
    assert sum(with_tradeoff.epsilon > 0 for _, with_tradeoff in certified) < 13
