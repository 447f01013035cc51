"""The words that a search is asked for in, without what they stand for, so that a help text needs no Optuna."""

from __future__ import annotations

GRID = "grid"
SAMPLERS = ("tpe", "random", GRID, "qmc", "gp")
NO_PRUNER = "none"
PRUNERS = (NO_PRUNER, "median", "hyperband", "successive-halving")
