"""Models that are read in an unusual way: each comes out as a loop over records has it, or is refused by name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lehr.errors import NotPrivate
from lehr.gradients.differentiation import Batch, ExecutionMode, Layers
from lehr.gradients.ghost import GhostEngine, ModeSearch
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, NUM_CLASSES, Model, assert_same_gradients, loss_fn

POSITIONS = 4


def two(run: Callable[..., Any]) -> Any:
    """Two layers with something unusual done between or around them."""
    return Model(run, first=nn.Linear(3, 6), last=nn.Linear(6, NUM_CLASSES), gain=nn.LayerNorm(6))


def of_words(run: Callable[..., Any]) -> Any:
    tables = {"table": nn.Embedding(NUM_CLASSES, 4), "positions": nn.Embedding(POSITIONS, 4)}
    return Model(run, **tables, middle=nn.Linear(4, 4), head=nn.Linear(4, NUM_CLASSES))


def hidden(model: Any, values: Tensor) -> Tensor:
    return torch.tanh(model.first(values))


def behind_the_layers_back(model: Any, words: Tensor) -> Tensor:
    return functional.linear(torch.tanh(model.middle(model.table(words))), model.table.weight).mean(1)


def positions_without_records(model: Any, words: Tensor) -> Tensor:
    return model.head(torch.tanh(model.table(words) + model.positions(torch.arange(words.shape[1])))).mean(1)  # type: ignore[no-any-return]


def time_first(model: Any, values: Tensor) -> Tensor:
    return model.last(hidden(model, values.transpose(0, 1))).mean(0)  # type: ignore[no-any-return]


def folded(model: Any, values: Tensor) -> Tensor:
    outputs: Tensor = model.last(hidden(model, values.flatten(0, 1)))
    return outputs.reshape(*values.shape[:2], -1).mean(1)


def folded_time_first(model: Any, values: Tensor) -> Tensor:
    outputs: Tensor = model.last(hidden(model, values.transpose(0, 1).flatten(0, 1)))
    return outputs.reshape(values.shape[1], values.shape[0], -1).mean(0)


def once_again_behind_a_gain(model: Any, values: Tensor) -> Tensor:
    again = model.gain(functional.linear(values, model.first.weight))
    return model.last(hidden(model, values) + again).mean(1)  # type: ignore[no-any-return]


def in_training_only(model: Any, values: Tensor) -> Tensor:
    outputs: Tensor = model.last(hidden(model, values)).mean(1)
    more: Tensor = model.last(model.gain(model.first(values))).mean(1)
    return outputs + more if model.training else outputs


def changed_after_it_was_read(model: Any, values: Tensor) -> Tensor:
    own = values.clone()
    between = hidden(model, own)
    own.zero_()
    return model.last(between).mean(1)  # type: ignore[no-any-return]


def centred_over_records(model: Any, values: Tensor) -> Tensor:
    between = hidden(model, values)
    return model.last(between - between.mean(0)).mean(1)  # type: ignore[no-any-return]


def centred_behind_a_gain(model: Any, values: Tensor) -> Tensor:
    between = hidden(model, values)
    return model.last(between + model.gain(between - between.mean(0))).mean(1)  # type: ignore[no-any-return]


def with_random_numbers(model: Any, values: Tensor) -> Tensor:
    outputs: Tensor = model.last(hidden(model, values)).mean(1)
    return outputs * torch.rand(values.shape[0], 1, dtype=values.dtype)


def with_random_numbers_that_do_not_matter(model: Any, values: Tensor) -> Tensor:
    outputs: Tensor = model.last(hidden(model, values)).mean(1)
    return outputs + 0 * torch.rand(values.shape[0], 1, dtype=values.dtype)


def positive_numbers_only(model: Any, values: Tensor) -> Tensor:
    if (values < 0).any():
        raise ValueError("positive numbers only")
    return model.last(hidden(model, values)).mean(1)  # type: ignore[no-any-return]


def large_numbers_only(model: Any, values: Tensor) -> Tensor:
    if (values < 10).any():
        raise ValueError("large numbers only")
    return model.last(hidden(model, values / 10)).mean(1)  # type: ignore[no-any-return]


def not_finite_for_small_numbers(model: Any, values: Tensor) -> Tensor:
    return model.last(hidden(model, (values - 10).sqrt())).mean(1)  # type: ignore[no-any-return]


def single_precision_only(model: Any, values: Tensor) -> Tensor:
    return model.last(hidden(model, values.float())).mean(1)  # type: ignore[no-any-return]


COME_OUT_RIGHT: dict[str, tuple[Callable[[], nn.Module], ExecutionMode]] = {
    "a weight behind its layer's back": (
        lambda: of_words(behind_the_layers_back),
        ExecutionMode(("table.weight",), True),
    ),
    "positions without records": (lambda: of_words(positions_without_records), ExecutionMode((), True)),
    "time first": (lambda: two(time_first), ExecutionMode((), True)),
    "records folded into positions": (lambda: two(folded), ExecutionMode((), False)),
    "positions folded into records": (lambda: two(folded_time_first), ExecutionMode((), True)),
    "random numbers": (lambda: two(with_random_numbers_that_do_not_matter), ExecutionMode((), False)),
}
REFUSED: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "changed after it was read": (changed_after_it_was_read, r"plain backward pass.*in ?place.*Instead: .*in place"),
    "centred over records": (centred_over_records, "changes with the other records.*Instead: keep the record axis"),
    "centred behind a gain": (centred_behind_a_gain, "changes with the other records.*Instead: keep the record axis"),
}


def batch_for(model: nn.Module, records: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(records)
    targets = torch.randint(NUM_CLASSES, (records,), generator=generator)
    if hasattr(model, "table"):
        return torch.randint(NUM_CLASSES, (records, POSITIONS), generator=generator), targets
    return torch.randn(records, POSITIONS, 3, generator=generator, dtype=torch.float64), targets


def searched(model: nn.Module, inputs: Tensor, targets: Tensor, layers: Layers | None = None) -> ExecutionMode:
    search = ModeSearch(model, layers or Layers(model), loss_fn, views=1)
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    return search.mode(Batch(parameters, dict(model.named_buffers()), inputs, targets))


def mode_of(model: nn.Module, records: int = 2) -> ExecutionMode:
    return searched(model, *batch_for(model, records))


def assert_right(model: nn.Module, engine: GhostEngine, records: int) -> None:
    batch = batch_for(model, records)
    expected = OneByOneEngine(model, loss_fn).gradients(*batch)
    assert_same_gradients(engine.gradients(*batch), expected, records=records)


@pytest.mark.parametrize("name", COME_OUT_RIGHT)
@pytest.mark.parametrize("first", [1, POSITIONS])
def test_whatever_batch_comes_first_the_gradients_are_those_of_a_loop(name: str, first: int) -> None:
    """A batch as long as the sequences is the one that a wrong axis could hide in."""
    torch.manual_seed(0)
    build, mode = COME_OUT_RIGHT[name]
    model = build().double()
    engine = GhostEngine(model, loss_fn, compiled=False)
    for records in (first, 3):
        assert_right(model, engine, records)
    found = mode_of(model)
    assert (found.copied, found.is_record_by_record) == (mode.copied, mode.is_record_by_record)


@pytest.mark.parametrize("name", CASES)
def test_a_usual_model_is_run_all_records_together(name: str, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[name]
    model = case.model()
    mode = searched(model, *case.batch(3))
    assert mode == (ExecutionMode(("layers.1.gain",), True) if name == "without rule" else ExecutionMode((), False))
    assert ("no layer rule for layers.1.gain" in caplog.text) is (name == "without rule")


def test_a_use_behind_a_gain_that_begins_at_zero_is_found_before_the_gain_moves() -> None:
    torch.manual_seed(0)
    model = two(once_again_behind_a_gain).double()
    nn.init.zeros_(model.gain.weight)
    engine = GhostEngine(model, loss_fn, compiled=False)
    assert_right(model, engine, 3)
    nn.init.ones_(model.gain.weight)
    assert_right(model, engine, 3)


def test_layers_that_are_only_used_in_training_are_read_when_they_are_used() -> None:
    torch.manual_seed(0)
    model = two(in_training_only).double()
    engine = GhostEngine(model, loss_fn, compiled=False)
    for is_training in (False, True, False):
        model.train(is_training)
        assert_right(model, engine, 3)


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("records", [1, POSITIONS])
def test_what_cannot_be_private_is_refused_with_a_way_out(name: str, records: int) -> None:
    torch.manual_seed(0)
    run, message = REFUSED[name]
    model = two(run).double()
    nn.init.zeros_(model.gain.weight)
    with pytest.raises(NotPrivate, match=rf"(?s)the model itself \(Model\).*{message}"):
        GhostEngine(model, loss_fn, compiled=False).gradients(*batch_for(model, records))


@pytest.mark.parametrize("run", [with_random_numbers, large_numbers_only, not_finite_for_small_numbers])
def test_a_model_that_cannot_be_tried_is_run_record_by_record_and_it_is_said(
    run: Callable[[Any, Tensor], Tensor], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing shows then that its records are kept apart; run alone, they cannot meet."""
    torch.manual_seed(0)
    assert mode_of(two(run).double()) == ExecutionMode((), is_record_by_record=True)
    [said] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "cannot be tried on synthetic records: each record is run alone, which is slower" in said


