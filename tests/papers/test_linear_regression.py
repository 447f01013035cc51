"""The trajectories on linear regression go where they should."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lehr.papers import linear_regression as regression
from lehr.rng import RunKey

KEY = RunKey(bytes(31) + b"\x07")
PRIVATE, PUBLIC = regression.records(regression.NUM_RECORDS, seed=0), regression.records(100, seed=1)


def test_sgd_without_noise_ends_at_the_least_squares() -> None:
    assert regression.excess(regression.sgd_path(PRIVATE), PRIVATE) < 1e-9


def test_annealed_weights_stay_where_they_are_when_a_candidate_is_refused() -> None:
    path = np.array(regression.private_path(PRIVATE, PUBLIC, KEY))
    stays = (np.diff(path, axis=0) == 0).all(axis=1)
    assert len(path) == regression.CANDIDATES + 1
    assert 0 < stays.sum() < regression.CANDIDATES
    always = np.array(regression.private_path(PRIVATE, None, KEY))
    assert not (np.diff(always, axis=0) == 0).any()
    first = int(np.argmax(stays))
    assert np.array_equal(path[: first + 1], always[: first + 1])


def test_a_path_can_be_asked_to_end_at_an_accepted_count() -> None:
    path = np.array(regression.private_path(PRIVATE, PUBLIC, KEY, most_accepted=25))
    assert (np.diff(path, axis=0) != 0).any(axis=1).sum() == 25


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    return regression.trajectories(device="cpu", data_dir=None, seeds=1)


def test_the_measurement_has_a_path_of_each_method_and_can_be_written_as_json(told: dict[str, Any]) -> None:
    assert {name: len(path) for name, path in told["paths"].items()} == {"DPSGD": 61, "SA-DPSGD": 61, "SGD": 61}
    assert json.loads(json.dumps(told))["ends"] == told["ends"]


def test_every_candidate_is_charged_and_sgd_has_no_epsilon(told: dict[str, Any]) -> None:
    ends = told["ends"]
    assert "epsilon" not in ends[regression.NOT_PRIVATE][0]
    [alike], [more] = ends["SA-DPSGD, as many candidates"], ends["SA-DPSGD, as many accepted"]
    assert alike["epsilon"] == ends["DPSGD"][0]["epsilon"]
    assert more["candidates"] > alike["candidates"]
    assert more["epsilon"] > alike["epsilon"]
