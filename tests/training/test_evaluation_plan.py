"""What is scored on, and what that costs."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.accounting.events import NOTHING, Adjacency, Gaussian, Repeated, counted
from lehr.config import RunConfig, TrainingConfig
from lehr.data import InMemory, Preparation
from lehr.errors import InvalidValue
from lehr.methods.dpsgd import dpsgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.training.evaluation_plan import EvaluationPlan
from lehr.training.prepare import build_plan
from lehr.training.records import RunRecords
from tests.training.tiny import PRIVATE, PUBLIC, TEST

KEY = RunKey(bytes(32))


def scored(**changed: Any) -> EvaluationPlan:
    parts = {name: changed.pop(name, None) for name in ("test", "public")}
    given = RunRecords(
        name="tiny",
        private=InMemory(*PRIVATE),
        records=40,
        num_classes=3,
        preparation=Preparation(),
        test=parts["test"] and InMemory(*parts["test"]),
        public=parts["public"] and InMemory(*parts["public"]),
    )
    method = changed.pop("method", dpsgd())
    return EvaluationPlan(records=given, method=method, training=TrainingConfig.of(changed))


def plan(*, steps: int = 45) -> Plan:
    return Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=steps, delta=1e-3)


def test_public_scores_cost_nothing() -> None:
    assert scored(test=TEST).side_events(45) == NOTHING
    assert counted(scored(test=TEST).run_plan(plan()).event) == {plan().step_event: 45}


@pytest.mark.parametrize("every", [None, 1, 7, 45, 100])
@pytest.mark.parametrize("steps", [1, 19, 45, 1000])
def test_what_a_plan_is_calibrated_with_covers_every_score_that_will_be_taken(every: int | None, steps: int) -> None:
    held_out = scored(held_out_fraction=0.25, evaluate_every=every)
    run_plan = held_out.run_plan(plan(steps=steps))
    expected, allowed = counted(run_plan.event).get(Gaussian(20.0)), counted(held_out.side_events(steps))
    assert expected is not None
    assert expected <= allowed[Gaussian(20.0)]
    assert sum(run_plan.is_due(step, end_step=steps) for step in range(steps)) == expected


def test_where_steps_are_still_to_be_found_there_are_at_most_twenty_scores() -> None:
    held_out = scored(held_out_fraction=0.25)
    assert held_out.side_events(None) == Repeated(Gaussian(20.0), 20)
    assert all(held_out.run_plan(plan(steps=steps)).scores <= 20 for steps in range(1, 200))
    with pytest.raises(InvalidValue, match="evaluate_every must be left out"):
        scored(held_out_fraction=0.25, evaluate_every=3).side_events(None)


def test_with_nothing_to_score_on_nothing_is_scored() -> None:
    nothing = scored()
    assert nothing.on is None
    assert nothing.run_plan(plan()).evaluate_every is None


def test_records_that_are_held_out_are_not_trained_on() -> None:
    assert scored(held_out_fraction=0.25).records_trained_on == 30
    assert scored(test=TEST).records_trained_on == 40


def test_only_a_method_that_looks_at_a_loss_takes_a_part_of_the_test_records() -> None:
    assert scored(test=TEST).split(KEY) is None
    assert scored(test=TEST, public=PUBLIC, method=sa_dpsgd()).split(KEY) is None
    split = scored(test=TEST, method=sa_dpsgd(), acceptance_fraction=0.25).split(KEY)
    assert split is not None
    assert len(split.private) + len(split.public) == len(TEST[1])
    assert 0 < len(split.public) < len(split.private)


def test_who_is_held_out_follows_from_the_key() -> None:
    drawn = [scored(held_out_fraction=0.5).split(key) for key in (KEY, KEY, RunKey(bytes(31) + b"\2"))]
    one, again, other = (split.parts.tolist() for split in drawn if split is not None)
    assert one == again != other


def test_a_split_with_an_empty_part_is_refused() -> None:
    with pytest.raises(InvalidValue, match="held_out_fraction must be one that leaves somebody"):
        scored(held_out_fraction=1e-9).split(KEY)


def test_what_was_declared_public_is_said() -> None:
    assert scored(test=TEST, public=PUBLIC).declared_public == ("the test records", "the records given as public")
    assert scored().declared_public == ()
    assert scored(test=TEST, method=sa_dpsgd()).public_records == "a part of the test records, not scored on"
    assert scored(test=TEST, public=PUBLIC, method=sa_dpsgd()).public_records == "public records that were given"
    assert scored(test=TEST).public_records is None


def test_what_is_written_down_has_no_number_that_is_not_used() -> None:
    assert scored(test=TEST).to_json() == {
        "acceptance_fraction": None,
        "held_out_noise_multiplier": None,
    }


def test_a_plan_counts_what_is_done_beside_its_steps_and_has_the_records_that_are_trained_on() -> None:
    def made(**changed: Any) -> Plan:
        numbers = {"delta": 1e-3, "epsilon": 3.0, "steps": 4, "expected_batch_size": 8, "sampling": "poisson"}
        config = RunConfig.of(privacy=numbers | {key: changed.pop(key) for key in ("sampling",) if key in changed})
        return build_plan(config, scored(**changed))

    public, private = made(test=TEST), made(held_out_fraction=0.25)
    assert (public.records, private.records) == (40, 30)
    louder = made(held_out_fraction=0.25, held_out_noise_multiplier=1e6)
    assert private.noise_multiplier > louder.noise_multiplier
    assert public.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert made(test=TEST, sampling="without-replacement").adjacency is Adjacency.REPLACE_ONE
