"""How a run is evaluated, and what that costs."""

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


def evaluation(**changed: Any) -> EvaluationPlan:
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
    assert evaluation(test=TEST).side_events(45) == NOTHING
    assert counted(evaluation(test=TEST).run_plan(plan()).event) == {plan().step_event: 45}


@pytest.mark.parametrize("every", [None, 1, 7, 45, 100])
@pytest.mark.parametrize("steps", [1, 19, 45, 1000])
def test_plan_covers_every_charged_evaluation(every: int | None, steps: int) -> None:
    held_out = evaluation(held_out_fraction=0.25, evaluate_every=every)
    run_plan = held_out.run_plan(plan(steps=steps))
    expected, allowed = counted(run_plan.event).get(Gaussian(20.0)), counted(held_out.side_events(steps))
    assert expected is not None
    assert expected <= allowed[Gaussian(20.0)]
    assert sum(run_plan.is_due(step, end_step=steps) for step in range(steps)) == expected


def test_number_of_evaluations_is_fixed_if_steps_are_unknown() -> None:
    held_out = evaluation(held_out_fraction=0.25)
    assert held_out.side_events(None) == Repeated(Gaussian(20.0), 20)
    assert all(held_out.run_plan(plan(steps=steps)).scores <= 20 for steps in range(1, 200))
    with pytest.raises(InvalidValue, match="evaluate_every"):
        evaluation(held_out_fraction=0.25, evaluate_every=3).side_events(None)


def test_no_evaluation_without_records() -> None:
    nothing = evaluation()
    assert nothing.on is None
    assert nothing.run_plan(plan()).evaluate_every is None


def test_held_out_records_are_not_trained_on() -> None:
    assert evaluation(held_out_fraction=0.25).records_trained_on == 30
    assert evaluation(test=TEST).records_trained_on == 40


def test_only_methods_with_a_public_loss_split_the_test_records() -> None:
    assert evaluation(test=TEST).split(KEY) is None
    assert evaluation(test=TEST, public=PUBLIC, method=sa_dpsgd()).split(KEY) is None
    split = evaluation(test=TEST, method=sa_dpsgd(), acceptance_fraction=0.25).split(KEY)
    assert split is not None
    assert len(split.private) + len(split.public) == len(TEST[1])
    assert 0 < len(split.public) < len(split.private)


def test_split_depends_on_the_key() -> None:
    drawn = [evaluation(held_out_fraction=0.5).split(key) for key in (KEY, KEY, RunKey(bytes(31) + b"\2"))]
    one, again, other = (split.parts.tolist() for split in drawn if split is not None)
    assert one == again != other


def test_empty_part_of_a_split() -> None:
    with pytest.raises(InvalidValue, match="held_out_fraction"):
        evaluation(held_out_fraction=1e-9).split(KEY)


def test_public_records_are_declared() -> None:
    assert len(evaluation(test=TEST, public=PUBLIC).declared_public) == 2
    assert evaluation().declared_public == ()
    assert evaluation(test=TEST, method=sa_dpsgd()).public_records is not None
    assert evaluation(test=TEST).public_records is None
    assert set(evaluation(test=TEST).to_json().values()) == {None}


def test_plan_counts_evaluations_and_training_records() -> None:
    def planned(**changed: Any) -> Plan:
        numbers = {"delta": 1e-3, "epsilon": 3.0, "steps": 4, "expected_batch_size": 8, "sampling": "poisson"}
        config = RunConfig.of(privacy=numbers | {key: changed.pop(key) for key in ("sampling",) if key in changed})
        return build_plan(config, evaluation(**changed))

    public, private = planned(test=TEST), planned(held_out_fraction=0.25)
    assert (public.records, private.records) == (40, 30)
    louder = planned(held_out_fraction=0.25, held_out_noise_multiplier=1e6)
    assert private.noise_multiplier > louder.noise_multiplier
    assert public.adjacency is Adjacency.ADD_OR_REMOVE_ONE
    assert planned(test=TEST, sampling="without-replacement").adjacency is Adjacency.REPLACE_ONE
