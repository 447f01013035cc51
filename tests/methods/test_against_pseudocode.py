"""Every method, step for step, beside a plain transcription of its paper's pseudo-code on a tiny problem.

The library trains a network with twelve parameters through its own front door; the transcription (``pseudocode/``) is
given the same first weights and the same random numbers, and the weights after every candidate are compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lehr
from lehr.acceptance.proposal import PrivateEnergy
from lehr.methods.adadp import adadp, adal, adan
from lehr.methods.agd import agd
from lehr.methods.auto_s import auto_s
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import dpsgd
from lehr.methods.dpsur import dpsur
from lehr.methods.per_layer import dpsgd_per_layer
from lehr.methods.plain_sgd import plain_sgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Method
from lehr.run.shape import Callback, Progress
from lehr.training.public_plan import plan_for
from tests.methods.pseudocode import adadp as adadp_box
from tests.methods.pseudocode import agd as agd_box
from tests.methods.pseudocode import clips, energy
from tests.methods.pseudocode import dpopt as dpopt_box
from tests.methods.pseudocode import dpsur as dpsur_box
from tests.methods.pseudocode.annealing import Annealing
from tests.methods.pseudocode.dpsgd import dpsgd as dpsgd_box
from tests.methods.pseudocode.plain_sgd import plain_sgd as plain_sgd_box
from tests.methods.pseudocode.released_prior import ReleasedPrior
from tests.methods.pseudocode.sa_dpsgd import sa_dpsgd as sa_dpsgd_box
from tests.methods.pseudocode.sa_salvage import sa_salvage as sa_salvage_box
from tests.methods.pseudocode.sa_step_sizes import sa_step_sizes as sa_step_sizes_box
from tests.methods.pseudocode.tiny_network import LAYERS, NUM_PARAMETERS, TENSORS, TinyNetwork
from tests.methods.pseudocode.trace import Trace, Vector

KEY = RunKey(bytes(range(32)))
NUM_RECORDS, BATCH, STEPS, NOISE = 14, 6.0, 25, 0.7
ENERGY_BATCH = 5.0
DRAWN = np.random.default_rng(5)
PRIVATE = TinyNetwork(DRAWN.normal(size=(NUM_RECORDS, 2)), np.arange(NUM_RECORDS) % 2)
PUBLIC = TinyNetwork(DRAWN.normal(size=(9, 2)), np.arange(9) % 2)
START: Vector = DRAWN.normal(size=NUM_PARAMETERS)
ALL_PUBLIC = np.arange(9)


class Weights(Callback):
    """Notes the weights of a model after every candidate."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.seen: list[Vector] = []
        self.accepted: list[int] = []

    def stepped(self, progress: Progress) -> None:
        flat = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        self.seen.append(flat.numpy().copy())
        self.accepted.append(progress.accepted)


def network() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    nn.utils.vector_to_parameters(torch.from_numpy(START.copy()), model.parameters())
    return model


def records(given: TinyNetwork) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(given.inputs), torch.from_numpy(given.classes)


def trained(method: Method, folder: Path, monkeypatch: pytest.MonkeyPatch, **plan: Any) -> Weights:
    """The library's run. Its key is one that this test knows; that is all that is changed about it."""
    monkeypatch.setattr(RunKey, "fresh", lambda **_: KEY)
    model = network()
    weights = Weights(model)
    lehr.fit(
        model,
        records(PRIVATE),
        method=method,
        records=NUM_RECORDS,
        num_classes=2,
        public=records(PUBLIC),
        steps=STEPS,
        expected_batch_size=BATCH,
        compiled=False,
        physical_batch=4,
        directory=folder / "run",
        callbacks=[weights],
        quiet=True,
        **plan,
    )
    return weights


def randomness(steps: int = STEPS) -> list[StepRandomness]:
    return [KEY.at(step, 0) for step in range(steps)]


