from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.gradients.made_up import ATTEMPTS, MadeUp

every_attempt = pytest.mark.parametrize("attempt", ATTEMPTS, ids=str)
LEAVES = {
    "numbers": torch.randn(5, 3),
    "narrow numbers": torch.randn(5, 3, dtype=torch.bfloat16),
    "words": torch.randint(0, 9, (5, 3)),
    "pixels": torch.zeros(5, 3, dtype=torch.uint8),
    "masks": torch.zeros(5, 3, dtype=torch.bool),
    "one number each": torch.randn(5),
    "one mask each": torch.ones(5, dtype=torch.bool),
}
every_leaf = pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES.keys())


def made_up(attempt: MadeUp, leaf: Tensor, rows: tuple[int, ...] = (0, 1)) -> Tensor:
    result: Tensor = attempt.batch(leaf, num_images=5, rows=rows)
    return result


@every_attempt
@every_leaf
def test_the_two_images_differ_and_have_the_shape_of_the_batch(attempt: MadeUp, leaf: Tensor) -> None:
    pair = made_up(attempt, leaf)
    assert pair.shape == (2, *leaf.shape[1:])
    assert not torch.equal(pair[0], pair[1])
    assert pair.dtype == (torch.float64 if attempt.is_wide and leaf.is_floating_point() else leaf.dtype)


@every_attempt
@every_leaf
def test_no_number_of_the_batch_takes_part(attempt: MadeUp, leaf: Tensor) -> None:
    assert torch.equal(made_up(attempt, leaf), made_up(attempt, torch.zeros_like(leaf)))


@every_attempt
def test_rows_are_chosen_from_the_two(attempt: MadeUp) -> None:
    pair = made_up(attempt, LEAVES["numbers"])
    assert torch.equal(made_up(attempt, LEAVES["numbers"], (1, 0, 1)), pair[[1, 0, 1]])


@pytest.mark.parametrize("attempt", [attempt for attempt in ATTEMPTS if attempt.is_positive], ids=str)
def test_positive_numbers_are_within_zero_and_one(attempt: MadeUp) -> None:
    pair = made_up(attempt, torch.zeros(5, 1000))
    assert pair.min() > 0
    assert pair.max() < 1


@every_attempt
def test_a_mask_never_leaves_out_all_positions_in_one_of_the_attempts_and_all_others_in_the_next(
    attempt: MadeUp,
) -> None:
    pair = made_up(attempt, LEAVES["masks"])
    assert pair[0].all() == (not attempt.is_positive)
    assert pair[1].sum() == (1 if attempt.is_positive else 2)


@every_attempt
def test_what_all_records_share_is_kept(attempt: MadeUp) -> None:
    positions = torch.arange(7.0)
    assert torch.equal(attempt.batch(positions, num_images=5, rows=(0, 1)), positions)


@every_attempt
def test_weights_that_begin_at_zero_are_moved_and_the_model_is_not(attempt: MadeUp) -> None:
    model = nn.Linear(3, 2)
    nn.init.zeros_(model.weight)
    model.register_buffer("seen", torch.ones(2))
    values = attempt.values(model)
    values["seen"].add_(1)
    assert (values["weight"] != 0).all()
    assert not model.weight.any()
    assert model.get_buffer("seen").tolist() == [1.0, 1.0]
    assert torch.equal(values["weight"], attempt.values(model)["weight"])


@pytest.mark.parametrize("attempt", ATTEMPTS)
@pytest.mark.parametrize("leaf", [torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.int64)])
def test_no_two_parts_of_an_image_are_alike(attempt: MadeUp, leaf: Tensor) -> None:
    """Where a model compares two parts, gradients would vanish, and everything would agree with them."""
    made = attempt.batch({"a": leaf, "b": leaf}, num_images=3, rows=[0, 1])
    assert not any(torch.equal(made["a"][row], made["b"][row]) for row in (0, 1))
