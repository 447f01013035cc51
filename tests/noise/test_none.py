"""Without noise nothing is private, and the event says so."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.accounting.accountant import bound
from lehr.errors import InvalidValue
from lehr.events import Gaussian
from lehr.interfaces import PrivateSum
from lehr.noise import NoNoise
from lehr.rng import RunKey

PRIVATE = PrivateSum(values={"weight": torch.arange(3, dtype=torch.bfloat16)}, sensitivity=1.0)


def test_the_sum_is_released_as_it_is_in_float32_or_better() -> None:
    found = NoNoise().release(PRIVATE, noise_multiplier=1.0, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
    assert found.values["weight"].tolist() == [0, 1, 2]
    assert found.values["weight"].dtype == torch.float32


def test_every_accountant_answers_infinity() -> None:
    event = NoNoise().event()
    assert event == Gaussian(0.0)
    assert bound(event, delta=1e-5).epsilon == math.inf


@pytest.mark.parametrize("wrong", [1.0, 1e-300, -1.0, math.nan, math.inf])
def test_an_event_with_noise_that_is_not_added_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier must be 0 where there is no noise"):
        NoNoise().event(wrong)


def test_what_is_known_about_the_noise_is_that_there_is_none() -> None:
    found = NoNoise().release(PRIVATE, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
    assert (found.noise_std, found.noise_multiplier) == (0.0, 0.0)