@dataclass(frozen=True)
class Numbers:
    """The random numbers of the run, as plain arrays."""

    draws: list[Any]
    normals: list[Vector]
    uniforms: list[float]
    energy_draws: list[Any]
    energy_normals: list[float]

    @classmethod
    def of_run(cls, num_steps: int = STEPS) -> Numbers:
        sampling = PoissonSampling(expected_batch_size=BATCH, records=NUM_RECORDS)
        of_energy = PoissonSampling(expected_batch_size=ENERGY_BATCH, records=NUM_RECORDS)
        one, all_parameters = torch.zeros((), dtype=torch.float64), torch.zeros(NUM_PARAMETERS, dtype=torch.float64)
        steps = randomness(num_steps)
        return cls(
            draws=[sampling.draw(NUM_RECORDS, step).numpy() for step in steps],
            normals=[step.normals("noise", {"all": all_parameters})["all"].numpy() for step in steps],
            uniforms=[step.uniforms("acceptance", 1).item() for step in steps],
            energy_draws=[of_energy.draw(NUM_RECORDS, step, purpose="energy sampling").numpy() for step in steps],
            energy_normals=[step.normals("energy", {"change": one})["change"].item() for step in steps],
        )


NUMBERS = Numbers.of_run()
GIVEN: dict[str, Any] = {"gradients": PRIVATE.gradients, "draws": NUMBERS.draws, "normals": NUMBERS.normals}
PRIVATELY: dict[str, Any] = {"noise_multiplier": NOISE, "delta": 1e-3}


def same(weights: Weights, trace: Trace) -> None:
    assert len(weights.seen) == len(trace.weights) == STEPS
    np.testing.assert_allclose(weights.seen, trace.weights, rtol=0, atol=1e-6)
    assert weights.accepted == np.cumsum(trace.accepted).tolist()


def is_mixed(trace: Trace) -> bool:
    """Whether both outcomes came up; otherwise nothing would be compared but DPSGD."""
    return 2 < sum(trace.accepted) < STEPS - 2


def has_both_phases(trace: Trace) -> bool:
    """Whether the noise was equal for all coordinates at first, and later was not."""
    spreads = [np.ptp(state["sigma"]) for state in trace.states]
    return bool(spreads[0] == 0 and sum(spread > 0 for spread in spreads) > STEPS / 2)


CLIPS = {
    "dpsgd": (dpsgd(clip_norm=0.4, learning_rate=0.3, momentum=0.9), clips.flat(0.4)),
    "per layer": (
        dpsgd_per_layer(clip_norm=0.4, learning_rate=0.3, momentum=0.9),
        clips.per_layer([0.4 / 2**0.5] * 2, LAYERS),
    ),
    "given to layers": (
        dpsgd_per_layer(clip_norm=0.5, shares={"0": 0.3, "2": 0.4}, learning_rate=0.3, momentum=0.9),
        clips.per_layer([0.3, 0.4], LAYERS),
    ),
    "auto-s": (auto_s(clip_norm=0.4, stability=0.01, learning_rate=0.3), clips.automatic(0.4, 0.01)),
    "auto-v": (auto_s(clip_norm=0.4, stability=0.0, learning_rate=0.3), clips.automatic(0.4, 0.0)),
}


