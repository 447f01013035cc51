"""The engine for loops that call ``loss.backward()`` themselves.

    engine = HookedEngine(model)
    with engine:
        for inputs, targets in loader:
            loss_fn(model(inputs), targets).backward()
            private_sum = clip(engine.gradients())

Inside the block the model's layers have hooked forward passes that capture their inputs and the gradients of their
outputs, and the layer rules turn those into norms and sums. No ``.grad`` is computed or written, and after the block
the model is as it was.

``ShardedEngine`` is the same for a model whose weights are spread over several processes by torch's ``fully_shard`` and
gathered layer by layer while it runs. A layer's inputs and output gradients are enough for norms and sums, so no weight
has to be there when these are made; whole sums of two parameters are never held at once.

Axes: B records, K views of one record, N = B·K images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from lehr import validate
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import batches
from lehr.gradients.batches import LossFn, checked_mask
from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.differentiation import Layers
from lehr.gradients.execution import FunctionalModel, WithoutHooks, recurrent_parameters
from lehr.gradients.hooks import (
    CapturedBatch,
    CapturedSite,
    HookedForward,
    forward_by_copies,
    forward_by_rule,
)
from lehr.gradients.precision import margin
from lehr.gradients.record_axis import References, Trace, why_not_apart
from lehr.gradients.refusals import described, graph_of, refuse_what_cannot_be_private
from lehr.gradients.synthetic import (
    ATTEMPTS,
    DRAWS_IN_PYTHON,
    Run,
    Sites,
    SyntheticRecords,
    draws_for_all,
    other_number,
    refuse_mixed_images,
    run_apart,
)
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Site, Tensors

LOG = logging.getLogger("lehr")
REDUCTIONS = ("mean", "sum")
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class HookedEngine:
    """Captures activations and output gradients of the user's own model.

    ``loss_reduction`` says how the losses of the images of a batch become one: by their mean or by their sum. Every
    image must have the same weight in it: a mean over the tokens of sentences of different length, or over classes with
    weights, is not a mean over records. With ``views=K`` the batch has K images of every record, next to one another,
    and their gradients are averaged before a norm is taken. ``num_passes`` is how often the model is run over the same
    records for one loss, as a Siamese network is.

    The record axis comes first, in the model's inputs and at every layer. That records are kept apart is checked by a
    few more runs on synthetic images, and proven for every batch shape; a model that cannot be checked is refused. Call
    ``gradients()`` after each ``backward()``; for physical batches, add up the sums.
    """

    _can_run_alone = True

    def __init__(self, model: nn.Module, *, loss_reduction: str = "mean", views: int = 1, num_passes: int = 1) -> None:
        self._model = model
        self._layers = Layers(model)
        self._takes_mean = validate.one_of(REDUCTIONS, loss_reduction=loss_reduction) == "mean"
        self._views = validate.count(views=views)
        self._num_passes = validate.count(num_passes=num_passes)
        self._captured = CapturedBatch()
        self._synthetic_rows: Sequence[int] = ()
        self._outside_rules: frozenset[str] = frozenset()  # parameters that are also used where no rule sees it
        self._is_alone = False
        self._is_alone = any(isinstance(model.get_submodule(path), nn.RNNBase) for path in self._with_copies())
        self._checked: set[Any] = set()
        self._checked_alone: set[Any] = set()
        self._proven: set[Any] = set()
        self._references: dict[Any, References] = {}
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> HookedEngine:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def attach(self) -> None:
        """Hook the model. ``detach`` must follow; ``with engine:`` sees to that."""
        self._refuse_another_model()
        for path, layer in self._model.named_modules():
            if isinstance(vars(layer).get("forward"), HookedForward):
                raise InvalidValue("model", allowed="a model that no engine is attached to", given="a hooked one")
            if "forward" in vars(layer):  # hooks run the forward pass of a layer's class, and this one would be lost
                reason = "its forward was replaced on the layer itself, and a rule knows only that of its class"
                instead = "a subclass with this forward in its place, or the materialised engine"
                raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)
        self.forget()
        try:
            self._hook()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Unhook the model. What was captured can still be asked for."""
        while self._undo:
            self._undo.pop()()

    def forget(self) -> None:
        """Drop what was captured, for a batch that is skipped."""
        self._captured = CapturedBatch()

    @torch.no_grad()
    def gradients(
        self,
        mask_B: Tensor | None = None,
        kept: Callable[[str, Tensor], Tensor] | None = None,
    ) -> ContributedGradients:
        """The gradients of the batch that ``backward()`` was called for, once.

        Where ``kept`` is given, only what ``kept(name, sum)`` returns is held of a weighted sum.
        """
        self._refuse_another_model()
        captured, self._captured = self._captured, CapturedBatch()
        if not captured.backward_began:
            raise InvalidValue("loop", allowed="one with loss.backward() before gradients()", given="no backward pass")
        num_images = captured.images_of([own.inputs for own in captured.sites.values()])
        num_records = self._num_records(num_images)
        parameters = self._held()
        mask = checked_mask(mask_B, num_records=num_records, device=next(iter(parameters.values())).device)
        share = num_records if self._takes_mean else 1 / self._views
        grads = captured.output_grads
        sites = {key: self._site(own, grads.get(key), num_images) for key, own in captured.sites.items()}
        copied = {name: self._by_record(own).sum(1) for name, own in captured.copy_grads.items()}
        types = {values.dtype for values in [*grads.values(), *captured.copy_grads.values()]}
        contributions = self._layers.contributions(
            {key: own.site for key, own in captured.sites.items()},
            sites,
            {**parameters, **dict(self._model.named_buffers())},
            copied=copied,
            num_records=num_records,
        )
        largest = max((margin(dtype, mask.device) for dtype in types), default=0.0)
        return ContributedGradients(contributions, mask_B=mask, margin=largest, kept=kept, scale=share)

    def _held(self) -> dict[str, Tensor]:
        """The current weights, as far as this process has them."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def _site(self, site: CapturedSite, grads: Tensor | None, num_images: int) -> Site:
        """The inputs and output gradients of one site; zeros where the loss did not use it."""
        flaw = site.flaw(num_images)
        if flaw is not None:
            layer = site.site.layer
            reason, instead = flaw
            raise NotPrivate(layer=described(layer, self._model.get_submodule(layer)), reason=reason, instead=instead)
        if grads is None:
            grads = torch.zeros_like(site.output, device=site.inputs.device)
        if site.is_alone:
            return Site(self._views_of_each(site.inputs), self._views_of_each(grads))
        return Site(self._by_record(site.inputs), self._by_record(grads))

    def _by_record(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0] // self._views, self._views, *values.shape[1:])

    def _views_of_each(self, values: Tensor) -> Tensor:
        """Of images that were run alone: behind the image axis stand rows, unless that axis is the last."""
        if self._views == 1:
            return values
        return self._by_record(values).flatten(1, 2) if values.dim() > 2 else self._by_record(values)

    def _num_records(self, num_images: int) -> int:
        if num_images % self._views:
            raise InvalidValue("batch", allowed=f"{self._views} views of every record", given=f"{num_images} images")
        return num_images // self._views

    def _with_copies(self) -> dict[str, dict[str, str]]:
        """The modules that give each image a copy of some parameters: what the module and the model call these."""
        copied = self._layers.without_rule() - self._outside_rules
        if self._is_alone:
            copied |= recurrent_parameters(self._model)
        full = {id(parameter): name for name, parameter in self._model.named_parameters() if name in copied}
        found = {
            path: {own: full[id(p)] for own, p in layer.named_parameters(recurse=False) if id(p) in full}
            for path, layer in self._model.named_modules()
        }
        return {path: own for path, own in found.items() if own}

    def _hook(self) -> None:
        model = self._model
        owned = {name: self._layers.owned(name) for name in self._layers.rules}
        without = {name for name, own in owned.items() if own & self._outside_rules}
        runs = {
            name: forward_by_rule(name, model.get_submodule(name), rule)
            for name, rule in self._layers.rules.items()
            if name not in without
        }
        copies = self._with_copies()
        if self._is_alone:
            used = self._outside_rules.union(*(owned[name] for name in without))
            copies[""] = {**copies.get("", {}), **{name: name for name in used}}
        for name, copied in copies.items():
            runs[name] = forward_by_copies(name, model.get_submodule(name), copied)
        self._whole = runs.get("")
        runs[""] = self._checked_pass
        for name, run in runs.items():
            self._replace_forward(model.get_submodule(name), run)
        for name, parameter in batches.trainable(model).items():
            self._guard(name, parameter)

    def _replace_forward(self, layer: nn.Module, run: Any) -> None:
        """Hook one layer. The Opacus integration overrides it, for records on the second axis."""
        layer.forward = HookedForward(layer, lambda: self._captured, run)
        self._undo.append(partial(delattr, layer, "forward"))

    def _hooked(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._captured, args, kwargs)

    def _run(self, captured: CapturedBatch, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model as a whole, without checks."""
        if self._whole is None:
            return type(self._model).forward(self._model, *args, **kwargs)
        return self._whole(captured, *args, **kwargs)

    def _checked_pass(self, captured: CapturedBatch, *args: Any, **kwargs: Any) -> Any:
        """One pass of the model, counted, and checked once for every way in which it is run.

        The pass comes first, so that an error of the model itself is raised first. Where the model is refused, its
        buffers are as they were before.
        """
        inputs: Arguments = (args, kwargs)
        num_images = captured.images_of(pytree.tree_leaves(inputs))
        captured.begin_pass(num_images, at_most=self._num_passes)
        way = self._way(inputs)
        if way in self._checked and self._is_apart(num_images, inputs):
            return self._run(captured, *inputs)
        put_back = batches.buffers_put_back(self._model)
        try:
            refuse_what_cannot_be_private(self._model)
            can_switch = self._can_run_alone and captured.num_passes == 1
            behind: frozenset[str] = frozenset()
            try:
                outputs = self._run(captured, *inputs)
                behind = self._reached(outputs)
                is_flawed = not self._is_alone and any(site.flaw(num_images) for site in captured.sites.values())
                if not can_switch or not (behind or is_flawed):
                    self._check(way, num_images, inputs)
                    return outputs
                refused: NotPrivate | None = None
            except Exception as error:
                put_back()
                with torch.no_grad():  # an error of the model itself is raised first
                    type(self._model).forward(self._model, *args, **kwargs)
                if self._is_alone or not can_switch or isinstance(error, InvalidValue):
                    raise
                refused = error if isinstance(error, NotPrivate) else None
            put_back()
            return self._run_alone_from_now(behind, refused, num_images, inputs)
        except BaseException:
            put_back()
            raise

    def _run_alone_from_now(
        self, behind: frozenset[str], refused: NotPrivate | None, num_images: int, inputs: Arguments
    ) -> Any:
        """The same pass with each image alone, for a model whose layers do not all get the records first, or whose
        parameters are used where no rule sees it. If that is refused too, the first reason is raised.
        """
        before = self._is_alone, self._outside_rules
        try:
            while True:
                self._hook_again(True, self._outside_rules | behind)
                self._captured = CapturedBatch()
                self._captured.begin_pass(num_images, at_most=self._num_passes)
                outputs = self._run(self._captured, *inputs)
                behind = self._reached(outputs)
                if not behind:
                    break
            self._check(self._way(inputs), num_images, inputs)
        except NotPrivate as error:
            self._hook_again(*before)
            if refused is None:
                raise
            raise refused from error
        used = ", ".join(sorted(self._outside_rules))
        why = "the record axis does not stay first in every layer" if refused is None else refused.reason
        why = f"{used} used where no layer rule sees it" if used else why
        LOG.warning("each record is run alone, which is slower: %s", why)
        return outputs

    def _hook_again(self, is_alone: bool, outside_rules: frozenset[str]) -> None:
        self._is_alone, self._outside_rules = is_alone, outside_rules
        self.detach()
        self._hook()

    def _check(self, way: Any, num_images: int, inputs: Arguments) -> None:
        if num_images >= 2 * self._views:
            if way not in self._checked:
                self._check_for_mixing(num_images, inputs)
                self._checked.add(way)
            if not self._is_apart(num_images, inputs):
                self._prove_apart(num_images, inputs)
                self._proven.add(self._shapes(num_images, inputs))
        elif way not in self._checked_alone and num_images:
            self._check_alone(num_images, inputs)
            self._checked_alone.add(way)

    def _is_apart(self, num_images: int, inputs: Arguments) -> bool:
        """Whether records are kept apart in batches of these shapes: proven, or run alone, or there is only one."""
        is_one = num_images < 2 * self._views
        return is_one or self._is_alone or self._shapes(num_images, inputs) in self._proven

    def _shapes(self, num_images: int, inputs: Arguments) -> Any:
        return self._way(inputs), num_images, tuple(leaf.shape for leaf in batches.leaves(inputs))

    def _check_for_mixing(self, num_images: int, inputs: Any) -> None:
        """At the first batch of two records, on synthetic images."""
        says_nothing: str | None = None
        for attempt, few in product(ATTEMPTS, (other_number(num_images), num_images)):
            says_nothing = self._checked_on(attempt, inputs, num_images=num_images, few=few)
            if says_nothing is None:
                self._refuse_shared_draws(attempt, inputs, num_images=num_images)
                return
        reason = f"it cannot be checked on synthetic records whether it keeps records apart ({says_nothing})"
        instead = "the materialised engine, which runs every record alone"
        raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)

    def _prove_apart(self, num_images: int, inputs: Any) -> None:
        """For every shape of a batch: the inputs and output gradients of each layer. No values are read."""

        def compute(trace: Trace) -> Iterator[tuple[str, Tensor]]:
            def synthetic(leaf: Tensor) -> Tensor:
                has_records = leaf.shape[:1] == (num_images,)
                return trace.records(leaf, rows=trace.num_records * self._views) if has_records else trace.public(leaf)

            parameters = self._model.named_parameters()
            values = {name: Parameter(trace.public(p, name), p.requires_grad) for name, p in parameters}
            buffers = {name: trace.public(buffer, name) for name, buffer in self._model.named_buffers()}
            before, self._captured = self._captured, CapturedBatch(num_images=trace.num_records * self._views)
            try:
                yield from self._traced(trace, {**values, **buffers}, batches.each(synthetic, inputs))
            finally:
                self._captured = before

        sizes = [size for leaf in batches.leaves(inputs) for size in leaf.shape[1:]]
        num_records = self._num_records(num_images)
        shapes = tuple(leaf.shape[1:] for leaf in batches.leaves(inputs))
        references = self._references.setdefault((self._way(inputs), shapes), {})
        why = why_not_apart(compute, self._model, num_records=num_records, sizes=sizes, references=references)
        if why is not None and "aten._pack_padded_sequence" in why:  # which cannot be followed without values
            LOG.warning("records in packed sequences are not proven to be kept apart, only checked on synthetic ones")
        elif why is not None:
            instead = (
                "keep the record axis first and apart, or use the materialised engine, which runs every record alone"
            )
            reason = f"it is not proven to keep records apart ({why})"
            raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)

    def _traced(self, trace: Trace, values: Tensors, inputs: Any) -> Iterator[tuple[str, Tensor]]:
        """One forward pass, and one backward pass from whatever a loss may ask of each record's outputs."""
        functional = FunctionalModel(WithoutHooks(self._model, self._hooked))
        with torch.enable_grad():
            found = batches.leaves(functional({f"layer.{name}": value for name, value in values.items()}, *inputs))
            asked = [(output, trace.like(output)) for output in found if output.requires_grad and output.dim()]
            pairs = [(output, grads) for output, grads in asked if grads is not None]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [grads for _, grads in pairs])
        for key, own in self._captured.sites.items():
            yield own.site.layer, own.inputs
            if key in self._captured.output_grads:
                yield own.site.layer, self._captured.output_grads[key]
        yield from self._captured.copy_grads.items()

    def _refuse_shared_draws(self, attempt: SyntheticRecords, inputs: Any, *, num_images: int) -> None:
        """Under ``vmap`` each image has random numbers of its own, but for those of Python."""
        named = {f"layer.{name}": value for name, value in attempt.values(self._model).items()}

        def run(inputs: Arguments) -> Any:
            return FunctionalModel(WithoutHooks(self._model))(named, *inputs)

        shared = draws_for_all(self._model, run, lambda rows: attempt.batch(inputs, num_images=num_images, rows=rows))
        if shared == DRAWS_IN_PYTHON or (shared is not None and not self._is_alone):
            instead = "draw for every record apart, with torch, or switch it off (layerdrop=0); or lehr.fit"
            raise NotPrivate(layer=described("", self._model), reason=shared, instead=instead)

    def _check_alone(self, num_images: int, inputs: Any) -> None:
        """A record that is alone in its batch meets no other one there, but could leave something in a buffer."""
        for attempt in ATTEMPTS:
            run, left = self._leaving_buffers(attempt)
            try:
                for image in (0, 1):
                    self._synthetic_rows = [image] * num_images
                    run_apart(self._model, run, attempt.batch(inputs, num_images=num_images, rows=self._synthetic_rows))
            except Exception:  # the model is not made for such records: the next are of another kind
                continue
            _refuse_written_buffers(self._model, *left)
            return

    def _checked_on(self, attempt: SyntheticRecords, inputs: Any, *, num_images: int, few: int) -> str | None:
        def batch(rows: Sequence[int]) -> Any:
            self._synthetic_rows = rows
            return attempt.batch(inputs, num_images=num_images, rows=rows)

        run, left = self._leaving_buffers(attempt)
        says_nothing = refuse_mixed_images(self._model, run, batch, few=few)
        if says_nothing is None:
            _refuse_written_buffers(self._model, *left[:2])  # those of each image alone
        return says_nothing

    def _leaving_buffers(self, attempt: SyntheticRecords) -> tuple[Run, list[Tensors]]:
        """A run of the model with synthetic weights, and a list that each run appends its buffers to."""
        left: list[Tensors] = []

        def run(inputs: Any) -> tuple[Any, Sites]:
            outputs, sites, buffers = self._captured_apart(attempt.values(self._model), inputs)
            left.append(buffers)
            return outputs, sites

        return run, left

    def _way(self, inputs: Any) -> Any:
        """What decides how a model is run: its training flags, and the kind of its inputs."""
        leaves, structure = pytree.tree_flatten(inputs)
        kinds = tuple((leaf.dim(), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)
        flags = tuple(layer.training for layer in self._model.modules())
        return structure, kinds, flags, self._is_alone, self._outside_rules

    def _captured_apart(self, values: Tensors, inputs: Any) -> tuple[Any, Sites, Tensors]:
        """Outputs, the inputs of the layers, and the buffers afterwards.

        The outputs are those of the model without hooks, or with them where layers are run once for all images. The
        current batch and the model's own weights and buffers take no part.
        """
        rows = self._synthetic_rows
        before, self._captured = self._captured, CapturedBatch(num_images=len(rows), synthetic_rows=rows)
        named = {f"layer.{name}": value for name, value in values.items()}

        def with_buffers(*args: Any, **kwargs: Any) -> Any:
            outputs = type(self._model).forward(self._model, *args, **kwargs)
            return outputs, {name: buffer.clone() for name, buffer in self._model.named_buffers()}

        try:
            outputs, buffers = FunctionalModel(WithoutHooks(self._model, with_buffers))(named, *inputs)
            with torch.enable_grad():
                again = FunctionalModel(WithoutHooks(self._model, self._hooked))(named, *inputs)
                if self._is_alone:  # not all that vmap can run can be differentiated in it
                    torch.autograd.backward([leaf.sum() for leaf in batches.leaves(again) if leaf.requires_grad])
            sites = [(own.site.layer, own.inputs) for own in self._captured.sites.values()]
            return again if self._captured.has_shared else outputs, sites, buffers
        finally:
            self._captured = before

    def _reached(self, outputs: Any) -> frozenset[str]:
        """The parameters that a backward pass from here would reach, past every rule and every copy."""
        names = {id(parameter): name for name, parameter in batches.trainable(self._model).items()}
        ends = [id(getattr(node, "variable", None)) for node in graph_of(batches.leaves(outputs))]
        return frozenset(names[end] for end in ends if end in names)

    def _guard(self, name: str, parameter: Parameter) -> None:
        """Gradients reach a parameter itself only where it is used outside of its layer's forward pass."""

        def refuse(_: Tensor) -> None:
            raise NotPrivate(
                layer=name,
                reason="this parameter is used outside the forward pass of the layer that holds it",
                instead="call that layer itself, or use the ghost or the materialised engine",
            )

        had_none = parameter._backward_hooks is None
        handle: RemovableHandle = parameter.register_hook(refuse)  # type: ignore[no-untyped-call]

        def remove() -> None:
            handle.remove()
            if had_none and not parameter._backward_hooks:
                parameter._backward_hooks = None

        self._undo.append(remove)

    def _refuse_another_model(self) -> None:
        refuse_what_cannot_be_private(self._model)
        names = tuple(batches.trainable(self._model))
        if names != self._layers.names:
            changed = sorted({*names} ^ {*self._layers.names})
            raise InvalidValue("model", allowed="one with the parameters that were trainable at first", given=changed)


def _refuse_written_buffers(model: nn.Module, first: Tensors, second: Tensors) -> None:
    """Two images alone leave different values in a buffer: it learns from the records without noise."""
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            raise NotPrivate(
                layer=f"{name} of {described('', model)}",
                reason="the forward pass writes numbers of the records into this buffer, and no noise is added to it",
                instead="eval() for the layer that does it, or a layer that keeps no statistics",
            )


Kept = Callable[[str, Tensor], Tensor]


class ShardedEngine(HookedEngine):
    """Sums clipped gradients of a model as ``GhostEngine`` does, without being compiled."""

    _can_run_alone = False  # a layer's weights are gathered when it is called, which vmap does not allow

    def __init__(self, model: nn.Module, loss_fn: LossFn, *, views: int = 1) -> None:
        refuse_what_cannot_be_sharded(model)
        super().__init__(model, loss_reduction="sum", views=views)
        for path in self._with_copies():
            layer = model.get_submodule(path)
            if any(layer.children()) or isinstance(layer, nn.RNNBase):
                reason = "it has a parameter without a rule, and children or recurrent cells, which are run by vmap"
                instead = "put the parameter into a layer without children, train without sharding, or freeze it"
                raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)
        self._loss_fn = loss_fn
        self._kept: Kept | None = None

    def let_go(self, kept: Kept) -> None:
        """From now on weights are gathered only while a layer runs, and of each sum only what this returns is held."""
        self._kept = kept
        self._layers.model.to("meta")

    def private_sum(self, clip: ClipRule, inputs: Inputs, targets: Any, mask_B: Tensor | None = None) -> PrivateSum:
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
            for name, parameter in self._model.named_parameters():
                if parameter.grad is not None:  # found by torch itself: one of all records, without a clip
                    parameter.grad = None
                    reason = "this parameter is used outside the forward pass of the layer that holds it"
                    instead = "call that layer itself, or train without sharding"
                    raise NotPrivate(layer=name, reason=reason, instead=instead)
        with torch.no_grad():
            return clip(gradients)

    def _held(self) -> dict[str, Tensor]:
        held = super()._held()
        return held if self._kept is None else {name: value.to_local() for name, value in held.items()}  # type: ignore[attr-defined]

    def _way(self, inputs: Any) -> Any:
        way = super()._way(inputs)
        if self._kept is not None and way not in self._checked:
            allowed = "of the kind that was tried before the weights were spread out"
            raise InvalidValue("inputs", allowed=allowed, given=str(way[1]))
        return way


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
