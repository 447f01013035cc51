"""Sampling: which records enter a step. The sampler that draws also states its event, so the two cannot disagree.

- ``poisson``: every record enters by its own coin
- ``without_replacement``: a fixed number of distinct records, with an event of its own
- ``physical``: a draw as batches of one size, masked
- ``by_name``: the samplers by the names they have in a configuration, and why shuffled epochs are not among them
"""

from __future__ import annotations

from lehr.sampling.by_name import Sampling, adjacency_of, counted_under
from lehr.sampling.physical import PhysicalBatch, physical, shuffled
from lehr.sampling.poisson import PoissonSampling
from lehr.sampling.without_replacement import WithoutReplacement

__all__ = [
    "PhysicalBatch",
    "PoissonSampling",
    "Sampling",
    "WithoutReplacement",
    "adjacency_of",
    "counted_under",
    "physical",
    "shuffled",
]
