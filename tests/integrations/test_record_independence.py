"""A loop whose loss is not made of the losses of single records is seen, wherever it mixes them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from lehr.errors import NotPrivate
from lehr.integrations.record_independence import (
    MAX_RECORDS,
    CollationResult,
    RecordLoop,
    check_collation,
    check_record_independence,
    sample_records,
)
from tests.integrations.opacus.loops import private

INPUTS, TARGETS = torch.linspace(-1, 1, 12).reshape(4, 3), torch.tensor([0, 1, 1, 0])
RECORDS = list(zip(INPUTS, TARGETS, strict=True))
WORDS = [torch.tensor(words) for words in ([1, 2, 3], [3, 1], [2], [1, 1, 2])]


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))


MODEL = a_model()


def mean(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1])


def summed(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], reduction="sum")


def centred(batch: Any) -> Tensor:
    outputs: Tensor = MODEL(batch[0])
    return (outputs - outputs.mean(0)).square().mean()


def weighted(batch: Any) -> Tensor:
    return cross_entropy(MODEL(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0]))


def mixed_up_in_training(batch: Any) -> Tensor:
    inputs, targets = batch
    order = torch.randperm(len(inputs)) if MODEL.training else torch.arange(len(inputs))
    return cross_entropy(MODEL(0.7 * inputs + 0.3 * inputs[order]), targets)


def negatives_in_training(batch: Any) -> Tensor:
    outputs: Tensor = MODEL(batch[0])
    others = (outputs @ outputs.T).logsumexp(1).mean() if MODEL.training else 0.0
    return cross_entropy(outputs, batch[1]) + others


def noisy(batch: Any) -> Tensor:
    return mean((batch[0] + torch.randn_like(batch[0]), batch[1]))


def mixed_up(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    share = torch.rand(1, dtype=inputs.dtype)
    return share * inputs + (1 - share) * inputs[torch.randperm(len(inputs))], targets


def a_loop(loss_of: Callable[[Any], Tensor] = mean, batch_of: Any = default_collate, **changed: Any) -> RecordLoop:
    MODEL.train()
    return RecordLoop(model=changed.pop("model", MODEL), batch_of=batch_of, loss_of=loss_of, **changed)


@pytest.mark.parametrize("loss, loss_reduction", [(mean, "mean"), (summed, "sum"), (noisy, "mean")])
def test_a_loss_of_each_record_passes_and_everything_is_left_as_it_was(
    loss: Callable[[Any], Tensor], loss_reduction: str
) -> None:
    before, weights = torch.random.get_rng_state(), [value.detach().clone() for value in MODEL.parameters()]
    is_tried = check_record_independence(a_loop(loss, loss_reduction=loss_reduction), RECORDS)
    assert is_tried is (loss is not noisy)  # where it is random, shares cannot be compared
    assert all(layer.training for layer in MODEL.modules())
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(map(torch.equal, weights, MODEL.parameters()))


@pytest.mark.parametrize(
    "loss, loss_reduction", [(mean, "sum"), (summed, "mean"), (centred, "mean"), (weighted, "mean")]
)
def test_a_loss_with_another_share_for_each_record_is_refused(
    loss: Callable[[Any], Tensor], loss_reduction: str
) -> None:
    with pytest.raises(NotPrivate, match="that of two records is not the"):
        check_record_independence(a_loop(loss, loss_reduction=loss_reduction), RECORDS)


@pytest.mark.parametrize(
    "loss, collate",
    [
        (mixed_up_in_training, default_collate),
        (negatives_in_training, default_collate),
        (mean, mixed_up),
    ],
)
def test_mixing_in_training_or_collation_is_refused(loss: Callable[[Any], Tensor], collate: Any) -> None:
    with pytest.raises(NotPrivate, match="depends on the other records"):
        check_record_independence(a_loop(loss, collate), RECORDS)


def test_mixing_is_seen_through_first_weights_that_let_hardly_anything_pass() -> None:
    tiny = nn.Linear(3, 2)
    nn.init.zeros_(tiny.weight)
    with pytest.raises(NotPrivate, match="depends on the other records"):
        check_record_independence(
            a_loop(lambda batch: cross_entropy(tiny(batch[0]), batch[1]), mixed_up, model=tiny), RECORDS
        )
    assert not tiny.weight.any()


@pytest.mark.parametrize("is_masked", [True, False])
def test_padding_that_counts_is_refused(is_masked: bool) -> None:
    words = nn.Embedding(4, 3)

    def loss_of(batch: Tensor) -> Tensor:
        found = words(batch)
        weights = (batch > 0).float() if is_masked else torch.ones(batch.shape)
        outputs = (found * weights[..., None]).sum(1) / weights.sum(1, keepdim=True)
        return mse_loss(outputs, torch.ones_like(outputs))

    loop = a_loop(loss_of, lambda records: pad_sequence(records, batch_first=True), model=words)
    if is_masked:
        assert check_record_independence(loop, WORDS)
        return
    with pytest.raises(NotPrivate, match="a mask for padding"):
        check_record_independence(loop, WORDS)


class Centre(nn.Module):
    """Keeps a mean of what it saw; ``counts`` alone says nothing of it."""

    centre: Tensor
    counts: Tensor

    def __init__(self, *, keeps_mean: bool) -> None:
        super().__init__()
        self.net, self.keeps_mean = nn.Linear(3, 2), keeps_mean
        self.register_buffer("centre", torch.zeros(3))
        self.register_buffer("counts", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.counts = self.counts + 1
            if self.keeps_mean:
                self.centre = 0.9 * self.centre + 0.1 * inputs.mean(0)
        outputs: Tensor = self.net(inputs)
        return outputs


@pytest.mark.parametrize("keeps_mean", [True, False])
def test_a_buffer_that_learns_from_records_is_refused_and_left_as_it_was(keeps_mean: bool) -> None:
    model = Centre(keeps_mean=keeps_mean)
    loop = a_loop(lambda batch: cross_entropy(model(batch[0]), batch[1]), model=model)
    if keeps_mean:
        with pytest.raises(NotPrivate, match="the buffer centre"):
            check_record_independence(loop, RECORDS)
    else:
        assert check_record_independence(loop, RECORDS)
    assert not model.counts.any()
    assert not model.centre.any()


def test_a_loss_that_is_not_the_same_twice_is_refused() -> None:
    drawn = iter(range(10_000))

    def loss_of(batch: Any) -> Tensor:
        return mean(batch) + (next(drawn) if MODEL.training else 0)

    with pytest.raises(NotPrivate, match="differs between two runs"):
        check_record_independence(a_loop(loss_of), RECORDS)


def test_a_record_whose_loss_is_not_finite_stops_nobody() -> None:
    broken = (torch.full((3,), torch.nan), torch.tensor(1))
    assert check_record_independence(a_loop(), [broken, *RECORDS])
    assert not check_record_independence(a_loop(), [broken, RECORDS[0]])


@pytest.mark.parametrize("num_records", [1, 2, 5, 1000])
def test_records_are_taken_from_all_over_a_data_set(num_records: int) -> None:
    found = sample_records(range(num_records), num_records)
    assert len(found) == min(num_records, MAX_RECORDS) == len(set(found))
    assert {found[0], found[-1]} == {0, num_records - 1}


COLLATED = [(torch.full((3,), float(value)), value) for value in range(4)]
SENTENCES = [torch.arange(1, length + 1) for length in (3, 5, 3, 4)]


def centred_batch(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs - inputs.mean(0), targets


def noised(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + torch.randn(inputs.shape), targets


def noised_elsewhere(batch: list[Any]) -> Any:
    inputs, targets = default_collate(batch)
    return inputs + random.random(), targets


class Encoded:
    """A batch of a tokenizer, which is no dictionary and has the items of one."""

    def __init__(self, batch: list[Any]) -> None:
        self.data = {"inputs": torch.stack([inputs for inputs, _ in batch]).cumsum(0)}

    def items(self) -> Any:
        return self.data.items()


@pytest.mark.parametrize("collate", [mixed_up, centred_batch, Encoded])
def test_a_collation_that_mixes_records_is_refused(collate: Any) -> None:
    with pytest.raises(NotPrivate, match=r"collate_fn.*other records"):
        check_collation(collate, COLLATED)


@pytest.mark.parametrize("collate", [default_collate, noised])
def test_one_that_looks_at_records_one_by_one_is_accepted(collate: Any) -> None:
    assert check_collation(collate, COLLATED) is CollationResult.INDEPENDENT


def test_randomness_that_is_not_torchs_shows_nothing() -> None:
    assert check_collation(noised_elsewhere, COLLATED) is CollationResult.UNKNOWN


def test_a_record_that_is_not_finite_is_no_mixing() -> None:
    assert (
        check_collation(default_collate, [torch.tensor([float("nan"), 1.0]), torch.tensor([2.0, 1.0])])
        is CollationResult.INDEPENDENT
    )


def test_padding_to_the_longest_is_seen_and_that_to_a_fixed_length_is_none() -> None:
    def fixed(batch: list[Tensor]) -> Tensor:
        return pad_sequence([*batch, torch.zeros(8)], batch_first=True)[:-1]

    assert check_collation(lambda batch: pad_sequence(batch, batch_first=True), SENTENCES) is CollationResult.PADDED
    assert check_collation(fixed, SENTENCES) is CollationResult.INDEPENDENT


@pytest.mark.parametrize("few", [[], COLLATED[:1], [COLLATED[0], COLLATED[0]]])
def test_records_that_are_alike_show_nothing(few: list[Any]) -> None:
    assert check_collation(mixed_up, few) is CollationResult.UNKNOWN


def test_a_loop_with_mixup_in_its_loader_is_never_made() -> None:
    with pytest.raises(NotPrivate, match="collate_fn"):
        private(collate_fn=mixed_up)


def test_a_loop_that_pads_is_told_what_that_asks_for() -> None:
    with pytest.warns(UserWarning, match="ignore the padding"):
        loop = private(collate_fn=lambda batch: pad_sequence(batch, batch_first=True), dataset=SENTENCES)
    assert any("longest" in note for note in loop.engine.notes)


def test_records_that_only_a_worker_can_read_are_not_tried_and_that_is_noted() -> None:
    class OfWorkers:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, place: int) -> Any:
            raise OSError("this file is opened by workers")

    assert any("not checked" in note for note in private(dataset=OfWorkers()).engine.notes)
