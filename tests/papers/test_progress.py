from __future__ import annotations

import io

from rich.console import Console

from lehr.papers.progress import RunningBar, RunningLines, running_progress_for, time_left
from lehr.papers.running import Ended
from tests.papers.made_up_jobs import squared, tiny

DONE = Ended(job=tiny(seed=3, settings={"learning_rate": 0.1}), seconds=12.4, accuracy=0.5)
FAILED = Ended(job=squared(2), seconds=1.0, error="Diverged: [red]the loss\x1b[2J is nan")


def test_without_a_terminal_each_job_leaves_a_line() -> None:
    lines = RunningLines(stream := io.StringIO(), clock=iter(range(0, 100, 10)).__next__)
    lines.began(jobs=5, done=1)
    lines.took(DONE.job)
    lines.ended(DONE)
    lines.took(FAILED.job)
    lines.ended(FAILED)
    lines.closed()
    assert stream.getvalue().splitlines() == [
        "4 jobs to do, 1 done before",
        "dpsgd on digits, small_cnn, rate 0.1, batch 32, seed 3 begun",
        "dpsgd on digits, small_cnn, rate 0.1, batch 32, seed 3 done in 12 s: accuracy 50.00% "
        "(2 of 5 done, 0 failed, 10 s, about 1 min left)",
        "measurement made_up:squared failed: Diverged: [red]the loss [2J is nan "
        "(2 of 5 done, 1 failed, 20 s, about 1 min left)",
    ]


def test_on_a_terminal_a_bar_counts_and_failures_stay() -> None:
    console = Console(file=(stream := io.StringIO()), force_terminal=True, width=100)
    bar = RunningBar(console, clock=iter(range(0, 10_000, 600)).__next__)
    bar.began(jobs=5, done=1)
    bar.took(DONE.job)
    bar.ended(DONE)
    bar.took(FAILED.job)
    bar.ended(FAILED)
    bar.closed()
    assert "measurement made_up:squared failed: Diverged: [red]the loss" in stream.getvalue()
    assert "2/5" in stream.getvalue()
    assert "0 running, 1 failed, about 40 min left" in stream.getvalue()


def test_how_long_it_takes_is_told_once_a_job_has_ended_and_while_some_are_left() -> None:
    assert time_left(300.0, ended=0, left=4) == time_left(300.0, ended=4, left=0) == ""
    assert time_left(300.0, ended=1, left=1) == ", about 5 min left"
    assert time_left(3600.0, ended=2, left=5) == ", about 2.5 h left"


def test_the_stream_decides() -> None:
    assert isinstance(running_progress_for(io.StringIO()), RunningLines)
