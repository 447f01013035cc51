"""The fast engine: norms and weighted sums of per-record gradients without storing one of them.

One forward pass, one backward pass to the outputs of the layers, norms from pairs of inputs and output gradients, and
one weighted sum from the same pairs; ``private_sum`` compiles all of it, the clip rule included, into one graph.

Axes: B records, K views of one record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr import validate
from lehr.errors import InvalidValue, LehrError
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.compiling import compiled_step
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.differentiation import Differentiation
from lehr.gradients.layers import Layers
from lehr.gradients.made_up import ATTEMPTS
from lehr.gradients.masks import checked_mask
from lehr.gradients.materialised import ChunkedGradients, MaterialisedEngine
from lehr.gradients.mixing import DRAWS_IN_PYTHON, draws_for_all
from lehr.gradients.physical import physical_batches
from lehr.gradients.precision import PRECISIONS
from lehr.gradients.reading import Manner, Reading
from lehr.gradients.replay import Replayed
from lehr.gradients.same_draws import restore_python, states_of_python
from lehr.gradients.trial import Disagreement, Trial
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Tensors

LOG = logging.getLogger("lehr")
_NOT_TO_BE_REPEATED = (LehrError, torch.OutOfMemoryError)


class GhostEngine:
    """Differentiates a model record by record.

    ``loss_fn(outputs, targets)`` returns one loss per record (``reduction="none"``). With ``views=K`` every input has a
    second axis of K augmented copies, whose gradients are averaged before a norm is taken. With
    ``precision="bfloat16"`` the model runs in bfloat16 while its weights, the norms and the sums stay in float32.
    ``physical_batch`` is the most records that are run at once; a larger batch is run in parts of that size, the last
    one padded. ``compiled`` and, on a GPU, ``cuda_graphs`` can be switched off to look into a step.

    Which parameters are trained is read once, here. The model itself is never touched: its weights are read where they
    are whenever a batch comes, and its training flags are followed.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        *,
        views: int = 1,
        precision: str = "as_model",
        physical_batch: int | None = None,
        compiled: bool = True,
        cuda_graphs: bool = True,
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._views = validate.count(views=views)
        self._dtype = PRECISIONS[validate.one_of(PRECISIONS, precision=precision)]
        self._physical_batch = None if physical_batch is None else validate.count(physical_batch=physical_batch)
        self._is_compiled, self._has_graphs = compiled, cuda_graphs
        self._layers = Layers(model)
        self._built = _build(model)
        self._differentiation = Differentiation(self._layers, loss_fn, views=self._views, dtype=self._dtype)
        self._attributes = [_plain_attributes(layer) for layer in model.modules()]
        for own, known in zip(self._layers.model.modules(), self._attributes, strict=True):
            own.__dict__.update({name: value for name, value in known.items() if isinstance(value, Tensor)})
        self._changes = 0
        self._manners: dict[Any, Manner | None] = {}
        self._alone: dict[Any, Manner | None] = {}
        self._together: dict[Any, bool] = {}
        self._in_full = MaterialisedEngine(model, loss_fn, views=self._views)
        self._readings: dict[Any, Reading] = {}
        self._steps: dict[Any, Callable[..., dict[str, Tensor]]] = {}

    def gradients(
        self,
        inputs: Inputs,
        targets: Any,
        mask_B: Tensor | None = None,  # noqa: N803
    ) -> ContributedGradients | ChunkedGradients:
        """The gradients of a batch, computed at once and not compiled."""
        arguments = self._checked(inputs, targets, mask_B)
        if not arguments[2].shape[0]:
            return self._of_no_record()
        with torch.no_grad():
            values = self._values()
            reading = self._reading(values, inputs, targets, arguments[2].shape[0])
            if reading is not None:
                try:
                    return self._differentiation.gradients(reading, *values, *arguments)
                except _NOT_TO_BE_REPEATED:
                    raise
                except Exception as error:
                    self._run_in_full(self._way(inputs, targets), error)
        return self._in_full.gradients(*arguments)

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:  # noqa: N803
        """The clipped sum over a batch, in one compiled graph; where it is larger than fits, in several runs."""
        arguments = self._checked(inputs, targets, mask_B)
        if not arguments[2].shape[0]:
            return clip(self.gradients(inputs, targets, mask_B))
        values = self._values()
        num_records = self._physical_batch or arguments[2].shape[0]
        reading = self._reading(values, inputs, targets, num_records)
        if reading is None:
            return self._in_full.private_sum(clip, *arguments)
        step = self._step(reading, clip, num_records)
        total: dict[str, Tensor] | None = None
        with torch.no_grad():
            for part in physical_batches(arguments, size=self._physical_batch):
                try:
                    found = step(values, part)
                except _NOT_TO_BE_REPEATED:
                    raise
                except Exception as error:
                    if self._is_compiled:
                        raise
                    self._run_in_full(self._way(inputs, targets), error)
                    return self._in_full.private_sum(clip, *arguments)
                total = found if total is None else {name: total[name] + found[name] for name in found}
        assert total is not None
        return PrivateSum(values=total, sensitivity=clip.sensitivity)

    @property
    def is_in_full(self) -> bool:
        """Whether some batches are run by the materialised engine, since the rules cannot be used for this model."""
        return None in self._manners.values()

    def _run_in_full(self, way: Any, error: Exception, *, is_made_up: bool = False) -> None:
        # An error on private records may quote one of them: only its kind is shown.
        lines = str(error).strip().splitlines() if is_made_up else []
        why = lines[0] if lines else type(error).__name__
        LOG.warning("gradients are formed in full, a few records at a time, which is slower: %s", why)
        self._in_full.loops = self._in_full.loops or isinstance(error, Disagreement)
        if self._dtype is not None:
            allowed = "as_model for a model whose gradients have to be formed in full"
            raise InvalidValue("precision", allowed=allowed, given=str(self._dtype)) from None
        self._manners[way] = None

    def _of_no_record(self) -> ContributedGradients:
        parameters, _ = self._values()
        nobody = torch.ones(0, dtype=torch.bool, device=next(iter(parameters.values())).device)
        margin = self._differentiation.margin(parameters)
        return ContributedGradients(self._layers.of_no_record(parameters), mask_B=nobody, margin=margin)

    def _step(self, reading: Reading, clip: ClipRule, num_records: int) -> Callable[..., dict[str, Tensor]]:
        # A recording would not know of a rule, or of a layer's setting, that was changed in place.
        key = (id(reading), clip, clip.sensitivity, num_records, self._changes)
        if key not in self._steps:
            if self._is_compiled:
                clip(self._of_no_record())  # a rule that refuses says so here, and not from inside the compiler

            def step(held: tuple[Tensors, Tensors], arguments: tuple[Any, Any, Tensor]) -> dict[str, Tensor]:
                return clip(self._differentiation.gradients(reading, *held, *arguments)).values

            self._steps[key] = self._made_fast(step)
        return self._steps[key]

    def _made_fast(self, step: Callable[..., dict[str, Tensor]]) -> Callable[..., dict[str, Tensor]]:
        if not self._is_compiled:
            return step
        compiled = compiled_step(step)
        if not self._has_graphs:
            return compiled
        replayed = Replayed(compiled)

        def copied_out(held: Any, arguments: Any) -> dict[str, Tensor]:
            # What a recording returns is overwritten by the next batch, and a sum must outlive that.
            return {name: value.clone() for name, value in replayed(held, arguments).items()}

        return copied_out

    def _checked(self, inputs: Inputs, targets: Any, mask_B: Tensor | None) -> tuple[Inputs, Any, Tensor]:  # noqa: N803
        num_records = batches.num_records(inputs, targets)
        batches.check_views(inputs, views=self._views)
        device = next(self._model.parameters()).device
        return inputs, targets, checked_mask(mask_B, num_records=num_records, device=device)

    def _values(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights and buffers of the moment; flags and other plain attributes are followed along the way."""
        built = _build(self._model)
        if built != self._built:
            changed = sorted(" ".join(item) for item in built.symmetric_difference(self._built))
            allowed = "one with the layers and parameters, trainable or frozen, that it had when the engine was built"
            raise InvalidValue("model", allowed=allowed, given=changed)
        pairs = zip(self._layers.model.modules(), self._model.modules(), self._attributes, strict=True)
        for own, given, known in pairs:
            for name, value in _plain_attributes(given).items():
                if _is_another(value, known.get(name)):
                    known[name] = own.__dict__[name] = value
                    self._changes += name != "training"  # which is part of a reading anyway
        parameters = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        return parameters, dict(self._model.named_buffers())

    def _reading(
        self, values: tuple[Tensors, Tensors], inputs: Inputs, targets: Any, num_records: int
    ) -> Reading | None:
        """How to read batches of this shape, of so many records at once; none where gradients are formed in full.

        How the model is run is found out at the first one, on made-up records, and again after a setting was changed:
        it may decide which layers are used, and what is used behind their backs. Records are run together only where
        that is proven to keep them apart; otherwise each is run alone.
        """
        way = self._way(inputs, targets)
        if way not in self._manners:
            trial = Trial(self._model, self._layers, self._loss_fn, views=self._views)
            manner, failed = self._tried(trial, values, inputs, targets)
            values = self._values()
            way = self._way(inputs, targets)  # a model that notes something when it is run was changed by the trial
            self._manners[way] = manner
            if failed is not None:
                self._run_in_full(way, failed, is_made_up=True)
        manner = self._manners[way]
        if manner is None:
            return None
        shapes = tuple(tuple(leaf.shape[1:]) for leaf in batches.leaves((inputs, targets)))
        reading = self._read(manner, (way, shapes), values, inputs, targets)
        if reading.manner.is_record_by_record:
            return reading
        size = (way, shapes, num_records)
        if size not in self._together:
            why = self._differentiation.why_not_together(reading, *values, inputs, targets, num_records=num_records)
            self._together[size] = why is None
            if why is not None and way not in self._alone:
                LOG.warning("records are not proven to be kept apart: each is run alone, which is slower (%s)", why)
                trial = Trial(self._model, self._layers, self._loss_fn, views=self._views)
                self._alone[way], failed = self._tried(trial, values, inputs, targets, is_alone=True)
                if failed is not None:
                    self._run_in_full(way, failed, is_made_up=True)
        if self._together[size]:
            return reading
        alone = self._alone[way]
        return None if alone is None else self._read(alone, (way, shapes, "alone"), values, inputs, targets)

    def _read(self, manner: Manner, key: Any, values: tuple[Tensors, Tensors], inputs: Inputs, targets: Any) -> Reading:
        if key not in self._readings:
            self._readings[key] = self._differentiation.reading(manner, *values, inputs, targets)
        return self._readings[key]

    def _tried(
        self,
        trial: Trial,
        values: tuple[Tensors, Tensors],
        inputs: Inputs,
        targets: Any,
        *,
        is_alone: bool = False,
    ) -> tuple[Manner | None, Exception | None]:
        """How the model can be run; or, where only a loop over records gives what a plain backward pass does, why."""
        shared, of_python = self._draws_for_all(inputs), states_of_python()
        if shared == DRAWS_IN_PYTHON:
            return None, RuntimeError(shared)
        try:
            manner = trial.manner(*values, inputs, targets, is_alone=is_alone)
        except Disagreement as error:
            return None, error
        except _NOT_TO_BE_REPEATED:
            raise
        except Exception as error:  # what vmap cannot run; what the model cannot run is said by the other engine
            return None, error
        finally:
            restore_python(of_python)
        if shared is not None and not manner.is_record_by_record:
            LOG.warning("each record is run alone, which is slower: %s", shared)
            manner = replace(manner, is_record_by_record=True, is_channels_last=False)
        return manner, None

    def _draws_for_all(self, inputs: Inputs) -> str | None:
        images = batches.flat_views(inputs, views=self._views)
        num_images = batches.leaves(images)[0].shape[0]
        run = partial(batches.call, self._model)
        found = (
            draws_for_all(self._model, run, lambda rows, of=attempt: of.batch(images, num_images=num_images, rows=rows))  # type: ignore[misc]
            for attempt in ATTEMPTS
            if not attempt.is_wide
        )
        return next(filter(None, found), None)

    def _way(self, inputs: Inputs, targets: Any) -> Any:
        """What a manner is found out for."""
        flags = tuple(layer.training for layer in self._model.modules())  # some layers are only used in training
        leaves, structure = pytree.tree_flatten((inputs, targets))
        return structure, flags, self._changes, tuple((leaf.dim(), leaf.dtype) for leaf in batches.leaves(leaves))


def _build(model: nn.Module) -> frozenset[tuple[str, str]]:
    """The paths of a model's layers and parameters, the first where one has several, and what kind each is of."""
    layers = {(path or "model", type(layer).__name__) for path, layer in model.named_modules()}
    parameters = model.named_parameters()
    return frozenset(layers | {(path, "trainable" if value.requires_grad else "frozen") for path, value in parameters})


def _plain_attributes(layer: nn.Module) -> dict[str, Any]:
    """Training flags, rates of dropout and other numbers and tensors that may be changed between batches."""
    return {name: value for name, value in vars(layer).items() if isinstance(value, bool | int | float | str | Tensor)}


def _is_another(value: object, before: object) -> bool:
    return value is not before and (isinstance(value, Tensor) or value != before)
