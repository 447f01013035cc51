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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from lehr import validate
from lehr.errors import InvalidValue, LehrError, NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, checked_mask, physical_batches
from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.differentiation import Batch, CapturePlan, Differentiation, ExecutionMode, Layers
from lehr.gradients.execution import (
    CudaGraphReplay,
    FunctionalModel,
    compile_step,
    python_rng_states,
    restore_python_rng,
    torch_rng_states,
)
from lehr.gradients.materialised import ChunkedGradients, MaterialisedEngine
from lehr.gradients.precision import PRECISIONS, narrow
from lehr.gradients.record_axis import References
from lehr.gradients.refusals import described, refuse_reentrant_checkpoints
from lehr.gradients.synthetic import ATTEMPTS, DRAWS_IN_PYTHON, SyntheticRecords, draws_for_all, refuse_mixed_records
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Tensors

LOG = logging.getLogger("lehr")
_NOT_TO_BE_REPEATED = (LehrError, torch.OutOfMemoryError)
_RECORDS = 2
_DRAWS = 20  # of a model that draws random numbers in evaluation too: whether they make a difference
# Of a parameter's gradient, or of a hundredth of the whole one where that is more.
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
_ROUGH = 5e-2  # for half precision


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
        self._layers = layers
        self._loss_fn = loss_fn
        self._views = views
        self._plain = model  # without taps
        self._functional = FunctionalModel(model)
        self._used: set[str] = set()  # the parameters that a loss depends on
        self._differentiation = Differentiation(layers, loss_fn, views=views, dtype=None)

    def mode(self, batch: Batch, *, is_alone: bool = False) -> ExecutionMode:
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
        with torch.inference_mode(False), batches.random_numbers_apart(batch.device):
            for attempt in ATTEMPTS:
                synthetic = _synthetic(attempt, batch)
                flags, expected = self._expected(attempt, synthetic)
                if expected is None:
                    continue
                with _flags(self._layers.model, flags):
                    wrong_in = partial(self._wrong, expected, synthetic)
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
                    LOG.info("cannot be run together: %s", error)
            mode = replace(mode, is_record_by_record=True, is_channels_last=False)
            LOG.warning("the model cannot be run on several records at once: each is run alone, which is slower")
        return mode, wrong_in(mode)

    def _expected(self, attempt: SyntheticRecords, batch: Batch) -> tuple[list[bool], list[Tensors] | None]:
        """The gradients of each synthetic record by itself, and the training flags that they were computed with.

        In the user's own flags, and where the model then draws random numbers, in evaluation; None where the model
        cannot be run on such records, or its gradients are not finite.
        """
        given = [layer.training for layer in self._plain.modules()]
        for flags in (given, [False] * len(given)):
            with _flags(self._plain, flags):
                try:
                    before = _rng_states(batch.device)
                    once = self._alone(attempt, batch)
                    is_random = _rng_states(batch.device) != before
                    is_last = flags is not given
                    again = [self._alone(attempt, batch) for _ in range(_DRAWS if is_random and is_last else 1)]
                except (InvalidValue, NotPrivate):
                    raise
                except Exception as error:
                    LOG.info("the model cannot be tried on synthetic records: %s", error)
                    return flags, None
                if not all(grad.isfinite().all() for record in once for grad in record.values()):
                    return flags, None
                refuse_mixed_records(
                    self._plain,
                    lambda inputs: (self._outputs(attempt, batch.values, inputs), []),
                    batches.flat_views(batch.inputs, views=self._views),
                    num_images=_RECORDS * self._views,
                    views=self._views,
                )
                if is_random and not is_last:
                    continue  # two draws that are the same by chance say nothing
                pairs = [pair for other in again for pair in zip(once, other, strict=True)]
                if not any(_differing(some, others) for some, others in pairs):
                    return flags, once
        return flags, None

    def _alone(self, attempt: SyntheticRecords, batch: Batch) -> list[Tensors]:
        """The gradient of each synthetic record, by a plain backward pass."""
        given = dict(self._plain.named_parameters())
        trained = {
            name: batch.parameters[name].detach().requires_grad_() if attempt.is_wide else given[name]
            for name in self._layers.names
        }
        values, found = {**batch.values, **trained}, []
        with torch.enable_grad():
            for at in range(_RECORDS):
                record = batches.each(lambda leaf, at=at: leaf[at : at + 1], (batch.inputs, batch.targets))  # type: ignore[misc]
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

    def _loss(self, attempt: SyntheticRecords, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        repeated = batches.each(lambda leaf: leaf.repeat_interleave(self._views, 0), targets)
        losses = self._loss_fn(self._outputs(attempt, values, batches.flat_views(inputs, views=self._views)), repeated)
        return batches.one_each(losses, num_records=self._views).mean()

    def _outputs(self, attempt: SyntheticRecords, values: Tensors, inputs: Inputs) -> Any:
        if not attempt.is_wide:
            return batches.call(self._plain, inputs)
        return batches.call(lambda *args, **kwargs: self._functional(values, args, kwargs), inputs)

    def _wrong(self, expected: list[Tensors], batch: Batch, mode: ExecutionMode) -> set[str]:
        """The parameters whose gradient is not as expected for one of the records."""
        plan = self._differentiation.plan(mode, batch)
        every = torch.ones(_RECORDS, dtype=torch.bool, device=batch.device)
        with torch.no_grad():
            gradients = self._differentiation.gradients(plan, batch, every)
            found = [gradients.weighted_sum(weights) for weights in torch.eye(_RECORDS, device=every.device)]
        pairs = zip(expected, found, strict=True)
        return {name for some, others in pairs for name in _differing(some, others)}


def _rng_states(device: torch.device) -> list[bytes]:
    return [state.numpy().tobytes() for state in torch_rng_states(device)]


def _synthetic(attempt: SyntheticRecords, batch: Batch) -> Batch:
    """Two synthetic records; weights in float64 a little away from where they are, or as they are."""
    device = batches.leaves(batch.inputs)[0].device
    pairs = attempt.pairs((batch.inputs, batch.targets))
    records = batches.each(lambda leaf: leaf.to(device), pairs)
    if not attempt.is_wide:
        buffers = {name: buffer.clone() for name, buffer in batch.buffers.items()}  # a run might write to them
        return Batch(batch.parameters, buffers, *records)
    wide, buffers = narrow((dict(batch.parameters), dict(batch.buffers)), torch.float64)
    generator = torch.Generator().manual_seed(0)
    moved = {  # behind a gain that begins at zero nothing would make a difference yet
        name: value + 0.05 * torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
        for name, value in wide.items()
    }
    return Batch(moved, buffers, *records)


def _differing(expected: Tensors, found: Tensors) -> set[str]:
    """The parameters whose gradient is not as expected."""
    # The narrowest type that takes part anywhere rounds what all of them are given.
    tolerance = max(_TOLERANCES.get(grad.dtype, _ROUGH) for grad in expected.values())
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
        self._modes: dict[Any, ExecutionMode | None] = {}
        self._alone: dict[Any, ExecutionMode | None] = {}
        self._together: dict[Any, bool] = {}
        self._references: dict[Any, References] = {}
        self._in_full = MaterialisedEngine(model, loss_fn, views=self._views)
        self._plans: dict[Any, CapturePlan] = {}
        self._steps: dict[Any, Callable[..., dict[str, Tensor]]] = {}

    def gradients(
        self, inputs: Inputs, targets: Any, mask_B: Tensor | None = None
    ) -> ContributedGradients | ChunkedGradients:
        """The gradients of a batch, computed at once and not compiled."""
        mask = self._checked_mask(inputs, targets, mask_B)
        if not mask.shape[0]:
            return self._of_no_record()
        with torch.no_grad():
            batch = Batch(*self._values(), inputs, targets)
            plan = self._plan(batch, mask.shape[0])
            if plan is not None:
                try:
                    return self._differentiation.gradients(plan, batch, mask)
                except _NOT_TO_BE_REPEATED:
                    raise
                except Exception as error:
                    self._run_in_full(self._way(batch), error)
        return self._in_full.gradients(inputs, targets, mask)

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:
        """The clipped sum over a batch, in one compiled graph; where it is larger than fits, in several runs."""
        mask = self._checked_mask(inputs, targets, mask_B)
        if not mask.shape[0]:
            return clip(self.gradients(inputs, targets, mask))
        values = self._values()
        batch = Batch(*values, inputs, targets)
        num_records = self._physical_batch or mask.shape[0]
        plan = self._plan(batch, num_records)
        if plan is None:
            return self._in_full.private_sum(clip, inputs, targets, mask)
        step = self._step(plan, clip, num_records)
        total: dict[str, Tensor] | None = None
        with torch.no_grad():
            for part in physical_batches((inputs, targets, mask), size=self._physical_batch):
                try:
                    found = step(values, part)
                except _NOT_TO_BE_REPEATED:
                    raise
                except Exception as error:
                    if self._is_compiled:
                        raise
                    self._run_in_full(self._way(batch), error)
                    return self._in_full.private_sum(clip, inputs, targets, mask)
                total = found if total is None else {name: total[name] + found[name] for name in found}
        assert total is not None
        return PrivateSum(values=total, sensitivity=clip.sensitivity)

    @property
    def is_in_full(self) -> bool:
        """Whether some batches are run by the materialised engine, since the rules cannot be used for this model."""
        return None in self._modes.values()

    def _run_in_full(self, way: Any, error: Exception, *, is_synthetic: bool = False) -> None:
        # An error on private records may quote one of them: only its kind is shown.
        lines = str(error).strip().splitlines() if is_synthetic else []
        why = lines[0] if lines else type(error).__name__
        LOG.warning("gradients are formed in full, a few records at a time, which is slower: %s", why)
        self._in_full.loops = self._in_full.loops or isinstance(error, GradientMismatch)
        if self._dtype is not None:
            allowed = "as_model for a model whose gradients have to be formed in full"
            raise InvalidValue("precision", allowed=allowed, given=str(self._dtype)) from None
        self._modes[way] = None

    def _of_no_record(self) -> ContributedGradients:
        parameters, _ = self._values()
        nobody = torch.ones(0, dtype=torch.bool, device=next(iter(parameters.values())).device)
        margin = self._differentiation.margin(parameters)
        return ContributedGradients(self._layers.of_no_record(parameters), mask_B=nobody, margin=margin)

    def _step(self, plan: CapturePlan, clip: ClipRule, num_records: int) -> Callable[..., dict[str, Tensor]]:
        # A recording would not know of a rule, or of a layer's setting, that was changed in place.
        key = (id(plan), clip, clip.sensitivity, num_records, self._changes)
        if key not in self._steps:
            if self._is_compiled:
                clip(self._of_no_record())  # a rule that refuses says so here, and not from inside the compiler

            def step(held: tuple[Tensors, Tensors], arguments: tuple[Any, Any, Tensor]) -> dict[str, Tensor]:
                inputs, targets, mask_B = arguments
                return clip(self._differentiation.gradients(plan, Batch(*held, inputs, targets), mask_B)).values

            self._steps[key] = compile_step(step) if self._is_compiled else step
            if self._is_compiled and self._has_graphs:
                replayed = CudaGraphReplay(self._steps[key])
                # What a recording returns is overwritten by the next batch, and a sum must outlive that.
                self._steps[key] = lambda *given: {name: value.clone() for name, value in replayed(*given).items()}
        return self._steps[key]

    def _checked_mask(self, inputs: Inputs, targets: Any, mask_B: Tensor | None) -> Tensor:
        num_records = batches.num_records(inputs, targets)
        batches.check_views(inputs, views=self._views)
        return checked_mask(mask_B, num_records=num_records, device=next(self._model.parameters()).device)

    def _values(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The current weights and buffers; flags and other plain attributes are copied along the way."""
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
        parameters = {name: parameter.detach() for name, parameter in self._model.named_parameters()}
        return parameters, dict(self._model.named_buffers())

    def _plan(self, batch: Batch, num_records: int) -> CapturePlan | None:
        """How to run batches of this shape, of this many records at once; None where gradients are formed in full.

        The mode is searched for at the first one, on synthetic records, and again after a setting was changed: it may
        decide which layers are used, and which parameters are used outside of them. Records are run together only where
        that is proven to keep them apart; otherwise each is run alone.
        """
        way = self._way(batch)
        if way not in self._modes:
            mode, failed = self._search(batch)
            batch = Batch(*self._values(), batch.inputs, batch.targets)
            way = self._way(batch)  # a model that notes something when it is run was changed by the search
            self._modes[way] = mode
            if failed is not None:
                self._run_in_full(way, failed, is_synthetic=True)
        mode = self._modes[way]
        if mode is None:
            return None
        shapes = tuple(tuple(leaf.shape[1:]) for leaf in batches.leaves((batch.inputs, batch.targets)))
        plan = self._plan_of(mode, (way, shapes), batch)
        if plan.mode.is_record_by_record:
            return plan
        size = (way, shapes, num_records)
        if size not in self._together:
            references = self._references.setdefault((way, shapes), {})
            why = self._differentiation.why_not_together(plan, batch, num_records=num_records, references=references)
            self._together[size] = why is None
            if why is not None and way not in self._alone:
                LOG.warning("records are not proven to be kept apart: each is run alone, which is slower (%s)", why)
                self._alone[way], failed = self._search(batch, is_alone=True)
                if failed is not None:
                    self._run_in_full(way, failed, is_synthetic=True)
        if self._together[size]:
            return plan
        alone = self._alone[way]
        return None if alone is None else self._plan_of(alone, (way, shapes, "alone"), batch)

    def _plan_of(self, mode: ExecutionMode, key: Any, batch: Batch) -> CapturePlan:
        if key not in self._plans:
            self._plans[key] = self._differentiation.plan(mode, batch)
        return self._plans[key]

    def _search(self, batch: Batch, *, is_alone: bool = False) -> tuple[ExecutionMode | None, Exception | None]:
        """How the model can be run; or, where only a loop over records gives what a plain backward pass does, why."""
        shared, python_states = self._draws_for_all(batch.inputs), python_rng_states()
        if shared == DRAWS_IN_PYTHON:
            return None, RuntimeError(shared)
        search = ModeSearch(self._model, self._layers, self._loss_fn, views=self._views)
        try:
            mode = search.mode(batch, is_alone=is_alone)
        except GradientMismatch as error:
            return None, error
        except _NOT_TO_BE_REPEATED:
            raise
        except Exception as error:  # what vmap cannot run; what the model cannot run is said by the other engine
            return None, error
        finally:
            restore_python_rng(python_states)
        if shared is not None and not mode.is_record_by_record:
            LOG.warning("each record is run alone, which is slower: %s", shared)
            mode = replace(mode, is_record_by_record=True, is_channels_last=False)
        return mode, None

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

    def _way(self, batch: Batch) -> Any:
        """What an execution mode is found for."""
        flags = tuple(layer.training for layer in self._model.modules())  # some layers are only used in training
        leaves, structure = pytree.tree_flatten((batch.inputs, batch.targets))
        return structure, flags, self._changes, tuple((leaf.dim(), leaf.dtype) for leaf in batches.leaves(leaves))


def _build(model: nn.Module) -> frozenset[tuple[str, str]]:
    """The paths of a model's layers and parameters, the first where one has several, and what kind each is of."""
    layers = {(path or "model", type(layer).__name__) for path, layer in model.named_modules()}
    parameters = model.named_parameters()
    return frozenset(layers | {(path, "trainable" if value.requires_grad else "frozen") for path, value in parameters})


def _plain_attributes(layer: nn.Module) -> dict[str, Any]:
    """Training flags, rates of dropout and other numbers and tensors that may be changed between batches."""
    return {name: value for name, value in vars(layer).items() if isinstance(value, bool | int | float | str | Tensor)}
