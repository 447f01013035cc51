from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lehr.compat.opacus.quantile_clip import COUNT, QuantileClip, QuantileRule
from lehr.errors import InvalidValue
from lehr.interfaces import Groups, ReleasedSum
from lehr.noise import IsotropicNoise
from lehr.rng import RunKey
from tests.compat.opacus.loops import private, take_steps

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
    assert CLIP.moved(rule, few, expected_batch_size=10) == pytest.approx(math.exp(-0.1))
    assert CLIP.moved(rule, many, expected_batch_size=10) == pytest.approx(math.exp(0.1))


def test_the_clip_norm_stays_within_its_ends() -> None:
    rule = CLIP.rule(clip_norm=0.1, noise_multiplier=1e-6)
    few = ReleasedSum(values=rule(Lengths(*[0.01] * 10)).values)
    assert CLIP.moved(rule, few, expected_batch_size=10) == 0.1


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
