from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from lehr.data.catalogue import CATALOGUE
from lehr.errors import InvalidValue
from lehr.networks.activations import (
    ACTIVATION_CLASSES,
    BEST_TEMPERED_SIGMOIDS,
    TemperedSigmoid,
    activation_by_name,
    with_activation,
)
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.oracle import assert_agrees, batch

TRIPLETS = [*BEST_TEMPERED_SIGMOIDS.values(), (2.0, 2.0, 1.0), (1.0, 1.0, 0.0), (3.0, 0.5, -1.0), (0.5, 8.0, 2.0)]
X = torch.arange(-120, 121, dtype=torch.float64) / 20
every_triplet = pytest.mark.parametrize("triplet", TRIPLETS, ids=str)


@every_triplet
def test_the_formula_of_the_paper(triplet: tuple[float, float, float]) -> None:
    scale, inverse_temperature, offset = triplet
    expected = scale / (1 + torch.exp(-inverse_temperature * X)) - offset
    torch.testing.assert_close(TemperedSigmoid(*triplet)(X), expected, rtol=0, atol=1e-14 * scale)
    torch.testing.assert_close(TemperedSigmoid(*triplet)(X.float()), expected.float(), rtol=0, atol=1e-6 * scale)


def test_two_two_one_is_tanh_to_the_bit() -> None:
    for x in (X, X.float()):
        assert torch.equal(TemperedSigmoid(2, 2, 1)(x), torch.tanh(x))
    assert repr(TemperedSigmoid()) == repr(TemperedSigmoid(2, 2, 1))


@pytest.mark.parametrize("inverse_temperature", [1e-2, 1e-4, 1e-8])
def test_a_small_inverse_temperature_is_the_identity(inverse_temperature: float) -> None:
    scale = 4 / inverse_temperature
    layer = TemperedSigmoid(scale, inverse_temperature, scale / 2)
    # tanh(u) differs from u by at most |u|³ / 3, where u = T·x/2
    furthest = inverse_temperature**2 * X.abs().max().item() ** 3 / 12
    torch.testing.assert_close(layer(X), X, rtol=1e-14, atol=furthest)
    torch.testing.assert_close(layer(X.float()), X.float(), rtol=1e-6, atol=furthest)


@every_triplet
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_large_inputs_stay_in_range(triplet: tuple[float, float, float], dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, -largest, -1e4, 0, 1e4, largest, math.inf], dtype=dtype, requires_grad=True)
    values = TemperedSigmoid(*triplet)(x)
    (slopes,) = torch.autograd.grad(values.sum(), x)
    scale, _, offset = triplet
    ends = torch.tensor([-offset] * 3 + [scale / 2 - offset] + [scale - offset] * 3)
    torch.testing.assert_close(values.float(), ends, rtol=0, atol=4 * scale * torch.finfo(dtype).eps)
    assert slopes.isfinite().all()
    assert TemperedSigmoid(*triplet)(torch.tensor(math.nan)).isnan()


@every_triplet
def test_the_slope_is_bounded(
    triplet: tuple[float, float, float],
) -> None:
    x = X.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(TemperedSigmoid(*triplet)(x).sum(), x)
    steepest = triplet[0] * triplet[1] / 4
    assert slopes.min() >= 0
    assert slopes.max() <= steepest * (1 + 1e-12)
    torch.testing.assert_close(slopes[X == 0], torch.tensor([steepest], dtype=torch.float64))
    assert torch.autograd.gradcheck(TemperedSigmoid(*triplet), X[::20].clone().requires_grad_())


def test_gradients_of_records_are_those_of_single_backward_passes() -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3), TemperedSigmoid(1.58, 3.0, 0.71), nn.Flatten(), nn.Linear(12, 4)
    assert_agrees(nn.Sequential(*layers).double(), *batch(5, 1, 4, 4), by_engine=True)
    assert set(BEST_TEMPERED_SIGMOIDS) < set(CATALOGUE)


@pytest.mark.parametrize("value", [math.nan, math.inf, "2", True, None], ids=str)
@pytest.mark.parametrize("name", ["scale", "inverse_temperature", "offset"])
def test_settings_that_are_not_finite_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        TemperedSigmoid(**{name: value})
    assert refused.value.name == name


