"""What docs/tempered_sigmoids.md says of the paper's equations 4 and 5 and of its Theorem 1, by numbers.

Axes: B records, D features, C classes.
"""

# ruff: noqa: N803, N806

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from lehr.gradients.one_by_one import OneByOneEngine
from lehr.networks.tempered_sigmoid import TemperedSigmoid

RADIUS = 4.0  # of the set of models, a ball; its diameter is twice that


def gradient_norms(temperatures: list[float], *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Norms of gradients of the multiclass loss at random weights of all sizes, and T · ‖z‖ of each."""
    torch.manual_seed(0)
    norms, scales = [], []
    for inverse_temperature in temperatures:
        for size in (0.01, 1.0, 100.0):
            weights_DC = (size * torch.randn(5, num_classes, dtype=torch.float64)).requires_grad_()
            z_D, label = torch.randn(5, dtype=torch.float64), torch.randint(num_classes, ())
            loss = cross_entropy(inverse_temperature * (z_D @ weights_DC), label)
            (grads_DC,) = torch.autograd.grad(loss, weights_DC)
            norms.append(grads_DC.norm(dim=0))
            scales.append(inverse_temperature * z_D.norm())
    return torch.stack(norms), torch.stack(scales)


def test_equation_4_the_gradient_of_the_tempered_logistic_loss_is_at_most_t_times_the_features() -> None:
    generator = torch.Generator().manual_seed(0)
    z_BD = torch.randn(200, 5, generator=generator, dtype=torch.float64)
    for inverse_temperature in (0.1, 1.0, 7.0):
        for size in (0.0, 1.0, 100.0):
            weights_D = (size * torch.randn(5, generator=generator, dtype=torch.float64)).requires_grad_()
            for z_D in z_BD[:20]:
                (grads_D,) = torch.autograd.grad(-logsigmoid(inverse_temperature * (z_D @ weights_D)), weights_D)
                assert grads_D.norm() <= inverse_temperature * z_D.norm() * (1 + 1e-12)
    misclassified = -1000 * z_BD[0]
    nearest = inverse_temperature * z_BD[0] * torch.sigmoid(-inverse_temperature * (z_BD[0] @ misclassified))
    torch.testing.assert_close(nearest.norm(), inverse_temperature * z_BD[0].norm())  # no smaller bound holds


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_equation_5_holds_for_every_class_and_the_root_of_two_does_for_all_together(num_classes: int) -> None:
    norms_NC, scales_N = gradient_norms([0.1, 1.0, 7.0], num_classes=num_classes)
    assert (norms_NC <= scales_N.unsqueeze(1) * (1 + 1e-12)).all()
    whole_N = norms_NC.norm(dim=1)
    assert (whole_N <= math.sqrt(2) * scales_N * (1 + 1e-12)).all()
    # A record that is surely taken for another class reaches it: √k of the paper is no better at two, and worse beyond.
    assert whole_N.div(scales_N).max() > math.sqrt(2) * 0.999


def clipped(grads_BD: Tensor, clip_norm: float) -> Tensor:
    norms_B: Tensor = grads_BD.norm(dim=1, keepdim=True).clamp_min(1e-300)
    return grads_BD * (clip_norm / norms_B).clamp_max(1)


def loss(weights_D: Tensor, z_BD: Tensor, *, inverse_temperature: float) -> float:
    return -logsigmoid(inverse_temperature * (z_BD @ weights_D)).mean().item()


def descended(z_BD: Tensor, *, inverse_temperature: float, clip_norm: float = math.inf, steps: int = 1500) -> Tensor:
    """Where projected gradient descent ends; ``z_BD`` are the features times their labels."""
    weights_D = torch.zeros(z_BD.shape[1], dtype=torch.float64)
    for _ in range(steps):
        slopes_B = inverse_temperature * torch.sigmoid(-inverse_temperature * (z_BD @ weights_D))
        grads_BD = -slopes_B.unsqueeze(1) * z_BD
        weights_D = weights_D - 4 / inverse_temperature**2 * clipped(grads_BD, clip_norm).mean(0)
        weights_D = weights_D * (RADIUS / weights_D.norm().clamp_min(RADIUS))
    return weights_D


def unbalanced(seed: int) -> Tensor:
    """Features times labels in the unit ball, some records far on the wrong side: those are the ones that are cut."""
    generator = torch.Generator().manual_seed(seed)
    z_BD = torch.randn(30, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 0.0, 0.0])
    z_BD[:8] = 3 * torch.randn(8, 3, generator=generator, dtype=torch.float64) - torch.tensor([4.0, 0.0, 0.0])
    norms_B: Tensor = z_BD.norm(dim=1, keepdim=True).clamp_min(4.0)
    return z_BD / norms_B


def excess(z_BD: Tensor, *, inverse_temperature: float, clip_norm: float) -> float:
    ends = [descended(z_BD, inverse_temperature=inverse_temperature, clip_norm=norm) for norm in (clip_norm, math.inf)]
    of_clipped, least = (loss(end, z_BD, inverse_temperature=inverse_temperature) for end in ends)
    return of_clipped - least


@pytest.mark.parametrize("seed", range(3))
def test_theorem_1_the_bias_of_clipping_is_at_most_t_minus_c_times_the_diameter(seed: int) -> None:
    z_BD = unbalanced(seed)
    found = []
    for inverse_temperature, clip_norm in [(0.5, 0.1), (2.0, 0.5), (2.0, 1.9), (6.0, 0.3)]:
        bias = excess(z_BD, inverse_temperature=inverse_temperature, clip_norm=clip_norm)
        assert -1e-6 <= bias <= (inverse_temperature - clip_norm) * 2 * RADIUS
        found.append(bias)
    assert max(found) > 1e-3  # clipping does cost something here


def test_theorem_1_nothing_is_cut_where_t_is_at_most_the_clip_norm() -> None:
    for inverse_temperature in (0.5, 1.0):
        assert excess(unbalanced(0), inverse_temperature=inverse_temperature, clip_norm=1.0) == 0


def test_in_a_linear_model_t_is_another_way_to_write_the_clip_norm_and_the_learning_rate() -> None:
    z_BD, inverse_temperature, clip_norm, rate = unbalanced(0), 3.0, 0.5, 0.2
    tempered_D, plain_D = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(50):
        slopes_B = inverse_temperature * torch.sigmoid(-inverse_temperature * (z_BD @ tempered_D))
        tempered_D = tempered_D + rate * clipped(slopes_B.unsqueeze(1) * z_BD, clip_norm).mean(0)
        plain_BD = torch.sigmoid(-(z_BD @ plain_D)).unsqueeze(1) * z_BD
        plain_D = plain_D + rate * inverse_temperature**2 * clipped(plain_BD, clip_norm / inverse_temperature).mean(0)
    torch.testing.assert_close(inverse_temperature * tempered_D, plain_D, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_behind_one_hidden_layer_of_tempered_sigmoids_the_gradient_norms_are_bounded_as_stated(size: float) -> None:
    scale, inverse_temperature, offset, width = 1.58, 3.0, 0.71, 6
    torch.manual_seed(0)
    hidden, scores = nn.Linear(4, width), nn.Linear(width, 5)
    model = nn.Sequential(hidden, TemperedSigmoid(scale, inverse_temperature, offset), scores).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(size * 3)
    inputs_BD, labels_B = 3 * torch.randn(40, 4, dtype=torch.float64), torch.randint(5, (40,))

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets, reduction="none")

    found = OneByOneEngine(model, losses).gradients(inputs_BD, labels_B)
    norms_BG = found.norms([["0.weight", "0.bias"], ["2.weight", "2.bias"]])
    reach = max(abs(offset), abs(scale - offset))
    assert (norms_BG[:, 1] <= math.sqrt(2 * (width * reach**2 + 1))).all()
    spectral = torch.linalg.matrix_norm(scores.weight.double(), ord=2).item()
    entering_B = (inputs_BD.square().sum(1) + 1).sqrt()
    steepest = scale * inverse_temperature / 4
    assert (norms_BG[:, 0] <= math.sqrt(2) * spectral * steepest * entering_B).all()
