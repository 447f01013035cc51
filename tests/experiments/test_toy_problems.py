from __future__ import annotations

import json

import numpy as np
import pytest

from experiments import toy_problems
from lehr.privacy.rng import RunKey
from tests.methods.pseudocode.adaptive import AdaptiveNoise, FlooredPrior, RawPrior, RootMeanSquare
from tests.methods.pseudocode.adaptive import adaptive as transcribed_adadp
from tests.methods.pseudocode.base import flat
from tests.methods.pseudocode.dpsgd import dpsgd as transcribed_dpsgd

SETTING = toy_problems.DRAWN["the other order"]
NORMALS = np.random.default_rng(3).standard_normal((2, toy_problems.STEPS, 2))
ONE_RECORD = [np.zeros(1, dtype=np.int64)] * toy_problems.STEPS
KEY = RunKey(bytes(31) + b"\x07")
PRIVATE, PUBLIC = toy_problems.records(toy_problems.NUM_RECORDS, seed=0), toy_problems.records(100, seed=1)


def of_one_record(weights: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.asarray(toy_problems.gradient(weights[None]))


def test_the_gradient_is_that_of_the_beale_function() -> None:
    points = np.array([[1.0, 1.5], [-2.0, 2.0], [0.3, -0.7]])
    for axis, step in enumerate(np.eye(2) * 1e-6):
        up, down = (toy_problems.beale(*(points + sign * step).T) for sign in (1, -1))
        np.testing.assert_allclose((up - down) / 2e-6, toy_problems.gradient(points)[:, axis], rtol=1e-6, atol=1e-6)
    assert toy_problems.beale(*np.array(toy_problems.MINIMUM)) == 0


@pytest.mark.parametrize("is_proven", [False, True], ids=["published", "proven"])
def test_adadp_is_the_transcribed_one_on_a_single_record(is_proven: bool) -> None:
    paths = toy_problems.adadp(SETTING, SETTING.noise_multiplier, NORMALS, is_proven=is_proven)
    for normals, path in zip(NORMALS, paths, strict=True):
        trace = transcribed_adadp(
            np.array(SETTING.start),
            gradients=of_one_record,
            draws=ONE_RECORD,
            normals=list(normals),
            noise=AdaptiveNoise(
                prior=FlooredPrior(2, floor=toy_problems.FLOOR) if is_proven else RawPrior(2),
                clip_norm=SETTING.clip_norm,
                noise_multiplier=SETTING.noise_multiplier,
                lot_size=1,
                local_factor=toy_problems.LOCAL_FACTOR,
            ),
            step=RootMeanSquare(),
            learning_rate=SETTING.adaptive_rate,
        )
        np.testing.assert_allclose(path, trace.weights, rtol=1e-9, atol=1e-9)


def test_dpsgd_is_the_transcribed_one_on_a_single_record() -> None:
    trace = transcribed_dpsgd(
        np.array(SETTING.start),
        gradients=of_one_record,
        draws=ONE_RECORD,
        normals=list(NORMALS[0]),
        clip=flat(SETTING.clip_norm),
        sensitivity=SETTING.clip_norm,
        noise_multiplier=SETTING.noise_multiplier,
        batch_size=1,
        learning_rate=SETTING.rate,
        momentum=0.0,
    )
    paths = toy_problems.dpsgd(SETTING, SETTING.noise_multiplier, NORMALS[:1])
    np.testing.assert_allclose(paths[0], trace.weights, rtol=1e-9, atol=1e-9)


def test_distances_over_seeds_are_near_those_in_the_docs() -> None:
    found = toy_problems.beale_over_seeds(device=None, data_dir=None, seeds=100, grid=[0, 1])
    near = found["settings"]["near the printed"]
    assert near["DPSGD"]["median"] == pytest.approx(0.89, abs=0.1)
    assert near["ADADP (published)"]["median"] == pytest.approx(0.28, abs=0.05)
    assert all(method["low"] <= method["median"] <= method["high"] for method in near.values())
    assert len(near["DPSGD"]["with_noise"]) == toy_problems.STEPS
    assert found["grid"] == 2


def test_sgd_without_noise_ends_at_the_least_squares() -> None:
    assert toy_problems.excess(toy_problems.sgd_path(PRIVATE), PRIVATE) < 1e-9


def test_weights_stay_where_a_candidate_is_rejected() -> None:
    path = np.array(toy_problems.private_path(PRIVATE, PUBLIC, KEY))
    stays = (np.diff(path, axis=0) == 0).all(axis=1)
    assert len(path) == toy_problems.CANDIDATES + 1
    assert 0 < stays.sum() < toy_problems.CANDIDATES
    always = np.array(toy_problems.private_path(PRIVATE, None, KEY))
    assert not (np.diff(always, axis=0) == 0).any()
    first = int(np.argmax(stays))
    assert np.array_equal(path[: first + 1], always[: first + 1])
    accepted = np.array(toy_problems.private_path(PRIVATE, PUBLIC, KEY, most_accepted=25))
    assert (np.diff(accepted, axis=0) != 0).any(axis=1).sum() == 25


def test_every_candidate_of_figure_1_is_charged() -> None:
    found = toy_problems.linear_regression_trajectories(device="cpu", data_dir=None, seeds=1)
    assert {name: len(path) for name, path in found["paths"].items()} == {"DPSGD": 61, "SA-DPSGD": 61, "SGD": 61}
    ends = found["ends"]
    assert json.loads(json.dumps(ends)) == ends
    assert "epsilon" not in ends[toy_problems.NOT_PRIVATE][0]
    [alike], [more] = ends["SA-DPSGD, as many candidates"], ends["SA-DPSGD, as many accepted"]
    assert alike["epsilon"] == ends["DPSGD"][0]["epsilon"]
    assert more["candidates"] > alike["candidates"]
    assert more["epsilon"] > alike["epsilon"]
