"""``GradSampleModule``: a model whose per-record gradients can be clipped.

Per-record gradients are not stored: there is no ``p.grad_sample``. ``GradSampleHooks`` computes norms and sums from the
inputs and the output gradients of each layer. ``register_grad_sampler`` adds rules for your own layers.

The engine needs the records on the first axis, in the inputs of the model and of every layer. For models with
``batch_first=False``, or with packed sequences, ``RecordsFirst`` transposes the inputs for the engine, and back for the
model. Layers that treat all positions alike (``TRAILING_AXES``) run on the transposed tensor; recurrent layers,
attention and ``SequenceBias`` know their record axis; for any other layer the engine checks that its input begins with
the records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils import _pytree as pytree

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.hooks import CapturedBatch, HookedForward
from lehr.gradients.synthetic import SyntheticRecords
from lehr.integrations.opacus.layers import pad_packed
from lehr.integrations.opacus.validators import NotSupported
from lehr.interfaces import Contributions, LayerRule, Site, layer_rules, register_layer_rule

# The number of trailing axes that belong to one position.
TRAILING_AXES: dict[type[nn.Module], Callable[[Any], int]] = {
    nn.Linear: lambda layer: 1,
    nn.Embedding: lambda layer: 0,
    nn.LayerNorm: lambda layer: len(layer.normalized_shape),
    nn.RMSNorm: lambda layer: len(layer.normalized_shape),
}


class RecordsFirst(nn.Module):
    """The model on inputs that have the records first; ``inner`` is the forward function that it replaces."""

    inner: Callable[..., Any] | None = None

    def __init__(self, module: nn.Module, *, batch_first: bool) -> None:
        super().__init__()
        self.module, self.batch_first = module, batch_first

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        def original(leaf: Any) -> Any:
            return leaf.original() if isinstance(leaf, _Padded) else _transposed(leaf, batch_first=self.batch_first)

        args, kwargs = _map_leaves(original, (args, kwargs))
        if self.inner is None:
            return type(self.module).forward(self.module, *args, **kwargs)
        return self.inner(*args, **kwargs)

    def transposing(self, layer: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
        """Run a layer of ``TRAILING_AXES`` with the records first, if its input has an axis of positions."""
        attention = (
            inner for one in self.modules() if isinstance(one, nn.MultiheadAttention) for inner in one.modules()
        )
        count = next((count for kind, count in TRAILING_AXES.items() if isinstance(layer, kind)), None)
        if self.batch_first or count is None or layer in attention:
            return run
        trailing = count(layer)

        def transposed(captured: Any, *args: Any, **kwargs: Any) -> Any:
            inputs = args[0] if args else next(iter(kwargs.values()))
            if inputs.dim() - trailing < 2:
                return run(captured, inputs)
            return run(captured, inputs.transpose(0, 1)).transpose(0, 1)

        return transposed


def records_first(inputs: Any, *, batch_first: bool = False) -> Any:
    """Inputs as ``RecordsFirst`` takes them."""

    def first(leaf: Any) -> Any:
        if isinstance(leaf, PackedSequence):
            return _Padded(*pad_packed(leaf))
        return _transposed(leaf, batch_first=batch_first)

    return _map_leaves(first, inputs)


def transpose_outputs(outputs: Any, more: Any, *, num_positions: int) -> Any:
    """Outputs with the records first: on the axis that is longer in ``more``, the outputs for one more record."""

    def transposed(output: Any, longer: Any) -> Any:
        if isinstance(output, PackedSequence):
            values, _ = pad_packed(output)
            return functional.pad(values, (0, 0, 0, max(0, num_positions - values.shape[1])))
        if not isinstance(output, Tensor):
            return output
        grown = [axis for axis, pair in enumerate(zip(output.shape, longer.shape, strict=True)) if pair[0] != pair[1]]
        return output.movedim(grown[0], 0) if grown else output

    return pytree.tree_map(transposed, outputs, more, is_leaf=_is_leaf)


class _Padded(NamedTuple):
    """A packed sequence with the records first, and a mask of the positions that each record has."""

    values_BTD: Tensor  # noqa: N815
    mask_BT: Tensor  # noqa: N815

    def original(self) -> PackedSequence:
        lengths = self.mask_BT.sum(1).clamp_min(1)  # a placeholder record may have none
        return pack_padded_sequence(self.values_BTD, lengths.cpu(), batch_first=True, enforce_sorted=False)


def _transposed(leaf: Tensor, *, batch_first: bool) -> Tensor:
    return leaf if batch_first or leaf.dim() < 2 else leaf.transpose(0, 1)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, Tensor | PackedSequence | _Padded)


def _map_leaves(change: Callable[[Any], Any], inputs: Any) -> Any:
    return pytree.tree_map(lambda leaf: change(leaf) if _is_leaf(leaf) else leaf, inputs, is_leaf=_is_leaf)


ATTACHED: WeakSet[GradSampleHooks] = WeakSet()


class GradSampleHooks(HookedEngine):
    """Hooks on a model that is not wrapped: what ``make_private(wrap_model=False)`` returns instead of the model.

    ``is_counted`` says that steps are charged.
    """

    is_counted = False
    needs_gradients = (
        "one that calls step(), of the optimizer that make_private returned, after each backward(). Gradient "
        "accumulation: set batch_size of the DataLoader to the whole batch, and loop over BatchMemoryManager("
        "data_loader=..., max_physical_batch_size=..., optimizer=...). Several forward passes for one loss, as in a "
        "Siamese network: all of them before one backward(), with make_private(num_passes=...). A batch that is "
        "skipped: optimizer.zero_grad(). Evaluation: under torch.no_grad()"
    )
    needs_backward = "one that calls loss.backward() before each optimizer.step()"
    needs_plain_model = (
        "one that is not private yet: train with the model that make_private returned, or get a plain one from its "
        "to_standard_module()"
    )

    def __init__(
        self,
        m: nn.Module,
        *,
        batch_first: bool = True,
        loss_reduction: str = "mean",
        strict: bool = True,
        force_functorch: bool = False,
        num_passes: int = 1,
    ) -> None:
        if not strict:
            raise InvalidValue("strict", allowed="True: unsupported layers raise an error", given=strict)
        self.batch_first, self.loss_reduction, self.num_passes = batch_first, loss_reduction, num_passes
        # Recurrent layers may be given packed sequences.
        is_needed = not batch_first or any(isinstance(layer, nn.RNNBase) for layer in m.modules())
        self._first = RecordsFirst(m, batch_first=batch_first) if is_needed else None
        self.model = self._first or m  # what the engine runs
        try:
            super().__init__(self.model, loss_reduction=loss_reduction, num_passes=num_passes)
            self.attach()
        except NotPrivate as error:
            raise NotSupported(layer=error.layer, reason=error.reason, instead=error.instead) from None
        ATTACHED.add(self)

    @property
    def hooks_enabled(self) -> bool:
        """Whether hooks are attached to the model."""
        return bool(self._undo)

    def disable_hooks(self) -> None:
        """Detach the hooks; the optimizer refuses a step on a backward pass that they did not see."""
        self.detach()

    remove_hooks = cleanup = disable_hooks

    def enable_hooks(self) -> None:
        """Attach the hooks again."""
        if not self.hooks_enabled:
            self.attach()

    def forbid_grad_accumulation(self) -> None:
        """Nothing to do: accumulation over batches is always refused; ``BatchMemoryManager`` splits a batch."""

    def allow_grad_accumulation(self) -> None:
        """Not supported: a step is charged for one draw."""
        allowed = "one batch per optimizer.step(); BatchMemoryManager splits a large one"
        raise InvalidValue("loop", allowed=allowed, given="gradient accumulation")

    @property
    def num_records(self) -> int:
        """The number of records of the forward pass that no step has used yet."""
        return self._captured.num_images or 0

    def _hook(self) -> None:
        without_rule = self._layers.without_rule()
        if self._first is not None and not self._first.batch_first and without_rule:
            reason = f"no layer rule covers the parameter {min(without_rule)}"
            raise NotPrivate(layer="a model with batch_first=False", reason=reason, instead="batch_first=True")
        super()._hook()
        if self._first is not None:
            self._hook_model(self._first)

    def _hook_model(self, first: RecordsFirst) -> None:
        module = first.module
        first.inner = vars(module).get("forward")

        def forward(_: CapturedBatch, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = records_first((args, kwargs), batch_first=first.batch_first)
            return first(*args, **kwargs)

        def undo() -> None:
            vars(module).pop("forward")
            if first.inner is not None:
                vars(module)["forward"], first.inner = first.inner, None

        hooked = HookedForward(module, lambda: self._captured, forward, allowed_loop=self.needs_gradients)
        vars(module)["forward"] = hooked
        self._undo.append(undo)

    def _outputs(self, attempt: SyntheticRecords, inputs: Any) -> Any:
        outputs = self._run_plain(attempt.values(self.model), inputs)
        if self._first is None:
            return outputs
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        num_records = next(len(leaf) for leaf in leaves if leaf.dim())
        longest = max((leaf.shape[1] for leaf in leaves if leaf.dim() > 1), default=0)

        def one_more(leaf: Tensor) -> Tensor:
            return torch.cat([leaf, leaf[:1]]) if leaf.shape[:1] == (num_records,) else leaf

        more = self._run_plain(attempt.values(self.model), pytree.tree_map_only(Tensor, one_more, inputs))
        return transpose_outputs(outputs, more, num_positions=longest)

    def _replace_forward(self, layer: nn.Module, run: Any) -> None:
        super()._replace_forward(layer, run if self._first is None else self._first.transposing(layer, run))

    @property
    def has_backward(self) -> bool:
        """Whether ``backward()`` was called."""
        return self._captured.backward_began

    def refuse_parts_of_the_model(self) -> None:
        """Only the model as a whole is checked for mixing records, not layers that the loop combines by itself."""
        if self._captured.backward_began and not self._captured.num_passes:
            allowed = "one that calls the model itself, which is checked for mixing records"
            raise InvalidValue("loop", allowed=allowed, given="one that calls layers or methods of the model")


_PREFIX = "_module."
# Attributes that the wrapper takes from the hooks, not from the model.
_HOOK_ATTRIBUTES = (
    *("allow_grad_accumulation", "cleanup", "disable_hooks", "enable_hooks", "forbid_grad_accumulation"),
    *("batch_first", "hooks_enabled", "loss_reduction", "num_passes", "remove_hooks"),
)


class GradSampleModule(nn.Module):
    """The wrapped model. Parameters are named ``_module.…``, as in Opacus; ``load_state_dict`` takes both names.

    In eval mode no graph is built. Attributes and methods of the model are available on the wrapper.
    """

    def __init__(self, m: nn.Module, **options: Any) -> None:
        super().__init__()
        hooks = GradSampleHooks(m, **options)
        self._module = m
        self.hooks = hooks
        self.train(m.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            return self._module(*args, **kwargs)
        with torch.no_grad():
            return self._module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in ("_module", "hooks"):  # during construction or copying
                raise
            return getattr(self.hooks if name in _HOOK_ATTRIBUTES else self._module, name)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights saved from the wrapper, here or by Opacus, or from the model itself."""
        own = {name if name.startswith(_PREFIX) else _PREFIX + name: value for name, value in state_dict.items()}
        return super().load_state_dict(own, strict=strict, assign=assign)

    def to_standard_module(self) -> nn.Module:
        """The model itself, without hooks."""
        self.hooks.cleanup()
        return self._module

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._module!r})"


