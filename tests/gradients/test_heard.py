from __future__ import annotations

import pytest
import torch

from lehr.errors import InvalidValue
from lehr.gradients.heard import Heard
from lehr.gradients.tape import Place

PLACE = Place("head", 0, "output")


def test_calls_of_a_layer_are_counted_from_zero() -> None:
    heard = Heard()
    assert [heard.call_of("a"), heard.call_of("b"), heard.call_of("a")] == [0, 0, 1]


def test_the_first_pass_says_how_many_images_there_are() -> None:
    heard = Heard()
    assert heard.images_of([None, torch.zeros(()), torch.zeros(3, 2)]) == 3
    heard.begin_pass(4, at_most=2)
    heard.begin_pass(5, at_most=2)
    assert heard.images_of([torch.zeros(3)]) == 4


def test_inputs_without_a_record_axis_are_refused() -> None:
    with pytest.raises(InvalidValue, match="begin with the record axis"):
        Heard().images_of([3, torch.zeros(())])


def test_one_pass_too_many_is_refused_with_a_way_out() -> None:
    heard = Heard()
    heard.begin_pass(1, at_most=1)
    with pytest.raises(InvalidValue, match=r"num_passes.*torch\.no_grad\(\).*given: 1"):
        heard.begin_pass(1, at_most=1)


def test_gradients_that_arrive_twice_are_added_up() -> None:
    heard = Heard()
    for _ in range(2):
        heard.add_output_grads("a", torch.ones(2))
        heard.add_own_grads("b", torch.ones(3))
    assert heard.output_grads["a"].tolist() == [2, 2]
    assert heard.own_grads["b"].tolist() == [2, 2, 2]


def test_a_forward_pass_after_the_backward_pass_is_refused() -> None:
    heard = Heard()
    heard.refuse_after_backward()
    heard.add_output_grads("a", torch.ones(2))
    with pytest.raises(InvalidValue, match=r"gradients\(\).*forget\(\)"):
        heard.refuse_after_backward()


def test_what_is_kept_of_an_output_has_no_memory() -> None:
    heard = Heard()
    heard.put_inputs(PLACE, torch.zeros(2, 3), torch.zeros(2, 5, requires_grad=True))
    passage = heard.passages[PLACE.key]
    assert passage.output.device.type == "meta"
    assert passage.output.shape == (2, 5)
    assert passage.flaw(2) is None


@pytest.mark.parametrize("inputs, output", [((3, 2), (2, 2)), ((2, 2), (3, 2))])
def test_another_first_axis_is_a_flaw(inputs: tuple[int, ...], output: tuple[int, ...]) -> None:
    heard = Heard()
    heard.put_inputs(PLACE, torch.zeros(inputs), torch.zeros(output))
    assert "does not begin with the 2 records" in str(heard.passages[PLACE.key].flaw(2))


def test_an_input_that_was_written_over_is_a_flaw() -> None:
    inputs = torch.zeros(2, 3)
    heard = Heard()
    heard.put_inputs(PLACE, inputs, inputs)
    inputs[:1].add_(1)
    assert "changed in place" in str(heard.passages[PLACE.key].flaw(2))
