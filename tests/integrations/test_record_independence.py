"""A loop whose loss is not made of the losses of single records is refused, wherever it mixes them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from lehr.integrations.record_independence import (
    MAX_RECORDS,
    CollationResult,
    RecordLoop,
    check_collation,
    check_record_independence,
    sample_records,
)
from tests.integrations.opacus.loops import private
from tests.integrations.refusals import not_private

INPUTS, TARGETS = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])
RECORDS = list(zip(INPUTS, TARGETS, strict=True))
SENTENCES = [torch.tensor(words) for words in ([1, 2, 3], [3, 1], [2], [1, 1, 2])]
torch.manual_seed(0)
MODEL = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))


def mean(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1])


def summed(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], reduction="sum")


def centred(batch: Any) -> Tensor:
    outputs: Tensor = MODEL(batch[0])
    return (outputs - outputs.mean(0)).square().mean()


def weighted(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0]))


def mixup_in_training(batch: Any) -> Tensor:
    inputs, targets = batch
    order = torch.randperm(len(inputs)) if MODEL.training else torch.arange(len(inputs))
    return cross_entropy(MODEL(0.7 * inputs + 0.3 * inputs[order]), targets)


def negatives_in_training(batch: Any) -> Tensor:
    outputs: Tensor = MODEL(batch[0])
    others = (outputs @ outputs.T).logsumexp(1).mean() if MODEL.training else 0.0
    return cross_entropy(outputs, batch[1]) + others


def noisy(batch: Any) -> Tensor:
    return mean((batch[0] + torch.randn_like(batch[0]), batch[1]))


def mixup(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    share = torch.rand(1, dtype=inputs.dtype)
    return share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))], targets


def a_loop(loss_of: Callable[[Any], Tensor] = mean, batch_of: Any = default_collate, **changed: Any) -> RecordLoop:
    MODEL.train()
    return RecordLoop(**{"model": MODEL, "batch_of": batch_of, "loss_of": loss_of, **changed})


@pytest.mark.parametrize("loss, loss_reduction", [(mean, "mean"), (summed, "sum"), (noisy, "mean")])
def test_a_loss_of_each_record_passes_and_everything_is_restored(loss: Any, loss_reduction: str) -> None:
    before, weights = torch.random.get_rng_state(), [value.detach().clone() for value in MODEL.parameters()]
    is_tried = check_record_independence(a_loop(loss, loss_reduction=loss_reduction), RECORDS)
    assert is_tried is (loss is not noisy)  # if it is random, losses of two records and of one cannot be compared
    assert all(layer.training for layer in MODEL.modules())
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(map(torch.equal, weights, MODEL.parameters()))


@pytest.mark.parametrize(
    "loss, collate, loss_reduction",
    [
        (mean, default_collate, "sum"),
        (summed, default_collate, "mean"),
        (centred, default_collate, "mean"),
        (weighted, default_collate, "mean"),
        (mixup_in_training, default_collate, "mean"),
        (negatives_in_training, default_collate, "mean"),
        (mean, mixup, "mean"),
    ],
)
def test_losses_that_mix_records_are_refused(loss: Any, collate: Any, loss_reduction: str) -> None:
    with not_private("the loss"):
        check_record_independence(a_loop(loss, collate, loss_reduction=loss_reduction), RECORDS)


def test_mixing_is_detected_with_initial_weights_of_zero() -> None:
    zero = nn.Linear(3, 2)
    nn.init.zeros_(zero.weight)
    loop = a_loop(lambda batch: cross_entropy(zero(batch[0]), batch[1]), mixup, model=zero)
    with not_private("the loss"):
        check_record_independence(loop, RECORDS)
    assert not zero.weight.any()


@pytest.mark.parametrize("is_masked", [True, False])
def test_padding_must_be_masked(is_masked: bool) -> None:
    words = nn.Embedding(4, 3)

    def loss_of(batch: Tensor) -> Tensor:
        weights = (batch > 0).float() if is_masked else torch.ones(batch.shape)
        outputs = (words(batch) * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return mse_loss(outputs, torch.ones_like(outputs))

    with nullcontext() if is_masked else not_private("the loss"):
        assert check_record_independence(a_loop(loss_of, padded, model=words), SENTENCES)


class Centre(nn.Module):
    """Stores a mean of its inputs; ``counts`` alone says nothing about them."""

    centre: Tensor
    counts: Tensor

    def __init__(self, *, stores_mean: bool) -> None:
        super().__init__()
        self.net, self.stores_mean = nn.Linear(3, 2), stores_mean
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("counts", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.counts = self.counts + 1
            if self.stores_mean:
                self.centre = 0.9 * self.centre + 0.1 * inputs.mean(0)
        outputs: Tensor = self.net(inputs)
        return outputs


@pytest.mark.parametrize("stores_mean", [True, False])
def test_buffers_that_learn_from_records_are_refused_and_restored(stores_mean: bool) -> None:
    model = Centre(stores_mean=stores_mean)
    loop = a_loop(lambda batch: cross_entropy(model(batch[0]), batch[1]), model=model)
    with not_private("centre") if stores_mean else nullcontext():
        assert check_record_independence(loop, RECORDS)
    assert not model.counts.any()
    assert not model.centre.any()


def test_a_loss_that_is_not_repeatable_is_refused() -> None:
    calls = count()
    with not_private("the loss"):
        check_record_independence(a_loop(lambda batch: mean(batch) + MODEL.training * next(calls)), RECORDS)


def test_a_record_with_nan_does_not_hide_or_stop_anything() -> None:
    broken = (torch.full((3,), torch.nan), torch.tensor(1))
    assert check_record_independence(a_loop(), [broken, *RECORDS])
    assert not check_record_independence(a_loop(), [broken, RECORDS[0]])
    assert check_collation(default_collate, [broken[0], INPUTS[0]]) is CollationResult.INDEPENDENT


@pytest.mark.parametrize("num_records", [1, 2, 5, 1000])
def test_records_are_sampled_from_the_whole_data_set(num_records: int) -> None:
    found = sample_records(range(num_records), num_records)
    assert len(found) == min(num_records, MAX_RECORDS) == len(set(found))
    assert {found[0], found[-1]} == {0, num_records - 1}


# Collation alone.


def centred_batch(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs - inputs.mean(0), targets


def noised(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + torch.randn(inputs.shape), targets


def noised_by_python(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + random.random(), targets


def padded(batch: list[Tensor]) -> Tensor:
    return pad_sequence(batch, batch_first=True)


def padded_to_eight(batch: list[Tensor]) -> Tensor:
    return pad_sequence([*batch, torch.zeros(8)], batch_first=True)[:-1]


class Encoded:
    """A batch like a tokenizer's, which is no dictionary but has items."""

    def __init__(self, batch: list[Any]) -> None:
        self.data = {"inputs": torch.stack([inputs for inputs, _ in batch]).cumsum(0)}

    def items(self) -> Any:
        return self.data.items()


