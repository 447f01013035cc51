"""A planned run: begun without leaving anything where it fails, resumed as it began, told about in public words."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from lehr.accounting.events import counted
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import read_certificate
from lehr.certificates.run_reading import read_run
from lehr.data.split import Split
from lehr.errors import BudgetExceeded, Diverged, InvalidValue, LehrError, StoreError
from lehr.methods.dpsgd import dpsgd
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan
from lehr.planning.search_cost import RepeatedSelection, SearchTrial
from lehr.run.folder import RunFolder
from lehr.run.shape import Callback, End, Evaluation, Progress
from tests.training.tiny import PRIVATE, PUBLIC, TEST, fit_tiny, linear, new_budget


class Stopping(Callback):
    """Ctrl-C after so many steps; it notes how the run is said to have ended."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.end: End | None = None

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.after:
            raise KeyboardInterrupt

    def ended(self, end: End) -> None:
        self.end = end


class Failing(Callback):
    """Fails as a step on a record might."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.end: End | None = None

    def evaluated(self, evaluation: Evaluation) -> None:
        raise self.error

    def ended(self, end: End) -> None:
        self.end = end


def interrupted(directory: Path, **changed: Any) -> Stopping:
    stopping = Stopping(after=3)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(directory, callbacks=[stopping], checkpoint_seconds=0, **changed)
    return stopping


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def test_an_interrupted_run_goes_on_to_its_end_and_costs_no_more(tmp_path: Path) -> None:
    stopping = interrupted(tmp_path / "run", settings_chosen_on="fixed")
    assert stopping.end is not None
    assert (stopping.end.reason, stopping.end.step) == ("interrupted", 3)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    run = fit_tiny(tmp_path / "run", settings_chosen_on="fixed", resume=True)
    assert (run.end.step, [row.step for row in run.evaluations]) == (5, [1, 2, 3, 4, 5])
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: 5}


def test_a_run_that_is_over_can_be_resumed_and_stays_as_it_is(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    said = {"settings_chosen_on": "fixed", "budget": budget}
    first = fit_tiny(tmp_path / "run", **said)
    before = load_file(tmp_path / "run" / "model.safetensors")
    (tmp_path / "run" / "certificate.json").unlink()  # as if it had been killed before that was written
    again = fit_tiny(tmp_path / "run", resume=True, **said)
    after = load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert again.certificate == first.certificate == read_certificate(tmp_path / "run" / "certificate.json")


@pytest.mark.parametrize(
    "changed, says",
    [
        ({"steps": 6}, r"plan.steps was 5 and is 6"),
        ({"noise_multiplier": 1.5}, r"plan.noise_multiplier was 1.0 and is 1.5"),
        ({"records": 41}, r"records was 40 and is 41"),
        ({"method": dpsgd(clip_norm=1.0)}, r"method.clipping.clip_norm was 0.1 and is 1.0"),
        ({"method": "sa-dpsgd"}, r"method.name was 'dpsgd' and is 'sa-dpsgd'"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))}, r"model.trained"),
        ({"views": 2}, r"training.views was 1 and is 2"),
        ({"evaluate_every": 2}, r"training.evaluate_every was 1 and is 2"),
        ({"name": "another"}, r"run was 'dpsgd on unnamed' and is 'another'"),
        ({"settings_chosen_on": "fixed"}, r"stated was None and is"),
        ({"loss_fn": lambda outputs, targets: cross_entropy(outputs, targets, reduction="none")}, r"model.loss was"),
        ({"data": (PRIVATE[0].flip(0), PRIVATE[1])}, r"data must be the very records.*; given: 'other records'"),
        ({"data": (PRIVATE[0][:-1], PRIVATE[1][:-1])}, r"data must be the very records"),
        ({"test": PUBLIC}, r"data must be the very records"),
        ({"test": None}, r"evaluated_on was"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_another_run_than_the_one_that_began_is_refused(
    changed: dict[str, Any], says: str, tmp_path: Path, begun: Path
) -> None:
    charged = (begun / "ledger.db").read_bytes()
    with pytest.raises(InvalidValue, match=says):
        fit_tiny(begun, resume=True, **changed)
    assert (begun / "ledger.db").read_bytes() == charged


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planned") / "run"
    interrupted(directory)
    return directory


def test_a_folder_that_cannot_be_written_to_is_refused_and_nothing_is_reserved(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    if os.geteuid() == 0:
        (tmp_path / "shut").write_text("a file, for root may write to any folder")
    else:
        (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(StoreError, match="shut"):
        fit_tiny(tmp_path / "shut" / "run", budget=budget)
    with Budget.open(budget) as account:
        assert account.status().runs == ()


def test_a_budget_pays_and_gets_back_what_was_not_used(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    hopeless = dpsgd(learning_rate=50.0, clip_norm=5.0, momentum=0.0)
    stopped = fit_tiny(
        tmp_path / "run", budget=budget, steps=40, method=hopeless, patience=1, evaluate_every=1, name="one"
    )
    assert stopped.certificate is None  # nobody said how the settings were chosen, and still the rest is given back
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.accepted_count() == stopped.end.accepted  # noted before the budget closes the ledger
    with Budget.open(budget) as account:
        [paid] = account.status().runs
    assert (paid.run, paid.is_settled) == ("one", True)
    assert counted(paid.charged) == {stopped.plan.step_event: stopped.end.step}
    assert counted(paid.reserved) == {stopped.plan.step_event: 40}


def test_a_certificate_lists_everything_that_its_budget_paid_for(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    fit_tiny(tmp_path / "first", budget=budget, name="first")
    run = fit_tiny(tmp_path / "second", budget=budget, name="second", settings_chosen_on="fixed")
    assert run.certificate is not None
    assert run.certificate.budget is not None
    assert [paid.run for paid in run.certificate.budget.paid_for] == ["first", "second"]
    assert read(tmp_path / "second" / "config.json")["budget"] == "tiny images"


def test_settings_chosen_on_private_data_are_certified_where_a_budget_paid_for_the_choice(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    with pytest.raises(LehrError, match="chosen on private data"):
        fit_tiny(tmp_path / "run", budget=budget, settings_chosen_on="private", name="best")
    assert not (tmp_path / "run").exists()
    fit_tiny(tmp_path / "trial", budget=budget, name="trial")
    run = fit_tiny(tmp_path / "run", budget=budget, settings_chosen_on="private", name="best")
    assert run.certificate is not None
    assert run.certificate.epsilon == pytest.approx(20.0)


def test_a_budget_that_is_too_small_refuses_the_run_and_nothing_is_left(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget", epsilon=0.5)
    with pytest.raises(BudgetExceeded):
        fit_tiny(tmp_path / "deep" / "run", budget=budget)
    assert [path.name for path in tmp_path.iterdir()] == ["budget"]
    with Budget.open(budget) as account:
        assert account.status().runs == ()


def test_a_name_that_the_budget_knows_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "budget")
    fit_tiny(tmp_path / "first", budget=budget)
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen yet"):
        fit_tiny(tmp_path / "second", budget=budget)
    assert not (tmp_path / "second").exists()


def test_a_run_that_a_budget_pays_for_is_resumed_with_it_and_with_no_other(tmp_path: Path) -> None:
    budget, other = new_budget(tmp_path / "budget"), new_budget(tmp_path / "other")
    interrupted(tmp_path / "run", budget=budget)
    with pytest.raises(InvalidValue, match="budget was 'tiny images' and is None"):
        fit_tiny(tmp_path / "run", resume=True)
    with pytest.raises(LehrError, match="dpsgd on unnamed"):
        fit_tiny(tmp_path / "run", resume=True, budget=other)
    fit_tiny(tmp_path / "run", resume=True, budget=budget)
    with Budget.open(budget) as account:
        assert [paid.is_settled for paid in account.status().runs] == [True]


@pytest.mark.parametrize("where", [(RunFolder, "open"), (Budget, "reserve")], ids=["folder", "budget"])
def test_a_run_that_is_interrupted_while_it_begins_is_never_free(
    where: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget, reserve = new_budget(tmp_path / "budget"), Budget.reserve

    def interrupted(*given: Any, **named: Any) -> None:
        if where[0] is Budget:  # when it is on the disk
            reserve(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(*where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit_tiny(tmp_path / "run", budget=budget)
    run = fit_tiny(tmp_path / "run", budget=budget, resume=True)
    with Budget.open(budget) as account:
        [paid] = account.status().runs
    assert counted(paid.charged) == {run.plan.step_event: 5}


def test_an_error_about_a_record_does_not_reach_the_callbacks(tmp_path: Path) -> None:
    failing = Failing(IndexError("Target 2 is out of bounds"))
    with pytest.raises(IndexError):
        fit_tiny(tmp_path / "run", callbacks=[failing])
    assert failing.end is not None
    assert failing.end.reason == "stopped by IndexError"


def test_a_run_that_diverges_says_so_and_what_it_was_charged_stays(tmp_path: Path) -> None:
    stopping = Stopping(after=99)
    wild = dpsgd(learning_rate=1e38, clip_norm=1e3)
    with pytest.raises(Diverged, match="stays charged"):
        fit_tiny(tmp_path / "run", method=wild, test=None, callbacks=[stopping], steps=40)
    assert stopping.end is not None
    assert "no longer finite" in stopping.end.reason
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert counted(ledger.charged())


def test_the_weights_of_the_model_that_was_given_are_where_a_new_run_starts(tmp_path: Path) -> None:
    stopping = Stopping(after=1)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(tmp_path / "run", callbacks=[stopping])
    first = load_file(tmp_path / "run" / "checkpoints" / "step-0000000000.safetensors")
    assert torch.equal(first["model/1.weight"], linear().state_dict()["1.weight"])


def test_no_record_of_the_test_part_that_acceptance_saw_is_scored_on(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method="sa-dpsgd", acceptance_fraction=0.5)
    split = Split.load(tmp_path / "run" / "private" / "split.npy")
    scored, seen = set(split.private.tolist()), set(split.public.tolist())
    assert scored | seen == set(range(len(TEST[1])))
    assert not scored & seen
    with torch.no_grad():
        loss = cross_entropy(run.model(TEST[0][split.private]), TEST[1][split.private])
    assert run.evaluations[-1].loss == pytest.approx(float(loss), rel=1e-5)
    data = read(tmp_path / "run" / "config.json")["data"]
    assert data["public_records"] == "a part of the test records, not scored on"


def test_a_run_killed_while_it_wrote_its_split_goes_on(tmp_path: Path) -> None:
    interrupted(tmp_path / "run", method="sa-dpsgd")
    split = tmp_path / "run" / "private" / "split.npy"
    before = split.read_bytes()
    split.with_name("split.part").write_bytes(before[:40])
    split.unlink()
    fit_tiny(tmp_path / "run", method="sa-dpsgd", resume=True)
    assert split.read_bytes() == before
    assert split.stat().st_mode & 0o077 == 0
    assert not split.with_name("split.part").exists()


def test_what_a_papers_rule_says_counts_the_scores_too(tmp_path: Path) -> None:
    """A rule that holds gives a proven claim: it must not leave out what is done beside the steps."""
    said: dict[str, Any] = {"test": None, "held_out_fraction": 0.5, "held_out_noise_multiplier": 0.3}
    run = fit_tiny(tmp_path / "run", method="dpsgd", accounting="published", **said)
    assert run.published is not None
    assert run.published.is_proven
    assert run.published.epsilon >= run.proven.epsilon


PRICE = RepeatedSelection(mean=3)
EVENT = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3).event


def test_a_trial_promises_what_holds_for_its_whole_search(tmp_path: Path) -> None:
    trial = SearchTrial(price=PRICE, event=EVENT)
    run = fit_tiny(tmp_path / "run", trial_of=trial, settings_chosen_on="private")
    assert run.certificate is not None
    assert run.certificate.event == PRICE.event(EVENT)
    assert run.proven.epsilon > 1.2 * run.plan.bound().epsilon
    record = read_run(tmp_path / "run")
    assert record.trial_of == PRICE
    assert record.planned == EVENT
    assert record.counted_for == PRICE.event(EVENT)
    with pytest.raises(InvalidValue, match="trial_of was"):
        fit_tiny(tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    "changed,says",
    [
        ({"steps": 6}, "what a trial does to the records must be what was fixed for every trial"),
        ({"settings_chosen_on": "fixed"}, "settings_chosen_on must be private for a trial"),
        ({"declared": "synthetic"}, "trial_of must be left out on synthetic records"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be a number > 0"),
        ({"budget": "b"}, "budget must be left out for a trial"),
    ],
)
def test_what_is_no_trial_of_its_search_is_refused(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    new_budget(tmp_path / "b")
    changed = {key: tmp_path / "b" if key == "budget" else value for key, value in changed.items()}
    said = {"settings_chosen_on": "private", "trial_of": SearchTrial(price=PRICE, event=EVENT), **changed}
    with pytest.raises(InvalidValue, match=says):
        fit_tiny(tmp_path / "run", **said)
    assert not (tmp_path / "run").exists()
