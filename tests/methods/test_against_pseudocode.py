"""Every method, step by step, against a plain transcription of its paper's pseudo-code on a tiny problem.

The library trains a network with twelve parameters by ``lehr.fit``; the transcription (``pseudocode/``) is given the
same first weights and the same random numbers, and the weights after every candidate are compared.
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
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import auto_s, dpsgd, dpsgd_per_layer, plain_sgd
from lehr.methods.dpsur import dpsur
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.optim.optimizers import Update
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Method
from lehr.run.shape import Callback, Progress
from lehr.training.public_plan import plan_for
from tests.methods.pseudocode import adaptive, base
from tests.methods.pseudocode import agd as agd_box
from tests.methods.pseudocode import dpsgd as dpsgd_box
from tests.methods.pseudocode.base import LAYERS, NUM_PARAMETERS, TENSORS, TinyNetwork, Trace, Vector

KEY = RunKey(bytes(range(32)))
NUM_RECORDS, BATCH, STEPS, NOISE = 14, 6.0, 25, 0.7
ENERGY_BATCH = 5.0
DRAWN = np.random.default_rng(5)
PRIVATE = TinyNetwork(DRAWN.normal(size=(NUM_RECORDS, 2)), np.arange(NUM_RECORDS) % 2)
PUBLIC = TinyNetwork(DRAWN.normal(size=(9, 2)), np.arange(9) % 2)
START: Vector = DRAWN.normal(size=NUM_PARAMETERS)


class Weights(Callback):
    """Records the weights of a model after every candidate."""

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
GIVEN: dict[str, Any] = {
    "gradients": PRIVATE.gradients,
    "draws": NUMBERS.draws,
    "normals": NUMBERS.normals,
    "batch_size": BATCH,
}
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
    "dpsgd": (dpsgd(clip_norm=0.4, learning_rate=0.3, momentum=0.9), base.flat(0.4)),
    "per layer": (
        dpsgd_per_layer(clip_norm=0.4, learning_rate=0.3, momentum=0.9),
        base.per_layer([0.4 / 2**0.5] * 2, LAYERS),
    ),
    "given to layers": (
        dpsgd_per_layer(clip_norm=0.5, shares={"0": 0.3, "2": 0.4}, learning_rate=0.3, momentum=0.9),
        base.per_layer([0.3, 0.4], LAYERS),
    ),
    "auto-s": (auto_s(clip_norm=0.4, stability=0.01, learning_rate=0.3), base.automatic(0.4, 0.01)),
    "auto-v": (auto_s(clip_norm=0.4, stability=0.0, learning_rate=0.3), base.automatic(0.4, 0.0)),
    "plain": (plain_sgd(learning_rate=0.3), lambda grads: grads),
}


@pytest.mark.parametrize("name", CLIPS)
def test_dpsgd_with_every_clip(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, clip = CLIPS[name]
    noise_multiplier = 0.0 if name == "plain" else NOISE
    trace = dpsgd_box.dpsgd(
        START,
        **GIVEN,
        clip=clip,
        sensitivity=0.5 if name == "given to layers" else 0.4,
        noise_multiplier=noise_multiplier,
        learning_rate=0.3,
        momentum=0.9,
    )
    same(trained(method, tmp_path, monkeypatch, noise_multiplier=noise_multiplier, delta=1e-3), trace)


STEP: dict[str, Any] = {"clip_norm": 0.4, "learning_rate": 1.5, "momentum": 0.5}
STEP_BOX: dict[str, Any] = {
    "clip": base.flat(0.4),
    "sensitivity": 0.4,
    "learning_rate": 1.5,
    "momentum": 0.5,
    "noise_multiplier": NOISE,
}
ANNEALED: dict[str, Any] = {"initial_inverse_temperature": 20.0, "rejection_threshold": 3}
PUBLIC_ENERGY = dpsgd_box.public_energy(PUBLIC.losses, 9)
OF_ENERGY = (PRIVATE.losses, NUMBERS.energy_draws, NUMBERS.energy_normals)
PRIVATE_ENERGY = PrivateEnergy(loss_clip=0.3, noise_multiplier=0.8, expected_batch_size=ENERGY_BATCH)


def public_change(w: Vector, w_new: Vector, candidate: int) -> float:
    return PUBLIC_ENERGY(w_new) - PUBLIC_ENERGY(w)


VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # settings of the library and of the transcription
    "accepted": ({}, {}),
    "floored": ({"cooling": "floored"}, {}),
    "classic": ({"cooling": "classic", "cooling_rate": 0.9}, {}),
    "private energy": ({"energy": PRIVATE_ENERGY}, {}),
    "salvage": ({"salvage": True}, {"is_salvaged": True}),
    "step sizes": ({"step_scales": (0.1, 0.5, 2.0)}, {"step_factors": (0.1, 0.5, 2.0), "energy": PUBLIC_ENERGY}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_sa_dpsgd(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, of_box = VARIANTS[name]
    cooling = {key: value for key, value in settings.items() if key.startswith("cooling")}
    change: dpsgd_box.Change = public_change
    if name == "private energy":
        change = dpsgd_box.private_change(*OF_ENERGY, bound=0.3, noise_multiplier=0.8, divisor=ENERGY_BATCH)
    accept = dpsgd_box.Annealing(change, NUMBERS.uniforms, **ANNEALED, **cooling)
    trace = dpsgd_box.dpsgd(START, **GIVEN, **STEP_BOX, **of_box, accept=accept)
    assert name == "step sizes" or is_mixed(trace)
    assert len({int(state["best"]) for state in trace.states}) == (3 if name == "step sizes" else 1)
    assert max(int(state["num_kept"]) for state in trace.states) >= (2 if name == "salvage" else 0)
    if name in ("accepted", "floored", "classic"):
        assert accept.most_rejections == 3  # so that the cap was reached
    same(trained(sa_dpsgd(**STEP, **ANNEALED, **settings), tmp_path, monkeypatch, **PRIVATELY), trace)


@pytest.mark.parametrize("clipped", ["batch", "records"])
def test_dpsur(clipped: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    divisor = None if clipped == "batch" else ENERGY_BATCH
    difference = dpsgd_box.private_change(*OF_ENERGY, bound=0.05, noise_multiplier=0.8, divisor=divisor)
    trace = dpsgd_box.dpsgd(
        START, **GIVEN, **STEP_BOX, accept=lambda w, w_new, t: difference(w, w_new, t) < -0.2 * 0.05
    )
    assert is_mixed(trace)
    tested: dict[str, Any] = {"loss_clip": 0.05, "test_noise_multiplier": 0.8, "test_batch_size": ENERGY_BATCH}
    method = dpsur(**STEP, **tested, threshold=-0.2, clipped=clipped)
    same(trained(method, tmp_path, monkeypatch, **PRIVATELY), trace)


def released() -> dict[str, Any]:
    return {"prior": adaptive.ReleasedPrior(TENSORS), "local_factor": None}


def raw() -> dict[str, Any]:
    return {"prior": adaptive.RawPrior(NUM_PARAMETERS)}


ADAPTIVE: dict[str, tuple[Method, Callable[[], dict[str, Any]], Any]] = {
    "adadp": (adadp(learning_rate=0.05, clip_norm=0.4), released, adaptive.RootMeanSquare),
    "adadp published": (
        adadp(learning_rate=0.05, clip_norm=0.4, accounting="published"),
        raw,
        adaptive.RootMeanSquare,
    ),
    "adan": (adan(learning_rate=0.2, momentum=0.5, clip_norm=0.4), released, partial(adaptive.Momentum, 0.5)),
    "adan published": (
        adan(learning_rate=0.2, momentum=0.5, clip_norm=0.4, accounting="published"),
        raw,
        partial(adaptive.Momentum, 0.5),
    ),
    "adal": (adal(learning_rate=0.05, clip_norm=0.4), dict, adaptive.RootMeanSquare),
    "dpopt": (
        dpopt(learning_rate=0.2, clip_norm=0.4),
        lambda: {**released(), "shape": adaptive.closed_form},
        adaptive.Momentum,
    ),
    "dpopt by projected gradients": (
        dpopt(learning_rate=0.2, clip_norm=0.4, found_by="projected-gradient"),
        lambda: {**released(), "shape": adaptive.projected_gradient},
        adaptive.Momentum,
    ),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_methods(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method, of_noise, step = ADAPTIVE[name]
    given = {key: value for key, value in GIVEN.items() if key != "batch_size"}
    noise = adaptive.AdaptiveNoise(clip_norm=0.4, noise_multiplier=NOISE, lot_size=BATCH, **of_noise())
    assert isinstance(method.update, Update)
    rate = method.update.learning_rate
    trace = adaptive.adaptive(START, **given, noise=noise, step=step(), learning_rate=rate)
    assert name == "adal" or has_both_phases(trace)
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
