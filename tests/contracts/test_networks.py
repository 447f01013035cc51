"""What every registered network promises: it is read off the table of networks, so a new one is tested by its size.

Axis: B records.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.networks import build
from lehr import fit
from lehr.certificates import release, released_model
from lehr.config import RunConfig
from lehr.data import InMemory
from lehr.gradients.ghost import GhostEngine
from lehr.networks.layers import Gain, Projection
from lehr.networks.registry import NETWORKS
from lehr.privacy.clipping import FlatClip
from tests.gradients.one_by_one import OneByOneEngine

NUM_CLASSES = 3
# As small as each can be: its arguments, and the shape of its images.
RESNET = {"stem_channels": 4, "stem": "small"}
WIDE = {"depth": 10, "width": 1, "num_groups": 4}
TINY: dict[str, list[tuple[dict[str, Any], tuple[int, ...]]]] = {
    "alexnet_like": [({"image_side": 4}, (3, 4, 4))],
    "cifar_cnn": [({}, (3, 8, 8))],
    "group_norm_resnet": [
        ({**RESNET, "num_groups": 2, "order": "after"}, (3, 8, 8)),
        ({**RESNET, "num_groups": 2, "order": "before", "stem": "imagenet"}, (3, 16, 16)),
        ({**RESNET, "num_groups": 2, "order": "before", "depth": 50}, (3, 8, 8)),
    ],
    "mlp": [({"inputs": 6}, (6,)), ({"inputs": 6, "hidden": 0}, (6,))],
    "nf_resnet": [
        ({**RESNET, "num_blocks": [1, 2]}, (3, 8, 8)),
        ({**RESNET, "num_blocks": [1, 1], "stem": "imagenet"}, (3, 16, 16)),
    ],
    "nf_resnet50": [],  # nf_resnet of one size, which is not small: a test of its own, below
    "paper_cnn": [({}, (1, 28, 28))],
    "pooled_cnn": [({}, (3, 32, 32))],
    "projected_mlp": [({"inputs": 36, "dimensions": 5, "hidden": 7}, (1, 6, 6))],
    "resnet9": [
        ({"widths": [8, 8, 8]}, (3, 16, 16)),
        ({"widths": [8, 8, 8], "mirrored": True, "shift": 1}, (3, 16, 16)),
    ],
    "scattering_cnn": [({"image_side": 8, "width": 16}, (1, 8, 8))],
    "scattering_linear": [({"image_side": 8, "in_channels": 3}, (3, 8, 8))],
    "small_cnn": [({}, (1, 8, 8))],
    "vision_transformer": [({"image_side": 8, "width": 12, "depth": 2}, (3, 8, 8))],
    "wide_resnet": [
        (WIDE, (3, 8, 8)),
        ({**WIDE, "order": "before"}, (3, 8, 8)),
        ({**WIDE, "weight_standardised": True}, (3, 8, 8)),
        ({**WIDE, "weight_standardised": True, "num_groups": None}, (3, 8, 8)),
    ],
}
CASES = [(name, *case) for name, cases in TINY.items() for case in cases]
every_case = pytest.mark.parametrize(
    "name, arguments, shape", CASES, ids=[f"{name} {list(arguments.values())}" for name, arguments, _ in CASES]
)


def built(name: str, arguments: dict[str, Any]) -> nn.Module:
    """With weights that are the same every time, and nothing behind zeros, which would hide gradients."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        network = build(name, num_classes=NUM_CLASSES, **arguments)
    for layer in network.modules():
        if isinstance(layer, Gain):
            nn.init.constant_(layer.factor, 0.5)
        if isinstance(layer, Projection):
            nn.init.constant_(layer.components, 0.1)
    return network


def images(shape: tuple[int, ...], records: int = 3) -> Tensor:
    return torch.randn(records, *shape, generator=torch.Generator().manual_seed(1))


def losses(scores: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(scores, targets, reduction="none")


def test_every_registered_network_has_a_size_here() -> None:
    assert set(TINY) == set(NETWORKS)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_argument_has_a_name_and_a_default(name: str) -> None:
    for parameter in inspect.signature(NETWORKS[name]).parameters.values():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert parameter.default is not inspect.Parameter.empty


@every_case
def test_images_become_one_score_per_class(name: str, arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    assert built(name, arguments)(images(shape)).shape == (3, NUM_CLASSES)


# Attention as torch computes it on a CPU is run record by record where a model has parameters outside of layers.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@every_case
def test_clipped_sums_are_those_of_a_loop_over_records(
    name: str, arguments: dict[str, Any], shape: tuple[int, ...]
) -> None:
    network, inputs, targets = built(name, arguments).double(), images(shape).double(), torch.tensor([2, 0, 1])
    expected = OneByOneEngine(network, losses).gradients(inputs, targets)
    found = GhostEngine(network, losses, compiled=False).gradients(inputs, targets)
    torch.testing.assert_close(found.norms(), expected.norms(), rtol=1e-9, atol=0)
    clip = FlatClip(float(expected.norms().median()) / 2)  # so that it clips
    wanted, sums = clip(expected).values, clip(found).values
    assert list(sums) == list(wanted)
    for parameter, total in wanted.items():
        torch.testing.assert_close(sums[parameter], total, rtol=1e-8, atol=1e-10 * clip.sensitivity)


@pytest.mark.whole
def test_norms_of_a_full_resnet_50_are_those_of_a_loop_over_records() -> None:
    network, inputs, targets = built("nf_resnet50", {}), images((3, 32, 32), 2), torch.arange(2)
    expected = OneByOneEngine(network, losses).gradients(inputs, targets)
    found = GhostEngine(network, losses, compiled=False).gradients(inputs, targets)
    torch.testing.assert_close(found.norms(), expected.norms(), rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("group_norm_resnet", TINY["group_norm_resnet"][0][0]),
        ("nf_resnet", TINY["nf_resnet"][0][0]),
        ("wide_resnet", TINY["wide_resnet"][2][0]),
    ],
)
def test_a_residual_network_is_trained_and_its_release_is_the_trained_one(
    tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    run = fit(
        built(name, arguments),
        InMemory(images((3, 8, 8), 12).sigmoid(), torch.arange(12) % NUM_CLASSES),
        records=12,
        num_classes=NUM_CLASSES,
        noise_multiplier=4.0,
        delta=1e-2,
        expected_batch_size=4,
        steps=2,
        compiled=False,
        quiet=True,
        settings_chosen_on="fixed",
        config=RunConfig.of(model={"network": name, **arguments}),
        directory=tmp_path / "run",
    )
    release.release(run.directory, tmp_path / "model")
    read = released_model.load(tmp_path / "model").state_dict()
    assert all(value.equal(run.model.state_dict()[weight]) for weight, value in read.items())
    assert any(not value.equal(built(name, arguments).state_dict()[weight]) for weight, value in read.items())
