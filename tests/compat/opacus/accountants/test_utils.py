from __future__ import annotations

from typing import Any

import pytest

from lehr.accounting import bound
from lehr.accounting.calibration import Target
from lehr.compat.opacus.accountants.utils import get_noise_multiplier, noise_multiplier_within
from lehr.errors import InvalidValue
from lehr.events import Gaussian, PoissonSampled, Repeated, together

TARGET: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.02}


def test_a_target_is_met_and_never_passed() -> None:
    sigma = get_noise_multiplier(**TARGET, steps=200, accountant="prv")
    spent = bound(Repeated(PoissonSampled(0.02, Gaussian(sigma)), 200), delta=1e-5).epsilon
    assert 0.99 * 2 <= spent <= 2


def test_epochs_are_steps_over_the_rate() -> None:
    assert get_noise_multiplier(**TARGET, epochs=2) == get_noise_multiplier(**TARGET, steps=100)


def test_what_was_spent_before_leaves_less() -> None:
    before = Repeated(PoissonSampled(0.02, Gaussian(1.5)), 100)
    target = Target(2.0, 1e-5)
    sigma = noise_multiplier_within(target, sampling_probability=0.02, steps=100, before=before)
    after = Repeated(PoissonSampled(0.02, Gaussian(sigma)), 100)
    assert sigma > noise_multiplier_within(target, sampling_probability=0.02, steps=100)
    assert bound(together(before, after), delta=1e-5).epsilon <= 2


@pytest.mark.parametrize("given", [{}, {"steps": 10, "epochs": 1}])
def test_either_steps_or_epochs_are_given(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="epochs"):
        get_noise_multiplier(**TARGET, **given)


def test_estimates_do_not_decide() -> None:
    with pytest.raises(InvalidValue, match="estimate"):
        get_noise_multiplier(**TARGET, steps=10, accountant="gdp")
