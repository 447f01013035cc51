from __future__ import annotations

import torch

from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.outer import Outer
from lehr.gradients.contributions.stacked import Stacked
from tests.gradients.contributions.parts import assert_consistent, drawn


def test_blocks_stand_one_above_the_other() -> None:
    upper, lower = Outer(drawn(3, 2, 4), drawn(3, 2, 5)), Materialised(drawn(3, 1, 5))
    both = Stacked((upper, lower))
    assert both.materialised().shape == (3, 5, 5)
    torch.testing.assert_close(both.materialised()[:, :4], upper.materialised())
    assert_consistent(both)
