"""What a run shows at the Python prompt and in a notebook, and how to get a certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lehr
from lehr.training.ending import Run

SETTINGS: dict[str, Any] = {"delta": 1e-4, "steps": 2, "batch_size": 32, "compiled": False, "quiet": True}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that does not state how its settings were chosen."""
    return lehr.fit("small_cnn", "digits", epsilon=8, directory=tmp_path_factory.mktemp("runs") / "first", **SETTINGS)


@pytest.fixture(scope="module")
def certified(without: Run) -> Run:
    folder = without.directory.parent / "second"
    return lehr.fit("small_cnn", "digits", epsilon=8, directory=folder, settings_chosen_on="fixed", **SETTINGS)


def test_run_says_what_adds_a_certificate(without: Run) -> None:
    assert without.certificate is None
    assert "settings_chosen_on" in without.no_certificate_because
    assert "settings_chosen_on" in repr(without)
    assert "settings_chosen_on" in without._repr_html_()


def test_run_is_short_at_the_prompt(certified: Run) -> None:
    assert certified.no_certificate_because == ""
    assert len(repr(certified)) < 600
    assert str(certified.directory) in repr(certified)
    assert "issued" in repr(certified)
    assert certified._repr_html_().startswith("<table>")
    assert len(repr(certified.certificate)) < 200
    assert len(repr(certified.proven)) < 200


def test_report_shows_the_same_network_without_privacy(certified: Run, tmp_path: Path) -> None:
    settings = {**SETTINGS, "delta": None}
    plain = lehr.fit("small_cnn", "digits", method="plain-sgd", directory=tmp_path / "plain", **settings)
    assert "no privacy" in repr(plain)
    assert "nothing is guaranteed" in plain.no_certificate_because
    page = certified.write_report(tmp_path / "page.html", baseline=plain).read_text()
    assert f"{plain.accuracy:.2%} without privacy" in page
