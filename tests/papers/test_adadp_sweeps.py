from __future__ import annotations

import pytest

from lehr.papers import adadp_runs as runs
from lehr.papers import adadp_sweeps as sweeps
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Training, key_of
from lehr.papers.table import Measured


@pytest.mark.parametrize("is_quick", [False, True], ids=["whole", "quick"])
def test_every_point_takes_the_most_steps_that_epsilon_allows(is_quick: bool) -> None:
    for point in sweeps.points(is_quick):
        assert point.setting.delta == 1e-5
        spent = [point.setting.epsilon(steps, accountant=runs.PUBLISHED) for steps in (point.steps, point.steps + 1)]
        assert spent[0] <= 0.5 < spent[1]


def test_the_usual_values_are_run_once_and_shown_in_every_sweep() -> None:
    usual = [
        job
        for job in sweeps.FIGURE5.jobs(Size())
        if isinstance(job, Training) and (job.noise_multiplier, job.expected_batch_size, job.settings) == (8.0, 600, {})
    ]
    assert len(usual) == 1
    assert usual[0].steps == 4237
    shown = sweeps.FIGURE5.shown(Outcomes({key_of(usual[0]): {"accuracy": 0.9}}), Size())
    rows = [row for row in shown.tables[0].rows if row[4] == Measured((0.9,))]
    assert [row[0] for row in rows] == ["rate", "σ*", "lot size"]
    assert [chart.x_title for chart in shown.charts] == ["rate", "σ*", "lot size"]


def test_the_proven_form_has_no_local_clipping_factor() -> None:
    scales = [job for job in sweeps.FIGURE5.jobs(Size()) if isinstance(job, Training) and "bound_scale" in job.settings]
    assert len(scales) == 4
    assert {job.settings["accounting"] for job in scales} == {"published"}


def test_what_the_paper_prints_is_among_the_values() -> None:
    assert (sweeps.RATES[0], sweeps.RATES[-1]) == (0.0008, 0.005)
    assert 7.0 in sweeps.NOISES
    assert 800 in sweeps.BATCHES
