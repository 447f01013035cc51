from __future__ import annotations

from dataclasses import replace

import pytest

from lehr.events import Adjacency
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate
from lehr.reports.run_position import SIMULATED, position
from lehr.reports.run_reading import RunRecord, read_run
from lehr.schedules import StepDecay
from tests.written_runs import PLAN, configuration, write_run

EXPENSIVE = replace(PLAN, noise_multiplier=1.0, expected_batch_size=200.0, delta=1e-4)


def record_of(plan: Plan, factory: pytest.TempPathFactory, declared: str = "private") -> RunRecord:
    directory = factory.mktemp("runs") / "run"
    config = configuration(data={"declared": declared}) | {"plan": plan.to_json()}
    write_run(directory, config=config, is_over=False)
    return replace(read_run(directory), plan=plan, planned=plan.event)


def test_the_plan_is_marked_on_the_curve_of_its_own_eta(tmp_path_factory: pytest.TempPathFactory) -> None:
    found = position(record_of(EXPENSIVE, tmp_path_factory))
    assert found is not None
    [mark] = [line for line in found.figure.chart.lines if line.is_mark]
    assert (mark.x, mark.y) == ([1.0], [EXPENSIVE.bound().epsilon])
    assert "η of the run" in found.facts


def test_of_a_simulation_it_is_the_plan_that_it_stands_for(tmp_path_factory: pytest.TempPathFactory) -> None:
    simulated = simulate(EXPENSIVE, expected_batch_size=50)
    found = position(record_of(simulated, tmp_path_factory, declared="public"))
    assert found is not None
    assert found.figure.note.endswith(SIMULATED)
    [mark] = [line for line in found.figure.chart.lines if line.is_mark]
    assert mark.x == [1.0]


@pytest.mark.parametrize(
    "plan",
    [
        replace(EXPENSIVE, noise_schedule=StepDecay(every=10, decay=0.9)),
        replace(EXPENSIVE, adjacency=Adjacency.REPLACE_ONE),
        replace(EXPENSIVE, noise_multiplier=0.0),
    ],
    ids=["unequal steps", "replaced records", "no noise"],
)
def test_where_the_total_noise_says_nothing_there_is_no_figure(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert position(record_of(plan, tmp_path_factory)) is None


def test_a_run_that_promises_nothing_has_no_position(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert position(record_of(EXPENSIVE, tmp_path_factory, declared="public")) is None
