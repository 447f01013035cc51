"""The engine for a model whose weights are spread over several processes, and gathered layer by layer while it runs.

It is the hooked engine: each layer runs by its own ``forward``, between the hooks by which torch's ``fully_shard``
gathers its weights and lets them go again. What a layer was given and the gradient of what it gave back are enough for
norms and sums, so that no weight has to be there when these are made. As soon as the clipped sum of one parameter is
there it is handed to ``kept``, which may keep a part of it only: whole sums of two parameters are never held at once.

The records are tried for mixing while the weights are still whole; ``let_go`` is called when they no longer are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.masks import checked_mask
from lehr.gradients.refusals import described
from lehr.interfaces import ClipRule, Inputs, PrivateSum

Kept = Callable[[str, Tensor], Tensor]


class ShardedEngine(HookedEngine):
    """Sums clipped gradients of a model as ``GhostEngine`` does, without being compiled."""

    _can_run_alone = False  # a layer's weights are gathered when it is called, which vmap does not allow

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, views: int = 1) -> None:
        refuse_what_cannot_be_sharded(model)
        super().__init__(model, loss_reduction="sum", views=views)
        for path in self._with_copies():
            _refuse_layers_inside(path, model.get_submodule(path))
        self._loss_fn = loss_fn
        self._kept: Kept | None = None

    def let_go(self, kept: Kept) -> None:
        """From now on weights are gathered only while a layer runs, and of each sum only what this returns is held."""
        self._kept = kept
        self._layers.model.to("meta")

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:  # noqa: N803
        """The clipped sum over a batch, or what is kept of it here."""
        num_records = batches.num_records(inputs, targets)
        batches.check_views(inputs, views=self._views)
        mask = checked_mask(mask_B, num_records=num_records, device=batches.leaves(inputs)[0].device)
        images = batches.flat_views(inputs, views=self._views)
        repeated = batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets)
        with self:
            losses = self._loss_fn(batches.call(self._model, images), repeated)
            torch.autograd.backward(batches.one_each(losses, num_records=num_records * self._views).sum())
            gradients = self.gradients(mask, kept=self._kept)
            self._refuse_gradients_of_torch()
        with torch.no_grad():
            return clip(gradients)

    def _held(self) -> dict[str, Tensor]:
        held = super()._held()
        return held if self._kept is None else {name: value.to_local() for name, value in held.items()}  # type: ignore[attr-defined]

    def _way(self, inputs: Any) -> Any:
        way = super()._way(inputs)
        if self._kept is not None and way not in self._tried:
            allowed = "of the kind that was tried before the weights were spread out"
            raise InvalidValue("inputs", allowed=allowed, given=str(way[1]))
        return way

    def _refuse_gradients_of_torch(self) -> None:
        """Where torch finds a gradient by itself, it is one of all records, without a clip."""
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                parameter.grad = None
                reason = "this parameter is used outside the forward pass of the layer that holds it"
                raise NotPrivate(layer=name, reason=reason, instead="call that layer itself, or train without sharding")


def _refuse_layers_inside(path: str, layer: nn.Module) -> None:
    if any(layer.children()) or isinstance(layer, nn.RNNBase):
        reason = "it has a parameter without a rule, and layers of its own or recurrent cells, which are run by vmap"
        instead = "put the parameter into a layer without children, train without sharding, or freeze it"
        raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)


def refuse_what_cannot_be_sharded(model: nn.Module) -> None:
    """Refuse, by name, weights that are used in two places, computed, or single numbers: those have no rows."""
    names = [name for name, _ in model.named_parameters()]
    for name, value in model.named_parameters(remove_duplicate=False):
        if name not in names:
            raise InvalidValue("model", allowed="one without shared weights where it is sharded", given=name)
        if not value.dim():
            raise InvalidValue("model", allowed="one without single numbers as weights where it is sharded", given=name)
    for name, layer in model.named_modules():
        if parametrize.is_parametrized(layer):
            allowed = "one without computed weights (torch.nn.utils.parametrize) where it is sharded"
            raise InvalidValue("model", allowed=allowed, given=described(name, layer))
