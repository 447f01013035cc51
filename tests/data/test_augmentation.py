"""Augmentation: operations against loops over pixels, independence of records, votes over views."""

from __future__ import annotations

import colorsys
import itertools
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lehr.data.augmentation import (
    FAMILIES,
    Augmentation,
    AugmentedPrediction,
    ColourJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    PadAndCrop,
    RandomResizedCrop,
    augmentation_by_name,
    draw_indices,
    draw_uniforms,
    majority_vote,
)
from lehr.errors import InvalidValue

every_family = pytest.mark.parametrize("name", FAMILIES)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def seeded(seed: int = 5, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded(1), dtype=torch.float64).float()


@every_family
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 10, 16), (1, 8, 8)], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_views_are_in_range_and_repeatable(name: str, shape: tuple[int, int, int], device: str) -> None:
    given, state = images(6, *shape).to(device), torch.random.get_rng_state()
    family = augmentation_by_name(name)
    first, second = (family(given, views=3, generator=seeded(device=device)) for _ in range(2))
    assert first.shape == (6, 3, *shape)
    assert (first.dtype, first.device) == (torch.float32, given.device)
    assert 0 <= first.min() <= first.max() <= 1
    assert torch.equal(first, second)
    assert torch.equal(given.cpu(), images(6, *shape))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert family(given[:0], views=2, generator=seeded(device=device)).shape == (0, 2, *shape)


@every_family
@pytest.mark.parametrize("channels", [1, 3])
def test_one_record_moves_no_view_of_another(name: str, channels: int) -> None:
    given = images(6, channels, 16, 16)
    before = augmentation_by_name(name)(given, views=3, generator=seeded())
    for value in (0.0, torch.nan):
        changed = given.clone()
        changed[2] = value
        after = augmentation_by_name(name)(changed, views=3, generator=seeded())
        others = [0, 1, 3, 4, 5]
        assert torch.equal(after[others], before[others])
        assert not torch.equal(after[2], before[2])


def test_without_augmentation_every_view_is_the_image() -> None:
    given = images(4, 3, 8, 8)
    views = augmentation_by_name("none")(given, views=3, generator=seeded())
    assert all(torch.equal(views[:, view], given) for view in range(3))


def test_padding_has_the_pixels_of_the_papers() -> None:
    crops = [augmentation_by_name(name).operations[0] for name in ("flip_crop", "ours")]
    assert [[round(crop.padding_fraction * side) for side in (32, 224)] for crop in crops] == [[4, 28], [3, 20]]  # type: ignore[attr-defined]


@every_family
def test_the_json_form_reads_back(name: str) -> None:
    family = augmentation_by_name(name)
    assert Augmentation.from_json(json.loads(json.dumps(family.to_json()))) == family


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {"name": "mine"},
        {"name": "", "operations": []},
        {"name": "mine", "operations": {}},
        {"name": "mine", "operations": [{"kind": "os.system"}]},
        {"name": "mine", "operations": [{"kind": "Grayscale"}]},
        {"name": "mine", "operations": [{"kind": "Grayscale", "probability": 2.0}]},
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        Augmentation.from_json(shape)


def test_a_users_operation_works_and_has_no_json_form() -> None:
    def negative(images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        return 1 - images_MCHW

    mine = Augmentation(name="mine", operations=(negative, RandomResizedCrop(area=(1.0, 1.0))))
    assert mine(images(2, 1, 4, 4), views=2, generator=seeded()).shape == (2, 2, 1, 4, 4)
    with pytest.raises(InvalidValue, match="operation"):
        mine.to_json()


def test_unknown_families_and_images_of_other_shapes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="flip_crop"):
        augmentation_by_name("flipcrop")
    for given, views in ((images(2, 8, 8), 1), (images(2, 1, 8, 8).byte(), 1), (images(2, 1, 8, 8), 0)):
        with pytest.raises(InvalidValue):
            augmentation_by_name("flip_crop")(given, views=views, generator=seeded())


def mirrored(index: int, length: int) -> int:
    """The pixel that an index outside of the image mirrors."""
    inside = abs(index)
    return inside if inside < length else 2 * (length - 1) - inside


