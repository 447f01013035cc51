"""The pictures of TAN's experiments are drawn from the kept results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.examples.loading import ROOT, example

tan_pictures = example("tan_pictures")

PAGE = ROOT / "docs/tan_results.md"


def test_it_draws_the_pictures_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tan_pictures", "--out", str(tmp_path)])
    tan_pictures.main()
    for name in ("law", "order", "vit"):
        assert f"pictures/tan_{name}.svg" in PAGE.read_text(encoding="utf-8")
        drawn, there = tmp_path / f"tan_{name}.svg", ROOT / f"docs/pictures/tan_{name}.svg"
        assert "test accuracy, %" in drawn.read_text()
        assert "test accuracy, %" in there.read_text()
        assert there.stat().st_size < 60_000


def test_the_line_of_the_law_is_drawn_only_where_there_are_enough_batches() -> None:
    assert len(tan_pictures.draw_law(tan_pictures.kept("figure4")).axes[0].containers) == 1
