"""What the materialised engine does beyond what every engine does: see tests/contracts/test_engines.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients import materialised
from lehr.gradients.materialised import MaterialisedEngine
from lehr.privacy.clipping import FlatClip, PerCoordinateClip
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import (
    CASES,
    NUM_CLASSES,
    Recurrent,
    assert_close,
    assert_same_gradients,
    loss_fn,
    untouched,
)

RECURRENT = {
    f"{kind.__name__} {settings}": (kind, settings)
    for kind in (nn.RNN, nn.GRU, nn.LSTM)
    for settings in ({"batch_first": True}, {"batch_first": False}, {"num_layers": 2, "bidirectional": True})
}


@pytest.mark.parametrize("kind, settings", RECURRENT.values(), ids=RECURRENT.keys())
@pytest.mark.parametrize("views, dtype, tolerance", [(1, torch.float64, 1e-10), (2, torch.float32, 1e-4)])
def test_recurrent_layers_agree_with_a_loop(
    kind: Any, settings: dict[str, Any], views: int, dtype: torch.dtype, tolerance: float
) -> None:
    model = Recurrent(kind(3, 4, **settings)).to(dtype)
    inputs = torch.randn(4, *((views,) if views > 1 else ()), 5, 3, dtype=dtype)
    targets = torch.arange(4)
    before = untouched(model)
    found = MaterialisedEngine(model, loss_fn, views=views).gradients(inputs, targets)
    expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, targets)
    assert_same_gradients(found, expected, records=4, tolerance=tolerance)
    assert untouched(model) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind, settings", RECURRENT.values(), ids=RECURRENT.keys())
def test_recurrent_layers_on_a_gpu_agree_with_a_loop_on_a_cpu(kind: Any, settings: dict[str, Any]) -> None:
    model = Recurrent(kind(3, 4, **settings)).double()
    inputs, targets = torch.randn(4, 5, 3).double(), torch.arange(4)
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets).norms()
    found = MaterialisedEngine(model.cuda(), loss_fn).gradients(inputs.cuda(), targets.cuda())
    assert_close(found.norms().cpu(), expected, 1e-9)


@pytest.mark.parametrize("records", [1, 2, 7])
@pytest.mark.parametrize("name", CASES)
def test_a_sum_in_parts_is_the_sum_of_the_whole(name: str, records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    model = case.model()
    batch = (*case.batch(5), torch.tensor([True, True, False, True, True]))
    of_a_record = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    monkeypatch.setattr(materialised, "PART_BYTES", records * of_a_record)
    engine, whole = MaterialisedEngine(model, loss_fn), OneByOneEngine(model, loss_fn).gradients(*batch)
    assert [len(part.norms()) for part in engine.parts(*batch)] == {1: [1] * 5, 2: [2, 2, 1], 7: [5]}[records]
    bounds = {key: torch.full_like(value, 0.01) for key, value in model.named_parameters()}
    for clip in (FlatClip(0.01), PerCoordinateClip(bounds)):
        found, expected = engine.private_sum(clip, *batch), clip(whole)
        assert found.sensitivity == expected.sensitivity
        assert (found.bounds is None) == (expected.bounds is None)
        for parameter, value in expected.values.items():
            assert_close(found.values[parameter], value, 1e-10)


def test_a_layer_that_begins_to_mix_records_later_is_refused_then() -> None:
    model = nn.Sequential(nn.Linear(2, NUM_CLASSES), nn.BatchNorm1d(NUM_CLASSES)).eval()
    engine = MaterialisedEngine(model, loss_fn)
    model.train()
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        engine.gradients(torch.ones(2, 2), torch.arange(2))


class Branches(nn.Module):
    """Asks for the value of a record, which vmap cannot answer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, NUM_CLASSES), nn.Linear(3, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = (self.first if values.sum() > 0 else self.second)(functional.dropout(values, 0.5))
        return outputs


def test_what_vmap_cannot_run_is_run_in_a_loop() -> None:
    """With the random numbers that a loop of plain backward passes draws."""
    model = Branches().double()
    inputs, targets = torch.randn(6, 3).double(), torch.arange(6) % NUM_CLASSES
    torch.manual_seed(3)
    found = MaterialisedEngine(model, loss_fn).gradients(inputs, targets)
    torch.manual_seed(3)
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=6)
