"""The private half of a loop that calls model, loss and ``backward()`` itself.

    a part of a draw ─► the loop's forward and backward pass ─► collect ─► … the last part ─► release ─► means as .grad

The model is listened to (``lehr.gradients.hooked``), a clip rule bounds every record, the step is charged, and noise is
added once for the whole draw. The divisor is the expected batch size, which is public, whatever was drawn.

What is charged, noised and handed out, in this order, is one draw of ``lehr.compat.one_draw``, as at the other doors.
``lehr.compat.hooked_steps`` does this for a plan that is fixed beforehand. Here a loop may take as many steps as it
likes, change noise and clip norm as it goes, and leave draws unused: what is charged is what is done.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.compat.one_draw import OneDraw
from lehr.compat.opacus.draws import Draws, Part
from lehr.compat.opacus.spending import Allowed
from lehr.errors import InvalidValue
from lehr.events import PoissonSampled
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.hooked import HookedEngine
from lehr.interfaces import ClipRule, ReleasedSum
from lehr.noise import IsotropicNoise, NoNoise
from lehr.sampling import PoissonSampling


class Listener(HookedEngine):
    """The hooked engine, which can be asked what it has heard that nobody has collected."""

    @property
    def has_backward(self) -> bool:
        """Whether a backward pass was made."""
        return self._heard.backward_began

    def refuse_parts_of_the_model(self) -> None:
        """Only the model as a whole is tried for mixing: of its parts, put together by the loop, nothing is known."""
        if self._heard.backward_began and not self._heard.num_passes:
            allowed = "one that calls the model itself, which is tried for records that meet one another"
            raise InvalidValue("loop", allowed=allowed, given="one that calls layers or methods of it")


class PrivateSteps:
    """Turns the backward passes of a draw into one released sum.

    ``charge`` is called with the event of a step before its noise is drawn; when it returns, the step is paid for.
    Steps beyond what is ``allowed`` are refused before that.
    """

    def __init__(
        self,
        listener: Listener,
        *,
        draws: Draws,
        sampling: PoissonSampling,
        charge: Callable[[PoissonSampled], None],
        allowed: Allowed | None = None,
    ) -> None:
        self.listener, self.draws, self.sampling, self.allowed = listener, draws, sampling, allowed
        self._charge = charge
        draws.when_begun(self._forget_pass)
        self._draw: OneDraw | None = None
        self._part: Part | None = None
        self._num_drawn = 0

    @property
    def rule(self) -> ClipRule | None:
        """The rule of the draw that is being collected, or was the last."""
        return None if self._draw is None else self._draw.rule

    def collect(self, clip: ClipRule) -> bool:
        """Clip and add up the batch that ``backward()`` was called for; true where that completes its draw.

        All parts of a draw are clipped by the rule of its first part: the sum has one sensitivity.
        """
        part = self.draws.taken()
        mask_B = torch.zeros(1, dtype=torch.bool) if part.is_made_up else None  # noqa: N806
        gradients = self._gradients(part, mask_B)
        if self._part is None or self._draw is None or self._part.randomness != part.randomness:
            self._draw, self._num_drawn = OneDraw(clip), 0  # a draw that the loop left before its end is not released
        self._draw.add(gradients, mask_B)
        self._num_drawn += 0 if part.is_made_up else part.num_records
        self._part = part
        return part.is_last

    def release(self, *, noise_multiplier: float) -> ReleasedSum:
        """The noisy sum over the draw that was collected: charged first, and then drawn."""
        part, draw = self._part, self._draw
        if part is None or draw is None or not part.is_last:
            raise InvalidValue("loop", allowed="one that collects the whole of a draw", given="a part of one, or none")
        add = partial(_noise(noise_multiplier).release, noise_multiplier=noise_multiplier, randomness=part.randomness)
        released = draw.release(
            num_drawn=self._num_drawn,
            pay=lambda: self._pay(step_event(self.sampling, noise_multiplier)),
            noise=lambda private, _: add(private),
        )
        self._part = None
        return released

    def _pay(self, event: PoissonSampled) -> None:
        if self.allowed is not None:
            self.allowed.take(event)
        self._charge(event)

    def forget(self) -> None:
        """Drop a backward pass that was not collected. What was collected of a draw stays."""
        if self.listener.has_backward:
            self.listener.forget()

    def _forget_pass(self) -> None:
        """The loop has gone on to another batch, and will not differentiate what it ran without a backward pass."""
        if not self.listener.has_backward:
            self.listener.forget()

    def _gradients(self, part: Part, mask_B: Tensor | None) -> ContributedGradients:  # noqa: N803
        self.listener.refuse_parts_of_the_model()
        found = self.listener.gradients(mask_B)
        if len(found.norms()) != part.num_records:
            allowed = "the one that the private data loader gave, each of its records once"
            raise InvalidValue("batch", allowed=allowed, given="another number of records")
        return found


def step_event(sampling: PoissonSampling, noise_multiplier: float) -> PoissonSampled:
    """What a step with this noise does to the records."""
    return sampling.event(_noise(noise_multiplier).event(noise_multiplier))


def put_means(model: nn.Module, released: ReleasedSum, *, divisor: float) -> None:
    """Write the released sum, divided by a public number, where an optimizer looks for gradients."""
    validate.positive(divisor=divisor)
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    means = torch._foreach_div([released.values[name] for name in trained], divisor)
    for parameter, mean in zip(trained.values(), means, strict=True):
        parameter.grad = mean.to(parameter.dtype).view_as(parameter)


def _noise(noise_multiplier: float) -> IsotropicNoise | NoNoise:
    return IsotropicNoise() if validate.non_negative(noise_multiplier=noise_multiplier) else NoNoise()
