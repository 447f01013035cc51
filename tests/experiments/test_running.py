from __future__ import annotations

import multiprocessing
import signal
import time
from pathlib import Path

import pytest

from experiments import running
from experiments.experiment import Job, key_of
from experiments.running import JobQueue, JobResult, Progress, Summary, run_all, shape_of
from experiments.store import Store
from lehr.errors import InvalidValue, StoreError
from tests.experiments.made_up_jobs import ABOUT, Diverging, Dying, Interrupted, Squared, squared, tiny

SMALL = [tiny(seed=seed) for seed in range(4)]
LARGE = [tiny(seed=seed, expected_batch_size=64) for seed in range(2)]


class Recorder(Progress):
    """Records everything."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs, self.done = 0, 0
        self.started_: list[Job] = []
        self.results: list[JobResult] = []

    def began(self, *, jobs: int, done: int) -> None:
        self.jobs, self.done = jobs, done

    def started(self, job: Job) -> None:
        self.started_.append(job)

    def ended(self, result: JobResult) -> None:
        self.results.append(result)


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    run_all([squared(2)], store, device="cpu")
    found = run_all([squared(2), squared(3), squared(3)], store, device="cpu", progress=recorder)
    assert found == Summary(done=2, failed=0, left=0)
    assert (recorder.jobs, recorder.done, recorder.started_) == (2, 1, [squared(3)])
    assert store.outcomes([squared(3)]).of(squared(3)) == {"square": 9}


def test_a_training_run_is_kept_with_its_machine_and_commit(tmp_path: Path) -> None:
    store, job = Store(tmp_path), tiny(steps=2)
    run_all([job], store, device="cpu", commit="abc1234")
    entry = store.entry(key_of(job))
    assert entry["commit"] == "abc1234"
    assert entry["result"]["candidates"] == 2


def test_a_job_that_fails_ends_no_other_and_is_run_again_next_time(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    failing = Diverging(function="made_up:failing")
    assert run_all([failing, squared(2)], store, device="cpu") == Summary(done=1, failed=1, left=0)
    assert store.failures([failing]) == {key_of(failing): "Diverged: the loss is nan"}
    run_all([failing, squared(2)], store, device="cpu", progress=recorder)
    assert [ended.error for ended in recorder.results] == ["Diverged: the loss is nan"]


def test_what_another_command_has_done_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    store = Store(tmp_path)

    class Meanwhile(Recorder):
        def started(self, job: Job) -> None:
            super().started(job)
            store.keep(squared(3), {"square": 9}, about=ABOUT)

    recorder = Meanwhile()
    found = run_all([squared(2), squared(3), squared(4)], store, device="cpu", progress=recorder)
    assert recorder.started_ == [squared(2), squared(4)]
    assert found == Summary(done=3, failed=0, left=0)


def test_after_the_deadline_no_job_is_begun(tmp_path: Path) -> None:
    jobs = [squared(2), squared(3)]
    assert run_all(jobs, Store(tmp_path), device="cpu", deadline_seconds=0) == Summary(done=0, failed=0, left=2)


def test_whoever_stops_it_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    with pytest.raises(KeyboardInterrupt):
        run_all([squared(2), Interrupted(function="made_up:stopped")], store, device="cpu", progress=recorder)
    assert store.has(squared(2))


def test_two_key_strokes_leave_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def struck(*_: object) -> None:
        raise KeyboardInterrupt

    spawning = multiprocessing.get_context("spawn")
    sleeping = [spawning.Process(target=time.sleep, args=(60,)) for _ in range(2)]
    attempt = running.Runner(store=Store(tmp_path), device="cpu", data_dir=None, about=ABOUT)
    workers = running._Workers(JobQueue([]), attempt, until=None, progress=Recorder())
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


@pytest.mark.parametrize("processes", [1, 2])
def test_a_store_that_nothing_can_be_written_to_ends_everything_in_one_line(
    tmp_path: Path, processes: int, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StoreError, match=r"cannot use .*store"):
        run_all([squared(2), squared(3)], Store(tmp_path / "store"), device="cpu", processes=processes)
    assert "Traceback" not in capfd.readouterr().err


def test_several_processes_do_every_job_and_outlive_one_that_dies(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    dying, failing = Dying(function="made_up:dying"), Diverging(function="made_up:failing")
    timed = Squared(function="made_up:timed", arguments={"number": 7}, takes_times=True)
    jobs: list[Job] = [timed, dying, failing, *(squared(number) for number in range(3))]
    found = run_all(jobs, store, device="cpu", processes=2, progress=recorder)
    assert found == Summary(done=4, failed=2, left=0)
    errors = {key_of(ended.job): ended.error for ended in recorder.results if ended.error is not None}
    assert errors == {
        key_of(dying): "its process ended with exit code 3",
        key_of(failing): "Diverged: the loss is nan",
    }
    assert recorder.started_[-1] == timed  # alone, after all others
    assert store.failures(jobs) == errors


def test_seeds_and_rates_have_one_shape_and_batches_and_clips_have_not() -> None:
    assert shape_of(tiny(seed=1, settings={"learning_rate": 0.1})) == shape_of(tiny())
    for changed in ({"expected_batch_size": 64}, {"settings": {"clip_norm": 2.0}}, {"views": 4}, {"data": "mnist"}):
        assert shape_of(tiny(**changed)) != shape_of(tiny())
    assert shape_of(tiny(simulated_batch_size=16)) != shape_of(tiny())
    assert shape_of(squared(1)) == shape_of(squared(2))


def test_a_process_stays_with_its_shape_while_there_is_a_job_of_it() -> None:
    queue, last = JobQueue([SMALL[0], LARGE[0], SMALL[1], LARGE[1]]), None
    found = []
    while (job := queue.next_for(last, ())) is not None:
        found.append(job)
        last = shape_of(job)
    assert found == [SMALL[0], SMALL[1], LARGE[0], LARGE[1]]


def test_a_new_process_begins_with_a_shape_that_nobody_works_on() -> None:
    queue = JobQueue([*SMALL, *LARGE])
    assert queue.next_for(None, [shape_of(SMALL[0])]) == LARGE[0]


def test_the_largest_group_is_split_where_all_shapes_are_worked_on() -> None:
    queue = JobQueue([*LARGE, *SMALL])
    assert queue.next_for(None, [shape_of(SMALL[0]), shape_of(LARGE[0])]) == SMALL[0]


def test_every_job_is_given_once() -> None:
    queue = JobQueue([*SMALL, *LARGE])
    given = [queue.next_for(None, ()) for _ in range(len(queue))]
    assert len(queue) == 0
    assert queue.next_for(None, ()) is None
    assert sorted(map(str, given)) == sorted(map(str, [*SMALL, *LARGE]))


def test_each_job_leaves_a_line() -> None:
    lines: list[str] = []
    progress = Progress(lines.append, clock=iter(range(0, 100, 10)).__next__)
    progress.began(jobs=5, done=1)
    job = tiny(seed=3, settings={"learning_rate": 0.1})
    progress.started(job)
    progress.ended(JobResult(job=job, seconds=12.4, accuracy=0.5))
    progress.ended(JobResult(job=squared(2), error="Diverged: the loss is nan"))
    assert lines == [
        "4 jobs to do, 1 done before",
        "dpsgd on digits, small_cnn, rate 0.1, batch 32, seed 3 started",
        "dpsgd on digits, small_cnn, rate 0.1, batch 32, seed 3 done in 12 s: accuracy 50.00% "
        "(2 of 5 done, 0 failed, 10 s, about 1 min left)",
        "measurement made_up:squared failed: Diverged: the loss is nan (2 of 5 done, 1 failed, 20 s, about 1 min left)",
    ]
