"""Finding out, on two made-up records, how a model can be read: the rules must give what a plain backward pass gives.

The gradient of each record alone is compared with what the rules say when the two are run together. Where the record
axis does not stay first in every layer, every record is run alone. A parameter that still does not agree, because it is
also used where no rule sees it or because an input was changed in place after it was read, is given to each record as a
copy of its own. A model for which even that does not agree is refused.

No private record takes part, so what is found does not depend on any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lehr.errors import NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import Inputs, LossFn
from lehr.gradients.differentiation import Differentiation, first_device
from lehr.gradients.layers import Layers, copy_without_memory
from lehr.gradients.mixing import refuse_mixed_records
from lehr.gradients.precision import narrow
from lehr.gradients.reading import Reading
from lehr.gradients.refusals import described
from lehr.interfaces import Tensors

LOG = logging.getLogger("lehr")
_RECORDS = 2
_TOLERANCE = 1e-6  # of a parameter's gradient, or of a hundredth of the whole one where that is more


@dataclass(frozen=True)
class Manner:
    """How a model is run: which parameters each record has a copy of, and whether each record is run alone."""

    copied: tuple[str, ...]
    is_record_by_record: bool


class Trial:
    """Tries the manners in turn, the fastest first."""

    def __init__(self, model: nn.Module, layers: Layers, loss_fn: LossFn, *, views: int) -> None:
        self._layers = layers
        self._loss_fn = loss_fn
        self._views = views
        self._plain = copy_without_memory(model).eval()  # whose layers report to nobody
        self._differentiation = Differentiation(layers, loss_fn, views=views, dtype=None)

    def manner(self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> Manner:
        """The fastest manner in which the model's gradients come out right, for batches that look like this one."""
        copied = tuple(sorted(self._layers.without_rule()))
        if copied:
            LOG.warning("no layer rule for %s: their gradients are stored record by record", ", ".join(copied))
        manner = Manner(copied, bool(copied))
        # In float64, where nothing but a mistake makes a difference.
        values = narrow((_moved(parameters), buffers), torch.float64)
        made_up = batches.each(partial(_made_up, device=first_device(parameters)), (inputs, targets))
        with batches.random_numbers_apart(first_device(parameters)):
            expected = self._expected(*values, *made_up)
            if expected is None:
                return manner
            self._layers.model.eval()  # the engine brings back the user's flags before the next batch
            return self._first_right(manner, partial(self._wrong, expected, *values, *made_up))

    def _first_right(self, manner: Manner, wrong_in: Callable[[Manner], set[str]]) -> Manner:
        try:
            wrong = wrong_in(manner)
        except Exception:  # shapes that do not fit, where the record axis is not the first
            if manner.is_record_by_record:
                raise
            wrong = set(self._layers.names)
        if wrong and not manner.is_record_by_record:
            manner = replace(manner, is_record_by_record=True)
            wrong = wrong_in(manner)
            LOG.warning("the record axis does not stay first in every layer: each record is run alone, which is slower")
        if wrong:
            LOG.warning("used where no layer rule sees it: %s; stored record by record", ", ".join(sorted(wrong)))
            manner = replace(manner, copied=tuple(sorted({*manner.copied, *wrong})))
            wrong = wrong_in(manner)
        if wrong:
            raise NotPrivate(
                layer=", ".join(sorted(wrong)),
                reason="its gradient for one record alone is not the one that a plain backward pass gives",
                instead="lehr.gradients.materialised.MaterialisedEngine, or freeze it",
            )
        return manner

    def _expected(self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> list[Tensors] | None:
        """The gradients of each made-up record by itself; nothing where the model cannot be run on such records."""
        try:
            once, again = (self._alone(parameters, buffers, inputs, targets) for _ in range(2))
        except NotPrivate:
            raise
        except Exception as error:
            LOG.info(
                "the model cannot be tried on made-up records (%s); its layer rules are taken at their word", error
            )
            return None
        refuse_mixed_records(
            self._plain,
            lambda inputs: (self._outputs({**parameters, **buffers}, inputs), []),
            batches.flat_views(inputs, views=self._views),
            num_images=_RECORDS * self._views,
            views=self._views,
        )
        pairs = zip(once, again, strict=True)
        if any(_differs(some[name], others[name], whole=_whole(some)) for some, others in pairs for name in some):
            LOG.info("the model draws random numbers even in evaluation; its layer rules are taken at their word")
            return None
        return once

    def _alone(self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any) -> list[Tensors]:
        trained = {name: parameters[name].detach().requires_grad_() for name in self._layers.names}
        values = {**parameters, **buffers, **trained}
        found = []
        with torch.enable_grad():
            for at in range(_RECORDS):
                record = batches.each(lambda leaf, at=at: leaf[at : at + 1], (inputs, targets))  # type: ignore[misc]
                found.append(self._gradient_of(self._loss(values, *record), trained))
        return found

    def _gradient_of(self, loss: Tensor, trained: dict[str, Tensor]) -> Tensors:
        try:
            found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True, materialize_grads=True)
        except RuntimeError as error:
            raise NotPrivate(
                layer=described("", self._plain),
                reason=f"a plain backward pass through it fails ({error})",
                instead="operations that do not change in place what a layer was given",
            ) from error
        return dict(zip(trained, found, strict=True))

    def _loss(self, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        repeated = batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets)
        return self._loss_fn(self._outputs(values, batches.flat_views(inputs, views=self._views)), repeated).mean()

    def _outputs(self, values: Tensors, inputs: Inputs) -> Any:
        return batches.call(lambda *args, **kwargs: functional_call(self._plain, dict(values), args, kwargs), inputs)

    def _wrong(
        self,
        expected: list[Tensors],
        parameters: Tensors,
        buffers: Tensors,
        inputs: Inputs,
        targets: Any,
        manner: Manner,
    ) -> set[str]:
        """The parameters whose gradient is not as expected for one of the records."""
        outlets = self._differentiation.outlets(parameters, buffers, inputs, targets)
        reading = Reading(outlets, manner.copied, manner.is_record_by_record)
        every = torch.ones(_RECORDS, dtype=torch.bool, device=first_device(parameters))
        with torch.no_grad():
            gradients = self._differentiation.gradients(reading, parameters, buffers, inputs, targets, every)
            found = [gradients.weighted_sum(weights) for weights in torch.eye(_RECORDS, device=every.device)]
        return {
            name
            for some, others in zip(expected, found, strict=True)
            for name in some
            if _differs(some[name], others[name], whole=_whole(some))
        }


def _moved(parameters: Tensors) -> dict[str, Tensor]:
    """A little away from where they are: behind a gain that begins at zero nothing would make a difference yet."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + 0.05 * torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
        for name, value in parameters.items()
    }


def _made_up(leaf: Tensor, *, device: torch.device) -> Tensor:
    """Two records of the same shape and type: numbers drawn at random, indices 0 and 1, nothing masked out."""
    shape = (_RECORDS, *leaf.shape[1:])
    if leaf.is_floating_point():
        return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    if leaf.dtype is torch.bool:
        return torch.ones(shape, dtype=leaf.dtype, device=device)
    indices = torch.arange(_RECORDS, dtype=leaf.dtype, device=device)
    return indices.reshape(-1, *(1 for _ in shape[1:])).expand(shape).clone()


def _whole(gradients: Tensors) -> float:
    return float(torch.stack([grad.square().sum() for grad in gradients.values()]).sum().sqrt())


def _differs(expected: Tensor, found: Tensor, *, whole: float) -> bool:
    """Numbers that are not finite say nothing, since such a record counts as zero."""
    if not expected.isfinite().all():
        return False
    allowed = _TOLERANCE * max(float(expected.norm()), whole / 100)
    return not float((expected - found).norm()) <= allowed
