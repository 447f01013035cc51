"""One run with many canaries: each is in the data by a fair coin, and the trained model is asked which were.

One training is enough for a bound that assumes nothing (Steinke, Nasr & Jagielski 2023): the coins are independent,
though one model answers for all canaries. Scores come from the final model alone, or, with ``white_box``, from every
released sum; guesses are made about the clearest of them.

A training on private records is a use of those records and costs its ε, this one included: the trained model is thrown
away, but the result of the attack has no noise. Use public or synthetic records wherever possible.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lehr import validate
from lehr.attacks.final_model import losses
from lehr.attacks.harness import (
    best_number_of_guesses,
    bounds_from_guesses,
    check_addable,
    check_private_method,
    joined,
    observed,
    plan_run,
    train_in_temporary_folder,
)
from lehr.auditing import Audit, Scores
from lehr.auditing.audit import roc_points
from lehr.auditing.bounds import check_confidence
from lehr.auditing.one_run import check_guesses
from lehr.auditing.scores import Floats
from lehr.data import InMemory, Preparation
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn, each
from lehr.gradients.execution import random_numbers_apart
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import PrivateSum, ReleasedSum, Tensors
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Method
from lehr.run.shape import Callback

FROM_THE_MODEL = "one run with canaries by fair coins, told from the final model alone"
FROM_THE_SUMS = "one run with canaries by fair coins, told from every released sum"
FEWEST_CANARIES = 32


def attack(
    model: nn.Module,
    private: InMemory,
    canaries: InMemory,
    *,
    method: Method,
    plan: Plan,
    loss_fn: LossFn,
    num_classes: int,
    public: InMemory | None = None,
    white_box: bool = False,
    look_every: int = 1,
    guesses: int | None = None,
    confidence: float = 0.95,
    records_are_public: bool = False,
    physical_batch: int | None = None,
    callbacks: Sequence[Callback] = (),
    key: RunKey | None = None,
) -> Audit:
    """Train a copy of ``model`` once, on the private records and half of the canaries, and guess which half.

    For private records this is a run like any other: its ε adds to what they have spent.

    ``plan.records`` is a stated number that has room for the canaries. ``public`` is for methods that use a public
    loss. With ``white_box`` scores come from every ``look_every``-th released sum, along what the clip leaves of each
    canary. ``guesses`` is how many guesses are made, half of them "in"; by default it follows from the claim. The
    result depends on the private records; it is for their owner, unless ``records_are_public``. ``key`` makes a test
    repeatable.
    """
    check_private_method(method)
    check_addable(plan)
    validate.count(minimum=FEWEST_CANARIES, canaries=len(canaries))
    own, theirs = private.inputs, canaries.inputs
    if own.shape[1:] != theirs.shape[1:] or own.dtype != theirs.dtype:
        allowed = f"records of shape {tuple(own.shape[1:])} and {own.dtype}, as the private ones are"
        raise InvalidValue("canaries", allowed=allowed, given=f"{tuple(theirs.shape[1:])}, {theirs.dtype}")
    check_confidence(confidence=confidence)
    validate.true_or_false(records_are_public=records_are_public)
    validate.count(look_every=look_every)
    if guesses is not None:
        check_guesses(right=0, guesses=guesses, canaries=len(canaries))
    key = key or RunKey.fresh()
    is_present = key.at(0, 0).uniforms("canaries", len(canaries)) < 0.5
    trained = copy.deepcopy(model)
    observer = CanaryObserver(trained, canaries, loss_fn, look_every=look_every) if white_box else None
    run = train_in_temporary_folder(
        plan_run(
            trained,
            joined(private, canaries.at(is_present.nonzero().squeeze(1))),
            method=observed(method, observer.observe) if observer else method,
            plan=plan,
            loss_fn=loss_fn,
            num_classes=num_classes,
            public=public,
            physical_batch=physical_batch,
        ),
        key=key,
        callbacks=callbacks,
    )
    if observer is not None:
        scores = observer.scores()
    else:  # by how much the loss of each canary fell
        prepare = partial(each, Preparation().prepared)
        before, after = (losses(one, canaries, loss_fn=loss_fn, prepare=prepare) for one in (model, trained))
        scores = before - after
    present = is_present.numpy()
    stated = {"delta": plan.delta, "confidence": confidence}
    claimed = run.proven.epsilon
    if guesses is None:
        guesses = best_number_of_guesses(claimed_epsilon=claimed, canaries=len(canaries), **stated)
    return Audit(
        subject=method.name,
        attack=FROM_THE_SUMS if white_box else FROM_THE_MODEL,
        claimed_epsilon=claimed,
        delta=plan.delta,
        bounds=bounds_from_guesses(scores, present, guesses=guesses, **stated),
        members=int(present.sum()),
        others=int((~present).sum()),
        runs=1,
        steps=run.end.step,
        roc=roc_points(Scores(scores[present], scores[~present])),
        is_private=not records_are_public,
    )


def mislabelled_canaries(
    records: InMemory, num_canaries: int, *, num_classes: int, generator: torch.Generator
) -> InMemory:
    """So many of the records, each with a wrong label: only memorisation would explain a small loss.

    They become canaries and are no longer secret: take records that are public or synthetic.

    >>> made = mislabelled_canaries(InMemory(torch.zeros(9, 2), torch.arange(9) % 3), 4, num_classes=3,
    ...     generator=torch.Generator().manual_seed(1))
    >>> len(made), made.targets.dtype
    (4, torch.int64)
    """
    validate.count(minimum=2, num_classes=num_classes)
    if not validate.count(num_canaries=num_canaries) <= len(records):
        raise InvalidValue("num_canaries", allowed=f"at most the {len(records)} records", given=num_canaries)
    chosen = records.at(torch.randperm(len(records), generator=generator)[:num_canaries])
    shifts = torch.randint(1, num_classes, (num_canaries,), generator=generator)
    return InMemory(chosen.inputs, (chosen.targets + shifts) % num_classes)


def noise_canaries(like: InMemory, num_canaries: int, *, num_classes: int, generator: torch.Generator) -> InMemory:
    """Canaries of the shape and type of the records: uniform noise, each with a random label.

    Noise is from 0 to 255 for bytes, and from 0 to 1 for numbers.
    """
    shape = (validate.count(num_canaries=num_canaries), *like.inputs.shape[1:])
    if like.inputs.dtype == torch.uint8:
        inputs = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    else:
        inputs = torch.rand(shape, generator=generator, dtype=like.inputs.dtype)
    labels = torch.randint(0, validate.count(num_classes=num_classes), (num_canaries,), generator=generator)
    return InMemory(inputs, labels)


class CanaryObserver:
    """Scores canaries by released sums along what a clip leaves of each canary, at the current weights.

    Of a clip it knows what is public about the sum: its sensitivity, or the bounds of its coordinates. A canary is
    cut off by those, which is what a clip does to large gradients, and close for others.
    """

    def __init__(self, model: nn.Module, canaries: InMemory, loss_fn: LossFn, *, look_every: int) -> None:
        self._model, self._canaries, self._look_every = model, canaries, look_every
        self._engine = MaterialisedEngine(model, loss_fn)
        self._scores = torch.zeros(len(canaries), dtype=torch.float64)
        self._num_seen = 0

    def observe(self, private: PrivateSum, released: ReleasedSum) -> None:
        """Of the private sum, only what is public is used: how it was clipped."""
        if self._num_seen % self._look_every == 0:
            along = self._along(released, sensitivity=private.sensitivity, bounds=private.bounds)
            # What all records have in common moves every canary alike, and says nothing about any.
            self._scores += along - along.mean()
        self._num_seen += 1

    def scores(self) -> Floats:
        """The sums so far."""
        scores: Floats = self._scores.numpy()
        return scores

    def _along(self, released: ReleasedSum, *, sensitivity: float, bounds: Tensors | None) -> Tensor:
        device = next(self._model.parameters()).device
        inputs = Preparation().prepared(self._canaries.inputs.to(device))
        parts: list[Tensor] = []
        norms: list[Tensor] = []

        def product(grads: Tensor, name: str) -> Tensor:
            weighted = released.values[name].double() / released.std_of(name) ** 2
            clipped = grads if bounds is None else grads.clamp(-bounds[name], bounds[name])
            return clipped.double().flatten(1) @ weighted.flatten()

        def look(grads: Tensors) -> Tensors:
            parts.append(torch.stack([product(value, name) for name, value in grads.items()]).sum(0))
            return grads

        with random_numbers_apart(device):
            for gradients in self._engine.parts(inputs, self._canaries.targets.to(device)):
                gradients.clipped_sum(look)
                norms.append(gradients.norms().double())
        along = torch.cat(parts)
        return (along if bounds is not None else along * sensitivity / torch.cat(norms).clamp_min(sensitivity)).cpu()
