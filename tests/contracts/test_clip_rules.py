"""The contract of every clip rule, for every rule in ``lehr.privacy.clipping``, found by crawling the package.

A rule with a name is tried as it is by default; ``MORE`` has rules without a name, and other settings. The gradients
are chosen, and the engines are real. Axes: B records, P coordinates.
"""

from __future__ import annotations

import dataclasses
import math
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients import ghost
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import UNCLIPPED_COUNT, ClipRule
from lehr.privacy import clipping
from lehr.privacy.clipping import (
    CLIP_RULES,
    AutomaticClip,
    FlatClip,
    NormClip,
    PerCoordinateClip,
    PerLayerClip,
    QuantileRule,
    Unclipped,
)
from tests.contracts.crawling import classes_of
from tests.privacy.chosen import SIZES, Inner, as_vector, gradients, losses, stored_gradients

NUM_COORDINATES = sum(SIZES)
BOUNDS = {"first.weight": torch.tensor([[0.1, 2.0, 0.3]]), "second.weight": torch.tensor([[1.0, 1e-3]])}
MORE: tuple[ClipRule, ...] = (
    AutomaticClip(2.0, stability=0),
    PerCoordinateClip(BOUNDS),
    PerLayerClip.with_norms({"first": 0.02, "second": 3.0}),
    QuantileRule(clip_norm=0.7, count_share=0.1),
    QuantileRule(clip_norm=0.02, count_share=0.9),
)
EXAMPLES: tuple[ClipRule, ...] = (*(kind(0.7) for kind in CLIP_RULES.values()), *MORE)
RULES = [pytest.param(rule, id=f"{type(rule).__name__}-{index}") for index, rule in enumerate(EXAMPLES)]
PRECISIONS = ("float64", "float32", "bfloat16")
# Adding up a handful of numbers rounds each partial sum; the rules bound what is added, not how addition rounds.
ADDITION = {"float64": 64 * 2.0**-53, "float32": 64 * 2.0**-24, "bfloat16": 64 * 2.0**-24}


def rules_in_the_package() -> set[type]:
    return {kind for kind in classes_of(clipping) if "__call__" in vars(kind)} - {NormClip}


def length_of(rule: ClipRule) -> int:
    """How many numbers its sum has: a rule may count records as well."""
    return NUM_COORDINATES + isinstance(rule, QuantileRule)


def clipped(rule: ClipRule, grads_BP: Tensor, precision: str, mask_B: Tensor | None = None) -> Tensor:
    """The clipped sum as one vector."""
    wide = grads_BP.to(torch.float64 if precision == "float64" else torch.float32)
    if isinstance(rule, PerCoordinateClip):
        return as_vector(rule(stored_gradients(wide.to(getattr(torch, precision)), mask_B=mask_B)).values)
    half = "bfloat16" if precision == "bfloat16" else "as_model"
    return as_vector(rule(gradients(wide, precision=half, mask_B=mask_B)).values)


def records() -> st.SearchStrategy[list[list[float]]]:
    odd = st.sampled_from(
        [0.0, 1e-310, 1e-40, 1e-23, 1e-9, 1.0, 1e18, 1e20, 1e38, 1e200, math.inf, -math.inf, math.nan]
    )
    numbers = st.one_of(odd, st.floats(-10, 10), st.floats(-1e-3, 1e-3), st.floats(allow_nan=True, allow_infinity=True))
    return st.lists(st.lists(numbers, min_size=NUM_COORDINATES, max_size=NUM_COORDINATES), min_size=1, max_size=5)


def test_every_rule_in_the_package_is_tried_here() -> None:
    assert rules_in_the_package() == {type(rule) for rule in EXAMPLES} | {Unclipped}


def test_the_one_rule_that_bounds_nothing_says_so() -> None:
    assert Unclipped().sensitivity == math.inf
    assert all(math.isfinite(rule.sensitivity) for rule in EXAMPLES)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rule", RULES)
