"""lehr search --pay: the price is said before, the winner after, and nothing in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.cli.search_paid import PayOptions
from lehr.errors import InvalidValue
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, RepeatedSelection
from lehr.reports import certificate_file
from lehr.reports.checking import check
from tests.cli.conftest import Run, RunJson
from tests.search.paid_searches import written
from tests.training.tiny import new_budget

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
    path.write_text(ASKED.format(**written(tmp_path)), encoding="utf-8")
    return str(path)


def test_a_selection_says_its_price_first_and_its_winner_last(lehr: Run, asked: str, tmp_path: Path) -> None:
    new_budget(tmp_path / "b")
    said = ("search", asked, "--pay", "selection", "--mean", "2", "--epsilon", "6", "--budget", "b", *ON_CPU)
    result = lehr(*said, "--study", "ours", "--name", "a search")
    assert "2 trials on average, by the geometric law" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Selected" in result.stdout
    assert "learning_rate" in result.stdout
    promised = certificate_file.read(tmp_path / "ours/winner/certificate.json")
    check(promised)
    assert promised.epsilon <= 6
    with Budget.open(tmp_path / "b") as account:
        assert [run.run for run in account.status().runs] == ["a search"]
    assert lehr("certificate", "check", "ours/winner/certificate.json").exit_code == 0
    lehr("release", "ours/winner", "--to", "out", "--budget", "b")


def test_a_program_is_told_of_the_winner_alone(lehr_json: RunJson, lehr: Run, asked: str) -> None:
    said = ("search", asked, "--pay", "selection", "--mean", "1", "--law", "logarithmic", "--epsilon", "6", *ON_CPU)
    shape = lehr_json(*said, "--study", "ours")
    assert shape["price"] == {"kind": "selection", "mean": 1.0, "shape": 0.0}
    assert shape.keys() == {
        *("search", "pay", "price", "winner", "settings", "accuracy", "loss", "scored_on", "epsilon", "delta")
    }
    assert lehr(*said, "--study", "ours", "--quiet").stderr == ""  # it is over, and says the same again


def test_a_composition_shows_all_of_its_trials_and_certifies_them(lehr: Run, asked: str, tmp_path: Path) -> None:
    said = ("search", asked, "--pay", "composition", "--trials", "2", "--epsilon", "6", *ON_CPU)
    result = lehr(*said, "--study", "ours")
    assert "all of its 2 trials are charged and shown. ε = " in result.stderr.splitlines()[0]
    assert "2 trials" in result.stdout
    assert "at δ = 0.001 for all 2 trials" in result.stdout
    assert "to train it again is to pay again" in result.stdout
    assert "is paid for again" in (tmp_path / "ours/winner.toml").read_text(encoding="utf-8")
    for number in range(2):
        check(certificate_file.read(tmp_path / f"ours/trials/{number}/certificate.json"))


def test_a_program_is_told_what_a_composition_cost_and_where_its_model_is(
    lehr_json: RunJson, asked: str, tmp_path: Path
) -> None:
    said = ("search", asked, "--pay", "composition", "--trials", "2", "--epsilon", "6", *ON_CPU)
    shape = lehr_json(*said, "--study", "ours")
    promised = certificate_file.read(tmp_path / shape["run"] / "certificate.json")
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


def test_options_say_a_price() -> None:
    said = PayOptions(pay="selection", mean=4.0, law="poisson", epsilon=None, budget=None)
    assert said.price(trials=None, said=20) == RepeatedSelection(mean=4.0, shape=None)
    composition = PayOptions(pay="composition", mean=None, law=None, epsilon=None, budget=None)
    assert composition.price(trials=None, said=20) == Composition(20)
    assert composition.price(trials=3, said=20) == Composition(3)
    with pytest.raises(InvalidValue, match="mean must be left out"):
        PayOptions(pay="composition", mean=1.0, law=None, epsilon=None, budget=None).price(trials=2, said=2)
