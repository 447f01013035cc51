"""Several step sizes of one released gradient are tried on public records, and the best goes on to another acceptance.

The gradient is charged once, however many candidates are made from it: they are post-processing, and so is a loss on
public records. On private records every further step size would be one more charged question, so that is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lehr import validate
from lehr.acceptance.energy import PublicEnergy
from lehr.acceptance.proposal import Acceptance, Decision, Proposal
from lehr.errors import InvalidValue
from lehr.interfaces import ReleasedSum, SlotState


@dataclass(frozen=True)
class BestStep:
    """The step size with the least public energy, handed to another acceptance. Scales are of the learning rate."""

    inner: Acceptance
    step_scales: Sequence[float] = (0.5, 1.0, 2.0)

    def __post_init__(self) -> None:
        given: object = self.step_scales
        if not isinstance(given, list | tuple) or not given:
            raise InvalidValue("step_scales", allowed="a list of numbers above zero", given=given)
        scales = tuple(validate.positive(step_scales=scale) for scale in given)
        object.__setattr__(self, "step_scales", scales)
        if not isinstance(self.inner.energy, PublicEnergy):
            allowed = "one with a public energy: on private records each step size is a question of its own"
            raise InvalidValue("inner", allowed=allowed, given=self.inner.to_json()["kind"])

    @property
    def energy(self) -> PublicEnergy:
        return PublicEnergy()

    @property
    def most_rejections(self) -> int | None:
        return self.inner.most_rejections

    def start(self) -> SlotState:
        return self.inner.start()

    def combined(self, state: SlotState, released: ReleasedSum) -> ReleasedSum:
        return self.inner.combined(state, released)

    def decide(self, state: SlotState, proposal: Proposal, released: ReleasedSum) -> Decision:
        best = self.step_scales[proposal.best(self.step_scales)]
        decision = self.inner.decide(state, _AtScale(proposal, best), released)
        return decision._replace(step_scale=best * decision.step_scale)

    def to_json(self) -> dict[str, object]:
        return {"kind": "best step", "step_scales": list(self.step_scales), "of": self.inner.to_json()}


@dataclass(frozen=True)
class _AtScale:
    """The same candidates, with another one as the step of size one."""

    proposal: Proposal
    unit: float

    def change(self, step_scale: float = 1.0) -> float:
        return self.proposal.change(self.unit * step_scale)

    def best(self, step_scales: Sequence[float]) -> int:
        return self.proposal.best([self.unit * scale for scale in step_scales])

    def uniform(self) -> float:
        return self.proposal.uniform()
