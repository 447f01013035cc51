from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lehr.cli.main import app
from lehr.configuration import Configuration
from tests.search.synthetic import a_search, as_toml


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(as_toml(a_search(tmp_path, trials=2)))
    return path


def test_a_search_ends_with_a_table_a_winner_and_a_page(config: Path) -> None:
    result = CliRunner().invoke(app, ["search", config.name])
    assert result.exit_code == 0, result.output
    assert "2 trials" in result.output
    folder = config.parent / "run-search"
    _, plan = Configuration.read(folder / "winner.toml").method_and_plan()
    assert plan.steps == 4
    assert (folder / "report.html").exists()

    more = CliRunner().invoke(app, ["search", config.name, "--trials", "3", "--json"])
    assert more.exit_code == 0, more.output
    shape = json.loads(more.stdout)
    assert [trial["state"] for trial in shape["trials"]] == ["done"] * 3
    assert shape["best"]["score"] == max(trial["score"] for trial in shape["trials"])
    assert shape["winner"] == "run-search/winner.toml"


def test_a_search_without_a_winner_says_so_and_why_and_fails(config: Path) -> None:
    said, _, _ = config.read_text().partition("[search]")
    config.write_text(said.replace("clip_norm = 1.0", "clip_norm = 1e9") + "[search.space]\nlearning_rate = [1e38]\n")
    result = CliRunner().invoke(app, ["search", config.name, "--trials", "2"])
    assert result.exit_code == 1, result.output
    assert "failed" in result.output
    assert "not finite" in result.output or "is nan" in result.output
    assert "No trial was scored: there is no winner." in result.output
    assert not (config.parent / "run-search" / "winner.toml").exists()


def test_private_records_are_refused_before_anything_is_written(config: Path) -> None:
    config.write_text(config.read_text().replace('declared = "synthetic"', 'declared = "private"'))
    result = CliRunner().invoke(app, ["search", config.name])
    assert result.exit_code == 2
    assert "public or synthetic" in result.stderr
    assert not (config.parent / "run-search").exists()


@pytest.mark.parametrize("options", [["--sampler", "best"], ["--pruner", "x"], ["--trials", "0"], ["--storage", "x"]])
def test_what_is_not_known_is_refused_by_its_name(config: Path, options: list[str]) -> None:
    result = CliRunner().invoke(app, ["search", config.name, *options])
    assert result.exit_code == 2
    assert options[0].removeprefix("--") in result.stderr
