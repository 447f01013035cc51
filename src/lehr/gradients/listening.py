"""A model's own layers, listened to while they stand in a loop: each gets a ``forward`` of its own for that time.

A layer with a rule runs with constant weights, so that no backward pass spends time on their gradients. A layer without
one runs with a copy of its weights for every image, which takes no memory until the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from lehr.errors import NotPrivate
from lehr.gradients.heard import Heard
from lehr.gradients.refusals import described
from lehr.gradients.tape import Place
from lehr.interfaces import LayerRule


class Listening:
    """A layer's ``forward`` while it is listened to. A copy of the layer is an ordinary layer again."""

    def __init__(self, layer: nn.Module, heard: Callable[[], Heard], run: Callable[..., Any]) -> None:
        self.layer = layer
        self._heard = heard
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self.layer).forward(self.layer, *args, **kwargs)
        heard = self._heard()
        heard.refuse_after_backward()
        return self._run(heard, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A weight average is often a copy made inside the loop: it must run its own weights and be heard by nobody.
        return MethodType(type(self.layer).forward, memo[id(self.layer)])


def by_rule(name: str, layer: nn.Module, rule: LayerRule) -> Callable[..., Any]:
    """Runs a layer with constant weights and hands every site to the ear."""

    def run(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        call = heard.call_of(name)

        def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
            return _tapped(heard, Place(name, call, site), inputs, output)

        with _constant(_ruled_parameters(layer, rule)):
            if rule.forward is not None:
                return rule.forward(layer, tap, *args, **kwargs)
            inputs = args[0] if args else next(iter(kwargs.values()))
            output = type(layer).forward(layer, *args, **kwargs)
        # Under autocast the layer saw its input in the type of its output.
        seen = inputs.to(output.dtype) if inputs.is_floating_point() else inputs
        return tap("output", seen, output)

    return run


def by_copies(path: str, layer: nn.Module, trained: Mapping[str, str]) -> Callable[..., Any]:
    """Runs a layer without a rule once for every image, each with its own copy of the weights.

    ``trained`` has the names of its trainable parameters, as the layer calls them and as the model does.
    """
    bare = Bare(layer)

    def run(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        values, structure = pytree.tree_flatten((args, kwargs))
        num_images = heard.images_of(values)
        moving = [isinstance(value, Tensor) and value.shape[:1] == (num_images,) for value in values]
        if not any(moving):
            reason = f"none of its inputs begins with the {num_images} records"
            raise NotPrivate(layer=described(path, layer), reason=reason, instead=_OTHER_ENGINE)
        copies = _copies(heard, layer, trained, num_images)
        if not num_images:
            return _of_no_image(layer, copies, *args, **kwargs)

        def one(copies: dict[str, Tensor], images: list[Tensor]) -> Any:
            rest = iter(images)
            own = [next(rest).unsqueeze(0) if moves else value for moves, value in zip(moving, values, strict=True)]
            outputs = functional_call(bare, copies, *pytree.tree_unflatten(own, structure))
            return pytree.tree_map_only(Tensor, lambda output: output.squeeze(0), outputs)

        images = [value for moves, value in zip(moving, values, strict=True) if moves]
        return vmap(one, randomness="different")(copies, images)

    return run


def in_passes(
    model: nn.Module,
    run: Callable[..., Any] | None,
    *,
    at_most: int,
    trying: Callable[..., AbstractContextManager[None]],
) -> Callable[..., Any]:
    """Runs the model as a whole, and counts how often that is done before a backward pass.

    Each pass is run inside ``trying(num_images, inputs)``, which is given the arguments and the keywords.
    """

    def passing(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        num_images = heard.images_of(pytree.tree_leaves((args, kwargs)))
        heard.begin_pass(num_images, at_most=at_most)
        with trying(num_images, (args, kwargs)):
            return type(model).forward(model, *args, **kwargs) if run is None else run(heard, *args, **kwargs)

    return passing


_OTHER_ENGINE = "the ghost or the materialised engine, or freeze its parameters"


class Bare(nn.Module):
    """A layer's forward pass without the hooks that its user may have put around it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return type(self.layer).forward(self.layer, *args, **kwargs)


class BareWithBuffers(Bare):
    """The same, and beside its outputs the buffers as they are after it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return outputs, {name: buffer.clone() for name, buffer in self.layer.named_buffers()}


def _copies(heard: Heard, layer: nn.Module, trained: Mapping[str, str], num_images: int) -> dict[str, Tensor]:
    """A copy of every trainable parameter for every image; their gradients go to the ear."""
    copies = {}
    for own, full in trained.items():
        parameter = layer.get_parameter(own).detach()
        copy = parameter.expand(num_images, *parameter.shape).requires_grad_()
        copy.register_hook(partial(heard.add_own_grads, full))  # type: ignore[no-untyped-call]
        copies[f"layer.{own}"] = copy
    return copies


def _of_no_image(layer: nn.Module, copies: dict[str, Tensor], *args: Any, **kwargs: Any) -> Any:
    """An empty batch: not every layer can be mapped over nothing, but its outputs must still reach the copies."""
    with _constant([parameter for parameter in layer.parameters() if parameter.requires_grad]):
        outputs = type(layer).forward(layer, *args, **kwargs)
    nothing = torch.stack([copy.sum() for copy in copies.values()]).sum()
    return pytree.tree_map_only(Tensor, lambda output: output + nothing, outputs)


def _ruled_parameters(layer: nn.Module, rule: LayerRule) -> list[nn.Parameter]:
    whole = rule.covers_children or parametrize.is_parametrized(layer)
    held = layer.parameters() if whole else layer._parameters.values()  # asked for in every pass, and much faster so
    return [parameter for parameter in held if parameter is not None and parameter.requires_grad]


@contextmanager
def _constant(parameters: list[nn.Parameter]) -> Iterator[None]:
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _tapped(heard: Heard, place: Place, inputs: Tensor, output: Tensor) -> Tensor:
    heard.put_inputs(place, inputs, output)
    if not output.requires_grad:
        output = _rooted(output)
    elif output._is_view():
        output = output.clone()  # a hook on a view hears the wrong gradient once a later layer has written into it
    output.register_hook(partial(heard.add_output_grads, place.key))  # type: ignore[no-untyped-call]
    return output


def _rooted(values: Tensor) -> Tensor:
    root = values.new_zeros((), requires_grad=True)
    result: Tensor = _Rooted.apply(values, root)  # type: ignore[no-untyped-call]
    return result


class _Rooted(torch.autograd.Function):
    """The same values as part of a graph. The first layer has constant weights and inputs, and would begin none.

    A copy, since a later layer may write into it, which neither a leaf nor a view made here allows.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, root: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None
