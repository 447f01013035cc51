from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue
from lehr.gradients import batches

IMAGES, WORDS = torch.randn(3, 2, 4, 4), torch.arange(3)
FORMS: list[Any] = [IMAGES, (IMAGES, WORDS), {"images": IMAGES, "words": WORDS}]


def add(images: Tensor, words: Tensor | None = None) -> Tensor:
    return images.sum() + (0 if words is None else words.sum())


@pytest.mark.parametrize("inputs", FORMS)
def test_a_batch_may_be_a_tensor_a_tuple_or_named(inputs: Any) -> None:
    expected = add(IMAGES) if isinstance(inputs, Tensor) else add(IMAGES, WORDS)
    assert batches.call(add, inputs) == expected
    assert batches.num_records(inputs, WORDS) == 3
    assert all(leaf.shape[0] == 3 for leaf in batches.leaves(inputs))


@pytest.mark.parametrize("inputs", FORMS)
def test_each_keeps_the_structure(inputs: Any) -> None:
    halves = batches.each(lambda leaf: leaf[:1], inputs)
    assert type(halves) is type(inputs)
    assert [leaf.shape[0] for leaf in batches.leaves(halves)] == [1] * len(batches.leaves(inputs))


@pytest.mark.parametrize(
    "inputs, targets",
    [
        (IMAGES, WORDS[:2]),
        ((IMAGES, WORDS[:2]), WORDS),
        (IMAGES, torch.tensor(1)),
        ({}, []),
        (torch.tensor(1.0), WORDS),
    ],
)
def test_tensors_that_do_not_begin_with_the_same_records_are_refused(inputs: Any, targets: Any) -> None:
    with pytest.raises(InvalidValue, match="batch must be tensors that begin with the same number of records"):
        batches.num_records(inputs, targets)


def test_no_records_are_a_number_of_records() -> None:
    assert batches.num_records(IMAGES[:0], WORDS[:0]) == 0


def test_views_stand_behind_the_record_axis_of_every_input() -> None:
    batches.check_views(IMAGES, views=2)
    batches.check_views(WORDS, views=1)
    for wrong, shape in ((IMAGES, r"\(3, 2, 4, 4\)"), ((IMAGES.repeat(1, 2, 1, 1), WORDS), r"\(3,\)")):
        with pytest.raises(InvalidValue, match=f"second axis has the 4 views.*{shape}"):
            batches.check_views(wrong, views=4)


def test_views_are_laid_one_after_another_record_by_record() -> None:
    flat = batches.flat_views(IMAGES, views=2)
    assert isinstance(flat, Tensor)
    assert torch.equal(flat[3], IMAGES[1, 1])
    assert batches.flat_views(IMAGES, views=1) is IMAGES


def test_random_numbers_drawn_apart_leave_no_trace() -> None:
    state = torch.get_rng_state()
    with batches.random_numbers_apart(torch.device("cpu")):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), state)


def test_only_images_have_their_channels_put_last() -> None:
    images = batches.channels_last(torch.randn(2, 3, 4, 5))
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batches.channels_last(IMAGES), IMAGES)
    for other in (WORDS, torch.randn(2, 3), torch.randn(1, 2, 3, 4, 5)):
        assert batches.channels_last(other) is other


def test_a_shared_parameter_is_trained_once_and_a_frozen_one_not_at_all() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[2].requires_grad_(False)
    assert list(batches.trainable(model)) == ["0.weight", "0.bias"]


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one parameter that requires grad"):
        batches.trainable(nn.Flatten())


def test_losses_that_are_one_per_record_are_taken_as_they_are() -> None:
    losses = torch.rand(3)
    assert batches.one_each(losses, num_records=3) is losses


@pytest.mark.parametrize("losses", [torch.ones(()), torch.ones(6), torch.ones(3, 1), 1.0, None])
def test_losses_that_are_not_one_per_record_are_refused(losses: object) -> None:
    with pytest.raises(InvalidValue, match=r"loss_fn must be a function with one loss per record, of shape \(3,\)"):
        batches.one_each(losses, num_records=3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_a_trained_parameter_that_is_of_no_type_with_a_margin_is_refused_by_name(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2)
    model.gain = nn.Parameter(torch.ones(2).to(dtype))
    with pytest.raises(InvalidValue, match=rf"torch.float64.*given: 'gain: {dtype}'"):
        batches.trainable(model)
    model.gain.requires_grad_(False)
    assert set(batches.trainable(model)) == {"weight", "bias"}
