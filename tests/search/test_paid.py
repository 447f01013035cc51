"""A search on private records is refused where its price would not hold, and planned so that all of it fits."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import dp_event, rdp
from scipy import stats

from lehr import accounting
from lehr.accounting.events import NOTHING, Adjacency, Gaussian, RepeatAndSelect, Repeated, counted
from lehr.accounting.ledger import LEDGER_FORMAT
from lehr.accounting.rdp import FRACTIONAL_ORDERS
from lehr.certificates.certificate import Statements, certificate_text, read_certificate, write_certificate
from lehr.certificates.checking import check
from lehr.certificates.issuing import issue
from lehr.certificates.release import release
from lehr.certificates.run_reading import read_run
from lehr.errors import BudgetExceeded, CertificateMismatch, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.files.append_only import AppendOnlyFile
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, RepeatedSelection, SearchPrice
from lehr.privacy.rng import RunKey
from lehr.reports.progress import SearchCallback
from lehr.run.shape import Progress, RunFiles
from lehr.search.paid import (
    OVER,
    PaidStudy,
    Selection,
    SelectionProgress,
    budget_entry,
    certify,
    check_reserved,
    number_of_trials,
    paid_search,
    reserve_search,
)
from lehr.search.request import Search
from lehr.search.study import TrialOutcome
from lehr.training.fit import fit
from lehr.training.prepare import method_and_plan
from tests.search.paid_searches import (
    GEOMETRIC,
    HOW,
    SPACE,
    begun,
    key_for,
    paid_in,
    search_in,
    selection_in,
    with_price,
)
from tests.training.tiny import new_budget

SELECTION = RepeatedSelection(mean=3)
WAYS: tuple[SearchPrice, ...] = (SELECTION, Composition(3))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_the_noise_is_the_least_with_which_the_whole_search_stays_within_epsilon(
    tmp_path: Path, price: SearchPrice
) -> None:
    paid = paid_in(tmp_path, price)
    assert 5.99 < paid.claim().epsilon <= 6
    assert paid.claim().epsilon > accounting.bound(paid.trial_event, delta=1e-3).epsilon
    assert paid.plan.steps == 4
    louder = paid_search(paid.search, price, epsilon=2.0)
    assert louder.plan.noise_multiplier > paid.plan.noise_multiplier


def test_noise_that_is_said_is_kept_and_its_price_follows(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    said = {"noise_multiplier": 3.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3}
    search = replace(search, configuration=search.configuration.with_tables(privacy=said))
    paid = paid_search(search, SELECTION)
    assert paid.plan.noise_multiplier == 3.0
    assert paid.event == SELECTION.event(paid.plan.event)


def scored_on_held_out(search: Search) -> Search:
    data = {key: value for key, value in search.configuration.data.items() if key != "test_npz"}
    own = search.configuration.with_tables(data=data).with_values(training={"held_out_fraction": 0.25})
    return replace(search, configuration=own)


def test_noised_scores_are_part_of_every_trial(tmp_path: Path) -> None:
    paid = paid_search(scored_on_held_out(search_in(tmp_path)), SELECTION)
    assert counted(paid.trial_event)[Gaussian(20.0)] == 1
    assert paid.claim().epsilon <= 6


def test_every_trial_has_the_one_plan_whatever_its_settings(tmp_path: Path) -> None:
    paid = paid_in(tmp_path)
    drawn = [paid.search.space.drawn(generator()) for _ in range(3)]
    assert {method_and_plan(paid.configuration(settings))[1] for settings in drawn} == {paid.plan}
    paid.check_events(generator())


@pytest.mark.parametrize("dimension", ["privacy.steps", "batch_factor", "privacy.expected_batch_size"])
def test_settings_that_are_numbers_of_the_plan_are_refused(tmp_path: Path, dimension: str) -> None:
    with pytest.raises(InvalidValue, match="every trial does the same to the records"):
        paid_in(tmp_path, space={**SPACE, dimension: [4, 8]})


def test_settings_that_change_the_event_of_a_trial_in_another_way_are_refused(tmp_path: Path) -> None:
    search = scored_on_held_out(search_in(tmp_path, space={"training.held_out_noise_multiplier": [20.0, 9.0]}))
    paid = paid_search(search, SELECTION)
    with pytest.raises(InvalidValue, match="every trial does the same to the records"):
        paid.check_events(generator())


@pytest.mark.parametrize("price", WAYS, ids=str)
@pytest.mark.parametrize(
    "tables,says",
    [
        ({"privacy": {"simulated_batch_size": 2}}, "simulated_batch_size must be left out on private records"),
        ({"data": {"declared": "synthetic"}}, "pay must be left out on synthetic records"),
        ({"privacy": {"accounting": "published"}}, "accounting must be proven"),
        ({"privacy": {"noise_multiplier": 1.0}}, "noise_multiplier must be left out beside epsilon"),
    ],
)
def test_what_cannot_be_paid_for_is_refused_by_name(
    tmp_path: Path, price: SearchPrice, tables: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidValue, match=says):
        paid_in(tmp_path, price, **tables)


@pytest.mark.parametrize(
    "changed,says",
    [
        ({"sampler": "tpe"}, "sampler must be random"),
        ({"pruner": "median"}, "pruner must be none"),
        ({"seed": 3}, "seed must be left out"),
    ],
)
def test_a_selection_is_of_independent_whole_trials_and_a_composition_of_any(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    search = replace(search_in(tmp_path), **changed)
    with pytest.raises(InvalidValue, match=says):
        paid_search(search, SELECTION)
    paid_search(search, Composition(3))


def test_other_records_to_search_on_are_refused(tmp_path: Path) -> None:
    search = replace(search_in(tmp_path), data={"name": "digits"})
    with pytest.raises(InvalidValue, match=r"\[search.data\] must be left out"):
        paid_search(search, SELECTION)


def test_what_is_stated_is_passed_on_with_where_the_settings_come_from(tmp_path: Path) -> None:
    stated = {"settings_chosen_on": "public", "unit_of_privacy": "one patient"}
    how = paid_in(tmp_path, privacy={"stated": stated}).fit_options()
    assert (how["stated"].settings_chosen_on, how["stated"].unit_of_privacy) == ("private", "one patient")
    assert paid_in(tmp_path).fit_options()["settings_chosen_on"] == "private"


def test_a_trial_knows_what_all_trials_do(tmp_path: Path) -> None:
    paid = paid_in(tmp_path, Composition(3))
    trial = paid.fit_options()["trial_of"]
    assert trial.event == paid.plan.event
    trial.refuse_other(paid.plan.event)
    with pytest.raises(InvalidValue, match="what was fixed for every trial"):
        trial.refuse_other(Repeated(paid.plan.step_event, 5))


ID = "ours alone"


@pytest.mark.parametrize("price", [*WAYS, RepeatedSelection(mean=3, shape=None)], ids=str)
def test_the_whole_search_is_charged_at_once_and_nothing_is_open(tmp_path: Path, price: SearchPrice) -> None:
    paid, budget = paid_in(tmp_path, price), new_budget(tmp_path / "b")
    reserve_search(budget, paid, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        runs = account.status().runs
    shared = budget_entry(budget, name="ours")
    assert all(run.is_settled for run in runs)
    assert sum(run.charged == paid.event for run in runs) == (0 if isinstance(price, Composition) else 1)
    assert shared.spent_epsilon >= 6
    if isinstance(price, Composition):
        charged = {run.run: run.charged for run in runs}
        assert charged == {"ours": paid.trial_event, "ours, the other trials": Composition(2).event(paid.trial_event)}
    check_reserved(budget, paid, name="ours", run_id=ID)


def test_of_trials_that_do_not_fit_it_is_said_how_many_would(tmp_path: Path) -> None:
    budget = new_budget(tmp_path / "b", epsilon=8.0)
    many = paid_in(tmp_path, Composition(3), privacy={"epsilon": 9.0})
    with pytest.raises(BudgetExceeded, match=r"of its 3 trials [12] would fit"):
        reserve_search(budget, many, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        assert account.status().runs == ()


def test_a_budget_that_counts_another_way_and_a_name_that_is_taken_are_refused(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), tmp_path / "b"
    Budget.create(budget, dataset="clinic", epsilon=100.0, delta=1e-3, adjacency=Adjacency.REPLACE_ONE).close()
    with pytest.raises(InvalidValue, match="adjacency must be that of the budget"):
        reserve_search(budget, paid, name="ours", run_id=ID)
    other = new_budget(tmp_path / "other", epsilon=100.0)
    reserve_search(other, paid, name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
        reserve_search(other, paid, name="ours", run_id="another")


def test_a_budget_that_has_reserved_something_else_is_refused(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), new_budget(tmp_path / "b")
    reserve_search(budget, paid, name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
        check_reserved(budget, paid_in(tmp_path, RepeatedSelection(mean=3)), name="ours", run_id=ID)
    with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
        check_reserved(budget, paid, name="another", run_id=ID)


def test_a_search_that_was_killed_while_it_reserved_does_the_rest_and_nobody_else_goes_on_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid, budget = paid_in(tmp_path, Composition(3)), new_budget(tmp_path / "b")
    calls = []

    def killed(wrapped: Any) -> Any:
        def call(self: Budget, *given: Any, **named: Any) -> Any:
            calls.append(wrapped)
            if len(calls) in (2, 4, 5, 7, 8, 9):  # each time one statement farther
                raise KeyboardInterrupt
            return wrapped(self, *given, **named)

        return call

    for name in ("reserve", "settle"):
        monkeypatch.setattr(Budget, name, killed(getattr(Budget, name)))
    for _ in range(6):
        with pytest.raises(KeyboardInterrupt):
            reserve_search(budget, paid, name="ours", run_id=ID)
        with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
            reserve_search(budget, paid, name="ours", run_id="another")
    reserve_search(budget, paid, name="ours", run_id=ID)
    check_reserved(budget, paid, name="ours", run_id=ID)
    with Budget.open(budget) as account:
        runs = account.status().runs
    assert [(run.is_settled, run.charged == run.reserved) for run in runs] == [(True, True)] * 2


def test_a_search_whose_reservation_was_given_back_does_not_go_on(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path), new_budget(tmp_path / "b")
    with Budget.open(budget) as account:
        account.reserve(paid.event, run="ours", run_id=ID)
        account.settle("ours", used=NOTHING)
    for goes_on in (reserve_search, check_reserved):
        with pytest.raises(InvalidValue, match="budget must be one that has reserved"):
            goes_on(budget, paid, name="ours", run_id=ID)


def test_a_trial_is_certified_again_with_the_budget_that_paid_and_another_day(tmp_path: Path) -> None:
    paid, budget = paid_in(tmp_path, Composition(2)), new_budget(tmp_path / "b")
    reserve_search(budget, paid, name="ours", run_id="ours alone")
    run = RunFiles(tmp_path / "run")
    trial = paid.configuration({"learning_rate": 0.5, "momentum": 0.0})
    fit(config=trial, directory=run.directory, quiet=True, name="ours", **HOW, **paid.fit_options())
    made = read_certificate(run.certificate)
    write_certificate(run.certificate, replace(made, issued_on="2026-01-30"), overwrite=True)
    certify(run, paid, name="ours", budget=None)  # of today, and not of the day of the trial
    again = read_certificate(run.certificate)
    assert again.issued_on >= made.issued_on  # midnight may pass during the test
    assert replace(again, issued_on=made.issued_on) == replace(made, ex_post=None)
    for _ in range(2):
        certify(run, paid, name="ours", budget=budget, created_on="2026-01-31")
    after = read_certificate(run.certificate)
    check(after)
    assert made.budget is None
    assert after.budget is not None
    assert after.epsilon == made.epsilon
    assert after.issued_on == "2026-01-31"
    config = strict_json.read(run.config, strict_json.check_table)
    assert (config["created_on"], config["budget"]) == ("2026-01-31", "tiny images")
    assert "Begun on 2026-01-31" in run.report.read_text()


def study_in(folder: Path, *, trials: int = 2, budget: Path | None = None, sampler: str = "tpe") -> PaidStudy:
    paid = paid_in(folder, Composition(trials))
    paid = replace(paid, search=replace(paid.search, sampler=sampler))
    return PaidStudy(paid=paid, directory=folder / "study", name="our search", budget=budget, options=HOW)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> PaidStudy:
    folder = tmp_path_factory.mktemp("composition")
    study = study_in(folder, trials=3, budget=new_budget(folder / "b"))
    assert [row.number for row in study.run()] == [0, 1, 2]
    return study


def test_every_trial_is_certified_for_all_of_them(done: PaidStudy) -> None:
    for number in range(3):
        run = done.directory / "trials" / str(number)
        promised = read_certificate(run / "certificate.json")
        check(promised)
        whole = Repeated(done.paid.plan.step_event, 3 * 4)
        assert counted(promised.event) == counted(whole)
        assert promised.epsilon == pytest.approx(accounting.bound(whole, delta=1e-3).epsilon, rel=1e-6)
        assert promised.epsilon > 1.2 * done.paid.plan.bound().epsilon
        assert promised.stated.settings_chosen_on == "private"
        assert promised.budget is not None
        assert "among 3 trials" in " ".join(certificate_text(promised).split())
        assert "ε spent" not in (run / "report.html").read_text()
        assert read_run(run).trial_of == Composition(3)


def test_one_of_them_is_released_with_that_certificate(done: PaidStudy, tmp_path: Path) -> None:
    released = release(done.directory / "trials/1", tmp_path / "out", budget=done.budget)
    assert released.certificate is not None
    assert counted(released.certificate.event) == counted(Repeated(done.paid.plan.step_event, 12))
    assert "among 3 trials" in (tmp_path / "out/model_card.md").read_text()


def test_it_is_reserved_before_the_first_trial_and_refused_before_anything_is_made(tmp_path: Path) -> None:
    study = study_in(tmp_path, budget=new_budget(tmp_path / "b", epsilon=4.0))
    with pytest.raises(BudgetExceeded, match=r"of its 2 trials \d would fit"):
        study.run()
    assert not study.directory.exists()
    fits = study_in(tmp_path, budget=new_budget(tmp_path / "larger"))
    fits._begin(fits.directory / "price.json")  # and the process is killed here
    assert fits.budget is not None
    with Budget.open(fits.budget) as account:
        assert sum(sum(counted(run.charged).values()) for run in account.status().runs) == 8


def test_a_study_that_began_as_another_is_refused(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study._begin(study.directory / "price.json")
    with pytest.raises(InvalidValue, match=r"price\.trials was 2 and is 3"):
        study_in(tmp_path, trials=3).run()


def test_how_long_a_trial_took_is_not_told(done: PaidStudy) -> None:
    assert [row.seconds for row in done.study.rows()] == [None] * 3


def test_trials_whose_database_is_gone_are_not_made_again(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study._begin(study.directory / "price.json")
    (study.directory / "study.db").unlink()
    with pytest.raises(StoreError, match=r"study\.db, which knows its trials, is gone"):
        study.run()
    assert not (study.directory / "trials").exists()


class _Killed(SearchCallback):
    """Ends the process in the middle of a trial, as far as a test can."""

    def stepped(self, progress: Progress) -> None:
        raise KeyboardInterrupt


def test_a_trial_that_had_begun_is_not_begun_anew_without_its_folder(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        study.run([_Killed()])
    shutil.rmtree(study.directory / "trials/0")
    with pytest.raises(StoreError, match="trial 0: it had begun, and its folder"):
        study_in(tmp_path).run()


KEYS = [RunKey(hashlib.sha256(str(place).encode()).digest()) for place in range(2000)]
BINS = 6


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def drawn(price: RepeatedSelection) -> list[int]:
    """How often each of the smallest numbers was drawn, and how often a larger one."""
    found = Counter(min(number_of_trials(price, key), BINS) for key in KEYS)
    return [found[number] for number in range(1, BINS + 1)]


def expected(mean: float) -> list[float]:
    law = stats.geom(1 / mean)
    return [len(KEYS) * p for p in (*(float(law.pmf(number)) for number in range(1, BINS)), float(law.sf(BINS - 1)))]


def test_keys_draw_numbers_by_the_stated_law_and_by_no_other() -> None:
    assert stats.chisquare(drawn(RepeatedSelection(mean=3)), expected(3)).pvalue > 1e-3
    assert stats.chisquare(drawn(RepeatedSelection(mean=3, shape=0)), expected(3)).pvalue < 1e-9
    assert stats.chisquare(drawn(RepeatedSelection(mean=3.5)), expected(3)).pvalue < 1e-9


def test_the_number_is_always_the_same_for_one_key() -> None:
    assert number_of_trials(GEOMETRIC, KEYS[0]) == number_of_trials(GEOMETRIC, RunKey(KEYS[0].secret))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Selection]:
    """Two searches that are over: one had a single trial and one had three."""
    made = {}
    for number in (1, 3):
        folder = tmp_path_factory.mktemp(f"of {number}")
        with Budget.create(folder / "b", dataset="clinic", epsilon=100.0, delta=1e-3):
            pass
        made[number] = begun(selection_in(folder, budget=folder / "b"), number)
        assert made[number].run() == folder / "search" / "winner"
    return made


def test_searches_of_any_number_of_trials_leave_the_same_files_with_the_same_times(both: dict[int, Selection]) -> None:
    one, three = both[1].directory, both[3].directory
    assert names(one) == names(three)
    assert {path.name for path in three.iterdir()} == {"search.json", "winner"}
    for folder in (one, three):
        begun_at = strict_json.read(folder / "search.json", strict_json.check_table)["begun_at"]
        assert len({path.stat().st_mtime for path in (folder, *folder.rglob("*"))}) == 1
        with AppendOnlyFile.open(folder / "winner/ledger.db", LEDGER_FORMAT) as ledger:
            assert {row.at for row in ledger.rows()} == {begun_at}
        assert read_certificate(folder / "winner/certificate.json").issued_on == begun_at[:10]


def test_what_is_written_about_a_search_is_the_same_for_any_number_of_trials(both: dict[int, Selection]) -> None:
    def said(selection: Selection) -> Any:
        text = (selection.directory / "search.json").read_text().replace(str(selection.directory.parent), "")
        return [line for line in text.splitlines() if "begun_at" not in line and "run_id" not in line]

    def drawn_settings_apart(selection: Selection) -> Any:
        config = strict_json.read(selection.directory / "winner/config.json", strict_json.check_table)
        return {key: value for key, value in config.items() if key not in ("method", "created_on")}

    assert said(both[1]) == said(both[3])
    assert drawn_settings_apart(both[1]) == drawn_settings_apart(both[3])
    ledgers = []
    for selection in both.values():
        with AppendOnlyFile.open(selection.directory / "winner/ledger.db", LEDGER_FORMAT) as ledger:
            ledgers.append([(row.kind, row.body) for row in ledger.rows()])
    assert ledgers[0] == ledgers[1]


def test_the_budget_says_the_same_for_any_number_of_trials(both: dict[int, Selection]) -> None:
    statuses = []
    for selection in both.values():
        assert selection.budget is not None
        with Budget.open(selection.budget) as account:
            statuses.append(account.status())
            assert len(account._file.rows()) == 3  # opened, reserved, settled, all before the first trial
    assert statuses[0] == statuses[1]


def test_a_selection_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begun(selection_in(tmp_path), 2).run()
    assert capfd.readouterr() == ("", "")


def test_the_certificate_of_the_winner_is_for_the_whole_search(both: dict[int, Selection]) -> None:
    for selection in both.values():
        promised = read_certificate(selection.directory / "winner/certificate.json")
        check(promised)
        assert promised.event == RepeatAndSelect(selection.paid.trial_event, mean=2, shape=1.0)
        assert promised.stated.settings_chosen_on == "private"
        assert promised.budget is not None
        assert promised.budget.run == "our search"
        assert 5.9 < promised.epsilon <= 6


def test_its_epsilon_is_that_of_dp_accounting(both: dict[int, Selection]) -> None:
    plan = both[1].paid.plan
    reference = rdp.RdpAccountant(list(FRACTIONAL_ORDERS), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(8 / 40, dp_accounting.GaussianDpEvent(plan.noise_multiplier))
    reference.compose(dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, 4), 2, 1))
    promised = read_certificate(both[1].directory / "winner/certificate.json")
    assert promised.epsilon == pytest.approx(reference.get_epsilon(1e-3), rel=1e-6)
    assert promised.epsilon > 1.2 * plan.bound().epsilon


def test_the_winner_has_the_epsilon_of_the_search_and_not_that_of_one_trial(both: dict[int, Selection]) -> None:
    record = read_run(both[3].directory / "winner")
    assert record.certificate is not None
    page = (both[3].directory / "winner/report.html").read_text()
    assert f"ε = {record.certificate.epsilon:.4f}"[:8] in page
    assert "ε spent" not in page
    assert record.plan is not None
    assert f"{record.plan.bound().epsilon:.4g}"[:4] not in page.split("<script")[0]
    spent = {row.epsilon_spent for row in record.evaluations}
    assert list(spent) == [pytest.approx(record.certificate.epsilon, rel=1e-6)]


def test_the_winner_is_released_with_the_certificate_of_the_search_and_no_other(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    winner, plan = selection.run(), selection.paid.plan
    assert winner is not None
    alone = issue(plan.event, delta=1e-3, stated=Statements(settings_chosen_on="fixed", records=plan.records))
    write_certificate(winner / "certificate.json", alone, overwrite=True)
    with pytest.raises(CertificateMismatch, match="its event, stated, epsilon is not"):
        release(winner, tmp_path / "out")
    (winner / "certificate.json").unlink()  # it can be issued again, and for nothing less
    with pytest.raises(InvalidValue, match=r"settings_chosen_on must be what was stated for the run \(private\)"):
        release(winner, tmp_path / "out", settings_chosen_on="fixed")
    released = release(winner, tmp_path / "out")
    assert released.certificate is not None
    assert isinstance(released.certificate.event, RepeatAndSelect)
    assert "geometric law with mean 2" in (tmp_path / "out/model_card.md").read_text()


def test_the_whole_search_is_reserved_before_its_first_trial_and_stays_so(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "b", dataset="clinic", epsilon=100.0, delta=1e-3):
        pass
    selection = selection_in(tmp_path, budget=tmp_path / "b")
    selection._begin()  # and the process is killed here
    assert not selection.files.trial.exists()
    with Budget.open(tmp_path / "b") as account:
        [run] = account.status().runs
    assert run.charged == selection.paid.event
    with pytest.raises(InvalidValue, match="name must be one that the budget has not seen"):
        replace(selection, directory=tmp_path / "other").run()
    assert not (tmp_path / "other").exists()


def test_what_does_not_fit_is_refused_with_what_would_and_leaves_nothing(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "b", dataset="clinic", epsilon=7.0, delta=1e-3):
        pass
    selection = with_price(selection_in(tmp_path, budget=tmp_path / "b"), RepeatedSelection(mean=500))
    with pytest.raises(BudgetExceeded, match=r"a mean of [\d.]+ trials would fit") as refusal:
        selection.run()
    assert not selection.directory.exists()
    fitting = float(str(refusal.value).split("a mean of ")[1].split()[0])
    assert 1 < fitting < 500
    fits = replace(with_price(selection, RepeatedSelection(mean=fitting)), name="a smaller one")
    fits._begin()
    with Budget.open(tmp_path / "b") as account:
        assert [run.run for run in account.status().runs] == ["a smaller one"]


def test_no_trial_at_all_releases_nothing(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path, RepeatedSelection(mean=2, shape=None)), 0)
    assert selection.run() is None
    assert names(selection.directory) == {"search.json"}
    assert selection.run() is None


def test_trials_that_all_end_without_a_model_release_nothing_and_are_not_told_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    selection = begun(selection_in(tmp_path, space={"learning_rate": [1e42]}), 2)
    assert selection.run() is None
    assert names(selection.directory) == {"search.json"}
    assert capfd.readouterr() == ("", "")  # a line for each that diverged would count them


PROGRAM = """
import sys
from pathlib import Path
from tests.search.paid_searches import selection_in
selection_in(Path(sys.argv[1])).run()
"""


@pytest.mark.slow
def test_a_search_that_is_killed_goes_on_with_the_same_number_of_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = begun(selection_in(tmp_path), 3)
    before = begun_key(selection)
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=root)
    try:
        while selection._progress().trials < 1 or not RunFiles(selection.files.trial).ledger.exists():
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert selection.files.private.stat().st_mode & 0o777 == 0o700
    assert begun_key(selection) == before
    done = selection._progress().trials
    assert 1 <= done < 3
    kept: list[SelectionProgress] = []
    keep = Selection._save

    def keep_and_note(self: Selection, standing: SelectionProgress) -> None:
        kept.append(standing)
        keep(self, standing)

    monkeypatch.setattr(Selection, "_save", keep_and_note)
    assert selection.run() is not None
    assert kept[-1].trials == 3
    assert names(selection.directory) & {"private", "private/key"} == set()


def begun_key(selection: Selection) -> bytes:
    return selection.files.key.read_bytes()


def test_a_search_that_was_killed_while_it_tidied_up_ends(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    selection._run_trials(RunKey.load(selection.files.key))
    assert selection._progress().last == OVER
    RunKey.destroy(selection.files.key)
    assert selection.run() == selection.files.winner
    assert selection.run() == selection.files.winner
    selection.files.private.mkdir()  # as it is between its last file and itself
    assert selection.run() == selection.files.winner
    assert not selection.files.private.exists()


def test_a_search_that_was_killed_at_its_very_end_tells_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = begun(selection_in(tmp_path), 1)
    flushed = atomic.flush_folder

    def killed(folder: Path) -> None:
        flushed(folder)
        if folder == selection.directory and not selection.files.private.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(atomic, "flush_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        selection.run()
    assert selection.run() == selection.files.winner
    began_at = datetime.fromisoformat(json.loads(selection.files.request.read_text())["begun_at"]).timestamp()
    times = {path.stat().st_mtime for path in selection.files.winner.rglob("*")}
    assert times == {began_at}


def test_a_search_without_its_key_does_not_end_with_whatever_it_has(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 2)
    selection.files.key.unlink()
    with pytest.raises(StoreError, match="key"):
        selection.run()


def test_a_trial_that_could_not_be_repeated_to_the_bit_is_made_anew(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    assert not selection._run_trial(key_for(GEOMETRIC, 1), 0).note
    trial = RunFiles(selection.files.trial)
    first = trial.key.read_bytes()
    [attempt] = strict_json.read_lines(trial.attempts)
    strict_json.append_line(trial.attempts, {**attempt, "number": 7}, mode=0o600)  # type: ignore[dict-item]
    winner = selection.run()
    assert winner is not None
    assert RunFiles(winner).key.read_bytes() != first
    assert len(strict_json.read_lines(RunFiles(winner).attempts)) == 1


def test_a_search_that_began_as_another_is_refused(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 2)
    other = with_price(selection, RepeatedSelection(mean=3))
    with pytest.raises(InvalidValue, match=r"price.mean was 2 and is 3"):
        other.run()
    with pytest.raises(InvalidValue, match="price must be a RepeatedSelection"):
        with_price(selection, Composition(3))


def test_two_processes_do_not_work_on_one_search(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    held = atomic.take_lock(selection.files.lock, for_what="it")
    with pytest.raises(StoreError, match="another process has it"):
        selection.run()
    os.close(held)


def test_trials_may_be_scored_on_held_out_records_with_noise_that_is_charged(tmp_path: Path) -> None:
    selection = selection_in(tmp_path)
    paid = paid_search(scored_on_held_out(selection.paid.search), GEOMETRIC)
    winner = begun(replace(selection, paid=paid), 1).run()
    assert winner is not None
    promised = read_certificate(winner / "certificate.json")
    check(promised)
    assert isinstance(promised.event, RepeatAndSelect)
    assert counted(promised.event.event) == {paid.plan.step_event: 4, Gaussian(20.0): 1}


@pytest.mark.parametrize(
    "outcome,is_better",
    [
        (TrialOutcome(score=0.6), True),
        (TrialOutcome(score=0.5), False),  # of equal ones the first is kept
        (TrialOutcome(score=0.4), False),
        (TrialOutcome(score=math.nan), False),
        (TrialOutcome(score=0.9, note="diverged"), False),
    ],
)
def test_only_a_better_trial_takes_the_place_of_the_best(outcome: TrialOutcome, is_better: bool) -> None:
    after = SelectionProgress(trials=3, best=0.5).after(outcome, "accuracy")
    assert after == SelectionProgress(trials=4, best=0.6 if is_better else 0.5, last="won" if is_better else "lost")


def test_a_smaller_loss_is_better() -> None:
    first = SelectionProgress().after(TrialOutcome(score=2.0), "loss")
    assert (first.best, first.last) == (-2.0, "won")
    assert first.after(TrialOutcome(score=1.5), "loss").last == "won"
    assert first.after(TrialOutcome(score=2.5), "loss").last == "lost"
    assert first.after(TrialOutcome(score=math.inf), "loss").last == "lost"
