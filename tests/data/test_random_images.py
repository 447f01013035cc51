"""Images from random processes: reproducible, in range, and with the statistics that their process states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.data.random_images import KINDS, draw, pink_maps
from lehr.errors import InvalidValue


def drawn(kind: str, *, count: int = 4, side: int = 32, channels: int = 3, seed: int = 0) -> Tensor:
    return draw(kind, count, side=side, channels=channels, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_follow_from_the_seed(kind: str, channels: int) -> None:
    images = drawn(kind, channels=channels)
    assert images.shape == (4, channels, 32, 32)
    assert ((images >= 0) & (images <= 1)).all()
    assert torch.equal(images, drawn(kind, channels=channels))
    assert not torch.equal(images, drawn(kind, channels=channels, seed=1))
    assert (images.std((2, 3)) > 0.01).all()  # no image is one colour
    assert not torch.equal(images[0], images[1])


def test_dead_leaves_cover_nearly_everything() -> None:
    images = drawn("dead-leaves", count=20)
    assert (images.sum(1) == 0).float().mean() < 0.05


def test_dead_leaves_have_few_colours_and_sharp_edges() -> None:
    image = drawn("dead-leaves", count=1)[0]
    colours = torch.unique(image.flatten(1).T, dim=0)
    assert 2 < len(colours) <= 121  # one for each shape, and black
    assert (image.diff(dim=2) == 0).float().mean() > 0.5


def test_pink_noise_falls_with_the_frequency() -> None:
    """Between the third and the twelfth frequency, a power between 0.5 and 1.5 lowers the power by 4 to 64 times."""
    maps = pink_maps(500, 32, torch.Generator().manual_seed(0))
    power = torch.fft.fft2(maps).abs().square().mean(0)
    assert 4 < power[0, 3] / power[0, 12] < 64
    assert maps.mean((1, 2)).abs().max() < 1e-5


def test_no_images_are_an_empty_tensor() -> None:
    assert drawn("dead-leaves", count=0).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    "kind, sizes, name",
    [
        ("photographs", {}, "kind"),
        ("dead-leaves", {"side": 0}, "side"),
        ("dead-leaves", {"count": -1}, "count"),
        ("oriented", {"side": 28}, "side"),
        ("pink-noise", {"channels": 0}, "channels"),
    ],
)
def test_bad_sizes_are_refused(kind: str, sizes: dict[str, int], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        drawn(kind, **sizes)
    assert error.value.name == name
