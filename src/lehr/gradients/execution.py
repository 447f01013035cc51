"""Ways to run a model: with other weights, under vmap, with the same random numbers again, compiled, and replayed.

FunctionalModel                    a model with given weights, with or without its user's hooks
under_vmap, unfuse, ...            kernels that vmap knows, and layers that do not bypass their own children
causal_attention                   causal attention without a mask, for fused kernels
rng_states, random_numbers_apart   the states of all random generators
seed_python                        seeds of Python's generator and NumPy's
compile_step, CudaGraphReplay      a step as one graph; recorded once as a CUDA graph
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from types import FunctionType
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import _WeightNorm
from torch.utils import _pytree as pytree


class FunctionalModel:
    """A model that is run with the values it is given; ``run`` takes the place of its forward pass and its hooks.

    torch's ``functional_call`` puts values in and takes them out again name by name; where one layer has two names it
    leaves the values behind. So every attribute that holds a parameter or buffer is named once here.
    """

    def __init__(self, model: nn.Module, run: Callable[..., Any] | None = None) -> None:
        first: dict[int, str] = {}
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            first.setdefault(id(tensor), name)
        self._called = model if run is None else _Run(model, run)
        inside = "" if run is None else "model."
        self._names = {
            inside + f"{path}.{name}".lstrip("."): first[id(tensor)]
            for path, layer in model.named_modules()  # each layer once, whatever number of names it has
            for name, tensor in (*layer._parameters.items(), *layer._buffers.items())
            if tensor is not None
        }

    def __call__(self, values: Mapping[str, Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """``values`` have a parameter or buffer under the first of its names; what is missing is the model's own."""
        chosen = {path: values[name] for path, name in self._names.items() if name in values}
        return functional_call(self._called, chosen, args, dict(kwargs), tie_weights=False)


class _Run(nn.Module):
    def __init__(self, model: nn.Module, run: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.run = model, run

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(*args, **kwargs)


def plain_forward(layer: nn.Module) -> Callable[..., Any]:
    """The forward pass of the layer's class, without hooks and without a forward that was put on the layer itself."""
    return partial(type(layer).forward, layer)


def recurrent_parameters(model: nn.Module) -> frozenset[str]:
    """The parameters of recurrent layers. Their cells add in place to what comes of the weights, so these must have the
    record axis; expanded, it takes no memory.
    """
    inside = {id(own) for layer in model.modules() if isinstance(layer, nn.RNNBase) for own in layer.parameters()}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) in inside)


@contextmanager
def under_vmap(*, has_cells: bool = False) -> Iterator[None]:
    """Around a run by ``vmap``; ``has_cells`` says whether recurrent layers are in it."""
    masks = sys.modules.get("transformers.masking_utils")
    with ExitStack() as stack:
        # Fused attention would be run record after record on a CPU; on a GPU some of its kernels fail, or give zeros.
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if has_cells:  # vmap does not know the fused cells of oneDNN and cuDNN
            # None leaves a flag as it is: setting oneDNN's others warns on machines that do not have what they are for.
            kept = {"deterministic": None, "allow_tf32": None, "fp32_precision": None}
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False, **kept))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if hasattr(masks, "is_tracing"):
            stack.enter_context(patch.object(masks, "is_tracing", lambda tensor=None: True))
        yield


@contextmanager
def causal_attention(names: Collection[str]) -> Iterator[None]:
    """Around a run on inputs of these names: causal attention of transformers without padding is run without a mask.

    While it traces a model, transformers makes a mask in case positions begin anew within a record, or a mask hides
    something. Fused attention on a GPU needs that there is none.
    """
    masks = sys.modules.get("transformers.masking_utils")
    ignored = getattr(masks, "_ignore_causal_mask_sdpa", None)
    has_masks = {"attention_mask", "position_ids"} & set(names)
    if ignored is None or not hasattr(masks, "find_packed_sequence_indices") or has_masks:
        yield
        return
    with (
        patch.object(masks, "find_packed_sequence_indices", _never_packed),
        patch.object(masks, "_ignore_causal_mask_sdpa", _without_causal_mask(ignored)),
    ):
        yield


def _never_packed(position_ids: Tensor) -> None:
    return None


@cache  # one function for each, so that nothing is compiled again
def _without_causal_mask(ignored: Callable[..., bool]) -> Callable[..., bool]:
    """The arguments are a padding mask, the numbers of queries and keys, offsets, and the reach of local attention."""
    num_arguments = len(inspect.signature(ignored).parameters)

    def is_ignored(padding_mask: Tensor | None, num_queries: int, num_keys: int, *others: Any) -> bool:
        if len(others) + 3 == num_arguments and padding_mask is None and num_queries == num_keys:
            *offsets, reach = others
            if all(type(offset) is int and not offset for offset in offsets) and (reach is None or num_keys < reach):
                return True
        return ignored(padding_mask, num_queries, num_keys, *others)

    return is_ignored


def is_out_of_memory(error: BaseException) -> bool:
    """Whether there was too little memory: on a GPU, in Python, or in torch's allocator for the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)


def vmap_error(error: Exception) -> str:
    """What vmap says of itself; of another error, which may quote a record, only its type."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if "vmap" in first or "Batching rule" in first else type(error).__name__


def unfuse(model: nn.Module) -> nn.Module:
    """The same model, changed so that it computes what it did, step by step. To be used on a copy."""
    for layer in model.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # the flag for "an activation that the fused function knows"
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
        if type(layer) is _WeightNorm:
            layer.forward = partial(_weight_norm, layer.dim)  # type: ignore[method-assign]
    return model