def test_a_model_that_takes_only_positive_numbers_is_tried_on_those() -> None:
    torch.manual_seed(0)
    assert mode_of(two(positive_numbers_only).double()) == ExecutionMode()


def test_a_model_that_runs_only_in_its_own_type_is_tried_in_that() -> None:
    torch.manual_seed(0)
    assert mode_of(two(single_precision_only)) == ExecutionMode()


@pytest.mark.parametrize("run", [positive_numbers_only, not_finite_for_small_numbers])
def test_a_model_that_takes_only_some_numbers_still_comes_out_right(run: Callable[[Any, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    model = two(run).double()
    inputs, targets = batch_for(model, 3)
    large = inputs.abs() + 11
    found = GhostEngine(model, loss_fn, compiled=False).gradients(large, targets)
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(large, targets), records=3)


def centred_and_not_finite_for_small_numbers(model: Any, values: Tensor) -> Tensor:
    between = hidden(model, (values - 10).sqrt())
    return model.last(between + between.mean(0)).mean(1)  # type: ignore[no-any-return]


def test_records_that_meet_where_nothing_can_be_tried_are_kept_apart() -> None:
    """A record's gradient is its own, whoever else is in the batch."""
    torch.manual_seed(0)
    model = two(centred_and_not_finite_for_small_numbers).double()
    inputs, targets = batch_for(model, 3)
    engine = GhostEngine(model, loss_fn, compiled=False)
    among_others = engine.gradients(inputs.abs() + 11, targets).norms()[0]
    alone = engine.gradients(inputs[:1].abs() + 11, targets[:1]).norms()[0]
    torch.testing.assert_close(among_others, alone)


@pytest.mark.parametrize("is_viewed", [True, False])
def test_images_that_are_viewed_as_rows_are_run_together_in_their_own_layout(is_viewed: bool) -> None:
    """Such a view fails where channels are innermost, and running each record alone for it would be slow."""
    torch.manual_seed(0)
    layers = {"first": nn.Conv2d(3, 4, 3), "last": nn.Linear(4 * 2 * 2, NUM_CLASSES)}

    def rows(x: Tensor) -> Tensor:
        return x.view(len(x), -1) if is_viewed else x.flatten(1)

    model = Model(lambda model, images: model.last(rows(model.first(images))), **layers)
    found = searched(model, torch.randn(3, 3, 4, 4), torch.arange(3))
    assert found == ExecutionMode(is_channels_last=not is_viewed)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_training_flags_of_the_copy_are_what_they_were_also_after_a_trial_in_evaluation(rate: float) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(rate), nn.Linear(8, NUM_CLASSES))
    model[0].eval()
    layers = Layers(model)
    searched(model, torch.randn(3, 3), torch.arange(3), layers)
    for tried in (model, layers.model):
        assert [layer.training for layer in tried.modules()] == [True, False, True, True]


def test_a_trial_leaves_no_trace_in_generators_and_weights() -> None:
    model = two(with_random_numbers).double()
    before, state = [parameter.clone() for parameter in model.parameters()], torch.get_rng_state()
    mode_of(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert model.training


def test_no_number_of_the_batch_has_a_part_in_what_is_found() -> None:
    model = two(time_first).double()
    inputs, targets = batch_for(model, 3)
    of_nothing = searched(model, torch.full_like(inputs, torch.nan), torch.zeros_like(targets))
    assert of_nothing == searched(model, inputs, targets)


@pytest.mark.parametrize("views", [1, 2])
def test_views_are_tried_as_views(views: int) -> None:
    torch.manual_seed(0)
    model = two(time_first).double()
    inputs = torch.randn(3, views, POSITIONS, 3, dtype=torch.float64)
    inputs = inputs if views > 1 else inputs[:, 0]
    found = GhostEngine(model, loss_fn, views=views, compiled=False).gradients(inputs, torch.arange(3))
    expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, torch.arange(3))
    assert_same_gradients(found, expected, records=3)
