"""The clipped sum over one draw, part by part, and its one release: charged, then noised, then handed out.

    draw = OneDraw(rule)
    draw.add(engine.gradients())                      # for every physical batch
    released = draw.release(num_drawn=…, pay=…, noise=…)

Every loop that is somebody else's goes through here, whatever it plans and however it pays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from lehr.errors import InvalidValue
from lehr.gradients.contributed import ContributedGradients
from lehr.interfaces import ClipRule, PrivateSum, ReleasedSum
from lehr.mechanism import added_to

_Paid = TypeVar("_Paid")


class OneDraw:
    """All parts are clipped by one rule, so that the sum has one sensitivity. ``nobody`` is the sum without a part."""

    def __init__(self, rule: ClipRule, *, nobody: Callable[[], PrivateSum] | None = None) -> None:
        self.rule, self._nobody = rule, nobody
        self._sum: PrivateSum | None = None
        self._is_over = False
        self.num_parts = self.num_counted = 0

    def add(self, gradients: ContributedGradients, mask_B: Tensor | None = None) -> None:  # noqa: N803
        """Clip and add up one physical batch; where a mask was given, it says who counts."""
        self._sum = added_to(self._sum, self.rule(gradients))
        self.num_counted += len(gradients.norms()) if mask_B is None else int(mask_B.sum())
        self.num_parts += 1

    def release(
        self,
        *,
        num_drawn: int,
        pay: Callable[[], _Paid],
        noise: Callable[[PrivateSum, _Paid], ReleasedSum],
    ) -> ReleasedSum:
        """The noisy sum, once. When ``pay`` returns the step is paid for, and ``noise`` is called with what it said."""
        private = self._nobody() if self._sum is None and self._nobody is not None else self._sum
        if self._is_over or private is None:
            raise InvalidValue("loop", allowed="one that releases the whole of a draw, once", given="nothing of one")
        if self.num_counted != num_drawn:
            allowed = "one that runs each record that was drawn exactly once"
            raise InvalidValue("loop", allowed=allowed, given="another number of records")
        paid = pay()
        self._is_over, self._sum = True, None
        return noise(private, paid)