@pytest.mark.parametrize("mode", ["reflect", "zero"])
def test_a_padded_crop_equals_a_loop_over_pixels(mode: str) -> None:
    given = images(12, 2, 8, 6)
    crops = PadAndCrop(padding_fraction=0.3, mode=mode)(given, seeded())
    generator = seeded()
    tops, lefts = (draw_indices(5, like_M=given, generator=generator).tolist() for _ in range(2))  # 2 pixels of 8
    for view, row, column in itertools.product(range(12), range(8), range(6)):
        y, x = row + tops[view] - 2, column + lefts[view] - 2
        is_inside = mode == "reflect" or (0 <= y < 8 and 0 <= x < 6)
        expected = given[view, :, mirrored(y, 8), mirrored(x, 6)] * is_inside
        assert torch.equal(crops[view, :, row, column], expected)


def test_every_shift_is_equally_frequent() -> None:
    given = torch.zeros(25 * 400, 1, 8, 8)
    given[:, 0, 4, 4] = 1
    crops = PadAndCrop(padding_fraction=0.25, mode="zero")(given, seeded())
    rows, columns = crops[:, 0].nonzero()[:, 1] - 2, crops[:, 0].nonzero()[:, 2] - 2
    counts = torch.bincount(rows * 5 + columns, minlength=25)
    assert len(counts) == 25
    assert ((counts - 400.0) ** 2 / 400).sum().item() < 51.2  # one in a thousand at 24 degrees of freedom


def interpolated(image_HW: Tensor, row: float, column: float) -> float:
    """The image between its pixels, whose centres are at whole numbers, by bilinear interpolation."""
    height, width = image_HW.shape
    row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
    top, left = int(row), int(column)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = (1 - (column - left)) * image_HW[top, left] + (column - left) * image_HW[top, right]
    lower = (1 - (column - left)) * image_HW[bottom, left] + (column - left) * image_HW[bottom, right]
    return float((1 - (row - top)) * upper + (row - top) * lower)


def test_a_resized_crop_equals_a_loop_over_pixels() -> None:
    height, width = 6, 9
    given = images(8, 1, height, width).double()
    crops = RandomResizedCrop(area=(0.1, 0.8), aspect_ratio=(0.5, 2.0))(given, seeded())
    generator = seeded()
    areas, logarithms, rows, columns = (
        draw_uniforms(low, high, like_M=given, generator=generator).flatten().tolist()
        for low, high in ((0.1, 0.8), (math.log(0.5), math.log(2.0)), (-1.0, 1.0), (-1.0, 1.0))
    )
    for view, row, column in itertools.product(range(8), range(height), range(width)):
        ratio = math.exp(logarithms[view])
        tall = min(height, math.sqrt(areas[view] * height * width / ratio))
        wide = min(width, math.sqrt(areas[view] * height * width * ratio))
        y = (height - tall) * (rows[view] + 1) / 2 + (row + 0.5) * tall / height - 0.5
        x = (width - wide) * (columns[view] + 1) / 2 + (column + 0.5) * wide / width - 0.5
        assert crops[view, 0, row, column].item() == pytest.approx(interpolated(given[view, 0], y, x), abs=1e-9)


def test_areas_and_ratios_are_drawn_from_their_ranges() -> None:
    # On a ramp, what a crop leaves of the slope is what it takes of the side.
    ramp = torch.linspace(0, 1, 33)
    given = torch.stack([ramp[:, None].expand(33, 33), ramp[None, :].expand(33, 33)])[None].expand(4000, -1, -1, -1)
    crops = RandomResizedCrop(area=(0.1, 0.3), aspect_ratio=(0.5, 2.0))(given.double(), seeded())
    tall = (crops[:, 0, 20, 16] - crops[:, 0, 12, 16]) * 32 / 33 / (8 / 33)
    wide = (crops[:, 1, 16, 20] - crops[:, 1, 16, 12]) * 32 / 33 / (8 / 33)
    areas, ratios = tall * wide, (wide / tall).log2()
    assert 0.1 - 1e-6 < areas.min() < areas.max() < 0.3 + 1e-6
    assert areas.mean().item() == pytest.approx(0.2, abs=5 * 0.2 / math.sqrt(12 * 4000))
    assert ratios.abs().max() < 1 + 1e-6
    assert ratios.mean().item() == pytest.approx(0.0, abs=5 * 2 / math.sqrt(12 * 4000))


