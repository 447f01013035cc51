"""``DPOptimizer``: steps a torch optimizer with the noisy mean over one Poisson draw.

    optimizer.zero_grad(); criterion(model(inputs), targets).backward(); optimizer.step()

``step`` clips and adds the physical batch that ``backward()`` was called for to its draw, a ``PrivateStep``. If that
completes the draw, the step is charged and released, the mean is written into every ``.grad``, and the wrapped
optimizer steps.

- ``AdaptiveClipping``: the settings of a clip norm that follows a quantile of the gradient norms
- ``DPOptimizer``: noise multiplier and clip norm may change; each step is charged with the noise that it has
- ``StepNoise``, ``StepGradClip`` and others change them by public rules; ``lehr.integrations.opacus.schedulers`` is
  this module

Axis: B records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import nn
from torch.optim import Optimizer

from lehr import validate
from lehr.errors import InvalidValue
from lehr.gradients.batches import trainable
from lehr.integrations.external_loop import check_optimizer, write_gradients
from lehr.integrations.opacus.accountants import warn_unproven
from lehr.integrations.opacus.data_loader import BatchTracker, TrackedBatch
from lehr.integrations.opacus.grad_sample import ATTACHED, GradSampleHooks
from lehr.interfaces import ClipRule, StepOutcome
from lehr.privacy.clipping import LARGEST_CLIP_NORM, AutomaticClip, FlatClip, PerLayerClip, QuantileClip
from lehr.privacy.rng import KEY_BYTES, RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import PrivateRun, PrivateStep, UnplannedRunSpec

CLIP_RULES: dict[str, Callable[[float], ClipRule]] = {
    "flat": FlatClip,
    "per_layer": PerLayerClip,
    "automatic": AutomaticClip,
}
_UNKNOWN_BATCHES = "the batches of an optimizer that was built by hand may be drawn in any way"


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """Opacus's settings of adaptive clipping; ``unclipped_num_std`` is the noise on the count, in records."""

    target_unclipped_quantile: float
    clipbound_learning_rate: float
    max_clipbound: float
    min_clipbound: float
    unclipped_num_std: float

    def __post_init__(self) -> None:
        validate.positive(unclipped_num_std=self.unclipped_num_std)
        self.clip(clip_norm=self.min_clipbound, noise_multiplier=0.0)

    def clip(self, *, clip_norm: float, noise_multiplier: float) -> QuantileClip:
        """The clip for a step in which sum and count together have this noise multiplier."""
        share = noise_multiplier / (2 * self.unclipped_num_std)
        if not 0 <= share < 1:
            allowed = f"less than {2 * self.unclipped_num_std:g}, twice unclipped_num_std"
            raise InvalidValue("noise_multiplier", allowed=allowed, given=noise_multiplier)
        if not self.min_clipbound < self.max_clipbound:
            raise InvalidValue("max_clipbound", allowed=f"more than {self.min_clipbound}", given=self.max_clipbound)
        return QuantileClip(
            clip_norm,
            target_quantile=self.target_unclipped_quantile,
            adaptation_rate=self.clipbound_learning_rate,
            count_share=share or 0.5,  # without noise, any share will do
            smallest=self.min_clipbound,
            largest=min(self.max_clipbound, LARGEST_CLIP_NORM),
        )


def make_run_key(generator: torch.Generator | None) -> RunKey:
    """A key from system entropy; from a generator only for tests, since its seed may be known."""
    if generator is None:
        return RunKey.fresh()
    drawn = torch.randint(0, 256, (KEY_BYTES,), generator=generator, device=generator.device)
    return RunKey(bytes(drawn.tolist()))


class UntrackedBatches(BatchTracker):
    """The batches of a loop without a private loader: every backward pass counts as a draw, and nothing is proven."""

    def __init__(self, engine: GradSampleHooks, key: RunKey) -> None:
        sampling = PoissonSampling(expected_batch_size=1, records=1)
        spec = UnplannedRunSpec(sampling=sampling, num_records=1, physical_batch=1, key=key, unproven=_UNKNOWN_BATCHES)
        super().__init__(PrivateRun.open(spec))
        self._engine = engine

    def take(self) -> TrackedBatch:
        if self._engine.is_counted:
            allowed = "the one that make_private returned: it counts every step on this model"
            raise InvalidValue("optimizer", allowed=allowed, given="one that was built by hand")
        num_records = self._engine.num_records
        return TrackedBatch(self.run.draw(range(num_records)), num_records)


