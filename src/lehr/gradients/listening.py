"""A model's own layers, listened to while they stand in a loop: each gets a ``forward`` of its own for that time.

A layer with a rule runs with constant weights, so that no backward pass spends time on their gradients. A module with a
parameter that no rule covers runs under ``vmap``, once for each image with a copy of that parameter of its own, which
takes no memory until the backward pass. Layers with rules inside it report as they do elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from lehr.errors import LehrError, NotPrivate
from lehr.gradients import recurrent
from lehr.gradients.calling import Called
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

        def forward(*args: Any, **kwargs: Any) -> Any:
            if rule.forward is not None:
                return rule.forward(layer, tap, *args, **kwargs)
            inputs = args[0] if args else next(iter(kwargs.values()))
            output = type(layer).forward(layer, *args, **kwargs)
            # Under autocast the layer saw its input in the type of its output.
            seen = inputs.to(output.dtype) if inputs.is_floating_point() else inputs
            return tap("output", seen, output)

        if heard.number is None:
            with _constant(_ruled_parameters(layer, rule)):
                return forward(*args, **kwargs)
        # Inside vmap no parameter can be told to be constant, so that other tensors take their places.
        held = layer.named_parameters(recurse=rule.covers_children or parametrize.is_parametrized(layer))
        return Called(Bare(layer, forward))({f"layer.{own}": value.detach() for own, value in held}, args, kwargs)

    return run


def by_copies(path: str, layer: nn.Module, copied: Mapping[str, str]) -> Callable[..., Any]:
    """Runs a module once for every image, each with its own copy of the parameters that are ``copied``.

    These are given by the module's name for them, each with the model's own. Layers with rules inside the module report
    as they do elsewhere. Where no parameter is copied, the images are still run apart.
    """
    called = Called(Bare(layer))
    has_cells = any(isinstance(inner, nn.RNNBase) for inner in layer.modules())

    def with_copies(heard: Heard, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        copies = {f"layer.{own}": _copy(heard, layer.get_parameter(own), full) for own, full in copied.items()}
        if not isinstance(layer, nn.RNNBase):
            return called(copies, args, kwargs)
        # vmap does not know recurrent layers, but what they are made of, and that is seen below one more derivative.
        outputs, _ = vjp(lambda _: called(copies, args, kwargs), torch.zeros(()))  # type: ignore[misc]
        return outputs

    def run(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        if heard.number is not None:
            return with_copies(heard, args, kwargs)
        num_images = heard.images_of(pytree.tree_leaves((args, kwargs)))
        if not num_images:
            return _of_no_image(heard, layer, copied, *args, **kwargs)
        try:
            with recurrent.under_vmap(has_cells=has_cells):
                return _each_alone(heard, with_copies, num_images, args, kwargs)
        except _Unfit as error:
            reason, instead = error.args
            raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead) from None
        except LehrError:
            raise
        except Exception as error:
            reason = f"it cannot be run for each record alone by torch.func.vmap ({shown(error)})"
            raise NotPrivate(layer=described(path, layer), reason=reason, instead=_NO_VMAP) from None
        finally:
            heard.number = None

    return run


class _Unfit(Exception):
    """Why a module cannot be run for each image alone, and the way out."""


def _each_alone(
    heard: Heard, run: Callable[..., Any], num_images: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """What ``run(heard, args, kwargs)`` returns for all images, run by ``vmap`` once for each with its rows alone."""
    values, structure = pytree.tree_flatten((args, kwargs))
    moving = [isinstance(value, Tensor) and value.shape[:1] == (num_images,) for value in values]
    if not any(moving):
        raise _Unfit(f"none of its inputs begins with the {num_images} records", _OTHER_ENGINE)
    returned: list[Any] = []

    def one(number: Tensor, images: list[Tensor]) -> list[Tensor]:
        heard.number, rest = number, iter(images)
        own = [next(rest).unsqueeze(0) if moves else value for moves, value in zip(moving, values, strict=True)]
        returned[:] = pytree.tree_flatten(run(heard, *pytree.tree_unflatten(own, structure)))
        outputs = [leaf for leaf in returned[0] if isinstance(leaf, Tensor)]
        if any(output.shape[:1] != (1,) for output in outputs):
            raise _Unfit("it returns a tensor that does not begin with the records, such as a loss", _NO_SUMMARY)
        return [output.squeeze(0) for output in outputs]

    images = [value for moves, value in zip(moving, values, strict=True) if moves]
    numbers = torch.arange(num_images, device=images[0].device)
    with patch.object(Tensor, "register_hook", _refuse_hook):
        outputs = iter(vmap(one, randomness="different")(numbers, images))
    leaves = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in returned[0]]
    return pytree.tree_unflatten(leaves, returned[1])


_REGISTER_HOOK = Tensor.register_hook


def _refuse_hook(tensor: Tensor, hook: Callable[..., Any]) -> None:
    raise _Unfit("it registers a hook on a tensor, which vmap would never call", "a layer in place of the hook")


def in_passes(
    model: nn.Module,
    run: Callable[..., Any] | None,
    *,
    at_most: int,
    tried: Callable[..., Any],
) -> Callable[..., Any]:
    """Runs the model as a whole, and counts how often that is done before a backward pass.

    Each pass is made by ``tried(heard, run, num_images, inputs)``, which is given the arguments and the keywords.
    """

    def whole(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        return type(model).forward(model, *args, **kwargs) if run is None else run(heard, *args, **kwargs)

    def passing(heard: Heard, *args: Any, **kwargs: Any) -> Any:
        num_images = heard.images_of(pytree.tree_leaves((args, kwargs)))
        heard.begin_pass(num_images, at_most=at_most)
        return tried(heard, whole, num_images, (args, kwargs))

    return passing


_OTHER_ENGINE = "the ghost or the materialised engine, or freeze its parameters"
_NO_SUMMARY = (
    "outputs that begin with the records, and the loss computed from them outside of it; or freeze its parameters"
)
_NO_VMAP = (
    "operations that vmap knows, without branches on the values of a record; lehr.fit, which loops over records where "
    "it must; or freeze its parameters"
)


class Bare(nn.Module):
    """A layer's forward pass, or another run of it, without the hooks that its user may have put around it."""

    def __init__(self, layer: nn.Module, run: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.layer = layer
        self.run = run or partial(type(layer).forward, layer)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


class BareWithBuffers(Bare):
    """The same, and beside its outputs the buffers as they are after it."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = super().forward(*args, **kwargs)
        return outputs, {name: buffer.clone() for name, buffer in self.layer.named_buffers()}


def _copy(heard: Heard, parameter: Tensor, full: str) -> Tensor:
    """Inside ``vmap``: this image's own copy of a parameter; the gradients of all copies go to the ear."""
    copy: Tensor = _Copied.apply(heard.number, parameter, heard, full)  # type: ignore[no-untyped-call]
    return copy


class _Copied(torch.autograd.Function):
    """One copy for every image, made outside the ``vmap`` that it is called in."""

    @staticmethod
    def forward(number: Tensor, parameter: Tensor, heard: Heard, full: str) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(info: Any, in_dims: Any, number: Tensor, parameter: Tensor, heard: Heard, full: str) -> tuple[Tensor, int]:
        return _hooked_copy(heard, parameter, full, info.batch_size), 0


def _hooked_copy(heard: Heard, parameter: Tensor, full: str, num_images: int) -> Tensor:
    copy = parameter.detach().expand(num_images, *parameter.shape)
    if parameter.requires_grad:
        _REGISTER_HOOK(copy.requires_grad_(), partial(heard.add_own_grads, full))  # type: ignore[no-untyped-call]
    return copy


def _of_no_image(heard: Heard, layer: nn.Module, copied: Mapping[str, str], *args: Any, **kwargs: Any) -> Any:
    """An empty batch: not every module can be mapped over nothing, but its outputs must still reach the copies."""
    copies = [_hooked_copy(heard, layer.get_parameter(own), full, 0) for own, full in copied.items()]
    with _constant([parameter for parameter in layer.parameters() if parameter.requires_grad]):
        outputs = type(layer).forward(layer, *args, **kwargs)
    nothing = torch.stack([copy.sum() for copy in copies]).sum() if copies else 0
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
    if heard.number is not None:
        tapped: Tensor = _Tapped.apply(heard.number, inputs, output, heard, place)  # type: ignore[no-untyped-call]
        return tapped
    if heard.num_images is not None and inputs.shape[:1] == output.shape[:1] == (1,) != (heard.num_images,):
        inputs, output = _for_each_image(heard, heard.num_images, inputs, output)
    return _hooked_output(heard, place, inputs, output, is_alone=False)


def _for_each_image(heard: Heard, num_images: int, inputs: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """What all images share, given to each, so that each has a gradient of its own.

    A model that takes the row of one image for others would not show that: all rows are the same. So in a try they are
    as different as the images are, and the outputs tell.
    """
    heard.has_shared = True
    every_input, every_output = (values.expand(num_images, *values.shape[1:]) for values in (inputs, output))
    if heard.rows is not None:
        factors = 1 + 0.1 * torch.tensor(heard.rows, dtype=output.dtype, device=output.device)
        every_output = every_output * factors.reshape(-1, *(1 for _ in output.shape[1:]))
    return every_input, every_output


class _Tapped(torch.autograd.Function):
    """What passes a layer inside ``vmap``, put down for all images at once outside of it."""

    @staticmethod
    def forward(number: Tensor, inputs: Tensor, output: Tensor, heard: Heard, place: Place) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, number: Tensor, inputs: Tensor, output: Tensor, heard: Heard, place: Place
    ) -> tuple[Tensor, int]:
        pairs = zip((inputs, output), in_dims[1:3], strict=True)
        every_input, every_output = (_images_first(values, axis, info.batch_size) for values, axis in pairs)
        return _hooked_output(heard, place, every_input, every_output, is_alone=True), 0


def _images_first(values: Tensor, axis: int | None, num_images: int) -> Tensor:
    """What does not depend on the image is given to each."""
    return values.expand(num_images, *values.shape) if axis is None else values.movedim(axis, 0)


def _hooked_output(heard: Heard, place: Place, inputs: Tensor, output: Tensor, *, is_alone: bool) -> Tensor:
    heard.put_inputs(place, inputs, output, is_alone=is_alone)
    if not output.requires_grad:
        output = _rooted(output)
    elif output._is_view():
        output = output.clone()  # a hook on a view hears the wrong gradient once a later layer has written into it
    _REGISTER_HOOK(output, partial(heard.add_output_grads, place.key))  # type: ignore[no-untyped-call]
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


def shown(error: Exception) -> str:
    """What vmap says of itself; of another error, which may quote a record, only its kind."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if "vmap" in first or "Batching rule" in first else type(error).__name__