@given(drawn=records(), data=st.data())
@example(drawn=[[1e3] * NUM_COORDINATES, [-1e3] * NUM_COORDINATES], data=None)
@example(drawn=[[math.nan] * NUM_COORDINATES, [1.0] * NUM_COORDINATES], data=None)
@settings(max_examples=25)
def test_adding_or_removing_one_record_moves_the_sum_by_at_most_the_sensitivity(
    rule: ClipRule, precision: str, drawn: list[list[float]], data: st.DataObject | None
) -> None:
    grads_BP = torch.tensor(drawn, dtype=torch.float64)
    index = 0 if data is None else data.draw(st.integers(0, len(drawn) - 1))
    others = torch.arange(len(drawn)) != index
    together = clipped(rule, grads_BP, precision)
    without = clipped(rule, grads_BP[others], precision)
    assert together.isfinite().all()
    assert (together - without).norm().item() <= rule.sensitivity * (1 + ADDITION[precision])
    masked = clipped(rule, grads_BP, precision, mask_B=others)
    assert (masked - without).norm().item() <= rule.sensitivity * ADDITION[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rule", RULES)
def test_a_large_record_moves_the_sum_by_nearly_the_sensitivity(rule: ClipRule, precision: str) -> None:
    signs = torch.tensor([[1e4, -1e4, 1e4, 1e4, -1e4]])
    moved = clipped(rule, signs, precision).norm().item()
    assert 0.98 * rule.sensitivity <= moved <= rule.sensitivity


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rule", RULES)
def test_the_sum_of_no_records_and_of_records_without_gradient_is_exactly_zero(rule: ClipRule, precision: str) -> None:
    for num_records in (0, 1, 3):
        found = clipped(rule, torch.zeros(num_records, NUM_COORDINATES), precision)
        assert found[:NUM_COORDINATES].tolist() == [0] * NUM_COORDINATES
        # A count of records is not zero where there are some, and exactly zero where there are none.
        assert len(found) == length_of(rule)
        assert num_records or not found.any()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_in_one_coordinate_adds_nothing_in_any(
    rule: ClipRule, precision: str, bad: float
) -> None:
    spoiled = torch.ones(1, NUM_COORDINATES)
    spoiled[0, 1] = bad
    assert clipped(rule, spoiled, precision).tolist() == [0] * length_of(rule)


@pytest.mark.parametrize("rule", RULES)
def test_the_sum_states_the_sensitivity_of_its_rule(rule: ClipRule) -> None:
    found = rule(stored_gradients(torch.ones(2, NUM_COORDINATES)))
    assert found.sensitivity == rule.sensitivity
    shapes = {name: parameter.shape for name, parameter in Inner().named_parameters()}
    if isinstance(rule, QuantileRule):
        shapes[UNCLIPPED_COUNT] = torch.Size()
    assert {name: value.shape for name, value in found.values.items()} == shapes


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_frozen_and_can_be_a_key(rule: Any) -> None:
    assert {rule: 1}[rule] == 1
    for field in dataclasses.fields(rule):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(rule, field.name, 1.0)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not isinstance(rule.values[0], PerCoordinateClip)])
def test_a_rule_can_be_traced_into_one_graph(rule: ClipRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as the engine traces it; what is traced is then run as it is, since compiling it takes long."""
    records, targets = torch.tensor([[1.0, 2, 3, 4, 5], [0, 0, 0, 0, 0]]), torch.zeros(2)
    expected = rule(gradients(records))
    monkeypatch.setattr(ghost, "compile_step", partial(torch.compile, fullgraph=True, dynamic=False, backend="eager"))
    traced = GhostEngine(Inner(), losses).private_sum(rule, records, targets)
    torch.testing.assert_close(traced.values, expected.values)


class Images(nn.Module):
    """A convolution, a norm and a linear layer: parameters whose norms are computed in three ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.Tanh(), nn.Flatten())
        self.second = nn.Linear(8 * 36, 5)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.second(self.first(images))
        return scores


def cross_entropies(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets, reduction="none")


@cache
def engine_of_images(precision: str) -> GhostEngine:
    """With one network's weights. About one in 300 has gradients of a layer that are too small to be clipped."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Images()
    return GhostEngine(model, cross_entropies, precision=precision, compiled=False)


@pytest.mark.parametrize("rule", [FlatClip(0.01), PerLayerClip(0.01), AutomaticClip(0.01, stability=0)], ids=repr)
@pytest.mark.parametrize("precision", ["as_model", "bfloat16"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_the_bound_holds_and_is_tight_for_a_network_in_low_precision(
    rule: ClipRule, precision: str, size: float
) -> None:
    made = torch.Generator().manual_seed(1)
    images, targets = size * torch.randn(6, 2, 6, 6, generator=made), torch.arange(6) % 5
    engine = engine_of_images(precision)
    together = as_vector(rule(engine.gradients(images, targets)).values)
    for left_out in range(6):
        without = as_vector(rule(engine.gradients(images, targets, torch.arange(6) != left_out)).values)
        moved = (together - without).norm().item()
        assert 0.97 * rule.sensitivity <= moved <= rule.sensitivity
