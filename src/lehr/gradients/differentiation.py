"""One forward pass, one backward pass to the taps, and every parameter's contributions from what was captured.

    SiteId, Tape                the sites of every call of every layer, and what one run left at each
    ExecutionMode, CapturePlan  how a model is run, and what is captured
    Layers                      a copy of the model whose layers report to a tape, and what their rules say
    Batch, Differentiation      a run of the model, its loss and the backward pass
    StreamedGradients           gradients in two passes: norms, then the weighted sum, with nothing kept in between

To every layer output a *tap* is added, a tensor of zeros that changes nothing; the gradient with respect to the tap is
the gradient with respect to the output. One backward pass to the taps then gives every layer's output gradients, and
the gradients of the weights follow from those and the inputs.

Records are run together where every trainable parameter has a rule and the record axis stays first in every layer.
Otherwise each record is run alone, all of them at once under ``vmap``; parameters without a rule are then given to each
record as a copy of its own, and the gradient of the copy is that record's gradient.

In two passes, what a layer was given and the gradient of its output are reduced to a norm, or to a weighted sum, as
soon as the backward pass comes to the layer, and are then given back: memory is that of an ordinary backward pass, also
with activations that are checkpointed. Both passes run the same operations with the same random numbers, and the second
one checks that its norms are those of the first.

Axes: B records, K views of one record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap
from torch.nn.utils import parametrize

import lehr.gradients.rules  # noqa: F401  (registers the rules)
from lehr.errors import NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, check_groups, weight_of_each
from lehr.gradients.contributions import ContributedGradients, Materialised, Through, TiledHead, Unused, together
from lehr.gradients.execution import FunctionalModel, random_numbers_apart, restore_rng, rng_states, under_vmap, unfuse
from lehr.gradients.precision import margin, narrow, uncast, widen
from lehr.gradients.record_axis import References, Trace, as_traced, why_not_apart
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.interfaces import Contribution, Groups, Inputs, LayerRule, Site, Tap, Tensors, layer_rule


@dataclass(frozen=True)
class SiteId:
    """A site of one call of one layer."""

    layer: str
    call: int
    site: str

    @property
    def key(self) -> str:
        return f"{self.layer}|{self.call}|{self.site}"


_CHECKPOINTED = "gradient_checkpointing"  # the flag of transformers' layers


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
        self._report: Callable[[SiteId, Tensor, Tensor], Tensor] | None = None
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
        self._taps = self._report = None
        self._inputs.clear()
        self._outputs.clear()
        self._calls.clear()
        return inputs, outputs

    def stream(self, report: Callable[[SiteId, Tensor, Tensor], Tensor]) -> None:
        """Begin a run that keeps nothing: ``report(site, inputs, output)`` returns the output to go on with."""
        self.stop()
        self._report = report

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
        if self._report is not None:
            return self._report(site, inputs, output)
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
        # Checkpointed activations are computed again by an ordinary backward pass only: see ``checkpointing``.
        self._checkpointed = [layer for layer in self.model.modules() if getattr(layer, _CHECKPOINTED, False) is True]
        for layer in self._checkpointed:
            setattr(layer, _CHECKPOINTED, False)
        for layer in self.model.modules():
            for key, hook in list(layer._forward_hooks.items()):  # that an output needs a gradient, for checkpointing
                if getattr(hook, "__name__", "") == "make_inputs_require_grads":
                    del layer._forward_hooks[key]
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
            is_group_norm = isinstance(layer, nn.GroupNorm)
            if rule is not None and owned:
                self.rules[name], self.owned[name], self._ruled[name] = rule, owned, layer
                layer.forward = self.tape.tapped_forward(name, layer, rule)
            elif rule is not None and is_group_norm:
                # Compiled for a GPU, torch's own moves the channels of images outermost, and later layers copy them.
                layer.forward = partial(run_by_rule, layer, rule, lambda site, inputs, output: output)

    @property
    def is_checkpointed(self) -> bool:
        """Whether layers of transformers were set to compute their activations again in the backward pass."""
        return bool(self._checkpointed)

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Let layers compute their activations again that were set to."""
        for layer in self._checkpointed:
            setattr(layer, _CHECKPOINTED, True)
        try:
            yield
        finally:
            for layer in self._checkpointed:
                setattr(layer, _CHECKPOINTED, False)

    def groups(self, outputs: Mapping[str, SiteOutput]) -> list[tuple[set[str], set[str]]]:
        """Sites whose layers have parameters in common, and these parameters."""
        found: list[tuple[set[str], set[str]]] = []
        for key, output in outputs.items():
            keys, names = {key}, set(self.owned[output.site.layer])
            apart = []
            for others, own in found:
                if names & own:
                    keys, names = keys | others, names | own
                else:
                    apart.append((others, own))
            found = [*apart, (keys, names)]
        return found

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
            if isinstance(part, TiledHead):  # it reads the weight that this batch is computed with
                part = replace(part, weight_VI=parameters[self._canonical[_joined(name, tensor_name)]])
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

    def in_two_passes(self, plan: CapturePlan, batch: Batch, mask_B: Tensor) -> StreamedGradients:
        """The same gradients, for records that are run together: norms at once, sums by a second pass."""
        states = rng_states(batch.device)
        run = partial(self._stream, plan, batch, len(mask_B))
        squared: dict[str, Tensor] = {}
        run(lambda name, part: squared.update({name: part.squared_norms()}))
        nothing = torch.zeros(len(mask_B), device=batch.device)
        squared = {name: squared.get(name, nothing) for name in self._layers.names}

        def again(use: Callable[[str, Contribution], None]) -> None:
            restore_rng(states)
            run(use)

        zeros = {name: batch.parameters[name] for name in self._layers.names}
        return StreamedGradients(squared, again, zeros, mask_B=mask_B, margin=self._margin(batch.parameters))

    def _stream(
        self, plan: CapturePlan, batch: Batch, num_records: int, use: Callable[[str, Contribution], None]
    ) -> None:
        """Run an ordinary backward pass, and use every parameter's contribution as soon as it is known."""
        layers, values = self._layers, narrow(batch.values, self._dtype)
        anchor = torch.zeros((), device=batch.device, requires_grad=True)
        streams = [
            _Stream(*group, layers, plan, batch.values, num_records, use) for group in layers.groups(plan.outputs)
        ]
        stream_of = {key: stream for stream in streams for key in stream.keys}
        shared = {(output.site.layer, output.site.site) for output in plan.outputs.values() if output.is_shared}
        is_forward, met = True, set()

        def report(site: SiteId, inputs: Tensor, output: Tensor) -> Tensor:
            if (site.layer, site.site) in shared:
                output = output.expand(num_records * self._views, *output.shape[1:])
            if not is_forward:  # a checkpointed layer is run again: the first run's reports get what it computes
                return _Reported.apply(output, inputs, anchor, None)  # type: ignore[no-untyped-call, no-any-return]
            if site.key not in stream_of:
                raise UnplannedSite(site.key)
            met.add(site.key)
            given = partial(stream_of[site.key].report, site.key)
            return _Reported.apply(output, inputs, anchor, given)  # type: ignore[no-untyped-call, no-any-return]

        def differentiate() -> None:
            nonlocal is_forward
            losses = self._run_together(values, batch.inputs, batch.targets, plan.mode)
            if met != plan.outputs.keys():
                raise UnplannedSite(next(iter(met ^ plan.outputs.keys())))
            is_forward = False
            torch.autograd.grad(losses, anchor, torch.full_like(losses, 1 / self._views), allow_unused=True)

        layers.tape.stream(report)
        try:
            with torch.inference_mode(False), torch.enable_grad(), layers.checkpointing(), as_traced():
                FunctionalModel(layers.model, differentiate)(values, (), {})
        finally:
            layers.tape.stop()
        for stream in streams:
            stream.end()

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


