"""lehr search --pay: the price is said before, the winner after, and nothing in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lehr.certificates.certificate import read_certificate
from lehr.certificates.checking import check
from lehr.cli.main import app
from lehr.config import RunConfig
from lehr.planning.budget import Budget
from lehr.training.prepare import method_and_plan
from tests.cli.conftest import Run, RunJson
from tests.search.searches import as_toml, free_search, write_records
from tests.training.tiny import new_budget


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "run.toml"
    path.write_text(as_toml(free_search(tmp_path, trials=2)))
    return path


def test_a_search_ends_with_a_table_a_winner_and_a_page(config: Path) -> None:
    result = CliRunner().invoke(app, ["search", config.name])
    assert result.exit_code == 0, result.output
    assert "2 trials" in result.output
    folder = config.parent / "run-search"
    _, plan = method_and_plan(RunConfig.read(folder / "winner.toml"))
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


ASKED = """
[data]
name = "clinic"
npz = "{npz}"
test_npz = "{test_npz}"
records = 40
num_classes = 3

[model]
network = "small_cnn"
image_side = 4

[privacy]
steps = 3
expected_batch_size = 8
delta = 1e-3

[training]
evaluate_every = 3

[search.space]
learning_rate = {{ low = 0.1, high = 2.0, log = true }}
"""
ON_CPU = ("--device", "cpu", "--no-compile")


@pytest.fixture
def asked(tmp_path: Path) -> str:
    path = tmp_path / "asked.toml"
    path.write_text(ASKED.format(**write_records(tmp_path)), encoding="utf-8")
    return str(path)


def test_a_selection_says_its_price_first_and_its_winner_last(
    lehr: Run, lehr_json: RunJson, asked: str, tmp_path: Path
) -> None:
    new_budget(tmp_path / "b")
    price = ("--pay", "selection", "--mean", "2", "--law", "logarithmic", "--epsilon", "6", "--budget", "b")
    said = ("search", asked, *price, "--study", "ours", "--name", "a search", *ON_CPU)
    result = lehr(*said)
    assert "2 trials on average, by the logarithmic law" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Selected" in result.stdout
    assert "learning_rate" in result.stdout
    promised = read_certificate(tmp_path / "ours/winner/certificate.json")
    check(promised)
    assert promised.epsilon <= 6
    with Budget.open(tmp_path / "b") as account:
        assert [run.run for run in account.status().runs] == ["a search"]
    assert lehr(*said, "--quiet").stderr == ""  # it is over, and says the same again
    shape = lehr_json(*said)
    assert shape["price"] == {"kind": "selection", "mean": 2.0, "shape": 0.0}
    assert shape.keys() == {
        *("search", "pay", "price", "winner", "settings", "accuracy", "loss", "scored_on", "epsilon", "delta")
    }
    lehr("release", "ours/winner", "--to", "out", "--budget", "b")


def test_a_composition_shows_all_of_its_trials_and_certifies_them(
    lehr: Run, lehr_json: RunJson, asked: str, tmp_path: Path
) -> None:
    said = ("search", asked, "--pay", "composition", "--trials", "2", "--epsilon", "6", *ON_CPU)
    result = lehr(*said, "--study", "ours")
    assert "all of its 2 trials are charged and shown. ε = " in result.stderr.splitlines()[0]
    assert "2 trials" in result.stdout
    assert "at δ = 0.001 for all 2 trials" in result.stdout
    assert "training it again is paid for again" in result.stdout
    assert "is paid for again" in (tmp_path / "ours/winner.toml").read_text(encoding="utf-8")
    for number in range(2):
        check(read_certificate(tmp_path / f"ours/trials/{number}/certificate.json"))
    shape = lehr_json(*said, "--study", "ours")  # it is over, and says the same again
    promised = read_certificate(tmp_path / shape["run"] / "certificate.json")
    assert shape["epsilon"] == pytest.approx(promised.epsilon, rel=1e-6)
    assert (shape["pay"], shape["delta"]) == ("composition", promised.delta)
    assert shape["run"] == f"ours/trials/{shape['best']['number']}"


@pytest.mark.parametrize(
    "options,says",
    [
        (("--mean", "3"), "mean must be left out without --pay"),
        (("--epsilon", "3"), "epsilon must be left out without --pay"),
        (("--pay", "later"), "pay must be one of composition, selection"),
        (("--pay", "selection", "--epsilon", "6"), "mean must be given"),
        (("--pay", "selection", "--mean", "3", "--trials", "3", "--epsilon", "6"), "trials must be left out beside"),
        (("--pay", "selection", "--mean", "3", "--law", "uniform", "--epsilon", "6"), "law must be one of"),
        (("--pay", "selection", "--mean", "3", "--sampler", "tpe", "--epsilon", "6"), "sampler must be random"),
        (("--pay", "selection", "--mean", "3", "--storage", "sqlite://", "--epsilon", "6"), "storage must be left out"),
        (("--pay", "composition", "--mean", "3", "--epsilon", "6"), "mean must be left out beside"),
        (("--pay", "composition", "--trials", "1", "--epsilon", "6"), "trials must be a whole number >= 2"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(
    lehr: Run, asked: str, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    assert says in lehr("search", asked, *options, "--study", "ours", code=2).stderr
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "key,says", [('sampler = "tpe"', "sampler must be random"), ("trials = 40", "trials must be left")]
)
def test_what_a_file_says_for_another_kind_of_search_is_not_passed_over_in_silence(
    lehr: Run, asked: str, tmp_path: Path, key: str, says: str
) -> None:
    path = Path(asked)
    path.write_text(path.read_text(encoding="utf-8") + f"\n[search]\n{key}\n", encoding="utf-8")
    said = ("search", asked, "--pay", "selection", "--mean", "3", "--epsilon", "6", "--study", "ours")
    assert says in lehr(*said, code=2).stderr
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("pay", [("selection", "--mean", "2"), ("composition", "--trials", "2")])
def test_nothing_is_paid_where_no_trial_could_be_made(
    lehr: Run, asked: str, tmp_path: Path, pay: tuple[str, ...]
) -> None:
    new_budget(tmp_path / "b")
    other = ("--set", "model.in_channels=3", "--budget", "b", "--study", "ours")
    result = lehr("search", asked, "--pay", *pay, "--epsilon", "6", *other, *ON_CPU, code=2)
    assert "model must be one that takes records of shape (1, 4, 4)" in result.stderr
    assert not (tmp_path / "ours").exists()
    with Budget.open(tmp_path / "b") as account:
        assert not account.status().runs
