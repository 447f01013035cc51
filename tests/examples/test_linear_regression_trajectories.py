"""The trajectories on linear regression go where they should."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from lehr.rng import RunKey
from tests.examples.loading import example

regression = example("linear_regression_trajectories")

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


def test_it_draws_its_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["linear_regression_trajectories", "--out", str(tmp_path), "--seeds", "1"])
    regression.main()
    assert "SA-DPSGD, as many accepted" in capsys.readouterr().out
    assert 5_000 < (tmp_path / "trajectories.svg").stat().st_size < 100_000
