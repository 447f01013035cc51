"""``ModuleValidator``: which layers cannot be trained privately, and a copy of the model with those replaced.

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

from lehr.errors import InvalidValue, LehrError, NotPrivate
from lehr.gradients.conversion import group_norm_instead
from lehr.gradients.refusals import refuse_what_cannot_be_private
from lehr.integrations.opacus.layers import DPGRU, DPLSTM, DPRNN

__all__ = ["ModuleValidator", "register_module_fixer", "register_module_validator"]


class UnsupportedError(LehrError, ValueError):
    """Something that cannot be trained privately. Also a ``ValueError``, as in Opacus."""


class UnsupportedModuleError(UnsupportedError):
    """A layer that cannot be trained privately as it is."""


class UnsupportableModuleError(UnsupportedModuleError):
    """A layer of a type that can never be trained privately."""


class NotYetSupportedModuleError(UnsupportedModuleError):
    """A layer that Lehr has no rule for."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """A layer that ``ModuleValidator.fix`` replaces."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """A layer that can be trained privately with other settings."""


class NotSupported(NotPrivate, NotImplementedError):
    """Raised by ``GradSampleModule`` for a model that cannot be trained privately."""


Validator: TypeAlias = Callable[[Any], list[UnsupportedModuleError]]
Fixer: TypeAlias = Callable[[Any], nn.Module]
_Function = TypeVar("_Function", bound=Callable[..., Any])

_RECURRENT: dict[type[nn.Module], Any] = {nn.LSTM: DPLSTM, nn.GRU: DPGRU, nn.RNN: DPRNN}
_INSTANCE_NORMS: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: nn.InstanceNorm1d,
    nn.BatchNorm2d: nn.InstanceNorm2d,
    nn.BatchNorm3d: nn.InstanceNorm3d,
}


class ModuleValidator:
    """Checks and repairs a model. Checks and replacements for your own layers can be registered."""

    VALIDATORS: ClassVar[dict[type[nn.Module], Validator]] = {}
    FIXERS: ClassVar[dict[type[nn.Module], Fixer]] = {}

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """Why this model cannot be trained privately, as a list of errors; with ``strict`` they are raised."""
        errors: list[UnsupportedModuleError] = []
        if not module.training:
            errors.append(IllegalModuleConfigurationError("the model must be in training mode: call its train()"))
        for path, layer in module.named_modules():
            errors += _errors_of(path, layer)
            if type(layer) in cls.VALIDATORS:
                errors += cls.VALIDATORS[type(layer)](layer)
        if strict and errors:
            raise UnsupportedModuleError("; ".join(map(str, errors)))
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether the model can be trained privately."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False) -> nn.Module:
        """A copy of the model in which layers that cannot be private are replaced.

        BatchNorm becomes GroupNorm with the same gain and shift, of at most ``num_groups`` groups (default 32) with at
        least four channels each, or InstanceNorm. Recurrent layers become ``DPRNN``, ``DPGRU`` or ``DPLSTM``.
        """
        if replace_bn_with_in and num_groups is not None:
            raise InvalidValue("num_groups", allowed="none where BatchNorm becomes InstanceNorm", given=num_groups)
        instance_norms = dict.fromkeys(_INSTANCE_NORMS, lambda old: _INSTANCE_NORMS[type(old)](old.num_features))
        fixed = _replaced(copy.deepcopy(module), {**(instance_norms if replace_bn_with_in else {}), **cls.FIXERS})
        fixed = group_norm_instead(fixed) if num_groups is None else group_norm_instead(fixed, num_groups=num_groups)
        for layer in fixed.modules():
            if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
                layer.track_running_stats = False
                layer.running_mean = layer.running_var = layer.num_batches_tracked = None
        return _replaced(fixed, dict.fromkeys(_RECURRENT, _recurrent))

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **options: Any) -> nn.Module:
        """``fix``, then ``validate``."""
        fixed = cls.fix(module, **options)
        cls.validate(fixed, strict=True)
        return fixed


def register_module_validator(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Decorator for a function that checks layers of these types and returns a list of errors."""
    return _register_in(ModuleValidator.VALIDATORS, kinds)


def register_module_fixer(kinds: type[nn.Module] | Sequence[type[nn.Module]]) -> Callable[[_Function], _Function]:
    """Decorator for a function that returns a replacement for a layer of these types."""
    return _register_in(ModuleValidator.FIXERS, kinds)


def _register_in(
    table: dict[type[nn.Module], Any], kinds: type[nn.Module] | Sequence[type[nn.Module]]
) -> Callable[[_Function], _Function]:
    def register(function: _Function) -> _Function:
        table.update(dict.fromkeys([kinds] if isinstance(kinds, type) else kinds, function))
        return function

    return register


def _errors_of(path: str, layer: nn.Module) -> list[UnsupportedModuleError]:
    """Why this layer itself, without its children, cannot be private."""
    named = f"{path or 'the model itself'} ({type(layer).__name__})"
    if type(layer) in _RECURRENT:
        return [
            ShouldReplaceModuleError(f"{named} has no per-record gradients: use {_RECURRENT[type(layer)].__name__}")
        ]
    try:
        refuse_what_cannot_be_private(layer)
    except NotPrivate as error:
        if not error.layer.startswith("the model itself"):
            return []
        kinds = {_BatchNorm: ShouldReplaceModuleError, _InstanceNorm: IllegalModuleConfigurationError}
        kind = next((kinds[base] for base in kinds if isinstance(layer, base)), NotYetSupportedModuleError)
        return [kind(f"{named} cannot be trained privately: {error.reason}. Instead: {error.instead}")]
    return []


def _replaced(model: nn.Module, fixes: dict[Any, Any]) -> nn.Module:
    """The model with layers replaced in place; a layer that is used twice is replaced by one layer."""
    root = nn.ModuleList([model])
    replacements: dict[nn.Module, nn.Module] = {}
    for parent in list(root.modules()):
        for name, child in list(parent._modules.items()):
            if child is not None and type(child) in fixes:
                if child not in replacements:
                    replacements[child] = fixes[type(child)](child).train(child.training)
                parent._modules[name] = replacements[child]
    return root[0]


def _recurrent(layer: nn.Module) -> nn.Module:
    layer.__class__ = _RECURRENT[type(layer)]  # the same parameters and settings; only the rule differs
    return layer
