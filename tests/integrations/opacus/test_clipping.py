"""Clip rules by Opacus's names, and adaptive clipping."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.integrations.opacus.clipping import COUNT, QuantileClip, QuantileRule, check_clipping, clip_rule
from lehr.interfaces import Groups, ReleasedSum
from lehr.privacy.clipping import LARGEST_CLIP_NORM, AutomaticClip, FlatClip, PerLayerClip
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from tests.integrations.opacus.loops import private, take_steps

MODEL = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def rule(clipping: str, max_grad_norm: Any) -> Any:
    return clip_rule(clipping, max_grad_norm, model=MODEL, noise_multiplier=1.0, quantile=None)


def test_words_pick_rules() -> None:
    assert rule("flat", 0.5) == FlatClip(0.5)
    assert rule("automatic", 0.5) == AutomaticClip(0.5)
    assert rule("per_layer", 0.5) == PerLayerClip(0.5)


def test_a_norm_for_each_parameter_becomes_one_for_each_layer_with_the_same_sensitivity() -> None:
    found = rule("per_layer", [3.0, 4.0, 5.0, 12.0])
    assert dict(found.shares) == {"0": 5.0, "1": 13.0}
    assert found.sensitivity == pytest.approx(math.sqrt(9 + 16 + 25 + 144))


@pytest.mark.parametrize("clipping, norms", [("flat", [1.0, 1.0]), ("per_layer", [1.0]), ("per_layer", [1.0] * 5)])
def test_the_wrong_number_of_norms_is_refused(clipping: str, norms: list[float]) -> None:
    with pytest.raises(InvalidValue, match="max_grad_norm"):
        rule(clipping, norms)


def test_adaptive_clipping_needs_its_settings_and_others_have_none() -> None:
    with pytest.raises(InvalidValue, match="unclipped_num_std"):
        check_clipping("adaptive", None)
    with pytest.raises(InvalidValue, match="clipping must be one of"):
        check_clipping("quantile", None)
    with pytest.raises(InvalidValue, match="adaptive clipping"):
        private(clipping="adaptive", min_clipbound=1.0)


@pytest.mark.parametrize("clipping, norms", [("per_layer", [0.5] * 4), ("per_layer", 1.0), ("automatic", 1.0)])
def test_loops_are_clipped_and_charged_the_same_way(clipping: str, norms: Any) -> None:
    loop = private(clipping=clipping, max_grad_norm=norms)
    take_steps(loop, 2)
    assert loop.engine.accountant.history == [(1.0, 0.2, 2)]


def test_a_norm_that_means_no_clipping_is_the_largest_that_arithmetic_allows() -> None:
    for clipping, norm in (("flat", 1e20), ("automatic", float("inf")), ("per_layer", 1e20)):
        rule = clip_rule(clipping, norm, model=MODEL, noise_multiplier=1.0, quantile=None)
        assert rule.sensitivity == LARGEST_CLIP_NORM


CLIP = QuantileClip(
    target_unclipped_quantile=0.5,
    clipbound_learning_rate=0.2,
    max_clipbound=10.0,
    min_clipbound=0.1,
    unclipped_num_std=5.0,
)
SETTINGS = vars(CLIP)


class Lengths:
    """Records whose gradients are numbers."""

    names = ("weight",)
    margin = 0.0

    def __init__(self, *values: float) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)

    def norms(self, groups: Groups | None = None) -> Tensor:
        return self.values.abs()

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        return {"weight": (weights * self.values).sum()}


def vector(rule: QuantileRule, *values: float) -> Tensor:
    return torch.stack(list(rule(Lengths(*values)).values.values()))


@pytest.mark.parametrize("record", [0.0, 1e-12, 0.5, 1.0, 1.0001, 50.0])
def test_one_record_moves_sum_and_count_together_by_at_most_the_sensitivity(record: float) -> None:
    rule = CLIP.rule(clip_norm=1.0, noise_multiplier=2.0)
    moved = vector(rule, 0.3, 4.0, record) - vector(rule, 0.3, 4.0)
    assert float(moved.norm()) <= rule.sensitivity * (1 + 1e-12)


def test_the_bound_is_reached() -> None:
    rule = CLIP.rule(clip_norm=1.0, noise_multiplier=2.0)
    assert float(vector(rule, 1.0).norm()) == pytest.approx(rule.sensitivity)


def test_the_noise_is_that_of_theorem_one() -> None:
    """Andrew et al. (2021): (σ⁻² - (2 σ_b)⁻²)^(-1/2) on the sum, σ_b on the count."""
    rule = CLIP.rule(clip_norm=0.7, noise_multiplier=2.0)
    std = 2.0 * rule.sensitivity
    assert std == pytest.approx(0.7 * (2.0**-2 - (2 * 5.0) ** -2) ** -0.5)
    assert std / rule.count_weight == pytest.approx(5.0)


def test_the_clip_norm_falls_where_too_few_are_clipped_and_rises_where_too_many_are() -> None:
    rule = CLIP.rule(clip_norm=1.0, noise_multiplier=1e-6)
    few, many = (ReleasedSum(values=rule(Lengths(*lengths)).values) for lengths in ([0.1] * 10, [5.0] * 10))
    assert CLIP.next_clip_norm(rule, few, expected_batch_size=10) == pytest.approx(math.exp(-0.1))
    assert CLIP.next_clip_norm(rule, many, expected_batch_size=10) == pytest.approx(math.exp(0.1))
    smallest = CLIP.rule(clip_norm=0.1, noise_multiplier=1e-6)
    assert CLIP.next_clip_norm(smallest, few, expected_batch_size=10) == 0.1


def test_noise_that_the_count_alone_would_use_up_is_refused() -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        CLIP.rule(clip_norm=1.0, noise_multiplier=10.0)
    with pytest.raises(InvalidValue, match="max_clipbound"):
        QuantileClip(**{**SETTINGS, "max_clipbound": 0.05})


def test_the_count_is_released_with_noise() -> None:
    rule = CLIP.rule(clip_norm=1.0, noise_multiplier=2.0)
    private_sum = rule(Lengths(0.5))
    released = [
        IsotropicNoise().release(private_sum, noise_multiplier=2.0, randomness=RunKey.fresh().at(0, 0)).values[COUNT]
        for _ in range(400)
    ]
    std = float(torch.stack(released).std()) / rule.count_weight
    assert 4.2 < std < 5.8
    assert not 4.2 < std / 2 < 5.8


def test_a_loop_adapts_its_clip_norm_and_is_charged_with_one_noise_multiplier() -> None:
    loop = private(clipping="adaptive", max_grad_norm=5.0, noise_multiplier=0.5, batch_size=20, **SETTINGS)
    take_steps(loop, 10)
    assert loop.optimizer.max_grad_norm < 5.0
    assert loop.engine.accountant.history == [(0.5, 0.5, 10)]
    assert COUNT not in dict(loop.model.named_parameters())
