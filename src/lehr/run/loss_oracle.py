"""What an acceptance asks about a candidate, answered: on public records as it is, on private ones with charged noise.

The event of a question and its answer are made from the same numbers: how far one record can move what is asked, and
how much noise there is over that. A question is asked once for every candidate.
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
    """What asking about one candidate does to the private records."""
    if isinstance(energy, PrivateEnergy):
        sampling = _sampling(energy, records, adjacency)
        return sampling.event(Gaussian(sampling.sensitivity_factor * energy.noise_multiplier))
    if isinstance(energy, PrivateChoice):
        share = _sampling(energy, records, adjacency).expected_batch_size / records
        return PureDP(_amplified(energy.epsilon, share))
    given: object = energy
    if not isinstance(given, PublicEnergy | None):
        allowed = "a PublicEnergy, PrivateEnergy or PrivateChoice: what another one costs is not known"
        raise InvalidValue("energy", allowed=allowed, given=type(given).__name__)
    return NOTHING


def _amplified(epsilon: float, share: float) -> float:
    """log(1 + q (e^ε - 1)), written so that a large ε does not overflow."""
    if epsilon < 1:
        return math.log1p(share * math.expm1(epsilon))
    return epsilon + math.log(share + (1 - share) * math.exp(-epsilon))


def _sampling(energy: PrivateEnergy | PrivateChoice, records: int, adjacency: Adjacency) -> Sampling:
    size = records if energy.expected_batch_size is None else energy.expected_batch_size
    if not size <= records:
        raise InvalidValue("batch size of a question", allowed=f"at most the {records} records", given=size)
    return counted_under(adjacency, expected_batch_size=size, records=records)


@dataclass(frozen=True, kw_only=True, eq=False)
class LossOracle:
    """Looks at records on behalf of an acceptance, and tells it no more than was charged."""

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
            raise InvalidValue("energy", allowed=f"one that costs {self.plan.asked}, as planned", given=str(asked))

    def public_loss(self) -> float:
        """The mean loss of the model as it is, on public records."""
        assert self.public is not None  # where an acceptance needs public records, nothing is set up without
        return self.public.score(self.model).loss

    def private_change(self, before: Tensors, after: Tensors, randomness: StepRandomness) -> float:
        """How the loss on a draw of private records changes between two sets of weights: clipped and with noise."""
        energy = self.energy
        assert isinstance(energy, PrivateEnergy)
        sampling = _sampling(energy, self.plan.records, self.plan.adjacency)
        places = sampling.draw(len(self.private), randomness, purpose="energy sampling")
        changes_B = self._losses(after, places) - self._losses(before, places)
        worst = changes_B.nan_to_num(nan=math.inf, posinf=math.inf)
        if energy.clipped == "records":
            private, sensitivity = worst.clamp(-energy.loss_clip, energy.loss_clip).sum(), energy.loss_clip
            factor, divisor = sampling.sensitivity_factor, sampling.expected_batch_size
        else:
            # Losses beyond all numbers, up and down, have a mean that is none: that would be told without noise.
            mean = worst.mean().nan_to_num(nan=math.inf) if len(places) else worst.new_zeros(())
            private, sensitivity = mean.clamp(-energy.loss_clip, energy.loss_clip), 2 * energy.loss_clip
            factor, divisor = 1.0, 1.0  # its range bounds it, whatever the neighbours
        released = IsotropicNoise().release(
            PrivateSum(values={"change": private.cpu()}, sensitivity=sensitivity),
            noise_multiplier=factor * energy.noise_multiplier,
            randomness=randomness,
            purpose="energy",
        )
        return float(released.values["change"]) / divisor

    def private_choice(self, candidates: Iterable[Tensors], randomness: StepRandomness) -> int:
        """The candidate whose clipped loss, summed over private records, is least once each sum has its noise."""
        energy = self.energy
        assert isinstance(energy, PrivateChoice)
        sampling = _sampling(energy, self.plan.records, self.plan.adjacency)
        places = sampling.draw(len(self.private), randomness, purpose="energy sampling")
        sums = [
            self._losses(weights, places).nan_to_num(nan=math.inf).clamp(0, energy.loss_clip).sum()
            for weights in candidates
        ]
        # A record adds to every sum, so that they move the same way; replaced by another, it can move some up.
        scale = sampling.sensitivity_factor * energy.loss_clip / energy.epsilon
        noise = scale * _laplace(randomness.uniforms("choice", len(sums)))
        return int(torch.argmin(torch.stack([value.cpu() for value in sums]) + noise))

    def _losses(self, weights: Tensors, places: Tensor) -> Tensor:
        """The loss of each record by itself: nothing that a record does can reach another's."""
        losses = [torch.zeros(0, dtype=torch.float64)]
        for part in torch.split(places, RECORDS_AT_ONCE) if len(places) else ():
            inputs, targets = self.private.batch(part)
            with torch.no_grad():
                losses.append(losses_of_each(self.model, weights, self.loss_fn, self.prepare(inputs), targets))
        return torch.cat([part.cpu() for part in losses])


def losses_of_each(model: nn.Module, weights: Tensors, loss_fn: LossFn, inputs: Inputs, targets: Tensor) -> Tensor:
    """The losses of a batch at the given weights, each computed as if its record were alone, in float64."""

    def loss(one: Inputs, target: Tensor) -> Tensor:
        alone: Inputs = each(lambda leaf: leaf.unsqueeze(0), one)
        return one_each(loss_fn(call(leaving_no_trace(model, weights), alone), target.unsqueeze(0)), num_records=1)[0]

    try:
        found: Tensor = vmap(loss, randomness="different")(inputs, targets)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # of a layer that torch cannot vectorise, such as a recurrent one
        found = torch.stack([loss(_record(inputs, place), targets[place]) for place in range(len(targets))])
    return found.double()


def _record(inputs: Inputs, place: int) -> Inputs:
    one: Inputs = each(lambda leaf: leaf[place], inputs)
    return one


def _laplace(uniforms: Tensor) -> Tensor:
    """Laplace noise of scale one, from uniform numbers."""
    centred = uniforms - 0.5
    return -centred.sign() * torch.log1p(-2 * centred.abs())


def best_public(losses: Sequence[float]) -> int:
    """The place of the least loss that is a number; the first where none is."""
    return min(range(len(losses)), key=lambda place: losses[place] if math.isfinite(losses[place]) else math.inf)
