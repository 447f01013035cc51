"""The state of a training: model, optimizer, averages, state of the method's components, and counters.

All of it is computed from released sums, so a checkpoint of it is public. The one exception is the state of an unproven
clip rule, in a run that has no guarantee.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from lehr.acceptance.proposal import Decision, Proposal
from lehr.errors import DamagedFile, Diverged, InvalidValue
from lehr.interfaces import ClipRule, ComponentState, PrivateSum, ReleasedSum, StepOutcome
from lehr.optim.averaging import AverageState, Averaging
from lehr.optim.optimizers import Snapshot, Updater
from lehr.run.checkpoint import Checkpoint
from lehr.run.mechanism import Method

_PREFIX = "model/"
_SLOTS = ("clipping", "noise", "acceptance")


class TrainState:
    """The model and everything that changes with it. ``step`` counts candidates, accepted or not."""

    def __init__(self, model: nn.Module, method: Method, averaging: Averaging, *, trains_all: bool = True) -> None:
        self.model, self._averaging, self._method = model, averaging, method
        self._updater = Updater(method.update, model, moves_all=trains_all)
        self._average: AverageState = averaging.start(model)
        parameters = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
        self.clipping: ComponentState = method.clipping.start(parameters)
        self.noise: ComponentState = method.noise.start(parameters)
        self.acceptance: ComponentState = method.acceptance.start()
        self.step = self.accepted = self.attempt = 0
        self.is_prepared = False  # whether the setup before the first step is done
        self.energy: float | None = None  # public loss at the current weights, if acceptance has computed it

    def propose(self, released: ReleasedSum, *, divisor: float, step: int, step_scale: float = 1.0) -> None:
        """Move the weights to the candidate."""
        self._updater.step(released, divisor=divisor, step=step, step_scale=step_scale)

    def snapshot(self) -> Snapshot:
        """A copy of the weights and the optimizer's state."""
        return self._updater.snapshot()

    def combined(self, released: ReleasedSum) -> ReleasedSum:
        """The sum that the candidate is computed from."""
        return self._method.acceptance.combined(self.acceptance, released)

    def decides(self, proposal: Proposal, released: ReleasedSum) -> Decision:
        """Let the acceptance rule decide, and keep its state."""
        decision = self._method.acceptance.decide(self.acceptance, proposal, released)
        self.acceptance = decision.state
        return decision

    def go_back(self, before: Snapshot, *, keeps_momentum: bool = False) -> None:
        """Undo a candidate, with its momentum unless that is kept."""
        if keeps_momentum:
            self._updater.restore_weights(before)
        else:
            self._updater.restore(before)

    def clip_rule(self, step: int) -> ClipRule:
        """The clip rule of a step."""
        return self._method.clipping.rule(self.clipping, step)

    def peek(self, private: PrivateSum, *, divisor: float) -> None:
        """Show an unproven clip rule a sum without noise."""
        self.clipping = self._method.clipping.peek(self.clipping, private, divisor=divisor)

    def end_step(self, taken: StepOutcome) -> None:
        """Count the candidate, and update the state of components and averages."""
        self.clipping = self._method.clipping.learn(self.clipping, taken)
        self.noise = self._method.noise.learn(self.noise, taken)
        self._average = self._averaging.learn(self._average, self.model)
        self.step += 1
        self.accepted += taken.is_accepted

    def learning_rate(self) -> float:
        """The learning rate of the last step."""
        return self._updater.learning_rate(max(0, self.step - 1))

    def weights(self) -> dict[str, Tensor]:
        """The weights that would be released now: the current ones, or their average."""
        return self._averaging.weights(self._average, self.model)

    def divergence(self) -> str:
        """The name of a weight that is not finite, in words; empty if all are finite."""
        for name, value in self.model.named_parameters():
            if not bool(value.detach().isfinite().all()):
                return f"{name} is no longer finite"
        return ""

    def checkpoint(self) -> Checkpoint:
        """A checkpoint to resume from. An error if a weight is not finite."""
        if found := self.divergence():
            raise Diverged(diverged(found, self.step))
        model = {_PREFIX + name: value for name, value in self.model.state_dict().items()}
        return Checkpoint(
            step=self.step,
            accepted=self.accepted,
            attempt=self.attempt,
            tensors={**model, **self._updater.tensors(), **self._average.tensors(), **self._slot_tensors()},
            numbers={
                "update": self._updater.scalars(),
                "slots": self._slot_numbers(),
                "is_prepared": self.is_prepared,
                "energy": None if self.energy is None else repr(self.energy),  # JSON has no infinity
            },
        )

    def load(self, found: Checkpoint) -> None:
        """Load a checkpoint of the same model and method, bit for bit."""
        tensors = found.tensors.items()
        model = {name.removeprefix(_PREFIX): value for name, value in tensors if name.startswith(_PREFIX)}
        try:
            self.model.load_state_dict(model)
            self._updater.load_tensors(found.tensors, found.numbers["update"])
            self._average = self._average.loaded(found.tensors)
            self.is_prepared = bool(found.numbers["is_prepared"])
            self.energy = None if found.numbers["energy"] is None else float(found.numbers["energy"])
            for slot in _SLOTS:
                setattr(self, slot, self._slot_state(slot, found))
        except (RuntimeError, KeyError, ValueError, InvalidValue) as error:  # missing, surplus or misshapen tensors
            raise DamagedFile(f"the checkpoint belongs to another model or method: {error}") from error
        self.step, self.accepted, self.attempt = found.step, found.accepted, found.attempt

    def _slot_tensors(self) -> dict[str, Tensor]:
        states = ((slot, getattr(self, slot)) for slot in _SLOTS)
        return {f"{slot}/{name}": value for slot, state in states for name, value in state.items() if _is_tensor(value)}

    def _slot_numbers(self) -> dict[str, dict[str, float]]:
        states = {slot: getattr(self, slot) for slot in _SLOTS}
        return {
            slot: {name: value for name, value in state.items() if not _is_tensor(value)}
            for slot, state in states.items()
        }

    def _slot_state(self, slot: str, found: Checkpoint) -> ComponentState:
        prefix, device = f"{slot}/", next(self.model.parameters()).device
        tensors = {
            name.removeprefix(prefix): value.to(device)
            for name, value in found.tensors.items()
            if name.startswith(prefix)
        }
        state = {**found.numbers["slots"][slot], **tensors}
        missing = getattr(self, slot).keys() - state.keys()
        if missing:
            raise InvalidValue("checkpoint", allowed=f"one with {sorted(missing)} of {slot}", given=sorted(state))
        return state


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and restore the mode of every layer afterwards."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def diverged(what: str, step: int) -> str:
    """The message of ``Diverged``."""
    return f"{what} after {step} steps: a smaller learning rate may help; what was released so far stays charged"
