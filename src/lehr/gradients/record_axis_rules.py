"""Where the records are in the result of an operation: one rule for each kind, in a table at the end of the file.

A rule is given a call of an operation, ``Op``, and returns the axis of the records in its results, or raises ``Mixes``
where a result would depend on several records. ``record_axis`` has what the rules are for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch


@dataclass(frozen=True)
class Axis:
    """Dimension ``dim`` of a tensor has the records one after another, each with ``inner`` entries."""

    dim: int
    inner: int = 1

    def at(self, dim: int) -> Axis:
        return Axis(dim, self.inner)


@dataclass(frozen=True)
class Public:
    """Depends on no record.

    ``values`` are those of the whole storage, where they are known. ``is_even``: the same number everywhere, or
    independent draws from one distribution.
    """

    values: Tensor | None = None
    is_even: bool = False


@dataclass(frozen=True)
class Mixed:
    """May depend on several records, or on their places in the batch."""

    reason: str


Result: TypeAlias = Axis | Mixed | Public
Rule: TypeAlias = "Callable[[Op], Result | list[Result]]"


class Mixes(Exception):
    """Raised by a rule: the result depends on several records."""


def tensors_in(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


@dataclass(frozen=True)
class Signature:
    """What is known of an operation before it is called."""

    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    writes: frozenset[str]
    sizes: frozenset[str]  # arguments that say how long an axis is; the shapes of the results show that they are right
    kind: str
    gives_tensors: bool
    is_pointwise: bool
    is_random: bool
    has_rule: bool  # or needs none, as a view does

    @staticmethod
    @cache
    def of(func: Any) -> Signature:
        schema = func._schema
        namespace, _, name = schema.name.partition("::")
        kind = name if name.startswith("_") else name.removesuffix("_")  # in place or not
        kind = kind if namespace == "aten" else schema.name
        writes = {one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write}
        is_pointwise = torch.Tag.pointwise in func.tags or kind in POINTWISE
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        return Signature(
            names=tuple(one.name for one in schema.arguments),
            defaults={one.name: one.default_value for one in schema.arguments if one.has_default_value()},
            # Where only the shape of a view is changed, nothing is written.
            writes=frozenset(() if torch.Tag.inplace_view in func.tags else writes),
            sizes=frozenset(one.name for one in schema.arguments if one.name in SIZES and "int" in str(one.type)),
            kind=kind,
            gives_tensors=any("Tensor" in str(one.type) for one in schema.returns) or bool(writes),
            is_pointwise=is_pointwise,
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
            has_rule=is_pointwise or kind in RULES or (is_view and not func._can_decompose()),
        )


class Knowledge(Protocol):
    """What is known about the tensors of a run, when an operation is called."""

    num_records: int

    def axis(self, tensor: Tensor) -> Axis | None: ...
    def is_mixed(self, tensor: Tensor) -> bool: ...
    def is_same_for_all(self, tensor: Tensor, axis: Axis) -> bool: ...
    def values(self, tensor: Tensor) -> Tensor | None: ...


class Op:
    """One call of one operation.

    ``spread`` has public tensors with one part for each record, and ``made`` where such parts are in the result.
    ``checked`` has public tensors that are the same for all records, if these are there.
    """

    def __init__(self, trace: Knowledge, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.signature = Signature.of(func)
        self.trace, self.func, self.args, self.kwargs = trace, func, args, kwargs
        self.kind, self.name = self.signature.kind, str(func)
        self.bound: dict[str, Any] = {**dict(zip(self.signature.names, args, strict=False)), **kwargs}
        self.inputs = tensors_in((args, kwargs))
        self.outputs: list[Tensor] = []
        self.fresh: list[Tensor] = []
        self.spread: dict[int, Axis] = {}
        self.made: Axis | None = None
        self.checked: dict[int, Axis] = {}
        self.written = tensors_in([self.bound.get(name) for name in self.signature.writes])

    def __getitem__(self, name: str) -> Any:
        return self.bound[name] if name in self.bound else self.signature.defaults.get(name)

    def axis(self, tensor: Tensor) -> Axis | None:
        return self.spread[id(tensor)] if id(tensor) in self.spread else self.trace.axis(tensor)

    def fit(self, tensor: Tensor, axis: Axis) -> None:
        """Refuse a tensor that has its records elsewhere, or that is public and not the same for all records there."""
        mine = self.axis(tensor)
        if mine is None:
            if axis.dim >= tensor.dim() or not self.trace.is_same_for_all(tensor, axis):
                raise Mixes("it does something else to a record that is at another place of the batch")
            self.checked[id(tensor)] = axis
        elif mine != axis:
            raise Mixes("it brings records together from different axes")

    def agreed(self, tensors: Sequence[Tensor]) -> Axis:
        """The one axis of all of these, which have as many dimensions; what is public is the same for all records."""
        axis = next((axis for tensor in tensors if (axis := self.axis(tensor)) is not None), None)
        if axis is None:
            raise Mixes("no record axis")
        for tensor in tensors:
            self.fit(tensor, axis)
        return axis

    def others(self, given: Sequence[Tensor | None]) -> list[Tensor]:
        return [tensor for tensor in self.inputs if not any(tensor is one for one in given)]


# The rules. Each returns where the records are in the results, or raises.


def without_rule(op: Op) -> Result:
    raise Mixes("no rule says whether it keeps records apart")


def pointwise(op: Op) -> Result:
    """Element by element, with broadcasting."""
    rank = max(tensor.dim() for tensor in [*op.inputs, *op.outputs])
    axes = {axis.at(axis.dim + rank - t.dim()) for t in op.inputs if (axis := op.axis(t)) is not None}
    if len(axes) != 1:
        raise Mixes("it brings records together from different axes")
    axis = next(iter(axes))
    for tensor in op.inputs:
        dim = axis.dim - rank + tensor.dim()
        if dim >= 0:
            op.fit(tensor, axis.at(dim))
    return axis


def _only_shape(op: Op) -> Result:
    """The numbers of the input are not used: what is made belongs to no record, and may be followed as if it did."""
    (tensor,) = op.inputs
    if op.trace.is_mixed(tensor) or op.outputs[0].shape != tensor.shape:
        return Public(is_even=True)
    return op.axis(tensor) or Public(is_even=True)


def _along(op: Op) -> Result | list[Result]:
    """Works along some dimensions, and keeps or drops them."""
    axis = op.agreed(op.inputs)
    rank = op.inputs[0].dim()
    dims = op["dims"] if op["dim"] is None else op["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        raise Mixes("it works along all axes")
    along = {dim % rank for dim in dims}
    if axis.dim in along:
        raise Mixes("it works along the record axis")
    dropped = sum(dim < axis.dim for dim in along)
    return [axis if out.dim() == rank else axis.at(axis.dim - dropped) for out in op.outputs]


def _each(
    *names: str,
    along: Callable[[Op, int], Collection[int]] = lambda op, rank: range(1, rank),
    sums: bool = False,
) -> Rule:
    """Works on each record by itself, unless the records are on one of the dimensions ``along(op, rank)``.

    The arguments of these names have the records, or else all have; the others are shared by all records. Where the
    operation ``sums``, only its first result has records, if that is wanted at all, and the others are sums over them.
    """

    def rule(op: Op) -> list[Result]:
        given = [op[name] for name in names if op[name] is not None] or [tensor for tensor in op.inputs if tensor.dim()]
        if any(op.axis(tensor) is not None for tensor in op.others(given)):
            raise Mixes("it uses records where it takes something that all of them share")
        axis = op.agreed(given)
        if axis.dim in along(op, max(tensor.dim() for tensor in given)):
            raise Mixes("it works along the record axis")
        length = next(tensor.shape[axis.dim] for tensor in given if op.axis(tensor) is not None)

        def result(at: int, out: Tensor) -> Result:
            if sums and at >= int(op["output_mask"][0]):
                return Mixed(f"{op.name}: a sum over records")
            if out.shape[axis.dim : axis.dim + 1] == (length,):
                return axis
            return Mixed(f"{op.name}: no rule for this result")

        return [result(at, out) for at, out in enumerate(op.outputs)]

    return rule


def _last(count: int) -> Rule:
    return _each(along=lambda op, rank: range(rank - count, rank))


def _product(one: str, other: str, out: str) -> Rule:
    """A product of two tensors whose dimensions have these letters, and those of the result; a third may be added."""

    def rule(op: Op) -> Result:
        pairs = (("mat1", "mat2"), ("batch1", "batch2"), ("self", "mat2"), ("mat", "vec"), ("self", "vec"))
        first, second = next((op[a], op[b]) for a, b in pairs if a in op.bound and b in op.bound)
        parts = [(first, one), (second, other)]
        parts += [(tensor, out[len(out) - tensor.dim() :]) for tensor in op.others((first, second))]
        axes = ((letters[axis.dim], axis) for tensor, letters in parts if (axis := op.axis(tensor)) is not None)
        letter, axis = next(axes, ("", Axis(0)))
        if not letter or letter not in out:
            raise Mixes("it sums over records")
        for tensor, letters in parts:
            if letter in letters:
                op.fit(tensor, axis.at(letters.index(letter)))
            elif op.axis(tensor) is not None:
                raise Mixes("it brings records together from different axes")
        return axis.at(out.index(letter))

    return rule


def _attention(op: Op) -> list[Result]:
    """Heads stand on the second axis: neither that nor the first is mixed. Masks may have fewer axes."""
    names = ("query", "key", "value", "attn_mask", "attn_bias", "grad_out", "grad_out_", "out", "logsumexp")
    given = [op[name] for name in names if isinstance(op[name], Tensor) and op[name].numel()]
    given = [tensor for tensor in given if op.axis(tensor) is not None or (tensor.dim() == 4 and tensor.shape[0] != 1)]
    axis = op.agreed(given)
    if axis.dim:
        raise Mixes("the record axis does not come first")
    unknown = Mixed(f"{op.name}: no rule for this result")
    return [
        axis
        if out.dim() > 1 and out.shape[0] == given[0].shape[0]
        else unknown
        if out.is_floating_point()
        else Public()
        for out in op.outputs
    ]


def _gather(op: Op) -> Result:
    """Along one dimension, the entries that an index names; or writes there, or adds."""
    given, index, source = op["self"], op["index"], op["src"]
    dim = op["dim"] % max(1, given.dim())
    if op.axis(given) is None and source is None and op.axis(index) is not None:
        axis = op.agreed([index])
        if axis.dim != dim:
            op.fit(given, axis)
        return axis
    all_of_them = [tensor for tensor in (given, index, source) if tensor is not None]
    axis = op.agreed(all_of_them)
    if axis.dim == dim:
        raise Mixes("it works along the record axis")
    if any(tensor.shape[axis.dim] != given.shape[axis.dim] for tensor in all_of_them):
        raise Mixes("it takes some of the records")
    return axis


def _index(op: Op) -> Result:
    """Entries that several indices name together; or writes there, or adds."""
    given, values = op["self"], op["values"]
    indices = [*op["indices"], *(None for _ in range(given.dim() - len(op["indices"])))]
    if any(index is not None and index.dtype is torch.bool for index in indices):
        raise Mixes("it takes as many as a mask says")
    axis = op.axis(given)
    if values is None:
        return _indexed(op, indices, axis)
    # Records may be written into a public tensor, where that was the same for all of them before.
    count = op.trace.num_records
    split = [Axis(dim, size // count) for dim, size in enumerate(given.shape) if size and size % count == 0]
    for place in [own for own in split if op.trace.is_same_for_all(given, own)] if axis is None else [axis]:
        try:
            result = _indexed(op, indices, place)
            rank = given.dim() + max(i.dim() for i in indices if i is not None) - sum(i is not None for i in indices)
            dim = result.dim - rank + values.dim()
            if dim >= 0:
                op.fit(values, result.at(dim))
            if dim >= 0 or op.axis(values) is None:
                return place
        except Mixes:
            continue
    raise Mixes("it writes records among others")


def _indexed(op: Op, indices: Sequence[Tensor | None], axis: Axis | None) -> Axis:
    """Where records are in what is named by indices, of a tensor that has them there."""
    places = [dim for dim, index in enumerate(indices) if index is not None]
    chosen = [index for index in indices if index is not None]
    rank = max(index.dim() for index in chosen)
    first = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    axes = {found.at(found.dim + rank - index.dim()) for index in chosen if (found := op.axis(index)) is not None}
    if len(axes) > 1:
        raise Mixes("it brings records together from different axes")
    if axis is None:
        (found,) = axes
        return found.at(first + found.dim)
    if axis.dim not in places:
        if axes:
            raise Mixes("records choose among records")
        return axis.at(axis.dim - sum(place < axis.dim for place in places) + (rank if first < axis.dim else 0))
    index = indices[axis.dim]
    assert index is not None
    # The dimension along which the index counts 0, 1, 2, ..., so that every record meets itself.
    values, size = op.trace.values(index), op.trace.num_records * axis.inner
    for dim in range(index.dim()):
        with no_dispatch():
            counts = torch.arange(size).reshape(-1, *(1 for _ in range(index.dim() - dim - 1)))
            is_so = values is not None and values.shape[dim] == size and bool((values == counts).all())
        lead = dim + rank - index.dim()
        if is_so and all(found == axis.at(lead) for found in axes):
            return axis.at(first + lead)
    raise Mixes("it takes records in another order, or some of them")


def _cat(op: Op) -> Result:
    axis = op.agreed([tensor for tensor in op["tensors"] if tensor.dim() != 1 or tensor.numel()])
    dim = op["dim"] % op.outputs[0].dim()
    if op.kind == "stack":
        return axis.at(axis.dim + (dim <= axis.dim))
    if axis.dim == dim:
        raise Mixes("it puts something else among the records")
    return axis


def _repeat(op: Op) -> Result:
    axis = op.agreed([op["self"]])
    dim = axis.dim + len(op["repeats"]) - op["self"].dim()
    if op["repeats"][dim] != 1:
        raise Mixes("it puts something else among the records")
    return axis.at(dim)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Element by element, though torch does not say so.
POINTWISE = _names(
    "_to_copy copy masked_fill native_dropout native_dropout_backward _fused_dropout bernoulli where clone fill zero "
    "_prelu_kernel _prelu_kernel_backward gelu hardswish mish normal uniform exponential random rrelu_with_noise "
    "hardshrink_backward softshrink_backward threshold_backward isclose"
)
# Independent draws from one distribution.
DRAWS = _names("rand randn randint rand_like randn_like randint_like bernoulli uniform normal random exponential")
SIZES = _names(
    "size sizes shape output_size input_size input_sizes self_size start end length repeats N groups split_size "
    "split_sizes stride storage_offset"
)
UNDEFINED = _names("empty empty_like empty_strided new_empty new_empty_strided empty_permuted")
FILLED = _names("zeros ones full new_zeros new_ones new_full zeros_like ones_like full_like")
SHAPE_ONLY = _names(
    "empty_like new_empty new_empty_strided new_zeros new_ones new_full zeros_like ones_like full_like rand_like "
    "randn_like randint_like"
)
BY_ELEMENT = _names("repeat cat stack index index_put")  # their rules look at every place of a public tensor


def _dim(op: Op, rank: int) -> set[int]:
    return {op["dim"] % rank}


def _normalised(op: Op, rank: int) -> range:
    return range(rank - len(op["normalized_shape"]), rank)


_TABLE: tuple[tuple[Rule, str], ...] = (
    (
        _along,
        "sum mean amax amin max min prod any all argmax argmin var var_mean linalg_vector_norm median nanmedian "
        "kthvalue mode _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data cumsum cumprod cummax "
        "cummin logcumsumexp sort topk flip",
    ),
    (_last(1), "replication_pad1d_backward multinomial"),
    (
        _last(2),
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d "
        "_adaptive_avg_pool2d_backward adaptive_max_pool2d adaptive_max_pool2d_backward replication_pad2d_backward",
    ),
    (
        _last(3),
        "max_pool3d_with_indices max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward _adaptive_avg_pool3d "
        "_adaptive_avg_pool3d_backward replication_pad3d_backward",
    ),
    (
        _each("grad_output"),
        "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "upsample_trilinear3d_backward",
    ),
    (_product("mk", "kn", "mn"), "mm addmm"),
    (_product("bmk", "bkn", "bmn"), "bmm baddbmm"),
    (_each("input"), "convolution native_group_norm"),
    (_each("grad_output", "input", sums=True), "convolution_backward"),
    (_each("grad_out", "input", "mean", "rstd", sums=True), "native_group_norm_backward"),
    (_each("input", along=_normalised), "native_layer_norm"),
    (_each("grad_out", "input", "mean", "rstd", along=_normalised, sums=True), "native_layer_norm_backward"),
    (_each("indices", along=lambda op, rank: ()), "embedding"),
    (_each("input", "grid"), "grid_sampler_2d grid_sampler_3d"),
    (_each("grad_output", "input", "grid"), "grid_sampler_2d_backward grid_sampler_3d_backward"),
    (
        _attention,
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward",
    ),
    (_gather, "gather scatter scatter_add scatter_reduce"),
    (_index, "index index_put _index_put_impl"),
    (_cat, "cat stack"),
    (_repeat, "repeat"),
    (_each("self", along=_dim), "index_select"),
    (_each("grad_output", along=_dim), "slice_backward"),
    (_each("grad_in", along=lambda op, rank: {op["dim"] % len(op["input_sizes"])}), "unfold_backward"),
    (
        _each("self", along=lambda op, rank: {rank - 1 - at // 2 for at, more in enumerate(op["pad"]) if more}),
        "constant_pad_nd",
    ),
    (_each("self", along=lambda op, rank: {dim % rank for dim in op["dim"]}), "_fft_r2c _fft_c2c _fft_c2r"),
)
RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(SHAPE_ONLY, _only_shape),
    **{name: rule for rule, names in _TABLE for name in _names(names)},
}
