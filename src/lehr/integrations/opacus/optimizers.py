"""``DPOptimizer``: steps a torch optimizer with the noisy mean over one Poisson draw.

    optimizer.zero_grad(); criterion(model(inputs), targets).backward(); optimizer.step()

``step`` clips and adds the physical batch that ``backward()`` was called for to its draw, a ``PrivateStep``. If that
completes the draw, the step is charged and released, the mean is written into every ``.grad``, and the wrapped
optimizer steps. Noise multiplier and clip norm may change: each step is charged with the noise that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lehr import validate
from lehr.errors import InvalidValue
from lehr.integrations.external_loop import check_optimizer, write_gradients
from lehr.integrations.opacus.clipping import QuantileClip, QuantileRule, check_clipping, clip_rule
from lehr.integrations.opacus.data_loader import BatchTracker, TrackedBatch, make_run_key
from lehr.integrations.opacus.grad_sample import ATTACHED, GradSampleHooks
from lehr.integrations.opacus.migration import warn_unproven
from lehr.interfaces import ClipRule
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.run.private_run import OpenRunSpec, PrivateRun, PrivateStep

_UNKNOWN_BATCHES = "the batches of an optimizer that was built by hand may be drawn in any way"


class UntrackedBatches(BatchTracker):
    """The batches of a loop without a private loader: every backward pass counts as a draw, and nothing is proven."""

    def __init__(self, engine: GradSampleHooks, key: RunKey) -> None:
        sampling = PoissonSampling(expected_batch_size=1, records=1)
        spec = OpenRunSpec(sampling=sampling, num_records=1, physical_batch=1, key=key, unproven=_UNKNOWN_BATCHES)
        super().__init__(PrivateRun.open(spec))
        self._engine = engine

    def take(self) -> TrackedBatch:
        if self._engine.is_counted:
            allowed = "the one that make_private returned: it counts every step on this model"
            raise InvalidValue("optimizer", allowed=allowed, given="one that was built by hand")
        assert self.run is not None
        num_records = self._engine.num_records
        step = self.run.draw(range(num_records))
        return TrackedBatch(step=step, number=1, num_records=num_records, is_last=True)


def _of_the_wrapped(name: str) -> Any:
    return property(
        lambda self: getattr(self.original_optimizer, name),
        lambda self, value: setattr(self.original_optimizer, name, value),
    )


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
        quantile: QuantileClip | None = None,
        engine: GradSampleHooks | None = None,
        tracker: BatchTracker | None = None,
        accept_unproven: bool = False,
    ) -> None:
        self.original_optimizer = optimizer
        self.noise_multiplier = validate.non_negative(noise_multiplier=noise_multiplier)
        self.max_grad_norm = max_grad_norm
        self.expected_batch_size = validate.positive(expected_batch_size=expected_batch_size)
        self.loss_reduction = loss_reduction
        self.clipping = check_clipping(clipping, quantile)
        self.step_hook: Callable[[DPOptimizer], None] | None = None
        self._quantile, self._generator, self._secure_mode = quantile, generator, secure_mode
        self._draw: PrivateStep | None = None  # the draw that is being collected
        self._rule: ClipRule | None = None
        if engine is not None and tracker is not None:
            self._engine, self._tracker = engine, tracker
            tracker.on_begin(self._forget_unused_forward)
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
        return UntrackedBatches(self._engine, make_run_key(self._generator, secure=self._secure_mode))

    @property
    def run(self) -> PrivateRun | None:
        """The run that charges and releases the steps."""
        return self._tracker.run

    def clip_rule(self) -> ClipRule:
        """The clip rule of the next draw."""
        return clip_rule(
            self.clipping,
            self.max_grad_norm,
            model=self._engine.model if self.clipping == "per_layer" else None,
            noise_multiplier=self.noise_multiplier,
            quantile=self._quantile,
        )

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
        if isinstance(self._rule, QuantileRule) and self._quantile is not None:
            expected = self.expected_batch_size
            self.max_grad_norm = self._quantile.next_clip_norm(self._rule, released, expected_batch_size=expected)
        if self.step_hook is not None:
            self.step_hook(self)
        return True

    def _add(self, batch: TrackedBatch) -> None:
        """Clip the physical batch and add it to its draw. All batches of a draw are clipped by one rule."""
        mask_B = torch.zeros(1, dtype=torch.bool) if batch.is_placeholder else None
        self._engine.refuse_parts_of_the_model()
        gradients = self._engine.gradients(mask_B)
        if len(gradients.norms()) != (1 if batch.is_placeholder else batch.num_records):
            allowed = "the one that the private data loader returned, each of its records once"
            raise InvalidValue("batch", allowed=allowed, given="another number of records")
        if batch.step is not self._draw or self._rule is None:
            self._draw, self._rule = batch.step, self.clip_rule()  # a draw that the loop left is never released
        if batch.number != self._draw.num_added + 1:
            allowed = "one that calls optimizer.step() for every physical batch of BatchMemoryManager"
            raise InvalidValue("loop", allowed=allowed, given="a batch that was left out")
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
        raise InvalidValue("loop", allowed="one that uses BatchMemoryManager", given="signal_skip_step")

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that the wrapped optimizer trains."""
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    param_groups = _of_the_wrapped("param_groups")
    state = _of_the_wrapped("state")
    defaults = _of_the_wrapped("defaults")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not supported: all trainable parameters must be known to ``make_private``."""
        raise InvalidValue("param_groups", allowed="those that make_private was given", given="another group")

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
