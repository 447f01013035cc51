"""A run that is killed at any moment ends with the same weights, scores and ε as one that was never killed."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.accounting.events import counted
from lehr.accounting.ledger import Ledger
from lehr.certificates.certificate import read_certificate
from lehr.privacy.rng import RunKey
from lehr.run.shape import Callback, Progress
from tests.sizes import sizes

STEPS = 100


def train(
    directory: str,
    *,
    resume: bool = True,
    steps: int = STEPS,
    stops_at_once: bool = False,
    disk_is_full_at: int | None = None,
) -> None:
    """One process of a run. It saves at every step, so that there is always something half done."""
    from lehr import data, fit, networks
    from lehr.methods.sa_dpsgd import sa_dpsgd
    from lehr.optim.averaging import ExponentialAverage

    torch.set_num_threads(1)
    torch.manual_seed(0)
    fit(
        networks.build("small_cnn"),
        data.load("digits"),
        method=sa_dpsgd(),  # some candidates are rejected: the state of the acceptance must survive as well
        noise_multiplier=1.0,
        steps=steps,
        expected_batch_size=16,
        delta=1e-4,
        averaging=ExponentialAverage(decay=0.95),
        evaluate_every=20,
        settings_chosen_on="fixed",
        directory=directory,
        resume=resume,
        checkpoint_seconds=0,
        callbacks=[*([StopAtOnce()] if stops_at_once else []), FullDisk(disk_is_full_at)],
        quiet=True,
    )


class StopAtOnce(Callback):
    """As Ctrl-C before the first step."""

    def started(self, start: Any) -> None:
        raise KeyboardInterrupt


class FullDisk(Callback):
    """From a step on no file can grow, as on a disk that is full."""

    def __init__(self, at_step: int | None) -> None:
        self._at_step = at_step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._at_step:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


@pytest.mark.whole
def test_a_run_resumes_after_a_full_disk(memory_folder: Path) -> None:
    processes = _prepared(memory_folder)
    broken, whole = memory_folder / "broken", memory_folder / "whole"
    process = processes.Process(target=train, args=(str(broken),), kwargs={"disk_is_full_at": STEPS // 2})
    process.start()
    process.join()
    assert process.exitcode == 1
    with Ledger.open(broken / "ledger.db") as ledger:
        assert sum(counted(ledger.charged()).values()) >= STEPS // 2
    assert _finished(processes, broken)
    assert _finished(processes, whole)
    _assert_same(broken, whole)


@pytest.mark.parametrize("kills", sizes(2, whole=20))
def test_a_run_killed_at_random_moments_ends_the_same(kills: int, memory_folder: Path) -> None:
    processes = _prepared(memory_folder)
    broken, whole = memory_folder / "broken", memory_folder / "whole"
    assert _finished(processes, whole)
    draws = RunKey(bytes(32)).at(0, 0).uniforms("moments", 2 * kills).view(2, -1)
    for place, delay in zip(draws[0].sort().values.tolist(), draws[1].tolist(), strict=True):
        process = processes.Process(target=train, args=(str(broken),))
        process.start()
        _wait_for_step(broken, int(place * STEPS), process)
        time.sleep(0.02 * delay)  # anywhere within a step, its checkpoint or its ledger
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    assert _finished(processes, broken)
    _assert_same(broken, whole)


def _prepared(folder: Path) -> Any:
    """Make two runs with the same key and no step yet; return the context of the processes."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.privacy.warm_run"])
    with pytest.raises(KeyboardInterrupt):
        train(str(folder / "broken"), resume=False, stops_at_once=True)
    shutil.copytree(folder / "broken", folder / "whole")
    return processes


def _finished(processes: Any, directory: Path) -> bool:
    process = processes.Process(target=train, args=(str(directory),))
    process.start()
    process.join()
    return bool(process.exitcode == 0)


def _wait_for_step(directory: Path, step: int, process: Any) -> None:
    """Wait until the run has come past a step; what an earlier process had done does not count."""
    while process.is_alive() and not any(_step(file) > step for file in (directory / "checkpoints").glob("step-*")):
        time.sleep(0.005)


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def _assert_same(one: Path, other: Path) -> None:
    for name in ("model.safetensors", "metrics.jsonl", "config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    last = sorted((other / "checkpoints").iterdir())[-1].name
    assert (one / "checkpoints" / last).read_bytes() == (other / "checkpoints" / last).read_bytes()
    charged = []
    for run in (one, other):
        with Ledger.open(run / "ledger.db") as ledger:
            charged.append(counted(ledger.charged()))
    assert charged[0] == charged[1]
    assert read_certificate(one / "certificate.json") == read_certificate(other / "certificate.json")