@pytest.mark.parametrize("collate", [mixup, centred_batch, Encoded])
def test_collation_that_mixes_records_is_refused(collate: Any) -> None:
    with not_private("collate_fn"):
        check_collation(collate, RECORDS)


@pytest.mark.parametrize(
    "collate, records, expected",
    [
        (default_collate, RECORDS, CollationResult.INDEPENDENT),
        (noised, RECORDS, CollationResult.INDEPENDENT),
        (padded_to_eight, SENTENCES, CollationResult.INDEPENDENT),
        (padded, SENTENCES, CollationResult.PADDED),
        (noised_by_python, RECORDS, CollationResult.UNKNOWN),
        (mixup, [], CollationResult.UNKNOWN),
        (mixup, RECORDS[:1] * 2, CollationResult.UNKNOWN),
        (lambda batch: "a word", RECORDS, CollationResult.UNKNOWN),
    ],
)
def test_collation_is_classified(collate: Any, records: list[Any], expected: CollationResult) -> None:
    assert check_collation(collate, records) is expected


class ForWorkers:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        raise OSError("this file is opened by workers")


def test_opacus_loops_have_their_collation_checked(caplog: pytest.LogCaptureFixture) -> None:
    with not_private("collate_fn"):
        private(collate_fn=mixup)
    with pytest.warns(UserWarning, match="ignore the padding"):
        private(collate_fn=padded, dataset=SENTENCES)
    with caplog.at_level(logging.WARNING, logger="lehr"):
        private(dataset=ForWorkers())
    assert "OSError" in caplog.text
    assert "opened by workers" not in caplog.text  # a message may quote a record
