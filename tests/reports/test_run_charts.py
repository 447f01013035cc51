from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.rules import BestStep, Salvage
from lehr.accounting.events import Composed, NonPrivate
from lehr.certificates.run_reading import RunRecord, State, read_run
from lehr.methods.dpsgd import dpsgd
from lehr.reports import run_charts
from lehr.reports.chart import Chart
from lehr.reports.run_charts import FEWEST_OF_A_LINE, POINTS, ChartedRun, annealing_settings, annealing_temperature
from lehr.rounding import rounded_up
from lehr.run.shape import Evaluation
from lehr.schedules import StepDecay
from tests.written_runs import PLAN, configuration, evaluations, write_run


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    directory = tmp_path_factory.mktemp("runs") / "run"
    config = configuration(method={"acceptance": Annealed().to_json()})
    write_run(directory, config=config, rows=evaluations(accepted=0.75))
    return read_run(directory)


def told(rows: Sequence[Evaluation]) -> tuple[Evaluation, ...]:
    return tuple(
        replace(row, accuracy_by_class=(0.5, None, 0.25), noise_multiplier=2.0, clip_norm=1 / row.step) for row in rows
    )


def chart(charts: Iterable[Chart]) -> Chart:
    [found] = charts
    return found


def test_an_epsilon_on_a_chart_is_no_smaller_than_it_is_in_all_the_digits_that_are_shown(record: RunRecord) -> None:
    row = replace(evaluations((10,))[0], epsilon_spent=3.9999401)
    run = ChartedRun(record=replace(record, evaluations=(row,)))
    accuracy, _ = run_charts.scores([run], by_epsilon=True)
    assert (accuracy.lines[0].x, chart(run_charts.spent([run])).lines[0].y) == ([4.0], [4.0])
    assert "%{x:.5~g}" in accuracy.point


def test_a_run_that_promises_nothing_has_no_place_against_epsilon(record: RunRecord) -> None:
    public = {**record.config, "data": {**record.config["data"], "declared": "public"}}
    looked = Composed((PLAN.event, NonPrivate("it looked")))
    for nothing in (replace(record, config=public), replace(record, planned=looked, certificate=None)):
        run = ChartedRun(record=nothing, name="open")
        assert not run.has_epsilon
        assert [*run_charts.scores([run], by_epsilon=True)] == [*run_charts.spent([run])] == []
        assert [len(figure.lines) for figure in run_charts.scores([run], by_epsilon=False)] == [1, 1]


def test_a_run_that_ended_early_has_a_line_to_the_epsilon_of_its_whole_plan(record: RunRecord) -> None:
    early = replace(record, state=State.ACCEPTED, evaluations=tuple(evaluations((5, 10))))
    promised = rounded_up(PLAN.claim().epsilon, digits=5)
    accuracy, loss = run_charts.scores([ChartedRun(record=early, name="a", colour=3)], by_epsilon=True)
    for figure, last in ((accuracy, early.evaluations[-1].accuracy), (loss, early.evaluations[-1].loss)):
        own, charged = figure.lines
        assert (charged.name, charged.dash, charged.colour) == ("a, charged", "dot", own.colour)
        assert charged.x == [0.1, promised]
        assert list(charged.y) == pytest.approx([last, last])
        assert figure.note == run_charts.CHARGED
    assert len(next(run_charts.scores([ChartedRun(record=early)], by_epsilon=False)).lines) == 1


@pytest.mark.parametrize("state", [State.COMPLETED, State.SPENT, State.GOING_ON])
def test_a_run_that_did_not_end_early_has_no_such_line(record: RunRecord, state: State) -> None:
    run = ChartedRun(record=replace(record, state=state, evaluations=tuple(evaluations((5, 10)))))
    assert [len(figure.lines) for figure in run_charts.scores([run], by_epsilon=True)] == [1, 1]


def test_an_annealed_run_that_rejected_nothing_says_so(record: RunRecord) -> None:
    every = replace(record, evaluations=tuple(evaluations()))
    assert list(chart(run_charts.acceptance([ChartedRun(record=every)])).lines[0].y) == [1.0] * 4
    plain = replace(every, config={**every.config, "method": {"name": "dpsgd"}})
    assert [*run_charts.acceptance([ChartedRun(record=plain)])] == []


def test_runs_lie_over_one_another_in_the_same_colour_on_every_chart(record: RunRecord) -> None:
    runs = [
        ChartedRun(record=replace(record, evaluations=told(record.evaluations)), name=f"{n}", colour=n) for n in (0, 1)
    ]
    alone = replace(runs[0], record=replace(record, evaluations=()))
    for make in (run_charts.spent, run_charts.acceptance, run_charts.temperature, run_charts.noise, run_charts.classes):
        assert [(line.name, line.colour) for line in chart(make(runs)).lines] == [("0", 0), ("1", 1)]
        only = chart(make([alone, runs[1]]))
        assert [(line.name, line.colour) for line in only.lines] == [("1", 1)]
        assert only.names_lines


def test_acceptance_is_told_so_far_and_since_the_evaluation_before(record: RunRecord) -> None:
    rows = [replace(row, accepted=accepted) for row, accepted in zip(evaluations(), (10, 15, 15, 25), strict=True)]
    so_far, lately = chart(run_charts.acceptance([ChartedRun(record=replace(record, evaluations=tuple(rows)))])).lines
    assert list(so_far.y) == pytest.approx([1, 0.75, 0.5, 0.625])
    assert (list(lately.x), list(lately.y)) == ([20, 30, 40], [0.5, 0.0, 1.0])


