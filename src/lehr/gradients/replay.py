"""A step recorded once as a CUDA graph and replayed: small networks otherwise wait for their kernels to be launched.

On a CPU, and for whatever cannot be recorded, the step is simply run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_WARM_UPS = 3  # compilation and library set-up allocate memory and must lie behind the recording


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Any]
    outputs: Any


class Replayed:
    """A function of tensors, recorded per shape of its arguments.

    ``function(held, arguments)`` may change the tensors in ``held`` in place, such as weights; those are used where
    they are, and replacing one by another tensor records anew. ``arguments`` are copied in before each replay. What is
    returned belongs to the recording and is overwritten by the next call. Generators that the function draws from must
    be named.
    """

    def __init__(self, function: Callable[[Any, Any], Any], *, generators: Sequence[torch.Generator] = ()) -> None:
        self._function = function
        self._generators = tuple(generators)
        self._recordings: dict[Any, _Recording] = {}

    def __call__(self, held: Any, arguments: Any) -> Any:
        leaves, structure = pytree.tree_flatten(arguments)
        if not any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in leaves):
            return self._function(held, arguments)
        key = (structure, tuple(map(_form, leaves)), tuple(map(_address, pytree.tree_leaves(held))))
        if key not in self._recordings:
            self._recordings[key] = self._record(held, leaves, structure)
        recording = self._recordings[key]
        for own, given in zip(recording.inputs, leaves, strict=True):
            if isinstance(own, Tensor):
                own.copy_(given)
        recording.graph.replay()
        return recording.outputs

    def _record(self, held: Any, leaves: list[Any], structure: pytree.TreeSpec) -> _Recording:
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
        self._undo(before, states)
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph):
            outputs = self._function(held, arguments)
        return _Recording(graph, inputs, outputs)

    def _undo(self, before: list[tuple[Tensor, Tensor]], states: list[Tensor]) -> None:
        """Warming up must leave no trace: neither in the weights nor in the noise still to come."""
        with torch.no_grad():
            for value, saved in before:
                value.copy_(saved)
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


def _form(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype, leaf.device, leaf.stride()) if isinstance(leaf, Tensor) else leaf


def _address(value: Any) -> Any:
    return (value.data_ptr(), tuple(value.shape), value.dtype) if isinstance(value, Tensor) else value
