"""The scattering transform beside one that convolves directly, and the features of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from lehr.data import InMemory, Preparation
from lehr.errors import InvalidValue
from lehr.networks.scattering import Scattering, scatter
from lehr.training.records import CHUNK, RunRecords


def wavelet(scale: int, angle: int) -> np.ndarray:
    """A Morlet wavelet around the middle of a window, without its mean."""
    width, frequency, theta = 0.8 * 2**scale, 0.75 * np.pi / 2**scale, (3 - angle) * np.pi / 8
    x, y = np.mgrid[-17:18, -17:18]
    along, across = x * np.cos(theta) + y * np.sin(theta), y * np.cos(theta) - x * np.sin(theta)
    envelope = np.exp(-(along**2 + across**2 / 4) / (2 * width**2)) / (4 * np.pi * width**2)
    wave = envelope * np.exp(1j * frequency * along)
    made: np.ndarray = wave - wave.sum() / envelope.sum() * envelope
    return made


def modulus(image: np.ndarray, scale: int, angle: int) -> np.ndarray:
    kernel = wavelet(scale, angle)
    parts = (ndimage.convolve(image, part, mode="wrap") for part in (kernel.real, kernel.imag))
    made: np.ndarray = np.hypot(*parts)
    return made


def by_convolution(image: np.ndarray) -> np.ndarray:
    """All features of one image, at full resolution until the end."""
    padded = np.pad(image, 4, mode="reflect")
    first = {(scale, angle): modulus(padded, scale, angle) for scale in range(2) for angle in range(8)}
    second = [modulus(first[0, one], 1, other) for one in range(8) for other in range(8)]
    smooth = (
        ndimage.gaussian_filter(each, 1.6, mode="wrap", truncate=8) for each in (padded, *first.values(), *second)
    )
    return np.stack([each[::4, ::4][1:-1, 1:-1] for each in smooth])


@pytest.mark.parametrize("side", [8, 28])
def test_features_equal_direct_convolution(side: int) -> None:
    image = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(side))
    image = torch.nn.functional.avg_pool2d(image, 3, 1, 1)
    expected = by_convolution(image[0, 0].double().numpy())
    found = scatter(image)[0].numpy()
    assert found.shape == expected.shape == (81, side // 4, side // 4)
    # Beyond the first scale, the transform has fewer pixels in between, which rounds a little.
    for some, tolerance in ((slice(0, 9), 1e-3), (slice(9, 81), 0.05)):
        assert np.abs(found[some] - expected[some]).max() < tolerance * np.abs(expected[some]).max()


def test_features_pass_unchanged() -> None:
    layer = Scattering(image_side=8, in_channels=3)
    features = layer(torch.rand(2, 3, 8, 8))
    assert features.shape == (2, *layer.shape) == (2, 243, 2, 2)
    assert layer(features) is features


def test_records_do_not_mix() -> None:
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(scatter(images)[1:2], scatter(images[1:2]))


@pytest.mark.parametrize("side", [4, 30])
def test_sides_that_cannot_be_shrunk_are_refused(side: int) -> None:
    with pytest.raises(InvalidValue, match="image_side"):
        Scattering(image_side=side)


def test_images_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidValue, match="images"):
        Scattering(image_side=8)(torch.zeros(1, 1, 12, 12))


def records_of(images: Tensor) -> RunRecords:
    return RunRecords(
        name="test",
        private=InMemory(images, torch.zeros(len(images), dtype=torch.int64)),
        records=len(images),
        num_classes=2,
        preparation=Preparation((0.5,), (0.25,)),
    )


@pytest.mark.parametrize("side", [8, 28])
def test_features_do_not_depend_on_other_records(side: int) -> None:
    """To the bit: a record more must not change how the others are rounded."""
    images = torch.randint(0, 256, (CHUNK + 2, 1, side, side), dtype=torch.uint8)
    model, threads = torch.nn.Sequential(Scattering(image_side=side)), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        whole, less, alone = (
            records_of(some).with_front_end(model, is_augmented=False).to(torch.device("cpu")).private.batch(every)[0]
            for some in (images, images[1:], images[-1:])
            for every in (torch.arange(len(some)),)
        )
    finally:
        torch.set_num_threads(threads)
    assert isinstance(whole, Tensor)
    assert isinstance(less, Tensor)
    assert isinstance(alone, Tensor)
    assert torch.equal(whole[1:], less)
    assert torch.equal(whole[-1:], alone)


def test_a_run_computes_features_once() -> None:
    images = torch.randint(0, 256, (5, 1, 8, 8), dtype=torch.uint8)
    records = records_of(images)
    layer = Scattering(image_side=8)
    front = records.with_front_end(torch.nn.Sequential(layer, torch.nn.Flatten()), is_augmented=False)
    assert front.shape == records.shape == (1, 8, 8)
    inputs, _ = front.like
    assert isinstance(inputs, torch.Tensor)
    assert inputs.shape == (0, *layer.shape)
    assert front.model_preparation == Preparation()
    computed = front.to(torch.device("cpu")).private
    assert isinstance(computed, InMemory)
    torch.testing.assert_close(computed.inputs, layer(records.preparation.prepared(images)))
    for other in (records.with_front_end(torch.nn.Flatten(), is_augmented=False), records):
        assert other.front_end is None
    assert records.with_front_end(torch.nn.Sequential(layer), is_augmented=True).front_end is None
