"""The usual settings of a search, where none are named: those that TAN (Sander et al. 2023) varies.

What the configuration cannot vary is left out: the optimizer of a method that has its own, the batch of a plan whose
steps are not all alike, augmentations where it is not known that the records are images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from lehr.configuration import Configuration
from lehr.mechanism import Method
from lehr.planning.plan import Plan
from lehr.search.applying import takes_update, why_not_scaled
from lehr.search.dimension import Choices, Dimension, Range
from lehr.search.space import SGD, Space
from lehr.update.torch_optim import Update

FURTHEST = 10.0  # how many times smaller or larger than the configuration's own a learning rate may be
SMALLEST_ADAPTIVE, LARGEST_ADAPTIVE = 1e-4, 1e-1  # of optimizers that divide by the size of what they saw


def usual_space(configuration: Configuration, plan: Plan, *, searched_on: Mapping[str, Any]) -> Space:
    """What is varied where a file names nothing; ``plan`` is that of the configuration."""
    method, _ = replace(configuration, plan=plan).method_and_plan()
    batch = () if why_not_scaled(plan, method) else _of_the_batch(plan)
    return Space((*_of_the_update(configuration, method), *_of_the_training(searched_on), *batch))


def _of_the_batch(plan: Plan) -> tuple[Dimension, ...]:
    """Batches that there are records for, with steps that are at least one without being rounded up."""
    factors = (0.5, 1, 2) if 2 * plan.expected_batch_size <= plan.records and plan.steps >= 2**2 else (0.5, 1)
    return (Choices("batch_factor", factors),)


def _of_the_update(configuration: Configuration, method: Method) -> Iterator[Dimension]:
    if not takes_update(configuration) or not isinstance(method.update, Update):
        return
    rate = method.update.learning_rate if method.update.optimizer == SGD else 0.5
    yield Choices("optimizer", (SGD, "adam", "adamw"))
    yield Range("learning_rate", rate / FURTHEST, rate * FURTHEST, log=True)
    yield Range("adaptive_learning_rate", SMALLEST_ADAPTIVE, LARGEST_ADAPTIVE, log=True)
    yield Choices("momentum", (0.0, 0.9))
    yield Choices("dampening", (0.0, 0.9))


def _of_the_training(data: Mapping[str, Any]) -> Iterator[Dimension]:
    yield Choices("ema_decay", (0.0, 0.9, 0.99, 0.999))
    if not any(key.endswith("npz") for key in data):
        yield Choices("augmentation", ("none", "flip_crop", "rrc"))
        yield Choices("views", (1, 4))
