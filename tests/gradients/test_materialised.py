from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients.materialised import MaterialisedEngine, bytes_per_record
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


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Counted(nn.Module):
    """Counts how many records it is run on at once."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.runs: list[None] = []

    def forward(self, values: Tensor) -> Tensor:
        self.runs.append(None)
        outputs: Tensor = self.layer(values)
        return outputs


@pytest.mark.parametrize("kind, settings", RECURRENT.values(), ids=RECURRENT.keys())
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_recurrent_layers_agree_with_the_oracle(
    kind: Any, settings: dict[str, Any], views: int, dtype: torch.dtype, tolerance: float
) -> None:
    model = Recurrent(kind(3, 4, **settings)).to(dtype)
    inputs = torch.randn(4, *((views,) if views > 1 else ()), 5, 3, dtype=dtype)
    targets = torch.arange(4)
    before = untouched(model)
    found = MaterialisedEngine(model, loss_fn, views=views, chunk_records=3).gradients(inputs, targets)
    expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, targets)
    assert_same_gradients(found, expected, records=4, tolerance=tolerance)
    assert untouched(model) == before


@on_a_gpu
@pytest.mark.parametrize("kind, settings", RECURRENT.values(), ids=RECURRENT.keys())
def test_recurrent_layers_on_a_gpu_agree_with_the_oracle_on_a_cpu(kind: Any, settings: dict[str, Any]) -> None:
    model = Recurrent(kind(3, 4, **settings)).double()
    inputs, targets = torch.randn(4, 5, 3).double(), torch.arange(4)
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets).norms()
    found = MaterialisedEngine(model.cuda(), loss_fn).gradients(inputs.cuda(), targets.cuda())
    assert_close(found.norms().cpu(), expected, 1e-9)


@pytest.mark.parametrize("kept_bytes", [0, 2**20])
@pytest.mark.parametrize("chunk_records", [1, 2, 5, 7, None])
@pytest.mark.parametrize("name", CASES)
def test_chunks_change_nothing(name: str, chunk_records: int | None, kept_bytes: int) -> None:
    case = CASES[name]
    model = case.model()
    inputs, targets = case.batch(5)
    engine = MaterialisedEngine(model, loss_fn, chunk_records=chunk_records, kept_bytes=kept_bytes)
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    found = engine.gradients(inputs, targets)
    assert_same_gradients(found, expected, records=5)
    clip = lambda grads: {name: grad.clamp(-0.01, 0.02) for name, grad in grads.items()}  # noqa: E731
    sums, expected_sums = found.clipped_sum(clip), expected.clipped_sum(clip)
    for parameter in sums:
        assert_close(sums[parameter], expected_sums[parameter], 1e-10)


@pytest.mark.parametrize("fits, runs", [(True, 2), (False, 4)])
def test_gradients_are_kept_where_they_fit_and_computed_again_where_they_do_not(fits: bool, runs: int) -> None:
    model = Counted(nn.Linear(3, NUM_CLASSES))
    of_batch = 4 * bytes_per_record(dict(model.named_parameters()))
    engine = MaterialisedEngine(model, loss_fn, chunk_records=2, kept_bytes=of_batch if fits else of_batch - 1)
    gradients = engine.gradients(torch.randn(4, 3), torch.arange(4))
    assert not model.runs
    gradients.weighted_sum(gradients.norms())
    gradients.norms()
    assert len(model.runs) == runs


def test_a_clip_never_sees_more_than_a_chunk() -> None:
    seen: list[int] = []

    def clip(grads: Any) -> Any:
        seen.append(len(grads["weight"]))
        return grads

    engine = MaterialisedEngine(nn.Linear(3, NUM_CLASSES), loss_fn, chunk_records=2, kept_bytes=0)
    engine.gradients(torch.randn(5, 3), torch.arange(5)).clipped_sum(clip)
    assert seen == [2, 2, 1]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("kept_bytes", [0, 2**20])
def test_dropout_drops_the_same_in_norms_and_sums(kept_bytes: int, device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 64), nn.Dropout(0.5), nn.Linear(64, NUM_CLASSES)).double().to(device)
    engine = MaterialisedEngine(model, loss_fn, chunk_records=2, kept_bytes=kept_bytes)
    gradients = engine.gradients(torch.randn(3, 3).double().to(device), torch.arange(3).to(device))
    norms = gradients.norms()
    for index in range(3):
        alone = gradients.weighted_sum(torch.eye(3).double().to(device)[index])
        norm = torch.cat([grad.flatten() for grad in alone.values()]).norm()
        assert torch.allclose(norm, norms[index], rtol=1e-12)


def test_what_is_computed_again_uses_the_parameters_of_the_first_time() -> None:
    case = CASES["sequences"]
    model = case.model()
    inputs, targets = case.batch(3)
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    gradients = MaterialisedEngine(model, loss_fn, kept_bytes=0).gradients(inputs, targets)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    assert_same_gradients(gradients, expected, records=3)


def test_a_batch_that_is_changed_between_norms_and_sums_cannot_exceed_the_norms() -> None:
    layer = nn.Linear(3, NUM_CLASSES).double()
    inputs = torch.randn(1, 3).double()
    gradients = MaterialisedEngine(layer, loss_fn, kept_bytes=0).gradients(inputs, torch.zeros(1, dtype=torch.long))
    norm = gradients.norms()
    inputs *= 100
    again = torch.cat([grad.flatten() for grad in gradients.weighted_sum(torch.ones(1)).values()]).norm()
    assert again <= norm.item() * (1 + gradients.margin)


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


def test_what_vmap_cannot_run_is_run_in_a_loop_with_the_same_draws_every_time() -> None:
    model = Branches().double()
    inputs, targets = torch.randn(6, 3).double(), torch.arange(6) % NUM_CLASSES
    torch.manual_seed(3)
    gradients = MaterialisedEngine(model, loss_fn, chunk_records=2, kept_bytes=0).gradients(inputs, targets)
    norms = gradients.norms()
    for at in range(6):
        alone = gradients.weighted_sum(functional.one_hot(torch.tensor(at), 6).float())
        assert_close(torch.cat([value.flatten() for value in alone.values()]).norm(), norms[at], 1e-5)
    torch.manual_seed(3)
    assert_same_gradients(gradients, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=6)
