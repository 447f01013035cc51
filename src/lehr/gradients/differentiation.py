"""One forward pass, one backward pass to the taps, and every parameter's contributions from what was captured.

    SiteId, Tape                the sites of every call of every layer, and what one run left at each
    ExecutionMode, CapturePlan  how a model is run, and what is captured
    Layers                      a copy of the model whose layers report to a tape, and what their rules say
    Batch, Differentiation      a run of the model, its loss and the backward pass

To every layer output a *tap* is added, a tensor of zeros that changes nothing; the gradient with respect to the tap is
the gradient with respect to the output. One backward pass to the taps then gives every layer's output gradients, and
the gradients of the weights follow from those and the inputs.

Records are run together where every trainable parameter has a rule and the record axis stays first in every layer.
Otherwise each record is run alone, all of them at once under ``vmap``; parameters without a rule are then given to each
record as a copy of its own, and the gradient of the copy is that record's gradient.

Axes: B records, K views of one record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.utils import parametrize

import lehr.gradients.rules  # noqa: F401  (registers the rules)
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.contributions import ContributedGradients, Materialised, Through, Unused, together
from lehr.gradients.execution import FunctionalModel, random_numbers_apart, under_vmap, unfuse
from lehr.gradients.precision import margin, narrow, widen
from lehr.gradients.record_axis import References, Trace, as_traced, why_not_apart
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.interfaces import Contribution, Inputs, LayerRule, Site, Tap, Tensors, layer_rule


@dataclass(frozen=True)
class SiteId:
    """A site of one call of one layer."""

    layer: str
    call: int
    site: str

    @property
    def key(self) -> str:
        return f"{self.layer}|{self.call}|{self.site}"


def run_by_rule(layer: nn.Module, rule: LayerRule, tap: Tap, *args: Any, **kwargs: Any) -> Any:
    """Run a layer and hand every site of it to the tap."""
    if rule.forward is not None:
        return rule.forward(layer, tap, *args, **kwargs)
    inputs = args[0] if args else next(iter(kwargs.values()))
    output = type(layer).forward(layer, *args, **kwargs)
    # Under autocast the layer saw its input in the type of its output.
    return tap("output", inputs.to(output.dtype) if inputs.is_floating_point() else inputs, output)


class UnplannedSite(Exception):
    """A run that calls other layers, or gives them something of another shape, than its plan says."""


class Tape:
    """What one run of the model left behind, site by site."""

    def __init__(self) -> None:
        self._taps: Mapping[str, Tensor] | None = None
        self._shared: Collection[str] = ()
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}
        self.sites: dict[str, SiteId] = {}

    def start(self, taps: Mapping[str, Tensor] | None, shared: Collection[str] = ()) -> None:
        """Begin a run, adding these taps; with None, only capture. All records share the output at ``shared`` sites."""
        self.stop()  # a run that failed half-way has left something behind
        self._taps, self._shared = taps, shared

    def stop(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """End the run: the inputs and, where no taps were given, the outputs of every site."""
        inputs, outputs = dict(self._inputs), dict(self._outputs)
        self._taps = None
        self._inputs.clear()
        self._outputs.clear()
        self._calls.clear()
        return inputs, outputs

    def tapped_forward(self, name: str, layer: nn.Module, rule: LayerRule) -> Callable[..., Any]:
        """A ``forward`` for this layer that reports every site to the tape."""

        def tapped(*args: Any, **kwargs: Any) -> Any:
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1

            def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
                return self._tap(SiteId(name, call, site), inputs, output)

            return run_by_rule(layer, rule, tap, *args, **kwargs)

        return tapped

    def _tap(self, site: SiteId, inputs: Tensor, output: Tensor) -> Tensor:
        key = site.key
        self._inputs[key] = inputs
        if self._taps is None:
            self.sites[key] = site
            self._outputs[key] = output
            return output
        tap = self._taps.get(key)
        if tap is None or output.shape != (tap.shape if key not in self._shared else (1, *tap.shape[1:])):
            raise UnplannedSite(key)
        return output + tap


@dataclass(frozen=True)
class ExecutionMode:
    """Which parameters each record has a copy of, whether each record is run alone, and whether images have their
    channels innermost, which is how convolutions and the kernels here read them fastest."""

    copied: tuple[str, ...] = ()
    is_record_by_record: bool = False
    is_channels_last: bool = True


@dataclass(frozen=True)
class SiteOutput:
    """The output of one site when one record was run; ``is_shared`` if it is the same for all records of a batch."""

    site: SiteId
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_channels_last: bool
    is_shared: bool = False

    @classmethod
    def of(cls, site: SiteId, output: Tensor, *, is_shared: bool = False) -> SiteOutput:
        is_channels_last = output.dim() == 4 and output.is_contiguous(memory_format=torch.channels_last)
        return cls(site, tuple(output.shape), output.dtype, is_channels_last, is_shared)


@dataclass(frozen=True)
class CapturePlan:
    """The outputs that are tapped, and how the model is run."""

    outputs: Mapping[str, SiteOutput]
    mode: ExecutionMode
    views: int = 1

    @property
    def shared(self) -> frozenset[str]:
        """The sites whose output all records share."""
        return frozenset(key for key, output in self.outputs.items() if output.is_shared)

    def taps(self, num_records: int, *, device: torch.device) -> dict[str, Tensor]:
        """Zeros in the shape and memory format of every output."""

        def zeros(output: SiteOutput) -> Tensor:
            if self.mode.is_record_by_record:
                return torch.zeros((num_records, *output.shape), dtype=output.dtype, device=device)
            first, *rest = output.shape
            shape = (num_records * (self.views if output.is_shared else first), *rest)
            tap = torch.zeros(shape, dtype=output.dtype, device=device)
            return tap.contiguous(memory_format=torch.channels_last) if output.is_channels_last else tap

        return {key: zeros(output) for key, output in self.outputs.items()}

    def inputs_of(self, key: str, values: Tensor, num_records: int) -> Tensor:
        """The input of a site with the record axis first: what all records share is repeated for each."""
        is_shared = self.outputs[key].is_shared
        return values.expand(num_records * self.views, *values.shape[1:]) if is_shared else values

    def sites(self, inputs: Tensors, output_grads: Tensors, num_records: int) -> dict[SiteId, Site]:
        """Every site, the record axis first and whatever belongs to one record behind it."""

        def by_record(values: Tensor) -> Tensor:
            if self.mode.is_record_by_record:
                return values
            return values.reshape(num_records, values.shape[0] // num_records, *values.shape[1:])

        return {
            output.site: Site(
                by_record(self.inputs_of(key, inputs[key], num_records)),
                by_record(output_grads[key]),
            )
            for key, output in self.outputs.items()
        }


class Layers:
    """A copy of the model whose layers report to a tape. Its parameters and buffers lie in the memory of the model's.

    ``rules`` has the rule of every layer that has one, and ``owned`` the trainable parameters that it covers.
    """

    def __init__(self, model: nn.Module) -> None:
        refuse_what_cannot_be_private(model)
        trained = batches.trainable(model)
        self.names = tuple(trained)
        self.shapes = {name: parameter.shape for name, parameter in trained.items()}
        memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
        memo |= {id(buffer): buffer.detach() for buffer in model.buffers()}
        self.model = unfuse(copy.deepcopy(model, memo))
        self.functional = FunctionalModel(self.model)
        self.tape = Tape()
        first = {id(parameter): name for name, parameter in self.model.named_parameters()}
        # Every name of every parameter, mapped to the one name under which it is trained.
        every_name = self.model.named_parameters(remove_duplicate=False)
        self._canonical = {name: first[id(parameter)] for name, parameter in every_name}
        self.rules: dict[str, LayerRule] = {}
        self.owned: dict[str, set[str]] = {}
        self._ruled: dict[str, nn.Module] = {}
        for name, layer in self.model.named_modules():
            rule = layer_rule(layer)
            owned = set() if rule is None else self._owned(name, layer, rule)
            if rule is not None and owned:
                self.rules[name], self.owned[name], self._ruled[name] = rule, owned, layer
                layer.forward = self.tape.tapped_forward(name, layer, rule)

    def without_rule(self) -> frozenset[str]:
        """The trainable parameters that belong to no layer with a rule."""
        return frozenset(self.names).difference(*self.owned.values())

    def contributions(
        self, sites: Mapping[SiteId, Site], parameters: Tensors, *, copied: Tensors, num_records: int
    ) -> dict[str, Contribution]:
        """Every trainable parameter's part, all its uses together; ``copied`` has the gradients of copies."""
        uses: dict[str, list[Contribution]] = {name: [] for name in self.names}
        calls: dict[tuple[str, int], dict[str, Site]] = {}
        for own, site in sites.items():
            calls.setdefault((own.layer, own.call), {})[own.site] = site
        for (name, _), call_sites in calls.items():
            for parameter, part in self._of_call(name, call_sites, parameters):
                if parameter in uses and parameter not in copied:
                    uses[parameter].append(part)
        for name, grads in copied.items():
            uses[name] = [Materialised(grads)]
        some = parameters[self.names[0]]
        return {
            name: together(parts) if parts else Unused(self.shapes[name], num_records, some)
            for name, parts in uses.items()
        }

    def _of_call(self, name: str, sites: Mapping[str, Site], parameters: Tensors) -> Iterable[tuple[str, Contribution]]:
        layer = self._ruled[name]
        for tensor_name, found in self.rules[name].contributions(layer, sites).items():
            part = Materialised(found) if isinstance(found, Tensor) else found
            if parametrize.is_parametrized(layer, tensor_name):
                yield from self._through(name, layer, tensor_name, part, parameters)
            else:
                yield self._canonical.get(_joined(name, tensor_name), ""), part

    def _through(
        self, name: str, layer: nn.Module, tensor_name: str, part: Contribution, parameters: Tensors
    ) -> Iterable[tuple[str, Contribution]]:
        """A computed weight: its gradient goes on to the parameters that it is computed from."""
        computation = getattr(layer.parametrizations, tensor_name)
        prefix = _joined(name, f"parametrizations.{tensor_name}")
        canonical = {own: self._canonical[_joined(prefix, own)] for own, _ in computation.named_parameters()}
        values = {own: parameters[full] for own, full in canonical.items()}
        buffers = {own: parameters[_joined(prefix, own)] for own, _ in computation.named_buffers()}

        def compute(values: Tensors) -> Tensor:
            result: Tensor = FunctionalModel(computation)({**values, **buffers}, (), {})
            return result

        output, pullback = vjp(compute, values)  # type: ignore[misc]
        for own, full in canonical.items():
            yield full, Through(part, lambda grad, own=own: pullback(grad.to(output.dtype))[0][own])  # type: ignore[misc]

    def _owned(self, name: str, layer: nn.Module, rule: LayerRule) -> set[str]:
        own = layer.named_parameters(recurse=rule.covers_children, remove_duplicate=False)
        names = [parameter for parameter, _ in own]
        if parametrize.is_parametrized(layer):
            computed = layer.parametrizations.named_parameters(remove_duplicate=False)  # type: ignore[union-attr]
            names += [f"parametrizations.{inner}" for inner, _ in computed]
        return {self._canonical[_joined(name, inner)] for inner in names} & set(self.names)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


