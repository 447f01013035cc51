"""``DPOptimizer``: an optimizer whose step is taken with a noisy mean over one draw.

    optimizer.zero_grad(); criterion(model(inputs), targets).backward(); optimizer.step()

``step`` clips and adds up the batch that ``backward()`` was called for. Where that completes a draw, it charges the
step, adds noise once, writes the mean into every ``.grad``, and lets the wrapped optimizer do the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lehr import validate
from lehr.compat.opacus.draws import run_key
from lehr.compat.opacus.notes import warn_unproven
from lehr.compat.opacus.optimizers.clip_rules import checked_clipping, clip_rule
from lehr.compat.opacus.private_steps import PrivateSteps, put_means, steps_without_loader
from lehr.compat.opacus.quantile_clip import QuantileClip, QuantileRule
from lehr.compat.opacus.spending import Allowed
from lehr.compat.trained_parameters import refuse_other_parameters
from lehr.errors import InvalidValue
from lehr.interfaces import ClipRule
from lehr.update.torch_optim import _refuse_closures


class DPOptimizer(Optimizer):
    """Wraps any optimizer of torch that takes one gradient a step.

    ``noise_multiplier`` and ``max_grad_norm`` may be changed between steps, by the schedulers or by hand, as long as
    what decides is public: each step is charged with the noise that it has. ``PrivacyEngine`` makes it, with ``steps``.

    Built by hand over the parameters of a ``GradSampleModule``, it clips and adds noise to the batches that the loop
    brings. Nobody knows how they were drawn, so nothing is counted, unless a step hook does, nor proven: that needs
    ``accept_unproven``. A ``generator`` makes the noise repeatable, for tests.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float | Sequence[float],
        expected_batch_size: float,
        loss_reduction: str = "mean",
        generator: torch.Generator | None = None,
        secure_mode: bool = False,
        clipping: str = "flat",
        quantile: QuantileClip | None = None,
        steps: PrivateSteps | None = None,
        accept_unproven: bool = False,
    ) -> None:
        _refuse_closures(optimizer)
        self.original_optimizer = optimizer
        self.noise_multiplier = validate.non_negative(noise_multiplier=noise_multiplier)
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = validate.positive(expected_batch_size=expected_batch_size)
        self.loss_reduction = loss_reduction
        self.clipping = checked_clipping(clipping, quantile)
        self.step_hook: Callable[[DPOptimizer], None] | None = None
        self._quantile, self._generator, self._secure_mode = quantile, generator, secure_mode
        if steps is None and not accept_unproven:
            allowed = "True for an optimizer that make_private did not make: its batches are not known, nor counted"
            raise InvalidValue("accept_unproven", allowed=allowed, given=accept_unproven)
        if steps is None:
            warn_unproven("nobody knows how the batches of an optimizer that was built by hand are drawn")
        else:
            self._steps = steps
        if steps is not None or clipping != "per_layer":
            self.clip_rule()  # what is wrong with it is said now

    @cached_property
    def _steps(self) -> PrivateSteps:
        """Those of an optimizer that was built by hand begin with its first use."""
        key = run_key(self._generator, secure=self._secure_mode)
        return steps_without_loader(self.original_optimizer, key=key)

    def clip_rule(self) -> ClipRule:
        """The rule that the next draw is clipped by."""
        return clip_rule(
            self.clipping,
            self.max_grad_norm,
            model=self._steps.listener.model if self.clipping == "per_layer" else None,
            noise_multiplier=self.noise_multiplier,
            quantile=self._quantile,
        )

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Everything but the wrapped optimizer's step; false where the draw has further parts."""
        model = self._steps.listener.model
        refuse_other_parameters(model, self.original_optimizer)
        if not self._steps.collect(self.clip_rule()):
            return False
        rule = self._steps.rule
        released = self._steps.release(noise_multiplier=self.noise_multiplier)
        self._forget_older_gradients()
        put_means(model, released, divisor=self.expected_batch_size if self.loss_reduction == "mean" else 1.0)
        if isinstance(rule, QuantileRule) and self._quantile is not None:
            self.max_grad_norm = self._quantile.moved(rule, released, expected_batch_size=self.expected_batch_size)
        if self.step_hook is not None:
            self.step_hook(self)
        return True

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take the step, or wait for the rest of the draw. A closure is called once, for the gradients."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        return self.original_optimizer.step() if self.pre_step() else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients. The parts of a draw that are already added up stay until the draw is complete."""
        self._steps.forget()
        self.original_optimizer.zero_grad(set_to_none)

    def _forget_older_gradients(self) -> None:
        """An optimizer moves whatever has a gradient, frozen or not: one from before has neither clip nor noise."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def attach_step_hook(self, fn: Callable[[DPOptimizer], None]) -> None:
        """Call a function between the release and the step. Steps are counted without one."""
        self.step_hook = fn

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Refused: which parts make up a draw is known from the data loader."""
        allowed = "one that leaves it to BatchMemoryManager which parts make up a draw"
        raise InvalidValue("loop", allowed=allowed, given="signal_skip_step")

    @property
    def allowed(self) -> Allowed | None:
        """The steps that a target was planned for; nothing where there is no target."""
        return self._steps.allowed

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that the wrapped optimizer trains."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.original_optimizer.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.original_optimizer.param_groups = groups

    @property
    def state(self) -> Any:
        return self.original_optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.original_optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        return self.original_optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.original_optimizer.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the parameters that are trained are those that are clipped."""
        raise InvalidValue("param_groups", allowed="those that make_private was given", given="another group")

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Into the wrapped optimizer."""
        self.original_optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "original_optimizer":  # while it is being made or copied
            raise AttributeError(name)
        return getattr(self.original_optimizer, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: a copy would give the noise of the same steps to other sums."""
        raise TypeError("a private optimizer is neither copied nor pickled; state_dict() has what can be kept of it")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.original_optimizer!r})"