class _Reported(torch.autograd.Function):
    """The output of a site. In the backward pass, its inputs and the gradient of the output are reported."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, anchor: Tensor, report: Callable[..., None] | None) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.report = report
        return output.clone()  # a view could not be written into by what follows

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inputs,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.report(inputs.detach(), grads[0].detach())
        return grads[0], None, None, None


@dataclass
class _Stream:
    """Sites whose layers have parameters in common: what they report is used as soon as it is complete."""

    keys: set[str]
    names: set[str]
    layers: Layers
    plan: CapturePlan
    values: Tensors
    num_records: int
    use: Callable[[str, Contribution], None]
    reported: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def report(self, key: str, inputs: Tensor, output_grads: Tensor) -> None:
        self.reported[key] = (inputs, output_grads)
        if self.reported.keys() == self.keys:
            self.end()

    def end(self) -> None:
        """Use what was reported. The loss does not depend on calls that did not report."""
        if not self.reported:
            return
        calls = {(output.site.layer, output.site.call) for key in self.reported for output in [self.plan.outputs[key]]}
        for key in self.keys - self.reported.keys():
            site = self.plan.outputs[key].site
            if (site.layer, site.call) in calls:
                raise UnplannedSite(key)
        plan = replace(self.plan, outputs={key: self.plan.outputs[key] for key in self.reported})
        inputs, grads = ({key: pair[at] for key, pair in self.reported.items()} for at in (0, 1))
        sites = plan.sites(inputs, grads, self.num_records)
        parts = self.layers.contributions(sites, self.values, copied={}, num_records=self.num_records)
        self.reported.clear()
        with uncast(grads[next(iter(grads))].device):
            for name in sorted(self.names):
                self.use(name, parts[name])


# By how much the norms of two passes may differ on a GPU, where not every kernel adds up in the same order.
PASSES_DIFFER = 2**-9


class StreamedGradients(ContributedGradients):
    """Norms from a first pass, sums from a second one, in which every norm must be that of the first."""

    def __init__(
        self,
        squared: Mapping[str, Tensor],
        again: Callable[[Callable[[str, Contribution], None]], None],
        like: Tensors,
        *,
        mask_B: Tensor,
        margin: float,
    ) -> None:
        self._slack = PASSES_DIFFER if mask_B.is_cuda else 0.0
        super().__init__({}, mask_B=mask_B, margin=margin + 2 * self._slack, squared=squared)
        self._again, self._like = again, like

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._squared)

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        weight_of = weight_of_each(weights, groups, names=self.names, num_records=len(self._counted_B))
        squared: dict[str, Tensor] = {}
        sums: dict[str, Tensor] = {}

        def use(name: str, part: Contribution) -> None:
            squared[name] = part.squared_norms()
            sums[name] = part.weighted_sum(weight_of[name], self._counted_B).double().contiguous()

        self._again(use)
        for group in check_groups(groups, names=self.names):
            first, second = (
                torch.stack([found[name] for name in group if name in squared] or [weights.new_zeros(1)]).sum(0)
                for found in (self._squared, squared)
            )
            is_same = second.sqrt() <= first.sqrt() * (1 + self._slack)
            if not bool((is_same | ~self._counted_B).all()):
                raise NotPrivate(
                    layer="the model",
                    reason="a second pass over the same records gives larger gradients than the first",
                    instead='operations that repeat what they compute, or GhostEngine(passes="one")',
                )
        return {
            name: sums[name] if name in sums else torch.zeros_like(value, dtype=torch.float64)
            for name, value in self._like.items()
        }
