"""The order in which every other loop's step is done: counted, charged, noised, and never twice."""

from __future__ import annotations

import pytest
import torch

from lehr.clipping.flat import FlatClip
from lehr.compat.one_draw import OneDraw
from lehr.errors import InvalidValue
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.contributions.materialised import Materialised
from lehr.interfaces import PrivateSum, ReleasedSum


class Loop:
    """Notes what was called, in order."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.called: list[str] = []
        self.refuses = refuses

    def pay(self) -> int:
        self.called.append("pay")
        if self.refuses:
            raise RuntimeError("the disk is full")
        return 7

    def noise(self, private: PrivateSum, paid: int) -> ReleasedSum:
        self.called.append(f"noise {paid}")
        return ReleasedSum(values=private.values)

    def release(self, draw: OneDraw, *, num_drawn: int) -> ReleasedSum:
        return draw.release(num_drawn=num_drawn, pay=self.pay, noise=self.noise)


def gradients(*rows: float, mask: list[bool] | None = None) -> ContributedGradients:
    grads = torch.tensor(rows, dtype=torch.float64).reshape(-1, 1)
    counted = torch.ones(len(rows), dtype=torch.bool) if mask is None else torch.tensor(mask)
    return ContributedGradients({"weight": Materialised(grads)}, mask_B=counted, margin=0.0)


def nobody() -> PrivateSum:
    return PrivateSum(values={"weight": torch.zeros(1)}, sensitivity=1.0)


def test_a_draw_is_paid_for_before_its_noise_is_drawn() -> None:
    loop, draw = Loop(), OneDraw(FlatClip(1.0))
    draw.add(gradients(0.5, 3.0))
    draw.add(gradients(-0.25))
    released = loop.release(draw, num_drawn=3)
    assert loop.called == ["pay", "noise 7"]
    assert float(released.values["weight"]) == pytest.approx(0.5 + 1.0 - 0.25)
    assert draw.num_parts == 2


def test_what_is_not_paid_for_is_not_released_and_can_be_paid_for_later() -> None:
    draw = OneDraw(FlatClip(1.0))
    draw.add(gradients(0.5))
    refused = Loop(refuses=True)
    with pytest.raises(RuntimeError, match="disk"):
        refused.release(draw, num_drawn=1)
    assert refused.called == ["pay"]
    assert float(Loop().release(draw, num_drawn=1).values["weight"]) == 0.5


def test_a_draw_is_released_once() -> None:
    loop, draw = Loop(), OneDraw(FlatClip(1.0), nobody=nobody)
    draw.add(gradients(0.5))
    loop.release(draw, num_drawn=1)
    with pytest.raises(InvalidValue, match="once"):
        loop.release(draw, num_drawn=1)
    assert loop.called == ["pay", "noise 7"]


@pytest.mark.parametrize("num_drawn", [0, 1, 3])
def test_another_number_of_records_is_refused_before_a_charge(num_drawn: int) -> None:
    loop, draw = Loop(), OneDraw(FlatClip(1.0))
    draw.add(gradients(0.5, 0.5))
    with pytest.raises(InvalidValue, match="exactly once"):
        loop.release(draw, num_drawn=num_drawn)
    assert loop.called == []


def test_a_mask_says_who_counts() -> None:
    draw = OneDraw(FlatClip(1.0))
    mask = [True, False, True]
    draw.add(gradients(0.5, 0.25, 0.125, mask=mask), torch.tensor(mask))
    assert draw.num_counted == 2
    assert float(Loop().release(draw, num_drawn=2).values["weight"]) == 0.625


def test_a_draw_without_a_part_is_the_sum_of_nobody_or_refused() -> None:
    loop = Loop()
    assert float(loop.release(OneDraw(FlatClip(1.0), nobody=nobody), num_drawn=0).values["weight"]) == 0
    with pytest.raises(InvalidValue, match="whole of a draw"):
        loop.release(OneDraw(FlatClip(1.0)), num_drawn=0)
    assert loop.called == ["pay", "noise 7"]
