"""Votes over views: who votes, and who wins."""

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
every_shape = pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 10, 16), (1, 8, 8)], ids=str)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=seeded(1))


@every_family
@every_shape
def test_views_have_their_axis_and_stay_in_range(name: str, shape: tuple[int, int, int]) -> None:
    views = augmentation_by_name(name)(images(6, *shape), views=3, generator=seeded())
    assert views.shape == (6, 3, *shape)
    assert views.dtype == torch.float32
    assert views.min() >= 0
    assert views.max() <= 1


@every_family
@pytest.mark.parametrize("device", DEVICES)
def test_the_same_generator_gives_the_same_views_bit_for_bit(name: str, device: str) -> None:
    given = images(6, 3, 16, 16).to(device)
    first, second = (
        augmentation_by_name(name)(given, views=2, generator=torch.Generator(device).manual_seed(5)) for _ in range(2)
    )
    assert first.device == given.device
    assert torch.equal(first, second)


@every_family
@pytest.mark.parametrize("channels", [1, 3])
def test_one_record_moves_no_view_of_another(name: str, channels: int) -> None:
    given = images(6, channels, 16, 16)
    before = augmentation_by_name(name)(given, views=3, generator=seeded())
    for replacement in (torch.zeros(channels, 16, 16), torch.full((channels, 16, 16), torch.nan)):
        changed = given.clone()
        changed[2] = replacement
        after = augmentation_by_name(name)(changed, views=3, generator=seeded())
        others = [0, 1, 3, 4, 5]
        assert torch.equal(after[others], before[others])
        assert not torch.equal(after[2], before[2])


@every_family
def test_neither_the_images_nor_other_generators_change_and_no_images_have_no_views(name: str) -> None:
    given, before = images(6, 3, 16, 16), torch.random.get_rng_state()
    augmentation_by_name(name)(given, views=2, generator=seeded())
    assert torch.equal(given, images(6, 3, 16, 16))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert augmentation_by_name(name)(given[:0], views=2, generator=seeded()).shape == (0, 2, 3, 16, 16)


def test_without_augmentation_every_view_is_the_image() -> None:
    given = images(4, 3, 8, 8)
    views = augmentation_by_name("none")(given, views=3, generator=seeded())
    assert all(torch.equal(views[:, view], given) for view in range(3))


def test_borders_have_the_pixels_of_the_papers() -> None:
    crops = [operation for name in ("flip_crop", "ours") for operation in augmentation_by_name(name).operations[:1]]
    assert [isinstance(crop, PadAndCrop) and round(crop.padding_fraction * 32) for crop in crops] == [4, 3]
    assert [isinstance(crop, PadAndCrop) and round(crop.padding_fraction * 224) for crop in crops] == [28, 20]


@every_family
def test_the_json_form_reads_back_as_the_same_augmentation(name: str) -> None:
    assert Augmentation.from_json(json.loads(json.dumps(augmentation_by_name(name).to_json()))) == augmentation_by_name(
        name
    )


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
    def negative(images_MCHW: Tensor, generator: torch.Generator) -> Tensor:
        return 1 - images_MCHW

    mine = Augmentation(name="mine", operations=(negative, RandomResizedCrop(area=(1.0, 1.0))))
    assert mine(images(2, 1, 4, 4), views=2, generator=seeded()).shape == (2, 2, 1, 4, 4)
    with pytest.raises(InvalidValue, match="written down"):
        mine.to_json()


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidValue, match="flip_crop"):
        augmentation_by_name("flipcrop")


@pytest.mark.parametrize(
    "given, views",
    [(torch.zeros(2, 8, 8), 1), (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), 1), (torch.zeros(2, 1, 8, 8), 0)],
)
def test_what_cannot_be_augmented_is_refused(given: Tensor, views: int) -> None:
    with pytest.raises(InvalidValue):
        augmentation_by_name("flip_crop")(given, views=views, generator=seeded())


def test_draws_do_not_depend_on_what_the_images_hold() -> None:
    dark, bright = torch.zeros(5, 1, 2, 2), torch.ones(5, 1, 2, 2)
    assert torch.equal(
        draw_uniforms(0.0, 1.0, like_M=dark, generator=seeded()),
        draw_uniforms(0.0, 1.0, like_M=bright, generator=seeded()),
    )
    assert torch.equal(
        draw_indices(7, like_M=dark, generator=seeded()), draw_indices(7, like_M=bright, generator=seeded())
    )


