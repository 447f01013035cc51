"""A selection shows and keeps its winner and nothing else, is reserved first, and goes on after any crash."""

from __future__ import annotations

import hashlib
import json
import math
import os
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
from dp_accounting import dp_event, rdp
from scipy import stats

from lehr.accounting.rdp import FRACTIONAL_ORDERS
from lehr.append_only import AppendOnlyFile
from lehr.errors import BudgetExceeded, CertificateMismatch, InvalidValue, StoreError
from lehr.events import Gaussian, RepeatAndSelect, counted
from lehr.files import json_file, lines_file, lock, strict_json, whole_file
from lehr.ledger import LEDGER_FORMAT
from lehr.planning.budget import Budget
from lehr.planning.search_cost import Composition, RepeatedSelection
from lehr.release import release
from lehr.reports import certificate_file
from lehr.reports.certificate import Statements
from lehr.reports.checking import check
from lehr.reports.issuing import issue
from lehr.reports.run_reading import read_run
from lehr.rng import RunKey
from lehr.run_shape import RunFiles
from lehr.search.objective import Outcome
from lehr.search.paid import paid_search
from lehr.search.selection import OVER, Selection, Standing, number_of_trials
from tests.search.paid_searches import GEOMETRIC, begun, key_for, selection_in, with_price

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
        begun_at = json_file.read(folder / "search.json", strict_json.a_table)["begun_at"]
        assert len({path.stat().st_mtime for path in (folder, *folder.rglob("*"))}) == 1
        with AppendOnlyFile.open(folder / "winner/ledger.db", LEDGER_FORMAT) as ledger:
            assert {row.at for row in ledger.rows()} == {begun_at}
        assert certificate_file.read(folder / "winner/certificate.json").issued_on == begun_at[:10]


def test_what_is_written_about_a_search_is_the_same_for_any_number_of_trials(both: dict[int, Selection]) -> None:
    def said(selection: Selection) -> Any:
        text = (selection.directory / "search.json").read_text().replace(str(selection.directory.parent), "")
        return [line for line in text.splitlines() if "begun_at" not in line and "run_id" not in line]

    def drawn_settings_apart(selection: Selection) -> Any:
        config = json_file.read(selection.directory / "winner/config.json", strict_json.a_table)
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
    begun(selection_in(tmp_path), 3).run()
    assert capfd.readouterr() == ("", "")


def test_the_certificate_of_the_winner_is_for_the_whole_search(both: dict[int, Selection]) -> None:
    for selection in both.values():
        promised = certificate_file.read(selection.directory / "winner/certificate.json")
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
    promised = certificate_file.read(both[1].directory / "winner/certificate.json")
    assert promised.epsilon == pytest.approx(reference.get_epsilon(1e-3), rel=1e-6)
    assert promised.epsilon > 1.2 * plan.bound().epsilon


def test_the_page_of_the_winner_has_the_epsilon_of_the_search_and_not_that_of_one_trial(
    both: dict[int, Selection],
) -> None:
    record = read_run(both[3].directory / "winner")
    assert record.certificate is not None
    page = (both[3].directory / "winner/report.html").read_text()
    assert f"ε = {record.certificate.epsilon:.4f}"[:8] in page
    assert "for the whole search that this model was chosen by" in page
    assert "drawn by the geometric law with mean 2" in page
    assert "ε spent" not in page
    assert record.plan is not None
    assert f"{record.plan.bound().epsilon:.4g}"[:4] not in page.split("<script")[0]


def test_no_file_of_the_winner_has_the_epsilon_of_one_trial_as_what_was_spent(both: dict[int, Selection]) -> None:
    record = read_run(both[3].directory / "winner")
    assert record.certificate is not None
    spent = {row.epsilon_spent for row in record.evaluations}
    assert list(spent) == [pytest.approx(record.certificate.epsilon, rel=1e-6)]


def test_the_winner_is_released_with_the_certificate_of_the_search(tmp_path: Path) -> None:
    winner = begun(selection_in(tmp_path), 2).run()
    assert winner is not None
    (winner / "certificate.json").unlink()  # it can be issued again, and for nothing less
    with pytest.raises(InvalidValue, match=r"settings_chosen_on must be what was stated for the run \(private\)"):
        release(winner, tmp_path / "out", settings_chosen_on="fixed")
    released = release(winner, tmp_path / "out")
    assert released.certificate is not None
    assert isinstance(released.certificate.event, RepeatAndSelect)
    assert "geometric law with mean 2" in (tmp_path / "out/model_card.md").read_text()


