"""Without noise nothing is private, and the event says so."""

from __future__ import annotations

import math

import torch

from lehr.accounting.accountant import bound
from lehr.events import NonPrivate
from lehr.interfaces import PrivateSum
from lehr.noise import NoNoise
from lehr.rng import RunKey

PRIVATE = PrivateSum(values={"weight": torch.arange(3, dtype=torch.bfloat16)}, sensitivity=1.0)


def test_the_sum_is_released_as_it_is_in_float32_or_better() -> None:
    found = NoNoise().release(PRIVATE, noise_multiplier=1.0, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
    assert found.values["weight"].tolist() == [0, 1, 2]
    assert found.values["weight"].dtype == torch.float32


def test_every_accountant_answers_infinity() -> None:
    event = NoNoise().event(1.0)
    assert isinstance(event, NonPrivate)
    assert bound(event, delta=1e-5).epsilon == math.inf
