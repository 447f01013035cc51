from __future__ import annotations

from pathlib import Path

import pytest

from lehr.cli.options import StepOptions, example, read_plan, refuse, refuse_other_adjacency, required, steps_of
from lehr.errors import InvalidValue, StoreError
from lehr.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated, SampledWithoutReplacement
from lehr.files import json_file
from lehr.planning.budget import Budget
from lehr.planning.plan import Plan

ADD, REPLACE = Adjacency.ADD_OR_REMOVE_ONE, Adjacency.REPLACE_ONE


def test_batch_size_and_records_are_the_probability() -> None:
    by_size = StepOptions(noise_multiplier=2.0, expected_batch_size=512, records=60_000, sampling_probability=None)
    by_probability = StepOptions(
        noise_multiplier=2.0, expected_batch_size=None, records=None, sampling_probability=512 / 60_000
    )
    assert (
        by_size.event(adjacency=ADD)
        == by_probability.event(adjacency=ADD)
        == PoissonSampled(512 / 60_000, Gaussian(2.0))
    )


def test_under_replace_one_a_batch_is_sampled_without_replacement() -> None:
    step = StepOptions(noise_multiplier=2.0, expected_batch_size=10, records=1000, sampling_probability=None)
    assert step.event(adjacency=REPLACE) == SampledWithoutReplacement(1000, 10, Gaussian(2.0))


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"noise_multiplier": None}, r"noise_multiplier must be given \(--noise-multiplier\)"),
        ({"records": None}, r"records must be given \(--records\)"),
        ({"expected_batch_size": None}, r"expected_batch_size must be given"),
        ({"sampling_probability": 0.1}, "left out beside sampling_probability"),
        ({"expected_batch_size": 2000.0}, "expected_batch_size must be"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be"),
    ],
)
def test_a_step_that_is_not_described_is_refused(changes: dict[str, float | None], words: str) -> None:
    described: dict[str, float | None] = {
        "noise_multiplier": 2.0,
        "expected_batch_size": 10.0,
        "records": 1000,
        "sampling_probability": None,
    }
    with pytest.raises(InvalidValue, match=words):
        StepOptions(**{**described, **changes}).event(adjacency=ADD)  # type: ignore[arg-type]


def test_steps_are_those_of_the_run() -> None:
    assert steps_of(Repeated(Gaussian(2.0), 10), steps=3) == Repeated(Gaussian(2.0), 3)
    with pytest.raises(InvalidValue, match="repeats one event"):
        steps_of(Composed((Gaussian(2.0), Gaussian(3.0))), steps=1)
    with pytest.raises(InvalidValue, match="steps_taken must be a whole number >= 1; given: 0"):
        steps_of(Repeated(Gaussian(2.0), 10), steps_taken=0)


def test_a_step_is_described_once() -> None:
    StepOptions(noise_multiplier=None, expected_batch_size=None, records=None, sampling_probability=None).refuse_beside(
        "plan"
    )
    with pytest.raises(InvalidValue, match="records must be left out beside plan"):
        StepOptions(
            noise_multiplier=None, expected_batch_size=None, records=3, sampling_probability=None
        ).refuse_beside("plan")


def test_an_example_keeps_its_lines() -> None:
    assert example("  one\n", "  two\n") == "\b\nExample:\n  one\n  two\n"


def test_one_run_has_one_adjacency() -> None:
    refuse_other_adjacency(ADD, expected=ADD)
    with pytest.raises(InvalidValue, match="adjacency must be replace-one in every file of one run"):
        refuse_other_adjacency(ADD, expected=REPLACE)


def test_a_plan_is_read_from_its_file(tmp_path: Path) -> None:
    plan = Plan(noise_multiplier=2.0, expected_batch_size=10, records=1000, steps=5, delta=1e-5)
    json_file.write(tmp_path / "plan.json", plan.to_json())
    assert read_plan(tmp_path / "plan.json") == plan
    with pytest.raises(StoreError, match="cannot read"):
        read_plan(tmp_path / "none.json")


def test_a_budget_is_no_plan(tmp_path: Path) -> None:
    with Budget.create(tmp_path / "clinic.budget", dataset="clinic", epsilon=1.0, delta=1e-5):
        pass
    with pytest.raises(StoreError, match="it is not a plan, but a budget"):
        read_plan(tmp_path / "clinic.budget")


def test_zero_is_given_and_nothing_is_not() -> None:
    assert required(steps=0) == 0
    refuse("plan", steps=None)
    with pytest.raises(InvalidValue, match="steps must be left out beside plan; given: 0"):
        refuse("plan", steps=0)
