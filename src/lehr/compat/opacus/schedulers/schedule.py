"""What all schedules of one attribute of an optimizer have in common. ``step()`` is called as often as for a rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from lehr import validate
from lehr.errors import InvalidValue


class Schedule:
    """Sets ``attribute`` of the optimizer at every ``step()``."""

    attribute: ClassVar[str]

    def __init__(self, optimizer: Any, *, last_epoch: int = -1) -> None:
        if not hasattr(optimizer, self.attribute):
            allowed = f"one with {self.attribute}, as PrivacyEngine returns it"
            raise InvalidValue("optimizer", allowed=allowed, given=type(optimizer).__name__)
        self.optimizer, self.last_epoch = optimizer, last_epoch
        self.base: float = getattr(optimizer, self.attribute)
        self.step()

    def next_value(self, now: float) -> float:
        """The value after this step, from the one before it."""
        raise NotImplementedError

    def step(self) -> None:
        """One epoch more."""
        self.last_epoch += 1
        value = self.next_value(getattr(self.optimizer, self.attribute))
        # Without noise nothing is private, which every such step is charged as; without a clip norm nothing is defined.
        check = validate.non_negative if self.attribute == "noise_multiplier" else validate.positive
        setattr(self.optimizer, self.attribute, check(**{self.attribute: value}))

    def state_dict(self) -> dict[str, Any]:
        """Everything but the optimizer, the value that it began with, and functions."""
        left_out = ("optimizer", "base")
        return {name: value for name, value in vars(self).items() if name not in left_out and not callable(value)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What a schedule of the same kind has saved. The optimizer gets the value that it would have had then."""
        unknown = sorted(set(state_dict) - set(self.state_dict()))
        if unknown:
            raise InvalidValue("state_dict", allowed=f"one with {sorted(self.state_dict())}", given=unknown)
        vars(self).update(state_dict)
        steps, self.last_epoch = self.last_epoch + 1, -1
        setattr(self.optimizer, self.attribute, self.base)
        for _ in range(steps):
            self.step()


class Exponential(Schedule):
    """Times ``gamma`` at every step."""

    def __init__(self, optimizer: Any, *, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = validate.positive(gamma=gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return now if self.last_epoch == 0 else now * self.gamma


class Stepped(Schedule):
    """Times ``gamma`` at every ``step_size``-th step."""

    def __init__(self, optimizer: Any, *, step_size: int, gamma: float, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = validate.count(step_size=step_size), validate.positive(gamma=gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return now if self.last_epoch == 0 or self.last_epoch % self.step_size else now * self.gamma


class ByFunction(Schedule):
    """The value at the start times what a function of the step returns."""

    def __init__(self, optimizer: Any, *, function: Callable[[int], float], last_epoch: int = -1) -> None:
        self.function = function
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return self.base * self.function(self.last_epoch)
