"""Listening to a model while it runs: what enters each layer, and a place to read the gradient of what leaves it.

To every layer output a *tap* is added, a tensor of zeros that changes nothing; the gradient with respect to the tap is
the gradient with respect to the output. One backward pass to the taps then gives every layer's output gradients, and
the gradients of the weights follow from those and the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lehr.interfaces import LayerRule


@dataclass(frozen=True)
class Place:
    """A site of one call of one layer."""

    layer: str
    call: int
    site: str

    @property
    def key(self) -> str:
        return f"{self.layer}|{self.call}|{self.site}"


class OtherPath(Exception):
    """A run that calls other layers, or gives them something of another shape, than the one it was planned by."""


class Tape:
    """What one run of the model left behind, place by place."""

    def __init__(self) -> None:
        self._taps: Mapping[str, Tensor] | None = None
        self._shared: Collection[str] = ()
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}
        self._calls: dict[str, int] = {}
        self.places: dict[str, Place] = {}

    def start(self, taps: Mapping[str, Tensor] | None, shared: Collection[str] = ()) -> None:
        """Begin a run, adding these taps; with none, only listen. What leaves ``shared`` places all records share."""
        self.stop()  # a run that failed half-way has left something behind
        self._taps, self._shared = taps, shared

    def stop(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """End the run and forget it: the inputs and, where no taps were given, the outputs of every place."""
        inputs, outputs = dict(self._inputs), dict(self._outputs)
        self._taps = None
        self._inputs.clear()
        self._outputs.clear()
        self._calls.clear()
        return inputs, outputs

    def listen(self, name: str, layer: nn.Module, rule: LayerRule) -> Callable[..., Any]:
        """A ``forward`` for this layer that hands every site to the tape."""
        forward = type(layer).forward

        def tapped(*args: Any, **kwargs: Any) -> Any:
            call = self._calls.get(name, 0)
            self._calls[name] = call + 1

            def tap(site: str, inputs: Tensor, output: Tensor) -> Tensor:
                return self._tap(Place(name, call, site), inputs, output)

            if rule.forward is not None:
                return rule.forward(layer, tap, *args, **kwargs)
            inputs = args[0] if args else next(iter(kwargs.values()))
            return tap("output", inputs, forward(layer, *args, **kwargs))

        return tapped

    def _tap(self, place: Place, inputs: Tensor, output: Tensor) -> Tensor:
        key = place.key
        self._inputs[key] = inputs
        if self._taps is None:
            self.places[key] = place
            self._outputs[key] = output
            return output
        tap = self._taps.get(key)
        if tap is None or output.shape != (tap.shape if key not in self._shared else (1, *tap.shape[1:])):
            raise OtherPath(key)
        return output + tap
