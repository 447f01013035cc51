"""Correlated noise: what is added at a step is in part subtracted at later ones, so that sums of steps have less of it.

C is a lower triangular Toeplitz matrix. With z independent standard normal numbers, step t releases

    x_t + σ·s·w_t    with    w = C⁻¹·z

- ``CorrelatedNoise``: C has b bands, c_0, …, c_(b-1), whose squares add up to at most one (Choquette-Choo et al. 2023,
  "(Amplified) Banded Matrix Factorization"): w_t = (z_t - c_1·w_(t-1) - … - c_(b-1)·w_(t-b+1)) / c_0. The last b - 1
  of the w are kept in memory and never written to a file: they come from the key of the run, and can be computed again.
- ``InverseCorrelatedNoise``: C⁻¹ has b bands (Kalinin et al. 2025, "Back to Square Roots"): w_t = e_0·z_t + … +
  e_(b-1)·z_(t-b+1), each z made again at each step. No noise is kept.
- ``CyclicPoissonSampling``: each record is in one of several groups at random, and step t draws from group t modulo
  their number. A record then enters at most once in so many steps.

Coefficients are those of ``privacy.bands``, the proof is ``correlated.proof.md``. One band is independent noise.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from lehr import validate
from lehr.accounting.events import CorrelatedSteps, Gaussian, InverseCorrelatedSteps
from lehr.errors import InvalidValue
from lehr.interfaces import ComponentState, PrivateSum, ReleasedSum, Tensors, at_least_float32
from lehr.privacy.bands import (
    Floats,
    band_coefficients,
    inverse_band_coefficients,
    inverse_coefficients,
    moved_by_record,
)
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import PoissonSampling

GROUPS = "groups"  # the purpose of the numbers that put records into groups


# Noise.


@dataclass(slots=True)
class _Memory:
    """The last numbers w of one stream, newest first, and how many steps of it there were."""

    stream: Any = None
    steps: int = 0
    outputs: deque[dict[str, Tensor]] = field(default_factory=deque)


@dataclass(frozen=True)
class CorrelatedNoise(IsotropicNoise):
    """Noise of a run with bands: at step t, ``noise_multiplier * sensitivity`` times row t of C⁻¹·z.

    It is a function of the run's key, the attempt and the step. What is in memory only saves computing it again.
    """

    coefficients: tuple[float, ...]
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, *, bands: int, steps: int, num_groups: int | None = None, momentum: float = 0.0) -> Self:
        """Return the noise of a run with these bands and steps; there are at least as many groups as bands."""
        if num_groups is not None and not num_groups >= bands:
            raise InvalidValue("num_groups", allowed=f"at least {bands}, the bands", given=num_groups)
        return cls(band_coefficients(bands=bands, steps=steps, momentum=momentum))

    def __post_init__(self) -> None:
        squares = math.fsum(value**2 for value in self.coefficients)
        if not (squares <= 1 and self.coefficients[0] > 0):
            allowed = "numbers whose squares add up to at most 1, the first above zero"
            raise InvalidValue("coefficients", allowed=allowed, given=self.coefficients)

    def release(
        self,
        private: PrivateSum,
        *,
        noise_multiplier: float,
        randomness: StepRandomness,
        state: ComponentState | None = None,
        purpose: str = "noise",
    ) -> ReleasedSum:
        """Return the sum with its noise, added once for the whole draw. The noise does not depend on the values."""
        scale = validate.positive(noise_std=self.noise_std(private, noise_multiplier, state or {}))
        noise = self.correlated(randomness, private.values, purpose=purpose)
        return ReleasedSum(
            values={
                name: (value + scale * noise[name]).to(at_least_float32(value.dtype))
                for name, value in private.values.items()
            },
            noise_std=scale * self.deviation(randomness.step),
            noise_multiplier=noise_multiplier,
        )

    def correlated(self, randomness: StepRandomness, like: Tensors, *, purpose: str = "noise") -> dict[str, Tensor]:
        """Return w at a step. Earlier ones that are not in memory are computed again, from step 0 on."""
        memory = self._memory
        shapes = tuple((name, value.shape, value.device) for name, value in like.items())
        stream = (replace(randomness, step=0), purpose, shapes)
        if memory.stream != stream or memory.steps > randomness.step:
            memory.stream, memory.steps = stream, 0
            memory.outputs = deque(maxlen=max(1, len(self.coefficients) - 1))
        while memory.steps <= randomness.step:
            fresh = replace(randomness, step=memory.steps).normals(purpose, like)
            memory.outputs.appendleft(self._next(fresh, memory.outputs))
            memory.steps += 1
        return memory.outputs[0]

    def column(self, steps: int) -> Floats:
        """Return the first column of C⁻¹."""
        return inverse_coefficients(self.coefficients, steps)

    def deviation(self, step: int) -> float:
        """Return the standard deviation of w at a step."""
        return float(np.linalg.norm(self.column(step + 1)))

    def _next(self, fresh: dict[str, Tensor], outputs: deque[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return w from z of the same step and the outputs before it, newest first."""
        values = list(fresh.values())
        for coefficient, earlier in zip(self.coefficients[1:], outputs, strict=False):  # the first steps have fewer
            torch._foreach_add_(values, list(earlier.values()), alpha=-coefficient)
        torch._foreach_div_(values, self.coefficients[0])
        return dict(zip(fresh, values, strict=True))