class Batch(NamedTuple):
    """What one run of a model is a function of."""

    parameters: Tensors
    buffers: Tensors
    inputs: Inputs
    targets: Any

    @property
    def values(self) -> dict[str, Tensor]:
        return {**self.parameters, **self.buffers}

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device


class Differentiation:
    """A model's layers, a loss per record, the number of views, and the type that the model is run in."""

    def __init__(self, layers: Layers, loss_fn: LossFn, *, views: int, dtype: torch.dtype | None) -> None:
        self._layers = layers
        self._loss_fn = loss_fn
        self._views = views
        self._dtype = dtype

    def plan(self, mode: ExecutionMode, batch: Batch) -> CapturePlan:
        """The shapes that the first record leaves at every site in this mode; its values are not read."""
        tape = self._layers.tape

        def outputs_of(num_records: int) -> dict[str, Tensor]:
            """The outputs of every site, in a run that leaves no trace."""

            def expand(leaf: Tensor) -> Tensor:
                return leaf[:1].expand(num_records, *leaf.shape[1:])

            inputs, targets = batches.each(expand, (batch.inputs, batch.targets))
            tape.start(None)
            with torch.no_grad(), random_numbers_apart(batch.device):
                apart = {name: buffer.clone() for name, buffer in batch.buffers.items()}  # should a layer write to one
                self._run_together(narrow({**batch.parameters, **apart}, self._dtype), inputs, targets, mode)
            return tape.stop()[1]

        outputs = outputs_of(1)
        twice = {} if mode.is_record_by_record else outputs_of(2)
        shared = {key for key, output in twice.items() if key in outputs and output.shape[:1] == (1,)}
        sites = {key: SiteOutput.of(tape.sites[key], own, is_shared=key in shared) for key, own in outputs.items()}
        return CapturePlan(sites, mode, self._views)

    def gradients(self, plan: CapturePlan, batch: Batch, mask_B: Tensor) -> ContributedGradients:
        """The gradients of every record; traceable as one graph."""
        num_records = mask_B.shape[0]
        captured, tap_grads, copy_grads = self._captured(plan, batch, num_records)
        sites = plan.sites(captured, tap_grads, num_records)
        contributions = self._layers.contributions(sites, batch.values, copied=copy_grads, num_records=num_records)
        return ContributedGradients(contributions, mask_B=mask_B, margin=self._margin(batch.parameters))

    def of_no_record(self, parameters: Tensors) -> ContributedGradients:
        """The gradients of an empty batch."""
        nothing = {name: Unused(shape, 0, parameters[name]) for name, shape in self._layers.shapes.items()}
        nobody = torch.ones(0, dtype=torch.bool, device=next(iter(parameters.values())).device)
        return ContributedGradients(nothing, mask_B=nobody, margin=self._margin(parameters))

    def why_not_together(
        self, plan: CapturePlan, batch: Batch, *, num_records: int, references: References | None = None
    ) -> str | None:
        """Why it is not proven that a batch of this many records, run together, keeps them apart; None where it is.

        The inputs of layers and the gradients of their outputs must be a function of their own record, so the forward
        pass, the loss and the backward pass are traced. Only the shapes of the batch are used.
        """

        def compute(trace: Trace) -> Iterator[tuple[str, Tensor]]:
            weights = {name: trace.public(value, name) for name, value in batch.parameters.items()}
            buffers = {name: trace.public(value, name) for name, value in batch.buffers.items()}
            inputs, targets = batches.each(trace.records, (batch.inputs, batch.targets))
            captured, grads, _ = self._captured(plan, Batch(weights, buffers, inputs, targets), trace.num_records)
            for key, output in plan.outputs.items():
                yield output.site.layer, plan.inputs_of(key, captured[key], trace.num_records)
                yield output.site.layer, grads[key]

        sizes = [size for leaf in batches.leaves((batch.inputs, batch.targets)) for size in leaf.shape[1:]]
        model = self._layers.model
        return why_not_apart(compute, model, num_records=num_records, sizes=sizes, references=references)

    def _margin(self, parameters: Tensors) -> float:
        # A frozen weight may be of whole numbers, as quantised ones are, which have no margin.
        rounded = [value for value in parameters.values() if value.is_floating_point()]
        return max(margin(self._dtype or value.dtype, value.device) for value in rounded)

    def _captured(
        self, plan: CapturePlan, batch: Batch, num_records: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """The inputs of every site, and the gradients of the taps and of the copies."""
        values: dict[str, Tensor] = narrow(batch.values, self._dtype)
        taps = plan.taps(num_records, device=batch.device)
        # One copy for each record, which takes no memory.
        copies = {name: values[name].expand(num_records, *values[name].shape) for name in plan.mode.copied}

        def run(taps: Tensors, copies: Tensors) -> tuple[Tensor, dict[str, Tensor]]:
            if plan.mode.is_record_by_record:
                return self._run_alone(values, taps, copies, batch.inputs, batch.targets)
            self._layers.tape.start(taps, plan.shared)
            losses = self._run_together(values, batch.inputs, batch.targets, plan.mode)
            return losses, self._stopped(taps)

        losses, pullback, captured = vjp(run, taps, copies, has_aux=True)  # type: ignore[misc]
        # A record's loss is the mean over its views, and so is its gradient.
        tap_grads, copy_grads = pullback(torch.full_like(losses, 1 / self._views))
        return captured, tap_grads, copy_grads

    def _run_alone(
        self, values: Tensors, taps: Tensors, copies: Tensors, inputs: Inputs, targets: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The losses of all views and the inputs of all sites, of each record by itself."""
        views = inputs if self._views > 1 else batches.each(lambda leaf: leaf.unsqueeze(1), inputs)
        repeated = batches.view_targets(targets, views=self._views)

        def one(taps: Tensors, copies: Tensors, views: Inputs, targets: Any) -> tuple[Tensor, dict[str, Tensor]]:
            self._layers.tape.start(taps)
            losses = self._losses({**values, **copies}, views, targets)
            return losses, self._stopped(taps)

        with under_vmap():
            result: tuple[Tensor, dict[str, Tensor]] = vmap(one, randomness="different")(taps, copies, views, repeated)
        return result

    def _run_together(self, values: Tensors, inputs: Inputs, targets: Any, mode: ExecutionMode) -> Tensor:
        """The losses of all views of all records, one after another.

        Weights and images are in the memory format of the mode; images of one channel have no format. Without a kernel,
        which has four axes, no convolution gains from another format.
        """
        images = batches.flat_views(inputs, views=self._views)
        has_kernels = any(value.dim() == 4 for value in values.values())
        if mode.is_channels_last and has_kernels and not mode.is_record_by_record:
            images, values = batches.each(batches.channels_last, (images, dict(values)))
        return self._losses(values, images, batches.repeat_targets(targets, views=self._views))

    def _losses(self, values: Tensors, inputs: Inputs, targets: Any) -> Tensor:
        def model(*args: Any, **kwargs: Any) -> Any:
            return self._layers.functional(values, args, kwargs)

        with as_traced():
            outputs = batches.call(model, narrow(inputs, self._dtype))
        losses = self._loss_fn(widen(outputs), targets)
        return batches.one_each(losses, num_records=batches.leaves(inputs)[0].shape[0])

    def _stopped(self, taps: Tensors) -> dict[str, Tensor]:
        """The inputs of every site of a run that was to meet these taps."""
        captured, _ = self._layers.tape.stop()
        if captured.keys() != taps.keys():
            raise UnplannedSite(next(iter(captured.keys() ^ taps.keys())))
        return captured
