"""The model of a run with all that goes on beside it: optimizer, averages, what acceptance remembers, and counts.

Everything in it is public: it follows from released sums, and a checkpoint of it may be shown to anybody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from lehr.acceptance.proposal import Proposal, State
from lehr.checkpoint import Checkpoint
from lehr.errors import DamagedFile, Diverged, InvalidValue
from lehr.interfaces import ReleasedSum
from lehr.mechanism import Method
from lehr.update.averaging import AverageState, Averaging
from lehr.update.torch_optim import Snapshot, Updater

_PREFIX = "model/"


class Trainee:
    """What is trained. ``step`` counts candidates, of which some were ``accepted``."""

    def __init__(self, model: nn.Module, method: Method, averaging: Averaging) -> None:
        self.model, self._averaging, self._acceptance = model, averaging, method.acceptance
        self._updater = Updater(method.update, model)
        self._average: AverageState = averaging.start(model)
        self._remembered: State = method.acceptance.start()
        self.step = self.accepted = self.attempt = 0

    def propose(self, released: ReleasedSum, *, divisor: float, step: int) -> None:
        """Move the weights to the candidate."""
        self._updater.step(released, divisor=divisor, step=step)

    def snapshot(self) -> Snapshot:
        """The weights and the optimizer, to go back to."""
        return self._updater.snapshot()

    def decides(self, proposal: Proposal) -> bool:
        """Whether the candidate is accepted; what was decided is remembered."""
        is_accepted, self._remembered = self._acceptance.decide(self._remembered, proposal)
        return is_accepted

    def go_back(self, before: Snapshot) -> None:
        """Undo a candidate, its momentum included."""
        self._updater.restore(before)

    def end_step(self, *, is_accepted: bool) -> None:
        """Count the candidate, and let the averages learn from the weights."""
        self._average = self._averaging.learn(self._average, self.model)
        self.step += 1
        self.accepted += is_accepted

    def learning_rate(self) -> float:
        """That of the last step."""
        return self._updater.learning_rate(max(0, self.step - 1))

    def weights(self) -> dict[str, Tensor]:
        """What would be released now: the weights, or their average."""
        return self._averaging.weights(self._average, self.model)

    def refuse_divergence(self) -> None:
        """An error where a weight is no longer a number."""
        for name, value in self.model.named_parameters():
            if not bool(value.detach().isfinite().all()):
                raise Diverged(diverged(f"{name} is no longer finite", self.step))

    def checkpoint(self) -> Checkpoint:
        """All that is needed to go on from here."""
        self.refuse_divergence()
        model = {_PREFIX + name: value for name, value in self.model.state_dict().items()}
        return Checkpoint(
            step=self.step,
            accepted=self.accepted,
            attempt=self.attempt,
            tensors={**model, **self._updater.tensors(), **self._average.tensors()},
            numbers={"update": self._updater.scalars(), "acceptance": dict(self._remembered)},
        )

    def go_on_from(self, found: Checkpoint) -> None:
        """Be what a checkpoint of the same model and method says, to the bit."""
        tensors = found.tensors.items()
        model = {name.removeprefix(_PREFIX): value for name, value in tensors if name.startswith(_PREFIX)}
        try:
            self.model.load_state_dict(model)
            self._updater.load_tensors(found.tensors, found.numbers["update"])
            self._average = self._average.loaded(found.tensors)
            self._remembered = found.numbers["acceptance"]
        except (RuntimeError, KeyError, InvalidValue) as error:  # of missing, surplus or misshapen tensors
            raise DamagedFile(f"the checkpoint is not one of this model and method: {error}") from error
        self.step, self.accepted, self.attempt = found.step, found.accepted, found.attempt


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as it is used, not trained."""
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for layer, mode in modes:
            layer.training = mode


def diverged(what: str, step: int) -> str:
    """How a run is said to have failed."""
    return f"{what} after {step} steps: a smaller learning rate may help; what was released so far stays charged"
