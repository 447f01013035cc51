from __future__ import annotations

from lehr.papers import adadp_trajectories as trajectories
from lehr.papers import beale
from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import Measurement, key_of


def test_names_and_printed_numbers_are_those_of_what_is_computed() -> None:
    assert trajectories.METHODS == beale.METHODS
    assert trajectories.PRINTED == beale.PRINTED
    assert tuple(beale.DRAWN) == trajectories.SETTINGS


def test_the_figure_shows_what_was_computed() -> None:
    size = Size(seeds=3, is_quick=True)
    [job] = trajectories.FIGURE1.jobs(size)
    assert isinstance(job, Measurement)
    found = job.called(device="cpu", data_dir=None)
    shown = trajectories.FIGURE1.shown(Outcomes({key_of(job): found}), size)
    first = shown.tables[0].rows[0]
    assert first[:3] == ("DPSGD", "near the printed", 0.90)
    assert first[3] == found["settings"]["near the printed"]["DPSGD"]["median"]
    assert f"grid of {found['grid']} settings" in shown.tables[0].notes[-1]
    assert [len(chart.lines) for chart in shown.charts] == [6, 6]
