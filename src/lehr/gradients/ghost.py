"""The fast engine: norms and weighted sums of per-record gradients without storing one of them.

    GhostEngine   one forward pass, one backward pass to the outputs of the layers, norms and a weighted sum from pairs
                  of inputs and output gradients; ``private_sum`` compiles all of it, with the clip rule, into one graph
    ModeSearch    finds out, on two synthetic records, how a model can be run

The search compares the gradient of each record alone, from a plain backward pass, with what the rules give when both
are run together. Where the record axis does not stay first in every layer, every record is run alone. A parameter that
still does not agree, because it is also used where no rule sees it or because an input was changed in place after it
was read, is given to each record as a copy of its own. A model for which even that does not agree is refused. No
private record takes part.

Axes: B records, K views of one record.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import prod
from operator import is_not
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr import validate
from lehr.errors import InvalidValue, LehrError, NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.differentiation import Batch, CapturePlan, Differentiation, ExecutionMode, Layers
from lehr.gradients.execution import (
    CudaGraphReplay,
    FunctionalModel,
    causal_attention,
    compile_step,
    is_out_of_memory,
    random_numbers_apart,
    rng_states,
)
from lehr.gradients.materialised import MaterialisedEngine, gradients_one_by_one
from lehr.gradients.precision import PRECISIONS
from lehr.gradients.record_axis import References, attributes_restored
from lehr.gradients.synthetic import ATTEMPTS, DRAWS_IN_PYTHON, SyntheticRecords, refuse_mixing, shared_draws
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Tensors, layer_rule

LOG = logging.getLogger("lehr")
_RECORDS = 2
MOST_WIDE_WEIGHTS = 2**24
_DRAWS = 20  # of a model that draws random numbers in evaluation too: whether they make a difference
# Of a parameter's gradient, or of a hundredth of the whole one where that is more.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_ROUGH = 5e-2  # for half precision
_RECURRENT = (
    "recurrent layers of torch have no layer rule; DPLSTM, DPGRU and DPRNN of lehr.integrations.opacus do, with the "
    "same arguments and weights"
)
Result = TypeVar("Result")


class GradientMismatch(NotPrivate):
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


class ModeSearch:
    """Tries the execution modes in turn, the fastest first."""

    def __init__(self, model: nn.Module, layers: Layers, loss_fn: LossFn, *, views: int) -> None:
        self._model, self._layers, self._loss_fn, self._views = model, layers, loss_fn, views
        self._functional = FunctionalModel(model)
        self._used: set[str] = set()  # the parameters that a loss depends on
        # Of a large model no copy in float64 is made: it is tried in its own types.
        self._is_large = sum(value.numel() for value in model.parameters()) > MOST_WIDE_WEIGHTS
        floats = [value.dtype for value in model.parameters() if value.is_floating_point()]
        self._least = max(_TOLERANCES.get(dtype, _ROUGH) for dtype in floats) if self._is_large else 0.0
        self._differentiation = Differentiation(layers, loss_fn, views=views, dtype=None)

    def mode(self, inputs: Inputs, targets: Any, *, is_alone: bool = False) -> ExecutionMode:
        """The fastest mode in which the model's gradients come out right, for batches that look like this one.

        ``is_alone`` asks for one in which each record is run alone.
        """
        copied = tuple(sorted(self._layers.without_rule()))
        if copied:
            LOG.warning("no layer rule for %s: their gradients are stored record by record", ", ".join(copied))
        mode = ExecutionMode(copied, bool(copied) or is_alone, not is_alone)
        found: ExecutionMode | None = None
        untested = set(self._layers.names)
        # In inference mode nothing could be differentiated, and what is tried here has to be.
        with torch.inference_mode(False), random_numbers_apart(next(self._model.parameters()).device):
            for attempt in (each for each in ATTEMPTS if not (each.is_wide and self._is_large)):
                batch = self._synthetic(attempt, inputs, targets)
                flags, expected = self._expected(attempt, batch)
                if expected is None:
                    continue
                with _flags(self._layers.model, flags):
                    wrong_in = partial(self._wrong, expected, batch)
                    if found is None or wrong_in(found):
                        found = self._first_right(mode, wrong_in)
                untested = {name for name in untested if not any(record[name].any() for record in expected)}
                if not untested & self._used:  # a gradient of zeros agrees with whatever says nothing
                    return found
        if found is not None:
            LOG.info("all gradients of synthetic records are zero: %s", ", ".join(sorted(untested & self._used)))
            return found
        LOG.warning("the model cannot be tried on synthetic records: each record is run alone, which is slower")
        return replace(mode, is_record_by_record=True)

    def _first_right(self, mode: ExecutionMode, wrong_in: Callable[[ExecutionMode], set[str]]) -> ExecutionMode:
        mode, wrong = self._first_that_runs(mode, wrong_in)
        if wrong and not mode.is_record_by_record:
            mode = replace(mode, is_record_by_record=True)
            wrong = wrong_in(mode)
            LOG.warning("the record axis does not stay first in every layer: each record is run alone, which is slower")
        if wrong:
            LOG.warning("used where no layer rule sees it: %s; stored record by record", ", ".join(sorted(wrong)))
            mode = replace(mode, copied=tuple(sorted({*mode.copied, *wrong})))
            wrong = wrong_in(mode)
        if wrong:
            raise GradientMismatch(
                layer=", ".join(sorted(wrong)),
                reason="its gradient for one record alone is not the one that a plain backward pass gives",
                instead="lehr.gradients.materialised.MaterialisedEngine, or freeze it",
            )
        return mode

    def _first_that_runs(
        self, mode: ExecutionMode, wrong_in: Callable[[ExecutionMode], set[str]]
    ) -> tuple[ExecutionMode, set[str]]:
        """Together with channels innermost; together as they come, for a model that views images as rows; or alone."""
        if not mode.is_record_by_record:
            for is_channels_last in (True, False):
                together = replace(mode, is_channels_last=is_channels_last)
                try:
                    return together, wrong_in(together)
                except Exception as error:  # a view of another layout, or a record axis that is not the first
                    if is_out_of_memory(error):
                        raise
                    LOG.info("cannot be run together: %s", error)
            mode = replace(mode, is_record_by_record=True, is_channels_last=False)
            LOG.warning("the model cannot be run on several records at once: each is run alone, which is slower")
        return mode, wrong_in(mode)

    def _synthetic(self, attempt: SyntheticRecords, inputs: Inputs, targets: Any) -> Batch:
        """Two synthetic records, and weights a little away from where they are."""
        values = {name: value.detach() for name, value in attempt.values(self._model).items()}
        parameters = {name: values.pop(name) for name, _ in self._model.named_parameters()}
        size = batches.num_records(inputs, targets)
        records = attempt.batch((inputs, targets), size, range(_RECORDS))
        return Batch(parameters, values, *records)

    def _expected(self, attempt: SyntheticRecords, batch: Batch) -> tuple[list[bool], list[Tensors] | None]:
        """The gradients of each synthetic record by itself, and the training flags that they were computed with.

        In the user's own flags, and where the model then draws random numbers, in evaluation; None where the model
        cannot be run on such records, or its gradients are not finite.
        """
        given = [layer.training for layer in self._model.modules()]
        for flags in (given, [False] * len(given)):
            with _flags(self._model, flags):
                try:
                    before = rng_states(batch.device)
                    once = self._alone(batch)
                    is_random = rng_states(batch.device) != before
                    is_last = flags is not given
                    again = [self._alone(batch) for _ in range(_DRAWS if is_random and is_last else 1)]
                except (InvalidValue, NotPrivate):
                    raise
                except Exception as error:
                    if is_out_of_memory(error):
                        raise
                    LOG.info("the model cannot be tried on synthetic records: %s", error)
                    return flags, None
                if not all(grad.isfinite().all() for record in once for grad in record.values()):
                    return flags, None
                self._refuse_mixing(attempt, batch)
                if is_random and not is_last:
                    continue  # two draws that are the same by chance say nothing
                pairs = [pair for other in again for pair in zip(once, other, strict=True)]
                if not any(_differing(some, others, self._least) for some, others in pairs):
                    return flags, once
        return flags, None

    def _refuse_mixing(self, attempt: SyntheticRecords, batch: Batch) -> None:
        images = batches.flat_views(batch.inputs, views=self._views)

        def outputs(inputs: Inputs) -> list[tuple[None, Tensor]]:
            found = batches.call(lambda *args, **kwargs: self._functional(batch.values, args, kwargs), inputs)
            return [(None, leaf) for leaf in batches.leaves(found)]

        refuse_mixing(self._model, outputs, partial(attempt.batch, images, _RECORDS * self._views), few=3)

    def _alone(self, batch: Batch) -> list[Tensors]:
        """The gradient of each synthetic record, by a plain backward pass."""
        found = gradients_one_by_one(
            self._model,
            self._loss_fn,
            batch.values,
            batch.inputs,
            batch.targets,
            views=self._views,
            copies_weights=not self._is_large,
        )
        self._used |= {name for record in found for name, grad in record.items() if grad is not None}
        return [
            {name: torch.zeros_like(batch.parameters[name]) if grad is None else grad for name, grad in record.items()}
            for record in found
        ]

    def _wrong(self, expected: list[Tensors], batch: Batch, mode: ExecutionMode) -> set[str]:
        """The parameters whose gradient is not as expected for one of the records."""
        plan = self._differentiation.plan(mode, batch)
        every = torch.ones(_RECORDS, dtype=torch.bool, device=batch.device)
        with torch.no_grad():
            gradients = self._differentiation.gradients(plan, batch, every)
            found = [gradients.weighted_sum(weights) for weights in torch.eye(_RECORDS, device=every.device)]
        pairs = zip(expected, found, strict=True)
        return {name for some, others in pairs for name in _differing(some, others, self._least)}


def _differing(expected: Tensors, found: Tensors, least_tolerance: float = 0.0) -> set[str]:
    """The parameters whose gradient is not as expected."""
    # The narrowest type that takes part anywhere rounds what all of them are given.
    tolerance = max(least_tolerance, *(_TOLERANCES.get(grad.dtype, _ROUGH) for grad in expected.values()))
    least = float(torch.stack([grad.square().sum() for grad in expected.values()]).sum().sqrt()) / 100
    return {
        name
        for name, grad in expected.items()
        if not float((grad - found[name]).norm()) <= tolerance * max(float(grad.norm()), least)
    }


class GhostEngine:
    """Differentiates a model record by record, without storing one gradient.

    ``loss_fn(outputs, targets)`` returns one loss per record (``reduction="none"``). With ``views=K`` every input has a
    second axis of K augmented copies, whose gradients are averaged before a norm is taken. With
    ``precision="bfloat16"`` the model runs in bfloat16 while its weights, the norms and the sums stay in float32.
    ``compiled`` and, on a GPU, ``cuda_graphs`` can be switched off to look into a step.

    ``passes="one"`` keeps what every layer was given and the gradient of its output until the norms are known. "two"
    computes the norms, and then all of it again with the weights, which takes less memory and more time, and is not
    compiled; results are the same. "auto" is "two" for models of transformers with gradient checkpointing, and where
    one pass would keep more than half of the free memory: ``kept_bytes`` of a batch, from its shapes.

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
        compiled: bool = True,
        cuda_graphs: bool = True,
        passes: str = "auto",
    ) -> None:
        self._passes = validate.one_of(("auto", "one", "two"), passes=passes)
        self._model = model
        self._loss_fn = loss_fn
        self._views = validate.count(views=views)
        self._dtype = PRECISIONS[validate.one_of(PRECISIONS, precision=precision)]
        self._is_compiled, self._has_graphs = compiled, cuda_graphs
        self._layers = Layers(model)
        self._built = _build(model)
        self._snapshot = _Snapshot(model)
        self._differentiation = Differentiation(self._layers, loss_fn, views=self._views, dtype=self._dtype)
        self._attributes = [_plain_attributes(layer) for layer in model.modules()]
        for own, known in zip(self._layers.model.modules(), self._attributes, strict=True):
            own.__dict__.update({name: value for name, value in known.items() if isinstance(value, Tensor)})
        self._changes = 0
        self._in_full = MaterialisedEngine(model, loss_fn, views=self._views)
        # How batches of one kind are run: by the fastest mode, or by one that runs each record alone; None is in full.
        self._modes: dict[tuple[Any, bool], ExecutionMode | None] = {}
        self._together: dict[Any, bool] = {}
        self._references: defaultdict[Any, References] = defaultdict(dict)
        self._plans: dict[Any, CapturePlan] = {}
        self._steps: dict[Any, Callable[..., dict[str, Tensor]]] = {}
        self._two_passes: dict[Any, bool] = {}

    def gradients(self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> ContributedGradients:
        """The gradients of a batch, computed at once and not compiled."""
        mask = self._check_batch(inputs, targets, mask_B)
        if not len(mask):
            return self._differentiation.of_no_record(self._values()[0])

        def run(plan: CapturePlan, batch: Batch) -> ContributedGradients:
            if self._is_in_two_passes(plan, len(mask)):
                return self._differentiation.in_two_passes(plan, batch, mask)
            return self._differentiation.gradients(plan, batch, mask)

        found = self._run_by_rules(run, inputs, targets, num_records=len(mask))
        return self._in_full.gradients(inputs, targets, mask) if found is None else found

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:
        """The clipped sum over a batch, in one compiled graph."""
        mask = self._check_batch(inputs, targets, mask_B)
        if not len(mask):
            return clip(self.gradients(inputs, targets, mask))

        def run(plan: CapturePlan, batch: Batch) -> PrivateSum:
            if self._is_in_two_passes(plan, len(mask)):
                return clip(self._differentiation.in_two_passes(plan, batch, mask))
            step = self._step(plan, clip, batch.parameters, num_records=len(mask))
            total = step(self._snapshot.held, (inputs, targets, mask))
            return PrivateSum(values=total, sensitivity=clip.sensitivity)

        found = self._run_by_rules(run, inputs, targets, num_records=len(mask), is_compiled=self._is_compiled)
        return self._in_full.private_sum(clip, inputs, targets, mask) if found is None else found

    @property
    def is_in_full(self) -> bool:
        """Whether some batches are run by the materialised engine, since the rules cannot be used for this model."""
        return None in self._modes.values()

    @property
    def is_in_two_passes(self) -> bool:
        """Whether some batches are run in two passes."""
        return any(self._two_passes.values())

    def _is_in_two_passes(self, plan: CapturePlan, num_records: int) -> bool:
        """A public rule: from what the user chose, and from shapes and free memory at the first batch of a kind."""
        key = (id(plan), num_records)
        if key not in self._two_passes:
            device = next(self._model.parameters()).device
            is_large = kept_bytes(plan, num_records) > free_memory(device) / 2
            is_two = self._passes == "two" or (self._passes == "auto" and (self._layers.is_checkpointed or is_large))
            if plan.mode.is_record_by_record and (self._passes == "two" or self._layers.is_checkpointed):
                LOG.warning("one pass, because each record is run alone: activations are not checkpointed")
            self._two_passes[key] = is_two and not plan.mode.is_record_by_record
        return self._two_passes[key]

    def _run_by_rules(
        self,
        run: Callable[[CapturePlan, Batch], Result],
        inputs: Inputs,
        targets: Any,
        *,
        num_records: int,
        is_compiled: bool = False,
    ) -> Result | None:
        """What ``run(plan, batch)`` returns; None where the gradients of such a batch have to be formed in full."""
        batch = Batch(*self._values(), inputs, targets)
        with causal_attention(inputs if isinstance(inputs, dict) else ()):
            return self._run_planned(run, batch, num_records=num_records, is_compiled=is_compiled)

    def _run_planned(
        self, run: Callable[[CapturePlan, Batch], Result], batch: Batch, *, num_records: int, is_compiled: bool
    ) -> Result | None:
        plan = self._plan(batch, num_records)
        if plan is None:
            return None
        try:
            with torch.no_grad():
                return run(plan, batch)
        except LehrError:
            raise
        except Exception as error:
            if is_compiled or is_out_of_memory(error):
                raise
            # An error on private records may quote one of them: only its kind is shown.
            self._run_in_full((self._kind(batch), False), why=type(error).__name__)
            return None

    def _run_in_full(self, key: tuple[Any, bool], *, why: str) -> None:
        if any(isinstance(layer, nn.RNNBase) and layer_rule(layer) is None for layer in self._model.modules()):
            why = _RECURRENT
        LOG.warning("gradients are formed in full, a few records at a time, which is slower: %s", why)
        if self._dtype is not None:
            allowed = "as_model for a model whose gradients have to be formed in full"
            raise InvalidValue("precision", allowed=allowed, given=str(self._dtype)) from None
        self._modes[key] = None

    def _step(
        self, plan: CapturePlan, clip: ClipRule, parameters: Tensors, *, num_records: int
    ) -> Callable[..., dict[str, Tensor]]:
        # A recording would not know of a rule, or of a layer's setting, that was changed in place.
        key = (id(plan), clip, clip.sensitivity, num_records, self._changes)
        if key not in self._steps:

            def step(held: tuple[Tensors, Tensors], arguments: tuple[Any, Any, Tensor]) -> dict[str, Tensor]:
                inputs, targets, mask_B = arguments
                return clip(self._differentiation.gradients(plan, Batch(*held, inputs, targets), mask_B)).values

            self._steps[key] = step
            if self._is_compiled:
                # A rule that refuses says so before it is compiled.
                clip(self._differentiation.of_no_record(parameters))
                compiled = compile_step(step)
                self._steps[key] = CudaGraphReplay(compiled).copied if self._has_graphs else compiled
        return self._steps[key]

    def _check_batch(self, inputs: Inputs, targets: Any, mask_B: Tensor | None) -> Tensor:
        device = next(self._model.parameters()).device
        return batches.check_batch(inputs, targets, mask_B, views=self._views, device=device)

    def _values(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The current weights and buffers; flags and other plain attributes are copied along the way."""
        if not self._snapshot.is_current():
            self._follow_changes()
        return self._snapshot.held

    def _follow_changes(self) -> None:
        built = _build(self._model)
        if built != self._built:
            changed = sorted(" ".join(item) for item in built.symmetric_difference(self._built))
            allowed = "one with the layers and parameters, trainable or frozen, that it had when the engine was built"
            raise InvalidValue("model", allowed=allowed, given=changed)
        pairs = zip(self._layers.model.modules(), self._model.modules(), self._attributes, strict=True)
        for own, given, known in pairs:
            for name, value in _plain_attributes(given).items():
                before = known.get(name)
                if value is not before and (isinstance(value, Tensor) or value != before):
                    known[name] = own.__dict__[name] = value
                    self._changes += name != "training"  # which is part of a plan anyway
        self._snapshot = _Snapshot(self._model)

    def _plan(self, batch: Batch, num_records: int) -> CapturePlan | None:
        """How to run batches of this shape, of this many records at once; None where gradients are formed in full.

        Records are run together only where that is proven to keep them apart; otherwise each is run alone.
        """
        mode = self._mode(batch)
        shapes = tuple(tuple(leaf.shape[1:]) for leaf in batches.leaves((batch.inputs, batch.targets)))
        kind = (self._kind(batch), shapes)
        if mode is not None and not mode.is_record_by_record:
            size = (kind, num_records)
            if size not in self._together:
                plan, references = self._plan_of(mode, kind, batch), self._references[kind]
                why = self._differentiation.why_not_together(
                    plan, batch, num_records=num_records, references=references
                )
                self._together[size] = why is None
                if why is not None and (kind[0], True) not in self._modes:
                    LOG.warning("records are not proven to be kept apart: each is run alone, which is slower (%s)", why)
            mode = mode if self._together[size] else self._mode(batch, is_alone=True)
        return None if mode is None else self._plan_of(mode, kind, batch)

    def _plan_of(self, mode: ExecutionMode, kind: Any, batch: Batch) -> CapturePlan:
        if (mode, kind) not in self._plans:
            self._plans[mode, kind] = self._differentiation.plan(mode, batch)
        return self._plans[mode, kind]

    def _mode(self, batch: Batch, *, is_alone: bool = False) -> ExecutionMode | None:
        """How batches of this kind are run; searched for at the first one, on synthetic records.

        A setting of the model that was changed makes another kind: it may decide which layers are used, and which
        parameters are used outside of them.
        """
        key = (self._kind(batch), is_alone)
        if key not in self._modes:
            try:
                with attributes_restored(self._model), random_numbers_apart(batch.device):
                    self._modes[key] = self._search(batch, is_alone=is_alone)
            except GradientMismatch as error:
                self._in_full.loops = True
                self._run_in_full(key, why=error.reason)
            except LehrError:
                raise
            except Exception as error:  # what vmap cannot run; what the model cannot run is said by the other engine
                if is_out_of_memory(error):
                    raise
                self._run_in_full(key, why=str(error).strip().partition("\n")[0] or type(error).__name__)
        return self._modes[key]

    def _search(self, batch: Batch, *, is_alone: bool) -> ExecutionMode:
        """How the model can be run. Raises where only a loop over records gives what a plain backward pass does."""
        images = batches.flat_views(batch.inputs, views=self._views)
        num_images, run = batches.leaves(images)[0].shape[0], partial(batches.call, self._model)
        narrow = [attempt for attempt in ATTEMPTS if not attempt.is_wide]
        reasons = (shared_draws(self._model, run, partial(each.batch, images, num_images)) for each in narrow)
        shared = next(filter(None, reasons), None)
        if shared == DRAWS_IN_PYTHON:
            raise RuntimeError(shared)
        search = ModeSearch(self._model, self._layers, self._loss_fn, views=self._views)
        mode = search.mode(batch.inputs, batch.targets, is_alone=is_alone)
        if shared is not None and not mode.is_record_by_record:
            LOG.warning("each record is run alone, which is slower: %s", shared)
            mode = replace(mode, is_record_by_record=True, is_channels_last=False)
        return mode

    def _kind(self, batch: Batch) -> Any:
        """What an execution mode is searched for."""
        leaves, structure = pytree.tree_flatten((batch.inputs, batch.targets))
        # Some layers are only used in training.
        forms = tuple((leaf.dim(), leaf.dtype) for leaf in batches.leaves(leaves))
        return structure, self._snapshot.flags, self._changes, forms


class _Snapshot:
    """What a model consists of, to see quickly whether anything but the numbers in its weights has changed.

    ``held`` has its weights and buffers.
    """

    def __init__(self, model: nn.Module) -> None:
        layers, parameters, buffers = list(model.modules()), dict(model.named_parameters()), dict(model.named_buffers())
        self.flags = tuple(layer.training for layer in layers)
        self.held = ({name: parameter.detach() for name, parameter in parameters.items()}, buffers)
        self._attributes = [(vars(layer), len(vars(layer)), [*_plain_attributes(layer).items()]) for layer in layers]
        tables = [table for layer in layers for table in (layer._modules, layer._parameters, layer._buffers)]
        self._tables = [(table, tuple(table.values())) for table in tables if table]
        self._trained = [(parameter, parameter.requires_grad) for parameter in parameters.values()]
        tensors = (*parameters.values(), *buffers.values())
        self._places = [(tensor, tensor.data_ptr(), tensor.shape, tensor.dtype) for tensor in tensors]

    def is_current(self) -> bool:
        """Whether everything is the very same object, and every tensor lies where it was."""
        for attributes, size, known in self._attributes:
            if len(attributes) != size or any(attributes.get(name) is not value for name, value in known):
                return False
        for table, values in self._tables:
            if len(table) != len(values) or any(map(is_not, table.values(), values)):
                return False
        if any(parameter.requires_grad is not flag for parameter, flag in self._trained):
            return False
        return all(
            tensor.data_ptr() == place and tensor.shape == shape and tensor.dtype is dtype
            for tensor, place, shape, dtype in self._places
        )


def kept_bytes(plan: CapturePlan, num_records: int) -> int:
    """About how much one pass keeps: every tapped output's gradient, and an input of the same size."""
    sizes = (prod(output.shape) * output.dtype.itemsize for output in plan.outputs.values())
    return 2 * num_records * sum(sizes)


def free_memory(device: torch.device) -> int:
    """In bytes, on the device of the model."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system says
        return 2**63


def _build(model: nn.Module) -> frozenset[tuple[str, str]]:
    """The paths of a model's layers and parameters, the first where one has several, and what kind each is of."""
    layers = {(path or "model", type(layer).__name__) for path, layer in model.named_modules()}
    parameters = model.named_parameters()
    return frozenset(layers | {(path, "trainable" if value.requires_grad else "frozen") for path, value in parameters})


def _plain_attributes(layer: nn.Module) -> dict[str, Any]:
    """Training flags, rates of dropout and other numbers and tensors that may be changed between batches."""
    return {name: value for name, value in vars(layer).items() if isinstance(value, bool | int | float | str | Tensor)}
