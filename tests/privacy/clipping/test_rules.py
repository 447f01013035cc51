"""What can be a clip norm."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import PrivateSum, ReleasedSum, StepOutcome
from lehr.privacy.clipping import (
    LARGEST_CLIP_NORM,
    SMALLEST_CLIP_NORM,
    SMALLEST_NORM,
    AutomaticClip,
    FixedClip,
    FlatClip,
    PerCoordinateClip,
    PerLayerClip,
    ScheduledClip,
    Unclipped,
    check_clip_norm,
    with_schedule,
)
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.schedules import CONSTANT, Cosine, StepDecay
from tests.privacy.clipping.chosen import as_vector, gradients, losses


@pytest.mark.parametrize("value", [SMALLEST_CLIP_NORM, 0.1, 1, LARGEST_CLIP_NORM])
def test_a_number_within_the_range_is_returned_as_it_is(value: float) -> None:
    assert check_clip_norm(clip_norm=value) == value


@pytest.mark.parametrize("value", [0, -1, 1e-10, 1e10, math.inf, math.nan, True, "1", None])
def test_what_float32_cannot_divide_by_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidValue, match="bound must be"):
        check_clip_norm(bound=value)


VALUES = {"weight": torch.ones(3)}
TAKEN = StepOutcome(released=ReleasedSum(values=VALUES), divisor=2.0, is_accepted=True)
RULES = (FlatClip(1.0), AutomaticClip(1.0), PerLayerClip(1.0), PerCoordinateClip(VALUES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_fixed_rule_is_itself_at_every_step_and_learns_nothing(rule: FixedClip) -> None:
    state = rule.start(VALUES)
    assert state == {}
    assert rule.learn(state, TAKEN) == {}
    assert rule.peek(state, PrivateSum(values=VALUES, sensitivity=1.0), divisor=2.0) == {}
    assert rule.rule(state, 0) is rule.rule(state, 10**6) is rule


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_only_a_clip_of_coordinates_needs_gradients_in_full(rule: FixedClip) -> None:
    assert rule.unproven is None
    assert rule.needs_coordinates == isinstance(rule, PerCoordinateClip)


LONG = torch.tensor([[3.0, 0, 0, 0, 4]], dtype=torch.float64)


def test_a_long_gradient_is_scaled_to_the_clip_norm() -> None:
    clipped = as_vector(FlatClip(2.0)(gradients(LONG)).values)
    torch.testing.assert_close(clipped, LONG[0] * 2 / 5, rtol=1e-11, atol=0)


def test_a_short_gradient_is_left_exactly_as_it_is() -> None:
    clipped = as_vector(FlatClip(6.0)(gradients(LONG)).values)
    assert clipped.equal(LONG[0])


def test_the_margin_of_the_gradients_is_kept() -> None:
    narrow = gradients(LONG.float(), precision="bfloat16")
    assert narrow.margin > 0
    clipped = as_vector(FlatClip(1.0)(narrow).values).norm().item()
    assert clipped < 1
    assert clipped == pytest.approx(1 / (1 + narrow.margin), rel=2**-8)


def test_the_rule_states_its_sensitivity_and_can_be_compared() -> None:
    assert FlatClip(1).sensitivity == FlatClip(1)(gradients(LONG)).sensitivity == 1.0
    assert {FlatClip(1.0), FlatClip(1.0)} == {FlatClip(1.0)}


@pytest.mark.parametrize("clip_norm", [0, -1.0, math.nan, math.inf, "1"])
def test_what_cannot_be_a_clip_norm_is_refused(clip_norm: float) -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be"):
        FlatClip(clip_norm)


def of_norm(norm: float) -> Tensor:
    return norm * torch.tensor([[0.6, 0, 0, 0, 0.8]], dtype=torch.float64)


@pytest.mark.parametrize("norm", [1e-3, 0.01, 1, 1e6])
def test_a_gradient_is_divided_by_its_norm_and_the_stability_constant(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0.01)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped, of_norm(norm)[0] * 2 / (norm + 0.01), rtol=1e-10, atol=0)


@pytest.mark.parametrize("norm", [1e-6, 1, 1e6])
def test_without_a_stability_constant_all_gradients_have_the_clip_norm(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped.norm().item(), 2.0, rtol=1e-10, atol=0)


@pytest.mark.parametrize("norm", [0, 1e-30, SMALLEST_NORM / 2])
def test_without_a_stability_constant_the_smallest_gradients_stay_small_and_finite(norm: float) -> None:
    clipped = as_vector(AutomaticClip(2.0, stability=0)(gradients(of_norm(norm))).values)
    torch.testing.assert_close(clipped, of_norm(norm)[0] * 2 / SMALLEST_NORM)


@pytest.mark.parametrize("stability", [-0.01, math.nan, math.inf, 1e10])
def test_what_cannot_be_a_stability_constant_is_refused(stability: float) -> None:
    with pytest.raises(InvalidValue, match="stability must be"):
        AutomaticClip(1.0, stability=stability)


def test_what_cannot_be_a_clip_norm_is_refused_automatic() -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be"):
        AutomaticClip(math.nan)


HALVED = StepDecay(every=10, decay=0.5)
CLIPS = (
    FlatClip(0.8),
    AutomaticClip(0.8, stability=0.5),
    PerLayerClip(0.8, shares=(("first", 3.0), ("second", 4.0))),
)


@pytest.mark.parametrize("clip", CLIPS, ids=lambda clip: type(clip).__name__)
def test_the_rule_of_a_step_is_the_same_rule_at_another_clip_norm(
    clip: FlatClip | AutomaticClip | PerLayerClip,
) -> None:
    scheduled, large = ScheduledClip(clip, HALVED), gradients(torch.full((1, 5), 1e4, dtype=torch.float64))
    for step, factor in ((0, 1.0), (9, 1.0), (10, 0.5), (25, 0.25)):
        rule = scheduled.rule({}, step)
        assert type(rule) is type(clip)
        assert rule.sensitivity == rule(large).sensitivity == 0.8 * factor
        torch.testing.assert_close(as_vector(rule(large).values), factor * as_vector(clip(large).values))


def test_what_is_released_changes_nothing() -> None:
    scheduled = ScheduledClip(FlatClip(1.0), HALVED)
    state = scheduled.start({})
    taken = StepOutcome(released=ReleasedSum(values={"weight": torch.ones(3)}), divisor=2.0, is_accepted=False)
    assert scheduled.learn(state, taken) == state == {}


def test_a_constant_schedule_leaves_the_rule_alone() -> None:
    assert with_schedule(FlatClip(1.0), CONSTANT) == FlatClip(1.0)
    assert with_schedule(FlatClip(1.0), HALVED) == ScheduledClip(FlatClip(1.0), HALVED)


@pytest.mark.parametrize("step", [100, 1000])
def test_a_clip_norm_that_has_fallen_to_nothing_is_refused(step: int) -> None:
    with pytest.raises(InvalidValue, match="clip_norm"):
        ScheduledClip(FlatClip(1.0), Cosine(total_steps=100)).rule({}, step)


def test_a_schedule_that_is_no_number_is_refused() -> None:
    class Broken:
        def factor(self, step: int) -> float:
            return math.nan

    with pytest.raises(InvalidValue, match="clip_norm"):
        ScheduledClip(FlatClip(1.0), Broken()).rule({}, 0)


GRADIENTS = torch.tensor([[1e3, 0, 0, 2.0, 0], [1.0, 1, 1, 1, 1], [math.nan, 0, 0, 0, 0]])


def test_the_sum_is_that_of_the_gradients_as_they_are() -> None:
    found = Unclipped()(gradients(GRADIENTS))
    torch.testing.assert_close(as_vector(found.values), GRADIENTS[:2].double().sum(0))
    assert (
        as_vector(Unclipped()(gradients(GRADIENTS, mask_B=torch.tensor([False, True, True]))).values).tolist()
        == [1] * 5
    )


def test_noise_is_refused_since_one_record_can_do_anything() -> None:
    private = Unclipped()(gradients(GRADIENTS))
    assert private.sensitivity == math.inf
    with pytest.raises(InvalidValue, match="sensitivity"):
        IsotropicNoise().release(private, noise_multiplier=1.0, randomness=RunKey(bytes(32)).at(step=0, attempt=0))


RECORD = torch.tensor([[3.0, 0, 4, 0, 0.1]], dtype=torch.float64)


def test_every_layer_is_clipped_to_its_equal_part() -> None:
    clipped = PerLayerClip(1.0)(gradients(RECORD)).values
    torch.testing.assert_close(clipped["first.weight"].norm().item(), 1 / math.sqrt(2))
    assert clipped["second.weight"].equal(RECORD[:, 3:])


def test_bounds_that_are_given_hold_layer_by_layer() -> None:
    rule = PerLayerClip.with_norms({"first": 0.3, "second": 0.04})
    clipped = rule(gradients(RECORD))
    torch.testing.assert_close(clipped.values["first.weight"].norm().item(), 0.3)
    torch.testing.assert_close(clipped.values["second.weight"].norm().item(), 0.04)
    assert clipped.sensitivity == rule.sensitivity == math.hypot(0.3, 0.04)


def test_shares_are_proportions_of_one_clip_norm() -> None:
    assert PerLayerClip(2.0, shares=(("first", 3), ("second", 4))).sensitivity == 2.0
    one = PerLayerClip(2.0, shares=(("first", 3), ("second", 4)))(gradients(10 * RECORD)).values
    other = PerLayerClip(2.0, shares=(("first", 6), ("second", 8)))(gradients(10 * RECORD)).values
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one["first.weight"].norm().item(), 1.2)


def test_shares_in_lists_are_those_in_tuples() -> None:
    given = [["first", 3], ["second", 4]]
    rule = PerLayerClip(2.0, shares=given)  # type: ignore[arg-type]
    given[0][1] = 100
    expected = PerLayerClip(2.0, shares=(("first", 3), ("second", 4)))
    assert rule == expected
    assert hash(rule) == hash(expected)


@pytest.mark.parametrize("shares", [1.0, ["first"], {"first": 1.0}, [("first", 1.0, 2.0)]])
def test_shares_that_are_no_pairs_are_refused(shares: Any) -> None:
    with pytest.raises(InvalidValue, match="shares must be pairs of a layer and its share"):
        PerLayerClip(2.0, shares=shares)


class Doubled(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight


def test_weight_and_bias_of_one_layer_share_its_bound_also_behind_a_parametrization() -> None:
    layer = nn.Linear(2, 1).double()
    parametrize.register_parametrization(layer, "weight", Doubled())
    engine = GhostEngine(nn.Sequential(layer), losses, compiled=False)
    clipped = PerLayerClip(1.0)(engine.gradients(torch.ones(1, 2, dtype=torch.float64), torch.zeros(1))).values
    assert len(clipped) == 2
    torch.testing.assert_close(torch.cat([part.flatten() for part in clipped.values()]).norm().item(), 1.0)


@pytest.mark.parametrize("layers", [("first",), ("first", "second", "third")])
def test_bounds_for_other_layers_than_the_model_has_are_refused(layers: tuple[str, ...]) -> None:
    rule = PerLayerClip.with_norms(dict.fromkeys(layers, 1.0))
    with pytest.raises(InvalidValue, match=r"one for each of the layers \['first', 'second'\]"):
        rule(gradients(RECORD))


@pytest.mark.parametrize(
    "clip_norm, shares, name",
    [
        (math.nan, (), "clip_norm"),
        (1.0, (("first", 0.0),), "shares"),
        (1.0, (("first", 1.0), ("first", 1.0)), "shares"),
        (1.0, (("first", 1e-9), ("second", 1e9)), "shares"),
    ],
)
def test_what_bounds_nothing_is_refused(clip_norm: float, shares: tuple[tuple[str, float], ...], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"{name} must be"):
        PerLayerClip(clip_norm, shares)


def test_a_bound_that_is_no_clip_norm_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clip_norms must be"):
        PerLayerClip.with_norms({"first": math.nan})


def test_a_clip_norm_that_leaves_a_layer_too_little_is_refused() -> None:
    with pytest.raises(InvalidValue, match="clip_norm must be at least 1e-09 for each of 2 layers"):
        PerLayerClip(1e-9)(gradients(RECORD))
