from __future__ import annotations

from typing import Any

import pytest

from lehr.papers import adadp_times as times
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Measurement, key_of
from lehr.papers.table import Measured


def made_up(job: Any, milliseconds: dict[str, list[float]]) -> Outcomes:
    found = {name: milliseconds.get(name, [1.0, 1.0]) for name in times.WAYS}
    return Outcomes({key_of(job): {"milliseconds": found, "steps": 1, "records": 1, "batch": 1}})


def test_ratios_are_to_dpsgd_in_the_same_round() -> None:
    job = times.TABLE2.jobs(Size())[0]
    found = made_up(job, {"DPSGD": [2.0, 4.0], "ADADP, proven": [6.0, 8.0]})
    mnist, cifar = times.TABLE2.shown(found, Size()).tables
    [row] = [row for row in mnist.rows if row[0] == "ADADP, proven"]
    assert row[1:] == (0.5, 0.5 / 0.3, Measured((6.0, 8.0)), Measured((3.0, 2.0)))
    assert all(row[3:] == (None, None) for row in cifar.rows)


def test_batches_are_the_papers() -> None:
    assert times.BATCHES == {"mnist": 120, "cifar-10": 32}


def test_steps_are_timed_after_a_warm_up_and_no_more_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("ADADP, proven", "AGD, loss of all records")
    monkeypatch.setattr(times, "WAYS", {name: times.WAYS[name] for name in kept})
    monkeypatch.setattr(times, "PLANNED", times.WARM_UP + 2)
    found = times.times_of_steps(device="cpu", data_dir=None, network="mnist", records=150, steps=2, rounds=1)
    assert set(found["milliseconds"]) == set(kept)
    assert all(len(rounds) == 1 and rounds[0] > 0 for rounds in found["milliseconds"].values())


def test_the_job_runs_the_function_that_it_names() -> None:
    for job in times.TABLE2.jobs(Size()):
        assert isinstance(job, Measurement)
        assert job.function == f"adadp_times:{times.times_of_steps.__name__}"
