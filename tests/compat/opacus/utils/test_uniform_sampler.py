from __future__ import annotations

import pytest
import torch

from lehr.compat.opacus.utils.uniform_sampler import UniformWithReplacementSampler
from lehr.errors import InvalidValue


def test_no_place_is_drawn_twice_in_a_batch_and_sizes_vary() -> None:
    sampler = UniformWithReplacementSampler(num_samples=200, sample_rate=0.1, steps=50)
    batches = list(sampler)
    assert all(len(set(batch)) == len(batch) for batch in batches)
    sizes = torch.tensor([float(len(batch)) for batch in batches])
    assert 17 < float(sizes.mean()) < 23
    assert float(sizes.std()) > 2


def test_a_pass_has_as_many_batches_as_opacuss() -> None:
    assert len(UniformWithReplacementSampler(num_samples=10, sample_rate=0.3)) == 3


def test_a_generator_is_refused() -> None:
    with pytest.raises(InvalidValue, match="generator"):
        UniformWithReplacementSampler(num_samples=10, sample_rate=0.3, generator=torch.Generator())  # type: ignore[arg-type]
