"""What holds for every family: shape, range, the generator alone decides, and no record moves a view of another."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from lehr.data.augmentation.cropping import PadAndCrop, RandomResizedCrop
from lehr.data.augmentation.families import FAMILIES, Augmentation, named
from lehr.errors import InvalidValue

every_family = pytest.mark.parametrize("name", FAMILIES)
every_shape = pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 10, 16), (1, 8, 8)], ids=str)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
CHANGING = [name for name in FAMILIES if name != "none"]


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded(1))


@every_family
@every_shape
def test_views_have_their_axis_and_stay_in_range(name: str, shape: tuple[int, int, int]) -> None:
    views = named(name)(images(6, *shape), views=3, generator=seeded())
    assert views.shape == (6, 3, *shape)
    assert views.dtype == torch.float32
    assert views.min() >= 0
    assert views.max() <= 1


@every_family
@pytest.mark.parametrize("device", DEVICES)
def test_the_same_generator_gives_the_same_views_bit_for_bit(name: str, device: str) -> None:
    given = images(6, 3, 16, 16).to(device)
    first, second = (named(name)(given, views=2, generator=torch.Generator(device).manual_seed(5)) for _ in range(2))
    assert first.device == given.device
    assert torch.equal(first, second)


@every_family
@pytest.mark.parametrize("device", DEVICES)
def test_a_generator_elsewhere_gives_nearly_the_same_views_on_any_device(name: str, device: str) -> None:
    given = images(6, 3, 16, 16)
    found = named(name)(given.to(device), views=2, generator=seeded())
    torch.testing.assert_close(found.cpu(), named(name)(given, views=2, generator=seeded()), rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CHANGING)
def test_another_generator_gives_other_views(name: str) -> None:
    first, second = (named(name)(images(6, 3, 16, 16), views=2, generator=seeded(seed)) for seed in (5, 6))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", CHANGING)
def test_the_views_of_a_record_differ_from_one_another(name: str) -> None:
    views = named(name)(images(6, 3, 16, 16), views=4, generator=seeded())
    assert all(not torch.equal(views[:, 0], views[:, other]) for other in (1, 2, 3))


@every_family
@pytest.mark.parametrize("channels", [1, 3])
def test_one_record_moves_no_view_of_another(name: str, channels: int) -> None:
    given = images(6, channels, 16, 16)
    before = named(name)(given, views=3, generator=seeded())
    for replacement in (torch.zeros(channels, 16, 16), torch.full((channels, 16, 16), torch.nan)):
        changed = given.clone()
        changed[2] = replacement
        after = named(name)(changed, views=3, generator=seeded())
        others = [0, 1, 3, 4, 5]
        assert torch.equal(after[others], before[others])
        assert not torch.equal(after[2], before[2])


@every_family
def test_the_images_themselves_are_left_as_they_are(name: str) -> None:
    given = images(6, 3, 16, 16)
    named(name)(given, views=1, generator=seeded())
    assert torch.equal(given, images(6, 3, 16, 16))


@every_family
def test_what_is_drawn_from_elsewhere_changes_nothing(name: str) -> None:
    before = torch.random.get_rng_state()
    named(name)(images(2, 3, 16, 16), views=2, generator=seeded())
    assert torch.equal(torch.random.get_rng_state(), before)


@every_family
def test_no_images_have_no_views(name: str) -> None:
    assert named(name)(torch.zeros(0, 3, 16, 16), views=2, generator=seeded()).shape == (0, 2, 3, 16, 16)


def test_without_augmentation_every_view_is_the_image() -> None:
    given = images(4, 3, 8, 8)
    views = named("none")(given, views=3, generator=seeded())
    assert all(torch.equal(views[:, view], given) for view in range(3))


def test_borders_have_the_pixels_of_the_papers() -> None:
    crops = [operation for name in ("flip_crop", "ours") for operation in named(name).operations[:1]]
    assert [isinstance(crop, PadAndCrop) and round(crop.padding_fraction * 32) for crop in crops] == [4, 3]
    assert [isinstance(crop, PadAndCrop) and round(crop.padding_fraction * 224) for crop in crops] == [28, 20]


@every_family
def test_the_json_form_reads_back_as_the_same_augmentation(name: str) -> None:
    assert Augmentation.from_json(json.loads(json.dumps(named(name).to_json()))) == named(name)


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {"name": "mine"},
        {"name": "", "operations": []},
        {"name": "mine", "operations": {}},
        {"name": "mine", "operations": [{"kind": "os.system"}]},
        {"name": "mine", "operations": [{"kind": "grayscale"}]},
        {"name": "mine", "operations": [{"kind": "grayscale", "probability": 2.0}]},
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        Augmentation.from_json(shape)


def test_an_operation_of_somebody_else_works_and_has_no_json_form() -> None:
    def negative(images_MCHW: Tensor, generator: torch.Generator) -> Tensor:  # noqa: N803
        return 1 - images_MCHW

    mine = Augmentation(name="mine", operations=(negative, RandomResizedCrop(area=(1.0, 1.0))))
    assert mine(images(2, 1, 4, 4), views=2, generator=seeded()).shape == (2, 2, 1, 4, 4)
    with pytest.raises(InvalidValue, match="written down"):
        mine.to_json()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidValue, match="flip_crop"):
        named("flipcrop")


@pytest.mark.parametrize(
    "given, views",
    [(torch.zeros(2, 8, 8), 1), (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 1), (torch.zeros(2, 1, 8, 8), 0)],
)
def test_what_cannot_be_augmented_is_refused(given: Tensor, views: int) -> None:
    with pytest.raises(InvalidValue):
        named("flip_crop")(given, views=views, generator=seeded())
