"""ResNet-9: its fixed whitening, its residual parts, and the views that it averages in evaluation."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from lehr.data.random_images import draw
from lehr.errors import InvalidValue
from lehr.networks.resnet9 import PatchWhitening, Residual, resnet9

SMALL = (8, 8, 16)


def test_patches_of_random_images_are_whitened() -> None:
    """On other random images than those the filters are made from."""
    generator = torch.Generator().manual_seed(99)
    images = torch.cat(
        [draw(kind, 200, side=32, channels=3, generator=generator) for kind in ("dead-leaves", "oriented")]
    )
    outputs = PatchWhitening(3)((images - images.mean()) / images.std())[..., 1:-1, 1:-1].movedim(1, -1).flatten(0, 2)
    assert outputs.shape[1] == 24  # of 27 directions, without the ninth that varies least
    covariance = torch.cov(outputs.T)
    assert covariance.diag().min() > 0.1
    assert covariance.diag().max() < 2
    assert (covariance - covariance.diag().diag()).abs().max() < 0.5


def test_whitening_is_fixed() -> None:
    network = resnet9(widths=SMALL)
    names = {name for name, _ in network.named_parameters()}
    assert "whitening.weight" in network.state_dict()
    assert "whitening.weight" not in names
    assert torch.equal(PatchWhitening(3).weight, PatchWhitening(3).weight)


def test_a_residual_part_adds_its_input() -> None:
    convolution = nn.Conv2d(8, 8, 3, padding=1, bias=False)
    nn.init.zeros_(convolution.weight)
    images = torch.rand(2, 8, 4, 4)
    assert torch.equal(Residual(convolution, norm=nn.Identity())(images), images)


def test_mirrored_evaluation_does_not_tell_left_from_right() -> None:
    network = resnet9(widths=SMALL, mirrored=True).eval()
    images = torch.rand(2, 3, 16, 16)
    torch.testing.assert_close(network(images), network(images.flip(-1)))


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("shift", [0, 2])
def test_evaluation_averages_the_probabilities_of_all_views(mirrored: bool, shift: int) -> None:
    network = resnet9(widths=SMALL, mirrored=mirrored, shift=shift)
    images, side = torch.rand(2, 3, 16, 16), 16
    padded = functional.pad(images, [shift] * 4, mode="reflect")
    starts = (shift, 0, 2 * shift) if shift else (0,)
    views = [padded[..., start : start + side, start : start + side] for start in starts]
    views += [view.flip(-1) for view in views] if mirrored else []
    expected = torch.stack([network.train()(view).softmax(1) for view in views]).mean(0)
    torch.testing.assert_close(network.eval()(images).softmax(1), expected)


@pytest.mark.parametrize(
    "arguments, name",
    [({"widths": (8, 8)}, "widths"), ({"widths": (8, 8, 0)}, "widths"), ({"widths": (8, 12, 16)}, "num_groups")],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        resnet9(**arguments)  # type: ignore[arg-type]
    assert error.value.name == name
