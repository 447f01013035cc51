from __future__ import annotations

from typing import Any

import pytest

from lehr.papers import adadp_prior as prior
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Measurement, Training, key_of
from lehr.papers.table import Measured

QUICK = Size(is_quick=True)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    job = prior.FIGURE4.jobs(QUICK)[0]
    assert isinstance(job, Measurement)
    shorter = Measurement(function=job.function, arguments={**job.arguments, "at": [1, 10]})
    return shorter.called(device="cpu", data_dir=None)


def test_the_first_step_has_the_flat_clip_and_later_ones_bounds_by_coordinates(found: dict[str, Any]) -> None:
    assert not found["at"]["1"]["is_local"]
    later = found["at"]["10"]
    assert later["is_local"]
    assert 0 < later["correlation"] <= 1


def test_quantiles_rise_and_noise_is_roots_times_the_papers_factor(found: dict[str, Any]) -> None:
    told = found["at"]["10"]
    for kind in ("gradients", "roots", "noise"):
        assert told[kind] == sorted(told[kind])
    parameters = 20 * 100 + 100 + 100 * 10 + 10
    factor = 1.2 * 8.0 * parameters**0.5
    assert told["noise"][-1] == pytest.approx(factor * told["roots"][-1])


def test_the_table_shows_what_was_found(found: dict[str, Any]) -> None:
    job = prior.FIGURE4.jobs(QUICK)[0]
    told = {"at": {"10": found["at"]["10"], "40": found["at"]["1"]}}
    table = prior.FIGURE4.shown(Outcomes({key_of(job): told}), QUICK).tables[1]
    assert table.rows[1] == (10, "√E′", *told["at"]["10"]["roots"])
    assert "correlate" in table.notes[0]
    assert "flat clip" in table.notes[1]


def test_runs_are_those_of_figure_2s_first_setting() -> None:
    jobs = [job for job in prior.FIGURE4.jobs(Size()) if isinstance(job, Training)]
    assert {job.method for job in jobs} == {"adadp", "adal", "adan"}
    assert all((job.noise_multiplier, job.steps) == (8.0, 1000) for job in jobs)
    run = {"trajectory": [[500, 500, 0.7, 1.0], [1000, 1000, 0.8, 1.0]], "accuracy": 0.8}
    shown = prior.FIGURE4.shown(Outcomes({key_of(jobs[0]): run}), Size())
    assert shown.tables[0].rows[0][1] == Measured((0.8,))
    assert list(shown.charts[0].lines[0].x) == [5.0, 10.0]