class DPOptimizer(Optimizer):
    """Wraps a torch optimizer that takes one gradient per step. ``PrivacyEngine`` makes it.

    ``noise_multiplier`` and ``max_grad_norm`` may be changed between steps, by schedulers or by hand, as long as the
    decision is public.

    Built by hand over the parameters of a ``GradSampleModule``, it clips and adds noise to whatever batches the loop
    runs. How they were drawn is unknown, so nothing is charged or proven: this needs ``accept_unproven``. A
    ``generator`` makes the noise repeatable, for tests.
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
        adaptive: AdaptiveClipping | None = None,
        engine: GradSampleHooks | None = None,
        tracker: BatchTracker | None = None,
        accept_unproven: bool = False,
    ) -> None:
        self.original_optimizer = optimizer
        self.noise_multiplier = validate.non_negative(noise_multiplier=noise_multiplier)
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = validate.positive(expected_batch_size=expected_batch_size)
        self.loss_reduction, self.clipping, self._adaptive = loss_reduction, clipping, adaptive
        self.step_hook: Callable[[DPOptimizer], None] | None = None
        self._generator = generator
        self._draw: PrivateStep | None = None  # the draw that is being collected
        self._rule: ClipRule | None = None
        self._quantile: QuantileClip | None = None
        if engine is not None and tracker is not None:
            self._engine, self._tracker = engine, tracker
            tracker.on_begin = self._forget_unused_forward
        elif not accept_unproven:
            allowed = f"True for an optimizer that make_private did not make: {_UNKNOWN_BATCHES}"
            raise InvalidValue("accept_unproven", allowed=allowed, given=accept_unproven)
        else:
            warn_unproven(_UNKNOWN_BATCHES)
        if engine is not None or clipping != "per_layer":
            self.clip_rule()  # raises now if it cannot be made

    @cached_property
    def _engine(self) -> GradSampleHooks:
        """For an optimizer that was built by hand: the hooks on its model, found at its first use."""
        trained = {id(parameter) for parameter in self.params}
        for engine in ATTACHED:
            if engine.hooks_enabled and trained <= {id(parameter) for parameter in engine.model.parameters()}:
                return engine
        raise InvalidValue("optimizer", allowed="one over the parameters of a GradSampleModule", given="others")

    @cached_property
    def _tracker(self) -> BatchTracker:
        return UntrackedBatches(self._engine, make_run_key(self._generator))

    @property
    def run(self) -> PrivateRun:
        """The run that charges and releases the steps."""
        return self._tracker.run

    def clip_rule(self) -> ClipRule:
        """The clip rule of the next draw. Clip norms above ``LARGEST_CLIP_NORM`` are reduced to it.

        With per-layer clipping, one number is split among the layers; a list has one norm per parameter, and these are
        combined per layer.
        """
        given = self.max_grad_norm
        if isinstance(given, int | float):
            norm = min(given, LARGEST_CLIP_NORM)
            if (quantile := self._quantile_clip()) is not None:
                return quantile.rule(quantile.start({}), 0)
            return CLIP_RULES[validate.one_of(CLIP_RULES, clipping=self.clipping)](norm)
        names = list(trainable(self._engine.model)) if self.clipping == "per_layer" else []
        if len(given) != len(names):
            allowed = f"one number, or with per_layer one for each of the {len(names)} parameters"
            raise InvalidValue("max_grad_norm", allowed=allowed, given=given)
        norms: dict[str, float] = {}
        for name, norm in zip(names, given, strict=True):
            layer = name.rpartition(".")[0]
            norms[layer] = math.hypot(norms.get(layer, 0.0), min(norm, LARGEST_CLIP_NORM))
        return PerLayerClip.with_norms(norms)

    def _quantile_clip(self) -> QuantileClip | None:
        """The clip of the next draw if it adapts."""
        if self._adaptive is None or not isinstance(self.max_grad_norm, int | float):
            return None
        norm = min(self.max_grad_norm, LARGEST_CLIP_NORM)
        return self._adaptive.clip(clip_norm=norm, noise_multiplier=self.noise_multiplier)

    def pre_step(self, closure: Callable[[], float] | None = None) -> bool:
        """Everything but the wrapped optimizer's step; False if the draw has further physical batches."""
        model = self._engine.model
        check_optimizer(model, self.original_optimizer)
        batch = self._tracker.take()
        self._add(batch)
        if not batch.is_last or self._draw is None:
            return False
        released = self._draw.release(noise_multiplier=self.noise_multiplier)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # an older gradient, perhaps of a frozen parameter, has neither clip nor noise
        divisor = self.expected_batch_size if self.loss_reduction == "mean" else 1.0
        write_gradients(model, released, divisor=divisor)
        if self._quantile is not None:
            taken = StepOutcome(released=released, divisor=self.expected_batch_size, is_accepted=True)
            self.max_grad_norm = float(self._quantile.learn(self._quantile.start({}), taken)["clip_norm"])
        if self.step_hook is not None:
            self.step_hook(self)
        return True

    def _add(self, batch: TrackedBatch) -> None:
        """Clip the physical batch and add it to its draw. All batches of a draw are clipped by one rule."""
        self._engine.refuse_parts_of_the_model()
        gradients = self._engine.gradients(torch.zeros(1, dtype=torch.bool) if batch.is_placeholder else None)
        if gradients.num_records != batch.num_records + batch.is_placeholder:
            allowed = (
                "the one that the private data loader returned, whole and each of its records once: "
                "BatchMemoryManager splits a batch, and make_private(num_passes=2) runs the model on two inputs per "
                "record"
            )
            raise InvalidValue("batch", allowed=allowed, given="another number of records")
        if batch.step is not self._draw or self._rule is None:
            self._draw, self._rule = batch.step, self.clip_rule()  # a draw that the loop left is never released
            self._quantile = self._quantile_clip()
        self._draw.add(self._rule(gradients), num_records=batch.num_records)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take the step, or wait for the rest of the draw. A closure is called once, for the gradients."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        return self.original_optimizer.step() if self.pre_step() else None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients. Physical batches that were already added to their draw stay."""
        if self._engine.has_backward:
            self._engine.forget()
        self.original_optimizer.zero_grad(set_to_none)

    def _forget_unused_forward(self) -> None:
        """The loop got another batch: drop a forward pass without a backward pass."""
        if not self._engine.has_backward:
            self._engine.forget()

    def attach_step_hook(self, fn: Callable[[DPOptimizer], None]) -> None:
        """Call a function between release and step. Steps are charged without one."""
        self.step_hook = fn

    def signal_skip_step(self, do_skip: bool = True) -> None:
        """Not supported: the data loader knows which physical batches make up a draw."""
        allowed = "one over BatchMemoryManager(data_loader=..., max_physical_batch_size=..., optimizer=...)"
        raise InvalidValue("loop", allowed=allowed, given="signal_skip_step")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported: all trainable parameters must be known to ``make_private``."""
        raise InvalidValue("param_groups", allowed="those that make_private was given", given="another group")

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that the wrapped optimizer trains."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    def state_dict(self) -> dict[str, Any]:
        """That of the wrapped optimizer."""
        return self.original_optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the wrapped optimizer."""
        self.original_optimizer.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "original_optimizer":  # during construction or copying
            raise AttributeError(name)
        return getattr(self.original_optimizer, name)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Not supported: a copy would use the noise of the same steps for other sums."""
        raise TypeError("a private optimizer is neither copied nor pickled; use state_dict()")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.original_optimizer!r})"


class _Schedule:
    """Sets ``attribute`` of the optimizer at every ``step()``, which is called as often as a learning rate scheduler's.

    Each step is charged with the noise that it has.
    """

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


class StepNoise(_Schedule):
    """Multiplies the noise multiplier by ``gamma`` at every ``step_size``-th step."""

    def __init__(self, optimizer: Any, *, step_size: int = 1, gamma: float, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = validate.count(step_size=step_size), validate.positive(gamma=gamma)
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return now if self.last_epoch == 0 or self.last_epoch % self.step_size else now * self.gamma


class StepGradClip(StepNoise):
    """Multiplies the clip norm by ``gamma`` at every ``step_size``-th step."""

    attribute = "max_grad_norm"


class ExponentialNoise(StepNoise):
    """Multiplies the noise multiplier by ``gamma`` at every step."""


class ExponentialGradClip(StepGradClip):
    """Multiplies the clip norm by ``gamma`` at every step."""


class LambdaNoise(_Schedule):
    """Multiplies the initial noise multiplier by ``noise_lambda(step)``."""

    def __init__(self, optimizer: Any, *, noise_lambda: Callable[[int], float], last_epoch: int = -1) -> None:
        self.function = noise_lambda
        super().__init__(optimizer, last_epoch=last_epoch)

    def next_value(self, now: float) -> float:
        return self.base * self.function(self.last_epoch)


class LambdaGradClip(LambdaNoise):
    """Multiplies the initial clip norm by ``scheduler_function(step)``."""

    attribute = "max_grad_norm"

    def __init__(self, optimizer: Any, *, scheduler_function: Callable[[int], float], last_epoch: int = -1) -> None:
        super().__init__(optimizer, noise_lambda=scheduler_function, last_epoch=last_epoch)
