"""The cosine demonstration computes what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.examples.loading import ROOT, example, run_main

cosine_demo = example("cosine_demo")


PAGE = ROOT / "docs/results.md"
CASES = [(name, *way) for name, way in cosine_demo.WAYS.items()]


@pytest.mark.parametrize("name, stds, printed", CASES, ids=[name for name, *_ in CASES])
def test_the_exact_mean_is_that_of_many_draws_and_not_the_printed_one(
    name: str, stds: tuple[float, float], printed: float
) -> None:
    noise_std = np.array(stds)
    exact = cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, noise_std)
    mean, error = cosine_demo.simulated_mean_cosine(cosine_demo.ANSWER, noise_std, num_draws=400_000)
    assert abs(exact - mean) < 4 * error < 0.005
    assert abs(exact - printed) > 0.04


def test_the_mean_cosine_is_one_without_noise_and_zero_where_noise_is_all() -> None:
    assert cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, np.array([0.5, 0.5])) > 0.998
    assert abs(cosine_demo.exact_mean_cosine(cosine_demo.ANSWER, np.array([1e6, 1e6]))) < 1e-4


def test_the_three_ways_are_worth_the_same_privacy() -> None:
    for stds, _ in cosine_demo.WAYS.values():
        assert 0.98 < ((cosine_demo.SENSITIVITIES / np.array(stds)) ** 2).sum() <= 1


def test_it_prints_the_numbers_of_the_page_and_draws_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_main(cosine_demo, monkeypatch, "--out", str(tmp_path))
    said, page = capsys.readouterr().out, PAGE.read_text()
    for number in ("0.4704", "0.4780", "0.3992", "0.474 ± 0.007", "0.481 ± 0.006", "0.401 ± 0.005"):
        assert number in said
        assert number in page
    assert 5_000 < (tmp_path / "cosine.svg").stat().st_size < 100_000
