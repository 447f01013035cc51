"""``UniformWithReplacementSampler``: the name that Opacus has for Poisson sampling, which is without replacement."""

from __future__ import annotations

from lehr import validate
from lehr.compat.opacus.drawn_loader import DrawnBatches
from lehr.compat.opacus.draws import Draws
from lehr.errors import InvalidValue
from lehr.sampling import PoissonSampling


class UniformWithReplacementSampler(DrawnBatches):
    """Batches of places: each of ``num_samples`` is in a batch with probability ``sample_rate``, by its own coin.

    >>> len(UniformWithReplacementSampler(num_samples=100, sample_rate=0.1))
    10
    """

    def __init__(
        self, *, num_samples: int, sample_rate: float, generator: None = None, steps: int | None = None
    ) -> None:
        if generator is not None:
            raise InvalidValue("generator", allowed="none: draws are keyed by a secret of their own", given=generator)
        rate = validate.probability(sample_rate=sample_rate)
        super().__init__(
            Draws(),
            sampling=PoissonSampling(expected_batch_size=min(rate * num_samples, num_samples), records=num_samples),
            num_held=num_samples,
            steps=int(1 / rate) if steps is None else steps,
        )
        self.sample_rate = rate
