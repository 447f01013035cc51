"""The papers' claims are exceeded by what their methods release, and the bounds that show it are lower bounds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from lehr import Gaussian, Repeated, bound
from lehr.privacy.clipping import RawPrior, ReleasedPrior
from tests.examples.loading import ROOT, example

claims = example("published_claims")

PAGE = (ROOT / "docs/published_claims.md").read_text(encoding="utf-8")
MNIST, DELTA = claims.SA_DPSGD[0], 1e-5
COARSE = 1e-4


def least_epsilon(update: Any, *, count: int) -> float:
    return float(claims.composed(update, count=count, spacing=COARSE).epsilon_at_least(DELTA))


def test_without_acceptance_the_lower_bound_is_just_below_the_tight_accountant() -> None:
    update = claims.candidate(sampling_probability=512 / 60_000, noise_multiplier=1.23)
    tight = claims.tight(MNIST, MNIST.accepted)
    assert tight - 0.05 < least_epsilon(update, count=MNIST.accepted) < tight < 2.37


@pytest.mark.parametrize("count", [1, 20])
def test_without_sampling_the_lower_bound_is_just_below_the_closed_form(count: int) -> None:
    update = claims.candidate(sampling_probability=1, noise_multiplier=6.0)
    closed_form = bound(Repeated(Gaussian(6.0), count), delta=DELTA).epsilon
    assert closed_form - 0.005 < least_epsilon(update, count=count) < closed_form


def test_the_law_of_an_accepted_update_is_that_of_simulated_ones() -> None:
    random, most_rejections, draws = np.random.default_rng(0), 3, 200_000
    candidates = random.standard_normal((draws, most_rejections + 1))
    is_taken = candidates >= 1.0
    is_taken[:, -1] = True
    taken = candidates[np.arange(draws), is_taken.argmax(1)]
    drawn = claims.candidate(sampling_probability=1, noise_multiplier=1.0, cut_at=(1.0, 0.0))
    law = drawn.accepted((drawn.edges >= 1.0).astype(float), most_rejections=most_rejections).without
    assert law.sum() == pytest.approx(1)
    for low, high in ((-math.inf, 0.0), (0.0, 1.0), (1.0, math.inf)):
        expected = law[(drawn.edges >= low) & (drawn.edges < high)].sum()
        assert ((taken >= low) & (taken < high)).mean() == pytest.approx(expected, abs=0.005)


def test_one_update_accepted_in_its_tails_has_eleven_times_the_claimed_delta() -> None:
    _, claimed, true = claims.one_update_in_the_tails(noise_multiplier=1.23, most_rejections=10)
    assert claimed == pytest.approx(DELTA, rel=1e-3)
    assert 10.9 < true / claimed < 11.001


@pytest.mark.parametrize("rate, least", [(0.5, 2.6), (0.2, 4.3)])
def test_accepted_updates_cost_more_than_is_claimed(rate: float, least: float) -> None:
    found = least_epsilon(claims.half_space(MNIST, rate=rate), count=MNIST.accepted)
    assert least < found < least + 0.1
    assert found > claims.tight(MNIST, MNIST.accepted) + 0.2
    if rate < 0.5:
        assert found > claims.by_paper(MNIST, MNIST.accepted) + 1


def test_every_candidate_up_to_the_cap_is_charged_three_times_the_claim() -> None:
    most = MNIST.accepted * (MNIST.most_rejections + 1)
    assert claims.tight(MNIST, most) == pytest.approx(9.31, abs=0.01)


def test_a_noisy_test_does_not_make_rejected_candidates_free() -> None:
    mnist = claims.DPSUR[0]
    accepted = claims.accepted_within(mnist, 3.0)
    assert claims.by_paper(mnist, accepted) <= 3 < claims.by_paper(mnist, accepted + 1)
    assert least_epsilon(claims.noisy_half_space(mnist, rate=0.05), count=accepted) > 3.1
    assert 4.1 < claims.by_paper(mnist, 2 * accepted) < claims.by_paper(mnist, 4 * accepted) < 6.1


def test_planted_records_are_found_with_noise_from_raw_gradients_and_not_with_the_proven_form() -> None:
    published = claims.attacked(RawPrior(), steps=300, num_planted=80)
    assert published.success(published.sizes()) > 0.85  # some are never drawn in so few steps
    is_absent = ~published.is_present
    assert float(published.sizes()[is_absent].max()) < math.log(1e-12)
    proven = claims.attacked(ReleasedPrior(), steps=300, num_planted=80)
    for scores in (proven.sizes(), proven.sums()):
        assert proven.success(scores) < 0.75


def test_the_page_has_the_numbers_of_the_script() -> None:
    for number in ("4.37", "2.67", "5.79", "9.32", "9.40", "6.45", "3.17", "11.00", "4.20 / 3.37"):
        assert number in PAGE


def test_a_guarantee_bounds_every_guess() -> None:
    assert claims.guaranteed(0.0) == pytest.approx(0.5, abs=1e-5)
    assert 0.54 < claims.guaranteed(0.172) < 0.55
