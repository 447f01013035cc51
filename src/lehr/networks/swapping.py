"""One activation for another in a model that is already there.

>>> from lehr.networks.tempered_sigmoid import TemperedSigmoid
>>> model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
>>> with_activation(model, TemperedSigmoid)[1]
TemperedSigmoid(scale=2, inverse_temperature=2, offset=1)

Only modules can be found: ``torch.relu(x)`` in a ``forward`` is out of reach.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import nn

from lehr.errors import InvalidValue
from lehr.networks.activations import Activation, activation_named
from lehr.networks.tempered_sigmoid import TemperedSigmoid

# Only those that work on every number alone. Gates (GLU) and softmaxes look at several at once.
KINDS: tuple[type[nn.Module], ...] = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.PReLU,
    nn.RReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
    TemperedSigmoid,
)


def with_activation(
    model: nn.Module,
    activation: Activation | str | Mapping[str, Activation | str],
    *,
    replacing: tuple[type[nn.Module], ...] = KINDS,
) -> nn.Module:
    """A copy of the model with this activation in the place of every other; the given model stays as it was.

    ``activation`` makes one when it is called, as ``nn.Tanh`` does, or is its name ("tempered_sigmoid(mnist)"). Or it
    says for the paths of some layers what each becomes, ``{"1": "tanh", "4": partial(TemperedSigmoid, 2, 3, 1)}``, and
    the rest stay. ``replacing`` are the classes that count as activations. One module that stands in several places is
    replaced by one module. Every new one has the mode (training or not) of the one before it.
    """
    copied = nn.ModuleList([copy.deepcopy(model)])  # so that a model that is itself an activation has a parent
    found = _found(copied, replacing)
    if not found:
        kinds = ", ".join(kind.__name__ for kind in replacing)
        allowed = f"a model with activations that are modules ({kinds}); torch.relu(x) in its forward cannot be swapped"
        raise InvalidValue("model", allowed=allowed, given=type(model).__name__)
    made: dict[object, nn.Module] = {}
    for path, make in _makers(activation, found).items():
        parent, name = found[path]
        before = parent.get_submodule(name)
        if (before, make) not in made:
            made[before, make] = make().train(before.training)
        setattr(parent, name, made[before, make])
    return copied[0]


def _found(copied: nn.ModuleList, kinds: tuple[type[nn.Module], ...]) -> dict[str, tuple[nn.Module, str]]:
    """By its path in the model: the parent of every activation, and its name there."""
    return {
        f"{parent_path}.{name}".removeprefix(".").removeprefix("0").removeprefix("."): (parent, name)
        for parent_path, parent in copied.named_modules()
        for name, child in parent._modules.items()  # named_children() would name a shared one once
        if isinstance(child, kinds)
    }


def _makers(
    activation: Activation | str | Mapping[str, Activation | str], found: Mapping[str, object]
) -> dict[str, Callable[[], nn.Module]]:
    if not isinstance(activation, Mapping):
        return dict.fromkeys(found, _maker(activation))
    for path in activation:
        if path not in found:
            raise InvalidValue("path of an activation", allowed="one of " + ", ".join(found), given=path)
    return {path: _maker(said) for path, said in activation.items()}


def _maker(activation: Activation | str) -> Callable[[], nn.Module]:
    if isinstance(activation, nn.Module):  # it can be called as well, but not to make another
        allowed = "what makes one when it is called, as the class itself or a partial of it, or its name"
        raise InvalidValue("activation", allowed=allowed, given=activation)
    return activation if callable(activation) else activation_named(activation)