@pytest.mark.parametrize("name", CLIPS)
def test_dpsgd_with_every_clip(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, clip = CLIPS[name]
    trace = dpsgd_box(
        START,
        **GIVEN,
        clip=clip,
        sensitivity=0.5 if name == "given to layers" else 0.4,
        noise_multiplier=NOISE,
        batch_size=BATCH,
        learning_rate=0.3,
        momentum=0.9,
    )
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def test_plain_sgd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = plain_sgd_box(
        START,
        gradients=PRIVATE.gradients,
        draws=NUMBERS.draws,
        learning_rate=0.2,
        momentum=0.9,
        batch_size=BATCH,
    )
    same(trained(plain_sgd(learning_rate=0.2), tmp_path, monkeypatch, noise_multiplier=0.0, delta=1e-3), trace)


STEP: dict[str, Any] = {"clip_norm": 0.4, "learning_rate": 1.5, "momentum": 0.5}
COOLINGS: dict[str, dict[str, Any]] = {
    "accepted": {},
    "floored": {"cooling": "floored"},
    "classic": {"cooling": "classic", "cooling_rate": 0.9},
}
PUBLIC_ENERGY = energy.public_energy(PUBLIC.losses, ALL_PUBLIC)


def annealing(**cooling: Any) -> Annealing:
    return Annealing(20.0, 3, **cooling)


@pytest.mark.parametrize("cooling", COOLINGS)
def test_sa_dpsgd_with_a_public_energy(cooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = sa_dpsgd_box(
        START,
        **GIVEN,
        **STEP,
        energy_change=energy.public_change(PUBLIC_ENERGY),
        uniforms=NUMBERS.uniforms,
        annealing=annealing(**COOLINGS[cooling]),
        noise_multiplier=NOISE,
        batch_size=BATCH,
    )
    assert is_mixed(trace)
    assert max(int(state["mu"]) for state in trace.states) == 3  # so that the cap was reached
    annealed: dict[str, Any] = {"initial_inverse_temperature": 20.0, "rejection_threshold": 3, **COOLINGS[cooling]}
    same(trained(sa_dpsgd(**STEP, **annealed), tmp_path, monkeypatch, **PRIVATELY), trace)


def test_sa_dpsgd_with_a_private_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = energy.private_change(
        PRIVATE.losses,
        NUMBERS.energy_draws,
        NUMBERS.energy_normals,
        bound=0.3,
        noise_multiplier=0.8,
        divisor=ENERGY_BATCH,
    )
    trace = sa_dpsgd_box(
        START,
        **GIVEN,
        **STEP,
        energy_change=change,
        uniforms=NUMBERS.uniforms,
        annealing=annealing(),
        noise_multiplier=NOISE,
        batch_size=BATCH,
    )
    assert is_mixed(trace)
    asked = PrivateEnergy(loss_clip=0.3, noise_multiplier=0.8, expected_batch_size=ENERGY_BATCH)
    method = sa_dpsgd(**STEP, initial_inverse_temperature=20.0, rejection_threshold=3, energy=asked)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def test_sa_dpsgd_with_salvage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = sa_salvage_box(
        START,
        **GIVEN,
        **STEP,
        energy_change=energy.public_change(PUBLIC_ENERGY),
        uniforms=NUMBERS.uniforms,
        annealing=annealing(),
        noise_multiplier=NOISE,
        batch_size=BATCH,
    )
    assert is_mixed(trace)
    assert max(int(state["num_kept"]) for state in trace.states) >= 2
    method = sa_dpsgd(**STEP, initial_inverse_temperature=20.0, rejection_threshold=3, salvage=True)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def test_sa_dpsgd_with_several_step_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scales = (0.1, 0.5, 2.0)
    trace = sa_step_sizes_box(
        START,
        **GIVEN,
        **STEP,
        energy=PUBLIC_ENERGY,
        uniforms=NUMBERS.uniforms,
        annealing=annealing(),
        step_factors=scales,
        noise_multiplier=NOISE,
        batch_size=BATCH,
    )
    assert len({int(state["best"]) for state in trace.states}) == 3
    method = sa_dpsgd(**STEP, initial_inverse_temperature=20.0, rejection_threshold=3, step_scales=scales)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


@pytest.mark.parametrize("clipped", ["batch", "records"])
def test_dpsur(clipped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = (PRIVATE.losses, NUMBERS.energy_draws, NUMBERS.energy_normals)
    if clipped == "batch":
        difference = dpsur_box.published_difference(*given, bound=0.05, noise_multiplier=0.8)
    else:
        difference = dpsur_box.per_record_difference(*given, bound=0.05, noise_multiplier=0.8, divisor=ENERGY_BATCH)
    trace = dpsur_box.dpsur(
        START,
        **GIVEN,
        **STEP,
        noisy_difference=difference,
        acceptance_bound=-0.2 * 0.05,
        noise_multiplier=NOISE,
        batch_size=BATCH,
    )
    assert is_mixed(trace)
    tested: dict[str, Any] = {
        "loss_clip": 0.05,
        "test_noise_multiplier": 0.8,
        "test_batch_size": ENERGY_BATCH,
        "threshold": -0.2,
    }
    same(trained(dpsur(**STEP, **tested, clipped=clipped), tmp_path, monkeypatch, **PRIVATELY), trace)


def adaptive_noise(accounting: str) -> adadp_box.AdaptiveNoise:
    return adadp_box.AdaptiveNoise(
        prior=PRIORS[accounting](),
        clip_norm=0.4,
        noise_multiplier=NOISE,
        lot_size=BATCH,
        local_factor=1.2 if accounting == "published" else None,
    )


PRIORS: dict[str, Callable[[], adadp_box.Prior]] = {
    "proven": partial(ReleasedPrior, TENSORS),
    "published": partial(adadp_box.RawPrior, NUM_PARAMETERS),
}


@pytest.mark.parametrize("accounting", PRIORS)
def test_adadp(accounting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = adadp_box.adadp(
        START,
        **GIVEN,
        noise=adaptive_noise(accounting),
        rates=adadp_box.RootMeanSquare(),
        learning_rate=0.05,
    )
    assert has_both_phases(trace)
    method = adadp(learning_rate=0.05, clip_norm=0.4, accounting=accounting)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


@pytest.mark.parametrize("accounting", PRIORS)
def test_adan(accounting: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = adadp_box.adan(START, **GIVEN, noise=adaptive_noise(accounting), learning_rate=0.2, momentum=0.5)
    assert has_both_phases(trace)
    method = adan(learning_rate=0.2, momentum=0.5, clip_norm=0.4, accounting=accounting)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def test_adal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = adadp_box.adal(
        START,
        **GIVEN,
        rates=adadp_box.RootMeanSquare(),
        clip_norm=0.4,
        noise_multiplier=NOISE,
        lot_size=BATCH,
        learning_rate=0.05,
    )
    same(trained(adal(learning_rate=0.05, clip_norm=0.4), tmp_path, monkeypatch, **PRIVATELY), trace)


SHAPES: dict[str, dpopt_box.Shape] = {
    "closed-form": dpopt_box.closed_form,
    "projected-gradient": dpopt_box.projected_gradient,
}


@pytest.mark.parametrize("found_by", SHAPES)
def test_dpopt(found_by: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = dpopt_box.dpopt(
        START,
        **GIVEN,
        prior=ReleasedPrior(TENSORS),
        shape=SHAPES[found_by],
        clip_norm=0.4,
        local_factor=None,
        noise_multiplier=NOISE,
        batch_size=BATCH,
        memory=0.99,
        least_share=0.1,
        learning_rate=0.2,
    )
    assert has_both_phases(trace)
    method = dpopt(learning_rate=0.2, clip_norm=0.4, found_by=found_by)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def laplace(uniforms: Vector) -> Vector:
    """Laplace noise of scale one, by the inverse of its distribution function."""
    return np.where(uniforms < 0.5, np.log(2 * uniforms), -np.log(2 * (1 - uniforms)))


def test_agd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, Any] = {"adapted_every": 4, "headroom": 0.3}
    method = agd(
        clip_norm=0.4,
        loss_clip=0.8,
        choice_epsilon=0.7,
        choice_batch_size=ENERGY_BATCH,
        growth=0.2,
        step_sizes=2,
        largest_step=3.0,
        **sizes,
    )
    asked: dict[str, Any] = {"epsilon": 40.0, "delta": 1e-3}
    plan = plan_for(records=NUM_RECORDS, expected_batch_size=BATCH, steps=STEPS, method=method, **asked)
    weights = trained(method, tmp_path, monkeypatch, **asked)
    taken = len(weights.seen)
    numbers = Numbers.of_run(taken)
    trace = agd_box.agd(
        START,
        gradients=PRIVATE.gradients,
        losses=PRIVATE.losses,
        draws=numbers.draws,
        normals=numbers.normals,
        noises=[-laplace(step.uniforms("choice", 3).numpy()) for step in randomness(taken)],
        loss_draws=numbers.energy_draws,
        budget=agd_box.Budget(
            total=np.inf, gradient=1 / (2 * plan.noise_multiplier**2), noisy_max=0.7**2 / 2, growth=0.2
        ),
        step_sizes=agd_box.StepSizes(count=2, largest=3.0, **sizes),
        grad_clip=0.4,
        loss_clip=0.8,
    )
    assert 2 * sizes["adapted_every"] < sum(trace.accepted) < taken - 2
    precisions = [float(state["precision"]) for state in trace.states]
    assert any(0 < first < second for first, second in itertools.pairwise(precisions))  # more than one was averaged
    np.testing.assert_allclose(weights.seen, trace.weights, rtol=0, atol=1e-6)
    assert weights.accepted == np.cumsum(trace.accepted).tolist()
