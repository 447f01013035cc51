"""Several looks at one record: it is what most of its augmented views are taken for.

Sander et al. (2023, "TAN Without a Burn", section 4.2) ask a trained model about augmented views of each test image, by
the family and in the number that it was trained with, and take the majority. Nothing here is private or secret: a model
that has been released is asked again.

Axes: B records, K views of each, C classes; images are CHW.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lehr import validate
from lehr.data.augmentation import Augmentation


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """Who votes about a record: so many views of it, made by an augmentation."""

    augmentation: Augmentation
    votes: int

    def __post_init__(self) -> None:
        validate.count(votes=self.votes)

    @property
    def is_unanimous(self) -> bool:
        """Whether all views are the record itself, so that asking once is enough."""
        return not self.augmentation.operations

    def views(self, images_BCHW: Tensor) -> Tensor:  # noqa: N803
        """The views of each image, ``views_BKCHW``. The images are floating point numbers in [0, 1].

        What is drawn for an image follows from its own values. So an image has the same views in every call, wherever
        it stands and whatever the others are.
        """
        views_BKCHW = [  # noqa: N806
            self.augmentation(image[None], views=self.votes, generator=_generator_of(image)) for image in images_BCHW
        ]
        return torch.cat(views_BKCHW) if views_BKCHW else images_BCHW.new_empty(0, self.votes, *images_BCHW.shape[1:])


class Tally(NamedTuple):
    """The class of each record, ``classes_B``, and a score for every class whose softmax is its mean probability."""

    classes: Tensor
    scores: Tensor


def tally(scores_BKC: Tensor) -> Tally:  # noqa: N803
    """The class that most views have as their largest score; of several, the one of the largest mean probability.

    >>> tally(torch.tensor([[[9.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])).classes  # two against one, however sure that one is
    tensor([1])
    >>> tally(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]])).classes
    tensor([0])
    """
    num_votes, num_classes = scores_BKC.shape[1:]
    if num_votes == 1:
        return Tally(scores_BKC[:, 0].argmax(dim=1), scores_BKC[:, 0])
    mean_BC = scores_BKC.log_softmax(dim=2).logsumexp(dim=1) - math.log(num_votes)  # noqa: N806
    count_BC = functional.one_hot(scores_BKC.argmax(dim=2), num_classes).sum(dim=1)  # noqa: N806
    has_fewer_BC = count_BC < count_BC.amax(dim=1, keepdim=True)  # noqa: N806
    return Tally(mean_BC.masked_fill(has_fewer_BC, -math.inf).argmax(dim=1), mean_BC)


def _generator_of(image: Tensor) -> torch.Generator:
    """Seeded by the first eight bytes of the BLAKE2b hash of the image, its values as whole 255ths of four bytes each.

    Rounded, because an image that was divided by 255 elsewhere is still the same image.
    """
    values = (image.double() * 255).round().to(torch.int32).contiguous()
    digest = hashlib.blake2b(values.numpy().tobytes(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little"))
