"""The real command, run in this process, in an empty folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lehr.cli.main import app

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def lehr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == code, f"{result.exit_code}: {result.stdout}{result.stderr}{result.exception!r}"
        return result

    return run


@pytest.fixture
def lehr_json(lehr: Run) -> RunJson:
    def run(*arguments: str, code: int = 0) -> dict[str, Any]:
        shape = json.loads(lehr(*arguments, "--json", code=code).stdout)
        assert isinstance(shape, dict)
        return shape

    return run


@pytest.fixture
def plan_file(lehr: Run) -> str:
    lehr(
        *("plan", "--noise-multiplier", "2", "--steps", "1000", "--expected-batch-size", "512", "--no-chart"),
        *("--records", "60000", "--delta", "1e-5", "--save", "plan.json"),
    )
    return "plan.json"
