"""What a run asks of its records, asked of every kind of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lehr.data import image_folder, streamed_folder
from lehr.data.record_set import RecordSet
from tests.data.picture_folders import write

COUNT = 12


def held(folder: Path) -> RecordSet:
    return image_folder.read(folder, channels=1).records


def streamed(folder: Path) -> RecordSet:
    return streamed_folder.read(folder, image_side=8, channels=1, workers=0)


@pytest.fixture(params=[held, streamed])
def records(request: pytest.FixtureRequest, tmp_path: Path) -> RecordSet:
    make: Callable[[Path], RecordSet] = request.param
    return make(write(tmp_path, COUNT, seed=1))


def test_some_of_the_records_are_those_at_their_places(records: RecordSet) -> None:
    places = torch.tensor([7, 2, 9])
    some = records.at(places)
    assert len(some) == 3
    for one, other in zip(some.batch(torch.arange(3)), records.batch(places), strict=True):
        assert torch.equal(one, other)
    assert list(some.contents()) == [list(records.contents())[place] for place in places]
    assert some.kind == records.kind


def test_different_images_have_different_contents(records: RecordSet) -> None:
    assert len({bytes(content) for content in records.contents()}) == COUNT


def test_nobody_has_the_shapes_and_types_of_somebody(records: RecordSet) -> None:
    nobody = records.batch(torch.zeros(0, dtype=torch.int64))
    somebody = records.batch(torch.tensor([3]))
    for none, one in zip(nobody, somebody, strict=True):
        assert (len(none), none.shape[1:], none.dtype) == (0, one.shape[1:], one.dtype)


def test_targets_alone_go_to_a_device(records: RecordSet) -> None:
    inputs, targets = records.targets_to("meta").batch(torch.tensor([0]))
    assert isinstance(inputs, torch.Tensor)
    assert (inputs.device.type, targets.device.type) == ("cpu", "meta")


def test_the_identity_has_the_role_and_the_records_in_it(records: RecordSet) -> None:
    def whole(some: RecordSet, role: str) -> bytes:
        return b"|".join(bytes(part) for part in some.identity(role))

    assert whole(records, "test") == whole(records, "test")
    others = [whole(records, "public"), whole(records.at(torch.arange(COUNT - 1)), "test")]
    assert len({whole(records, "test"), *others}) == 3
