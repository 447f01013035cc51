"""Settings that are neither the plan's nor the method's."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from lehr.clipping.flat import FlatClip
from lehr.data import Preparation
from lehr.data.augmentation import named
from lehr.errors import InvalidValue
from lehr.planning.plan import Plan
from lehr.training import engines
from lehr.training.how import How
from lehr.update.averaging import ExponentialAverage

SHORT = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=5, delta=1e-3)
LONG = Plan(noise_multiplier=1.0, expected_batch_size=2048, records=60_000, steps=1000, delta=1e-5)


def how(**changed: Any) -> How:
    said: dict[str, Any] = {
        "loss_fn": partial(cross_entropy, reduction="none"),
        "augmentation": named("flip_crop"),
        "views": 2,
        "averaging": ExponentialAverage(decay=0.9),
        "precision": "as_model",
        "patience": None,
        "device": torch.device("cpu"),
        "physical_batch": None,
        "compiled": None,
        "checkpoint_seconds": 10.0,
        "diagnostics": False,
        "cryptographic_on_gpu": False,
    }
    return How(**{**said, **changed})


@pytest.mark.parametrize(
    "said",
    [
        {"views": 0},
        {"views": True},
        {"precision": "float64"},
        {"patience": 0},
        {"physical_batch": -1},
        {"checkpoint_seconds": math.nan},
        {"checkpoint_seconds": -1.0},
    ],
    ids=str,
)
def test_a_value_that_is_not_allowed_is_refused_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        how(**said)
    assert [caught.value.name] == list(said)


def test_only_a_long_run_is_compiled_unless_it_is_said() -> None:
    assert not how().is_compiled_for(SHORT, FlatClip(0.5))
    assert how().is_compiled_for(LONG, FlatClip(0.5))
    assert how(compiled=True).is_compiled_for(SHORT, FlatClip(0.5))
    assert not how(compiled=False).is_compiled_for(LONG, FlatClip(0.5))


def test_the_physical_batch_is_the_one_that_is_said_or_the_one_of_least_work() -> None:
    assert how(physical_batch=7).physical_batch_for(LONG) == 7
    assert how().physical_batch_for(LONG) == engines.physical_batch_for(LONG, torch.device("cpu"))


def test_what_is_written_down_is_all_that_changes_what_is_learnt() -> None:
    assert how(patience=3).to_json() == {
        "augmentation": named("flip_crop").to_json(),
        "views": 2,
        "averaging": {"kind": "exponential", "decay": 0.9},
        "precision": "as_model",
        "patience": 3,
        "cryptographic_on_gpu": False,
    }
    assert how(physical_batch=3, compiled=True, diagnostics=True).to_json() == how().to_json()


def test_a_look_has_the_same_augmentation_and_views() -> None:
    look = how().look(Preparation(mean=(0.5,), std=(0.5,)))
    assert (look.augmentation, look.views) == (named("flip_crop"), 2)
    assert look.preparation.mean == (0.5,)
