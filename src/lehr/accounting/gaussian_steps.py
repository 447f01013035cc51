"""Events made of Gaussian steps only, sampled or not: what ``pld``, ``gdp`` and ``tan`` can count."""

from __future__ import annotations

from typing import NamedTuple

from lehr.errors import UnsupportedEvent
from lehr.events import Adjacency, Atom, Event, Gaussian, NonPrivate, PoissonSampled, counted

SMALLEST_NOISE = 1e-3  # less counts as none
SMALLEST_PROBABILITY = 1e-20
LARGEST_NOISE = 1e11


class GaussianStep(NamedTuple):
    """One step; a sampling probability of one means that every record took part."""

    sampling_probability: float
    noise_multiplier: float


def gaussian_steps(event: Event, *, adjacency: Adjacency, accountant: str) -> dict[GaussianStep, int]:
    """Each distinct step and how often it happened; whatever is no Gaussian step is refused by name."""
    steps: dict[GaussianStep, int] = {}
    for atom, count in counted(event).items():
        step = _within_range(_gaussian_step(atom, adjacency, accountant))
        steps[step] = steps.get(step, 0) + count
    return steps


def _within_range(step: GaussianStep) -> GaussianStep:
    """The nearest step that arithmetic can take and that loses no less: more sampling, or less noise."""
    sigma = min(step.noise_multiplier, LARGEST_NOISE)
    return GaussianStep(max(step.sampling_probability, SMALLEST_PROBABILITY), sigma if sigma >= SMALLEST_NOISE else 0.0)


def _gaussian_step(atom: Atom, adjacency: Adjacency, accountant: str) -> GaussianStep:
    match atom:
        case Gaussian():
            return GaussianStep(1.0, atom.noise_multiplier)
        case NonPrivate():
            return GaussianStep(1.0, 0.0)
        case PoissonSampled() if adjacency is Adjacency.ADD_OR_REMOVE_ONE:
            return GaussianStep(atom.sampling_probability, atom.event.noise_multiplier)
        case PoissonSampled():
            reason = "Poisson sampling is counted under add-or-remove-one only"
        case _:
            reason = "it counts Gaussian noise only, on all records or on a Poisson sample of them"
    raise UnsupportedEvent(accountant=accountant, event=atom, reason=reason)
