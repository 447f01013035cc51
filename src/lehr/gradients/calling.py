"""Running a model with other weights than its own.

torch's ``functional_call`` puts values in and takes them out again name by name; where one layer has two names it
leaves the values behind. So every place that holds a parameter or buffer is named once here, and what is shared is
shared by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


class Called:
    """A model that is run with whatever values it is given."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._places = dict(_places(model))

    def __call__(self, values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """``values`` have a parameter or buffer under the first of its names; what is missing is the model's own."""
        chosen = {place: values[name] for place, name in self._places.items() if name in values}
        return functional_call(self._model, chosen, args, dict(kwargs), tie_weights=False)


def _places(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Each place that holds a tensor, once, and the first name of what it holds."""
    first: dict[int, str] = {}
    for named in (model.named_parameters, model.named_buffers):
        for name, tensor in named():
            first.setdefault(id(tensor), name)
    for path, layer in model.named_modules():  # each layer once, whatever number of names it has
        for held in (layer._parameters, layer._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    yield (f"{path}.{name}" if path else name), first[id(tensor)]
