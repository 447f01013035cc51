"""Schedules of the noise multiplier and of the clip norm, by public rules.

Each step is charged with the noise that it has. ``step()`` is called as often as that of a learning rate scheduler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lehr import validate
from lehr.errors import InvalidValue


class _Schedule:
    """Sets ``attribute`` of the optimizer at every ``step()``."""

    attribute: ClassVar[str] = "noise_multiplier"

    def __init__(self, optimizer: Any, *, last_epoch: int = -1) -> None:
        if not hasattr(optimizer, self.attribute):
            allowed = f"one with {self.attribute}, as make_private returns it"
            raise InvalidValue("optimizer", allowed=allowed, given=type(optimizer).__name__)
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.base: float = getattr(optimizer, self.attribute)
        self.step()

    def next_value(self, now: float) -> float:
        """The value of this step, from the one before."""
        raise NotImplementedError

    def step(self) -> None:
        self.last_epoch += 1
        value = self.next_value(getattr(self.optimizer, self.attribute))
        # A step without noise is allowed, and charged as infinitely expensive; a clip norm of zero is undefined.
        check = validate.non_negative if self.attribute == "noise_multiplier" else validate.positive
        setattr(self.optimizer, self.attribute, check(**{self.attribute: value}))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, the initial value, and functions."""
        omitted = ("optimizer", "base")
        return {name: value for name, value in vars(self).items() if name not in omitted and not callable(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a schedule, and set the value that the optimizer had then."""
        unknown = sorted(set(state_dict) - set(self.state_dict()))
        if unknown:
            raise InvalidValue("state_dict", allowed=f"one with {sorted(self.state_dict())}", given=unknown)
        vars(self).update(state_dict)
        steps, self.last_epoch = self.last_epoch + 1, -1
        setattr(self.optimizer, self.attribute, self.base)
        for _ in range(steps):
            self.step()


class _ClipNorm:
    attribute: ClassVar[str] = "max_grad_norm"


class ExponentialNoise(_Schedule):
    """Multiplies the noise multiplier by ``gamma`` at every step."""

    def __init__(self, optimizer: Any, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = validate.positive(gamma=gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return now if self.last_epoch == 0 else now * self.gamma


class ExponentialGradClip(_ClipNorm, ExponentialNoise):
    """Multiplies the clip norm by ``gamma`` at every step."""


class StepNoise(_Schedule):
    """Multiplies the noise multiplier by ``gamma`` at every ``step_size``-th step."""

    def __init__(self, optimizer: Any, *, step_size: int, gamma: float, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = validate.count(step_size=step_size), validate.positive(gamma=gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return now if self.last_epoch == 0 or self.last_epoch % self.step_size else now * self.gamma


class StepGradClip(_ClipNorm, StepNoise):
    """Multiplies the clip norm by ``gamma`` at every ``step_size``-th step."""


class LambdaNoise(_Schedule):
    """Multiplies the initial noise multiplier by ``noise_lambda(step)``."""

    def __init__(self, optimizer: Any, *, noise_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        self.function = noise_lambda
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return self.base * self.function(self.last_epoch)


class LambdaGradClip(_ClipNorm, LambdaNoise):
    """Multiplies the initial clip norm by ``scheduler_function(step)``."""

    def __init__(self, optimizer: Any, *, scheduler_function: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, noise_lambda=scheduler_function, last_epoch=last_epoch)
