from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.contributions.materialised import Materialised

GRADS = {"weight": torch.tensor([[3.0, 0.0], [0.0, 6.0], [1.0, 1.0]]), "bias": torch.tensor([[4.0], [8.0], [1.0]])}
GROUPS = [["weight"], ["bias"]]


def gradients(grads: dict[str, Tensor] = GRADS, mask: list[bool] | None = None) -> ContributedGradients:
    parts = {name: Materialised(value) for name, value in grads.items()}
    return ContributedGradients(parts, mask_B=torch.tensor(mask or [True] * 3), margin=0.25)


def test_names_and_margin_are_handed_on() -> None:
    assert gradients().names == ("weight", "bias")
    assert gradients().margin == 0.25


def test_norms_are_over_all_parameters_or_over_each_group() -> None:
    torch.testing.assert_close(gradients().norms(), torch.tensor([5.0, 10.0, 3**0.5]))
    torch.testing.assert_close(gradients().norms(GROUPS), torch.tensor([[3.0, 4.0], [6.0, 8.0], [2**0.5, 1.0]]))
    torch.testing.assert_close(gradients().norms([["bias", "weight"]]).squeeze(1), gradients().norms())


def test_sums_have_one_weight_for_each_record_or_for_each_group_of_it() -> None:
    sums = gradients().weighted_sum(torch.tensor([1.0, 0.5, 0.0]))
    assert {name: value.tolist() for name, value in sums.items()} == {"weight": [3, 3], "bias": [8]}
    by_group = gradients().weighted_sum(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), GROUPS)
    assert {name: value.tolist() for name, value in by_group.items()} == {"weight": [3, 0], "bias": [8]}


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e30])
@pytest.mark.parametrize("name", GRADS)
def test_a_record_that_is_not_finite_in_one_parameter_counts_as_zero_in_all(name: str, bad: float) -> None:
    """A number whose square is not finite has no norm either."""
    grads = {key: value.clone() for key, value in GRADS.items()}
    grads[name][1, 0] = bad
    found = gradients(grads)
    assert found.norms().tolist()[:2] == [5, 0]
    assert found.norms(GROUPS).tolist()[1] == [0, 0]
    sums = found.weighted_sum(torch.tensor([1.0, float("nan"), 1.0]))
    assert {key: value.tolist() for key, value in sums.items()} == {"weight": [4, 1], "bias": [5]}


def test_a_record_that_the_mask_leaves_out_counts_as_zero() -> None:
    found = gradients(mask=[True, False, True])
    assert found.norms().tolist()[1] == 0
    assert found.weighted_sum(torch.ones(3))["bias"].tolist() == [5]


def test_sums_lie_in_the_order_of_the_parameters_memory() -> None:
    grads = {"weight": torch.randn(3, 4, 2).transpose(1, 2)}
    assert gradients(grads).weighted_sum(torch.ones(3))["weight"].is_contiguous()


def test_a_scale_is_in_norms_and_sums_and_leaves_the_mask_alone() -> None:
    parts = {name: Materialised(value / 8) for name, value in GRADS.items()}
    mask = torch.tensor([True, False, True])
    scaled = ContributedGradients(parts, mask_B=mask, margin=0.25, scale=8)
    plain = gradients(mask=mask.tolist())
    assert torch.equal(scaled.norms(), plain.norms())
    assert torch.equal(scaled.norms(GROUPS), plain.norms(GROUPS))
    for weights, groups in ((torch.rand(3), None), (torch.rand(3, 2), GROUPS)):
        found, expected = (of.weighted_sum(weights, groups) for of in (scaled, plain))
        torch.testing.assert_close(found, expected)
