"""Hooked forward passes of a model's own layers, and what they capture of one batch.

    CapturedBatch        filled by the forward pass, then by the backward pass, then read once
    HookedForward        the ``forward`` of a layer while an engine is attached to it
    forward_by_rule      runs a layer with constant weights, so that no backward pass computes their gradients
    forward_by_copies    runs a module with a parameter that no rule covers under ``vmap``, once for each image with its
                         own copy of the parameter, which takes no memory until the backward pass

Axes: N images, records times views, in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree

from lehr.errors import InvalidValue, LehrError, NotPrivate
from lehr.gradients.differentiation import SiteId, run_by_rule
from lehr.gradients.execution import FunctionalModel, plain_forward, under_vmap, vmap_error
from lehr.gradients.refusals import described
from lehr.interfaces import LayerRule

Key = TypeVar("Key", SiteId, str)
_REGISTER_HOOK = Tensor.register_hook


@dataclass(frozen=True)
class CapturedSite:
    """The inputs of one site, their version then, and the shape and type of the output.

    ``is_alone``: each image was run alone, so that everything that one image had there is behind the image axis.
    ``is_shared``: the layer was run once for all images, as one for positions may be.
    """

    inputs: Tensor
    inputs_version: int
    output_shape: torch.Size
    output_dtype: torch.dtype
    is_alone: bool
    is_shared: bool

    def flaw(self, num_images: int) -> tuple[str, str] | None:
        """Why no gradients of single records follow from this, and what to do instead; or None."""
        if self.inputs.shape[:1] != (num_images,) or self.output_shape[:1] != (num_images,):
            return f"it was given {tuple(self.inputs.shape)}, which does not begin with the {num_images} records", (
                "keep the record axis first and apart from others, or train with lehr.fit, which runs each record alone"
            )
        if self.inputs._version != self.inputs_version:
            return "its input was changed in place since", "the same operation out of place"
        return None


@dataclass
class CapturedBatch:
    """What the passes over one batch leave behind.

    ``image`` is the number of the image inside a function that ``vmap`` runs for each.
    """

    num_images: int | None = None
    num_passes: int = 0
    backward_began: bool = False
    sites: dict[SiteId, CapturedSite] = field(default_factory=dict)
    output_grads: dict[SiteId, Tensor] = field(default_factory=dict)
    copy_grads: dict[str, Tensor] = field(default_factory=dict)
    image: Tensor | None = None
    calls: dict[str, int] = field(default_factory=dict)

    def begin_pass(self, num_images: int, *, at_most: int) -> None:
        """The model as a whole is run."""
        if self.num_passes >= at_most:
            allowed = (
                f"at least {at_most + 1} for a model that is run {at_most + 1} times on the same records for one "
                "backward(), as in a Siamese network (make_private and LehrCallback take num_passes); another batch "
                "needs its own backward() and step, and passes that are not trained on belong under torch.no_grad()"
            )
            raise InvalidValue("num_passes", allowed=allowed, given=at_most)
        self.num_passes += 1
        if self.num_images is None:
            self.num_images = num_images

    def images_of(self, values: Any) -> int:
        """The number of images in the model's inputs, or in these where the model as a whole was not run."""
        if self.num_images is not None:
            return self.num_images
        shapes = [leaf.shape for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.dim()]
        if not shapes:
            raise InvalidValue("inputs", allowed="tensors that begin with the record axis", given="none")
        return int(shapes[0][0])

    def add(self, sums: dict[Key, Tensor], key: Key, grads: Tensor) -> None:
        """A second backward pass through the same graph adds to the first."""
        self.backward_began = True
        sums[key] = sums[key] + grads.detach() if key in sums else grads.detach()


