from __future__ import annotations

from lehr.files import strict_json
from lehr.planning.outlook import outlook
from lehr.planning.plan import Plan

PLAN = Plan(noise_multiplier=2.0, expected_batch_size=500, records=1000, steps=4, delta=1e-5)


def test_the_json_form_has_every_part_and_can_be_written() -> None:
    shape = outlook(PLAN, step_factors=(1.0,)).to_json()
    assert all(shape.values())
    assert set(shape) == {
        "standing",
        "other_batches",
        "other_steps",
        "twice_the_data",
        "constant_eta",
        "divergence_ratio",
    }
    assert strict_json.loads(strict_json.dumps(shape))


def test_the_figures_can_be_left_out() -> None:
    seen = outlook(PLAN, step_factors=())
    assert (seen.curves, seen.ratio_curves) == ((), ())
    assert seen.other_batches
