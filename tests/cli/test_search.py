"""``lehr search``: on public records, and for a price on private ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.certificates.certificate import read_certificate
from lehr.certificates.checking import check
from lehr.config import RunConfig
from lehr.planning.budget import Budget
from lehr.training.prepare import method_and_plan
from tests.cli.conftest import Run, RunJson
from tests.search.searches import as_toml, free_search
from tests.training.tiny import new_budget


def test_search_ends_with_a_table_a_winner_and_a_page(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(as_toml(free_search(tmp_path, trials=2)))
    assert "2 trials" in lehr("search", "run.toml").stdout
    folder = tmp_path / "run-search"
    _, plan = method_and_plan(RunConfig.read(folder / "winner.toml"))
    assert plan.steps == 4
    assert (folder / "report.html").exists()
    answer = lehr_json("search", "run.toml", "--trials", "3")
    assert [trial["state"] for trial in answer["trials"]] == ["done"] * 3
    assert answer["best"]["score"] == max(trial["score"] for trial in answer["trials"])
    assert answer["winner"] == "run-search/winner.toml"


def test_search_without_a_winner_says_why_and_fails(lehr: Run, tmp_path: Path) -> None:
    words, _, _ = as_toml(free_search(tmp_path, trials=2)).partition("[search]")
    diverging = words.replace("clip_norm = 1.0", "clip_norm = 1e9") + "[search.space]\nlearning_rate = [1e38]\n"
    (tmp_path / "run.toml").write_text(diverging)
    shown = lehr("search", "run.toml", "--trials", "2", code=1).output
    assert "failed" in shown
    assert "not finite" in shown or "is nan" in shown
    assert "No trial was scored: there is no winner." in shown
    assert not (tmp_path / "run-search" / "winner.toml").exists()


PRIVATE = """
[data]
name = "clinic"
npz = "private.npz"
test_npz = "test.npz"
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
learning_rate = { low = 0.1, high = 2.0, log = true }
"""
ON_CPU = ("--device", "cpu", "--no-compile")


@pytest.fixture
def config(own: Path) -> str:
    (own / "private.toml").write_text(PRIVATE, encoding="utf-8")
    new_budget(own / "b")
    return "private.toml"


def test_selection_says_its_price_first_and_its_winner_last(
    lehr: Run, lehr_json: RunJson, config: str, tmp_path: Path
) -> None:
    price = ("--pay", "selection", "--mean", "2", "--law", "logarithmic", "--epsilon", "6", "--budget", "b")
    line = ("search", config, *price, "--study", "ours", "--name", "a search", *ON_CPU)
    result = lehr(*line)
    assert "2 trials on average, by the logarithmic law" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Selected" in result.stdout
    assert "learning_rate" in result.stdout
    promised = read_certificate(tmp_path / "ours/winner/certificate.json")
    check(promised)
    assert promised.epsilon <= 6
    with Budget.open(tmp_path / "b") as account:
        assert [run.run for run in account.status().runs] == ["a search"]
    answer = lehr_json(*line)  # it is over, and says the same again
    assert answer["price"] == {"kind": "selection", "mean": 2.0, "shape": 0.0}
    assert answer.keys() == {
        *("search", "pay", "price", "winner", "settings", "accuracy", "loss", "scored_on", "epsilon", "delta")
    }
    lehr("release", "ours/winner", "--to", "out", "--budget", "b")


def test_composition_shows_and_certifies_all_of_its_trials(
    lehr: Run, lehr_json: RunJson, config: str, tmp_path: Path
) -> None:
    line = ("search", config, "--pay", "composition", "--trials", "2", "--epsilon", "6", "--study", "ours", *ON_CPU)
    result = lehr(*line)
    assert "all of its 2 trials are charged and shown. ε = " in result.stderr.splitlines()[0]
    assert "at δ = 0.001 for all 2 trials" in result.stdout
    assert "is paid for again" in (tmp_path / "ours/winner.toml").read_text(encoding="utf-8")
    for number in range(2):
        check(read_certificate(tmp_path / f"ours/trials/{number}/certificate.json"))
    answer = lehr_json(*line)  # it is over, and says the same again
    promised = read_certificate(tmp_path / answer["run"] / "certificate.json")
    assert answer["epsilon"] == pytest.approx(promised.epsilon, rel=1e-6)
    assert (answer["pay"], answer["delta"]) == ("composition", promised.delta)
    assert answer["run"] == f"ours/trials/{answer['best']['number']}"


@pytest.mark.parametrize("key, name", [('sampler = "tpe"', "sampler"), ("trials = 40", "trials")])
def test_keys_of_a_file_for_another_search_are_refused(
    lehr: Run, config: str, tmp_path: Path, key: str, name: str
) -> None:
    (tmp_path / config).write_text(f"{PRIVATE}\n[search]\n{key}\n", encoding="utf-8")
    line = ("search", config, "--pay", "selection", "--mean", "3", "--epsilon", "6", "--study", "ours")
    assert f"{name} must be" in lehr(*line, code=2).stderr
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("pay", [("selection", "--mean", "2"), ("composition", "--trials", "2")])
def test_nothing_is_paid_where_no_trial_could_run(lehr: Run, config: str, tmp_path: Path, pay: tuple[str, ...]) -> None:
    other = ("--set", "model.in_channels=3", "--budget", "b", "--study", "ours")
    result = lehr("search", config, "--pay", *pay, "--epsilon", "6", *other, *ON_CPU, code=2)
    assert "model must be" in result.stderr
    assert not (tmp_path / "ours").exists()
    with Budget.open(tmp_path / "b") as account:
        assert not account.status().runs
