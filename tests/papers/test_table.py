from __future__ import annotations

import math

from lehr.papers.table import Measured, measured


def test_a_mean_is_over_the_runs_that_there_are() -> None:
    found = measured([0.5, None, 0.7])
    assert found.mean == 0.6
    assert found.spread is not None
    assert math.isclose(found.spread, 0.1 * math.sqrt(2))


def test_one_run_has_no_spread_and_none_has_no_mean() -> None:
    assert (Measured((0.5,)).mean, Measured((0.5,)).spread) == (0.5, None)
    assert (Measured(()).mean, Measured(()).spread) == (None, None)
