"""Loops as Opacus's users write them, with either library."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = {
    "mnist": ["--data", "digits", "--epochs", "1", "--batch-size", "400"],
    "cifar10": ["--data", "digits", "--epochs", "1", "--batch-size", "700", "--max-physical-batch-size", "200"],
    "char_lstm": ["--records", "400", "--epochs", "1", "--batch-size", "200", "--hidden-size", "16"],
    "imdb_like": ["--records", "200", "--epochs", "1", "--batch-size", "100", "--hidden-size", "16"],
}
LINE = re.compile(r"(\w+) epoch 1: accuracy (\d\.\d+), ε = (\d+\.\d+), .* s")


@pytest.mark.slow
@pytest.mark.in_turn
@pytest.mark.parametrize("name", SMALL)
def test_both_libraries_run_the_same_loop_and_count_alike(name: str) -> None:
    libraries = ["lehr", "opacus"] if find_spec("opacus") else ["lehr"]
    spent = []
    for library in libraries:
        finished = subprocess.run(
            [sys.executable, str(ROOT / f"examples/opacus/{name}.py"), "--library", library, *SMALL[name]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr
        told = LINE.fullmatch(finished.stdout.strip())
        assert told is not None, finished.stdout
        assert told[1] == library
        assert 0 <= float(told[2]) <= 1
        spent.append(float(told[3]))
    # The probability of a record differs a little: batch size over records here, one over the number of batches there.
    assert max(spent) < 1.35 * min(spent)
