"""Neighbours: one step on your records, with one record and without it, repeated at fixed weights.

Draw, gradients, clip and noise are those that train. What is released is compared with what the same draw gives without
the record, along the record's own clipped gradient: that is what an adversary sees who knows all other records and
which of them were drawn. The claim covers this adversary, for under Poisson sampling the other coins say nothing about
this one.

The decisive bound combines the two parts of a step: how often the record was drawn, and how well a sum that it is in
can be told from one without it. Together they bound the ε of a sampled Gaussian, including its far tail, of which the
error rates of a few thousand repetitions show nothing where records are seldom drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from lehr import accounting, validate
from lehr.accounting.events import Event
from lehr.attacks.harness import check_addable, check_private_method, joined, log_likelihood_ratio
from lehr.auditing import Audit, Check, Scores, bounds
from lehr.auditing.audit import NOISE_AS_STATED, roc_points
from lehr.auditing.bounds import check_confidence
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients import batches
from lehr.gradients.batches import LossFn
from lehr.gradients.execution import random_numbers_apart
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import ClipRule, ComponentState, Inputs, PrivateSum, ReleasedSum, Tensors
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import physical
from lehr.run.loop import Engine
from lehr.run.mechanism import Mechanism, Method, sum_parts
from lehr.run.private_run import seed_layers
from lehr.training import engines

DESCRIPTION = "one step, with a record and without it: every released sum is seen, and who else was drawn"
DRAWN_AS_STATED = "the record was drawn as often as is stated"
REPETITIONS = 2_000
WITH, WITHOUT = 0, 1  # attempts, so that the noise of both sides is independent

_MOST_DRAWS = 50_000
_AT_ONCE = 500

Record: TypeAlias = "int | tuple[Tensor, Tensor]"
Prepare: TypeAlias = Callable[[Inputs], Inputs]


def attack(
    model: nn.Module,
    private: InMemory,
    record: Record | None = None,
    *,
    method: Method,
    plan: Plan,
    loss_fn: LossFn,
    repetitions: int = REPETITIONS,
    confidence: float = 0.95,
    prepare: Prepare | None = None,
    records_are_public: bool = False,
    physical_batch: int | None = None,
    key: RunKey | None = None,
) -> Audit:
    """Compare the ε of one step with what the sums of many such steps show about a record.

    ``record`` is the index of a private record; or an input and a target of your own, such as a canary, which is added;
    by default it is the private record with the largest gradient. ``prepare`` maps inputs to what the model sees. The
    first step of the plan is taken at the current weights; every repetition is one draw and two sums, with the record
    and without it, each with its noise.

    The result depends on your records without noise: it is for their owner, unless ``records_are_public``. ``key``
    makes a test repeatable.
    """
    check_private_method(method)
    check_addable(plan)
    check_confidence(confidence=confidence)
    validate.true_or_false(records_are_public=records_are_public)
    prepare, private = prepare or (lambda inputs: inputs), private.to(_device(model))
    if record is None and len(private):
        record = largest_gradient(model, private, loss_fn=loss_fn, prepare=prepare)
    experiment = StepExperiment(
        model=model,
        engine=_engine(model, loss_fn, method, private, prepare),
        mechanism=Mechanism.of(method, plan),
        records=_with_record_last(private, record),
        prepare=prepare,
        physical_batch=physical_batch or engines.physical_batch_for(plan, _device(model)),
        key=key or RunKey.fresh(),
    )
    seen = experiment.repeat(validate.count(minimum=2, repetitions=repetitions))
    stated: dict[str, float] = {"delta": plan.delta, "confidence": confidence}
    q, distance = plan.sampling_probability, experiment.distance
    by_likelihood = Scores(
        *(
            log_likelihood_ratio(torch.from_numpy(distance * side), precision=distance**2, probability=q).numpy()
            for side in (seen.each.members, seen.each.others)
        )
    )
    return Audit(
        subject=f"one step of {method.name}",
        attack=DESCRIPTION,
        claimed_epsilon=accounting.claim(experiment.event, delta=plan.delta, adjacency=plan.adjacency).epsilon,
        delta=plan.delta,
        bounds=(
            bounds.sampled_gaussian(
                seen.drawn, threshold=distance / 2, num_drawn=seen.num_drawn, num_draws=seen.num_draws, **stated
            ),
            bounds.clopper_pearson(by_likelihood, **stated),
        ),
        members=len(by_likelihood.members),
        others=len(by_likelihood.others),
        runs=repetitions,
        steps=1,
        roc=roc_points(by_likelihood),
        checks=(
            Check(statement=NOISE_AS_STATED, p_value=bounds.variance_p_value(seen.each.others, std=1.0)),
            Check(
                statement=DRAWN_AS_STATED,
                p_value=float(stats.binomtest(seen.num_drawn, seen.num_draws, q).pvalue),
            ),
        ),
        is_private=not records_are_public,
    )


def largest_gradient(model: nn.Module, records: InMemory, *, loss_fn: LossFn, prepare: Prepare | None = None) -> int:
    """The index of the record with the largest gradient at the current weights. It is private."""
    engine, records = MaterialisedEngine(model, loss_fn), records.to(_device(model))
    norms = []
    for indices in torch.split(torch.arange(len(records)), _AT_ONCE):
        inputs, targets = records.batch(indices)
        norms.append(engine.gradients(inputs if prepare is None else prepare(inputs), targets).norms())
    return int(torch.cat(norms).argmax())


@dataclass(frozen=True, kw_only=True, eq=False)
class Observations:
    """Sums along the record, in units of the noise: of ``each`` draw, and of those that the record was in.

    Where it is seldom drawn, further draws were made, of which only those with the record were summed.
    """

    each: Scores
    drawn: Scores
    num_drawn: int
    num_draws: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StepExperiment:
    """A step that can be repeated: at fixed weights, and by the rules of the first step."""

    model: nn.Module
    engine: Engine
    mechanism: Mechanism
    records: InMemory  # the last is the one in question
    prepare: Prepare
    physical_batch: int
    key: RunKey

    @property
    def event(self) -> Event:
        """What one step is charged as."""
        factor = self.mechanism.noise.factor(self._noise)
        return self.mechanism.event(self.mechanism.noise_multiplier(0, factor))

    @cached_property
    def distance(self) -> float:
        """How far the record moves a sum that it is in, in units of the noise."""
        released = self._release(self._alone, self.key.at(0, WITHOUT))
        distance = math.sqrt(_along(self._alone.values, self._alone.values, released))
        if not distance > 0:
            given = "one that changes nothing"
            raise InvalidValue("record", allowed="one with a gradient other than zero", given=given)
        return distance

    def repeat(self, repetitions: int) -> Observations:
        """So many repetitions, and more draws where the record was in few of them."""
        seen: list[tuple[float, float]] = []
        drawn: list[int] = []
        num_draws = 0
        while num_draws < repetitions or (len(drawn) < repetitions // 4 and num_draws < _MOST_DRAWS):
            indices = self.mechanism.draw(len(self.records), self.key.at(num_draws, WITH))
            is_drawn = bool((indices == len(self.records) - 1).any())
            if is_drawn or num_draws < repetitions:
                drawn += [len(seen)] if is_drawn else []
                seen.append(self._seen(indices, num_draws, is_drawn=is_drawn))
            num_draws += 1
        members, others = np.array(seen).T
        # Of a record that was never drawn nothing was seen, and minus infinity certifies nothing.
        of_drawn = Scores(members[drawn] if drawn else np.array([-np.inf]), others)
        each = Scores(members[:repetitions], others[:repetitions])
        return Observations(each=each, drawn=of_drawn, num_drawn=len(drawn), num_draws=num_draws)

    def _seen(self, indices: Tensor, step: int, *, is_drawn: bool) -> tuple[float, float]:
        """What the step releases with the record, and without it, less the sum of the others."""
        randomness = self.key.at(step, WITH)
        private = self._sum(indices, randomness)
        others = self._sum(indices, randomness, of_others=True) if is_drawn else private

        def along(released: ReleasedSum) -> float:
            rest = {name: value.double() - others.values[name].double() for name, value in released.values.items()}
            return _along(self._alone.values, rest, released) / self.distance

        with_record = self._release(private, randomness)
        return along(with_record), along(self._release(others, self.key.at(step, WITHOUT)))

    @cached_property
    def _alone(self) -> PrivateSum:
        """What the clip leaves of the record."""
        return self._sum(torch.tensor([len(self.records) - 1]), self.key.at(0, WITHOUT))

    @cached_property
    def _rule(self) -> ClipRule:
        clipping = self.mechanism.clipping
        return clipping.rule(clipping.start(self._parameters), 0)

    @cached_property
    def _noise(self) -> ComponentState:
        return self.mechanism.noise.start(self._parameters)

    @property
    def _parameters(self) -> Tensors:
        return {name: value.detach() for name, value in batches.trainable(self.model).items()}

    def _sum(self, indices: Tensor, randomness: StepRandomness, *, of_others: bool = False) -> PrivateSum:
        """The clipped sum over a draw, in physical batches, as a run forms it; perhaps without the record."""
        parts = []
        with random_numbers_apart(_device(self.model)):
            seed_layers(randomness, _device(self.model))
            for part in physical(indices, self.physical_batch):
                counted = part.mask_P & (part.indices_P != len(self.records) - 1) if of_others else part.mask_P
                inputs, targets = self.records.batch(part.indices_P)
                parts.append(self.engine.private_sum(self._rule, self.prepare(inputs), targets, counted))
        return sum_parts(parts)

    def _release(self, private: PrivateSum, randomness: StepRandomness) -> ReleasedSum:
        return self.mechanism.release(private, self._noise, planned_step=0, randomness=randomness)


def _engine(model: nn.Module, loss_fn: LossFn, method: Method, private: InMemory, prepare: Prepare) -> Engine:
    """The engine of a run, tried on a record of zeros."""
    inputs, targets = torch.zeros_like(private.inputs[:1]), torch.zeros_like(private.targets[:1])
    padding = (prepare(inputs), targets, torch.zeros(1, dtype=torch.bool))
    engine, _ = engines.engine_for(
        model,
        loss_fn,
        clipping=method.clipping,
        padding=padding,
        views=1,
        precision="as_model",
        compiled=False,
    )
    return engine


def _with_record_last(private: InMemory, record: Record | None) -> InMemory:
    if not len(private):
        raise InvalidValue("private", allowed="one record or more", given="none")
    if isinstance(record, tuple):
        alone = InMemory(*(torch.as_tensor(part).unsqueeze(0) for part in record))
        if alone.inputs.shape[1:] != private.inputs.shape[1:] or alone.targets.shape[1:] != private.targets.shape[1:]:
            allowed = f"an input of shape {tuple(private.inputs.shape[1:])} and its target"
            raise InvalidValue("record", allowed=allowed, given=[tuple(torch.as_tensor(part).shape) for part in record])
        return joined(private, InMemory(alone.inputs.to(private.inputs), alone.targets))
    if not validate.count(minimum=0, record=record) < len(private):
        raise InvalidValue("record", allowed="the index of one of the records", given=record)
    indices = torch.arange(len(private))
    return private.at(torch.cat([indices[indices != record], indices[indices == record]]))


def _along(one: Tensors, other: Tensors, released: ReleasedSum) -> float:
    """The inner product, weighted by the inverse variance of the noise."""
    products = {name: one[name].double() * other[name].double() for name in one}
    return float(sum((product / released.std_of(name) ** 2).sum() for name, product in products.items()))


def _device(model: nn.Module) -> torch.device:
    return next(iter(batches.trainable(model).values())).device
