"""The candidates along one released sum: the weights after steps of several sizes, and what may be asked about them."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from lehr.acceptance.energy import PrivateChoice, PrivateEnergy
from lehr.asking import Judge, best_public
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, Tensors
from lehr.rng import StepRandomness
from lehr.trainee import Trainee, evaluating


class Candidates:
    """Moves a trainee to and fro along a released sum, until one place is taken. ``energy_now`` is a public one."""

    def __init__(
        self,
        trainee: Trainee,
        judge: Judge | None,
        released: ReleasedSum,
        *,
        divisor: float,
        step: int,
        randomness: StepRandomness,
        energy_now: float | None,
    ) -> None:
        self._trainee, self._judge, self._released = trainee, judge, released
        self._divisor, self._step, self._randomness = divisor, step, randomness
        self._before = trainee.snapshot()
        self._known: dict[float, float] = {} if energy_now is None else {0.0: energy_now}
        self._scale = 0.0
        self._is_asked = False

    def change(self, step_scale: float = 1.0) -> float:
        if isinstance(self._asked.energy, PrivateEnergy):
            self._ask_once()
            before = self._weights_at(0.0)
            with evaluating(self._trainee.model):
                return self._asked.private_change(before, self._weights_at(step_scale), self._randomness)
        now, proposed = self._public_loss(0.0), self._public_loss(step_scale)
        if not math.isfinite(proposed):
            return math.inf
        if not math.isfinite(now):
            return -math.inf
        # Two energies may be too far apart for a number; the candidate has one all the same.
        return max(-sys.float_info.max, min(proposed - now, sys.float_info.max))

    def best(self, step_scales: Sequence[float]) -> int:
        if isinstance(self._asked.energy, PrivateChoice):
            self._ask_once()
            with evaluating(self._trainee.model):
                return self._asked.private_choice(self._each(step_scales), self._randomness)
        return best_public([self._public_loss(scale) for scale in step_scales])

    def uniform(self) -> float:
        return self._randomness.uniforms("acceptance", 1).item()

    def take(self, step_scale: float, *, keeps_momentum: bool = False) -> float | None:
        """Leave the trainee at the step of this size; zero is where it was. The public energy there, if known.

        Where momentum is kept, it is that of a step of size one, although the weights are where they were.
        """
        if step_scale == 0 and keeps_momentum:
            self._move(1.0)
            self._trainee.go_back(self._before, keeps_momentum=True)
            self._scale = 0.0
        else:
            self._move(step_scale)
        return self._known.get(step_scale)

    @property
    def _asked(self) -> Judge:
        if self._judge is None:
            raise InvalidValue("acceptance", allowed="one that states the energy it asks for", given="none stated")
        return self._judge

    def _ask_once(self) -> None:
        """Noise is drawn, and paid for, once: a second answer with the same noise would tell what is under it."""
        if self._is_asked:
            raise InvalidValue("acceptance", allowed="one that asks private records once a candidate", given="twice")
        self._is_asked = True

    def _public_loss(self, step_scale: float) -> float:
        if step_scale not in self._known:
            self._move(step_scale)
            with evaluating(self._trainee.model):
                self._known[step_scale] = self._asked.public_loss()
        return self._known[step_scale]

    def _each(self, step_scales: Sequence[float]) -> Iterator[Tensors]:
        for scale in step_scales:
            yield self._weights_at(scale)

    def _weights_at(self, step_scale: float) -> Tensors:
        self._move(step_scale)
        return {name: value.detach().clone() for name, value in self._trainee.model.named_parameters()}

    def _move(self, step_scale: float) -> None:
        if step_scale == self._scale:
            return
        if self._scale != 0:
            self._trainee.go_back(self._before)
        if step_scale != 0:
            self._trainee.propose(self._released, divisor=self._divisor, step=self._step, step_scale=step_scale)
        self._scale = step_scale