def mirrored(place: int, length: int) -> int:
    """The pixel that a place outside of the image mirrors."""
    inside = abs(place)
    return inside if inside < length else 2 * (length - 1) - inside


def pixel(image_CHW: Tensor, row: int, column: int, mode: str) -> Tensor:
    _, height, width = image_CHW.shape
    if mode == "reflect":
        return image_CHW[:, mirrored(row, height), mirrored(column, width)]
    is_inside = 0 <= row < height and 0 <= column < width
    return image_CHW[:, row, column] if is_inside else torch.zeros(len(image_CHW))


@pytest.mark.parametrize("mode", ["reflect", "zero"])
def test_a_padded_crop_is_what_a_loop_over_pixels_finds(mode: str) -> None:
    given = images(12, 2, 8, 6)
    found = PadAndCrop(padding_fraction=0.3, mode=mode)(given, seeded())
    generator = seeded()
    tops = draw_indices(5, like_M=given, generator=generator).tolist()  # round(0.3 * 8) = 2 pixels
    lefts = draw_indices(5, like_M=given, generator=generator).tolist()
    for view, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        for row in range(8):
            for column in range(6):
                expected = pixel(given[view], row + top - 2, column + left - 2, mode)
                assert torch.equal(found[view, :, row, column], expected)


def test_every_shift_comes_equally_often() -> None:
    given = torch.zeros(25 * 400, 1, 8, 8)
    given[:, 0, 4, 4] = 1
    found = PadAndCrop(padding_fraction=0.25, mode="zero")(given, seeded())
    rows, columns = found[:, 0].nonzero()[:, 1] - 2, found[:, 0].nonzero()[:, 2] - 2
    counts = torch.bincount(rows * 5 + columns, minlength=25)
    assert len(counts) == 25
    assert ((counts - 400.0) ** 2 / 400).sum().item() < 51.2  # one in a thousand at 24 degrees of freedom


def resampled(image_HW: Tensor, row: float, column: float) -> float:
    """The image between its pixels, whose centres are at whole numbers, by bilinear interpolation."""
    height, width = image_HW.shape
    row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
    top, left = int(row), int(column)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    upper = (1 - (column - left)) * image_HW[top, left] + (column - left) * image_HW[top, right]
    lower = (1 - (column - left)) * image_HW[bottom, left] + (column - left) * image_HW[bottom, right]
    return float((1 - (row - top)) * upper + (row - top) * lower)


def test_a_resized_crop_is_what_a_loop_over_pixels_finds() -> None:
    height, width = 6, 9
    given = images(8, 1, height, width).double()
    found = RandomResizedCrop(area=(0.1, 0.8), aspect_ratio=(0.5, 2.0))(given, seeded())
    generator = seeded()
    areas, logarithms, rows, columns = (
        draw_uniforms(low, high, like_M=given, generator=generator).flatten().tolist()
        for low, high in ((0.1, 0.8), (math.log(0.5), math.log(2.0)), (-1.0, 1.0), (-1.0, 1.0))
    )
    for view in range(8):
        ratio = math.exp(logarithms[view])
        tall = min(height, math.sqrt(areas[view] * height * width / ratio))
        wide = min(width, math.sqrt(areas[view] * height * width * ratio))
        top = (height - tall) * (rows[view] + 1) / 2
        left = (width - wide) * (columns[view] + 1) / 2
        for row in range(height):
            for column in range(width):
                at = top + (row + 0.5) * tall / height - 0.5, left + (column + 0.5) * wide / width - 0.5
                assert found[view, 0, row, column].item() == pytest.approx(resampled(given[view, 0], *at), abs=1e-9)


def test_areas_and_ratios_are_drawn_from_their_ranges() -> None:
    # On a ramp, what a crop leaves of the slope is what it takes of the side.
    ramp = torch.linspace(0, 1, 33)
    given = torch.stack([ramp[:, None].expand(33, 33), ramp[None, :].expand(33, 33)])[None].expand(4000, -1, -1, -1)
    found = RandomResizedCrop(area=(0.1, 0.3), aspect_ratio=(0.5, 2.0))(given.double(), seeded())
    tall = (found[:, 0, 20, 16] - found[:, 0, 12, 16]) * 32 / 33 / (8 / 33)
    wide = (found[:, 1, 16, 20] - found[:, 1, 16, 12]) * 32 / 33 / (8 / 33)
    areas, ratios = tall * wide, (wide / tall).log2()
    assert areas.min() > 0.1 - 1e-6
    assert areas.max() < 0.3 + 1e-6
    assert areas.mean().item() == pytest.approx(0.2, abs=5 * 0.2 / math.sqrt(12 * 4000))
    assert ratios.abs().max() < 1 + 1e-6
    assert ratios.mean().item() == pytest.approx(0.0, abs=5 * 2 / math.sqrt(12 * 4000))


