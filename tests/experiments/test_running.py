from __future__ import annotations

import multiprocessing
import signal
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from experiments import running
from experiments.experiment import Job, key_of
from experiments.running import JobResult, Progress, Summary, batches, run_all, shape_of
from experiments.store import Store
from lehr.errors import InvalidValue, StoreError
from tests.experiments.made_up_jobs import ABOUT, made_up, tiny


class Recorder(Progress):
    """Records everything."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = (0, 0)
        self.started_jobs: list[Job] = []
        self.results: list[JobResult] = []

    def began(self, *, jobs: int, done: int) -> None:
        self.counts = (jobs, done)

    def started(self, job: Job) -> None:
        self.started_jobs.append(job)

    def ended(self, result: JobResult) -> None:
        self.results.append(result)


def test_only_missing_jobs_are_run(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    run_all([made_up(2)], store, device="cpu")
    found = run_all([made_up(2), made_up(3), made_up(3)], store, device="cpu", progress=recorder)
    assert found == Summary(done=2, failed=0, left=0)
    assert (recorder.counts, recorder.started_jobs) == ((2, 1), [made_up(3)])
    assert store.outcomes([made_up(3)]).get(made_up(3)) == {"square": 9}


def test_a_training_run_is_stored_with_its_commit(tmp_path: Path) -> None:
    store, job = Store(tmp_path), tiny(steps=1)
    run_all([job], store, device="cpu", commit="abc1234")
    [entry] = store.entries([job]).values()
    assert (entry["commit"], entry["result"]["candidates"]) == ("abc1234", 1)


def test_a_failing_job_ends_no_other_and_is_run_again(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    failing = made_up("diverge")
    assert run_all([failing, made_up(2)], store, device="cpu") == Summary(done=1, failed=1, left=0)
    assert store.failures([failing]) == {key_of(failing): "Diverged: the loss is nan"}
    run_all([failing, made_up(2)], store, device="cpu", progress=recorder)
    assert [ended.error for ended in recorder.results] == ["Diverged: the loss is nan"]


def test_jobs_that_another_command_has_done_are_skipped(tmp_path: Path) -> None:
    store = Store(tmp_path)

    class Meanwhile(Recorder):
        def started(self, job: Job) -> None:
            super().started(job)
            store.keep(made_up(3), {"square": 9}, about=ABOUT)

    recorder = Meanwhile()
    found = run_all([made_up(2), made_up(3), made_up(4)], store, device="cpu", progress=recorder)
    assert recorder.started_jobs == [made_up(2), made_up(4)]
    assert found == Summary(done=3, failed=0, left=0)


@pytest.mark.parametrize("processes", [1, 2])
def test_after_the_deadline_no_job_is_started(tmp_path: Path, processes: int) -> None:
    jobs = [made_up(2), made_up(3)]
    summary = run_all(jobs, Store(tmp_path), device="cpu", processes=processes, deadline_seconds=0)
    assert summary == Summary(done=0, failed=0, left=2)


def test_an_interrupt_loses_nothing_that_had_ended(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run_all([made_up(2), made_up("interrupt")], store, device="cpu")
    assert store.has(made_up(2))


def test_a_second_interrupt_leaves_no_process_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    jobs = [made_up("sleep"), made_up("sleep, too")]
    with monkeypatch.context() as patched:
        patched.setattr(running, "wait", interrupt)
        patched.setattr(SpawnProcess, "join", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_all(jobs, Store(tmp_path), device="cpu", processes=2)
    processes = multiprocessing.active_children()
    for process in processes:
        process.join(30)
    assert {process.exitcode for process in processes} <= {-signal.SIGTERM}


def test_an_unknown_device_is_refused_before_any_job(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="device"):
        run_all([made_up(2)], Store(tmp_path / "store"), device="abacus")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("processes", [1, 2])
def test_an_unwritable_store_ends_everything(tmp_path: Path, processes: int, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").write_text("no folder")
    with pytest.raises(StoreError, match="store"):
        run_all([made_up(2)], Store(tmp_path / "store"), device="cpu", processes=processes)
    assert "Traceback" not in capfd.readouterr().err


def test_several_processes_run_every_job_and_outlive_one_that_dies(tmp_path: Path) -> None:
    store, recorder = Store(tmp_path), Recorder()
    dying, failing, timing = made_up("die"), made_up("diverge"), made_up(7, is_timing=True)
    jobs: list[Job] = [timing, dying, made_up(1), failing, made_up(2)]  # two of them in each process
    found = run_all(jobs, store, device="cpu", processes=2, progress=recorder)
    assert found == Summary(done=3, failed=2, left=0)
    errors = {key_of(ended.job): ended.error for ended in recorder.results if ended.error is not None}
    assert errors == {key_of(dying): "its process ended with exit code 3", key_of(failing): "Diverged: the loss is nan"}
    assert recorder.results[-1].job == timing  # alone, after all others
    assert store.failures(jobs) == errors


def test_seeds_and_rates_share_a_compiled_step() -> None:
    assert shape_of(tiny(seed=1, settings={"learning_rate": 0.1})) == shape_of(tiny())
    for changed in ({"expected_batch_size": 64}, {"settings": {"clip_norm": 2.0}}, {"views": 4}, {"data": "mnist"}):
        assert shape_of(tiny(**changed)) != shape_of(tiny())
    assert shape_of(tiny(simulated_batch_size=16)) != shape_of(tiny())
    assert shape_of(made_up(1)) == shape_of(made_up(2))


def test_jobs_are_grouped_by_shape_in_equal_shares() -> None:
    small = [tiny(seed=seed) for seed in range(4)]
    large = [tiny(seed=seed, expected_batch_size=64) for seed in range(2)]
    mixed = [small[0], large[0], *small[1:], large[1]]
    assert batches(mixed, processes=1) == [small, large]
    assert batches(mixed, processes=2) == [small[:3], small[3:], large]


def test_each_job_prints_a_line() -> None:
    lines: list[str] = []
    progress = Progress(lines.append, clock=iter(range(0, 100, 10)).__next__)
    progress.began(jobs=5, done=1)
    job = tiny(seed=3, settings={"learning_rate": 0.1})
    progress.started(job)
    progress.ended(JobResult(job=job, seconds=12.4, accuracy=0.5))
    progress.ended(JobResult(job=made_up(2), error="Diverged: the loss is nan"))
    began, started, done, failed = lines
    assert "4 jobs" in began
    assert "dpsgd on digits, small_cnn, rate 0.1, batch 32, seed 3" in started
    assert "2 of 5 done, 0 failed" in done
    assert "2 of 5 done, 1 failed" in failed
