"""``ModuleValidator``: what Lehr refuses to train, by layer, and a copy of the model with those layers replaced.

>>> model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48))
>>> ModuleValidator.is_valid(model), ModuleValidator.is_valid(ModuleValidator.fix(model))
(False, True)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from lehr.compat.opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from lehr.compat.opacus.validators.errors import (
    IllegalModuleConfigurationError,
    NotYetSupportedModuleError,
    ShouldReplaceModuleError,
    UnsupportedModuleError,
)
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.conversion import group_norm_instead
from lehr.gradients.refusals import refuse_what_cannot_be_private

Validates: TypeAlias = Callable[[Any], list[UnsupportedModuleError]]
Fixes: TypeAlias = Callable[[Any], nn.Module]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_RECURRENT: dict[type[nn.Module], Any] = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
_INSTANCE_NORMS: dict[type[_BatchNorm], type[_InstanceNorm]] = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}


class ModuleValidator:
    """Checks and repairs a model. Layers of your own can be registered beside Lehr's checks."""

    VALIDATORS: ClassVar[dict[type[nn.Module], Validates]] = {}
    FIXERS: ClassVar[dict[type[nn.Module], Fixes]] = {}

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """What stands against training this model privately; with ``strict``, raised where there is anything."""
        errors: list[UnsupportedModuleError] = []
        if not module.training:
            errors.append(IllegalModuleConfigurationError("the model must be in training mode: call its train()"))
        for path, layer in module.named_modules():
            errors += _against(path, layer)
            if type(layer) in cls.VALIDATORS:
                errors += cls.VALIDATORS[type(layer)](layer)
        if strict and errors:
            raise UnsupportedModuleError("; ".join(map(str, errors)))
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether nothing stands against it."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False) -> nn.Module:
        """A copy of the model with other layers in the place of those that cannot be private.

        A BatchNorm becomes a GroupNorm with its gain and shift, of at most ``num_groups`` groups (32 where nothing is
        said) and at least four channels in each, so that no group is normalised to nothing; or an InstanceNorm.
        Recurrent layers become those of ``lehr.compat.opacus.layers``, with their weights.
        """
        if replace_bn_with_in and num_groups is not None:
            raise InvalidValue("num_groups", allowed="none where BatchNorm becomes InstanceNorm", given=num_groups)
        fixed = copy.deepcopy(module)
        fixed = _replaced(fixed, cls.FIXERS)
        if replace_bn_with_in:
            fixed = _replaced(fixed, dict.fromkeys(_INSTANCE_NORMS, _instance_norm))
        fixed = group_norm_instead(fixed) if num_groups is None else group_norm_instead(fixed, num_groups=num_groups)
        for layer in fixed.modules():
            if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
                _forget_statistics(layer)
        return _replaced(fixed, dict.fromkeys(_RECURRENT, _recurrent))

    @classmethod
    def fix_and_validate(
        cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False
    ) -> nn.Module:
        """The same, checked."""
        fixed = cls.fix(module, num_groups=num_groups, replace_bn_with_in=replace_bn_with_in)
        cls.validate(fixed, strict=True)
        return fixed


def register_module_validator(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Let a function check layers of these kinds: it returns a list of errors."""
    return _registering(ModuleValidator.VALIDATORS, kinds)


def register_module_fixer(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Let a function replace layers of these kinds: it returns the layer that takes their place."""
    return _registering(ModuleValidator.FIXERS, kinds)


def _registering(
    table: dict[type[nn.Module], Any], kinds: type[nn.Module] | Sequence[type[nn.Module]]
) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        table.update(dict.fromkeys([kinds] if isinstance(kinds, type) else kinds, function))
        return function

    return register


def _against(path: str, layer: nn.Module) -> list[UnsupportedModuleError]:
    """What Lehr has against this layer itself; its children are asked on their own."""
    named = f"{path or 'the model itself'} ({type(layer).__name__})"
    if type(layer) in _RECURRENT:
        return [ShouldReplaceModuleError(f"{named} runs past Lehr's rules: use {_RECURRENT[type(layer)].__name__}")]
    try:
        refuse_what_cannot_be_private(layer)
    except NotPrivate as error:
        if not error.layer.startswith("the model itself"):
            return []
        kind = _kind_of(layer)
        return [kind(f"{named} cannot be trained privately: {error.reason}. Instead: {error.instead}")]
    return []


def _kind_of(layer: nn.Module) -> type[UnsupportedModuleError]:
    if isinstance(layer, _BatchNorm):
        return ShouldReplaceModuleError
    return IllegalModuleConfigurationError if isinstance(layer, _InstanceNorm) else NotYetSupportedModuleError


def _replaced(model: nn.Module, fixes: dict[Any, Any]) -> nn.Module:
    """The model with layers replaced in place, one that stands in several places by one in all of them."""
    root = nn.ModuleList([model])
    made: dict[nn.Module, nn.Module] = {}
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and type(child) in fixes:
                if child not in made:
                    made[child] = fixes[type(child)](child).train(child.training)
                parent._modules[name] = made[child]
    return root[0]


def _recurrent(layer: nn.RNNBase) -> nn.Module:
    replacement: nn.RNNBase = _RECURRENT[type(layer)](
        layer.input_size,
        layer.hidden_size,
        num_layers=layer.num_layers,
        bias=layer.bias,
        batch_first=layer.batch_first,
        dropout=layer.dropout,
        bidirectional=layer.bidirectional,
        **({"proj_size": layer.proj_size} if isinstance(layer, nn.LSTM) else {}),
        **({"nonlinearity": layer.nonlinearity} if isinstance(layer, nn.RNN) else {}),
        device=layer.weight_ih_l0.device,
        dtype=layer.weight_ih_l0.dtype,
    )
    replacement.load_state_dict(layer.state_dict())
    for name, parameter in layer.named_parameters():
        replacement.get_parameter(name).requires_grad_(parameter.requires_grad)
    return replacement


def _instance_norm(layer: _BatchNorm) -> nn.Module:
    return _INSTANCE_NORMS[type(layer)](layer.num_features)


def _forget_statistics(layer: _InstanceNorm) -> None:
    layer.track_running_stats = False
    layer.running_mean = layer.running_var = layer.num_batches_tracked = None