class DifferentiallyPrivateDistributedDataParallel(nn.Module):
    """Marks a model that several processes train together. ``make_private`` does the rest."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


GradSampler: TypeAlias = Callable[[Any, list[Tensor], Tensor], Mapping[nn.Parameter, Tensor]]
_Function = TypeVar("_Function", bound=Callable[..., Any])
_KINDS: set[type[nn.Module]] = set()


def register_grad_sampler(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Decorator for a function that computes the gradients of layers of these types, in every engine of Lehr.

    It is called as in Opacus, ``function(layer, [activations], backprops)``, but with one record at a time, so that no
    gradient can depend on another record. Layers for which Lehr has a rule cannot be registered.
    """

    def register(function: _Function) -> _Function:
        for kind in [kinds] if isinstance(kinds, type) else kinds:
            if kind in layer_rules() and kind not in _KINDS:
                raise InvalidValue("kinds", allowed="layers that Lehr has no rule for", given=kind.__name__)
            register_layer_rule(kind, LayerRule(contributions=_by_record(function)))
            _KINDS.add(kind)
        return function

    return register


def register_norm_sampler(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Not needed: norms follow from ``register_grad_sampler``."""
    return lambda function: function


def _by_record(function: GradSampler) -> Callable[[nn.Module, Mapping[str, Site]], Contributions]:
    def contributions(layer: nn.Module, sites: Mapping[str, Site]) -> Contributions:
        site = sites["output"]
        own = {name: parameter for name, parameter in layer.named_parameters(recurse=False) if parameter.requires_grad}
        grads_by_view = [
            [function(layer, [inputs], grads) for inputs, grads in zip(*views, strict=True)]
            for views in zip(site.inputs.unsqueeze(2), site.output_grads.unsqueeze(2), strict=True)
        ]
        return {
            name: torch.stack([torch.stack([one[parameter][0] for one in views]).sum(0) for views in grads_by_view])
            if grads_by_view
            else parameter.new_zeros(0, *parameter.shape)
            for name, parameter in own.items()
        }

    return contributions
