"""SA-DPSGD's Figure 3: means over runs, along the published ε and along the proven one."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.papers.experiment import Outcomes, Size
from lehr.papers.job import key_of
from lehr.papers.sa_dpsgd_costs import published_epsilon
from lehr.papers.sa_dpsgd_curves import ACCEPTED, ACCURACY, CANDIDATES, EXPERIMENTS, most_accepted, value_at
from lehr.papers.sa_dpsgd_runs import DIGITS, MNIST, SEEN, TANH, runs_of
from lehr.papers.table import Measured
from lehr.reports.chart import Chart

[FIGURE3] = EXPERIMENTS
QUICK = Size(is_quick=True)


def trajectory(*, drawn_for_one: int, better: float) -> dict[str, Any]:
    """A run on the digits whose accuracy grows by a thousandth with each accepted candidate."""
    counts = range(10, 261, 10)
    return {"trajectory": [[drawn_for_one * n, n, n / 1000 + better, 1 - n / 1000] for n in counts]}


@pytest.fixture(scope="module")
def charts() -> dict[str, Chart]:
    plain, annealed = runs_of(DIGITS, TANH, QUICK), runs_of(DIGITS, SEEN, QUICK)
    found = {key_of(run): trajectory(drawn_for_one=1, better=0.1 * run.seed) for run in plain}
    found |= {key_of(run): trajectory(drawn_for_one=3, better=0.2) for run in annealed}
    return {chart.element: chart for chart in FIGURE3.shown(Outcomes(found), QUICK).charts}


def test_there_is_a_line_for_each_method_that_was_run(charts: dict[str, Chart]) -> None:
    assert [*charts] == ["digits-loss-published", "digits-accuracy-published", "digits-accuracy-proven"]
    for chart in charts.values():
        assert [line.name for line in chart.lines] == [TANH.title, SEEN.title]


def test_a_line_is_the_mean_over_runs_and_ends_at_the_last_evaluation(charts: dict[str, Chart]) -> None:
    plain, annealed = charts["digits-accuracy-published"].lines
    assert plain.y[-1] == pytest.approx(0.26 + 0.05)
    assert annealed.y[-1] == pytest.approx(0.26 + 0.2)
    assert plain.x[-1] == annealed.x[-1] == pytest.approx(published_epsilon(DIGITS, 260))
    assert charts["digits-loss-published"].lines[0].y[-1] == pytest.approx(0.74)
    assert [*plain.x] == sorted(plain.x)


def test_rejected_candidates_count_along_the_proven_epsilon(charts: dict[str, Chart]) -> None:
    plain, annealed = charts["digits-accuracy-proven"].lines
    assert annealed.x[-1] > 1.5 * plain.x[-1]
    assert annealed.y[-1] == pytest.approx(0.26 + 0.2)


def test_a_run_counts_with_its_last_evaluation_so_far() -> None:
    found = trajectory(drawn_for_one=3, better=0.0)
    assert value_at(found, ACCEPTED, 9, ACCURACY) is None
    assert value_at(found, ACCEPTED, 19, ACCURACY) == pytest.approx(0.01)
    assert value_at(found, ACCEPTED, 20, ACCURACY) == pytest.approx(0.02)
    assert value_at(found, CANDIDATES, 20, ACCURACY) is None
    assert value_at(found, CANDIDATES, 60, ACCURACY) == pytest.approx(0.02)


@pytest.mark.parametrize("epsilon", [1.5, 3.0])
def test_so_many_accepted_steps_are_the_most_within_a_published_epsilon(epsilon: float) -> None:
    most = most_accepted(MNIST, epsilon)
    assert published_epsilon(MNIST, most) <= epsilon < published_epsilon(MNIST, most + 1)


def test_the_table_has_means_on_the_way() -> None:
    runs = runs_of(DIGITS, TANH, QUICK)
    found = Outcomes({key_of(run): trajectory(drawn_for_one=1, better=0.0) for run in runs})
    [table] = FIGURE3.shown(found, QUICK).tables
    row = table.rows[1]
    assert row[0] == TANH.title
    assert row[-2] == Measured((0.26, 0.26))
    assert row[-1] == Measured((0.74, 0.74))
    early = row[1]
    assert isinstance(early, Measured)
    assert early.mean is not None
    assert early.mean < 0.26
