from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from lehr.games.likelihood import log_likelihood_ratio

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
