"""A model that is listened to, so that the gradient of every record can be clipped.

Gradients are not stored record by record: there is no ``p.grad_sample``. Norms and sums come from what goes into a
layer and the gradient of what comes out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from lehr.compat.opacus.private_steps import Listener
from lehr.compat.opacus.validators.errors import NotSupported
from lehr.errors import InvalidValue, NotPrivate

_PREFIX = "_module."
# What the wrapper has of the hooks, and not of the model.
_OF_HOOKS = (
    "allow_grad_accumulation",
    "batch_first",
    "cleanup",
    "disable_hooks",
    "enable_hooks",
    "forbid_grad_accumulation",
    "hooks_enabled",
    "loss_reduction",
    "num_passes",
    "remove_hooks",
)


class GradSampleHooks:
    """Listens to a model that stays as it is: what ``make_private(wrap_model=False)`` returns in the model's place."""

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
            raise InvalidValue("strict", allowed="True: what cannot be private is refused", given=strict)
        self._module = m
        self.batch_first, self.loss_reduction, self.num_passes = batch_first, loss_reduction, num_passes
        try:
            self.listener = Listener(m, batch_first=batch_first, loss_reduction=loss_reduction, num_passes=num_passes)
            self.listener.attach()
        except NotPrivate as error:
            raise NotSupported(layer=error.layer, reason=error.reason, instead=error.instead) from None

    @property
    def hooks_enabled(self) -> bool:
        """Whether the model is listened to."""
        return self.listener.is_attached

    def disable_hooks(self) -> None:
        """Stop to listen. A private optimizer refuses a step on what it has not heard."""
        self.listener.detach()

    def enable_hooks(self) -> None:
        """Listen again."""
        if not self.hooks_enabled:
            self.listener.attach()

    def remove_hooks(self) -> None:
        """Leave the model as it was found."""
        self.listener.detach()

    def cleanup(self) -> None:
        """The same."""
        self.remove_hooks()

    def forbid_grad_accumulation(self) -> None:
        """Two batches in one step are always refused: ``BatchMemoryManager`` is how a batch is split."""

    def allow_grad_accumulation(self) -> None:
        """Refused: two draws in one step are not what a step is counted as."""
        allowed = "one draw in each step; BatchMemoryManager splits a large one"
        raise InvalidValue("loop", allowed=allowed, given="accumulation over draws")


class GradSampleModule(nn.Module):
    """The model, wrapped: its parameters are named ``_module.…``, as in Opacus, and ``load_state_dict`` takes both.

    In eval mode no graph is made. What the model has, the wrapper has: methods, layers, attributes.
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
            if name in ("_module", "hooks"):  # while it is being made or copied
                raise
            return getattr(self.hooks if name in _OF_HOOKS else self._module, name)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights that were saved from the wrapper, here or by Opacus, or from the model itself."""
        own = {name if name.startswith(_PREFIX) else _PREFIX + name: value for name, value in state_dict.items()}
        return super().load_state_dict(own, strict=strict, assign=assign)

    def to_standard_module(self) -> nn.Module:
        """The model itself, which nobody listens to any more."""
        self.hooks.cleanup()
        return self._module

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._module!r})"
