from __future__ import annotations

from pathlib import Path

import pytest

from lehr.files import json_file
from lehr.planning import extrapolation
from tests.cli.conftest import Run, RunJson

CONFIG = """
[data]
name = "digits"
declared = "public"
[privacy]
noise_multiplier = 2
expected_batch_size = 64
delta = 1e-4
steps = 2
"""
CHEAP = ("--no-compile", "--device", "cpu")


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "dear.toml").write_text(CONFIG)
    return "dear.toml"


def test_a_prediction_is_made_shown_and_compared_with_what_comes(
    lehr: Run, lehr_json: RunJson, config: str, tmp_path: Path
) -> None:
    said = lehr("simulate", config, "--batches", "8,16,32", "--seeds", "1", *CHEAP)
    assert "A run at B = 64 is predicted to reach" in said.stdout
    assert "3 simulated runs that protect nobody" in said.stdout
    assert "run 3 of 3, batches of 32, seed 0" in said.stderr
    prediction = json_file.read(tmp_path / "dear-simulated" / "prediction.json", extrapolation.from_json)

    again = lehr_json("simulate", config, "--batches", "8,16,32", "--seeds", "1", *CHEAP)
    assert again["follows"] == prediction.to_json()["follows"]

    lehr("train", config, "--run", "dear", "--quiet", *CHEAP)
    told = lehr("report", "dear", "--prediction", "dear-simulated/prediction.json").stdout
    assert "was predicted (95 %: " in told
    assert "Predicted and reached" in (tmp_path / "dear" / "report.html").read_text()


def test_runs_that_are_there_and_not_asked_for_are_named(lehr: Run, lehr_json: RunJson, config: str) -> None:
    all_of_them = ("simulate", config, "--batches", "4,8,16,32", "--seeds", "1", "--to", "cheap", *CHEAP)
    assert lehr_json(*all_of_them)["left_out"] == []
    fewer = lehr("simulate", config, "--batches", "8,16,32", "--seeds", "1", "--to", "cheap", *CHEAP)
    assert "not asked for: batch-4-seed-0." in fewer.stdout


@pytest.mark.parametrize(
    "options, match",
    [
        (("--batches", "8,many"), "numbers with commas between them"),
        (("--batches", "8,16,128"), "less than the 64"),
        (("--batches", "8,16,32", "--confidence", "95"), "confidence"),
        (("--batches", "8,16,32", "--set", "data.declared=private"), "public or synthetic"),
        (("--batches", "8,16,32", "--set", "data.declared=pubic"), "declared must be one of"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    lehr: Run, config: str, tmp_path: Path, options: tuple[str, ...], match: str
) -> None:
    assert match in lehr("simulate", config, *options, code=2).stderr
    assert not (tmp_path / "dear-simulated").exists()
