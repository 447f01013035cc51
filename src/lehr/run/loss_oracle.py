"""Answers the queries of acceptance rules: on public records exactly, on private records with charged noise.

The event of a query and its noise come from the same numbers: the sensitivity and the noise multiplier. There is one
query per candidate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from lehr.acceptance.proposal import Energy, PrivateChoice, PrivateEnergy, PublicEnergy
from lehr.accounting.events import NOTHING, Adjacency, Event, Gaussian, PureDP, is_part
from lehr.errors import InvalidValue
from lehr.gradients.batches import LossFn, call, each, one_each
from lehr.interfaces import Inputs, PrivateSum, Records, Tensors
from lehr.planning.plan import Plan
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import StepRandomness
from lehr.privacy.sampling import Sampling, counted_under
from lehr.run.evaluation import Prepare, PublicScore, leaving_no_trace

RECORDS_AT_ONCE = 1000


def event_of(energy: Energy | None, *, records: int, adjacency: Adjacency) -> Event:
    """The event of the query about one candidate."""
    if isinstance(energy, PrivateEnergy):
        sampling = _sampling(energy, records, adjacency)
        return sampling.event(Gaussian(sampling.sensitivity_factor * energy.noise_multiplier))
    if isinstance(energy, PrivateChoice):
        share = _sampling(energy, records, adjacency).expected_batch_size / records
        return PureDP(_amplified(energy.epsilon, share))
    given: object = energy
    if not isinstance(given, PublicEnergy | None):
        allowed = "a PublicEnergy, PrivateEnergy or PrivateChoice, whose cost is known"
        raise InvalidValue("energy", allowed=allowed, given=type(given).__name__)
    return NOTHING


def _amplified(epsilon: float, share: float) -> float:
    """log(1 + q (e^ε - 1)), written so that a large ε does not overflow."""
    if epsilon < 1:
        return math.log1p(share * math.expm1(epsilon))
    return epsilon + math.log(share + (1 - share) * math.exp(-epsilon))


def _sampling(energy: PrivateEnergy | PrivateChoice, records: int, adjacency: Adjacency) -> Sampling:
    if adjacency is Adjacency.ZERO_OUT:
        allowed = "another one for a query on private records"
        raise InvalidValue("adjacency", allowed=allowed, given=adjacency.value)
    size = records if energy.expected_batch_size is None else energy.expected_batch_size
    if not size <= records:
        raise InvalidValue("batch size of a query", allowed=f"at most the {records} records", given=size)
    return counted_under(adjacency, expected_batch_size=size, records=records)


@dataclass(frozen=True, kw_only=True, eq=False)
class LossOracle:
    """Computes losses for an acceptance rule, with the noise that was charged."""

    energy: Energy
    plan: Plan
    model: nn.Module
    loss_fn: LossFn
    prepare: Prepare
    private: Records
    public: PublicScore | None

    def __post_init__(self) -> None:
        asked = event_of(self.energy, records=self.plan.records, adjacency=self.plan.adjacency)
        if not is_part(asked, of=self.plan.asked):
            raise InvalidValue("energy", allowed=f"one with the planned event {self.plan.asked}", given=str(asked))

    def public_loss(self) -> float:
        """The mean loss of the current model on public records."""
        assert self.public is not None  # checked before the run
        return self.public.score(self.model).loss

    def private_change(self, before: Tensors, after: Tensors, randomness: StepRandomness) -> float:
        """The change of the loss on a draw of private records between two sets of weights, clipped and with noise."""
        energy = self.energy
        assert isinstance(energy, PrivateEnergy)
        sampling = _sampling(energy, self.plan.records, self.plan.adjacency)
        indices = sampling.draw(len(self.private), randomness, purpose="energy sampling")
        changes_B = self._losses(after, indices) - self._losses(before, indices)
        worst = changes_B.nan_to_num(nan=math.inf, posinf=math.inf)
        if energy.clipped == "records":
            private, sensitivity = worst.clamp(-energy.loss_clip, energy.loss_clip).sum(), energy.loss_clip
            factor, divisor = sampling.sensitivity_factor, sampling.expected_batch_size
        else:
            # The mean of +inf and -inf is NaN, which would pass the clamp and be released without noise.
            mean = worst.mean().nan_to_num(nan=math.inf) if len(indices) else worst.new_zeros(())
            private, sensitivity = mean.clamp(-energy.loss_clip, energy.loss_clip), 2 * energy.loss_clip
            factor, divisor = 1.0, 1.0  # bounded by its range under either adjacency
        released = IsotropicNoise().release(
            PrivateSum(values={"change": private.cpu()}, sensitivity=sensitivity),
            noise_multiplier=factor * energy.noise_multiplier,
            randomness=randomness,
            purpose="energy",
        )
        return float(released.values["change"]) / divisor

    def private_choice(self, candidates: Iterable[Tensors], randomness: StepRandomness) -> int:
        """The index of the candidate with the least noisy sum of clipped losses on private records."""
        energy = self.energy
        assert isinstance(energy, PrivateChoice)
        sampling = _sampling(energy, self.plan.records, self.plan.adjacency)
        indices = sampling.draw(len(self.private), randomness, purpose="energy sampling")
        sums = [
            self._losses(weights, indices).nan_to_num(nan=math.inf).clamp(0, energy.loss_clip).sum()
            for weights in candidates
        ]
        # An added record moves every sum up. A replaced one can move some up and some down: twice the sensitivity.
        scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon
        noise = scale * _laplace(randomness.uniforms("choice", len(sums)))
        return int(torch.argmin(torch.stack([value.cpu() for value in sums]) + noise))

    def _losses(self, weights: Tensors, indices: Tensor) -> Tensor:
        """The loss of each record, computed independently of the others."""
        losses = [torch.zeros(0, dtype=torch.float64)]
        for part in torch.split(indices, RECORDS_AT_ONCE) if len(indices) else ():
            inputs, targets = self.private.batch(part)
            with torch.no_grad():
                losses.append(losses_of_each(self.model, weights, self.loss_fn, self.prepare(inputs), targets))
        return torch.cat([part.cpu() for part in losses])


def losses_of_each(model: nn.Module, weights: Tensors, loss_fn: LossFn, inputs: Inputs, targets: Tensor) -> Tensor:
    """The loss of each record of a batch at the given weights, computed independently, in float64."""

    def loss(one: Inputs, target: Tensor) -> Tensor:
        alone: Inputs = each(lambda leaf: leaf.unsqueeze(0), one)
        return one_each(loss_fn(call(leaving_no_trace(model, weights), alone), target.unsqueeze(0)), num_records=1)[0]

    try:
        found: Tensor = vmap(loss, randomness="different")(inputs, targets)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # a layer that vmap does not support, such as a recurrent one
        found = torch.stack([loss(_record(inputs, index), targets[index]) for index in range(len(targets))])
    return found.double()


def _record(inputs: Inputs, index: int) -> Inputs:
    one: Inputs = each(lambda leaf: leaf[index], inputs)
    return one


def _laplace(uniforms: Tensor) -> Tensor:
    """Laplace noise of scale one, from uniform numbers."""
    centred = uniforms - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())


def best_public(losses: Sequence[float]) -> int:
    """The index of the least finite loss; 0 if none is finite."""
    return min(range(len(losses)), key=lambda index: losses[index] if math.isfinite(losses[index]) else math.inf)
