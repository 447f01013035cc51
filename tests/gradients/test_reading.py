from __future__ import annotations

import pytest
import torch

from lehr.gradients.reading import Manner, Outlet, Reading
from lehr.gradients.tape import Place

CPU = torch.device("cpu")
PLACE = Place("layer", 0, "output")


def reading_of(output: torch.Tensor, *, is_record_by_record: bool = False) -> Reading:
    manner = Manner(is_record_by_record=is_record_by_record)
    return Reading({PLACE.key: Outlet.of(PLACE, output)}, manner)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_tap_is_zeros_in_the_shape_type_and_memory_of_the_output(memory_format: torch.memory_format) -> None:
    output = torch.randn(1, 3, 4, 5, dtype=torch.bfloat16).contiguous(memory_format=memory_format)
    [tap] = reading_of(output).taps(6, device=CPU).values()
    assert tap.shape == (6, 3, 4, 5)
    assert tap.dtype is torch.bfloat16
    assert tap.is_contiguous(memory_format=memory_format)
    assert not tap.any()


def test_what_one_record_leaves_on_several_rows_it_leaves_on_as_many_of_a_batch() -> None:
    """Views, or positions that were folded into the record axis."""
    [tap] = reading_of(torch.randn(4, 3)).taps(5, device=CPU).values()
    assert tap.shape == (20, 3)


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 4), (1, 3, 4, 5, 6)])
def test_only_images_can_have_their_channels_innermost(shape: tuple[int, ...]) -> None:
    assert not Outlet.of(PLACE, torch.randn(shape)).is_channels_last


def test_records_that_are_run_alone_have_an_axis_of_their_own() -> None:
    [tap] = reading_of(torch.randn(4, 3), is_record_by_record=True).taps(5, device=CPU).values()
    assert tap.shape == (5, 4, 3)


def test_what_passed_a_place_has_the_record_axis_first_and_its_rows_behind() -> None:
    inputs, output_grads = torch.arange(12.0).reshape(6, 2), torch.arange(18.0).reshape(6, 3)
    [site] = reading_of(torch.randn(2, 3)).sites({PLACE.key: inputs}, {PLACE.key: output_grads}, 3).values()
    assert site.inputs.shape == (3, 2, 2)
    assert site.output_grads.shape == (3, 2, 3)
    assert torch.equal(site.inputs[1], inputs[2:4])


def test_what_passed_when_records_were_run_alone_is_taken_as_it_is() -> None:
    values = {PLACE.key: torch.randn(3, 1, 2)}
    [site] = reading_of(torch.randn(1, 2), is_record_by_record=True).sites(values, values, 3).values()
    assert site.inputs is values[PLACE.key]


def test_every_record_has_a_copy_that_takes_no_memory() -> None:
    parameters = {"copied": torch.randn(2, 3), "not": torch.randn(2)}
    copies = Reading({}, Manner(copied=("copied",), is_record_by_record=True)).copies(parameters, 1000)
    assert list(copies) == ["copied"]
    assert copies["copied"].shape == (1000, 2, 3)
    assert copies["copied"].data_ptr() == parameters["copied"].data_ptr()


def test_places_are_those_of_the_outlets() -> None:
    assert reading_of(torch.randn(1, 2)).places == {PLACE.key: PLACE}
