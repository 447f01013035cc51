"""Everything that the total amount of noise says about a plan: where it stands, what to try instead, two figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lehr.planning import constant_eta, proposals, tan
from lehr.planning.constant_eta import Curve, RatioCurve
from lehr.planning.plan import Plan
from lehr.planning.proposals import MoreData, Proposal
from lehr.planning.tan import Standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """The plan, where it stands, and settings to compare it with. The figures are empty where they were not asked."""

    plan: Plan
    standing: Standing
    other_batches: tuple[Proposal, ...]
    other_steps: tuple[Proposal, ...]
    twice_the_data: tuple[MoreData, ...]
    curves: tuple[Curve, ...] = ()
    ratio_curves: tuple[RatioCurve, ...] = ()

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "standing": self.standing.to_json(),
            "other_batches": [row.to_json() for row in self.other_batches],
            "other_steps": [row.to_json() for row in self.other_steps],
            "twice_the_data": [row.to_json() for row in self.twice_the_data],
            "constant_eta": [asdict(curve) for curve in self.curves],
            "divergence_ratio": [asdict(curve) for curve in self.ratio_curves],
        }


def outlook(plan: Plan, *, step_factors: Sequence[float] = constant_eta.STEP_FACTORS) -> Outlook:
    """The whole of it, which takes seconds, since everything is counted by the tight accountant.

    ``step_factors`` are the numbers of steps of the figures, times those of the plan; without any, no figure is made.
    """
    standing = tan.standing(plan)
    return Outlook(
        plan=plan,
        standing=standing,
        other_batches=tuple(proposals.other_batches(plan, epsilon=standing.epsilon)),
        other_steps=tuple(proposals.other_steps(plan, epsilon=standing.epsilon)),
        twice_the_data=tuple(proposals.twice_the_data(plan, epsilon=standing.epsilon)),
        curves=tuple(constant_eta.curves(plan, step_factors=step_factors)),
        ratio_curves=constant_eta.ratio_curves(plan) if step_factors else (),
    )
