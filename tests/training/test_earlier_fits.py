"""A fit with other settings, after others on the same records, has chosen its settings on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.training import earlier_fits
from lehr.training.earlier_fits import Fit
from tests.training.tiny import PRIVATE, fit_tiny, images, new_budget

RECORDS = frozenset(bytes([number]) for number in range(100))
BEFORE = Fit(records=RECORDS, settings="a")
FEW_SHARED = frozenset([b"other", *list(RECORDS)[:1], *(bytes([200, n]) for n in range(98))])
FIXED: dict[str, Any] = {"settings_chosen_on": "fixed", "steps": 2}


@pytest.mark.parametrize(
    "fit, is_choice",
    [
        (BEFORE, False),
        (Fit(records=RECORDS, settings="b"), True),
        (Fit(records=frozenset(list(RECORDS)[:50]), settings="b"), True),
        (Fit(records=FEW_SHARED, settings="b"), False),
        (Fit(records=RECORDS, settings="b", budget=Path("b")), True),
    ],
    ids=["the same again", "other settings", "half of the records", "hardly any of them", "not paid by its budget"],
)
def test_other_settings_on_the_same_records_are_a_choice(fit: Fit, is_choice: bool) -> None:
    assert not earlier_fits.is_choice(fit)
    earlier_fits.note(BEFORE)
    assert earlier_fits.is_choice(fit) is is_choice


def test_fits_paid_by_the_same_budget_are_no_choice() -> None:
    earlier_fits.note(Fit(records=RECORDS, settings="a", budget=Path("b")))
    assert not earlier_fits.is_choice(Fit(records=RECORDS, settings="b", budget=Path("b")))
    assert earlier_fits.is_choice(Fit(records=RECORDS, settings="b", budget=Path("c")))


def test_a_loop_over_settings_ends_without_a_certificate(tmp_path: Path) -> None:
    for name in "ab":
        assert fit_tiny(tmp_path / name, noise_multiplier=2.0, **FIXED).certificate is not None
    with pytest.warns(UserWarning, match="there is no certificate"):
        later = fit_tiny(tmp_path / "c", noise_multiplier=3.0, **FIXED)
    assert later.certificate is None
    other = images(len(PRIVATE[0]), seed=9)
    assert fit_tiny(tmp_path / "d", data=other, noise_multiplier=3.0, **FIXED).certificate is not None
    earlier_fits.forget()  # as in another process
    assert fit_tiny(tmp_path / "c", resume=True, noise_multiplier=3.0, **FIXED).certificate is None


def test_fits_with_a_budget_or_on_public_records_keep_their_certificates(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "b", epsilon=60.0)
    for number, noise in enumerate([2.0, 3.0]):
        name = str(number)
        run = fit_tiny(tmp_path / name, noise_multiplier=noise, name=name, budget=budget, **FIXED)
        assert run.certificate is not None
    earlier_fits.forget()
    fit_tiny(tmp_path / "public", noise_multiplier=2.0, declared="public")
    assert fit_tiny(tmp_path / "private", noise_multiplier=3.0, **FIXED).certificate is not None
