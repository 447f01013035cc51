"""Runs of several processes for tests: real ones, which meet by gloo."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import fit
from lehr.accounting.ledger import Ledger
from lehr.data import InMemory
from lehr.errors import InvalidValue, RankLost
from lehr.interfaces import PrivateSum
from lehr.methods.by_name import named
from lehr.privacy.clipping import FlatClip
from lehr.run.distributed import Ranks, join_ranks
from lehr.run.shape import Callback, Progress, Start
from lehr.training import earlier_fits

PROCESSES = multiprocessing.get_context("forkserver")
# torch loads its compiler when an optimizer first steps, which would take each process seconds; so does sharding.
PROCESSES.set_forkserver_preload(["torch._dynamo", "torch.distributed.fsdp", "tests.several_ranks"])
STEPS = 12
HANGS_FOR = 7
Job = Mapping[str, Any]


def records(seed: int, count: int) -> InMemory:
    made = torch.Generator().manual_seed(seed)
    return InMemory(torch.randn(count, 4, generator=made), torch.arange(count) % 3)


class StopAtOnce(Callback):
    """As Ctrl-C before the first step."""

    def started(self, start: Start) -> None:
        raise KeyboardInterrupt


class KillAt(Callback):
    """The end of a process in the middle of a run: of rank 0, which alone has callbacks."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


class Misbehaving:
    """A loss that does something else in one process, once it has been asked so often: some steps into the run."""

    def __init__(self, does: str | None, after: int) -> None:
        self._does, self._left = does, after
        self.__name__ = "losses"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self._left -= 1
        if self._left < 0 and self._does == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._left < 0 and self._does == "fails":
            raise ArithmeticError("what only this process should tell")
        if self._left == -1 and self._does == "interrupts":
            os.kill(os.getpid(), signal.SIGINT)
        if self._left < 0 and self._does == "hangs":
            signal.alarm(HANGS_FOR)  # and is gone then
            signal.pause()
        return cross_entropy(outputs, targets, reduction="none")


class Unsaid:
    """A clip of one's own that does not write down its bound."""

    def __init__(self, clip_norm: float) -> None:
        self._clip = FlatClip(clip_norm)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clip, name)


def train(directory: Path, *, rank: int = 0, resume: bool = True, **job: Any) -> dict[str, Any]:
    """One process's part of a run."""
    torch.set_num_threads(1)
    earlier_fits.forget()  # tests train on the same records with all kinds of settings
    torch.manual_seed(rank)  # the first weights are those of rank 0, whatever the others have
    job = {**job}
    misbehaves = job.pop("misbehaves", {}).get(rank)
    method = job.pop("method", "dpsgd")
    settings = job.pop("settings", {}) | job.pop("settings_of_rank", {}).get(rank, {})
    settings = settings if "update" in settings else {"learning_rate": 0.5, **settings}
    made = named(method, **settings)
    unsaid = job.pop("unsaid_clip_norm", {}).get(rank)
    run = fit(
        nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)),
        job.pop("data", {}).get(rank) or records(0, 60),
        test=records(1, 30),
        public=records(2, 20),
        records=60,
        num_classes=3,
        delta=1e-3,
        method=made if unsaid is None else replace(made, clipping=Unsaid(unsaid)),
        loss_fn=Misbehaving(misbehaves, after=20),
        physical_batch=8,
        compiled=False,
        evaluate_every=4,
        settings_chosen_on="fixed",
        directory=directory,
        resume=resume,
        quiet=True,
        callbacks=job.pop("callbacks", []),
        **{"noise_multiplier": 1.0, "steps": STEPS, "expected_batch_size": 12, "checkpoint_seconds": 0, **job},
    )
    weights = torch.cat([_whole(value.detach()).flatten() for value in run.model.parameters()])
    said = {"weights": weights.tolist(), "end": run.end, "rows": run.evaluations, "certificate": run.certificate}
    if job.get("sharded"):
        said["held"] = [value.to_local().numel() for value in run.model.parameters()]  # type: ignore[attr-defined]
    return said


def _whole(value: Tensor) -> Tensor:
    """Of a sharded parameter the rows of all ranks, which they all ask for at once."""
    whole: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value
    return whole


def prepared(directory: Path, **job: Any) -> Path:
    """A run with a key, of which no step is taken."""
    try:
        train(directory, resume=False, callbacks=[StopAtOnce()], **job)
    except KeyboardInterrupt:
        return directory
    raise AssertionError("it was not stopped")


def copied(prepared_run: Path, name: str) -> Path:
    """Another run with the same key."""
    return Path(shutil.copytree(prepared_run, prepared_run.with_name(name)))