def colours(channels: int = 3, count: int = 6) -> Tensor:
    return torch.rand(count, channels, 4, 4, generator=seeded(1), dtype=torch.float64)


def jitter(given: Tensor, **strengths: float) -> Tensor:
    none = {"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0}
    return ColourJitter(**none | strengths, probability=1.0)(given, seeded())


def drawn(given: Tensor, name: str, low: float, high: float) -> Tensor:
    """What is drawn for one of the four strengths, in their order."""
    generator = seeded()
    for each in ("brightness", "contrast", "saturation", "hue"):
        values = draw_uniforms(low, high, like_M=given, generator=generator)
        if each == name:
            break
    return values


def grey(given: Tensor) -> Tensor:
    return torch.tensor([0.299, 0.587, 0.114], dtype=given.dtype).view(1, 3, 1, 1).mul(given).sum(1, keepdim=True)


def test_brightness_contrast_and_saturation_scale_from_black_the_mean_and_grey() -> None:
    given = colours()
    mean = grey(given).mean(dim=(2, 3), keepdim=True)
    for name, base in (("brightness", torch.zeros(())), ("contrast", mean), ("saturation", grey(given))):
        factor = drawn(given, name, 0.2, 1.8)
        torch.testing.assert_close(jitter(given, **{name: 0.8}), (base + factor * (given - base)).clamp(0, 1))


def test_hue_is_rotated_as_by_the_standard_library() -> None:
    given = colours()
    rotated = jitter(given, hue=0.5)
    turns = drawn(given, "hue", -0.5, 0.5).flatten().tolist()
    for view, row, column in itertools.product(range(6), range(4), range(4)):
        hue, saturation, value = colorsys.rgb_to_hsv(*given[view, :, row, column].tolist())
        expected = colorsys.hsv_to_rgb((hue + turns[view]) % 1, saturation, value)
        assert rotated[view, :, row, column].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_without_three_channels_have_no_colour(channels: int) -> None:
    given = colours(channels)
    jittered = ColourJitter(probability=1.0)(given, seeded())
    assert torch.equal(jittered, ColourJitter(probability=1.0, saturation=0.0, hue=0.0)(given, seeded()))
    assert not torch.equal(jittered, given)
    assert torch.equal(Grayscale(probability=1.0)(given, seeded()), given)


def test_grayscale_has_the_luminance_in_every_channel() -> None:
    given = colours()
    torch.testing.assert_close(Grayscale(probability=1.0)(given, seeded()), grey(given).expand_as(given))


@pytest.mark.parametrize(
    "operation, probability", [(ColourJitter(probability=0.3), 0.3), (Grayscale(), 0.2), (HorizontalFlip(), 0.5)]
)
def test_views_are_changed_with_the_stated_probability_independently(operation: Any, probability: float) -> None:
    given = colours(count=8000)
    is_changed = (operation(given, seeded()) != given).flatten(1).any(1).double()
    assert abs(is_changed.mean().item() - probability) < 5 * math.sqrt(0.25 / 8000)
    both = (is_changed[:-1] * is_changed[1:]).mean().item()
    assert abs(both - probability**2) < 5 * math.sqrt(0.25 / 8000)


def test_a_blurred_image_equals_a_loop_over_pixels() -> None:
    height, width = 7, 5
    given = torch.rand(3, 1, height, width, dtype=torch.float64, generator=seeded())
    blurred = GaussianBlur(probability=1.0)(given, seeded())
    spreads = draw_uniforms(0.1, 2.0, like_M=given, generator=seeded()).flatten().tolist()
    for view, row, column in itertools.product(range(3), range(height), range(width)):
        total = expected = 0.0
        for i, j in itertools.product((-1, 0, 1), (-1, 0, 1)):
            weight = math.exp(-(i * i + j * j) / (2 * spreads[view] ** 2))
            total += weight
            expected += weight * given[view, 0, mirrored(row + i, height), mirrored(column + j, width)].item()
        assert blurred[view, 0, row, column].item() == pytest.approx(expected / total, abs=1e-12)


def test_the_blur_filter_is_about_a_tenth_of_the_side() -> None:
    given = torch.zeros(1, 1, 100, 100)
    given[0, 0, 50, 50] = 1.0
    assert int((GaussianBlur(widths=(50.0, 50.0), probability=1.0)(given, seeded()) > 0).sum()) == 11 * 11


@pytest.mark.parametrize(
    "operation, wrong",
    [
        (PadAndCrop, {"padding_fraction": 0.6}),
        (PadAndCrop, {"padding_fraction": math.nan}),
        (PadAndCrop, {"mode": "wrap"}),
        (RandomResizedCrop, {"area": (0.5, 1.5)}),
        (RandomResizedCrop, {"area": (0.5, 0.2)}),
        (RandomResizedCrop, {"aspect_ratio": (0.0, 1.0)}),
        (ColourJitter, {"hue": 0.6}),
        (ColourJitter, {"brightness": -1.0}),
        (ColourJitter, {"contrast": math.nan}),
        (ColourJitter, {"probability": 2.0}),
        (GaussianBlur, {"widths": 1.0}),
        (GaussianBlur, {"probability": 0.0}),
    ],
)
def test_impossible_settings_are_refused(operation: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        operation(**wrong)


def scores(*probabilities: list[float]) -> Tensor:
    """One record whose views have these probabilities of the classes."""
    return torch.tensor([probabilities], dtype=torch.float64).log()


@pytest.mark.parametrize(
    "views, expected",
    [
        pytest.param([[0.99, 0.01], [0.49, 0.51], [0.49, 0.51]], 1, id="most votes"),
        pytest.param([[0.9, 0.1], [0.4, 0.6]], 0, id="equal votes, more probable"),
        pytest.param([[0.6, 0.4], [0.1, 0.9]], 1, id="equal votes, more probable 2"),
        pytest.param([[0.5, 0.1, 0.4], [0.5, 0.1, 0.4], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0]], 0, id="probable but fewer"),
    ],
)
def test_the_majority_wins_and_then_the_more_probable(views: list[list[float]], expected: int) -> None:
    for order in itertools.permutations(views):
        assert majority_vote(scores(*order)).classes.item() == expected


def test_the_scores_of_a_vote_are_the_mean_probability() -> None:
    given = torch.randn(5, 4, 3, dtype=torch.float64, generator=seeded(1))
    torch.testing.assert_close(majority_vote(given).scores.softmax(dim=1), given.softmax(dim=2).mean(dim=1))
    one = majority_vote(given[:, :1])
    assert one.scores.equal(given[:, 0])
    assert one.classes.equal(given[:, 0].argmax(dim=1))


def test_test_time_views_depend_on_the_image_alone() -> None:
    given, state = images(6, 3, 16, 16), torch.get_rng_state()
    for name in FAMILIES:
        prediction = AugmentedPrediction(augmentation=augmentation_by_name(name), votes=5)
        views = prediction.views(given)
        assert views.shape == (6, 5, 3, 16, 16)
        assert torch.get_rng_state().equal(state)
        assert prediction.views(given[4:5])[0].equal(views[4])
        assert prediction.is_identity == views.equal(given.unsqueeze(1).expand_as(views))
    halved = torch.stack([given[0], given[0] / 2])  # another image gets other draws
    moved = AugmentedPrediction(augmentation=augmentation_by_name("flip_crop"), votes=8).views(halved)
    assert not moved[0].equal(2 * moved[1])


@pytest.mark.parametrize("votes", [0, -1, 1.5, None])
def test_votes_are_counted(votes: Any) -> None:
    with pytest.raises(InvalidValue, match="votes"):
        AugmentedPrediction(augmentation=augmentation_by_name("none"), votes=votes)
