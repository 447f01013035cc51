"""A loss that is not the mean, or sum, of the losses of single records is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.compat.each_record import refuse_shared_loss
from lehr.errors import NotPrivate

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
BATCH = (torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0]))


def mean(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1])


def summed(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], reduction="sum")


def centred(batch: Any) -> Tensor:
    outputs: Tensor = MODEL(batch[0])
    return (outputs - outputs.mean(0)).square().mean()


def weighted(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0]))


@pytest.mark.parametrize("loss, loss_reduction", [(mean, "mean"), (summed, "sum")])
def test_a_loss_of_each_record_passes_and_the_model_stays_in_training(
    loss: Callable[[Any], Tensor], loss_reduction: str
) -> None:
    MODEL.train()
    before = torch.random.get_rng_state()
    assert refuse_shared_loss(MODEL, loss, BATCH, num_records=4, loss_reduction=loss_reduction)
    assert MODEL[1].training
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("loss, loss_reduction", [(mean, "sum"), (summed, "mean"), (centred, "mean")])
def test_a_loss_with_another_share_for_each_record_is_refused(
    loss: Callable[[Any], Tensor], loss_reduction: str
) -> None:
    with pytest.raises(NotPrivate, match="the loss"):
        refuse_shared_loss(MODEL, loss, BATCH, num_records=4, loss_reduction=loss_reduction)


def test_weights_of_classes_are_seen_where_the_classes_differ() -> None:
    batch = (BATCH[0], torch.tensor([0, 1, 1, 1]))
    with pytest.raises(NotPrivate, match="the loss"):
        refuse_shared_loss(MODEL, weighted, batch, num_records=4, loss_reduction="mean")


def test_a_batch_that_cannot_be_cut_is_not_tried() -> None:
    assert not refuse_shared_loss(MODEL, centred, (*BATCH, "words"), num_records=4, loss_reduction="mean")


def test_a_record_whose_loss_is_not_finite_stops_nobody() -> None:
    inputs = BATCH[0].clone()
    inputs[0, 0] = torch.nan
    assert not refuse_shared_loss(MODEL, mean, (inputs, BATCH[1]), num_records=4, loss_reduction="mean")
