"""The page of TAN's experiments has the numbers of the kept results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.loading import ROOT, example

tan_results = example("tan_results")

PAGE = ROOT / "docs/tan_results.md"


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- table {name} -->" in page for name in tan_results.TABLES)
    assert tan_results.filled(page) == page


def test_it_draws_the_pictures_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tan_results", "--out", str(tmp_path)])
    tan_results.main()
    for name in ("law", "order", "vit"):
        assert f"pictures/tan_{name}.svg" in PAGE.read_text(encoding="utf-8")
        drawn, kept = (folder / f"pictures/tan_{name}.svg" for folder in (tmp_path, ROOT / "docs"))
        assert "test accuracy, %" in drawn.read_text()
        assert "test accuracy, %" in kept.read_text()
        assert kept.stat().st_size < 60_000


def test_a_row_is_its_mean_and_its_spread_where_there_is_one() -> None:
    assert tan_results.percent({"mean_accuracy": 0.63225, "standard_deviation": 0.0013}) == "63.2 ± 0.1"
    assert tan_results.percent({"mean_accuracy": 0.4395, "standard_deviation": None}) == "44.0"


def test_means_and_spreads_are_those_of_the_runs() -> None:
    for name in ("law", "order", "vit", "rates"):
        for row in tan_results.kept(name)["rows"]:
            accuracies = [one["accuracy"] for one in row["seeds"]]
            assert row["mean_accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))
            assert (row["standard_deviation"] is None) == (len(accuracies) == 1)
            assert row["noise_multiplier"] / row["batch"] == pytest.approx(3 / 4096)
