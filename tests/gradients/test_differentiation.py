"""Layers, taps and plans, and the gradients of one run in every execution mode."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize

from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.differentiation import (
    Batch,
    CapturePlan,
    Differentiation,
    ExecutionMode,
    Layers,
    SiteId,
    SiteOutput,
    Tape,
    UnplannedSite,
    sharing_copy,
)
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.precision import margin
from lehr.interfaces import LayerRule, layer_rules
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, NUM_CLASSES, Case, Gain, assert_same_gradients, loss_fn, untouched

TOGETHER, AS_THEY_COME, ALONE = (
    ExecutionMode(),
    ExecutionMode(is_channels_last=False),
    ExecutionMode(is_record_by_record=True),
)


def differentiated(
    case: Case, mode: ExecutionMode, *, records: int = 3, views: int = 1
) -> tuple[ContributedGradients, Any]:
    """The gradients in this mode, and those of a loop."""
    model = case.model()
    batch = case.batch(records, views=views)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=views, dtype=None)
    plan = way.plan(mode, Batch(parameters, {}, *batch))
    mask = torch.ones(records, dtype=torch.bool)
    found = way.gradients(plan, Batch(parameters, {}, *batch), mask)
    return found, OneByOneEngine(model, loss_fn, views=views).gradients(*batch)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("mode", [TOGETHER, AS_THEY_COME, ALONE])
@pytest.mark.parametrize("name", [name for name in CASES if name != "without rule"])
def test_together_or_alone_the_gradients_are_those_of_a_loop(name: str, mode: ExecutionMode, views: int) -> None:
    found, expected = differentiated(CASES[name], mode, views=views)
    assert_same_gradients(found, expected, records=3)


@pytest.mark.parametrize("name", CASES)
def test_with_a_copy_of_everything_for_every_record_no_rule_is_needed(name: str) -> None:
    copied = tuple(parameter for parameter, _ in CASES[name].model().named_parameters())
    found, expected = differentiated(CASES[name], ExecutionMode(copied, is_record_by_record=True))
    assert_same_gradients(found, expected, records=3)


def test_which_record_is_looked_at_first_tells_nothing_but_shapes() -> None:
    case = CASES["images"]
    model = case.model()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=1, dtype=None)
    inputs, targets = case.batch(3)
    seen = way.plan(TOGETHER, Batch(parameters, {}, inputs, targets))
    of_nothing = torch.full_like(inputs, torch.nan), torch.zeros_like(targets)
    assert seen == way.plan(TOGETHER, Batch(parameters, {}, *of_nothing))
    assert {output.shape[0] for output in seen.outputs.values()} == {1}


@pytest.mark.parametrize("mode", [TOGETHER, AS_THEY_COME, ALONE])
def test_images_have_their_channels_innermost_only_in_the_mode_that_says_so(mode: ExecutionMode) -> None:
    """The model is given the layout that was tried: a view of rows fails on another one."""
    case = CASES["images"]
    model = case.model()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=1, dtype=None)
    seen = way.plan(mode, Batch(parameters, {}, *case.batch(3)))
    assert seen.mode is mode
    assert seen.outputs["features.0|0|output"].is_channels_last is (mode is TOGETHER)


class Counts(nn.Module):
    """Writes to a buffer whenever it is run."""

    runs: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, NUM_CLASSES)
        self.register_buffer("runs", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.runs.add_(1)
        outputs: Tensor = self.layer(values)
        return outputs


def test_looking_at_the_first_record_leaves_buffers_as_they_are() -> None:
    model = Counts()
    way = Differentiation(Layers(model), loss_fn, views=1, dtype=None)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way.plan(TOGETHER, Batch(parameters, dict(model.named_buffers()), torch.randn(2, 3), torch.arange(2)))
    assert model.runs.item() == 0


def test_looking_at_the_first_record_draws_no_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, NUM_CLASSES))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    state = torch.get_rng_state()
    inputs = torch.randn(2, 3, generator=torch.Generator())
    batch = Batch(parameters, {}, inputs, torch.arange(2))
    Differentiation(Layers(model), loss_fn, views=1, dtype=None).plan(TOGETHER, batch)
    assert torch.equal(torch.get_rng_state(), state)


class SeesTypes(nn.Module):
    """Notes in which types it was run, also those of its copies."""

    mean: Tensor
    seen: ClassVar[set[torch.dtype]] = set()

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, NUM_CLASSES)
        self.register_buffer("mean", torch.ones(3))

    def forward(self, values: Tensor) -> Tensor:
        self.seen.update((values.dtype, self.mean.dtype, self.layer.weight.dtype))
        outputs: Tensor = self.layer(values - self.mean)
        return outputs


def test_in_bfloat16_the_model_runs_narrow_and_the_loss_norms_and_sums_are_wide() -> None:
    SeesTypes.seen.clear()
    model = SeesTypes()
    losses: list[torch.dtype] = []

    def noting_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        losses.append(outputs.dtype)
        return functional.cross_entropy(outputs, targets, reduction="none")

    way = Differentiation(Layers(model), noting_loss, views=1, dtype=torch.bfloat16)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    batch = Batch(parameters, dict(model.named_buffers()), torch.randn(4, 3), torch.arange(4))
    found = way.gradients(way.plan(TOGETHER, batch), batch, torch.ones(4, dtype=torch.bool))
    assert SeesTypes.seen == {torch.bfloat16}
    assert set(losses) == {torch.float32}
    assert found.norms().dtype is torch.float32
    assert {value.dtype for value in found.weighted_sum(torch.ones(4)).values()} == {torch.float64}
    assert found.margin == margin(torch.bfloat16)


def assert_right(model: nn.Module, inputs: Tensor) -> None:
    targets = torch.arange(inputs.shape[0])
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    found = GhostEngine(model, loss_fn, compiled=False).gradients(inputs, targets)
    assert_same_gradients(found, expected, records=inputs.shape[0])


@pytest.mark.parametrize("name", CASES)
def test_the_copy_that_is_listened_to_takes_no_memory_of_its_own_and_the_model_is_not_touched(name: str) -> None:
    model = CASES[name].model()
    before = untouched(model)
    layers = Layers(model)
    assert untouched(model) == before
    own, given = dict(layers.model.named_parameters()), dict(model.named_parameters())
    assert list(own) == list(given)
    assert all(own[key].data_ptr() == given[key].data_ptr() for key in given)
    assert not any(own[key] is given[key] for key in given)


def test_buffers_lie_in_the_same_memory_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Doubled())
    copied = sharing_copy(model)
    model.get_buffer("1.factor").fill_(3)
    assert copied.get_buffer("1.factor").item() == 3


def test_a_parameter_that_a_rule_and_another_layer_share_is_answered_for() -> None:
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


@pytest.mark.parametrize("is_frozen", [False, True])
def test_the_gradient_of_a_computed_weight_goes_on_to_what_it_is_computed_from(is_frozen: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5))
    parametrizations.weight_norm(model[0])
    parametrize.register_parametrization(model[2], "weight", Doubled())
    model[2].bias.requires_grad_(not is_frozen)
    assert_right(model.double(), torch.randn(4, 7, 3, dtype=torch.float64).mean(1))


def tapped(rule: LayerRule) -> tuple[Tape, Any]:
    tape = Tape()
    return tape, tape.tapped_forward("layer", nn.Linear(3, 2), rule)


def test_a_run_is_forgotten_when_it_ends_or_breaks_off_and_calls_are_counted_anew() -> None:
    tape, forward = tapped(layer_rules()[nn.Linear])
    for _ in range(2):
        tape.start(None)
        forward(torch.ones(1, 3))
        forward(input=torch.ones(1, 3))
        tape.start(None)
        forward(torch.zeros(1, 3))
        inputs, _ = tape.stop()
        assert {key: value.tolist() for key, value in inputs.items()} == {"layer|0|output": [[0, 0, 0]]}
    assert tape.stop() == ({}, {})


def test_a_call_or_a_shape_that_was_not_planned_is_an_error_and_shared_outputs_are_given_to_each() -> None:
    tape, forward = tapped(layer_rules()[nn.Linear])
    key = SiteId("layer", 0, "output").key
    for taps, rows in (({}, 4), ({key: torch.zeros(4, 2)}, 1), ({key: torch.zeros(4, 2)}, 3)):
        tape.start(taps)
        with pytest.raises(UnplannedSite):
            forward(torch.randn(rows, 3))
    tape.start({key: torch.zeros(4, 2)}, {key})
    assert forward(torch.randn(1, 3)).shape == (4, 2)


def test_a_plan_has_taps_like_the_outputs_and_copies_that_take_no_memory() -> None:
    site = SiteId("layer", 0, "output")
    output = torch.randn(2, 3, 4, 5, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    for mode, shape in ((ExecutionMode(), (6, 3, 4, 5)), (ExecutionMode(("w",), True), (3, 2, 3, 4, 5))):
        plan = CapturePlan({site.key: SiteOutput.of(site, output)}, mode)
        [tap] = plan.taps(3, device=torch.device("cpu")).values()
        assert (tap.shape, tap.dtype, bool(tap.any())) == (shape, torch.bfloat16, False)
        weight = torch.randn(2, 3)
        for copied in plan.copies({"w": weight, "other": torch.randn(2)}, 1000).values():
            assert copied.shape == (1000, 2, 3)
            assert copied.data_ptr() == weight.data_ptr()