@pytest.mark.parametrize(
    "word, triplet",
    [
        ("tempered_sigmoid", (2, 2, 1)),
        ("tempered_sigmoid(1.97, 2.27, 1.15)", (1.97, 2.27, 1.15)),
        (" tempered_sigmoid ( 1,2 ,-3e-1 ) ", (1, 2, -0.3)),
        *((f"tempered_sigmoid({name})", triplet) for name, triplet in BEST_TEMPERED_SIGMOIDS.items()),
    ],
)
def test_tempered_sigmoids_by_name(word: str, triplet: tuple[float, ...]) -> None:
    assert repr(activation_by_name(word)()) == repr(TemperedSigmoid(*triplet))


@pytest.mark.parametrize(
    "word",
    [
        "step",
        "",
        "Tanh",
        "tanh(1)",
        "tempered_sigmoid()",
        "tempered_sigmoid(1, 2)",
        "tempered_sigmoid(1, 2, three)",
        "tempered_sigmoid(imagenet)",
        "tempered_sigmoid(1, 2, 3",
        None,
        2.0,
        torch.nn.ReLU,
    ],
    ids=str,
)
def test_unknown_activations_are_refused(word: Any) -> None:
    with pytest.raises(InvalidValue, match="activation must be one of elu"):
        activation_by_name(word)


def nested() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), inner, nn.Dropout(0.5), nn.Linear(4, 2))


@pytest.mark.parametrize("kind", ACTIVATION_CLASSES, ids=lambda kind: kind.__name__)
def test_every_kind_of_activation_is_replaced(kind: type[nn.Module]) -> None:
    replaced = with_activation(nn.Sequential(nn.Linear(2, 2), kind()), nn.Tanh)
    assert [type(layer) for layer in replaced.children()] == [nn.Linear, nn.Tanh]


def test_activations_are_replaced_in_a_copy() -> None:
    model = nested()
    before = str(model)
    replaced = with_activation(model, partial(TemperedSigmoid, 1, 3, 0.5))
    assert str(model) == before
    layers = [layer for layer in replaced.modules() if isinstance(layer, TemperedSigmoid)]
    assert len(layers) == len({id(layer) for layer in layers}) == 2
    assert not any(isinstance(layer, nn.ReLU | nn.GELU) for layer in replaced.modules())
    for one, other in zip(model.parameters(), replaced.parameters(), strict=True):
        assert one is not other
        assert torch.equal(one, other)


def test_each_layer_can_have_its_own_activation() -> None:
    replaced = with_activation(nested(), {"1": partial(TemperedSigmoid, 2, 3, 1), "2.1": "tempered_sigmoid(mnist)"})
    assert repr(replaced.get_submodule("1")) == repr(TemperedSigmoid(2, 3, 1))
    assert repr(replaced.get_submodule("2.1")) == repr(TemperedSigmoid(1.97, 2.27, 1.15))
    some = with_activation(nested(), {"1": nn.Tanh})
    assert [type(some.get_submodule(path)) for path in ("1", "2.1")] == [nn.Tanh, nn.GELU]


def test_shared_modules_stay_shared_and_a_model_can_be_an_activation() -> None:
    shared = nn.ReLU()
    layers = list(with_activation(nn.Sequential(shared, nn.Linear(2, 2), shared), nn.Tanh)._modules.values())
    assert isinstance(layers[0], nn.Tanh)
    assert layers[0] is layers[2]
    alone = with_activation(nn.ReLU().eval(), nn.Tanh)
    assert isinstance(alone, nn.Tanh)
    assert not alone.training