def colours(channels: int = 3, count: int = 6) -> Tensor:
    return torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def jitter(**strengths: float) -> ColourJitter:
    return ColourJitter(
        **{"brightness": 0.0, "contrast": 0.0, "saturation": 0.0, "hue": 0.0} | strengths, probability=1.0
    )


def draws(given: Tensor, **ranges: tuple[float, float]) -> dict[str, Tensor]:
    """What is drawn for an image, in the order in which it is."""
    generator = seeded()
    order = ("brightness", "contrast", "saturation", "hue")
    ends = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)} | ranges
    return {name: draw_uniforms(*ends[name], like_M=given, generator=generator) for name in order}


def grey(given: Tensor) -> Tensor:
    return torch.tensor([0.299, 0.587, 0.114], dtype=given.dtype).view(1, 3, 1, 1).mul(given).sum(1, keepdim=True)


def test_brightness_multiplies_and_contrast_and_saturation_move_away_from_the_mean_and_from_grey() -> None:
    given = colours()
    mean = grey(given).mean(dim=(2, 3), keepdim=True)
    for name, base in (("brightness", torch.zeros(())), ("contrast", mean), ("saturation", grey(given))):
        factor = draws(given, **{name: (0.2, 1.8)})[name]
        found = jitter(**{name: 0.8})(given, seeded())
        torch.testing.assert_close(found, (base + factor * (given - base)).clamp(0, 1))


def test_hue_is_turned_as_the_standard_library_turns_it() -> None:
    given = colours()
    found = jitter(hue=0.5)(given, seeded())
    turns = draws(given, hue=(-0.5, 0.5))["hue"].flatten().tolist()
    for view, turn in enumerate(turns):
        for row in range(4):
            for column in range(4):
                hue, saturation, value = colorsys.rgb_to_hsv(*given[view, :, row, column].tolist())
                expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
                assert found[view, :, row, column].tolist() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_without_three_channels_there_is_no_colour_to_move(channels: int) -> None:
    given = colours(channels)
    with_colour = ColourJitter(probability=1.0)(given, seeded())
    assert torch.equal(with_colour, ColourJitter(probability=1.0, saturation=0.0, hue=0.0)(given, seeded()))
    assert not torch.equal(with_colour, given)
    assert torch.equal(Grayscale(probability=1.0)(given, seeded()), given)


def test_grayscale_has_the_brightness_in_every_channel() -> None:
    given = colours()
    torch.testing.assert_close(Grayscale(probability=1.0)(given, seeded()), grey(given).expand_as(given))


@pytest.mark.parametrize("operation, probability", [(ColourJitter(probability=0.3), 0.3), (Grayscale(), 0.2)])
def test_a_view_is_changed_as_often_as_asked_for_and_else_left_exactly(
    operation: ColourJitter | Grayscale, probability: float
) -> None:
    given = colours(count=8000)
    is_changed = (operation(given, seeded()) != given).flatten(1).any(1)
    assert abs(is_changed.double().mean().item() - probability) < 5 * math.sqrt(0.25 / 8000)


def test_a_blurred_image_is_what_a_loop_over_pixels_finds() -> None:
    height, width, reach = 7, 5, 1
    given = torch.rand(3, 1, height, width, dtype=torch.float64, generator=seeded())
    found = GaussianBlur(probability=1.0)(given, seeded())
    spreads = draw_uniforms(0.1, 2.0, like_M=given, generator=seeded()).flatten().tolist()
    taps = range(-reach, reach + 1)
    for view, spread in enumerate(spreads):
        weights = {(i, j): math.exp(-(i * i + j * j) / (2 * spread**2)) for i in taps for j in taps}
        for row in range(height):
            for column in range(width):
                seen = {
                    (i, j): given[view, 0, mirrored(row + i, height), mirrored(column + j, width)].item()
                    for i, j in weights
                }
                expected = sum(weights[at] * seen[at] for at in weights) / sum(weights.values())
                assert found[view, 0, row, column].item() == pytest.approx(expected, abs=1e-12)


def test_the_filter_is_about_a_tenth_of_the_side() -> None:
    given = torch.zeros(1, 1, 100, 100)
    given[0, 0, 50, 50] = 1.0
    found = GaussianBlur(widths=(50.0, 50.0), probability=1.0)(given, seeded())
    assert int((found > 0).sum()) == 11 * 11


