from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from experiments.gradient_norms import WATCHED, norms_of_gradients, norms_of_training, spread_of
from experiments.tan_runs import EDGES
from lehr.data import load
from lehr.networks import build

TINY = ("wide_resnet", {"depth": 10, "width": 1, "in_channels": 1})


def test_norms_are_counted_into_bins_and_none_is_lost() -> None:
    found = spread_of([0.0, 1e-9, 0.5, 2.0, 1e9])
    assert len(found["shares"]) == len(EDGES) - 1
    assert sum(found["shares"]) == pytest.approx(1)
    assert found["shares"][0] == found["shares"][-1] * 2 == 0.4
    assert found["share_clipped"] == 0.4
    assert found["share_below_a_tenth"] == 0.4


def test_norms_are_looked_at_before_the_first_step_and_after_those_asked_for() -> None:
    found = norms_of_gradients(
        device="cpu",
        data_dir=None,
        data_name="digits",
        network=TINY,
        augmentation="flip_crop",
        views=2,
        batch=4,
        reference_batch=64,
        steps=2,
        watched=70,
        looks=(0, 2),
    )
    assert [look["step"] for look in found["looks"]] == [0, 2]
    medians = [look["median"] for look in found["looks"]]
    assert all(median > 0 for median in medians)
    assert medians[0] != medians[1]


STEPS, CLIP_NORM = 4, 4.0


@cache
def seen(noise_multiplier: float | None) -> dict[str, Any]:
    return norms_of_training(
        device="cpu",
        data_dir=None,
        data="digits",
        activation="relu",
        batch=16,
        steps=STEPS,
        learning_rate=0.15,
        clip_norm=CLIP_NORM,
        noise_multiplier=noise_multiplier,
        seed=0,
        looks=2,
    )


def test_norms_before_the_first_step_are_those_of_autograd() -> None:
    digits = load("digits")
    with torch.random.fork_rng(devices=[]):
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
    assert seen(None)["gradient_norm"][0] == pytest.approx(sum(norms) / WATCHED, rel=1e-4)
    assert seen(None)["activation_norm"][0] == pytest.approx(activations, rel=1e-5)
    assert seen(None)["share_cut"][0] == pytest.approx(sum(norm > CLIP_NORM for norm in norms) / WATCHED, abs=0.01)


def test_looks_are_spread_over_the_run_and_begin_at_the_same_weights() -> None:
    plain, private = seen(None), seen(1.0)
    assert plain["step"] == private["step"] == [0, 2, 4]
    assert plain["gradient_norm"][0] == private["gradient_norm"][0]
    assert plain["gradient_norm"][2] != plain["gradient_norm"][0]  # the model is watched while it trains


def test_only_a_private_run_has_an_epsilon() -> None:
    assert seen(None)["epsilon_proven"] is None
    assert 0 < seen(1.0)["epsilon_proven"] < 10
    assert all(0 <= seen(noise)["accuracy"] <= 1 for noise in (None, 1.0))


def test_torchs_own_generator_is_left_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    seen.__wrapped__(None)
    assert torch.equal(torch.rand(3), expected)
