"""Finding out, on two made-up records, how a model can be read: the rules must give what a plain backward pass gives.

The gradient of each record alone is compared with what the rules say when the two are run together. Where the record
axis does not stay first in every layer, every record is run alone. A parameter that still does not agree, because it is
also used where no rule sees it or because an input was changed in place after it was read, is given to each record as a
copy of its own. A model for which even that does not agree is refused.

No private record takes part, so what is found does not depend on any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.calling import Called
from lehr.gradients.differentiation import Differentiation, first_device
from lehr.gradients.layers import Layers
from lehr.gradients.made_up import ATTEMPTS, MadeUp
from lehr.gradients.mixing import refuse_mixed_records
from lehr.gradients.precision import narrow
from lehr.gradients.reading import Manner
from lehr.gradients.refusals import described, refuse_reentrant_checkpoints
from lehr.interfaces import Inputs, Tensors

LOG = logging.getLogger("lehr")
_RECORDS = 2
_DRAWS = 20  # of a model that draws random numbers in evaluation too: whether they make a difference
# Of a parameter's gradient, or of a hundredth of the whole one where that is more.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_ROUGH = 5e-2  # for half precision


class Disagreement(NotPrivate):
    """The rules, and copies of parameters too, give other gradients than a plain backward pass."""


@contextmanager
def _flags(model: nn.Module, flags: Sequence[bool]) -> Iterator[None]:
    layers = list(model.modules())
    before = [layer.training for layer in layers]
    for layer, training in zip(layers, flags, strict=True):
        layer.training = training
    try:
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training


class Trial:
    """Tries the manners in turn, the fastest first."""

    def __init__(self, model: nn.Module, layers: Layers, loss_fn: LossFn, *, views: int) -> None:
        self._layers = layers
        self._loss_fn = loss_fn
        self._views = views
        self._plain = model  # whose layers report to nobody
        self._called = Called(model)
        self._used: set[str] = set()  # the parameters that a loss depends on
        self._differentiation = Differentiation(layers, loss_fn, views=views, dtype=None)

    def manner(
        self, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any, *, is_alone: bool = False
    ) -> Manner:
        """The fastest manner in which the model's gradients come out right, for batches that look like this one.

        ``is_alone`` asks for one in which each record is run alone.
        """
        copied = tuple(sorted(self._layers.without_rule()))
        if copied:
            LOG.warning("no layer rule for %s: their gradients are stored record by record", ", ".join(copied))
        manner = Manner(copied, bool(copied) or is_alone, not is_alone)
        # In inference mode nothing could be differentiated, and what is tried here has to be.
        found: Manner | None = None
        untested = set(self._layers.names)
        with torch.inference_mode(False), batches.random_numbers_apart(first_device(parameters)):
            for attempt in ATTEMPTS:
                values = _values(attempt, parameters, buffers)
                device = batches.leaves(inputs)[0].device
                made_up = batches.each(lambda leaf: leaf.to(device), attempt.pairs((inputs, targets)))  # noqa: B023
                flags, expected = self._expected(attempt, *values, *made_up)
                if expected is None:
                    continue
                with _flags(self._layers.model, flags):
                    wrong_in: Callable[..., set[str]] = partial(self._wrong, attempt, expected, *values, *made_up)
                    if found is None or wrong_in(manner=found):
                        found = self._first_right(manner, wrong_in)
                untested = {name for name in untested if not any(record[name].any() for record in expected)}
                if not untested & self._used:  # a gradient of zeros agrees with whatever says nothing
                    return found
        if found is not None:
            LOG.info("all gradients of made-up records are zero: %s", ", ".join(sorted(untested & self._used)))
            return found
        LOG.warning("the model cannot be tried on made-up records: each record is run alone, which is slower")
        return replace(manner, is_record_by_record=True)

    def _first_right(self, manner: Manner, wrong_in: Callable[[Manner], set[str]]) -> Manner:
        manner, wrong = self._first_that_runs(manner, wrong_in)
        if wrong and not manner.is_record_by_record:
            manner = replace(manner, is_record_by_record=True)
            wrong = wrong_in(manner)
            LOG.warning("the record axis does not stay first in every layer: each record is run alone, which is slower")
        if wrong:
            LOG.warning("used where no layer rule sees it: %s; stored record by record", ", ".join(sorted(wrong)))
            manner = replace(manner, copied=tuple(sorted({*manner.copied, *wrong})))
            wrong = wrong_in(manner)
        if wrong:
            raise Disagreement(
                layer=", ".join(sorted(wrong)),
                reason="its gradient for one record alone is not the one that a plain backward pass gives",
                instead="lehr.gradients.materialised.MaterialisedEngine, or freeze it",
            )
        return manner

    def _first_that_runs(self, manner: Manner, wrong_in: Callable[[Manner], set[str]]) -> tuple[Manner, set[str]]:
        """Together with channels innermost; together as they come, for a model that views images as rows; or alone."""
        if not manner.is_record_by_record:
            for is_channels_last in (True, False):
                together = replace(manner, is_channels_last=is_channels_last)
                try:
                    return together, wrong_in(together)
                except Exception as error:  # a view of another layout, or a record axis that is not the first
                    LOG.info("cannot be run together: %s", error)
            manner = replace(manner, is_record_by_record=True, is_channels_last=False)
            LOG.warning("the model cannot be run on several records at once: each is run alone, which is slower")
        return manner, wrong_in(manner)

    def _expected(
        self, attempt: MadeUp, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any
    ) -> tuple[list[bool], list[Tensors] | None]:
        """The gradients of each made-up record by itself, and the training flags that they were had with.

        In the user's own flags, and where the model then draws random numbers, in evaluation; nothing where the model
        cannot be run on such records, or gives numbers for them that are not finite.
        """
        given = [layer.training for layer in self._plain.modules()]
        for flags in (given, [False] * len(given)):
            with _flags(self._plain, flags):
                try:
                    before = _generators(parameters)
                    once = self._alone(attempt, parameters, buffers, inputs, targets)
                    is_random = _generators(parameters) != before
                    is_last = flags is not given
                    again = [
                        self._alone(attempt, parameters, buffers, inputs, targets)
                        for _ in range(_DRAWS if is_random and is_last else 1)
                    ]
                except (InvalidValue, NotPrivate):
                    raise
                except Exception as error:
                    LOG.info("the model cannot be tried on made-up records: %s", error)
                    return flags, None
                if not all(grad.isfinite().all() for record in once for grad in record.values()):
                    return flags, None
                self._refuse_mixed(attempt, {**parameters, **buffers}, inputs)
                if is_random and not is_last:
                    continue  # two draws that are the same by chance say nothing
                pairs = [pair for other in again for pair in zip(once, other, strict=True)]
                if not any(_differing(some, others) for some, others in pairs):
                    return flags, once
        return flags, None

    def _refuse_mixed(self, attempt: MadeUp, values: Tensors, inputs: Inputs) -> None:
        refuse_mixed_records(
            self._plain,
            lambda inputs: (self._outputs(attempt, values, inputs), []),
            batches.flat_views(inputs, views=self._views),
            num_images=_RECORDS * self._views,
            views=self._views,
        )

    def _alone(
        self, attempt: MadeUp, parameters: Tensors, buffers: Tensors, inputs: Inputs, targets: Any
    ) -> list[Tensors]:
        given = dict(self._plain.named_parameters())
        trained = {
            name: parameters[name].detach().requires_grad_() if attempt.is_wide else given[name]
            for name in self._layers.names
        }
        values = {**parameters, **buffers, **trained}
        found = []
        with torch.enable_grad():
            for at in range(_RECORDS):
                record = batches.each(lambda leaf, at=at: leaf[at : at + 1], (inputs, targets))  # type: ignore[misc]
                found.append(self._gradient_of(self._loss(attempt, values, *record), trained))
        return found

    def _gradient_of(self, loss: Tensor, trained: dict[str, Tensor]) -> Tensors:
        refuse_reentrant_checkpoints(self._plain, loss)
        try:
            found: tuple[Tensor | None, ...] = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
            found = tuple(grad.to_dense() if grad is not None and grad.is_sparse else grad for grad in found)
        except RuntimeError as error:
            raise NotPrivate(
                layer=described("", self._plain),
                reason=f"a plain backward pass through it fails ({error})",
                instead="operations that do not change in place what a layer was given",
            ) from error
        pairs: dict[str, Tensor | None] = dict(zip(trained, found, strict=True))
        self._used |= {name for name, grad in pairs.items() if grad is not None}
        return {name: torch.zeros_like(trained[name]) if grad is None else grad for name, grad in pairs.items()}

    def _loss(self, attempt: MadeUp, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        repeated = batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets)
        losses = self._loss_fn(self._outputs(attempt, values, batches.flat_views(inputs, views=self._views)), repeated)
        return batches.one_each(losses, num_records=self._views).mean()

    def _outputs(self, attempt: MadeUp, values: Tensors, inputs: Inputs) -> Any:
        if not attempt.is_wide:
            return batches.call(self._plain, inputs)
        return batches.call(lambda *args, **kwargs: self._called(values, args, kwargs), inputs)

    def _wrong(
        self,
        attempt: MadeUp,
        expected: list[Tensors],
        parameters: Tensors,
        buffers: Tensors,
        inputs: Inputs,
        targets: Any,
        manner: Manner,
    ) -> set[str]:
        """The parameters whose gradient is not as expected for one of the records."""
        reading = self._differentiation.reading(manner, parameters, buffers, inputs, targets)
        every = torch.ones(_RECORDS, dtype=torch.bool, device=first_device(parameters))
        with torch.no_grad():
            gradients = self._differentiation.gradients(reading, parameters, buffers, inputs, targets, every)
            found = [gradients.weighted_sum(weights) for weights in torch.eye(_RECORDS, device=every.device)]
        pairs = zip(expected, found, strict=True)
        return {name for some, others in pairs for name in _differing(some, others)}


def _generators(values: Tensors) -> list[bytes]:
    """The states of the generators that a model may draw from."""
    device = first_device(values)
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return [state.numpy().tobytes() for state in states]


def _values(attempt: MadeUp, parameters: Tensors, buffers: Tensors) -> tuple[Tensors, Tensors]:
    """In float64, away from where they are; or as they are, but for buffers that a run might write to."""
    if not attempt.is_wide:
        return parameters, {name: buffer.clone() for name, buffer in buffers.items()}
    wide, wide_buffers = narrow((dict(parameters), dict(buffers)), torch.float64)
    return _moved(wide), wide_buffers


def _differing(expected: Tensors, found: Tensors) -> set[str]:
    """The parameters whose gradient is not as expected."""
    # The narrowest type that takes part anywhere rounds what all of them are given.
    tolerance = max(_TOLERANCES.get(grad.dtype, _ROUGH) for grad in expected.values())
    least = _whole(expected) / 100
    return {
        name
        for name, grad in expected.items()
        if not float((grad - found[name]).norm()) <= tolerance * max(float(grad.norm()), least)
    }


def _moved(parameters: Tensors) -> dict[str, Tensor]:
    """A little away from where they are: behind a gain that begins at zero nothing would make a difference yet."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: value + 0.05 * torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
        for name, value in parameters.items()
    }


def _whole(gradients: Tensors) -> float:
    return float(torch.stack([grad.square().sum() for grad in gradients.values()]).sum().sqrt())
