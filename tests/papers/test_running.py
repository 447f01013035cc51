from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path

import pytest

from lehr.errors import InvalidValue, StoreError
from lehr.papers import running
from lehr.papers.job import Job, key_of
from lehr.papers.running import Ended, RunningCallback, Summary, run_all
from lehr.papers.store import Store
from lehr.papers.waiting import Waiting
from tests.papers.made_up_jobs import ABOUT, Diverging, Dying, Interrupted, Squared, squared, tiny


class Heard(RunningCallback):
    """Remembers everything."""

    def __init__(self) -> None:
        self.jobs, self.done = 0, 0
        self.took_: list[Job] = []
        self.endings: list[Ended] = []
        self.is_closed = False

    def began(self, *, jobs: int, done: int) -> None:
        self.jobs, self.done = jobs, done

    def took(self, job: Job) -> None:
        self.took_.append(job)

    def ended(self, ended: Ended) -> None:
        self.endings.append(ended)

    def closed(self) -> None:
        self.is_closed = True


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    store, heard = Store(tmp_path), Heard()
    run_all([squared(2)], store, device="cpu")
    found = run_all([squared(2), squared(3), squared(3)], store, device="cpu", told=heard)
    assert found == Summary(done=2, failed=0, left=0)
    assert (heard.jobs, heard.done, heard.took_) == (2, 1, [squared(3)])
    assert heard.is_closed
    assert store.outcomes([squared(3)]).of(squared(3)) == {"square": 9}


def test_a_training_run_is_kept_with_its_machine_and_commit(tmp_path: Path) -> None:
    store, job = Store(tmp_path), tiny(steps=2)
    run_all([job], store, device="cpu", commit="abc1234")
    entry = store.entry(key_of(job))
    assert entry["commit"] == "abc1234"
    assert entry["result"]["candidates"] == 2


def test_a_job_that_fails_ends_no_other_and_is_run_again_next_time(tmp_path: Path) -> None:
    store, heard = Store(tmp_path), Heard()
    failing = Diverging(function="made_up:failing")
    assert run_all([failing, squared(2)], store, device="cpu") == Summary(done=1, failed=1, left=0)
    assert store.failures([failing]) == {key_of(failing): "Diverged: the loss is nan"}
    run_all([failing, squared(2)], store, device="cpu", told=heard)
    assert [ended.error for ended in heard.endings] == ["Diverged: the loss is nan"]


def test_what_another_command_has_done_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)

    class Meanwhile(Heard):
        def took(self, job: Job) -> None:
            super().took(job)
            store.keep(squared(3), {"square": 9}, about=ABOUT)

    heard = Meanwhile()
    found = run_all([squared(2), squared(3), squared(4)], store, device="cpu", told=heard)
    assert heard.took_ == [squared(2), squared(4)]
    assert found == Summary(done=3, failed=0, left=0)


def test_after_the_deadline_no_job_is_begun(tmp_path: Path) -> None:
    jobs = [squared(2), squared(3)]
    assert run_all(jobs, Store(tmp_path), device="cpu", deadline_seconds=0) == Summary(done=0, failed=0, left=2)


def test_whoever_stops_it_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    store, heard = Store(tmp_path), Heard()
    with pytest.raises(KeyboardInterrupt):
        run_all([squared(2), Interrupted(function="made_up:stopped")], store, device="cpu", told=heard)
    assert store.has(squared(2))
    assert heard.is_closed


def test_two_key_strokes_leave_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(*_: object) -> None:
        raise KeyboardInterrupt

    spawning = multiprocessing.get_context("spawn")
    sleeping = [spawning.Process(target=time.sleep, args=(60,)) for _ in range(2)]
    attempt = running.Attempts(store=Store(tmp_path), device="cpu", data_dir=None, about=ABOUT)
    workers = running._Workers(Waiting([]), attempt, until=None, told=Heard())
    for process in sleeping:
        process.start()
        workers._at_work.append(running._Worker(process, spawning.Pipe()[0]))
    with monkeypatch.context() as patched:
        patched.setattr(running, "wait", struck)
        patched.setattr(sleeping[0], "join", struck)
        with pytest.raises(KeyboardInterrupt):
            workers.run(0)
    for process in sleeping:
        process.join(30)
    assert [process.exitcode for process in sleeping] == [-signal.SIGTERM, -signal.SIGTERM]


def test_a_device_that_is_not_there_is_refused_before_any_job_fails_by_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="device"):
        run_all([squared(2)], Store(tmp_path / "store"), device="abacus")
    assert not (tmp_path / "store").exists()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_store_that_nothing_can_be_written_to_ends_everything_in_one_line(
    tmp_path: Path, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StoreError, match=r"cannot use .*store"):
        run_all([squared(2), squared(3)], Store(tmp_path / "store"), device="cpu", processes=processes)
    assert "Traceback" not in capfd.readouterr().err


def test_several_processes_do_every_job_and_outlive_one_that_dies(tmp_path: Path) -> None:
    store, heard = Store(tmp_path), Heard()
    dying, failing = Dying(function="made_up:dying"), Diverging(function="made_up:failing")
    timed = Squared(function="made_up:timed", arguments={"number": 7}, takes_times=True)
    jobs: list[Job] = [timed, dying, failing, tiny(steps=2), *(squared(number) for number in range(3))]
    found = run_all(jobs, store, device="cpu", processes=2, told=heard)
    assert found == Summary(done=5, failed=2, left=0)
    errors = {key_of(ended.job): ended.error for ended in heard.endings if ended.error is not None}
    assert errors == {
        key_of(dying): "its process ended with exit code 3",
        key_of(failing): "Diverged: the loss is nan",
    }
    assert heard.took_[-1] == timed  # alone, after all others
    assert store.failures(jobs) == errors
