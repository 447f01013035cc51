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
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lehr import validate
from lehr.compat.one_draw import OneDraw
from lehr.compat.opacus.draws import Draws, Part
from lehr.compat.opacus.records_first import (
    RecordsFirst,
    needed,
    num_positions,
    one_record_more,
    records_first,
    turned_like,
)
from lehr.compat.opacus.spending import Allowed
from lehr.errors import InvalidValue, NotPrivate
from lehr.events import PoissonSampled
from lehr.gradients.contributed import ContributedGradients
from lehr.gradients.heard import Heard
from lehr.gradients.hooked import HookedEngine
from lehr.gradients.listening import Listening
from lehr.interfaces import ClipRule, ReleasedSum, Tensors
from lehr.noise import IsotropicNoise, NoNoise
from lehr.rng import RunKey
from lehr.sampling import PoissonSampling

_LISTENERS: WeakSet[Listener] = WeakSet()


class Listener(HookedEngine):
    """The hooked engine, which can be asked what it has heard that nobody has collected.

    Without ``batch_first`` the records are on the second axis of the model's inputs. ``model`` is what the engine runs.
    Where it ``is_counted``, a ``PrivacyEngine`` charges every step that is taken on what it hears.
    """

    is_counted = False

    def __init__(self, module: nn.Module, *, batch_first: bool = True, **options: Any) -> None:
        self._first = RecordsFirst(module, batch_first=batch_first) if needed(module, batch_first=batch_first) else None
        self.model = self._first or module
        super().__init__(self.model, **options)
        _LISTENERS.add(self)

    @property
    def is_attached(self) -> bool:
        """Whether the model is listened to."""
        return bool(self._undo)

    @property
    def num_records(self) -> int:
        """How many records the model was run on, and nobody has collected."""
        return self._heard.num_images or 0

    def _listen(self) -> None:
        """Listen to the layers, and let the loop call the model as it does."""
        without_rule = self._layers.without_rule()
        if self._first is not None and not self._first.batch_first and without_rule:
            reason = f"no layer rule knows the parameter {min(without_rule)}, nor where its records are"
            raise NotPrivate(layer="a model with batch_first=False", reason=reason, instead="the records first")
        super()._listen()
        if self._first is not None:
            self._listen_at_entrance(self._first)

    def _listen_at_entrance(self, first: RecordsFirst) -> None:
        module = first.module
        first.inner = vars(module).get("forward")

        def enter(_: Heard, *args: Any, **kwargs: Any) -> Any:
            args, kwargs = records_first((args, kwargs), batch_first=first.batch_first)
            return first(*args, **kwargs)

        def leave() -> None:
            vars(module).pop("forward")
            if first.inner is not None:
                vars(module)["forward"], first.inner = first.inner, None

        vars(module)["forward"] = Listening(module, lambda: self._heard, enter)
        self._undo.append(leave)

    def _heard_apart(self, values: Tensors, inputs: Any) -> Any:
        """Outputs are turned too, to what is longer with a record more."""
        outputs, *others = super()._heard_apart(values, inputs)
        if self._first is not None:
            more, *_ = super()._heard_apart(values, one_record_more(inputs))
            outputs = turned_like(outputs, more, num_positions=num_positions(inputs))
        return outputs, *others

    def _replace_forward(self, layer: nn.Module, run: Any) -> None:
        super()._replace_forward(layer, run if self._first is None else self._first.on_turned(layer, run))

    @property
    def has_backward(self) -> bool:
        """Whether a backward pass was made."""
        return self._heard.backward_began

    def refuse_parts_of_the_model(self) -> None:
        """Only the model as a whole is tried for mixing: of its parts, put together by the loop, nothing is known."""
        if self._heard.backward_began and not self._heard.num_passes:
            allowed = "one that calls the model itself, which is tried for records that meet one another"
            raise InvalidValue("loop", allowed=allowed, given="one that calls layers or methods of it")


class OwnBatches(Draws):
    """The batches of a loop without a private loader. Each backward pass counts as a draw; which records it had, and
    how they were chosen, nobody knows.
    """

    def __init__(self, listener: Listener, key: RunKey) -> None:
        super().__init__(key)
        self._listener = listener

    def taken(self) -> Part:
        if self._listener.is_counted:
            allowed = "the one that make_private returned: it counts every step on this model"
            raise InvalidValue("optimizer", allowed=allowed, given="one that was built by hand")
        return Part(randomness=self.fresh(), num_records=self._listener.num_records, is_last=True)


def steps_without_loader(optimizer: Optimizer, *, key: RunKey) -> PrivateSteps:
    """Steps of an optimizer over the parameters of a ``GradSampleModule``, which are noised and charged to nobody."""
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for listener in _LISTENERS:
        if listener.is_attached and trained <= {id(parameter) for parameter in listener.model.parameters()}:
            everybody = PoissonSampling(expected_batch_size=1, records=1)
            return PrivateSteps(
                listener, draws=OwnBatches(listener, key), sampling=everybody, charge=lambda event: None
            )
    raise InvalidValue("optimizer", allowed="one over the parameters of a GradSampleModule", given="others")


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
