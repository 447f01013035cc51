from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from experiments.gradient_norms import WATCHED, distribution_of, norms_of_gradients, norms_of_training
from experiments.tan_runs import EDGES
from lehr.data import load
from lehr.networks import build

CLIP_NORM = 4.0


def test_norms_are_counted_into_bins_and_none_is_lost() -> None:
    found = distribution_of(torch.tensor([0.0, 1e-9, 0.5, 2.0, 1e9]))
    assert len(found["shares"]) == len(EDGES) - 1
    assert sum(found["shares"]) == pytest.approx(1)
    assert found["shares"][0] == found["shares"][-1] * 2 == 0.4
    assert found["share_clipped"] == found["share_below_a_tenth"] == 0.4


def test_norms_are_computed_at_the_steps_asked_for() -> None:
    found = norms_of_gradients(
        device="cpu",
        data_dir=None,
        data_name="digits",
        network=("wide_resnet", {"depth": 10, "width": 1, "in_channels": 1}),
        augmentation="flip_crop",
        views=2,
        batch=4,
        reference_batch=64,
        steps=2,
        watched=70,
        looks=(0, 2),
    )
    assert [look["step"] for look in found["looks"]] == [0, 2]
    first, last = (look["median"] for look in found["looks"])
    assert 0 < first != last > 0


@cache
def seen(noise_multiplier: float | None) -> dict[str, Any]:
    return norms_of_training(
        device="cpu",
        data_dir=None,
        data="digits",
        activation="relu",
        batch=16,
        steps=4,
        learning_rate=0.15,
        clip_norm=CLIP_NORM,
        noise_multiplier=noise_multiplier,
        seed=0,
        looks=2,
    )


def test_initial_norms_are_those_of_autograd() -> None:
    digits = load("digits")
    state = torch.get_rng_state()
    found = seen(None)
    assert torch.equal(torch.get_rng_state(), state)  # torch's own generator is left alone
    torch.manual_seed(0)
    model = build("small_cnn", in_channels=1, image_side=8, num_classes=10, activation="relu")
    inputs = digits.preparation.prepared(digits.train.inputs[:WATCHED])
    norms: list[float] = []
    for record, target in zip(inputs, digits.train.targets[:WATCHED], strict=True):
        loss = torch.nn.functional.cross_entropy(model(record[None]), target[None])
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        norms.append(torch.cat([each.flatten() for each in gradients]).norm().item())
    assert isinstance(model, torch.nn.Sequential)
    activations = torch.relu(model[0](inputs)).flatten(1).norm(dim=1).mean().item()
    assert found["gradient_norm"][0] == pytest.approx(sum(norms) / WATCHED, rel=1e-4)
    assert found["activation_norm"][0] == pytest.approx(activations, rel=1e-5)
    assert found["share_cut"][0] == pytest.approx(sum(norm > CLIP_NORM for norm in norms) / WATCHED, abs=0.01)


def test_private_and_plain_runs_start_alike_and_only_one_has_an_epsilon() -> None:
    plain, private = seen(None), seen(1.0)
    assert plain["step"] == private["step"] == [0, 2, 4]
    assert plain["gradient_norm"][0] == private["gradient_norm"][0]
    assert plain["gradient_norm"][2] != plain["gradient_norm"][0]  # the model is watched while it trains
    assert plain["epsilon_proven"] is None
    assert 0 < private["epsilon_proven"] < 10
    assert all(0 <= found["accuracy"] <= 1 for found in (plain, private))