def test_temperature_follows_the_accepted_candidates_on_an_axis_with_round_marks(record: RunRecord) -> None:
    drawn = chart(run_charts.temperature([ChartedRun(record=record)]))
    assert list(drawn.lines[0].y) == pytest.approx([0.1 / 7, 0.1 / 15, 0.1 / 22, 0.1 / 30], rel=1e-5)
    assert (drawn.y_scale, drawn.y_ticks) == ("log", (0.005, 0.01))


def test_noise_and_clip_are_what_the_rows_tell(record: RunRecord) -> None:
    run = ChartedRun(record=replace(record, evaluations=told(record.evaluations)))
    assert list(chart(run_charts.noise([run])).lines[0].y) == [2.0] * 4
    assert list(chart(run_charts.clip([run])).lines[0].y) == pytest.approx([0.1, 0.05, 1 / 30, 0.025], rel=1e-5)


def test_noise_that_was_not_written_down_is_the_plans_and_a_clip_is_not_made_up(record: RunRecord) -> None:
    plan = replace(PLAN, noise_schedule=StepDecay(every=20, decay=0.5))
    run = ChartedRun(record=replace(record, plan=plan))
    assert list(chart(run_charts.noise([run])).lines[0].y) == [2.0, 2.0, 1.0, 1.0]
    assert [*run_charts.clip([run])] == []


def test_classes_are_bars_and_one_without_records_is_a_gap(record: RunRecord) -> None:
    run = ChartedRun(record=replace(record, evaluations=told(record.evaluations)))
    [figure] = run_charts.classes([run])
    [line] = figure.lines
    assert (line.is_bars, line.x, line.y[0], line.y[2]) == (True, [0, 1, 2], 0.5, 0.25)
    assert math.isnan(line.y[1])
    assert "class 2 is the worst with 25.0%, class 0 the best with 50.0%" in figure.note


def test_many_classes_are_put_in_order(record: RunRecord) -> None:
    row = replace(evaluations((10,))[0], accuracy_by_class=tuple((7 * n % 100) / 100 for n in range(100)))
    [line] = chart(run_charts.classes([ChartedRun(record=replace(record, evaluations=(row,)))])).lines
    assert not line.is_bars
    assert list(line.y) == sorted(line.y)


def test_a_chart_has_no_more_points_than_fit_and_keeps_the_ends(record: RunRecord) -> None:
    many = ChartedRun(record=replace(record, evaluations=tuple(evaluations(range(1, 2001)))))
    for runs in ([many], [replace(many, name=str(n)) for n in range(20)]):
        for figure in run_charts.scores(runs, by_epsilon=False):
            lines = figure.lines
            assert sum(len(line.x) for line in lines) <= max(POINTS, len(lines) * FEWEST_OF_A_LINE)
            assert all((line.x[0], line.x[-1]) == (1, 2000) for line in lines)


def test_a_run_without_evaluations_has_no_charts(record: RunRecord) -> None:
    run = ChartedRun(record=replace(record, evaluations=()))
    makers = (run_charts.spent, run_charts.acceptance, run_charts.temperature, run_charts.noise, run_charts.clip)
    assert all([*make([run])] == [] for make in (*makers, run_charts.classes))
    assert [*run_charts.scores([run], by_epsilon=False)] == []


def test_each_set_of_records_is_a_line(record: RunRecord) -> None:
    rows = (*evaluations(), *evaluations((15,), on="held out"))
    run = ChartedRun(record=replace(record, evaluations=rows), name="a")
    accuracy, _ = run_charts.scores([run], by_epsilon=False)
    assert [line.name for line in accuracy.lines] == ["a, test", "a, held out"]


CHOICES: dict[str, dict[str, Any]] = {
    "accepted": {},
    "floored": {"cooling": "floored"},
    "classic": {"cooling": "classic", "cooling_rate": 0.9},
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_temperature_is_the_one_that_annealing_has_itself(name: str) -> None:
    annealed = Annealed(initial_inverse_temperature=4.0, **CHOICES[name])
    state: Any = annealed.start()
    for step in range(1, 6):
        inverse = float(annealed._cooled(_tensor(state["inverse_temperature"]), _tensor(step)))
        state = {**state, "inverse_temperature": inverse}
    [row] = evaluations((5,))
    assert annealing_temperature(annealed.to_json(), row) == pytest.approx(1 / inverse)


def _tensor(value: float) -> Any:
    return torch.tensor(value, dtype=torch.float64)


def test_before_anything_is_accepted_it_is_infinite_unless_it_has_a_floor() -> None:
    [row] = evaluations((5,), accepted=0)
    assert annealing_temperature(Annealed().to_json(), row) == math.inf
    assert annealing_temperature(Annealed(cooling="floored").to_json(), row) == 0.1


def test_it_is_found_under_whatever_it_is_wrapped_in() -> None:
    annealed = Annealed()
    for acceptance in (annealed, Salvage(annealed), BestStep(Salvage(annealed))):
        config = configuration(method={"acceptance": acceptance.to_json()})
        assert annealing_settings(config) == annealed.to_json()


@pytest.mark.parametrize("acceptance", [dpsgd().acceptance.to_json(), None, "annealed", {"of": 3}], ids=str)
def test_other_runs_have_none(acceptance: object) -> None:
    assert annealing_settings(configuration(method={"acceptance": acceptance})) is None
    assert annealing_settings(configuration()) is None
