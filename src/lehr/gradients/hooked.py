"""The engine for loops that call ``loss.backward()`` themselves.

    engine = HookedEngine(model)
    with engine:
        for inputs, targets in loader:
            loss_fn(model(inputs), targets).backward()
            private_sum = clip(engine.gradients())

Inside the block the model's layers report what goes in and the gradient of what comes out, and the same rules as
everywhere turn those into norms and sums. No ``.grad`` is computed or written, and behind the block, however it was
left, the model is as it was. Axes: B records, K views of one record, N = B·K images.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import Parameter
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from lehr import validate
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import batches, recurrent
from lehr.gradients.calling import Called
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.heard import Heard, Passage
from lehr.gradients.layers import Layers
from lehr.gradients.listening import Bare, BareWithBuffers, Listening, by_copies, by_rule, in_passes
from lehr.gradients.made_up import ATTEMPTS, MadeUp
from lehr.gradients.masks import checked_mask
from lehr.gradients.mixing import (
    DRAWS_IN_PYTHON,
    Run,
    Sites,
    draws_for_all,
    other_number,
    refuse_mixed_images,
    run_apart,
)
from lehr.gradients.precision import margin
from lehr.gradients.record_axis import Trace, why_not_apart
from lehr.gradients.refusals import described, graph_of, refuse_what_cannot_be_private
from lehr.interfaces import Site, Tensors

LOG = logging.getLogger("lehr")
REDUCTIONS = ("mean", "sum")
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


class HookedEngine:
    """Listens to the user's own model.

    ``loss_reduction`` says how the losses of the images of a batch become one: by their mean or by their sum. Every
    image must have the same share in it: a mean over the tokens of sentences of different length, or over classes with
    weights, is not a mean over records. With ``views=K`` the batch has K images of every record, next to one another,
    and their gradients are averaged before a norm is taken. ``num_passes`` is how often the model is run over the same
    records for one loss, as a Siamese network is.

    The record axis comes first, in the model's inputs and at every layer. Whether records are kept apart is tried once,
    by a few more runs of the model on images that are made up; a model that cannot be tried is refused. Physical
    batches are asked for one by one: call ``gradients()`` after each ``backward()`` and add up what comes of it.
    """

    _can_run_alone = True

    def __init__(self, model: nn.Module, *, loss_reduction: str = "mean", views: int = 1, num_passes: int = 1) -> None:
        self._model = model
        self._layers = Layers(model)
        self._takes_mean = validate.one_of(REDUCTIONS, loss_reduction=loss_reduction) == "mean"
        self._views = validate.count(views=views)
        self._num_passes = validate.count(num_passes=num_passes)
        self._heard = Heard()
        self._rows: Sequence[int] = ()
        self._behind: frozenset[str] = frozenset()  # parameters that are also used where no rule sees it
        self._is_alone = False
        self._is_alone = any(isinstance(model.get_submodule(path), nn.RNNBase) for path in self._with_copies())
        self._tried: set[Any] = set()
        self._tried_alone: set[Any] = set()
        self._proven: set[Any] = set()
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> HookedEngine:
        self.attach()
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def attach(self) -> None:
        """Begin to listen. ``detach`` must follow; ``with engine:`` sees to that."""
        self._refuse_another_model()
        if any(isinstance(vars(layer).get("forward"), Listening) for layer in self._model.modules()):
            raise InvalidValue("model", allowed="a model that no engine listens to", given="a listened one")
        _refuse_replaced_forward(self._model)
        self.forget()
        try:
            self._listen()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Stop to listen: the model is as it was. What was heard can still be asked for."""
        while self._undo:
            self._undo.pop()()

    def forget(self) -> None:
        """Drop what was heard, for a batch that is skipped."""
        self._heard = Heard()

    @torch.no_grad()
    def gradients(
        self,
        mask_B: Tensor | None = None,  # noqa: N803
        kept: Callable[[str, Tensor], Tensor] | None = None,
    ) -> ContributedGradients:
        """The gradients of the batch that ``backward()`` was called for. They are given once and forgotten here.

        Of a weighted sum only what ``kept(name, sum)`` returns is held, where that is given.
        """
        self._refuse_another_model()
        heard, self._heard = self._heard, Heard()
        if not heard.backward_began:
            raise InvalidValue("loop", allowed="one with loss.backward() before gradients()", given="no backward pass")
        num_images = heard.images_of([passage.inputs for passage in heard.passages.values()])
        num_records = self._num_records(num_images)
        parameters = self._held()
        mask = checked_mask(mask_B, num_records=num_records, device=next(iter(parameters.values())).device)
        share = num_records if self._takes_mean else 1 / self._views
        sites = {
            key: self._site(passage, heard.output_grads.get(key), num_images) for key, passage in heard.passages.items()
        }
        own = {name: self._by_record(grads).sum(1) for name, grads in heard.own_grads.items()}
        places = {key: passage.place for key, passage in heard.passages.items()}
        types = {grads.dtype for grads in [*heard.output_grads.values(), *heard.own_grads.values()]}
        return ContributedGradients(
            self._layers.contributions(
                places, sites, {**parameters, **dict(self._model.named_buffers())}, copied=own, num_records=num_records
            ),
            mask_B=mask,
            margin=max((margin(dtype, mask.device) for dtype in types), default=0.0),
            kept=kept,
            scale=share,
        )

    def _held(self) -> dict[str, Tensor]:
        """The weights of the moment, as far as this process has them."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def _site(self, passage: Passage, grads: Tensor | None, num_images: int) -> Site:
        """What passed one place, of the loss as it is; a loss that did not use it has zeros."""
        flaw = passage.flaw(num_images)
        if flaw is not None:
            layer = passage.place.layer
            reason, instead = flaw
            raise NotPrivate(layer=described(layer, self._model.get_submodule(layer)), reason=reason, instead=instead)
        if grads is None:
            grads = torch.zeros_like(passage.output, device=passage.inputs.device)
        if passage.is_alone:
            return Site(self._views_of_each(passage.inputs), self._views_of_each(grads))
        return Site(self._by_record(passage.inputs), self._by_record(grads))

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
        copied = self._layers.without_rule() - self._behind
        if self._is_alone:
            copied |= recurrent.parameters(self._model)
        full = {id(parameter): name for name, parameter in self._model.named_parameters() if name in copied}
        found = {
            path: {own: full[id(p)] for own, p in layer.named_parameters(recurse=False) if id(p) in full}
            for path, layer in self._model.named_modules()
        }
        return {path: own for path, own in found.items() if own}

    def _listen(self) -> None:
        model = self._model
        owned = {name: self._layers.owned(name) for name in self._layers.rules}
        without = {name for name, own in owned.items() if own & self._behind}
        runs = {
            name: by_rule(name, model.get_submodule(name), rule)
            for name, rule in self._layers.rules.items()
            if name not in without
        }
        copies = self._with_copies()
        if self._is_alone:
            used = self._behind.union(*(owned[name] for name in without))
            copies[""] = {**copies.get("", {}), **{name: name for name in used}}
        for name, copied in copies.items():
            runs[name] = by_copies(name, model.get_submodule(name), copied)
        self._whole = runs.get("")
        runs[""] = in_passes(model, self._whole, at_most=self._num_passes, tried=self._tried_pass)
        for name, run in runs.items():
            self._replace_forward(model.get_submodule(name), run)
        for name, parameter in batches.trainable(model).items():
            self._guard(name, parameter)

    def _tried_pass(self, heard: Heard, run: Callable[..., Any], num_images: int, inputs: Arguments) -> Any:
        """One pass of the model, which is tried once for every way in which it is run.

        The pass comes first, so that what is wrong with the model itself is said first. Where the model is refused, its
        buffers are as they were before.
        """
        way = self._way(inputs)
        if way in self._tried and self._is_apart(num_images, inputs):
            return run(heard, *inputs[0], **inputs[1])
        put_back = batches.buffers_put_back(self._model)
        try:
            refuse_what_cannot_be_private(self._model)
            can_switch = self._can_run_alone and heard.num_passes == 1
            behind: frozenset[str] = frozenset()
            try:
                outputs = run(heard, *inputs[0], **inputs[1])
                behind = _reached(outputs, batches.trainable(self._model))
                if not can_switch or not (behind or self._is_flawed(heard, num_images)):
                    self._try(way, num_images, inputs)
                    return outputs
                refused: NotPrivate | None = None
            except Exception as error:
                put_back()
                with torch.no_grad():  # what is wrong with the model itself is said first
                    type(self._model).forward(self._model, *inputs[0], **inputs[1])
                if self._is_alone or not can_switch or isinstance(error, InvalidValue):
                    raise
                refused = error if isinstance(error, NotPrivate) else None
            put_back()
            return self._run_alone_from_now(behind, refused, num_images, inputs)
        except BaseException:
            put_back()
            raise

    def _is_flawed(self, heard: Heard, num_images: int) -> bool:
        return not self._is_alone and any(passage.flaw(num_images) for passage in heard.passages.values())

    def _run_alone_from_now(
        self, behind: frozenset[str], refused: NotPrivate | None, num_images: int, inputs: Arguments
    ) -> Any:
        """The same pass with each image alone, for a model in which layers are given something else than the records,
        or parameters are used where no rule sees it. Where that is refused too, for the first reason.
        """
        before = self._is_alone, self._behind
        try:
            while True:
                self._listen_again(True, self._behind | behind)
                self._heard = Heard()
                self._heard.begin_pass(num_images, at_most=self._num_passes)
                assert self._whole is not None
                outputs = self._whole(self._heard, *inputs[0], **inputs[1])
                behind = _reached(outputs, batches.trainable(self._model))
                if not behind:
                    break
            self._try(self._way(inputs), num_images, inputs)
        except NotPrivate as error:
            self._listen_again(*before)
            if refused is None:
                raise
            raise refused from error
        used = ", ".join(sorted(self._behind))
        why = "the record axis does not stay first in every layer" if refused is None else refused.reason
        why = f"{used} used where no layer rule sees it" if used else why
        LOG.warning("each record is run alone, which is slower: %s", why)
        return outputs

    def _listen_again(self, is_alone: bool, behind: frozenset[str]) -> None:
        self._is_alone, self._behind = is_alone, behind
        self.detach()
        self._listen()

    def _try(self, way: Any, num_images: int, inputs: Arguments) -> None:
        if num_images >= 2 * self._views:
            if way not in self._tried:
                self._try_for_mixing(num_images, inputs)
                self._tried.add(way)
            if not self._is_apart(num_images, inputs):
                self._prove_apart(num_images, inputs)
                self._proven.add(self._shapes(num_images, inputs))
        elif way not in self._tried_alone and num_images:
            self._try_alone(num_images, inputs)
            self._tried_alone.add(way)

    def _is_apart(self, num_images: int, inputs: Arguments) -> bool:
        """Whether records are kept apart in batches of these shapes: proven, or run alone, or there is only one."""
        is_one = num_images < 2 * self._views
        return is_one or self._is_alone or self._shapes(num_images, inputs) in self._proven

    def _shapes(self, num_images: int, inputs: Arguments) -> Any:
        return self._way(inputs), num_images, tuple(leaf.shape for leaf in batches.leaves(inputs))

    def _try_for_mixing(self, num_images: int, inputs: Any) -> None:
        """At the first batch of two records, on made-up images."""
        says_nothing: str | None = None
        for attempt, few in product(ATTEMPTS, (other_number(num_images), num_images)):
            says_nothing = self._tried_on(attempt, inputs, num_images=num_images, few=few)
            if says_nothing is None:
                self._refuse_shared_draws(attempt, inputs, num_images=num_images)
                return
        reason = f"it cannot be seen on made-up records whether it keeps records apart ({says_nothing})"
        instead = "the materialised engine, which runs every record alone"
        raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)

    def _prove_apart(self, num_images: int, inputs: Any) -> None:
        """For every shape of a batch, of which no number is looked at: what each layer is given and gives back."""

        def compute(trace: Trace) -> Iterator[tuple[str, Tensor]]:
            def made_up(leaf: Tensor) -> Tensor:
                has_records = leaf.shape[:1] == (num_images,)
                return trace.records(leaf, rows=trace.num_records * self._views) if has_records else trace.public(leaf)

            parameters = self._model.named_parameters()
            values = {name: Parameter(trace.public(p, name), p.requires_grad) for name, p in parameters}
            buffers = {name: trace.public(buffer, name) for name, buffer in self._model.named_buffers()}
            heard, self._heard = self._heard, Heard(num_images=trace.num_records * self._views)
            try:
                yield from self._followed(trace, {**values, **buffers}, batches.each(made_up, inputs))
            finally:
                self._heard = heard

        sizes = [size for leaf in batches.leaves(inputs) for size in leaf.shape[1:]]
        num_records = self._num_records(num_images)
        why = why_not_apart(compute, self._model, num_records=num_records, sizes=sizes)
        if why is not None and "aten._pack_padded_sequence" in why:  # which cannot be followed without values
            LOG.warning("records in packed sequences are not proven to be kept apart, only tried on made-up ones")
        elif why is not None:
            instead = (
                "keep the record axis first and apart, or use the materialised engine, which runs every record alone"
            )
            reason = f"it is not proven to keep records apart ({why})"
            raise NotPrivate(layer=described("", self._model), reason=reason, instead=instead)

    def _followed(self, trace: Trace, values: Tensors, inputs: Any) -> Iterator[tuple[str, Tensor]]:
        """One pass, and one back from whatever a loss may ask of each record's outputs."""
        listened = None if self._whole is None else partial(self._whole, self._heard)
        called = Called(Bare(self._model, listened))
        with torch.enable_grad():
            found = batches.leaves(called({f"layer.{name}": value for name, value in values.items()}, *inputs))
            asked = [(output, trace.like(output)) for output in found if output.requires_grad and output.dim()]
            pairs = [(output, grads) for output, grads in asked if grads is not None]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [grads for _, grads in pairs])
        for key, passage in self._heard.passages.items():
            yield passage.place.layer, passage.inputs
            if key in self._heard.output_grads:
                yield passage.place.layer, self._heard.output_grads[key]
        yield from self._heard.own_grads.items()

    def _refuse_shared_draws(self, attempt: MadeUp, inputs: Any, *, num_images: int) -> None:
        """Under ``vmap`` each image has random numbers of its own, but for those of Python."""

        named = {f"layer.{name}": value for name, value in attempt.values(self._model).items()}

        def run(inputs: Arguments) -> Any:
            return Called(Bare(self._model))(named, *inputs)

        shared = draws_for_all(self._model, run, lambda rows: attempt.batch(inputs, num_images=num_images, rows=rows))
        if shared == DRAWS_IN_PYTHON or (shared is not None and not self._is_alone):
            instead = "draw for every record apart, with torch, or switch it off (layerdrop=0); or lehr.fit"
            raise NotPrivate(layer=described("", self._model), reason=shared, instead=instead)

    def _try_alone(self, num_images: int, inputs: Any) -> None:
        """A record that is alone in its batch meets no other one there, but could leave something in a buffer."""
        for attempt in ATTEMPTS:
            run, left = self._leaving_buffers(attempt)
            try:
                for image in (0, 1):
                    self._rows = [image] * num_images
                    run_apart(self._model, run, attempt.batch(inputs, num_images=num_images, rows=self._rows))
            except Exception:  # the model is not made for such records: the next are of another kind
                continue
            _refuse_written_buffers(self._model, *left)
            return

    def _tried_on(self, attempt: MadeUp, inputs: Any, *, num_images: int, few: int) -> str | None:
        def batch(rows: Sequence[int]) -> Any:
            self._rows = rows
            return attempt.batch(inputs, num_images=num_images, rows=rows)

        run, left = self._leaving_buffers(attempt)
        says_nothing = refuse_mixed_images(self._model, run, batch, few=few)
        if says_nothing is None:
            _refuse_written_buffers(self._model, *left[:2])  # those of each image alone
        return says_nothing

    def _leaving_buffers(self, attempt: MadeUp) -> tuple[Run, list[Tensors]]:
        """A run of the model with made-up weights, and where each puts the buffers that it leaves."""
        left: list[Tensors] = []

        def run(inputs: Any) -> tuple[Any, Sites]:
            outputs, sites, buffers = self._heard_apart(attempt.values(self._model), inputs)
            left.append(buffers)
            return outputs, sites

        return run, left

    def _way(self, inputs: Any) -> Any:
        """What decides how a model is run: its training flags, and what kind of inputs it is given."""
        leaves, structure = pytree.tree_flatten(inputs)
        kinds = tuple((leaf.dim(), leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)
        flags = tuple(layer.training for layer in self._model.modules())
        return structure, kinds, flags, self._is_alone, self._behind

    def _heard_apart(self, values: Tensors, inputs: Any) -> tuple[Any, Sites, Tensors]:
        """Outputs, what the layers are given, and the buffers then.

        The outputs are those of the model unheard, or heard where layers are run once for all images. No batch knows of
        this run, and the model's own weights and buffers take no part in it.
        """
        heard, self._heard = self._heard, Heard(num_images=len(self._rows), rows=self._rows)
        named = {f"layer.{name}": value for name, value in values.items()}
        listened = None if self._whole is None else partial(self._whole, self._heard)
        try:
            outputs, buffers = Called(BareWithBuffers(self._model))(named, *inputs)
            with torch.enable_grad():
                again = Called(Bare(self._model, listened))(named, *inputs)
                if self._is_alone:  # not all that vmap can run can be differentiated in it
                    torch.autograd.backward([leaf.sum() for leaf in batches.leaves(again) if leaf.requires_grad])
            passages = self._heard.passages.values()
            sites = [(passage.place.layer, passage.inputs) for passage in passages]
            return again if self._heard.has_shared else outputs, sites, buffers
        finally:
            self._heard = heard

    def _replace_forward(self, layer: nn.Module, run: Any) -> None:
        layer.forward = Listening(layer, lambda: self._heard, run)
        self._undo.append(lambda: _put_back(layer))

    def _guard(self, name: str, parameter: Parameter) -> None:
        """Gradients reach a parameter itself only where it is used behind its layer's back."""

        def refuse(_: Tensor) -> None:
            raise NotPrivate(
                layer=name,
                reason="this parameter is used outside the forward pass of the layer that holds it",
                instead="call that layer itself, or use the ghost or the materialised engine",
            )

        had_none = parameter._backward_hooks is None
        handle = parameter.register_hook(refuse)  # type: ignore[no-untyped-call]
        self._undo.append(lambda: _remove_guard(parameter, handle, had_none=had_none))

    def _refuse_another_model(self) -> None:
        refuse_what_cannot_be_private(self._model)
        names = tuple(batches.trainable(self._model))
        if names != self._layers.names:
            changed = sorted({*names} ^ {*self._layers.names})
            raise InvalidValue("model", allowed="one with the parameters that were trainable at first", given=changed)


def _reached(outputs: Any, parameters: Mapping[str, Parameter]) -> frozenset[str]:
    """The parameters that a backward pass from here would reach, past every rule and every copy."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    ends = [id(getattr(node, "variable", None)) for node in graph_of(batches.leaves(outputs))]
    return frozenset(names[end] for end in ends if end in names)


def _refuse_written_buffers(model: nn.Module, first: Tensors, second: Tensors) -> None:
    """Two images alone leave different numbers in a buffer: it learns from the records without noise."""
    for name, value in first.items():
        if not torch.equal(value, second[name]):
            raise NotPrivate(
                layer=f"{name} of {described('', model)}",
                reason="the forward pass writes numbers of the records into this buffer, and no noise is added to it",
                instead="eval() for the layer that does it, or a layer that keeps no statistics",
            )


def _refuse_replaced_forward(model: nn.Module) -> None:
    """What listens runs the forward pass of a layer's class, and one that was put on the layer itself would be lost."""
    for path, layer in model.named_modules():
        if "forward" in vars(layer):
            reason = "its forward was replaced on the layer itself, and a rule knows only that of its class"
            instead = "a subclass with this forward in its place, or the materialised engine"
            raise NotPrivate(layer=described(path, layer), reason=reason, instead=instead)


def _put_back(layer: nn.Module) -> None:
    del layer.forward


def _remove_guard(parameter: Parameter, handle: RemovableHandle, *, had_none: bool) -> None:
    handle.remove()
    if had_none and not parameter._backward_hooks:
        parameter._backward_hooks = None
