"""The private half of a loop that somebody else has written: draws, clipped sums, charges and noise.

    with engine:
        for step in ...:
            for part in steps.parts():              # physical batches of one Poisson draw
                loss_fn(model(part)).backward()
                steps.add()
            steps.write(steps.release())            # charged, noised, and put where the optimizer looks
            optimizer.step()

What a step draws is a function of the run's key and of the step's number, so that a loader may read ahead of the loop.
Nothing that was drawn leaves before ``release``, which charges first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from lehr import validate
from lehr.compat.one_draw import OneDraw
from lehr.errors import InvalidValue
from lehr.events import NOTHING
from lehr.gradients.batches import trainable
from lehr.gradients.hooked import HookedEngine
from lehr.interfaces import ClipRule, PrivateSum, ReleasedSum, SlotState, Taken
from lehr.mechanism import Mechanism
from lehr.rng import RunKey, StepRandomness


class Pays(Protocol):
    """Whoever keeps the account of a run."""

    def pay(self, step: int) -> int:
        """Charge the step, for good; the step of the plan whose noise it has."""


@dataclass(frozen=True, eq=False)
class Part:
    """The places of the records that are run at once. Of a draw of nobody the one record in it does not count."""

    places: list[int]
    is_counted: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class Draws:
    """Which records enter which step. ``num_held`` is how many there are, a private number."""

    mechanism: Mechanism
    key: RunKey
    attempt: int
    num_held: int
    physical_batch: int

    def __post_init__(self) -> None:
        validate.count(num_held=self.num_held)
        validate.count(physical_batch=self.physical_batch)

    def at(self, step: int) -> StepRandomness:
        """The randomness of a step."""
        return self.key.at(step, self.attempt)

    def places(self, step: int) -> Tensor:
        """The places of the records of a step, which may be none."""
        return self.mechanism.draw(self.num_held, self.at(step))

    def parts(self, step: int) -> list[Part]:
        """The draw in portions. One of nobody is a record that is run for its shape and counts as nothing."""
        places = self.places(step).tolist()
        if not places:
            return [Part([0], is_counted=False)]
        size = self.physical_batch
        return [Part(places[first : first + size]) for first in range(0, len(places), size)]


class DrawnBatches(Sampler[list[int]]):
    """For ``DataLoader(batch_sampler=...)``: the physical batches of so many steps, from where the run stands.

    Its length is that number of steps, which is public; how many physical batches they come in is not, and the last
    draw is always whole.
    """

    def __init__(self, draws: Draws, *, next_step: Callable[[], int], last_step: int, steps: int) -> None:
        self.draws, self.next_step, self.last_step = draws, next_step, last_step
        self.steps = validate.count(steps=steps)

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        first = self.next_step()
        for step in range(first, min(first + self.steps, self.last_step)):
            for part in self.draws.parts(step):
                yield part.places


class HookedSteps:
    """The steps of one run. ``engine`` listens to the model; the user's loop calls forward and backward.

    A clip that learns does so from released sums. Records that were run must be those that were drawn, each once: their
    number is checked before anything is released.
    """

    def __init__(
        self,
        engine: HookedEngine,
        model: nn.Module,
        mechanism: Mechanism,
        *,
        pays: Pays,
        draws: Draws,
        first_step: int = 0,
    ) -> None:
        _refuse_unfit(mechanism)
        self.engine, self.model, self.mechanism, self.draws = engine, model, mechanism, draws
        self.step = validate.count(minimum=0, first_step=first_step)
        self._pays = pays
        parameters = {name: value.detach() for name, value in trainable(model).items()}
        self.clipping: SlotState = mechanism.clipping.start(parameters)
        self.noise: SlotState = mechanism.noise.start(parameters)
        self._parts: list[Part] | None = None
        self._draw: OneDraw | None = None

    @property
    def clip_rule(self) -> ClipRule:
        """The rule that this step clips by."""
        return self.mechanism.clipping.rule(self.clipping, self.step)

    def parts(self) -> list[Part]:
        """The physical batches of this step."""
        if self._parts is None:
            self._parts = self.draws.parts(self.step)
        return self._parts

    @property
    def next_part(self) -> Part:
        """The physical batch that is next."""
        return self.parts()[min(self._num_added, len(self.parts()) - 1)]

    @property
    def is_last_part(self) -> bool:
        """Whether the physical batch that is next is the last of its draw."""
        return self._num_added + 1 >= len(self.parts())

    def add(self, mask_B: Tensor | None = None) -> None:  # noqa: N803
        """Take in the physical batch that ``backward()`` was just called for; the mask says who counts in it."""
        if mask_B is None and not any(part.is_counted for part in self.parts()):
            mask_B = torch.zeros(1, dtype=torch.bool)  # noqa: N806
        self._begun().add(self.engine.gradients(mask_B), mask_B)

    def release(self) -> ReleasedSum:
        """Charge the step, and release the sum of everything that was added since the last one, with noise once."""
        num_drawn = sum(len(part.places) for part in self.parts() if part.is_counted)
        pay = partial(self._pays.pay, self.step)
        released = self._begun().release(num_drawn=num_drawn, pay=pay, noise=self._with_noise)
        taken = Taken(released=released, divisor=self.mechanism.divisor, is_accepted=True)
        self.clipping = self.mechanism.clipping.learn(self.clipping, taken)
        self.noise = self.mechanism.noise.learn(self.noise, taken)
        self.step += 1
        self._parts = None
        self.forget()
        return released

    def forget(self) -> None:
        """Drop what was added, as for a step that is given up before it is released."""
        self._draw = None

    def write(self, released: ReleasedSum) -> None:
        """Put the mean, over a public number, where an optimizer looks for a gradient."""
        for name, parameter in trainable(self.model).items():
            parameter.grad = (released.values[name] / self.mechanism.divisor).to(parameter.dtype)

    @property
    def _num_added(self) -> int:
        return 0 if self._draw is None else self._draw.num_parts

    def _begun(self) -> OneDraw:
        """The sum of this step, which begins with its first part, or with its release where nobody was drawn."""
        if self._draw is None:
            self._draw = OneDraw(self.clip_rule, nobody=self._of_nobody)
        return self._draw

    def _with_noise(self, private: PrivateSum, planned_step: int) -> ReleasedSum:
        randomness = self.draws.at(self.step)
        return self.mechanism.release(private, self.noise, planned_step=planned_step, randomness=randomness)

    def _of_nobody(self) -> PrivateSum:
        values = {name: torch.zeros_like(value) for name, value in trainable(self.model).items()}
        return PrivateSum(values=values, sensitivity=self.clip_rule.sensitivity)


def _refuse_unfit(mechanism: Mechanism) -> None:
    """What a loop that is not Lehr's cannot do."""
    clipping = mechanism.clipping
    if clipping.needs_coordinates or clipping.unproven is not None:
        allowed = "one that asks for norms alone: no gradient is held in full here"
        raise InvalidValue("clipping", allowed=allowed, given=type(clipping).__name__)
    if mechanism.plan.asked != NOTHING or mechanism.plan.limit is not None:
        allowed = "one of steps alone: what asks for losses, or follows what was released, needs lehr.fit"
        raise InvalidValue("method", allowed=allowed, given=str(mechanism.plan.asked))