@pytest.mark.parametrize(
    "activation, name",
    [
        ({"7": nn.Tanh}, "path of an activation"),
        ({"0": nn.Tanh}, "path of an activation"),
        (nn.Tanh(), "activation"),
        ({"1": nn.Tanh()}, "activation"),
        ("step", "activation"),
        (None, "activation"),
    ],
    ids=str,
)
def test_other_replacements_are_refused(activation: Any, name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        with_activation(nested(), activation)
    assert refused.value.name == name
    with pytest.raises(InvalidValue, match="model"):
        with_activation(nn.Linear(2, 2), nn.Tanh)


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


def test_equation_4_bounds_the_gradient_of_the_logistic_loss() -> None:
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
def test_equation_5_bounds_the_gradient_of_every_class(num_classes: int) -> None:
    norms_NC, scales_N = gradient_norms([0.1, 1.0, 7.0], num_classes=num_classes)
    assert (norms_NC <= scales_N.unsqueeze(1) * (1 + 1e-12)).all()
    whole_N = norms_NC.norm(dim=1)
    assert (whole_N <= math.sqrt(2) * scales_N * (1 + 1e-12)).all()
    # A record that is surely taken for another class reaches it: √k of the paper is no better at two, and worse beyond.
    assert whole_N.div(scales_N).max() > math.sqrt(2) * 0.999


def clipped(grads_SBD: Tensor, clip_norm: float) -> Tensor:
    norms_SB: Tensor = grads_SBD.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    return grads_SBD * (clip_norm / norms_SB).clamp_max(1)


def margins(z_SBD: Tensor, weights_SD: Tensor) -> Tensor:
    return (z_SBD @ weights_SD.unsqueeze(-1)).squeeze(-1)


def descended(z_SBD: Tensor, *, inverse_temperature: float, clip_norm: float, steps: int = 1500) -> Tensor:
    """Where projected gradient descent ends on each of S data sets; ``z_SBD`` are the features times their labels."""
    weights_SD = torch.zeros(len(z_SBD), z_SBD.shape[-1], dtype=torch.float64)
    for _ in range(steps):
        slopes_SB = inverse_temperature * torch.sigmoid(-inverse_temperature * margins(z_SBD, weights_SD))
        grads_SBD = -slopes_SB.unsqueeze(-1) * z_SBD
        weights_SD = weights_SD - 4 / inverse_temperature**2 * clipped(grads_SBD, clip_norm).mean(1)
        weights_SD = weights_SD * (RADIUS / weights_SD.norm(dim=-1, keepdim=True).clamp_min(RADIUS))
    return weights_SD


def unbalanced(seed: int) -> Tensor:
    """Features times labels in the unit ball, some records far on the wrong side: those are the ones that are cut."""
    generator = torch.Generator().manual_seed(seed)
    z_BD = torch.randn(30, 3, generator=generator, dtype=torch.float64) + torch.tensor([1.0, 0.0, 0.0])
    z_BD[:8] = 3 * torch.randn(8, 3, generator=generator, dtype=torch.float64) - torch.tensor([4.0, 0.0, 0.0])
    norms_B: Tensor = z_BD.norm(dim=1, keepdim=True).clamp_min(4.0)
    return z_BD / norms_B


def excess(z_SBD: Tensor, *, inverse_temperature: float, clip_norm: float) -> Tensor:
    of_clipped_S, least_S = (
        -logsigmoid(inverse_temperature * margins(z_SBD, end_SD)).mean(1)
        for end_SD in (
            descended(z_SBD, inverse_temperature=inverse_temperature, clip_norm=norm) for norm in (clip_norm, math.inf)
        )
    )
    return of_clipped_S - least_S


def test_theorem_1_bounds_the_bias_of_clipping() -> None:
    z_SBD, found = torch.stack([unbalanced(seed) for seed in range(3)]), []
    for inverse_temperature, clip_norm in [(0.5, 0.1), (2.0, 0.5), (2.0, 1.9), (6.0, 0.3)]:
        bias_S = excess(z_SBD, inverse_temperature=inverse_temperature, clip_norm=clip_norm)
        assert (bias_S >= -1e-6).all()
        assert (bias_S <= (inverse_temperature - clip_norm) * 2 * RADIUS).all()
        found.append(bias_S)
    assert (torch.stack(found).amax(0) > 1e-3).all()  # clipping does cost something here
    assert excess(z_SBD[:1], inverse_temperature=1.0, clip_norm=1.0) == 0  # nothing is cut


def test_in_a_linear_model_t_rescales_clip_norm_and_learning_rate() -> None:
    z_BD, inverse_temperature, clip_norm, rate = unbalanced(0), 3.0, 0.5, 0.2
    tempered_D, plain_D = torch.zeros(2, 3, dtype=torch.float64)
    for _ in range(50):
        slopes_B = inverse_temperature * torch.sigmoid(-inverse_temperature * (z_BD @ tempered_D))
        tempered_D = tempered_D + rate * clipped(slopes_B.unsqueeze(1) * z_BD, clip_norm).mean(0)
        plain_BD = torch.sigmoid(-(z_BD @ plain_D)).unsqueeze(1) * z_BD
        plain_D = plain_D + rate * inverse_temperature**2 * clipped(plain_BD, clip_norm / inverse_temperature).mean(0)
    torch.testing.assert_close(inverse_temperature * tempered_D, plain_D, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_gradient_norms_of_one_hidden_layer_are_bounded(size: float) -> None:
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