def together(total: int, jobs: Sequence[tuple[Path, Job]], *, timeout: float = 60) -> list[list[Any]]:
    """What each rank says of each job: what it got, or the error in words; nothing from one that is killed."""
    meeting = jobs[0][0].with_name(f"meeting-{total}-{jobs[0][0].name}")
    return met(total, meeting, _rank, list(jobs), timeout)


def met(total: int, meeting: Path, does: Callable[..., None], *given: Any) -> list[list[Any]]:
    """What each rank sends through its pipe: ``does(rank, total, meeting, pipe, *given)`` in a process of its own."""
    meeting.unlink(missing_ok=True)
    pipes = [PROCESSES.Pipe(duplex=False) for _ in range(total)]
    ranks = [
        PROCESSES.Process(target=does, args=(rank, total, meeting, pipes[rank][1], *given)) for rank in range(total)
    ]
    for process, (_, writing) in zip(ranks, pipes, strict=True):
        process.start()
        writing.close()
    with ThreadPoolExecutor(
        total
    ) as readers:  # one after another, a rank with a full pipe would keep the others waiting
        said = list(readers.map(_all_of, [reading for reading, _ in pipes]))
    for process in ranks:
        process.join()
    return said


def _all_of(reading: Any) -> list[Any]:
    found = []
    try:
        while True:
            found.append(reading.recv())
    except EOFError:
        return found


def meet(rank: int, total: int, meeting: Path, timeout: float) -> None:
    """Join the other ranks."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=total,
        timeout=timedelta(seconds=timeout),
    )


def _rank(rank: int, total: int, meeting: Path, writing: Any, jobs: Sequence[tuple[Path, Job]], timeout: float) -> None:
    meet(rank, total, meeting, timeout)
    for directory, job in jobs:
        try:
            writing.send(train(directory, rank=rank, **job))
        except (Exception, KeyboardInterrupt) as error:  # whatever it is, the test looks at it
            writing.send(f"{type(error).__name__}: {error}")
            if not isinstance(error, InvalidValue):  # which every rank raises
                break
    writing.close()
    # Without a farewell to the others: a rank that stops is simply gone.
    os._exit(0)


def interrupted_while_others_work(meeting: Path, who: int) -> list[list[Any]]:
    """What an interrupt of one rank does to the other, which waits in a collective; and after how many seconds."""
    return met(2, meeting, _interrupted_alone, who)


def _interrupted_alone(rank: int, total: int, meeting: Path, writing: Any, who: int) -> None:
    meet(rank, total, meeting, timeout=30)
    waits: list[Callable[[Ranks], object]] = [
        lambda ranks: ranks.reduce(PrivateSum(values={"weight": torch.ones(3)}, sensitivity=1.0)),
        lambda ranks: ranks.from_rank_0(lambda: 1),
        lambda ranks: ranks.gather(rank),
    ]
    for wait in waits:
        ranks = join_ranks()
        began = time.monotonic()
        try:
            with ranks.session():
                if rank == who:
                    raise KeyboardInterrupt
                wait(ranks)
                ranks.gather(rank)  # rank 0 does not wait for the others to receive what it broadcasts
        except (KeyboardInterrupt, RankLost) as error:
            writing.send((type(error).__name__, str(error), time.monotonic() - began))
        # The process stays alive: the others must notice the end of the run, not of the process.
        dist.barrier()
    writing.close()
    os._exit(0)


def collectives(meeting: Path, total: int) -> list[list[Any]]:
    """What every rank gets from each collective."""
    return met(total, meeting, _collect)


def _collect(rank: int, total: int, meeting: Path, writing: Any) -> None:
    meet(rank, total, meeting, timeout=30)
    ranks = join_ranks()
    values = {"a": torch.arange(5.0).double() * (rank + 1) / 3, "b": torch.full((2, 2), 0.1 * (rank + 1)).double()}
    mine = torch.full((3,), float(rank))
    with ranks.session():
        reduced = ranks.reduce(PrivateSum(values=values, sensitivity=1.0)).values
        ranks.broadcast([mine])
        writing.send(
            {
                "reduced": {name: value.tolist() for name, value in reduced.items()},
                "first": ranks.from_rank_0(lambda: [rank, math.inf]),
                "gathered": ranks.gather("x" * rank),
                "mine": mine.tolist(),
            }
        )
        try:
            ranks.reduce(PrivateSum(values=values, sensitivity=float(rank)))
        except InvalidValue as error:
            writing.send(str(error))
    writing.close()
    os._exit(0)


def charged(run: Path) -> tuple[int, object]:
    with Ledger.open(run / "ledger.db") as ledger:
        return ledger.count("steps"), ledger.charged()


def close(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return torch.allclose(torch.tensor(one["weights"]), torch.tensor(other["weights"]), rtol=1e-4, atol=1e-6)
