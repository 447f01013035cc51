"""The trajectories on the Beale function are those of the paper's pseudo-code."""

from __future__ import annotations

import numpy as np
import pytest

from lehr.papers import beale
from tests.methods.pseudocode.adadp import AdaptiveNoise, FlooredPrior, RawPrior, RootMeanSquare
from tests.methods.pseudocode.adadp import adadp as transcribed_adadp
from tests.methods.pseudocode.clips import flat
from tests.methods.pseudocode.dpsgd import dpsgd as transcribed_dpsgd

SETTING = beale.DRAWN["the other order"]
NORMALS = np.random.default_rng(3).standard_normal((2, beale.STEPS, 2))
ONE_RECORD = [np.zeros(1, dtype=np.int64)] * beale.STEPS


def of_one_record(weights: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.asarray(beale.gradient(weights[None]))


def test_the_gradient_is_that_of_the_function_which_is_least_at_its_minimum() -> None:
    points = np.array([[1.0, 1.5], [-2.0, 2.0], [0.3, -0.7]])
    for axis, step in enumerate(np.eye(2) * 1e-6):
        up, down = (beale.beale(*(points + sign * step).T) for sign in (1, -1))
        np.testing.assert_allclose((up - down) / 2e-6, beale.gradient(points)[:, axis], rtol=1e-6, atol=1e-6)
    assert beale.beale(*np.array(beale.MINIMUM)) == 0


@pytest.mark.parametrize("is_proven", [False, True], ids=["published", "proven"])
def test_adadp_is_the_transcribed_one_on_a_single_record(is_proven: bool) -> None:
    paths = beale.adadp(SETTING, SETTING.noise_multiplier, NORMALS, is_proven=is_proven)
    for normals, path in zip(NORMALS, paths, strict=True):
        trace = transcribed_adadp(
            np.array(SETTING.start),
            gradients=of_one_record,
            draws=ONE_RECORD,
            normals=list(normals),
            noise=AdaptiveNoise(
                prior=FlooredPrior(2, floor=beale.FLOOR) if is_proven else RawPrior(2),
                clip_norm=SETTING.clip_norm,
                noise_multiplier=SETTING.noise_multiplier,
                lot_size=1,
                local_factor=beale.LOCAL_FACTOR,
            ),
            rates=RootMeanSquare(),
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
    paths = beale.dpsgd(SETTING, SETTING.noise_multiplier, NORMALS[:1])
    np.testing.assert_allclose(paths[0], trace.weights, rtol=1e-9, atol=1e-9)


def test_the_distance_is_the_mean_over_the_steps() -> None:
    path = np.zeros((1, 4, 2))
    assert beale.distances(path, path).tolist() == [0]
    assert beale.distances(path + np.array([3.0, 4.0]), path).tolist() == [5]


def test_distances_over_seeds_are_near_those_that_were_measured_before() -> None:
    found = beale.over_seeds(device=None, data_dir=None, seeds=100, grid=[0, 1])
    near = found["settings"]["near the printed"]
    assert near["DPSGD"]["median"] == pytest.approx(0.89, abs=0.1)
    assert near["ADADP (published)"]["median"] == pytest.approx(0.28, abs=0.05)
    assert all(way["low"] <= way["median"] <= way["high"] for way in near.values())
    assert len(near["DPSGD"]["with_noise"]) == beale.STEPS
    assert found["grid"] == 2


def test_the_same_seeds_give_the_same_distances() -> None:
    assert beale.over_seeds(device=None, data_dir=None, seeds=3, grid=[]) == beale.over_seeds(
        device="cpu", data_dir=None, seeds=3, grid=[]
    )