def test_a_certificate_of_one_run_does_not_cover_the_winner(tmp_path: Path, both: dict[int, Selection]) -> None:
    winner = begun(selection_in(tmp_path), 1).run()
    assert winner is not None
    plan = both[1].paid.plan
    alone = issue(plan.event, delta=1e-3, stated=Statements(settings_chosen_on="fixed", records=plan.records))
    certificate_file.write(winner / "certificate.json", alone, overwrite=True)
    with pytest.raises(CertificateMismatch, match="its event, stated, epsilon is not"):
        release(winner, tmp_path / "out")


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
        while selection._standing().trials < 1 or not RunFiles(selection.files.trial).ledger.exists():
            assert process.poll() is None
            time.sleep(0.002)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert selection.files.private.stat().st_mode & 0o777 == 0o700
    assert begun_key(selection) == before
    done = selection._standing().trials
    assert 1 <= done < 3
    kept: list[Standing] = []
    keep = Selection._keep

    def keep_and_note(self: Selection, standing: Standing) -> None:
        kept.append(standing)
        keep(self, standing)

    monkeypatch.setattr(Selection, "_keep", keep_and_note)
    assert selection.run() is not None
    assert kept[-1].trials == 3
    assert names(selection.directory) & {"private", "private/key"} == set()


def begun_key(selection: Selection) -> bytes:
    return selection.files.key.read_bytes()


def test_a_search_that_was_killed_while_it_tidied_up_ends(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    selection._try_all(RunKey.load(selection.files.key))
    assert selection._standing().last == OVER
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
    flushed = whole_file.flush_folder

    def killed(folder: Path) -> None:
        flushed(folder)
        if folder == selection.directory and not selection.files.private.exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(whole_file, "flush_folder", killed)
    with pytest.raises(KeyboardInterrupt):
        selection.run()
    assert selection.run() == selection.files.winner
    began_at = datetime.fromisoformat(json.loads(selection.files.asked.read_text())["begun_at"]).timestamp()
    times = {path.stat().st_mtime for path in selection.files.winner.rglob("*")}
    assert times == {began_at}


def test_a_search_without_its_key_does_not_end_with_whatever_it_has(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 2)
    selection.files.key.unlink()
    with pytest.raises(StoreError, match="key"):
        selection.run()


def test_a_trial_that_could_not_be_repeated_to_the_bit_is_made_anew(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    assert not selection._tried(key_for(GEOMETRIC, 1), 0).note
    trial = RunFiles(selection.files.trial)
    first = trial.key.read_bytes()
    [attempt] = lines_file.read(trial.attempts)
    lines_file.append(trial.attempts, {**attempt, "number": 7}, mode=0o600)  # type: ignore[dict-item]
    winner = selection.run()
    assert winner is not None
    assert RunFiles(winner).key.read_bytes() != first
    assert len(lines_file.read(RunFiles(winner).attempts)) == 1


def test_a_search_that_began_as_another_is_refused(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 2)
    other = with_price(selection, RepeatedSelection(mean=3))
    with pytest.raises(InvalidValue, match=r"price.mean was 2 and is 3"):
        other.run()
    with pytest.raises(InvalidValue, match="price must be a RepeatedSelection"):
        with_price(selection, Composition(3))


def test_two_processes_do_not_work_on_one_search(tmp_path: Path) -> None:
    selection = begun(selection_in(tmp_path), 1)
    held = lock.taken(selection.files.lock, for_what="it")
    with pytest.raises(StoreError, match="another process has it"):
        selection.run()
    os.close(held)


def test_trials_may_be_scored_on_held_out_records_with_noise_that_is_charged(tmp_path: Path) -> None:
    selection = selection_in(tmp_path)
    search = selection.paid.search
    data = {key: value for key, value in search.configuration.data.items() if key != "test_npz"}
    own = replace(search.configuration, data=data).with_words(training={"held_out_fraction": 0.25})
    paid = paid_search(replace(search, configuration=own), GEOMETRIC)
    winner = begun(replace(selection, paid=paid), 2).run()
    assert winner is not None
    promised = certificate_file.read(winner / "certificate.json")
    check(promised)
    assert isinstance(promised.event, RepeatAndSelect)
    assert counted(promised.event.event) == {paid.plan.step_event: 4, Gaussian(20.0): 1}


@pytest.mark.parametrize(
    "outcome,is_better",
    [
        (Outcome(score=0.6), True),
        (Outcome(score=0.5), False),  # of equal ones the first is kept
        (Outcome(score=0.4), False),
        (Outcome(score=math.nan), False),
        (Outcome(score=0.9, note="diverged"), False),
    ],
)
def test_only_a_better_trial_takes_the_place_of_the_best(outcome: Outcome, is_better: bool) -> None:
    after = Standing(trials=3, best=0.5).after(outcome, "accuracy")
    assert after == Standing(trials=4, best=0.6 if is_better else 0.5, last="won" if is_better else "lost")


def test_a_smaller_loss_is_better() -> None:
    first = Standing().after(Outcome(score=2.0), "loss")
    assert (first.best, first.last) == (-2.0, "won")
    assert first.after(Outcome(score=1.5), "loss").last == "won"
    assert first.after(Outcome(score=2.5), "loss").last == "lost"
    assert first.after(Outcome(score=math.inf), "loss").last == "lost"