@dataclass(frozen=True)
class InverseCorrelatedNoise(CorrelatedNoise):
    """Noise of a run where the inverse C⁻¹ has the bands, and ``coefficients``. Nothing is kept between two steps.

    A record enters at most once in ``num_groups`` steps, always as many steps apart, in a run of ``steps``.
    """

    num_groups: int = field(kw_only=True)
    steps: int = field(kw_only=True)

    @classmethod
    def of(cls, *, bands: int, steps: int, num_groups: int | None = None, momentum: float = 0.0) -> Self:
        """Return the noise of a run with these bands, steps and groups; without them, for one entry of a record."""
        groups = steps if num_groups is None else num_groups
        found = inverse_band_coefficients(bands=bands, steps=steps, num_groups=groups, momentum=momentum)
        return cls(found, num_groups=groups, steps=steps)

    def __post_init__(self) -> None:
        first, *later = self.coefficients
        is_allowed = 0 < first < math.inf and all(-math.inf < value <= 0 for value in later)
        moved = moved_by_record(self.coefficients, steps=self.steps, num_groups=self.num_groups) if is_allowed else 0.0
        if not (is_allowed and moved <= 1):
            allowed = "a first number above zero and none after it, by whose inverse a record moves at most 1"
            raise InvalidValue("coefficients", allowed=allowed, given=self.coefficients)

    def correlated(self, randomness: StepRandomness, like: Tensors, *, purpose: str = "noise") -> dict[str, Tensor]:
        """Return w at a step, from the z of this step and of those before it."""
        if not randomness.step < self.steps:
            raise InvalidValue("step", allowed=f"below {self.steps}, where the run ends", given=randomness.step)
        found = randomness.normals(purpose, like)
        values = list(found.values())
        torch._foreach_mul_(values, self.coefficients[0])
        for back, coefficient in enumerate(self.coefficients[1 : randomness.step + 1], 1):
            if coefficient:
                earlier = list(replace(randomness, step=randomness.step - back).normals(purpose, like).values())
                torch._foreach_add_(values, earlier, alpha=coefficient)
                del earlier  # so that it is not held while the next one is made
        return found

    def column(self, steps: int) -> Floats:
        """Return the first column of C⁻¹."""
        padded = np.zeros(max(steps, len(self.coefficients)))
        padded[: len(self.coefficients)] = self.coefficients
        return padded[:steps]


# Sampling.


@dataclass(frozen=True, kw_only=True)
class CyclicPoissonSampling(PoissonSampling):
    """Poisson sampling from one of ``num_groups`` groups in turn, as many as there are bands.

    The group of a record is drawn once for the run, from the run's key, independently of all other records.
    ``expected_batch_size`` is that of a step, so that the records of its group enter with ``num_groups`` times the
    probability of ordinary sampling. With ``inverse_bands``, those of the inverse, there is no rule for the number of
    groups, and the probability counts as one.
    """

    num_groups: int
    steps: int
    inverse_bands: int | None = None

    def __post_init__(self) -> None:
        PoissonSampling.__post_init__(self)
        validate.count(num_groups=self.num_groups)
        validate.count(steps=self.steps)
        if not self.num_groups * self.expected_batch_size <= self.records:
            allowed = f"at most {self.records / self.expected_batch_size:g}, the records over the batch size"
            raise InvalidValue("num_groups", allowed=allowed, given=self.num_groups)

    @cached_property
    def within_group(self) -> PoissonSampling:
        """How records are drawn from the group of a step."""
        return PoissonSampling(expected_batch_size=self.num_groups * self.expected_batch_size, records=self.records)

    def event(self, released: Gaussian) -> CorrelatedSteps | InverseCorrelatedSteps:  # type: ignore[override]
        """Return the event of all steps: they have no events of their own."""
        if self.inverse_bands is not None:
            return InverseCorrelatedSteps(self.steps, self.inverse_bands, self.num_groups, released)
        return CorrelatedSteps(
            steps=self.steps,
            bands=self.num_groups,
            sampling_probability=self.within_group.sampling_probability,
            event=released,
        )

    def groups(self, num_records: int, randomness: StepRandomness) -> Tensor:
        """Return the group of each record, the same at every step of an attempt."""
        uniforms = replace(randomness, step=0).uniforms(GROUPS, num_records)
        return (uniforms * self.num_groups).long().clamp_max_(self.num_groups - 1)

    def draw(self, num_records: int, randomness: StepRandomness, *, purpose: str = "sampling") -> Tensor:
        """Return the indices of the records of one step, in order. Steps after the last one are refused."""
        if not randomness.step < self.steps:
            raise InvalidValue("step", allowed=f"below {self.steps}, where the run ends", given=randomness.step)
        drawn = self.within_group.draw(num_records, randomness, purpose=purpose)
        return drawn[self.groups(num_records, randomness)[drawn] == randomness.step % self.num_groups]
