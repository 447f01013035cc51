from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lehr.errors import NotPrivate
from lehr.gradients.heard import Heard
from lehr.gradients.listening import Listening, by_copies, by_rule, in_passes
from lehr.interfaces import layer_rule
from tests.gradients.small_models import Gain


def listened(layer: nn.Module) -> tuple[Listening, Heard]:
    heard = Heard()
    rule = layer_rule(layer)
    run = by_copies("it", layer, {"gain": "it.gain"}) if rule is None else by_rule("it", layer, rule)
    return Listening(layer, lambda: heard, run), heard


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), Gain(3)], ids=["by rule", "by copies"])
def test_the_outputs_are_those_of_the_layer(layer: nn.Module) -> None:
    values = torch.randn(4, 2, 3)
    forward, _ = listened(layer)
    assert torch.equal(forward(values), layer(values))


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), Gain(3)], ids=["by rule", "by copies"])
def test_a_run_without_gradients_is_not_heard(layer: nn.Module) -> None:
    forward, heard = listened(layer)
    with torch.no_grad():
        forward(torch.randn(4, 3))
    assert heard == Heard()


def test_a_layer_with_a_rule_computes_no_gradient_of_its_weights() -> None:
    layer = nn.Linear(3, 2)
    forward, heard = listened(layer)
    forward(torch.randn(4, 3)).sum().backward()
    assert layer.weight.grad is None
    assert layer.weight.requires_grad
    assert torch.equal(heard.output_grads["it|0|output"], torch.ones(4, 2))


def test_weights_can_be_trained_again_after_a_pass_that_failed() -> None:
    layer = nn.Linear(3, 2)
    forward, _ = listened(layer)
    with pytest.raises(RuntimeError):
        forward(torch.randn(4, 5))
    assert layer.weight.requires_grad


def test_a_later_layer_may_write_into_the_output() -> None:
    for shape in [(4, 3), (4, 2, 3)]:
        forward, heard = listened(nn.Linear(3, 2))
        outputs = forward(torch.randn(shape, requires_grad=True))
        kept = outputs.detach().clone()
        outputs.mul_(3).relu_().sum().backward()
        assert torch.equal(heard.output_grads["it|0|output"], 3.0 * (kept > 0))


def test_a_layer_without_a_rule_gives_every_image_its_own_gradient() -> None:
    forward, heard = listened(Gain(3))
    values = torch.randn(4, 3)
    forward(values).sum().backward()
    assert torch.equal(heard.own_grads["it.gain"], values)


def test_inputs_without_the_records_are_refused_where_there_is_no_rule() -> None:
    layer = Gain(3)
    heard = Heard(num_images=5)
    with pytest.raises(NotPrivate, match=r"it \(Gain\).*none of its inputs begins with the 5 records"):
        by_copies("it", layer, {"gain": "it.gain"})(heard, torch.randn(4, 3))


def test_a_copy_of_a_listened_layer_runs_its_own_weights_and_is_not_heard() -> None:
    layer = nn.Linear(3, 2)
    forward, heard = listened(layer)
    layer.forward = forward  # type: ignore[method-assign]
    copied = copy.deepcopy(copy.deepcopy(layer))
    nn.init.zeros_(copied.weight)
    nn.init.zeros_(copied.bias)
    assert torch.equal(copied(torch.randn(4, 3)), torch.zeros(4, 2))
    assert heard == Heard()


def test_a_pass_is_checked_and_counted_before_it_is_run() -> None:
    model = nn.Identity()
    seen: list[Any] = []

    def tried(heard: Heard, run: Any, num_images: int, inputs: Any) -> Any:
        seen.append((heard.num_passes, num_images, inputs))
        return run(heard, *inputs[0], **inputs[1])

    run = in_passes(model, None, at_most=1, tried=tried)
    heard = Heard()
    values = torch.randn(4, 3)
    assert run(heard, values) is values
    assert seen == [(1, 4, ((values,), {}))]
