"""The layers of a model that have rules, listened to on a copy, and what their rules say about each parameter.

The copy has the model's own weights, in the same memory; the model itself is never touched.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import vjp
from torch.nn.utils import parametrize

import lehr.gradients.rules  # noqa: F401  (teaches the rules)
from lehr.gradients.batches import trainable
from lehr.gradients.calling import Called
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.through import Through
from lehr.gradients.contributions.together import together
from lehr.gradients.contributions.unused import Unused
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.gradients.rules.written_out import written_out
from lehr.gradients.tape import Place, Tape
from lehr.interfaces import Contribution, LayerRule, Site, Tensors, layer_rule


class Layers:
    """A copy of the model whose layers report to a tape."""

    def __init__(self, model: nn.Module) -> None:
        refuse_what_cannot_be_private(model)
        self.names = tuple(trainable(model))
        self.shapes = {name: parameter.shape for name, parameter in trainable(model).items()}
        self.model = written_out(sharing_copy(model))
        self.called = Called(self.model)
        self.tape = Tape()
        self._canonical = _canonical_names(self.model)
        self.rules: dict[str, LayerRule] = {}
        self._ruled: dict[str, nn.Module] = {}
        for name, layer in self.model.named_modules():
            rule = layer_rule(layer)
            if rule is not None and any(self._owned(name, layer, rule)):
                self.rules[name], self._ruled[name] = rule, layer
                layer.forward = self.tape.listen(name, layer, rule)

    def owned(self, name: str) -> set[str]:
        """The trainable parameters that the rule of this layer answers for."""
        return self._owned(name, self._ruled[name], self.rules[name])

    def without_rule(self) -> frozenset[str]:
        """The trainable parameters that belong to no layer with a rule."""
        return frozenset(self.names).difference(*map(self.owned, self.rules))

    def contributions(
        self,
        places: Mapping[str, Place],
        sites: Mapping[str, Site],
        parameters: Tensors,
        *,
        copied: Tensors,
        num_records: int,
    ) -> dict[str, Contribution]:
        """Every trainable parameter's part, all its uses together; ``copied`` has the gradients of copies."""
        uses: dict[str, list[Contribution]] = {name: [] for name in self.names}
        calls: dict[tuple[str, int], dict[str, Site]] = {}
        for key, place in places.items():
            calls.setdefault((place.layer, place.call), {})[place.site] = sites[key]
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

    def of_no_record(self, parameters: Tensors) -> dict[str, Contribution]:
        """Every trainable parameter's part where there is nobody to take part."""
        return {name: Unused(shape, 0, parameters[name]) for name, shape in self.shapes.items()}

    def _of_call(self, name: str, sites: Mapping[str, Site], parameters: Tensors) -> Iterable[tuple[str, Contribution]]:
        layer = self._ruled[name]
        for tensor_name, found in self.rules[name].contributions(layer, sites).items():
            part = Materialised(found) if isinstance(found, Tensor) else found
            if parametrize.is_parametrized(layer, tensor_name):
                yield from self._behind(name, layer, tensor_name, part, parameters)
            else:
                yield self._canonical.get(_joined(name, tensor_name), ""), part

    def _behind(
        self, name: str, layer: nn.Module, tensor_name: str, part: Contribution, parameters: Tensors
    ) -> Iterable[tuple[str, Contribution]]:
        """A computed weight: its part of the gradient is sent on to the parameters that it is computed from."""
        computation = getattr(layer.parametrizations, tensor_name)
        prefix = _joined(name, f"parametrizations.{tensor_name}")
        canonical = {own: self._canonical[_joined(prefix, own)] for own, _ in computation.named_parameters()}
        values = {own: parameters[full] for own, full in canonical.items()}
        buffers = {own: parameters[_joined(prefix, own)] for own, _ in computation.named_buffers()}

        def compute(values: Tensors) -> Tensor:
            result: Tensor = Called(computation)({**values, **buffers}, (), {})
            return result

        output, pullback = vjp(compute, values)  # type: ignore[misc]
        for own, full in canonical.items():
            yield full, Through(part, lambda grad, own=own: pullback(grad.to(output.dtype))[0][own])  # type: ignore[misc]

    def _owned(self, name: str, layer: nn.Module, rule: LayerRule) -> set[str]:
        """The trainable parameters that this layer's rule answers for."""
        own = layer.named_parameters(recurse=rule.covers_children, remove_duplicate=False)
        names = [parameter for parameter, _ in own]
        if parametrize.is_parametrized(layer):
            names += [
                f"parametrizations.{inner}"
                for inner, _ in layer.parametrizations.named_parameters(remove_duplicate=False)  # type: ignore[union-attr]
            ]
        return {self._canonical[_joined(name, inner)] for inner in names} & set(self.names)


def sharing_copy(model: nn.Module) -> nn.Module:
    """The model's layers over again, whose parameters and buffers lie in the same memory as the model's own."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = buffer.detach()
    return copy.deepcopy(model, memo)


def _canonical_names(model: nn.Module) -> dict[str, str]:
    """Every name of every parameter, mapped to the one name under which it is trained."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)
