"""The real command, run in this process, in an empty folder of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lehr.cli.main import app
from lehr.files import strict_json
from lehr.planning.plan import Plan
from lehr.training import earlier_fits

Run = Callable[..., Result]
RunJson = Callable[..., dict[str, Any]]


@pytest.fixture
def lehr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, code: int = 0) -> Result:
        earlier_fits.forget()  # a command is a process of its own
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
def plan_file(tmp_path: Path) -> str:
    plan = Plan(noise_multiplier=2.0, steps=1000, expected_batch_size=512, records=60_000, delta=1e-5)
    strict_json.write(tmp_path / "plan.json", plan.to_json())
    return "plan.json"
