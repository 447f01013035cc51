from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.gradients.tape import OtherPath, Place, Tape
from lehr.interfaces import LayerRule


def no_contributions(*_: Any) -> dict[str, Tensor]:
    return {}


RULE = LayerRule(contributions=no_contributions)


def listened(layer: nn.Module, rule: LayerRule = RULE) -> tuple[Tape, Callable[..., Any]]:
    tape = Tape()
    return tape, tape.listen("layer", layer, rule)


def test_the_first_run_hears_what_enters_and_leaves_each_call() -> None:
    layer = nn.Linear(3, 2)
    tape, forward = listened(layer)
    values = torch.randn(4, 3)
    tape.start(None)
    outputs = [forward(values), forward(input=2 * values)]
    inputs, heard = tape.stop()
    assert list(tape.places.values()) == [Place("layer", 0, "output"), Place("layer", 1, "output")]
    assert [value.tolist() for value in inputs.values()] == [values.tolist(), (2 * values).tolist()]
    assert [torch.equal(found, own) for found, own in zip(heard.values(), outputs, strict=True)] == [True, True]
    assert torch.equal(outputs[0], layer(values))


def test_a_tap_is_added_to_the_output_and_its_gradient_is_that_of_the_output() -> None:
    layer = nn.Linear(3, 2)
    tape, forward = listened(layer)
    values = torch.randn(4, 3)
    key = Place("layer", 0, "output").key
    taps = {key: torch.zeros(4, 2, requires_grad=True)}
    tape.start(taps)
    outputs = forward(values)
    inputs, outlets = tape.stop()
    assert torch.equal(outputs, layer(values))
    [grads] = torch.autograd.grad(outputs.square().sum(), [taps[key]])
    assert torch.equal(grads, 2 * outputs)
    assert inputs[key] is values
    assert outlets == {}


def test_a_run_is_forgotten_when_it_ends_and_calls_are_counted_anew() -> None:
    tape, forward = listened(nn.Linear(3, 2))
    for _ in range(2):
        tape.start(None)
        forward(torch.ones(1, 3))
        assert list(tape.stop()[0]) == ["layer|0|output"]
    assert tape.stop() == ({}, {})


def test_a_run_that_broke_off_leaves_nothing_to_the_next() -> None:
    tape, forward = listened(nn.Linear(3, 2))
    tape.start(None)
    forward(torch.ones(1, 3))
    forward(torch.ones(1, 3))
    tape.start(None)
    forward(torch.zeros(1, 3))
    inputs, _ = tape.stop()
    assert {key: value.tolist() for key, value in inputs.items()} == {"layer|0|output": [[0, 0, 0]]}


def both_sides(layer: nn.Bilinear, tap: Callable[..., Tensor], left: Tensor, right: Tensor) -> Tensor:
    """A layer that is run with two places."""
    first = tap("left", left, left @ layer.weight[0])
    return first + tap("right", right, right @ layer.weight[1])


def test_a_layer_with_several_places_reports_each() -> None:
    layer = nn.Bilinear(3, 3, 2)
    tape, forward = listened(layer, LayerRule(contributions=no_contributions, forward=both_sides))
    left, right = torch.randn(2, 4, 3)
    tape.start(None)
    found = forward(left, right)
    inputs, outputs = tape.stop()
    assert [place.site for place in tape.places.values()] == ["left", "right"]
    assert [value is given for value, given in zip(inputs.values(), (left, right), strict=True)] == [True, True]
    assert torch.equal(found, outputs["layer|0|left"] + outputs["layer|0|right"])


def test_a_call_or_a_shape_that_was_not_planned_is_an_error_of_its_own() -> None:
    tape, forward = listened(nn.Linear(3, 2))
    key = Place("layer", 0, "output").key
    for taps, rows in (({}, 4), ({key: torch.zeros(4, 2)}, 1), ({key: torch.zeros(4, 2)}, 3)):
        tape.start(taps)
        with pytest.raises(OtherPath):
            forward(torch.randn(rows, 3))


def test_what_all_records_share_is_given_to_each() -> None:
    tape, forward = listened(nn.Linear(3, 2))
    key = Place("layer", 0, "output").key
    tape.start({key: torch.zeros(4, 2)}, {key})
    assert forward(torch.randn(1, 3)).shape == (4, 2)
