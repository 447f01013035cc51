"""Votes over views: who votes, and who wins."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.data.augmentation import named
from lehr.errors import InvalidValue
from lehr.voting import Ballot, tally

IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def scores(*probabilities: list[float]) -> Tensor:
    """One record whose views hold the classes for so probable."""
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_the_class_of_most_views_wins_however_sure_the_others_are() -> None:
    assert tally(scores([0.99, 0.01], [0.49, 0.51], [0.49, 0.51])).classes.tolist() == [1]


def test_of_as_many_votes_the_more_probable_class_wins() -> None:
    assert tally(scores([0.9, 0.1], [0.4, 0.6])).classes.tolist() == [0]
    assert tally(scores([0.6, 0.4], [0.1, 0.9])).classes.tolist() == [1]


def test_a_class_without_the_most_votes_does_not_win_by_its_mean_probability() -> None:
    split = scores([0.5, 0.1, 0.4], [0.5, 0.1, 0.4], [0.1, 0.5, 0.4], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0])
    assert split.exp().mean(dim=1).argmax().item() == 2
    assert tally(split).classes.item() in (0, 1)


def test_the_softmax_of_a_tally_is_the_mean_probability() -> None:
    given = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(tally(given).scores.softmax(dim=1), given.softmax(dim=2).mean(dim=1))


def test_the_order_of_the_views_does_not_matter() -> None:
    given = torch.randn(40, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = {tuple(tally(given[:, list(order)]).classes.tolist()) for order in itertools.permutations(range(4))}
    assert len(found) == 1


def test_one_vote_is_returned_as_it_is() -> None:
    given = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(1))
    counted = tally(given)
    assert counted.scores.equal(given[:, 0])
    assert counted.classes.equal(given[:, 0].argmax(dim=1))


def test_views_are_those_of_the_family_and_differ() -> None:
    views = Ballot(augmentation=named("flip_crop"), votes=5).views(IMAGES)
    assert views.shape == (6, 5, 3, 16, 16)
    assert all(len({view.numpy().tobytes() for view in record}) > 1 for record in views)
    assert (
        Ballot(augmentation=named("none"), votes=2).views(IMAGES).equal(IMAGES.unsqueeze(1).expand(-1, 2, -1, -1, -1))
    )


def test_an_image_has_the_same_views_alone_and_among_others() -> None:
    ballot = Ballot(augmentation=named("ours"), votes=3)
    together = ballot.views(IMAGES)
    for place in (0, 4):
        assert ballot.views(IMAGES[place : place + 1])[0].equal(together[place])


def test_what_is_drawn_is_another_thing_for_another_image() -> None:
    ballot = Ballot(augmentation=named("flip_crop"), votes=8)
    positions = torch.arange(256.0).view(1, 1, 16, 16).expand(2, -1, -1, -1) / 256
    moved = ballot.views(torch.stack((positions[0], positions[1] / 2)))
    assert not moved[0].equal(2 * moved[1])


def test_nobodys_generator_moves() -> None:
    before = torch.get_rng_state()
    Ballot(augmentation=named("simclr"), votes=2).views(IMAGES)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("votes", [0, -1, 1.5, None])
def test_other_than_whole_votes_are_refused(votes: Any) -> None:
    with pytest.raises(InvalidValue, match="votes must be"):
        Ballot(augmentation=named("none"), votes=votes)
