"""Layers of the networks, and ``freeze``, which leaves parts of a model untrained."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from lehr import validate
from lehr.errors import InvalidValue
from lehr.interfaces import Contributions, LayerRule, Site, at_least_float32, register_layer_rule

Model = TypeVar("Model", bound=nn.Module)


def freeze(model: Model, *paths: str) -> Model:
    """Return the model with the parameters below these paths no longer trained. A path names a layer or a parameter.

    Frozen weights get no noise and cost nothing, so they must come from public records or from a charged release.
    Freeze before training starts: an engine reads what is trained when it is made.

    >>> model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))
    >>> [name for name, weight in freeze(model, "0").named_parameters() if weight.requires_grad]
    ['2.weight', '2.bias']
    """
    if not paths:
        raise InvalidValue("paths", allowed="one or more layers or parameters of the model", given=paths)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name in parameters_below(model, *paths):
        parameters[name].requires_grad_(False)
    return model


def parameters_below(model: nn.Module, *paths: str) -> set[str]:
    """Return the names of the parameters below these paths. A path names a layer or a parameter."""
    found: set[str] = set()
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for path in paths:
        below = {name for name in names if f"{name}.".startswith(f"{path}.")}
        if not below:
            known = ", ".join(name for name, child in model.named_children() if any(True for _ in child.parameters()))
            raise InvalidValue("path", allowed=f"that of a layer with parameters, as {known}", given=path)
        found |= below
    return found


class Projection(nn.Module):
    """Flattens each record and projects it onto ``components``, a buffer of shape (inputs, dimensions).

    The components begin as zeros, are not trained, and are part of the released model: fill them from public records,
    or from a private PCA (``lehr.data.private_pca``).
    """

    components: Tensor

    def __init__(self, inputs: int, dimensions: int) -> None:
        super().__init__()
        shape = validate.count(inputs=inputs), validate.count(dimensions=dimensions)
        self.register_buffer("components", torch.zeros(shape))

    def forward(self, records: Tensor) -> Tensor:
        return records.flatten(1) @ self.components

    def extra_repr(self) -> str:
        return f"inputs={self.components.shape[0]}, dimensions={self.components.shape[1]}"


class AveragedViews(nn.Sequential):
    """In evaluation, the log of the mean probabilities over views of an image; in training, as is.

    The views are the image itself, with ``shift`` also the image moved by so many pixels along its diagonal, both ways,
    and, if ``mirrored``, the mirror images of all. This costs no privacy, since training does not see these views.
    """

    def __init__(self, *layers: Any, mirrored: bool = False, shift: int = 0) -> None:
        super().__init__(*layers)
        self.mirrored = validate.true_or_false(mirrored=mirrored)
        self.shift = validate.count(minimum=0, shift=shift)

    def forward(self, images: Tensor) -> Tensor:
        views = [images] if self.training else self._views(images)
        for layer in self:
            views = [layer(view) for view in views]
        if len(views) == 1:
            return views[0]
        return torch.stack(views).log_softmax(2).logsumexp(0) - math.log(len(views))

    def _views(self, images: Tensor) -> list[Tensor]:
        views, (height, width) = [images], images.shape[-2:]
        if self.shift:
            padded = functional.pad(images, [self.shift] * 4, mode="reflect")
            views += [padded[..., at : at + height, at : at + width] for at in (0, 2 * self.shift)]
        return [*views, *(view.flip(-1) for view in views)] if self.mirrored else views

    def extra_repr(self) -> str:
        return f"mirrored={self.mirrored}, shift={self.shift}"


class Gain(nn.Module):
    """Multiplies by one trained number, which begins at zero: SkipInit of De and Smith (2020)."""

    def __init__(self, initial: float = 0.0) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(float(initial)))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


def _gain_contributions(layer: Gain, sites: Mapping[str, Site]) -> Contributions:
    """The gradient of a record is the inner product of its inputs and its output gradients."""
    site = sites["output"]
    wide = at_least_float32(site.inputs.dtype)
    products = site.inputs.to(wide) * site.output_grads.to(wide)
    return {"factor": products.sum(tuple(range(1, products.dim())))}


register_layer_rule(Gain, LayerRule(contributions=_gain_contributions))


class Standardised(nn.Module):
    """Weight standardisation: every output channel has mean zero and variance gain² / fan-in.

    After Qiao et al. (2019), scaled as in Brock, De and Smith (2021). It depends on the weights alone, so it mixes no
    records.
    """

    def __init__(self, num_channels: int, *, floor: float = 1e-4) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(num_channels, 1, 1, 1))
        self._floor = floor

    def forward(self, weight: Tensor) -> Tensor:
        variance, mean = torch.var_mean(weight, dim=(1, 2, 3), keepdim=True, correction=0)
        fan_in = weight[0].numel()
        return (weight - mean) * torch.rsqrt((variance * fan_in).clamp_min(self._floor)) * self.gain


def standardise(network: nn.Module) -> None:
    """Standardise the weight of every convolution, with a trained gain for each channel."""
    for layer in list(network.modules()):
        if isinstance(layer, nn.Conv2d):
            parametrize.register_parametrization(layer, "weight", Standardised(layer.out_channels))


def standardised_convolution(in_channels: int, out_channels: int, *, kernel_size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution with a standardised weight, a trained gain for each channel, and a bias."""
    layer = nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=kernel_size // 2)
    nn.init.normal_(layer.weight, std=layer.weight[0].numel() ** -0.5)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    standardise(layer)
    return layer


def check_divides(name: str, value: int, *, of: int) -> None:
    """Raise ``InvalidValue`` where ``value`` does not divide ``of``."""
    if of % validate.count(**{name: value}):
        raise InvalidValue(name, allowed=f"a divisor of {of}", given=value)
