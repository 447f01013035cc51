from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.differentiation import Differentiation, first_device
from lehr.gradients.layers import Layers
from lehr.gradients.one_by_one import OneByOneEngine
from lehr.gradients.precision import margin
from lehr.gradients.reading import Manner
from tests.gradients.small_models import CASES, NUM_CLASSES, Case, assert_same_gradients, loss_fn

TOGETHER, AS_THEY_COME, ALONE = Manner(), Manner(is_channels_last=False), Manner(is_record_by_record=True)


def differentiated(case: Case, manner: Manner, *, records: int = 3, views: int = 1) -> tuple[ContributedGradients, Any]:
    """The gradients in this manner, and those of a loop."""
    model = case.model()
    batch = case.batch(records, views=views)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=views, dtype=None)
    reading = way.reading(manner, parameters, {}, *batch)
    mask = torch.ones(records, dtype=torch.bool)
    found = way.gradients(reading, parameters, {}, *batch, mask)
    return found, OneByOneEngine(model, loss_fn, views=views).gradients(*batch)


@pytest.mark.parametrize("views", [1, 3])
@pytest.mark.parametrize("manner", [TOGETHER, AS_THEY_COME, ALONE])
@pytest.mark.parametrize("name", [name for name in CASES if name != "without rule"])
def test_together_or_alone_the_gradients_are_those_of_a_loop(name: str, manner: Manner, views: int) -> None:
    found, expected = differentiated(CASES[name], manner, views=views)
    assert_same_gradients(found, expected, records=3)


@pytest.mark.parametrize("name", CASES)
def test_with_a_copy_of_everything_for_every_record_no_rule_is_needed(name: str) -> None:
    copied = tuple(parameter for parameter, _ in CASES[name].model().named_parameters())
    found, expected = differentiated(CASES[name], Manner(copied, is_record_by_record=True))
    assert_same_gradients(found, expected, records=3)


def test_which_record_is_looked_at_first_tells_nothing_but_shapes() -> None:
    case = CASES["images"]
    model = case.model()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=1, dtype=None)
    inputs, targets = case.batch(3)
    seen = way.reading(TOGETHER, parameters, {}, inputs, targets)
    of_nothing = torch.full_like(inputs, torch.nan), torch.zeros_like(targets)
    assert seen == way.reading(TOGETHER, parameters, {}, *of_nothing)
    assert [outlet.shape[0] for outlet in seen.outlets.values()] == [1] * len(seen.outlets)


@pytest.mark.parametrize("manner", [TOGETHER, AS_THEY_COME, ALONE])
def test_images_have_their_channels_innermost_only_in_the_manner_that_says_so(manner: Manner) -> None:
    """The model is given the layout that was tried: a view of rows fails on another one."""
    case = CASES["images"]
    model = case.model()
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    way = Differentiation(Layers(model), loss_fn, views=1, dtype=None)
    seen = way.reading(manner, parameters, {}, *case.batch(3))
    assert seen.manner is manner
    assert seen.outlets["features.0|0|output"].is_channels_last is (manner is TOGETHER)


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
    way.reading(TOGETHER, parameters, dict(model.named_buffers()), torch.randn(2, 3), torch.arange(2))
    assert model.runs.item() == 0


def test_looking_at_the_first_record_draws_no_random_numbers() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, NUM_CLASSES))
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    state = torch.get_rng_state()
    Differentiation(Layers(model), loss_fn, views=1, dtype=None).reading(
        TOGETHER, parameters, {}, torch.randn(2, 3, generator=torch.Generator()), torch.arange(2)
    )
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
    batch = torch.randn(4, 3), torch.arange(4)
    buffers = dict(model.named_buffers())
    reading = way.reading(TOGETHER, parameters, buffers, *batch)
    found = way.gradients(reading, parameters, buffers, *batch, torch.ones(4, dtype=torch.bool))
    assert SeesTypes.seen == {torch.bfloat16}
    assert set(losses) == {torch.float32}
    assert found.norms().dtype is torch.float32
    assert {value.dtype for value in found.weighted_sum(torch.ones(4)).values()} == {torch.float64}
    assert found.margin == margin(torch.bfloat16)


def test_attention_of_records_that_are_run_alone_warns_of_nothing() -> None:
    """torch warns where an operation falls back to a loop under ``vmap``, and warnings are errors here."""
    found, expected = differentiated(CASES["attention"], ALONE)
    assert_same_gradients(found, expected, records=3)


def test_a_model_is_where_its_first_value_is() -> None:
    assert first_device({"weight": torch.ones(1, device="meta")}) == torch.device("meta")
