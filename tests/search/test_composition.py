"""A study on private records: all of its trials are charged before the first, and each is certified for all of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lehr import accounting
from lehr.errors import BudgetExceeded, InvalidValue, StoreError
from lehr.events import Repeated, counted
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, RepeatedSelection
from lehr.release import release
from lehr.reports import certificate_file, wording
from lehr.reports.checking import check
from lehr.reports.run_reading import read_run
from lehr.reports.search_rows import SearchCallback
from lehr.run_shape import Progress
from lehr.search.composition import PaidStudy
from tests.search.paid_searches import HOW, paid_in
from tests.training.tiny import new_budget


def study_in(folder: Path, *, trials: int = 2, budget: Path | None = None, sampler: str = "tpe") -> PaidStudy:
    paid = paid_in(folder, Composition(trials))
    paid = replace(paid, search=replace(paid.search, sampler=sampler))
    return PaidStudy(paid=paid, directory=folder / "study", name="our search", budget=budget, how=HOW)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> PaidStudy:
    folder = tmp_path_factory.mktemp("composition")
    study = study_in(folder, trials=3, budget=new_budget(folder / "b"))
    assert [row.number for row in study.run()] == [0, 1, 2]
    return study


def test_every_trial_is_certified_for_all_of_them(done: PaidStudy) -> None:
    for number in range(3):
        run = done.directory / "trials" / str(number)
        promised = certificate_file.read(run / "certificate.json")
        check(promised)
        whole = Repeated(done.paid.plan.step_event, 3 * 4)
        assert counted(promised.event) == counted(whole)
        assert promised.epsilon == pytest.approx(accounting.bound(whole, delta=1e-3).epsilon, rel=1e-6)
        assert promised.epsilon > 1.2 * done.paid.plan.bound().epsilon
        assert promised.stated.settings_chosen_on == "private"
        assert promised.budget is not None
        assert "among 3 trials" in " ".join(wording.page(promised).split())
        assert "ε spent" not in (run / "report.html").read_text()
        assert read_run(run).trial_of == Composition(3)


def test_one_of_them_is_released_with_that_certificate(done: PaidStudy, tmp_path: Path) -> None:
    released = release(done.directory / "trials/1", tmp_path / "out", budget=done.budget)
    assert released.certificate is not None
    assert counted(released.certificate.event) == counted(Repeated(done.paid.plan.step_event, 12))
    assert "among 3 trials" in (tmp_path / "out/model_card.md").read_text()


def test_the_budget_has_paid_for_all_of_them(done: PaidStudy) -> None:
    assert done.budget is not None
    with Budget.open(done.budget) as account:
        status = account.status()
    assert [run.run for run in status.runs] == ["our search", "our search, the other trials"]
    assert counted(Repeated(done.paid.plan.step_event, 12)) == counted(Composition(3).event(done.paid.trial_event))
    assert sum(sum(counted(run.charged).values()) for run in status.runs) == 12


def test_a_study_that_is_over_has_nothing_left_to_do(done: PaidStudy) -> None:
    assert len(done.run()) == 3


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
    rows = done.study.rows()
    assert len(rows) == 3
    assert {row.seconds for row in rows} == {None}


def test_trials_whose_database_is_gone_are_not_made_again(tmp_path: Path) -> None:
    study = study_in(tmp_path)
    study._begin(study.directory / "price.json")
    (study.directory / "study.db").unlink()
    with pytest.raises(StoreError, match=r"study\.db, which knows its trials, is gone"):
        study.run()
    assert not (study.directory / "trials").exists()


def test_a_selection_is_no_study(tmp_path: Path) -> None:
    paid = paid_in(tmp_path, RepeatedSelection(mean=2))
    with pytest.raises(InvalidValue, match="price must be a Composition"):
        PaidStudy(paid=paid, directory=tmp_path / "study", name="ours").run()


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