def test_every_second_view_is_mirrored_and_neighbours_are_independent() -> None:
    given = torch.tensor([0.0, 1.0]).expand(40_000, 1, 1, 2)
    is_mirrored = HorizontalFlip()(given, seeded())[:, 0, 0, 0]
    assert abs(is_mirrored.mean().item() - 0.5) < 0.0125
    both = (is_mirrored[:-1] * is_mirrored[1:]).mean().item()
    assert abs(both - 0.25) < 0.0125


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
        (GaussianBlur, {"widths": (2.0, 1.0)}),
        (GaussianBlur, {"widths": 1.0}),
        (GaussianBlur, {"probability": 0.0}),
    ],
)
def test_impossible_settings_are_refused(operation: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        operation(**wrong)


IMAGES = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def scores(*probabilities: list[float]) -> Tensor:
    """One record whose views hold the classes for so probable."""
    return torch.tensor([probabilities], dtype=torch.float64).log()


def test_the_class_of_most_views_wins_however_sure_the_others_are() -> None:
    assert majority_vote(scores([0.99, 0.01], [0.49, 0.51], [0.49, 0.51])).classes.tolist() == [1]


def test_of_as_many_votes_the_more_probable_class_wins() -> None:
    assert majority_vote(scores([0.9, 0.1], [0.4, 0.6])).classes.tolist() == [0]
    assert majority_vote(scores([0.6, 0.4], [0.1, 0.9])).classes.tolist() == [1]


def test_a_class_without_the_most_votes_does_not_win_by_its_mean_probability() -> None:
    split = scores([0.5, 0.1, 0.4], [0.5, 0.1, 0.4], [0.1, 0.5, 0.4], [0.1, 0.5, 0.4], [0.0, 0.0, 1.0])
    assert split.exp().mean(dim=1).argmax().item() == 2
    assert majority_vote(split).classes.item() in (0, 1)


def test_the_softmax_of_a_tally_is_the_mean_probability() -> None:
    given = torch.randn(5, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(majority_vote(given).scores.softmax(dim=1), given.softmax(dim=2).mean(dim=1))


def test_the_order_of_the_views_does_not_matter() -> None:
    given = torch.randn(40, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = {tuple(majority_vote(given[:, list(order)]).classes.tolist()) for order in itertools.permutations(range(4))}
    assert len(found) == 1


def test_one_vote_is_returned_as_it_is() -> None:
    given = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(1))
    counted = majority_vote(given)
    assert counted.scores.equal(given[:, 0])
    assert counted.classes.equal(given[:, 0].argmax(dim=1))


def test_views_are_those_of_the_family_and_differ() -> None:
    views = AugmentedPrediction(augmentation=augmentation_by_name("flip_crop"), votes=5).views(IMAGES)
    assert views.shape == (6, 5, 3, 16, 16)
    assert all(len({view.numpy().tobytes() for view in record}) > 1 for record in views)
    assert (
        AugmentedPrediction(augmentation=augmentation_by_name("none"), votes=2)
        .views(IMAGES)
        .equal(IMAGES.unsqueeze(1).expand(-1, 2, -1, -1, -1))
    )


def test_an_image_has_the_same_views_alone_and_among_others() -> None:
    ballot = AugmentedPrediction(augmentation=augmentation_by_name("ours"), votes=3)
    together = ballot.views(IMAGES)
    for place in (0, 4):
        assert ballot.views(IMAGES[place : place + 1])[0].equal(together[place])


def test_what_is_drawn_is_another_thing_for_another_image() -> None:
    ballot = AugmentedPrediction(augmentation=augmentation_by_name("flip_crop"), votes=8)
    positions = torch.arange(256.0).view(1, 1, 16, 16).expand(2, -1, -1, -1) / 256
    moved = ballot.views(torch.stack((positions[0], positions[1] / 2)))
    assert not moved[0].equal(2 * moved[1])


def test_nobodys_generator_moves() -> None:
    before = torch.get_rng_state()
    AugmentedPrediction(augmentation=augmentation_by_name("simclr"), votes=2).views(IMAGES)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize("votes", [0, -1, 1.5, None])
def test_other_than_whole_votes_are_refused(votes: Any) -> None:
    with pytest.raises(InvalidValue, match="votes must be"):
        AugmentedPrediction(augmentation=augmentation_by_name("none"), votes=votes)
