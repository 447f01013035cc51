"""Trajectories of SGD, DPSGD and SA-DPSGD on linear regression: SA-DPSGD's Figure 1 (Fu et al. 2022).

The paper draws them and prints no setting, so all settings here are ours: y = 2 x - 1 with noise, two weights, a start
away from the optimum, and a noise that was chosen large enough for its effect near the optimum to be seen. The energy
of SA-DPSGD is the loss of other records, which count as public. Every candidate is charged, taken or not; the table
therefore has SA-DPSGD at DPSGD's number of candidates, which costs the same, and at DPSGD's number of accepted ones,
which costs more and is how the paper compares.

The loop is written out, so that the parts can be seen: sampling, gradients, clip, noise, update, acceptance. In a real
run ``lehr.fit`` holds them together, charges every step before it is taken, and has a key that nobody knows; here the
keys are fixed, so that the picture is always the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lehr.acceptance.annealed import Annealed
from lehr.clipping.flat import FlatClip
from lehr.gradients.materialised import MaterialisedEngine
from lehr.noise.isotropic import IsotropicNoise
from lehr.planning.plan import Plan
from lehr.rng import RunKey, StepRandomness
from lehr.sampling.poisson import PoissonSampling
from lehr.update.torch_optim import Updater, sgd

NUM_RECORDS, NUM_PUBLIC, BATCH, CANDIDATES = 500, 200, 25, 60
CLIP_NORM, NOISE_MULTIPLIER, RATE = 1.0, 5.0, 0.5
ACCEPTANCE = Annealed(initial_inverse_temperature=10.0, rejection_threshold=10)
TRUE, START = (2.0, -1.0), (-1.0, 1.5)

NOT_PRIVATE = "SGD, not private"

Path2D: TypeAlias = list[tuple[float, float]]  # slope and intercept, from the start on


@dataclass(frozen=True)
class Data:
    """Inputs and targets of some records."""

    inputs: Tensor
    targets: Tensor


def records(count: int, seed: int) -> Data:
    """y = 2 x - 1, and noise of one half."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, generator=generator, dtype=torch.float64)
    targets = TRUE[0] * inputs + TRUE[1] + 0.5 * torch.randn(count, 1, generator=generator, dtype=torch.float64)
    return Data(inputs, targets)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """One for each record: half the squared error."""
    return (outputs - targets).square().flatten(1).sum(1) / 2


