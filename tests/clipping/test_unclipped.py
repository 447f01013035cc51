"""Without a clip a record counts in full, and no noise can be scaled to what it could do."""

from __future__ import annotations

import math

import pytest
import torch

from lehr.clipping.unclipped import Unclipped
from lehr.errors import InvalidValue
from lehr.noise.isotropic import IsotropicNoise
from lehr.rng import RunKey
from tests.clipping.chosen import as_vector, gradients

GRADIENTS = torch.tensor([[1e3, 0, 0, 2.0, 0], [1.0, 1, 1, 1, 1], [math.nan, 0, 0, 0, 0]])


def test_the_sum_is_that_of_the_gradients_as_they_are() -> None:
    found = Unclipped()(gradients(GRADIENTS))
    torch.testing.assert_close(as_vector(found.values), GRADIENTS[:2].double().sum(0))
    assert (
        as_vector(Unclipped()(gradients(GRADIENTS, mask_B=torch.tensor([False, True, True]))).values).tolist()
        == [1] * 5
    )


def test_noise_is_refused_since_one_record_can_do_anything() -> None:
    private = Unclipped()(gradients(GRADIENTS))
    assert private.sensitivity == math.inf
    with pytest.raises(InvalidValue, match="sensitivity"):
        IsotropicNoise().release(private, noise_multiplier=1.0, randomness=RunKey(bytes(32)).at(step=0, attempt=0))
