"""Per-coordinate clipping, on gradients that are chosen."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lehr.errors import InvalidValue
from lehr.privacy.clipping import FlatClip, PerCoordinateClip
from tests.privacy.clipping.chosen import as_vector, gradients, stored_gradients


def bounds(first: list[float], second: list[float]) -> dict[str, Tensor]:
    return {"first.weight": torch.tensor([first]).float(), "second.weight": torch.tensor([second]).float()}


def test_every_coordinate_is_cut_off_at_its_own_bound_record_by_record() -> None:
    rule = PerCoordinateClip(bounds([1, 2, 0.5], [0, 4]))
    records = torch.tensor([[3.0, -3, 0.25, 7, -4], [-3, 1, -9, 1, 0]])
    clipped = as_vector(rule(stored_gradients(records)).values)
    assert clipped.tolist() == [1 - 1, -2 + 1, 0.25 - 0.5, 0, -4]


def test_the_sensitivity_is_the_norm_of_the_bounds_which_are_passed_on() -> None:
    rule = PerCoordinateClip(bounds([1, 2, 2], [4, 0]))
    found = rule(stored_gradients(torch.ones(1, 5)))
    assert found.sensitivity == rule.sensitivity == 5.0
    assert found.bounds is not None
    assert as_vector(found.bounds).tolist() == [1, 2, 2, 4, 0]


def test_bounds_changed_after_the_rule_was_built_change_nothing() -> None:
    given = bounds([1, 2, 2], [4, 0])
    rule = PerCoordinateClip(given)
    for bound in given.values():
        bound.mul_(100)
    assert as_vector(rule(stored_gradients(torch.full((1, 5), 1e3))).values).norm() == 5.0


def test_bounds_that_were_handed_out_and_changed_change_nothing() -> None:
    rule = PerCoordinateClip(bounds([1, 2, 2], [4, 0]))
    handed_out = rule(stored_gradients(torch.ones(1, 5))).bounds
    assert handed_out is not None
    for bound in (*handed_out.values(), *rule.bounds.values()):
        bound.mul_(100)
    assert as_vector(rule(stored_gradients(torch.full((1, 5), 1e3))).values).norm() == rule.sensitivity == 5.0


def test_rules_are_equal_where_their_bounds_are() -> None:
    rule = PerCoordinateClip(bounds([1, 2, 2], [4, 0]))
    assert rule == PerCoordinateClip(bounds([1, 2, 2], [4, 0]))
    assert hash(rule) == hash(PerCoordinateClip(bounds([1, 2, 2], [4, 0])))
    others = [bounds([2, 1, 2], [4, 0]), bounds([1, 2, 2, 0], [4, 0]), {"first.weight": torch.ones(1, 25)}]
    assert rule not in [PerCoordinateClip(other) for other in others]
    assert rule != FlatClip(5.0)


def test_gradients_that_cannot_be_looked_at_by_coordinates_are_refused_with_the_engine_that_offers_them() -> None:
    with pytest.raises(InvalidValue, match=r"MaterialisedEngine.*given: 'ContributedGradients'"):
        PerCoordinateClip(bounds([1, 2, 2], [4, 0]))(gradients(torch.ones(1, 5)))


def test_what_is_no_tensor_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"tensors of floating point numbers; given: 'weight: 1.0'"):
        PerCoordinateClip({"weight": 1.0})  # type: ignore[dict-item]


def test_a_bound_is_not_rounded_up_to_a_narrower_type() -> None:
    third = torch.full((1, 3), 1 / 3)
    rule = PerCoordinateClip({"first.weight": third, "second.weight": third[:, :2]})
    clipped = rule(stored_gradients(torch.ones(1, 5, dtype=torch.bfloat16))).values
    assert as_vector(clipped).max().item() <= third[0, 0].item()


def test_bounds_for_other_parameters_than_the_model_has_are_refused() -> None:
    rule = PerCoordinateClip({"first.weight": torch.ones(1, 3)})
    with pytest.raises(InvalidValue, match="one for each of"):
        rule(stored_gradients(torch.ones(1, 5)))


def test_bounds_of_another_shape_are_refused() -> None:
    rule = PerCoordinateClip({"first.weight": torch.ones(3), "second.weight": torch.ones(1, 2)})
    with pytest.raises(InvalidValue, match=r"of shape \(1, 3\) for first.weight"):
        rule(stored_gradients(torch.ones(1, 5)))


@pytest.mark.parametrize("bound", [-1.0, math.nan, math.inf])
def test_a_bound_that_bounds_nothing_is_refused(bound: float) -> None:
    with pytest.raises(InvalidValue, match="finite numbers >= 0"):
        PerCoordinateClip(bounds([1, bound, 1], [1, 1]))


@pytest.mark.parametrize("none", [{}, {"weight": torch.zeros(3)}, {"weight": torch.ones(3, dtype=torch.int64)}])
def test_bounds_that_let_nothing_through_or_are_no_numbers_are_refused(none: dict[str, Tensor]) -> None:
    with pytest.raises(InvalidValue, match="bounds must be"):
        PerCoordinateClip(none)
