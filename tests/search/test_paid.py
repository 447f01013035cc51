"""Searches on private records: their price, their budget, compositions and selections."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import shutil
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
from lehr.certificates.certificate import Statements, how_chosen, read_certificate, write_certificate
from lehr.certificates.checking import check
from lehr.certificates.issuing import issue
from lehr.certificates.release import release
from lehr.certificates.run_reading import read_run
from lehr.errors import BudgetExceeded, CertificateMismatch, InvalidValue, StoreError
from lehr.files import atomic, strict_json
from lehr.files.append_only import AppendOnlyFile, Transaction
from lehr.planning.budget import Budget, RunStatus
from lehr.planning.search_cost import Composition, RepeatedSelection, SearchPrice
from lehr.privacy.rng import RunKey
from lehr.reports.progress import SearchCallback
from lehr.run.shape import Progress, RunFiles
from lehr.search.paid import (
    OVER,
    PaidStudy,
    Selection,
    SelectionProgress,
    number_of_trials,
    paid_search,
)
from lehr.search.request import Search
from lehr.search.study import TrialOutcome
from lehr.training.prepare import method_and_plan
from tests.search.searches import GEOMETRIC, HOW, begin, key_for, paid_in, private_search, selection_in
from tests.training.tiny import new_budget

WAYS: tuple[SearchPrice, ...] = (GEOMETRIC, Composition(3))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def runs_of(budget: Path | None) -> tuple[RunStatus, ...]:
    assert budget is not None
    with Budget.open(budget) as account:
        return account.status().runs


def with_price(selection: Selection, price: SearchPrice) -> Selection:
    return replace(selection, paid=replace(selection.paid, price=price))


# The price, and what cannot be paid for.


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_the_noise_is_the_least_with_which_the_whole_search_stays_within_epsilon(
    tmp_path: Path, price: SearchPrice
) -> None:
    paid = paid_in(tmp_path, price)
    assert 5.99 < paid.claim().epsilon <= 6
    assert paid.claim().epsilon > accounting.bound(paid.trial_event, delta=1e-3).epsilon
    assert paid.plan.steps == 4
    drawn = [paid.search.space.draw(generator()) for _ in range(3)]  # whatever its settings, a trial has this plan
    assert {method_and_plan(paid.search.trial(each, plan=paid.plan))[1] for each in drawn} == {paid.plan}
    trial = paid.fit_options()["trial_of"]
    trial.check_same(paid.plan.event)
    with pytest.raises(InvalidValue):
        trial.check_same(Repeated(paid.plan.step_event, 5))


def test_noise_that_is_given_is_kept_and_its_price_follows(tmp_path: Path) -> None:
    search = private_search(tmp_path)
    privacy = {"noise_multiplier": 3.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3}
    paid = paid_search(replace(search, configuration=search.configuration.with_tables(privacy=privacy)), GEOMETRIC)
    assert paid.plan.noise_multiplier == 3.0
    assert paid.event == GEOMETRIC.event(paid.plan.event)


def scored_on_held_out(search: Search) -> Search:
    data = {key: value for key, value in search.configuration.data.items() if key != "test_npz"}
    own = search.configuration.with_tables(data=data).with_values(training={"held_out_fraction": 0.25})
    return replace(search, configuration=own)


@pytest.mark.parametrize("dimension", ["privacy.steps", "batch_factor", "privacy.expected_batch_size"])
def test_settings_that_change_the_plan_are_refused(tmp_path: Path, dimension: str) -> None:
    with pytest.raises(InvalidValue, match=r"\[search.space\]"):
        paid_in(tmp_path, space={"momentum": [0.0], dimension: [4, 8]})


def test_settings_that_change_the_event_of_a_trial_in_another_way_are_refused(tmp_path: Path) -> None:
    space = {"training.held_out_noise_multiplier": [20.0, 9.0]}
    paid = paid_search(scored_on_held_out(private_search(tmp_path, space=space)), GEOMETRIC)
    with pytest.raises(InvalidValue, match=r"\[search.space\]"):
        paid.check_events(generator())


@pytest.mark.parametrize("price", WAYS, ids=str)
@pytest.mark.parametrize(
    "tables, name",
    [
        ({"privacy": {"simulated_batch_size": 2}}, "simulated_batch_size"),
        ({"data": {"declared": "synthetic"}}, "pay"),
        ({"privacy": {"accounting": "published"}}, "accounting"),
        ({"privacy": {"noise_multiplier": 1.0}}, "noise_multiplier"),
    ],
)
def test_what_cannot_be_paid_for_is_refused(
    tmp_path: Path, price: SearchPrice, tables: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidValue) as error:
        paid_in(tmp_path, price, **tables)
    assert error.value.name == name


@pytest.mark.parametrize("changed", [{"sampler": "tpe"}, {"pruner": "median"}, {"seed": 3}])
def test_a_selection_is_of_independent_whole_trials_and_a_composition_of_any(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    search = replace(private_search(tmp_path), **changed)
    with pytest.raises(InvalidValue) as error:
        paid_search(search, GEOMETRIC)
    assert [error.value.name] == [*changed]
    paid_search(search, Composition(3))


def test_other_records_to_search_on_are_refused(tmp_path: Path) -> None:
    search = replace(private_search(tmp_path), data={"name": "digits"})
    with pytest.raises(InvalidValue, match=r"\[search.data\]"):
        paid_search(search, GEOMETRIC)


def test_statements_are_passed_on_with_where_the_settings_come_from(tmp_path: Path) -> None:
    stated = {"settings_chosen_on": "public", "unit_of_privacy": "one patient"}
    how = paid_in(tmp_path, privacy={"stated": stated}).fit_options()
    assert (how["stated"].settings_chosen_on, how["stated"].unit_of_privacy) == ("private", "one patient")
    assert paid_in(tmp_path).fit_options()["settings_chosen_on"] == "private"


# The budget.

ID = "ours alone"


def run_in(folder: Path, price: SearchPrice, *, budget: Path, **changed: Any) -> PaidStudy | Selection:
    kind = PaidStudy if isinstance(price, Composition) else Selection
    paid = paid_in(folder, price, **changed)
    return kind(paid=paid, directory=folder / "search", name="ours", budget=budget, options=HOW)


@pytest.mark.parametrize("price", [*WAYS, RepeatedSelection(mean=3, shape=None)], ids=str)
def test_the_whole_search_is_charged_at_once_and_nothing_is_open(tmp_path: Path, price: SearchPrice) -> None:
    search = run_in(tmp_path, price, budget=new_budget(tmp_path / "b"))
    search.reserve(ID)
    search.check_reserved(ID)
    runs, event = runs_of(search.budget), search.paid.trial_event
    expected = {"ours": search.paid.event}
    if isinstance(price, Composition):
        expected = {"ours": event, "ours, the other trials": Composition(2).event(event)}
    assert {run.run: run.charged for run in runs} == expected
    assert all(run.is_settled for run in runs)


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path, price: SearchPrice) -> None:
    search = run_in(tmp_path, price, budget=new_budget(tmp_path / "b", epsilon=8.0), privacy={"epsilon": 9.0})
    with pytest.raises(BudgetExceeded):
        search.run()
    assert not search.directory.exists()
    assert runs_of(search.budget) == ()


def test_another_adjacency_name_or_reservation_is_refused(tmp_path: Path) -> None:
    Budget.create(tmp_path / "b", dataset="clinic", epsilon=99.0, delta=1e-3, adjacency=Adjacency.REPLACE_ONE).close()
    search = run_in(tmp_path, GEOMETRIC, budget=tmp_path / "b")
    with pytest.raises(InvalidValue, match="adjacency"):
        search.reserve(ID)
    search = replace(search, budget=new_budget(tmp_path / "other"))
    search.reserve(ID)
    with pytest.raises(InvalidValue, match="name"):
        search.reserve("another")
    larger = replace(search, paid=replace(search.paid, price=RepeatedSelection(mean=3)))
    for other in (larger, replace(search, name="another")):
        with pytest.raises(InvalidValue, match="budget"):
            other.check_reserved(ID)


def test_a_search_killed_while_it_reserves_does_it_again_and_nobody_else_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = run_in(tmp_path, Composition(3), budget=new_budget(tmp_path / "b"))
    append, left = Transaction.append, [0]

    def killed(self: Transaction, *given: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return append(self, *given, **named)

    monkeypatch.setattr(Transaction, "append", killed)
    for rows in range(4):  # two reservations and two settlements are written together, or none
        left[0] = rows
        with pytest.raises(KeyboardInterrupt):
            search.reserve(ID)
        assert runs_of(search.budget) == ()
    for _ in range(2):
        left[0] = 4
        search.reserve(ID)
        with pytest.raises(InvalidValue, match="name"):
            search.reserve("another")
    search.check_reserved(ID)
    assert [(run.is_settled, run.charged == run.reserved) for run in runs_of(search.budget)] == [(True, True)] * 2


def test_a_search_whose_reservation_was_given_back_is_not_resumed(tmp_path: Path) -> None:
    search = run_in(tmp_path, GEOMETRIC, budget=new_budget(tmp_path / "b"))
    assert search.budget is not None
    with Budget.open(search.budget) as account:
        account.reserve(search.paid.event, run="ours", run_id=ID)
        account.settle("ours", used=NOTHING)
    for resume in (search.reserve, search.check_reserved):
        with pytest.raises(InvalidValue, match="budget"):
            resume(ID)


# Compositions.


def study_in(folder: Path, *, trials: int = 2, budget: Path | None = None) -> PaidStudy:
    paid = paid_in(folder, Composition(trials))
    paid = replace(paid, search=replace(paid.search, sampler="tpe"))
    return PaidStudy(paid=paid, directory=folder / "study", name="our search", budget=budget, options=HOW)


class Killed(SearchCallback):
    """Ends the process in the middle of a trial, as far as a test can."""

    def stepped(self, progress: Progress) -> None:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> PaidStudy:
    """A composition that was killed in its first trial, lost its mark, and was resumed."""
    folder = tmp_path_factory.mktemp("composition")
    study = study_in(folder, trials=3, budget=new_budget(folder / "b"))
    with pytest.raises(KeyboardInterrupt):
        study.run([Killed()])
    (study.directory / "search.json").unlink()  # the trial is resumed all the same, and never begun a second time
    assert [(row.number, row.state, row.seconds) for row in study.run()] == [(n, "done", None) for n in range(3)]
    return study


def test_every_trial_of_a_composition_is_certified_for_all_of_them(done: PaidStudy) -> None:
    whole = Repeated(done.paid.plan.step_event, 3 * 4)
    for number in range(3):
        run = done.directory / "trials" / str(number)
        promised = read_certificate(run / "certificate.json")
        check(promised)
        assert counted(promised.event) == counted(whole)
        assert promised.epsilon == pytest.approx(accounting.bound(whole, delta=1e-3).epsilon, rel=1e-6)
        assert promised.epsilon > 1.2 * done.paid.plan.bound().epsilon
        assert promised.stated.settings_chosen_on == "private"
        assert promised.budget is not None
        assert "among 3 trials" in " ".join(how_chosen(promised))
        assert "ε spent" not in (run / "report.html").read_text()
        assert read_run(run).trial_of == Composition(3)


def test_a_trial_of_a_composition_is_released_with_that_certificate(done: PaidStudy, tmp_path: Path) -> None:
    released = release(done.directory / "trials/1", tmp_path / "out", budget=done.budget)
    assert released.certificate is not None
    assert counted(released.certificate.event) == counted(Repeated(done.paid.plan.step_event, 12))
    assert "among 3 trials" in (tmp_path / "out/README.md").read_text()


def test_a_composition_is_reserved_before_its_first_trial_and_resumed_as_it_began(tmp_path: Path) -> None:
    study = study_in(tmp_path, budget=new_budget(tmp_path / "b"))
    study._begin(study.directory / "price.json")  # and the process is killed here
    assert sum(sum(counted(run.charged).values()) for run in runs_of(study.budget)) == 8
    with pytest.raises(InvalidValue, match=r"price\.trials was 2 and is 3"):
        study_in(tmp_path, trials=3, budget=study.budget).run()
    (study.directory / "study.db").unlink()
    with pytest.raises(StoreError, match=r"study\.db"):  # which knows its trials
        study.run()
    assert not (study.directory / "trials").exists()


def test_a_trial_that_had_begun_does_not_begin_anew_without_its_folder(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        study_in(tmp_path).run([Killed()])
    shutil.rmtree(tmp_path / "study/trials/0")
    with pytest.raises(StoreError, match="trial 0"):
        study_in(tmp_path).run()


# Selections: the number of trials.

KEYS = [RunKey(hashlib.sha256(str(place).encode()).digest()) for place in range(2000)]
BINS = 6


def drawn(price: RepeatedSelection) -> list[int]:
    """How often each of the smallest numbers was drawn, and how often a larger one."""
    found = Counter(min(number_of_trials(price, key), BINS) for key in KEYS)
    return [found[number] for number in range(1, BINS + 1)]


def test_keys_draw_numbers_by_the_stated_law_and_by_no_other() -> None:
    law = stats.geom(1 / 3)
    probabilities = (*(float(law.pmf(number)) for number in range(1, BINS)), float(law.sf(BINS - 1)))
    expected = [len(KEYS) * probability for probability in probabilities]
    assert stats.chisquare(drawn(RepeatedSelection(mean=3)), expected).pvalue > 1e-3
    assert stats.chisquare(drawn(RepeatedSelection(mean=3, shape=0)), expected).pvalue < 1e-9
    assert stats.chisquare(drawn(RepeatedSelection(mean=3.5)), expected).pvalue < 1e-9
    assert number_of_trials(GEOMETRIC, KEYS[0]) == number_of_trials(GEOMETRIC, RunKey(KEYS[0].secret))


# Selections: what is kept and shown.


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Selection]:
    """Two searches that are over: one had a single trial and one had three."""
    made = {}
    for number in (1, 3):
        folder = tmp_path_factory.mktemp(f"of {number}")
        made[number] = begin(selection_in(folder, budget=new_budget(folder / "b", epsilon=99.0)), number)
        assert made[number].run() == folder / "search" / "winner"
    return made


def test_any_number_of_trials_leaves_the_same_files_with_the_same_times(both: dict[int, Selection]) -> None:
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
    def written(selection: Selection) -> Any:
        folder = selection.directory
        text = (folder / "search.json").read_text().replace(str(folder.parent), "")
        request = [line for line in text.splitlines() if "begun_at" not in line and "run_id" not in line]
        config = strict_json.read(folder / "winner/config.json", strict_json.check_table)
        without_settings = {key: value for key, value in config.items() if key not in ("method", "created_on")}
        with AppendOnlyFile.open(folder / "winner/ledger.db", LEDGER_FORMAT) as ledger:
            charges = [(row.kind, row.body) for row in ledger.rows()]
        assert selection.budget is not None
        with Budget.open(selection.budget) as account:
            assert len(account._file.rows()) == 3  # opened, reserved, settled, all before the first trial
            return request, without_settings, charges, account.status()

    assert written(both[1]) == written(both[3])


def test_the_certificate_of_the_winner_is_for_the_whole_search(both: dict[int, Selection]) -> None:
    plan = both[1].paid.plan
    reference = rdp.RdpAccountant(list(FRACTIONAL_ORDERS), dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp_accounting.PoissonSampledDpEvent(8 / 40, dp_accounting.GaussianDpEvent(plan.noise_multiplier))
    reference.compose(dp_event.RepeatAndSelectDpEvent(dp_accounting.SelfComposedDpEvent(step, 4), 2, 1))
    for selection in both.values():
        promised = read_certificate(selection.directory / "winner/certificate.json")
        check(promised)
        assert promised.event == RepeatAndSelect(selection.paid.trial_event, mean=2, shape=1.0)
        assert promised.stated.settings_chosen_on == "private"
        assert promised.budget is not None
        assert promised.budget.run == "our search"
        assert promised.epsilon == pytest.approx(reference.get_epsilon(1e-3), rel=1e-6)
        assert 1.2 * plan.bound().epsilon < promised.epsilon <= 6


def test_no_file_of_the_winner_shows_the_epsilon_of_one_trial(both: dict[int, Selection]) -> None:
    record = read_run(both[3].directory / "winner")
    assert record.certificate is not None
    assert record.plan is not None
    page = (both[3].directory / "winner/report.html").read_text()
    assert f"ε = {record.certificate.epsilon:.4f}"[:8] in page
    assert "ε spent" not in page
    assert f"{record.plan.bound().epsilon:.4g}"[:4] not in page.split("<script")[0]
    spent = {row.epsilon_spent for row in record.evaluations}
    assert list(spent) == [pytest.approx(record.certificate.epsilon, rel=1e-6)]


def test_the_winner_is_released_with_the_certificate_of_the_search_and_no_other(
    both: dict[int, Selection], tmp_path: Path
) -> None:
    folder = shutil.copytree(both[1].directory, tmp_path / "search")
    winner, plan, budget = folder / "winner", both[1].paid.plan, both[1].budget
    alone = issue(plan.event, delta=1e-3, stated=Statements(settings_chosen_on="fixed", records=plan.records))
    write_certificate(winner / "certificate.json", alone, overwrite=True)
    with pytest.raises(CertificateMismatch):
        release(winner, tmp_path / "out", budget=budget)
    (winner / "certificate.json").unlink()  # it can be issued again, and for nothing less
    with pytest.raises(InvalidValue, match="settings_chosen_on"):
        release(winner, tmp_path / "out", settings_chosen_on="fixed", budget=budget)
    released = release(winner, tmp_path / "out", budget=budget)
    assert released.certificate is not None
    assert isinstance(released.certificate.event, RepeatAndSelect)
    assert "geometric law with mean 2" in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    "number, changed",
    [(0, {"price": RepeatedSelection(mean=2, shape=None)}), (2, {"space": {"learning_rate": [1e42]}})],
    ids=["no trial", "two that diverge"],
)
def test_a_search_without_a_model_leaves_nothing_and_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: int, changed: dict[str, Any]
) -> None:
    selection = begin(selection_in(tmp_path, **changed), number)
    assert selection.run() is None
    assert names(selection.directory) == {"search.json"}
    assert selection.run() is None
    assert capfd.readouterr() == ("", "")  # a line for each that diverged would count them


def test_trials_may_be_scored_on_held_out_records_with_noise_that_is_charged(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    selection = selection_in(tmp_path)
    paid = paid_search(scored_on_held_out(selection.paid.search), GEOMETRIC)
    assert paid.claim().epsilon <= 6
    winner = begin(replace(selection, paid=paid), 2).run()
    assert winner is not None
    promised = read_certificate(winner / "certificate.json")
    check(promised)
    assert isinstance(promised.event, RepeatAndSelect)
    assert counted(promised.event.event) == {paid.plan.step_event: 4, Gaussian(20.0): 1}
    assert capfd.readouterr() == ("", "")


# Selections: crashes.


def run_selection(folder: Path) -> None:
    """What a process does that is killed."""
    selection_in(folder).run()


def test_a_killed_search_is_resumed_with_the_same_number_of_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = begin(selection_in(tmp_path), 3)
    before = selection.files.key.read_bytes()
    # A fork has loaded everything already; on a GPU torch cannot differentiate in one.
    processes: Any = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "fork")
    process = processes.Process(target=run_selection, args=(tmp_path,))
    process.start()
    while selection._progress().trials < 1 or not RunFiles(selection.files.trial).ledger.exists():
        assert process.is_alive()
        time.sleep(0.01)
    process.kill()
    process.join()
    assert selection.files.private.stat().st_mode & 0o777 == 0o700
    assert selection.files.key.read_bytes() == before
    assert 1 <= selection._progress().trials < 3
    saved: list[SelectionProgress] = []
    save = Selection._save

    def save_and_note(self: Selection, progress: SelectionProgress) -> None:
        saved.append(progress)
        save(self, progress)

    monkeypatch.setattr(Selection, "_save", save_and_note)
    assert selection.run() is not None
    assert saved[-1].trials == 3
    assert names(selection.directory) & {"private", "private/key"} == set()


def test_a_search_killed_while_it_tidies_up_ends_and_shows_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = begin(selection_in(tmp_path), 1)
    files = selection.files
    selection._run_trials(RunKey.load(files.key))
    assert selection._progress().last == OVER
    RunKey.destroy(files.key)
    flush = atomic.flush_folder

    def killed(folder: Path) -> None:
        flush(folder)
        if folder == selection.directory and not files.private.exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "flush_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            selection.run()
    assert selection.run() == files.winner
    begun_at = strict_json.read(files.request, strict_json.check_table)["begun_at"]
    assert {path.stat().st_mtime for path in files.winner.rglob("*")} == {datetime.fromisoformat(begun_at).timestamp()}
    files.private.mkdir()  # as it is between its last file and itself
    assert selection.run() == files.winner
    assert not files.private.exists()


def test_a_trial_that_could_not_be_repeated_to_the_bit_is_made_anew(tmp_path: Path) -> None:
    selection = begin(selection_in(tmp_path), 1)
    assert not selection._run_trial(key_for(GEOMETRIC, 1), 0).note
    trial = RunFiles(selection.files.trial)
    first = trial.key.read_bytes()
    [attempt] = strict_json.read_lines(trial.attempts)
    strict_json.append_line(trial.attempts, {**attempt, "number": 7}, mode=0o600)  # type: ignore[dict-item]
    winner = selection.run()
    assert winner is not None
    assert RunFiles(winner).key.read_bytes() != first
    assert len(strict_json.read_lines(RunFiles(winner).attempts)) == 1


def test_a_selection_is_reserved_before_its_first_trial_and_resumed_as_it_began(tmp_path: Path) -> None:
    selection = selection_in(tmp_path, budget=new_budget(tmp_path / "b"))
    selection._begin()  # and the process is killed here
    assert not selection.files.trial.exists()
    assert [run.charged for run in runs_of(selection.budget)] == [selection.paid.event]
    with pytest.raises(InvalidValue, match="name"):
        replace(selection, directory=tmp_path / "other").run()
    assert not (tmp_path / "other").exists()
    with pytest.raises(InvalidValue, match=r"price.mean was 2 and is 3"):
        with_price(selection, RepeatedSelection(mean=3)).run()
    with pytest.raises(InvalidValue, match="price"):
        with_price(selection, Composition(3))
    with atomic.locked(selection.files.lock, for_what="another process"), pytest.raises(StoreError):
        selection.run()
    selection.files.key.unlink()
    with pytest.raises(StoreError, match="key"):  # it does not end with whatever it has
        selection.run()


@pytest.mark.parametrize(
    "outcome, is_better",
    [
        (TrialOutcome(score=0.6), True),
        (TrialOutcome(score=0.5), False),  # of equal ones the first is kept
        (TrialOutcome(score=0.4), False),
        (TrialOutcome(score=math.nan), False),
        (TrialOutcome(score=0.9, note="diverged"), False),
    ],
)
def test_only_a_better_trial_replaces_the_best(outcome: TrialOutcome, is_better: bool) -> None:
    after = SelectionProgress(trials=3, best=0.5).after(outcome, "accuracy")
    assert after == SelectionProgress(trials=4, best=0.6 if is_better else 0.5, last="won" if is_better else "lost")


def test_a_smaller_loss_is_better() -> None:
    first = SelectionProgress().after(TrialOutcome(score=2.0), "loss")
    assert (first.best, first.last) == (-2.0, "won")
    for loss, last in ((1.5, "won"), (2.5, "lost"), (math.inf, "lost")):
        assert first.after(TrialOutcome(score=loss), "loss").last == last
