from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.extrapolation import Prediction, SimulatedRun, from_json, setting_of
from lehr.planning.plan import Plan
from lehr.planning.simulation import simulate

REFERENCE = Plan(noise_multiplier=3.0, expected_batch_size=4096, records=50_000, steps=2500, delta=1e-5)
CONFIG: dict[str, Any] = {
    "method": {"name": "dpsgd", "settings": {"learning_rate": 4.0}},
    "data": {"name": "digits", "declared": "public"},
    "model": {"network": "small_cnn", "trained": {"0.weight": [3, 3]}},
    "training": {"views": 1, "evaluate_every": 10},
}


def runs(*accuracies: float, batches: tuple[float, ...] = (64, 128, 256, 512)) -> tuple[SimulatedRun, ...]:
    pairs = zip(batches, accuracies, strict=True)
    return tuple(SimulatedRun(expected_batch_size=batch, accuracy=accuracy) for batch, accuracy in pairs)


PREDICTION = Prediction(reference=REFERENCE, runs=runs(0.70, 0.69, 0.67, 0.66), setting=setting_of(CONFIG))


def test_an_outcome_is_inside_or_outside_and_by_so_much() -> None:
    inside, below = PREDICTION.compared_with([0.62]), PREDICTION.compared_with([0.5])
    assert inside.is_inside
    assert inside.difference == pytest.approx(0.62 - PREDICTION.accuracy)
    assert not below.is_inside
    assert below.difference < -0.1


def test_the_mean_of_several_outcomes_is_held_against_a_narrower_interval() -> None:
    one, several = PREDICTION.compared_with([0.62]), PREDICTION.compared_with([0.61, 0.62, 0.63])
    assert several.outcome == pytest.approx(0.62)
    assert several.num_runs == 3
    assert one.interval.lowest < several.interval.lowest < several.interval.highest < one.interval.highest


def test_outcomes_that_are_none_are_refused() -> None:
    for outcomes in ([], [math.nan], [62.0]):
        with pytest.raises(InvalidValue, match="outcome"):
            PREDICTION.compared_with(outcomes)


def test_no_share_of_records_is_beyond_all_or_nothing() -> None:
    rising = Prediction(reference=REFERENCE, runs=runs(0.90, 0.95, 0.93, 0.97))
    assert rising.accuracy == 1.0
    assert rising.interval().highest == 1.0
    assert 0.8 < rising.interval().lowest < 1
    assert rising.compared_with([1.0]).is_inside
    assert rising.is_beyond_all_or_nothing
    assert not PREDICTION.is_beyond_all_or_nothing


def test_it_says_how_far_it_reaches_and_what_it_cost() -> None:
    assert PREDICTION.doublings_beyond == 3
    assert PREDICTION.cost == (64 + 128 + 256 + 512) / 4096


def test_a_file_gives_the_same_prediction_again() -> None:
    again = from_json(strict_json.loads(strict_json.dumps(PREDICTION.to_json())))
    assert again == PREDICTION


def _changed(path: str, value: object) -> dict[str, Any]:
    shape: dict[str, Any] = json.loads(strict_json.dumps(PREDICTION.to_json()))
    *above, last = path.split("/")
    place: Any = shape
    for name in above:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return shape


@pytest.mark.parametrize(
    "path, value",
    [
        ("follows/accuracy", 0.7),
        ("follows/lowest", None),
        ("follows/bend_p_value", 0.5),
        ("follows/slope_highest", True),
        ("follows/accuracy", 10**400),
        ("runs/0/accuracy", 0.5),
        ("runs/0/accuracy", 70),
        ("runs/0/note", "surplus"),
        ("runs", {}),
        ("reference/steps", 0),
        ("confidence", 0.5),
        ("confidence", 1),
        ("evaluated_on", ""),
        ("predicted_on", "yesterday"),
        ("format_version", 2),
        ("format", "lehr audit"),
        ("setting", {"method": {}}),
        ("setting", []),
        ("setting/model", "small_cnn"),
        ("surplus", 1),
    ],
)
def test_a_file_that_says_something_else_than_follows_is_refused(path: str, value: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(_changed(path, value))


def test_runs_of_the_reference_itself_are_no_simulations() -> None:
    with pytest.raises(InvalidValue, match="less than the 4096"):
        Prediction(reference=REFERENCE, runs=runs(0.7, 0.7, 0.7, batches=(64, 128, 4096)))


def test_a_simulation_is_not_predicted() -> None:
    with pytest.raises(InvalidValue, match="no simulation itself"):
        replace(PREDICTION, reference=simulate(REFERENCE, expected_batch_size=1024))


def test_what_another_run_has_otherwise_is_said() -> None:
    other = {**CONFIG, "method": {"name": "dpsgd", "settings": {"learning_rate": 2.0, "momentum": 0.9}}}
    assert PREDICTION.other_settings(other) == (
        "method: settings: learning rate was 4.0 in the simulations and is 2.0",
        "method: settings: momentum was not stated in the simulations and is 0.9",
    )


def test_what_does_not_change_a_run_is_not_said() -> None:
    same = {**CONFIG, "data": {"name": "digits", "declared": "private"}, "training": {"views": 1, "evaluate_every": 5}}
    assert PREDICTION.other_settings(same) == ()


def test_an_unknown_setting_is_said_to_be_unknown() -> None:
    assert "not known" in replace(PREDICTION, setting={}).other_settings(CONFIG)[0]


def test_records_that_simulations_have_revealed_are_noticed() -> None:
    def config(**data: str) -> dict[str, Any]:
        return {**CONFIG, "data": data}

    assert PREDICTION.may_reveal(config(name="digits", declared="private"))
    assert PREDICTION.may_reveal(config(name="digits"))
    assert not PREDICTION.may_reveal(config(name="digits", declared="public"))
    assert not PREDICTION.may_reveal(config(name="patients", declared="private"))
    assert not replace(PREDICTION, setting={}).may_reveal(config(name="digits"))


def test_a_run_of_other_steps_is_refused_and_one_of_other_records_is_not() -> None:
    PREDICTION.refuse_other_plan(REFERENCE)
    PREDICTION.refuse_other_plan(replace(REFERENCE, records=60_000, delta=1e-6))
    for plan in (None, replace(REFERENCE, steps=10), simulate(REFERENCE, expected_batch_size=64)):
        with pytest.raises(InvalidValue, match="2,500 steps of batches of 4,096 at noise multiplier 3"):
            PREDICTION.refuse_other_plan(plan)
