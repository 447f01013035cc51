"""Privacy loss distributions: the tight accountant for Gaussian steps, sampled or not, under add-or-remove-one.

It also counts mechanisms that are private without a δ, each as randomised response, the worst of its kind.

dp-accounting composes losses on a fixed grid: 1e-4 wide by default, in plain floating point. That is exact enough for
usual settings; at others it runs out of memory, or its rounding exceeds δ and the answer lies above the Rényi bound.
Here the same distributions are composed on a grid that fits the setting, tilted so that tiny δ's keep their precision;
the tests compare the two. Unsampled Gaussian steps have a closed form, and dp-accounting computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from lehr.accounting import composition
from lehr.accounting.balls_in_bins import LARGEST_BINS, LARGEST_NOISE, SMALLEST_NOISE, BallsInBinsLoss
from lehr.accounting.closed_forms import GaussianStep, cut_probability, gaussian_epsilon, gaussian_steps
from lehr.accounting.events import (
    Adjacency,
    Atom,
    BallsInBins,
    Event,
    Gaussian,
    GroupPoissonSampled,
    PoissonSampled,
    PureDP,
    SampledWithoutReplacement,
    TruncatedPoissonSampled,
    composed,
    counted_by_cycles,
)
from lehr.accounting.levels import MOST_LEVELS, with_fewer_levels
from lehr.accounting.privacy_loss import (
    Direction,
    FixedSizeLoss,
    GroupLoss,
    MixedLoss,
    PrivacyLoss,
    RandomisedResponseLoss,
    SampledGaussianLoss,
)
from lehr.errors import AccountantFailed, UnsupportedEvent

PRECISE = 1e-5  # relative change of ε at which the grid is fine enough
ROUGH = 3e-4  # the same for a schedule whose levels are rounded, which changes ε by more than that
LARGEST_STEPS = 10**8  # beyond it the rounding of the transform is no longer far below δ
MOST_DIFFERENT_STEPS = 2 * MOST_LEVELS  # each has a grid of its own
SMALLEST_DELTA = 1e-200  # below it the masses that decide leave the range of a double
LARGEST_DELTA = 0.5  # a larger one counts as this, which can only raise ε
SMALLEST_PROBABILITY = 1e-12  # of a transform, whose rounding would hide a smaller one
LARGEST_NOISE_PER_PROBABILITY = 1e11  # the same
MOST_PAIRED_STEPS = 8  # different ones that are composed pair by pair
PRECISE_BY_PAIRS = 0.1  # ε that they give to within 0.3 %; for a larger one a transform is more precise
LARGEST_GROUP = 1000  # of records; larger ones take long
TOO_RARE = 1e-9  # a sampling probability at which a transform is slow, and its rounding exceeds what decides
RARELY = 0.1  # expected uses of a record in all steps up to which they are composed pair by pair
LARGEST_LOSS = 500.0  # of one step; beyond it e^loss leaves the range of a double


@dataclass(frozen=True, slots=True)
class PldAccountant:
    """ε by composing privacy losses; an upper bound, refined until a finer grid changes it by ``tolerance``·ε."""

    name: str = "pld"
    is_estimate: bool = False
    theorem: str = (
        "dominating pairs of the Poisson-sampled Gaussian (Zhu, Dong & Wang 2022), discretised from above "
        "(Doroshenko et al. 2022) and composed by Fourier transform (Koskela, Jälkö & Honkela 2020)"
    )
    proof: str = "accounting/pld.proof.md"
    tolerance: float = PRECISE

    def epsilon(self, event: Event, *, delta: float, adjacency: Adjacency) -> float:
        """The larger ε of the two directions, adding a record and removing it."""
        return self.repeated(event, delta=delta, adjacency=adjacency, fewest=1, most=1)(1)

    def repeated(
        self, event: Event, *, delta: float, adjacency: Adjacency, fewest: int, most: int
    ) -> Callable[[int], float]:
        """ε of the event repeated so many times, from ``fewest`` to ``most``; cheap to ask for many counts."""
        counts = _without_groups_of_one(counted_by_cycles(event))
        pure = {atom.epsilon: count for atom, count in counts.items() if isinstance(atom, PureDP) and atom.epsilon > 0}
        cut = _steps_of_limited_size(counts, adjacency, self.name)
        mixtures: dict[Epoch | GroupStep, int] = {
            **_epochs(counts, adjacency, self.name),
            **_group_steps(counts, adjacency, self.name),
        }
        others: dict[Atom, int] = {
            atom: count
            for atom, count in counts.items()
            if not isinstance(atom, PureDP | TruncatedPoissonSampled | BallsInBins | GroupPoissonSampled)
            and not (adjacency is Adjacency.ZERO_OUT and isinstance(atom, SampledWithoutReplacement))
        }
        steps = gaussian_steps(composed(others), adjacency=adjacency, accountant=self.name)
        delta = min(delta, LARGEST_DELTA)
        noise = [step.noise_multiplier for step in (*steps, *(each.step for each in cut))]
        if 0 in (*noise, *(each.noise_multiplier for each in mixtures)):
            return lambda repeats: math.inf
        if not pure and not cut and not mixtures and all(step.sampling_probability == 1 for step in steps):
            squared_mu = _squared_mu(steps)
            return lambda repeats: gaussian_epsilon(repeats * squared_mu, delta=delta)
        variation = _total_variation(pure, steps) + _total_variation_of_cut(cut) + _total_variation_of(mixtures)
        if most * variation <= delta:
            return lambda repeats: 0.0
        fewer = with_fewer_levels(others)
        steps = _with_one_unsampled(gaussian_steps(composed(fewer), adjacency=adjacency, accountant=self.name))
        self._refuse_out_of_reach(pure, steps, cut, mixtures, delta, most)
        by_pairs = None
        if (
            not pure
            and not cut
            and not mixtures
            and most * sum(count * step.sampling_probability for step, count in steps.items()) <= RARELY
        ):
            few = composed(with_fewer_levels(others, most=MOST_PAIRED_STEPS))
            by_pairs = _by_pairs(gaussian_steps(few, adjacency=adjacency, accountant=self.name), delta, most)
            if by_pairs(most) < PRECISE_BY_PAIRS or all(step.sampling_probability < TOO_RARE for step in steps):
                return by_pairs
        removing, adding = (
            [
                *_losses(pure, steps, direction, delta),
                *_losses_of_cut(cut, direction, delta),
                *((_mixture_loss(each, direction, delta), count) for each, count in mixtures.items()),
            ]
            for direction in Direction
        )
        if any(part.largest > LARGEST_LOSS for part, _ in removing if isinstance(part, GroupLoss)):
            return lambda repeats: math.inf  # a bound, though a poor one: ε is in the hundreds
        if max(part.largest for part, _ in (*removing, *adding)) > LARGEST_LOSS:
            raise AccountantFailed(accountant=self.name, reason=f"one step can lose more than {LARGEST_LOSS:g}")
        tolerance = self.tolerance if len(fewer) == len(others) else max(self.tolerance, ROUGH)
        compose = partial(composition.compose_by_transform, delta=delta, tolerance=tolerance, fewest=fewest, most=most)
        on_removing = compose(removing)
        is_pure = not (steps or cut or mixtures)
        on_adding = on_removing if is_pure else compose(adding, larger=on_removing)
        simple_sum = math.fsum(count * epsilon for epsilon, count in pure.items()) if is_pure else math.inf

        def epsilon(repeats: int) -> float:
            """The larger ε of both directions; ε never falls with repeats, so that of the most often settles it."""
            removed = on_removing(repeats)
            larger = removed if on_adding(most) <= removed else max(removed, on_adding(repeats))
            smaller = math.inf if by_pairs is None else by_pairs(repeats)
            return min(larger, smaller, repeats * simple_sum)

        return epsilon

    def _refuse_out_of_reach(
        self,
        pure: Mapping[float, int],
        steps: Mapping[GaussianStep, int],
        cut: Mapping[TruncatedStep, int],
        mixtures: Mapping[Epoch | GroupStep, int],
        delta: float,
        most: int,
    ) -> None:
        reason = None
        epochs = [each for each in mixtures if isinstance(each, Epoch)]
        if len(pure) + len(steps) + len(cut) + len(mixtures) > MOST_DIFFERENT_STEPS:
            reason = f"more than {MOST_DIFFERENT_STEPS} different steps"
        elif delta < SMALLEST_DELTA:
            reason = f"delta is below {SMALLEST_DELTA:g}"
        elif any(epoch.bins > LARGEST_BINS or epoch.noise_multiplier < SMALLEST_NOISE for epoch in epochs):
            reason = f"balls in more than {LARGEST_BINS} bins, or with a noise multiplier below {SMALLEST_NOISE:g}"
        elif any(isinstance(each, GroupStep) and each.group_size > LARGEST_GROUP for each in mixtures):
            reason = f"groups of more than {LARGEST_GROUP} records"
        elif most * sum(sum(each.values()) for each in (pure, steps, cut, mixtures)) > LARGEST_STEPS:
            reason = f"there are more than {LARGEST_STEPS} steps"
        if reason:
            raise AccountantFailed(accountant=self.name, reason=reason)


PLD = PldAccountant()


def _by_pairs(steps: Mapping[GaussianStep, int], delta: float, most: int) -> Callable[[int], float]:
    """The larger ε of both directions, pair by pair, with less noise where its rounding asks for that."""
    quieter = [
        (step._replace(noise_multiplier=min(step.noise_multiplier, composition.LARGEST_PAIRED_NOISE)), count)
        for step, count in steps.items()
    ]
    removing, adding = (
        composition.compose_by_pairs(
            [(_loss(step, direction, delta), count) for step, count in quieter], delta=delta, most=most
        )
        for direction in Direction
    )
    return lambda repeats: max(removing(repeats), adding(repeats))


class TruncatedStep(NamedTuple):
    """A step of truncated Poisson sampling, and the probability that the other records alone fill the batch.

    A batch of fixed size is one that they fill always.
    """

    step: GaussianStep
    is_cut: float
    is_zeroed: bool


def _steps_of_limited_size(
    counts: Mapping[Atom, int], adjacency: Adjacency, accountant: str
) -> dict[TruncatedStep, int]:
    """Each distinct step of truncated Poisson sampling, or of fixed size, and how often it happened."""
    is_zeroed = adjacency is Adjacency.ZERO_OUT
    found: dict[TruncatedStep, int] = {}
    for atom, count in counts.items():
        match atom:
            case TruncatedPoissonSampled():
                probability, is_cut = atom.sampling_probability, cut_probability(atom)
            case SampledWithoutReplacement() if is_zeroed:
                probability = atom.sample_size / atom.records
                is_cut = 1.0 if probability < 1 else 0.0
            case _:
                continue
        # Without the cut it is a step of Poisson sampling, which is refused under replace-one.
        plain = PoissonSampled(probability, atom.event)
        [step] = gaussian_steps(plain, adjacency=adjacency, accountant=accountant)
        key = TruncatedStep(step, is_cut, is_zeroed)
        found[key] = found.get(key, 0) + count
    return found


class Epoch(NamedTuple):
    """An epoch of balls-in-bins sampling."""

    bins: int
    noise_multiplier: float


def _epochs(counts: Mapping[Atom, int], adjacency: Adjacency, accountant: str) -> dict[Epoch | GroupStep, int]:
    """Each distinct epoch of balls-in-bins sampling, and how often it happened."""
    found: dict[Epoch | GroupStep, int] = {}
    for atom, count in counts.items():
        if not isinstance(atom, BallsInBins):
            continue
        if adjacency is Adjacency.REPLACE_ONE:
            reason = "balls-in-bins sampling is not counted under replace-one"
            raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)
        epoch = Epoch(atom.bins, min(atom.event.noise_multiplier, LARGEST_NOISE))  # less noise
        found[epoch] = found.get(epoch, 0) + count
    return found


class GroupStep(NamedTuple):
    """A Poisson-sampled step where neighbours differ in at most ``group_size`` records."""

    sampling_probability: float
    group_size: int
    noise_multiplier: float


def _without_groups_of_one(counts: Mapping[Atom, int]) -> dict[Atom, int]:
    """The same counts; groups of one, and groups that are drawn whole, as the steps that they are."""
    found: dict[Atom, int] = {}
    for atom, count in counts.items():
        if isinstance(atom, GroupPoissonSampled) and 1 in (atom.sampling_probability, atom.group_size):
            noise = Gaussian(atom.event.noise_multiplier / atom.group_size)
            atom = PoissonSampled(atom.sampling_probability, noise)
        found[atom] = found.get(atom, 0) + count
    return found


def _group_steps(counts: Mapping[Atom, int], adjacency: Adjacency, accountant: str) -> dict[Epoch | GroupStep, int]:
    """Each distinct step with groups, and how often it happened. Out of range, one that loses no less."""
    found: dict[Epoch | GroupStep, int] = {}
    for atom, count in counts.items():
        if not isinstance(atom, GroupPoissonSampled):
            continue
        if adjacency is not Adjacency.ADD_OR_REMOVE_ONE:
            reason = "groups of records are counted under add-or-remove-one only"
            raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)
        plain = PoissonSampled(max(atom.sampling_probability, TOO_RARE), atom.event)  # more sampling
        [step] = gaussian_steps(plain, adjacency=adjacency, accountant=accountant)
        sigma = min(step.noise_multiplier, step.sampling_probability * LARGEST_NOISE_PER_PROBABILITY)  # less noise
        key = GroupStep(step.sampling_probability, atom.group_size, sigma)
        found[key] = found.get(key, 0) + count
    return found


def _total_variation_of(mixtures: Mapping[Epoch | GroupStep, int]) -> float:
    """At most that of one Gaussian release an epoch: whichever bin the record has, only that one differs.

    Of a step with groups, at most that of one that moves as far as the whole group, wherever one of it is drawn.
    """
    total = 0.0
    for each, count in mixtures.items():
        size = each.group_size if isinstance(each, GroupStep) else 1
        any_drawn = -math.expm1(size * math.log1p(-each.sampling_probability)) if isinstance(each, GroupStep) else 1.0
        total += count * _total_variation({}, {GaussianStep(any_drawn, each.noise_multiplier / size): 1})
    return total


@lru_cache(maxsize=16)
def _mixture_loss(each: Epoch | GroupStep, direction: Direction, delta: float) -> PrivacyLoss:
    if isinstance(each, GroupStep):
        return GroupLoss(**each._asdict(), direction=direction, delta=delta)
    return BallsInBinsLoss(**each._asdict(), direction=direction, delta=delta)


def _halved(step: GaussianStep) -> GaussianStep:
    return step._replace(noise_multiplier=step.noise_multiplier / 2)


def _total_variation_of_cut(cut: Mapping[TruncatedStep, int]) -> float:
    return sum(
        count
        * (
            (1 - each.is_cut) * _total_variation({}, {each.step: 1})
            + each.is_cut * _total_variation({}, {_halved(each.step): 1})
        )
        for each, count in cut.items()
    )


def _losses_of_cut(
    cut: Mapping[TruncatedStep, int], direction: Direction, delta: float
) -> list[tuple[PrivacyLoss, int]]:
    """The losses of truncated steps: usual, and where the others fill the batch that of another in a record's place.

    If the record is added or removed, another has its place on one side: twice the sensitivity. If it is zeroed out,
    it keeps its place on both sides.
    """
    losses: list[tuple[PrivacyLoss, int]] = []
    for each, count in cut.items():
        [(usual, _)] = _losses({}, {each.step: 1}, direction, delta)
        if not each.is_cut:
            losses.append((usual, count))
            continue
        other: PrivacyLoss
        if each.is_zeroed:
            other = _fixed_size_loss(each.step, direction, delta)
        else:
            [(other, _)] = _losses({}, {_halved(each.step): 1}, direction, delta)
        losses.append((MixedLoss(usual, other, each.is_cut), count))
    return losses


def _squared_mu(steps: Mapping[GaussianStep, int]) -> float:
    return math.fsum(count / step.noise_multiplier**2 for step, count in steps.items())


def _with_one_unsampled(steps: Mapping[GaussianStep, int]) -> dict[GaussianStep, int]:
    """The same with all unsampled steps made equal: what they lose together is decided by the sum of 1/σ² alone."""
    unsampled = {step: count for step, count in steps.items() if step.sampling_probability == 1}
    if len(unsampled) <= 1:
        return dict(steps)
    count = sum(unsampled.values())
    sigma = math.sqrt(count / _squared_mu(unsampled)) * (1 - 1e-14)  # its rounding never adds noise
    return {**{step: count for step, count in steps.items() if step not in unsampled}, GaussianStep(1.0, sigma): count}


def _total_variation(pure: Mapping[float, int], steps: Mapping[GaussianStep, int]) -> float:
    """At most this, for one repeat; where it is within δ, (0, δ) holds."""
    of_steps = (
        count * step.sampling_probability * math.erf(1 / (math.sqrt(8) * step.noise_multiplier))
        for step, count in steps.items()
    )
    return sum(of_steps) + sum(count * math.tanh(epsilon / 2) for epsilon, count in pure.items())


def _losses(
    pure: Mapping[float, int], steps: Mapping[GaussianStep, int], direction: Direction, delta: float
) -> list[tuple[PrivacyLoss, int]]:
    """The losses for a transform. A step out of its range is replaced by one that loses no less."""
    losses: list[tuple[PrivacyLoss, int]] = [
        (RandomisedResponseLoss(epsilon), count) for epsilon, count in pure.items()
    ]
    for step, count in steps.items():
        probability = max(step.sampling_probability, SMALLEST_PROBABILITY)  # more sampling
        sigma = min(step.noise_multiplier, probability * LARGEST_NOISE_PER_PROBABILITY)  # less noise
        losses.append((_loss(GaussianStep(probability, sigma), direction, delta), count))
    return losses


@lru_cache(maxsize=16)
def _fixed_size_loss(step: GaussianStep, direction: Direction, delta: float) -> FixedSizeLoss:
    """A step out of its range is replaced by one that loses no less."""
    probability = max(step.sampling_probability, SMALLEST_PROBABILITY)  # more sampling
    sigma = min(step.noise_multiplier, probability * LARGEST_NOISE_PER_PROBABILITY)  # less noise
    return FixedSizeLoss(sampling_probability=probability, noise_multiplier=sigma, direction=direction, delta=delta)


@lru_cache(maxsize=16)
def _loss(step: GaussianStep, direction: Direction, delta: float) -> SampledGaussianLoss:
    return SampledGaussianLoss(**step._asdict(), direction=direction, delta=delta)
