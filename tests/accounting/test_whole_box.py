"""What must hold at every setting that anyone could ask for."""

from __future__ import annotations

import math

import pytest

from lehr.accounting.accountant import answers
from tests.accounting.settings import in_the_whole_box, in_usual_ranges
from tests.sizes import sizes


@pytest.mark.parametrize("settings", sizes(30, whole=250))
def test_epsilon_is_never_nan_negative_or_missing_in_the_whole_box(settings: int) -> None:
    for drawn in in_the_whole_box(settings, seed=1):
        given = {answer.accountant: answer.epsilon for answer in answers(drawn.event, delta=drawn.delta)}
        for name, epsilon in given.items():
            assert epsilon is not None, (name, drawn)
            assert epsilon >= 0, (name, drawn)
        pld, balle20 = given["pld"], given["rdp-balle20"]
        assert pld is not None
        assert balle20 is not None
        assert math.isfinite(pld), drawn
        assert pld <= balle20 * (1 + 1e-12), drawn
        # For much noise the central limit is close to the truth, so a pld far below it would have lost some mass.
        if drawn.noise_multiplier >= 3 and given["gdp"]:
            assert pld >= 0.98 * given["gdp"], drawn


@pytest.mark.parametrize("settings", sizes(15, whole=500))
def test_pld_is_below_balle20_is_below_mironov17(settings: int) -> None:
    compared = 0
    for drawn in in_usual_ranges(3000, seed=2):
        given = {answer.accountant: answer.epsilon for answer in answers(drawn.event, delta=drawn.delta)}
        pld, balle20, mironov17 = (given[name] for name in ("pld", "rdp-balle20", "rdp-mironov17"))
        assert pld is not None
        assert balle20 is not None
        assert mironov17 is not None
        if not 0.1 <= pld <= 20:
            continue
        assert pld <= balle20 <= mironov17, drawn
        compared += 1
        if compared == settings:
            return
    pytest.fail(f"only {compared} of {settings} settings were in range")
