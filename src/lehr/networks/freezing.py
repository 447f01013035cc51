"""Parts of a model that are not trained, because their weights come from elsewhere.

>>> model = nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 2))
>>> [name for name, weight in freeze(model, "0").named_parameters() if weight.requires_grad]
['2.weight', '2.bias']
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from lehr.errors import InvalidValue

Model = TypeVar("Model", bound=nn.Module)


def freeze(model: Model, *paths: str) -> Model:
    """The same model, with the parameters below these paths no longer trained. A path names a layer or a parameter.

    No noise is added to what is frozen and none of it is charged: it must come from public records, or from a release
    that has been paid for. An engine reads what is trained when it is made, so freeze before.
    """
    if not paths:
        raise InvalidValue("paths", allowed="one or more layers or parameters of the model", given=paths)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for path in paths:
        below = [weight for name, weight in parameters.items() if f"{name}.".startswith(f"{path}.")]
        if not below:
            known = ", ".join(name for name, child in model.named_children() if any(True for _ in child.parameters()))
            raise InvalidValue("path", allowed=f"that of a layer with parameters, as {known}", given=path)
        for weight in below:
            weight.requires_grad_(False)
    return model
