from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.gradients import recurrent
from tests.gradients.small_models import Recurrent


def test_only_parameters_of_recurrent_layers_are_named() -> None:
    names = recurrent.parameters(Recurrent(nn.GRU(2, 3)))
    assert names == {f"layer.{kind}_{side}_l0" for kind in ("weight", "bias") for side in ("ih", "hh")}
    assert recurrent.parameters(nn.Linear(2, 3)) == frozenset()


def fused() -> tuple[bool, bool]:
    return torch._C._get_mkldnn_enabled(), torch.backends.cudnn.enabled


@pytest.mark.parametrize("wanted", [True, False])
def test_the_fused_kernels_are_off_only_inside_and_only_where_wanted(wanted: bool) -> None:
    before = fused()
    with recurrent.plain_kernels(wanted):
        inside = fused()
    assert inside == ((False, False) if wanted else before)
    assert fused() == before == (True, True)


def test_the_kernels_are_back_after_an_exception() -> None:
    with pytest.raises(RuntimeError, match="inside"), recurrent.plain_kernels():
        raise RuntimeError("inside")
    assert fused() == (True, True)
