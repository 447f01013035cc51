"""Models that are run in an unusual way: each comes out as a loop over records has it, or is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients.differentiation import ExecutionMode, Layers
from lehr.gradients.ghost import GhostEngine, ModeSearch
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, NUM_CLASSES, Model, assert_same_gradients, loss_fn

POSITIONS = 4
Run = Callable[[Any, Tensor], Any]


def model_of(run: Run) -> Any:
    """Two layers with something unusual done between or around them; of words where it looks them up."""
    torch.manual_seed(0)
    if run in (behind_the_layers_back, positions_without_records):
        tables = {"table": nn.Embedding(NUM_CLASSES, 4), "positions": nn.Embedding(POSITIONS, 4)}
        return Model(run, **tables, middle=nn.Linear(4, 4), head=nn.Linear(4, NUM_CLASSES)).double()
    return Model(run, first=nn.Linear(3, 6), last=nn.Linear(6, NUM_CLASSES), gain=nn.LayerNorm(6)).double()


def hidden(model: Any, values: Tensor) -> Tensor:
    return torch.tanh(model.first(values))


def behind_the_layers_back(model: Any, words: Tensor) -> Any:
    return functional.linear(torch.tanh(model.middle(model.table(words))), model.table.weight).mean(1)


def positions_without_records(model: Any, words: Tensor) -> Any:
    return model.head(torch.tanh(model.table(words) + model.positions(torch.arange(words.shape[1])))).mean(1)


def time_first(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values.transpose(0, 1))).mean(0)


def folded(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values.flatten(0, 1))).reshape(*values.shape[:2], -1).mean(1)


def folded_time_first(model: Any, values: Tensor) -> Any:
    outputs = model.last(hidden(model, values.transpose(0, 1).flatten(0, 1)))
    return outputs.reshape(values.shape[1], values.shape[0], -1).mean(0)


def once_again_behind_a_gain(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values) + model.gain(functional.linear(values, model.first.weight))).mean(1)


def in_training_only(model: Any, values: Tensor) -> Any:
    outputs = model.last(hidden(model, values)).mean(1)
    return outputs + model.last(model.gain(model.first(values))).mean(1) if model.training else outputs


def changed_after_it_was_read(model: Any, values: Tensor) -> Any:
    own = values.clone()
    between = hidden(model, own)
    own.zero_()
    return model.last(between).mean(1)


def centred_over_records(model: Any, values: Tensor) -> Any:
    between = hidden(model, values)
    return model.last(between - between.mean(0)).mean(1)


def centred_behind_a_gain(model: Any, values: Tensor) -> Any:
    between = hidden(model, values)
    return model.last(between + model.gain(between - between.mean(0))).mean(1)


def random_numbers(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values)).mean(1) * torch.rand(values.shape[0], 1, dtype=values.dtype)


def random_numbers_without_effect(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values)).mean(1) + 0 * torch.rand(values.shape[0], 1, dtype=values.dtype)


def positive_numbers_only(model: Any, values: Tensor) -> Any:
    if (values < 0).any():
        raise ValueError("positive numbers only")
    return model.last(hidden(model, values)).mean(1)


def large_numbers_only(model: Any, values: Tensor) -> Any:
    if (values < 10).any():
        raise ValueError("large numbers only")
    return model.last(hidden(model, values / 10)).mean(1)


def not_finite_for_small_numbers(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, (values - 10).sqrt())).mean(1)


def centred_and_not_finite(model: Any, values: Tensor) -> Any:
    between = hidden(model, (values - 10).sqrt())
    return model.last(between + between.mean(0)).mean(1)


def single_precision_only(model: Any, values: Tensor) -> Any:
    return model.last(hidden(model, values.float())).mean(1)


def batch_for(model: nn.Module, records: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(records)
    targets = torch.randint(NUM_CLASSES, (records,), generator=generator)
    if hasattr(model, "table"):
        return torch.randint(NUM_CLASSES, (records, POSITIONS), generator=generator), targets
    return torch.randn(records, POSITIONS, 3, generator=generator, dtype=torch.float64), targets


def search(model: nn.Module, inputs: Tensor, targets: Tensor, layers: Layers | None = None) -> ExecutionMode:
    return ModeSearch(model, layers or Layers(model), loss_fn, views=1).mode(inputs, targets)


def assert_right(model: nn.Module, engine: GhostEngine, *batch: Tensor) -> None:
    expected = OneByOneEngine(model, loss_fn).gradients(*batch)
    assert_same_gradients(engine.gradients(*batch), expected, records=len(batch[1]))


RIGHT: list[tuple[Run, ExecutionMode]] = [
    (behind_the_layers_back, ExecutionMode(("table.weight",), True)),
    (positions_without_records, ExecutionMode((), True)),
    (time_first, ExecutionMode((), True)),
    (folded, ExecutionMode()),
    (folded_time_first, ExecutionMode((), True)),
    (random_numbers_without_effect, ExecutionMode()),
]


@pytest.mark.parametrize("run, mode", RIGHT, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("first", [1, POSITIONS])
def test_whatever_batch_comes_first_the_gradients_are_those_of_a_loop(
    run: Run, mode: ExecutionMode, first: int
) -> None:
    """A batch as long as the sequences is the one that a wrong axis could hide in."""
    model = model_of(run)
    engine = GhostEngine(model, loss_fn, compiled=False)
    for records in (first, 3):
        assert_right(model, engine, *batch_for(model, records))
    found = search(model, *batch_for(model, 2))
    assert (found.copied, found.is_record_by_record) == (mode.copied, mode.is_record_by_record)


@pytest.mark.parametrize("name", CASES)
def test_a_usual_model_is_run_all_records_together(name: str) -> None:
    mode = search(CASES[name].model(), *CASES[name].batch(3))
    assert mode == (ExecutionMode(("layers.1.gain",), True) if name == "without rule" else ExecutionMode())


def test_a_use_behind_a_gain_that_begins_at_zero_is_found_before_the_gain_moves() -> None:
    model = model_of(once_again_behind_a_gain)
    engine = GhostEngine(model, loss_fn, compiled=False)
    for gain in (0.0, 1.0):
        nn.init.constant_(model.gain.weight, gain)
        assert_right(model, engine, *batch_for(model, 3))


def test_layers_that_are_only_used_in_training() -> None:
    model = model_of(in_training_only)
    engine = GhostEngine(model, loss_fn, compiled=False)
    for is_training in (False, True, False):
        model.train(is_training)
        assert_right(model, engine, *batch_for(model, 3))


@pytest.mark.parametrize("run", [changed_after_it_was_read, centred_over_records, centred_behind_a_gain])
@pytest.mark.parametrize("records", [1, POSITIONS])
def test_what_cannot_be_private_is_refused(run: Run, records: int) -> None:
    model = model_of(run)
    nn.init.zeros_(model.gain.weight)
    with pytest.raises(NotPrivate) as refusal:
        GhostEngine(model, loss_fn, compiled=False).gradients(*batch_for(model, records))
    assert refusal.value.layer == "the model itself (Model)"


@pytest.mark.parametrize("run", [random_numbers, large_numbers_only, not_finite_for_small_numbers])
def test_a_model_that_cannot_be_tried_is_run_record_by_record_with_a_warning(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing shows then that its records are kept apart; run alone, they cannot meet."""
    model = model_of(run)
    assert search(model, *batch_for(model, 2)) == ExecutionMode((), is_record_by_record=True)
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_a_model_is_tried_on_numbers_and_in_a_type_that_it_takes() -> None:
    for model in (model_of(positive_numbers_only), model_of(single_precision_only).float()):
        assert search(model, *batch_for(model, 2)) == ExecutionMode()


