"""Candidate weights along one released sum, for several step sizes, and their losses."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence

from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, Tensors
from lehr.privacy.rng import StepRandomness
from lehr.run.distributed import ALONE, Ranks
from lehr.run.loss_oracle import LossOracle, best_public
from lehr.run.train_state import TrainState, evaluating


class LineSearch:
    """Evaluates step sizes along a released sum until one is taken.

    ``energy_now`` is the public loss at the current weights. Rank 0 computes losses for all ranks.
    """

    def __init__(
        self,
        state: TrainState,
        oracle: LossOracle | None,
        released: ReleasedSum,
        *,
        divisor: float,
        step: int,
        randomness: StepRandomness,
        energy_now: float | None,
        ranks: Ranks = ALONE,
    ) -> None:
        self._state, self._oracle, self._released = state, oracle, released
        self._divisor, self._step, self._randomness = divisor, step, randomness
        self._before = state.snapshot()
        self._ranks = ranks
        self._known: dict[float, float] = {} if energy_now is None else {0.0: energy_now}
        self._scale = 0.0
        self._is_asked = False

    def change(self, step_scale: float = 1.0) -> float:
        if isinstance(self._asked.energy, PrivateEnergy):
            self._ask_once()
            return self._ranks.from_rank_0(lambda: self._private_change(step_scale))
        now, proposed = self._public_loss(0.0), self._public_loss(step_scale)
        if not math.isfinite(proposed):
            return math.inf
        if not math.isfinite(now):
            return -math.inf
        # The difference of two finite losses may overflow.
        return max(-sys.float_info.max, min(proposed - now, sys.float_info.max))

    def best(self, step_scales: Sequence[float]) -> int:
        if isinstance(self._asked.energy, PrivateChoice):
            self._ask_once()
            return self._ranks.from_rank_0(lambda: self._private_choice(step_scales))
        return best_public([self._public_loss(scale) for scale in step_scales])

    def uniform(self) -> float:
        return self._randomness.uniforms("acceptance", 1).item()

    def take(self, step_scale: float, *, keeps_momentum: bool = False) -> float | None:
        """Move the weights by this step size; zero undoes the step. Return the public loss there, if known.

        With ``keeps_momentum`` a rejected step keeps the momentum of a step of size one.
        """
        if step_scale == 0 and keeps_momentum:
            self._move(1.0)
            self._state.go_back(self._before, keeps_momentum=True)
            self._scale = 0.0
        else:
            self._move(step_scale)
        return self._known.get(step_scale)

    @property
    def _asked(self) -> LossOracle:
        if self._oracle is None:
            raise InvalidValue("acceptance", allowed="one that states the energy it asks for", given="none stated")
        return self._oracle

    def _ask_once(self) -> None:
        """Raise an error on a second private query: its noise is charged once, and would be the same."""
        if self._is_asked:
            raise InvalidValue("acceptance", allowed="one that asks private records once a candidate", given="twice")
        self._is_asked = True

    def _public_loss(self, step_scale: float) -> float:
        if step_scale not in self._known:
            self._known[step_scale] = self._ranks.from_rank_0(lambda: self._public_loss_here(step_scale))
        return self._known[step_scale]

    def _public_loss_here(self, step_scale: float) -> float:
        self._move(step_scale)
        with evaluating(self._state.model):
            return self._asked.public_loss()

    def _private_change(self, step_scale: float) -> float:
        before = self._weights_at(0.0)
        with evaluating(self._state.model):
            return self._asked.private_change(before, self._weights_at(step_scale), self._randomness)

    def _private_choice(self, step_scales: Sequence[float]) -> int:
        with evaluating(self._state.model):
            return self._asked.private_choice(self._each(step_scales), self._randomness)

    def _each(self, step_scales: Sequence[float]) -> Iterator[Tensors]:
        for scale in step_scales:
            yield self._weights_at(scale)

    def _weights_at(self, step_scale: float) -> Tensors:
        self._move(step_scale)
        return {name: value.detach().clone() for name, value in self._state.model.named_parameters()}

    def _move(self, step_scale: float) -> None:
        if step_scale == self._scale:
            return
        if self._scale != 0:
            self._state.go_back(self._before)
        if step_scale != 0:
            self._state.propose(self._released, divisor=self._divisor, step=self._step, step_scale=step_scale)
        self._scale = step_scale
