"""Automatic clipping: every gradient is scaled to nearly the same norm, so that no threshold has to be found.

Bu et al. (2023), "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger". Axis: B records.
"""

from __future__ import annotations

from dataclasses import dataclass

from lehr import validate
from lehr.clipping.clip_norm import LARGEST_CLIP_NORM, a_clip_norm
from lehr.clipping.fixed import FixedRule
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, RecordGradients

# Below this the squares in a float32 norm underflow, and it need not be near the true one: it counts as this much.
SMALLEST_NORM = 1e-8


@dataclass(frozen=True)
class AutomaticClip(FixedRule):
    """Every record is scaled by C / (norm + γ), AUTO-S; the stability constant γ keeps small gradients small.

    With ``stability=0`` the norms are all C (AUTO-V), except that gradients shorter than 1e-8 stay shorter. Adding or
    removing one record moves the sum by at most C; replacing one, by at most 2 C.

    >>> AutomaticClip(clip_norm=1.0).stability
    0.01
    """

    clip_norm: float
    stability: float = 0.01

    def __post_init__(self) -> None:
        a_clip_norm(clip_norm=self.clip_norm)
        if not validate.non_negative(stability=self.stability) <= LARGEST_CLIP_NORM:
            raise InvalidValue("stability", allowed=f"a number <= {LARGEST_CLIP_NORM:g}", given=self.stability)

    @property
    def sensitivity(self) -> float:
        return float(self.clip_norm)

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        norms_B = gradients.norms() * (1 + gradients.margin)  # noqa: N806
        weights_B = self.sensitivity / (norms_B.clamp_min(SMALLEST_NORM) + float(self.stability))  # noqa: N806
        return PrivateSum(values=gradients.weighted_sum(weights_B), sensitivity=self.sensitivity)