@pytest.mark.parametrize("run", [positive_numbers_only, not_finite_for_small_numbers])
def test_a_model_that_takes_only_some_numbers_comes_out_right(run: Run) -> None:
    model = model_of(run)
    inputs, targets = batch_for(model, 3)
    assert_right(model, GhostEngine(model, loss_fn, compiled=False), inputs.abs() + 11, targets)


def test_records_that_meet_where_nothing_can_be_tried_are_kept_apart() -> None:
    """A record's gradient is its own, whoever else is in the batch."""
    model = model_of(centred_and_not_finite)
    inputs, targets = batch_for(model, 3)
    engine = GhostEngine(model, loss_fn, compiled=False)
    among_others = engine.gradients(inputs.abs() + 11, targets).norms()[0]
    alone = engine.gradients(inputs[:1].abs() + 11, targets[:1]).norms()[0]
    torch.testing.assert_close(among_others, alone)


@pytest.mark.parametrize("is_viewed", [True, False])
def test_images_that_are_viewed_as_rows_are_run_together_in_their_own_layout(is_viewed: bool) -> None:
    """Such a view fails where channels are innermost, and running each record alone for it would be slow."""

    def run(model: Any, images: Tensor) -> Any:
        features = model.first(images)
        return model.last(features.view(len(images), -1) if is_viewed else features.flatten(1))

    model = Model(run, first=nn.Conv2d(3, 4, 3), last=nn.Linear(4 * 2 * 2, NUM_CLASSES))
    found = search(model, torch.randn(3, 3, 4, 4), torch.arange(3))
    assert found == ExecutionMode(is_channels_last=not is_viewed)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_a_search_leaves_no_trace_in_flags_generators_and_weights(rate: float) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(rate), nn.Linear(8, NUM_CLASSES))
    model[0].eval()
    layers = Layers(model)
    before, state = [parameter.clone() for parameter in model.parameters()], torch.get_rng_state()
    search(model, torch.randn(3, 3, generator=torch.Generator()), torch.arange(3), layers)
    for tried in (model, layers.model):
        assert [layer.training for layer in tried.modules()] == [True, False, True, True]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))


def test_no_number_of_the_batch_takes_part_in_a_search() -> None:
    model = model_of(time_first)
    inputs, targets = batch_for(model, 3)
    of_nothing = search(model, torch.full_like(inputs, torch.nan), torch.zeros_like(targets))
    assert of_nothing == search(model, inputs, targets)


def test_views_of_records_that_are_run_alone() -> None:
    model = model_of(time_first)
    inputs = torch.randn(3, 2, POSITIONS, 3, dtype=torch.float64)
    found = GhostEngine(model, loss_fn, views=2, compiled=False).gradients(inputs, torch.arange(3))
    expected = OneByOneEngine(model, loss_fn, views=2).gradients(inputs, torch.arange(3))
    assert_same_gradients(found, expected, records=3)
