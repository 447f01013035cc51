"""What steps cost is what the accountants say, and asking for many counts changes little."""

from __future__ import annotations

import pytest

from lehr.papers.sa_dpsgd_costs import most_candidates, proven_epsilon, proven_on_the_way, published_epsilon
from lehr.papers.sa_dpsgd_runs import CIFAR_10, FASHION_MNIST, MNIST, Setting


@pytest.mark.parametrize(
    "setting, published, proven, allowed",
    [(MNIST, 2.9998, 2.366, 9.315), (FASHION_MNIST, 2.9994, 2.373, 9.393), (CIFAR_10, 2.9991, 2.361, 6.448)],
    ids=lambda value: getattr(value, "data", None),
)
def test_the_papers_settings_cost_this_much(setting: Setting, published: float, proven: float, allowed: float) -> None:
    assert published_epsilon(setting, setting.steps) == pytest.approx(published, abs=1e-4)
    assert proven_epsilon(setting, setting.steps) == pytest.approx(proven, abs=1e-3)
    assert proven_epsilon(setting, most_candidates(setting)) == pytest.approx(allowed, abs=1e-3)


def test_up_to_eleven_candidates_are_drawn_for_an_accepted_one() -> None:
    assert most_candidates(MNIST) == 11 * 4698
    assert most_candidates(CIFAR_10) == 6 * 1435


@pytest.mark.parametrize("candidates", [81, 1000, 4698, 9000])
def test_the_cost_on_the_way_is_never_less_and_within_half_a_percent(candidates: int) -> None:
    exact, quick = proven_epsilon(MNIST, candidates), proven_on_the_way(MNIST, candidates)
    assert exact * (1 - 1e-6) <= quick <= 1.005 * exact
