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
from collections import defaultdict
from collections.abc import Callable, Iterator
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
from lehr.gradients.batches import LossFn
from lehr.gradients.contributions import ContributedGradients
from lehr.gradients.differentiation import Layers
from lehr.gradients.execution import FunctionalModel, plain_forward, recurrent_parameters
from lehr.gradients.hooks import CapturedBatch, CapturedSite, HookedForward, forward_by_copies, forward_by_rule
from lehr.gradients.precision import margin
from lehr.gradients.record_axis import References, Trace, why_not_apart
from lehr.gradients.refusals import described, graph_of, refuse_what_cannot_be_private
from lehr.gradients.synthetic import (
    ATTEMPTS,
    DRAWS_IN_PYTHON,
    Observed,
    SyntheticRecords,
    refuse_mixing,
    run_apart,
    shared_draws,
)
from lehr.interfaces import ClipRule, Inputs, PrivateSum, Site, Tensors

LOG = logging.getLogger("lehr")
REDUCTIONS = ("mean", "sum")
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Kept: TypeAlias = Callable[[str, Tensor], Tensor]


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
    # What a loop must do, for errors. An integration says it in the words of its own loop.
    needs_gradients = (
        "one that calls gradients() after each backward() and before the next forward pass, or forget() for a batch "
        "that is skipped; passes that are not trained on belong under torch.no_grad(), and activation checkpointing is "
        "not supported"
    )
    needs_backward = "one that calls backward() before gradients()"
    needs_plain_model = "one that no engine is attached to; detach() removes the hooks"

    def __init__(self, model: nn.Module, *, loss_reduction: str = "mean", views: int = 1, num_passes: int = 1) -> None:
        self._model = model
        self._layers = Layers(model)
        self._takes_mean = validate.one_of(REDUCTIONS, loss_reduction=loss_reduction) == "mean"
        self._views = validate.count(views=views)
        self._num_passes = validate.count(num_passes=num_passes)
        self._captured = CapturedBatch()
        self._outside_rules: frozenset[str] = frozenset()  # parameters that are also used where no rule sees it
        self._is_alone = False
        self._is_alone = any(isinstance(model.get_submodule(path), nn.RNNBase) for path in self._with_copies())
        self._checked: dict[Any, bool] = {}  # ways to run the model: also for mixing, or for written buffers alone
        self._proven: set[Any] = set()
        self._references: defaultdict[Any, References] = defaultdict(dict)
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
                raise InvalidValue("model", allowed=self.needs_plain_model, given="one with hooks")
            if "forward" in vars(layer):  # hooks run the forward pass of a layer's class, and this one would be lost
                reason = "its forward was replaced on the layer itself, and a rule knows only that of its class"
                instead = "a subclass with this forward in its place, or lehr.fit"
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
        self, mask_B: Tensor | None = None, kept: Kept | None = None, *, weights_BK: Tensor | None = None
    ) -> ContributedGradients:
        """The gradients of the batch that ``backward()`` was called for, once.

        Where ``kept`` is given, only what ``kept(name, sum)`` returns is held of a weighted sum. ``weights_BK`` are
        factors of the losses of the views.
        """
        self._refuse_another_model()
        captured, self._captured = self._captured, CapturedBatch()
        if not captured.backward_began:
            raise InvalidValue("loop", allowed=self.needs_backward, given="no backward pass")
        num_images = captured.images_of([own.inputs for own in captured.sites.values()])
        num_records = self._num_records(num_images)
        parameters = self._held()
        mask = batches.check_mask(mask_B, num_records=num_records, device=next(iter(parameters.values())).device)
        grads, copy_grads = captured.output_grads, captured.copy_grads
        if weights_BK is not None:
            if weights_BK.shape != (num_records, self._views):
                allowed = f"of shape {(num_records, self._views)}, one for each view"
                raise InvalidValue("weights_BK", allowed=allowed, given=tuple(weights_BK.shape))
            # The images do not meet, so that a factor of one's loss is a factor of all its gradients.
            grads = {site: _scaled(values, weights_BK) for site, values in grads.items()}
            copy_grads = {name: _scaled(values, weights_BK) for name, values in copy_grads.items()}
        contributions = self._layers.contributions(
            {site: self._site(site.layer, own, grads.get(site), num_images) for site, own in captured.sites.items()},
            {**parameters, **dict(self._model.named_buffers())},
            copied={name: self._by_record(own).sum(1) for name, own in copy_grads.items()},
            num_records=num_records,
        )
        types = {values.dtype for values in [*grads.values(), *copy_grads.values()]}
        return ContributedGradients(
            contributions,
            mask_B=mask,
            margin=max((margin(dtype, mask.device) for dtype in types), default=0.0),
            kept=kept,
            scale=num_records if self._takes_mean else 1 / self._views,
        )

    def _held(self) -> dict[str, Tensor]:
        """The current weights, as far as this process has them."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def _site(self, layer: str, own: CapturedSite, grads: Tensor | None, num_images: int) -> Site:
        """The inputs and output gradients of one site; zeros where the loss did not use it."""
        flaw = own.flaw(num_images)
        if flaw is not None:
            reason, instead = flaw
            raise NotPrivate(layer=described(layer, self._model.get_submodule(layer)), reason=reason, instead=instead)
        inputs = own.inputs
        output_grads = grads
        if output_grads is None:
            output_grads = torch.zeros(own.output_shape, dtype=own.output_dtype, device=inputs.device)
        if own.is_alone and self._views == 1:
            return Site(inputs, output_grads)
        split = [self._by_record(inputs), self._by_record(output_grads)]
        if own.is_alone:  # behind the image axis stand rows, unless that axis is the last
            split = [values.flatten(1, 2) if values.dim() > 3 else values for values in split]
        return Site(*split)

    def _by_record(self, values: Tensor) -> Tensor:
        return values.reshape(values.shape[0] // self._views, self._views, *values.shape[1:])

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
        model, owned = self._model, self._layers.owned
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
        layer.forward = HookedForward(layer, lambda: self._captured, run, allowed_loop=self.needs_gradients)
        self._undo.append(partial(delattr, layer, "forward"))

    def _guard(self, name: str, parameter: Parameter) -> None:
        """Gradients reach a parameter itself only where it is used outside of its layer's forward pass."""

        def refuse(_: Tensor) -> None:
            raise NotPrivate(
                layer=name,
                reason="this parameter is used outside the forward pass of the layer that holds it",
                instead="weight_decay of the optimizer for a penalty on weights; otherwise call that layer itself, or "
                "train with lehr.fit",
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

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """The model as a whole, hooked, without checks."""
        if self._whole is None:
            return type(self._model).forward(self._model, *args, **kwargs)
        return self._whole(self._captured, *args, **kwargs)

    def _checked_pass(self, captured: CapturedBatch, *args: Any, **kwargs: Any) -> Any:
        """One pass of the model, counted, and checked once for every way in which it is run.

        The pass comes first, so that an error of the model itself is raised first. Where the model is refused, its
        buffers are as they were before.
        """
        inputs: Arguments = (args, kwargs)
        num_images = captured.images_of(inputs)
        captured.begin_pass(num_images, at_most=self._num_passes)
        if self._is_checked(num_images, inputs):
            return self._run(*args, **kwargs)
        put_back = batches.buffers_put_back(self._model)
        try:
            refuse_what_cannot_be_private(self._model)
            can_switch = self._can_run_alone and captured.num_passes == 1
            behind: frozenset[str] = frozenset()
            try:
                outputs = self._run(*args, **kwargs)
                behind = self._reached(outputs)
                is_flawed = not self._is_alone and any(site.flaw(num_images) for site in captured.sites.values())
                if not can_switch or not (behind or is_flawed):
                    self._check(num_images, inputs)
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
                outputs = self._run(*inputs[0], **inputs[1])
                behind = self._reached(outputs)
                if not behind:
                    break
            self._check(num_images, inputs)
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

    def _reached(self, outputs: Any) -> frozenset[str]:
        """The parameters that a backward pass from here would reach, past every rule and every copy."""
        names = {id(parameter): name for name, parameter in batches.trainable(self._model).items()}
        ends = [id(getattr(node, "variable", None)) for node in graph_of(batches.leaves(outputs))]
        return frozenset(names[end] for end in ends if end in names)

    # What is checked of the model, on synthetic images and on none.

    def _way(self, inputs: Any) -> Any:
        """What decides how a model is run: its training flags, and the kind of its inputs."""
        leaves, structure = pytree.tree_flatten(inputs)
        kinds = tuple((leaf.dim(), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)
        flags = tuple(layer.training for layer in self._model.modules())
        return structure, kinds, flags, self._is_alone, self._outside_rules

    def _shapes(self, num_images: int, inputs: Arguments) -> Any:
        return self._way(inputs), num_images, tuple(leaf.shape for leaf in batches.leaves(inputs))

    def _is_checked(self, num_images: int, inputs: Arguments) -> bool:
        """A record that is alone in its batch meets no other one there; nor does one that is run alone."""
        way = self._way(inputs)
        if num_images < 2 * self._views:
            return way in self._checked
        return self._checked.get(way, False) and (self._is_alone or self._shapes(num_images, inputs) in self._proven)

    def _check(self, num_images: int, inputs: Arguments) -> None:
        way = self._way(inputs)
        if way not in self._checked and num_images:
            self._refuse_written_buffers(num_images, inputs)
            self._checked[way] = False
        if num_images < 2 * self._views:
            return
        if not self._checked[way]:
            self._check_for_mixing(num_images, inputs)
            self._checked[way] = True
        if not self._is_checked(num_images, inputs):
            self._prove_apart(num_images, inputs)
            self._proven.add(self._shapes(num_images, inputs))

    def _refuse_written_buffers(self, num_images: int, inputs: Any) -> None:
        """A buffer in which two images alone leave different values learns from the records without noise."""

        def buffers(attempt: SyntheticRecords, inputs: Arguments) -> Tensors:
            def run(*args: Any, **kwargs: Any) -> Tensors:
                type(self._model).forward(self._model, *args, **kwargs)
                return {name: buffer.clone() for name, buffer in self._model.named_buffers()}

            left: Tensors = FunctionalModel(self._model, run)(attempt.values(self._model), *inputs)
            return left

        for attempt in ATTEMPTS:
            try:
                images = [attempt.batch(inputs, num_images, [image] * num_images) for image in (0, 1)]
                first, second = (run_apart(self._model, partial(buffers, attempt), batch) for batch in images)
            except Exception:  # the model is not made for such records: the next are of another kind
                continue
            for name, value in first.items():
                if not torch.equal(value, second[name]):
                    raise NotPrivate(
                        layer=f"{name} of {described('', self._model)}",
                        reason="the forward pass writes numbers of the records into this buffer, and no noise is added",
                        instead="eval() for the layer that does it, or a layer that keeps no statistics",
                    )
            return

    def _check_for_mixing(self, num_images: int, inputs: Any) -> None:
        """Another record in the batch must not change what a record meets, nor share its random numbers."""
        other = 3 if num_images == 2 else 2  # an axis that is as long as the batch by chance will not follow it
        says_nothing: str | None = None
        for attempt, few in product(ATTEMPTS, (other, num_images)):
            batch = partial(attempt.batch, inputs, num_images)
            says_nothing = refuse_mixing(self._model, partial(self._observe, attempt, few), batch, few=few)
            if says_nothing is not None:
                continue
            # Under vmap each image has random numbers of its own, but for those of Python.
            shared = shared_draws(self._model, partial(self._run_plain, attempt.values(self._model)), batch)
            if shared == DRAWS_IN_PYTHON or (shared is not None and not self._is_alone):
                instead = "draw for every record apart, with torch, or switch it off (layerdrop=0); or lehr.fit"
                raise NotPrivate(layer=described("", self._model), reason=shared, instead=instead)
            return
        reason = f"it cannot be checked on synthetic records whether it keeps records apart ({says_nothing})"
        instead = "lehr.fit, which runs every record alone where it must"
        raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)

    def _observe(self, attempt: SyntheticRecords, num_images: int, inputs: Arguments) -> Observed:
        """What each layer is given, and the outputs; the current batch and the model's own values take no part."""
        outputs, values = self._outputs(attempt, inputs), attempt.values(self._model)
        before, self._captured = self._captured, CapturedBatch(num_images=num_images)
        try:
            with torch.enable_grad():
                hooked = FunctionalModel(self._model, self._run)(values, *inputs)
                if self._is_alone:  # not all that vmap can run can be differentiated in it
                    torch.autograd.backward([leaf.sum() for leaf in batches.leaves(hooked) if leaf.requires_grad])
            sites = [(site.layer, own.inputs) for site, own in self._captured.sites.items()]
        finally:
            self._captured = before
        return [*sites, *((None, leaf) for leaf in batches.leaves(outputs))]

    def _outputs(self, attempt: SyntheticRecords, inputs: Arguments) -> Any:
        """Outputs with the records first. The Opacus integration overrides it, for records on the second axis."""
        return self._run_plain(attempt.values(self._model), inputs)

    def _run_plain(self, values: Tensors, inputs: Arguments) -> Any:
        """The model without hooks."""
        return FunctionalModel(self._model, plain_forward(self._model))(values, *inputs)

    def _prove_apart(self, num_images: int, inputs: Any) -> None:
        """For every shape of a batch: the inputs and output gradients of each layer. No values are read."""

        def compute(trace: Trace) -> Iterator[tuple[str, Tensor]]:
            """One forward pass, and one backward pass from whatever a loss may ask of each record's outputs."""
            rows = trace.num_records * self._views

            def traced(leaf: Tensor) -> Tensor:
                return trace.records(leaf, rows=rows) if leaf.shape[:1] == (num_images,) else trace.public(leaf)

            parameters = self._model.named_parameters()
            values: dict[str, Tensor] = {n: Parameter(trace.public(p, n), p.requires_grad) for n, p in parameters}
            values |= {name: trace.public(buffer, name) for name, buffer in self._model.named_buffers()}
            before, self._captured = self._captured, CapturedBatch(num_images=rows)
            try:
                with torch.enable_grad():
                    outputs = FunctionalModel(self._model, self._run)(values, *batches.each(traced, inputs))
                    asked = [out for out in batches.leaves(outputs) if out.requires_grad and out.dim()]
                    pairs = [(output, grads) for output in asked if (grads := trace.like(output)) is not None]
                    if pairs:
                        torch.autograd.backward([output for output, _ in pairs], [grads for _, grads in pairs])
                captured = self._captured
            finally:
                self._captured = before
            for site, own in captured.sites.items():
                yield site.layer, own.inputs
                if site in captured.output_grads:
                    yield site.layer, captured.output_grads[site]
            yield from captured.copy_grads.items()

        shapes = [leaf.shape[1:] for leaf in batches.leaves(inputs)]
        why = why_not_apart(
            compute,
            self._model,
            num_records=self._num_records(num_images),
            sizes=[size for shape in shapes for size in shape],
            references=self._references[self._way(inputs), tuple(shapes)],
        )
        # Packed sequences cannot be followed without values. That each record has its own part of a layer that is run
        # once for all of them is seen in the proof alone.
        is_packed = why is not None and "aten._pack_padded_sequence" in why
        if is_packed and not any(own.is_shared for own in self._captured.sites.values()):
            LOG.warning("records in packed sequences are not proven to be kept apart, only checked on synthetic ones")
        elif why is not None:
            instead = (
                "keep the record axis first and apart, or train with lehr.fit, which runs every record alone where it "
                "must"
            )
            reason = f"it is not proven to keep records apart ({why})"
            raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)


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
        device = batches.leaves(inputs)[0].device
        mask = batches.check_batch(inputs, targets, mask_B, views=self._views, device=device)
        images = batches.flat_views(inputs, views=self._views)
        with self:
            outputs = batches.call(self._model, images)
            losses = self._loss_fn(outputs, batches.repeat_targets(targets, views=self._views))
            torch.autograd.backward(batches.one_each(losses, num_records=len(mask) * self._views).sum())
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
        if self._kept is not None and not self._checked.get(way):
            allowed = "of the kind that was tried before the weights were spread out"
            raise InvalidValue("inputs", allowed=allowed, given=str(way[1]))
        return way

    def _is_checked(self, num_images: int, inputs: Arguments) -> bool:
        is_checked = super()._is_checked(num_images, inputs)
        if self._kept is not None and not is_checked:  # a check runs the model, and the other ranks would not
            allowed = "of the shapes that were tried before the weights were spread out"
            raise InvalidValue("inputs", allowed=allowed, given="others")  # shapes can be about a record
        return is_checked


def _scaled(values: Tensor, weights_BK: Tensor) -> Tensor:
    """The gradients of all images, each times its weight."""
    return values * weights_BK.to(values).view(-1, *[1] * (values.dim() - 1))


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