def _weight_norm(dim: int, lengths: Tensor, directions: Tensor) -> Tensor:
    axes = tuple(axis for axis in range(directions.dim()) if dim == -1 or axis != dim)
    norms: Tensor = torch.linalg.vector_norm(directions, dim=axes, keepdim=True)
    return directions * (lengths / norms)


def rng_states(device: torch.device) -> tuple[Any, Any]:
    """The states of all generators, to compare and to restore: of Python and NumPy, and of torch, with one GPU's."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    of_torch = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    of_python = random.getstate(), (kind, keys.tobytes(), *rest)  # type: ignore[union-attr]
    return of_python, (device, *(state.numpy().tobytes() for state in of_torch))


def restore_rng(states: tuple[Any, Any]) -> None:
    """Put all generators back to these states."""
    (of_random, (kind, keys, *rest)), (device, *of_torch) = states
    random.setstate(of_random)
    np.random.set_state((kind, np.frombuffer(keys, dtype=np.uint32), *rest))
    cpu, *gpu = (torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in of_torch)
    torch.set_rng_state(cpu)
    for state in gpu:
        torch.cuda.set_rng_state(state, device)


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy with 64 bits."""
    random.seed(seed)
    np.random.seed([seed % 2**32, seed >> 32])


@contextmanager
def random_numbers_apart(device: torch.device) -> Iterator[None]:
    """Draw what is drawn inside from the global generators without leaving a trace in them."""
    states = rng_states(device)
    try:
        yield
    finally:
        restore_rng(states)


def compile_step(step: Callable[..., Any]) -> Callable[..., Any]:
    """Shapes are fixed, and whatever would break the graph is an error rather than a slow step.

    torch counts recompilations by the code of a function and stops after a few; every engine's step is the same code,
    so each gets a copy of it.
    """
    assert isinstance(step, FunctionType)
    own = FunctionType(step.__code__.replace(), step.__globals__, step.__name__, step.__defaults__, step.__closure__)
    return torch.compile(own, fullgraph=True, dynamic=False)


_WARM_UPS = 3  # compilation and library set-up allocate memory and must lie behind the recording


class CudaGraphReplay:
    """A function of tensors, recorded per shape of its arguments.

    ``function(held, arguments)`` may change the tensors in ``held`` in place, such as weights; those are used where
    they are, and replacing one by another tensor, in another ``held``, records anew. ``arguments`` are copied in before
    each replay. What is returned belongs to the recording and is overwritten by the next call. Generators that the
    function draws from must be named.
    """

    def __init__(self, function: Callable[[Any, Any], Any], *, generators: Sequence[torch.Generator] = ()) -> None:
        self._function = function
        self._generators = tuple(generators)
        self._recordings: dict[Any, tuple[torch.cuda.CUDAGraph, list[Any], Any]] = {}
        self._held: Any = None
        self._addresses: tuple[Any, ...] = ()

    def __call__(self, held: Any, arguments: Any) -> Any:
        leaves, structure = pytree.tree_flatten(arguments)
        if not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves):
            return self._function(held, arguments)
        forms = [
            (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) if isinstance(leaf, Tensor) else leaf
            for leaf in leaves
        ]
        if held is not self._held:
            self._held, self._addresses = (
                held,
                tuple(
                    (value.data_ptr(), tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
                    for value in pytree.tree_leaves(held)
                ),
            )
        key = (structure, *forms, self._addresses)
        if key not in self._recordings:
            self._recordings[key] = self._record(held, leaves, structure)
        graph, inputs, outputs = self._recordings[key]
        for own, given in zip(inputs, leaves, strict=True):
            if isinstance(own, Tensor):
                own.copy_(given)
        graph.replay()
        return outputs

    def copied(self, held: Any, arguments: Any) -> dict[str, Tensor]:
        """The same, for a function that returns tensors by name, in memory that no later call overwrites."""
        found: dict[str, Tensor] = self(held, arguments)
        values = list(found.values())
        if not any(value.is_cuda for value in values):
            return found
        if len({value.dtype for value in values}) > 1:
            return {name: value.clone() for name, value in found.items()}
        # One piece of memory and few launches, however many parameters there are.
        whole = torch.empty(sum(value.numel() for value in values), dtype=values[0].dtype, device=values[0].device)
        pieces = whole.split_with_sizes([value.numel() for value in values])
        parts = [piece.view(value.shape) for piece, value in zip(pieces, values, strict=True)]
        torch._foreach_copy_(parts, values)
        return dict(zip(found, parts, strict=True))

    def _record(
        self, held: Any, leaves: list[Any], structure: pytree.TreeSpec
    ) -> tuple[torch.cuda.CUDAGraph, list[Any], Any]:
        inputs = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        arguments = pytree.tree_unflatten(inputs, structure)
        before = [(value, value.detach().clone()) for value in pytree.tree_leaves(held) if isinstance(value, Tensor)]
        states = [generator.get_state() for generator in self._generators]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._function(held, arguments)
        torch.cuda.current_stream().wait_stream(side)
        # Warming up must leave no trace: neither in the weights nor in the noise still to come.
        with torch.no_grad():
            for value, saved in before:
                value.copy_(saved)
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            outputs = self._function(held, arguments)
        return graph, inputs, outputs