def started() -> nn.Linear:
    """The model at the start of every trajectory."""
    model = nn.Linear(1, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(START[0])
        model.bias.fill_(START[1])
    return model


def weights_of(model: nn.Linear) -> tuple[float, float]:
    """The slope and the intercept."""
    return model.weight.item(), model.bias.item()


def energy_of(model: nn.Linear, public: Data | None) -> float:
    """The mean loss of the public records, where there are any."""
    with torch.no_grad():
        return 0.0 if public is None else losses(model(public.inputs), public.targets).mean().item()


@dataclass(frozen=True)
class Candidate:
    """What an acceptance may know about a candidate: how the public loss changes, and a uniform number."""

    energy_change: float
    randomness: StepRandomness

    def uniform(self) -> float:
        return self.randomness.uniforms("acceptance", 1).item()

    def change(self, step_scale: float = 1.0) -> float:
        return self.energy_change

    def best(self, step_scales: Sequence[float]) -> int:
        return 0


def sgd_path(private: Data) -> Path2D:
    """Gradient descent on all records, with neither clip nor noise."""
    model = started()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    path = [weights_of(model)]
    for _ in range(CANDIDATES):
        optimizer.zero_grad()
        losses(model(private.inputs), private.targets).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        path.append(weights_of(model))
    return path


def private_path(private: Data, public: Data | None, key: RunKey, *, most_accepted: int | None = None) -> Path2D:
    """DPSGD, or SA-DPSGD where there are public records: the weights after every candidate.

    It ends after ``CANDIDATES``, or with ``most_accepted`` once so many were accepted.
    """
    model = started()
    engine, updater = MaterialisedEngine(model, losses), Updater(sgd(RATE), model)
    sampling = PoissonSampling(expected_batch_size=BATCH, records=NUM_RECORDS)
    clip, noise, state = FlatClip(CLIP_NORM), IsotropicNoise(), ACCEPTANCE.start()
    path, num_accepted = [weights_of(model)], 0
    while len(path) <= CANDIDATES if most_accepted is None else num_accepted < most_accepted:
        # The records of this candidate, the sum of their clipped gradients, and that sum with its noise.
        step = len(path) - 1
        randomness = key.at(step=step, attempt=0)
        places = sampling.draw(NUM_RECORDS, randomness)
        clipped_sum = clip(engine.gradients(private.inputs[places], private.targets[places]))
        released = noise.release(clipped_sum, noise_multiplier=NOISE_MULTIPLIER, randomness=randomness)

        # From here on nothing is private: the candidate, and whether it is taken.
        before, energy = updater.snapshot(), energy_of(model, public)
        updater.step(released, divisor=BATCH, step=step)
        is_accepted = True
        if public is not None:
            candidate = Candidate(energy_of(model, public) - energy, randomness)
            decision = ACCEPTANCE.decide(state, candidate, released)
            is_accepted, state = decision.is_accepted, decision.state
        if not is_accepted:
            updater.restore(before)
        num_accepted += is_accepted
        path.append(weights_of(model))
    return path


def excess(path: Path2D, private: Data) -> float:
    """How far the mean loss of all records is above the least there is, at the end of a path."""
    design = torch.cat([private.inputs, torch.ones_like(private.inputs)], dim=1)
    best = torch.linalg.lstsq(design, private.targets).solution.flatten()
    off = torch.tensor(path[-1], dtype=torch.float64) - best
    return float((design @ off).square().mean() / 2)


@cache
def epsilon_of(num_candidates: int) -> float:
    """The proven ε of so many candidates at a δ of 1e-5."""
    plan = Plan(
        noise_multiplier=NOISE_MULTIPLIER,
        expected_batch_size=BATCH,
        records=NUM_RECORDS,
        steps=num_candidates,
        delta=1e-5,
    )
    return plan.bound().epsilon


def data() -> tuple[Data, Data]:
    """The private and the public records."""
    return records(NUM_RECORDS, seed=0), records(NUM_PUBLIC, seed=1)


def drawn_paths() -> dict[str, Path2D]:
    """One trajectory of each method, for the picture."""
    (private, public), key = data(), RunKey(bytes(32))
    return {
        "DPSGD": private_path(private, None, key),
        "SA-DPSGD": private_path(private, public, key),
        "SGD": sgd_path(private),
    }


@dataclass(frozen=True, slots=True)
class Ending:
    """How far a path's end is above the least loss, and how many candidates were drawn for it."""

    excess: float
    candidates: int


def ends(num_seeds: int) -> dict[str, list[Ending]]:
    """Where the methods end, over so many seeds."""
    private, public = data()
    keys = [RunKey(seed.to_bytes(32, "big")) for seed in range(num_seeds)]
    runs = {
        NOT_PRIVATE: [sgd_path(private)],
        "DPSGD": [private_path(private, None, key) for key in keys],
        "SA-DPSGD, as many candidates": [private_path(private, public, key) for key in keys],
        "SA-DPSGD, as many accepted": [private_path(private, public, key, most_accepted=CANDIDATES) for key in keys],
    }
    return {name: [Ending(excess(path, private), len(path) - 1) for path in paths] for name, paths in runs.items()}


def trajectories(*, device: str, data_dir: str | None, seeds: int) -> dict[str, Any]:
    """Both as JSON: what Figure 1 is drawn from. It is small, needs no data, and stays on the CPU."""
    del device, data_dir
    found = {name: [_told(end, name != NOT_PRIVATE) for end in several] for name, several in ends(seeds).items()}
    return {"paths": drawn_paths(), "ends": found, "true": TRUE}


def _told(end: Ending, is_private: bool) -> dict[str, float]:
    said: dict[str, float] = {"excess": end.excess, "candidates": end.candidates}
    return {**said, "epsilon": epsilon_of(end.candidates)} if is_private else said
