"""A fit after others on the same records, with other settings, is a choice among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.training import earlier_fits
from lehr.training.earlier_fits import Fit
from tests.training.tiny import PRIVATE, fit_tiny, images, new_budget

RECORDS = frozenset(bytes([number]) for number in range(100))
BEFORE = Fit(records=RECORDS, settings="a")


@pytest.mark.parametrize(
    "fit, is_choice",
    [
        (BEFORE, False),
        (Fit(records=RECORDS, settings="b"), True),
        (Fit(records=frozenset(list(RECORDS)[:50]), settings="b"), True),
        (
            Fit(records=frozenset([b"other", *list(RECORDS)[:1], *(bytes([200, n]) for n in range(98))]), settings="b"),
            False,
        ),
        (Fit(records=RECORDS, settings="b", budget=Path("b")), True),
    ],
    ids=["the same again", "other settings", "half of the records", "hardly any of them", "not paid by its budget"],
)
def test_other_settings_on_the_same_records_are_a_choice(fit: Fit, is_choice: bool) -> None:
    assert not earlier_fits.is_choice(fit)
    earlier_fits.note(BEFORE)
    assert earlier_fits.is_choice(fit) is is_choice


def test_what_the_same_budget_paid_for_is_told_by_the_budget() -> None:
    earlier_fits.note(Fit(records=RECORDS, settings="a", budget=Path("b")))
    assert not earlier_fits.is_choice(Fit(records=RECORDS, settings="b", budget=Path("b")))
    assert earlier_fits.is_choice(Fit(records=RECORDS, settings="b", budget=Path("c")))


def test_a_loop_over_settings_ends_without_a_certificate(tmp_path: Path) -> None:
    assert fit_tiny(tmp_path / "0", noise_multiplier=2.0, settings_chosen_on="fixed").certificate is not None
    assert fit_tiny(tmp_path / "1", noise_multiplier=2.0, settings_chosen_on="fixed").certificate is not None
    with pytest.warns(UserWarning, match="there is no certificate"):
        later = fit_tiny(tmp_path / "2", noise_multiplier=3.0, settings_chosen_on="fixed")
    assert later.certificate is None
    other = images(len(PRIVATE[0]), seed=9)
    assert (
        fit_tiny(tmp_path / "3", data=other, noise_multiplier=3.0, settings_chosen_on="fixed").certificate is not None
    )


def test_a_run_that_was_denied_a_certificate_is_resumed_without_one(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "0", noise_multiplier=2.0)
    how: dict[str, Any] = {"noise_multiplier": 3.0, "settings_chosen_on": "fixed"}
    with pytest.warns(UserWarning, match="there is no certificate"):
        fit_tiny(tmp_path / "1", **how)
    earlier_fits.forget()  # in another process
    assert fit_tiny(tmp_path / "1", resume=True, **how).certificate is None


def test_fits_that_one_budget_pays_for_keep_their_certificates(tmp_path: Path) -> None:
    how: dict[str, Any] = {
        "budget": new_budget(tmp_path / "b", epsilon=60.0),
        "settings_chosen_on": "fixed",
        "steps": 2,
    }
    for number, noise in enumerate([2.0, 3.0]):
        run = fit_tiny(tmp_path / str(number), noise_multiplier=noise, name=str(number), **how)
        assert run.certificate is not None


def test_records_that_are_declared_public_are_no_choice(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "0", noise_multiplier=2.0, declared="public")
    assert fit_tiny(tmp_path / "1", noise_multiplier=3.0, settings_chosen_on="public").certificate is not None