class HookedForward:
    """A layer's ``forward`` while an engine is attached. A copy of the layer is an ordinary layer again.

    ``allowed_loop`` says, in errors, what the loop must do between a backward pass and the next forward pass.
    """

    def __init__(
        self, layer: nn.Module, captured: Callable[[], CapturedBatch], run: Callable[..., Any], *, allowed_loop: str
    ) -> None:
        self.layer = layer
        self._captured = captured
        self._run = run
        self._allowed_loop = allowed_loop

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return type(self.layer).forward(self.layer, *args, **kwargs)
        captured = self._captured()
        if captured.backward_began:
            given = "another forward pass after backward(), on the same or another batch"
            raise InvalidValue("loop", allowed=self._allowed_loop, given=given)
        return self._run(captured, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # A weight average is often a copy made inside the loop: it must run its own weights and report nothing.
        return MethodType(type(self.layer).forward, memo[id(self.layer)])


def forward_by_rule(name: str, layer: nn.Module, rule: LayerRule) -> Callable[..., Any]:
    """Run a layer with constant weights and capture every site."""
    rule = replace(rule, forward=rule.hooked_forward or rule.forward)

    def run(captured: CapturedBatch, *args: Any, **kwargs: Any) -> Any:
        call = captured.calls[name] = captured.calls.get(name, -1) + 1

        def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
            return _tapped(captured, SiteId(name, call, site), inputs, output)

        forward = partial(run_by_rule, layer, rule, tap)
        whole = rule.covers_children or parametrize.is_parametrized(layer)
        if captured.image is None:
            held = layer.parameters() if whole else layer._parameters.values()  # called in every pass, and much faster
            with _constant([own for own in held if own is not None and own.requires_grad]):
                return forward(*args, **kwargs)
        # Inside vmap no parameter can be made constant, so that other tensors take their places.
        values = {own: value.detach() for own, value in layer.named_parameters(recurse=whole)}
        return FunctionalModel(layer, forward)(values, args, kwargs)

    return run


def forward_by_copies(path: str, layer: nn.Module, copied: Mapping[str, str]) -> Callable[..., Any]:
    """Run a module once for every image, each with its own copy of the parameters that are ``copied``.

    ``copied`` maps the module's name of a parameter to the model's. Layers with rules inside the module report as they
    do elsewhere. Where no parameter is copied, the images are still run apart.
    """
    functional = FunctionalModel(layer, plain_forward(layer))
    has_cells = any(isinstance(inner, nn.RNNBase) for inner in layer.modules())

    def with_copies(captured: CapturedBatch, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        makers = {own: partial(_hooked_copy, captured, layer.get_parameter(own), full) for own, full in copied.items()}
        copies = dict(layer.named_buffers())  # so that no tensor of vmap's stays in the place of one
        copies |= {own: _OutsideVmap.apply(make, captured.image) for own, make in makers.items()}  # type: ignore[no-untyped-call]
        if not isinstance(layer, nn.RNNBase):
            return functional(copies, args, kwargs)
        # vmap does not know recurrent layers, but what they are made of, and that is seen below one more derivative.
        outputs, _ = vjp(lambda _: functional(copies, args, kwargs), torch.zeros(()))  # type: ignore[misc]
        return outputs

    def run(captured: CapturedBatch, *args: Any, **kwargs: Any) -> Any:
        if captured.image is not None:
            return with_copies(captured, args, kwargs)
        num_images = captured.images_of((args, kwargs))
        if not num_images:
            return _of_no_image(captured, layer, copied, *args, **kwargs)
        try:
            with under_vmap(has_cells=has_cells):
                return _each_alone(captured, with_copies, num_images, args, kwargs)
        except _Unfit as error:
            reason, instead = error.args
        except LehrError:
            raise
        except Exception as error:
            reason = f"it cannot be run for each record alone by torch.func.vmap ({vmap_error(error)})"
            instead = (
                "operations that vmap knows, without branches on the values of a record; lehr.fit, which loops over "
                "records where it must; or freeze its parameters"
            )
        finally:
            captured.image = None
        raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)

    return run


class _Unfit(Exception):
    """Why a module cannot be run for each image alone, and what to do instead."""


def _each_alone(
    captured: CapturedBatch, run: Callable[..., Any], num_images: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The results of ``run(captured, args, kwargs)``, run by ``vmap`` once for each image with its rows alone."""
    values, structure = pytree.tree_flatten((args, kwargs))
    moving = [isinstance(value, Tensor) and value.shape[:1] == (num_images,) for value in values]
    if not any(moving):
        reason = f"none of its inputs begins with the {num_images} records"
        raise _Unfit(reason, "train with lehr.fit, or freeze its parameters")
    returned: list[Any] = []

    def one(image: Tensor, rows: list[Tensor]) -> list[Tensor]:
        captured.image, rest = image, iter(rows)
        own = [next(rest).unsqueeze(0) if moves else value for moves, value in zip(moving, values, strict=True)]
        returned[:] = pytree.tree_flatten(run(captured, *pytree.tree_unflatten(own, structure)))
        outputs = [leaf for leaf in returned[0] if isinstance(leaf, Tensor)]
        if any(output.shape[:1] != (1,) for output in outputs):
            raise _Unfit(
                "it returns a tensor that does not begin with the records, such as a loss",
                "outputs that begin with the records, and a loss computed from them outside; or freeze its parameters",
            )
        return [output.squeeze(0) for output in outputs]

    def refuse_hook(tensor: Tensor, hook: Callable[..., Any]) -> None:
        raise _Unfit("it registers a hook on a tensor, which vmap would never call", "a layer in place of the hook")

    rows = [value for moves, value in zip(moving, values, strict=True) if moves]
    with patch.object(Tensor, "register_hook", refuse_hook):
        outputs = iter(vmap(one, randomness="different")(torch.arange(num_images, device=rows[0].device), rows))
    leaves = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in returned[0]]
    return pytree.tree_unflatten(leaves, returned[1])


def _hooked_copy(captured: CapturedBatch, parameter: Tensor, full: str, num_images: int, *_: object) -> Tensor:
    """One copy of a parameter for every image."""
    copy = parameter.detach().expand(num_images, *parameter.shape)
    if parameter.requires_grad:
        _REGISTER_HOOK(copy.requires_grad_(), partial(captured.add, captured.copy_grads, full))  # type: ignore[no-untyped-call]
    return copy


def _of_no_image(
    captured: CapturedBatch, layer: nn.Module, copied: Mapping[str, str], *args: Any, **kwargs: Any
) -> Any:
    """An empty batch: not every module can be mapped over nothing, but its outputs must still reach the copies."""
    copies = [_hooked_copy(captured, layer.get_parameter(own), full, 0) for own, full in copied.items()]
    with _constant([parameter for parameter in layer.parameters() if parameter.requires_grad]):
        outputs = type(layer).forward(layer, *args, **kwargs)
    nothing = torch.stack([copy.sum() for copy in copies]).sum() if copies else 0
    return pytree.tree_map_only(Tensor, lambda output: output + nothing, outputs)


@contextmanager
def _constant(parameters: list[nn.Parameter]) -> Iterator[None]:
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _tapped(captured: CapturedBatch, site: SiteId, inputs: Tensor, output: Tensor) -> Tensor:
    hooked = partial(_hooked_output, captured, site)
    if captured.image is not None:

        def all_images(num_images: int, values: Sequence[Tensor], axes: Sequence[int | None]) -> Tensor:
            every_input, every_output = (
                # What does not depend on the image is given to each.
                value.expand(num_images, *value.shape) if axis is None else value.movedim(axis, 0)
                for value, axis in zip(values, axes, strict=True)
            )
            return hooked(every_input, every_output, is_alone=True)

        tapped: Tensor = _OutsideVmap.apply(all_images, captured.image, inputs, output)  # type: ignore[no-untyped-call]
        return tapped
    if captured.num_images is not None and inputs.shape[:1] == output.shape[:1] == (1,) != (captured.num_images,):
        # What all images share is given to each, so that each has a gradient of its own.
        every = (values.expand(captured.num_images, *values.shape[1:]) for values in (inputs, output))
        return hooked(*every, is_shared=True)
    return hooked(inputs, output)


def _hooked_output(
    captured: CapturedBatch,
    site: SiteId,
    inputs: Tensor,
    output: Tensor,
    *,
    is_alone: bool = False,
    is_shared: bool = False,
) -> Tensor:
    kept = inputs.detach()
    captured.sites[site] = CapturedSite(kept, kept._version, output.shape, output.dtype, is_alone, is_shared)
    if not output.requires_grad:
        output = _Rooted.apply(output, output.new_zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
    elif output._is_view():
        output = output.clone()  # a hook on a view gets the wrong gradient once a later layer has written into it
    _REGISTER_HOOK(output, partial(captured.add, captured.output_grads, site))  # type: ignore[no-untyped-call]
    return output


class _OutsideVmap(torch.autograd.Function):
    """``function(num_images, tensors, axes)``, called for all images at once outside the ``vmap`` that it is in."""

    @staticmethod
    def forward(function: Callable[..., Tensor], image: Tensor, *values: Tensor) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, function: Callable[..., Tensor], image: Tensor, *values: Tensor
    ) -> tuple[Tensor, int]:
        return function(info.batch_size, values, in_dims[2:]), 0


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
