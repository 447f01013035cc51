from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lehr.compat.opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from lehr.errors import InvalidValue


def test_without_a_shape_it_is_the_criterion() -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    assert torch.equal(criterion(logits, targets), functional.cross_entropy(logits, targets))


def test_with_a_shape_every_record_has_the_same_share() -> None:
    logits = torch.randn(2, 3, 5)
    targets = torch.tensor([[1, 2, -100], [3, -100, -100]])
    criterion = DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss())
    found = criterion(logits.view(-1, 5), targets.view(-1), shape=(2, 3))
    apart = [functional.cross_entropy(logits[record], targets[record]) for record in range(2)]
    assert torch.allclose(found, torch.stack(apart).mean())
    assert not torch.allclose(found, functional.cross_entropy(logits.view(-1, 5), targets.view(-1)))


def test_sums_and_criteria_that_ignore_nothing() -> None:
    values, targets = torch.randn(2, 3), torch.randn(2, 3)
    total = DPLossFastGradientClipping(None, None, nn.MSELoss(reduction="sum"), "sum")
    mean = DPLossFastGradientClipping(None, None, nn.MSELoss())
    assert torch.allclose(total(values, targets, shape=(2, 3)), functional.mse_loss(values, targets, reduction="sum"))
    assert torch.allclose(mean(values, targets, shape=(2, 3)), functional.mse_loss(values, targets))


def test_a_criterion_that_reduces_otherwise_is_refused() -> None:
    with pytest.raises(InvalidValue, match="reduction"):
        DPLossFastGradientClipping(None, None, nn.CrossEntropyLoss(reduction="sum"))


@pytest.mark.parametrize(
    "criterion, given",
    [
        (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0])), "weights"),
        (nn.CrossEntropyLoss(ignore_index=1), "ignored"),
    ],
)
def test_a_mean_in_which_others_decide_on_a_records_share_is_refused(criterion: nn.Module, given: str) -> None:
    logits, targets = torch.randn(3, 2), torch.tensor([0, 1, 0])
    private = DPLossFastGradientClipping(None, None, criterion)
    with pytest.raises(InvalidValue, match=rf"same share.*{given}"):
        private(logits, targets)
    assert private(logits, targets, shape=(3, 1)).isfinite()
