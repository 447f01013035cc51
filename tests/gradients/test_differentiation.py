"""Layers, taps and plans, and the gradients of one run in every execution mode."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lehr.gradients.differentiation import (
    Batch,
    Differentiation,
    ExecutionMode,
    Layers,
    SiteId,
    Tape,
    UnplannedSite,
)
from lehr.gradients.precision import margin
from lehr.interfaces import layer_rules
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.oracle import assert_agrees, batch
from tests.gradients.small_models import CASES, NUM_CLASSES, Case, Gain, assert_same_gradients, loss_fn, untouched

MODES = [ExecutionMode(), ExecutionMode(is_channels_last=False), ExecutionMode(is_record_by_record=True)]


def differentiation(model: nn.Module, views: int = 1, dtype: torch.dtype | None = None) -> Differentiation:
    return Differentiation(Layers(model), loss_fn, views=views, dtype=dtype)


def batch_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Batch:
    values = {name: value.detach() for name, value in model.named_parameters()}
    return Batch(values, dict(model.named_buffers()), inputs, targets)


def assert_right(case: Case, mode: ExecutionMode, *, views: int = 1) -> None:
    """The gradients in this mode are those of a loop."""
    model, given = case.model(), case.batch(3, views=views)
    way, own = differentiation(model, views), batch_of(model, *given)
    found = way.gradients(way.plan(mode, own), own, torch.ones(3, dtype=torch.bool))
    assert_same_gradients(found, OneByOneEngine(model, loss_fn, views=views).gradients(*given), records=3)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [name for name in CASES if name != "without rule"])
def test_together_or_alone_the_gradients_are_those_of_a_loop(name: str, mode: ExecutionMode, views: int) -> None:
    assert_right(CASES[name], mode, views=views)


@pytest.mark.parametrize("name", CASES)
def test_with_a_copy_of_everything_for_every_record_no_rule_is_needed(name: str) -> None:
    copied = tuple(parameter for parameter, _ in CASES[name].model().named_parameters())
    assert_right(CASES[name], ExecutionMode(copied, is_record_by_record=True))


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_has_shapes_and_the_layout_of_its_mode_and_no_values(mode: ExecutionMode) -> None:
    """The model is given the layout that was tried: a view of rows fails on another one."""
    model = CASES["images"].model()
    inputs, targets = CASES["images"].batch(3)
    way = differentiation(model)
    plan = way.plan(mode, batch_of(model, inputs, targets))
    of_nothing = torch.full_like(inputs, torch.nan), torch.zeros_like(targets)
    assert plan == way.plan(mode, batch_of(model, *of_nothing))
    assert {output.shape[0] for output in plan.outputs.values()} == {1}
    assert plan.outputs["features.0|0|output"].is_channels_last is (mode is MODES[0])


class Noting(nn.Module):
    """Notes the types that it sees, draws random numbers and, where asked to, counts its runs in a buffer."""

    runs: Tensor
    seen: ClassVar[set[torch.dtype]] = set()

    def __init__(self, counts: bool = False) -> None:
        super().__init__()
        self.counts, self.layer = counts, nn.Linear(3, NUM_CLASSES)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.runs.add_(1) if self.counts else None
        self.seen.update((values.dtype, self.runs.dtype, self.layer.weight.dtype))
        outputs: Tensor = self.layer(nn.functional.dropout(values, 0.5))
        return outputs


def test_planning_leaves_buffers_and_generators_as_they_are() -> None:
    model = Noting(counts=True)
    before = torch.get_rng_state()
    differentiation(model).plan(MODES[0], batch_of(model, torch.ones(2, 3), torch.arange(2)))
    assert model.runs.item() == 0
    assert torch.equal(torch.get_rng_state(), before)


def test_in_bfloat16_the_model_runs_narrow_and_the_loss_norms_and_sums_are_wide() -> None:
    Noting.seen.clear()
    model = Noting()
    losses: list[torch.dtype] = []

    def noting_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(outputs.dtype)
        return loss_fn(outputs, targets)

    way = Differentiation(Layers(model), noting_loss, views=1, dtype=torch.bfloat16)
    given = batch_of(model, torch.randn(4, 3), torch.arange(4))
    found = way.gradients(way.plan(MODES[0], given), given, torch.ones(4, dtype=torch.bool))
    assert Noting.seen == {torch.bfloat16}
    assert set(losses) == {torch.float32}
    assert found.norms().dtype is torch.float32
    assert {value.dtype for value in found.weighted_sum(torch.ones(4)).values()} == {torch.float64}
    assert found.margin == margin(torch.bfloat16)


@pytest.mark.parametrize("name", CASES)
def test_the_tapped_copy_takes_no_memory_of_its_own_and_the_model_is_not_touched(name: str) -> None:
    model = CASES[name].model()
    model.register_buffer("factor", torch.ones(3))
    before = untouched(model)
    layers = Layers(model)
    assert untouched(model) == before
    own, given = (dict([*each.named_parameters(), *each.named_buffers()]) for each in (layers.model, model))
    assert list(own) == list(given)
    assert all(own[key].data_ptr() == given[key].data_ptr() for key in given)
    assert not any(own[key] is given[key] for key in given)


def test_a_shared_parameter_has_one_name_and_one_without_a_rule_is_known() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), Gain(4), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    layers = Layers(model)
    assert layers.names == ("0.weight", "1.gain")
    assert layers.without_rule() == {"1.gain"}


class Doubled(nn.Module):
    factor: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.factor


def test_a_weight_that_is_computed_with_a_buffer() -> None:
    layer = parametrize.register_parametrization(nn.Linear(3, 6), "weight", Doubled())
    assert_agrees(nn.Sequential(layer, nn.Tanh(), nn.Linear(6, 5)).double(), *batch(4, 3))


def test_a_tape_forgets_a_run_that_broke_off_and_refuses_what_was_not_planned() -> None:
    tape = Tape()
    forward: Any = tape.tapped_forward("layer", nn.Linear(3, 2), layer_rules()[nn.Linear])
    key = SiteId("layer", 0, "output").key
    tape.start(None)
    forward(torch.ones(1, 3))
    tape.start(None)
    forward(input=torch.zeros(1, 3))
    inputs, _ = tape.stop()
    assert {site: value.tolist() for site, value in inputs.items()} == {key: [[0, 0, 0]]}
    for taps, rows in (({}, 4), ({key: torch.zeros(4, 2)}, 1), ({key: torch.zeros(4, 2)}, 3)):
        tape.start(taps)
        with pytest.raises(UnplannedSite):
            forward(torch.randn(rows, 3))
    tape.start({key: torch.zeros(4, 2)}, {key})
    assert forward(torch.randn(1, 3)).shape == (4, 2)  # shared by all records
