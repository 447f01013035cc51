"""Loops as Opacus's users write them, with either library."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from tests.examples.loading import example, run_main
from tests.sizes import cases

SMALL = {
    "mnist": ["--data", "digits", "--epochs", "1", "--batch-size", "400"],
    "cifar10": ["--data", "digits", "--epochs", "1", "--batch-size", "700", "--max-physical-batch-size", "200"],
    "char_lstm": ["--records", "400", "--epochs", "1", "--batch-size", "200", "--hidden-size", "16"],
    "imdb_like": ["--records", "200", "--epochs", "1", "--batch-size", "100", "--hidden-size", "16"],
}
LINE = re.compile(r"(\w+) epoch 1: accuracy (\d\.\d+), ε = (\d+\.\d+), .* s")


@pytest.mark.slow
@pytest.mark.parametrize("name", cases(SMALL, always=["mnist"]))
def test_both_libraries_run_the_same_loop_and_count_alike(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spent = []
    for library in ("lehr", "opacus"):
        with torch.random.fork_rng(devices=()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loop = example(f"opacus/{name}", needs="opacus")
            run_main(loop, monkeypatch, "--library", library, *SMALL[name])
        printed = LINE.fullmatch(capsys.readouterr().out.strip())
        assert printed is not None
        assert printed[1] == library
        assert 0 <= float(printed[2]) <= 1
        spent.append(float(printed[3]))
    # The probability of a record differs a little: batch size over records here, one over the number of batches there.
    assert max(spent) < 1.35 * min(spent)
