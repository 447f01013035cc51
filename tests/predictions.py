"""A prediction written by hand, for the plan of the runs in ``tests.written_runs``."""

from __future__ import annotations

from dataclasses import replace

from lehr.planning.simulation import Prediction, SimulatedRun, setting_of
from tests.written_runs import PLAN, configuration


def simulated(**accuracies: float) -> tuple[SimulatedRun, ...]:
    """Runs by their batches: ``b2=0.9`` is one by batches of two."""
    return tuple(
        SimulatedRun(expected_batch_size=float(name[1:].partition("_")[0]), accuracy=accuracy)
        for name, accuracy in accuracies.items()
    )


PREDICTION = Prediction(
    reference=PLAN,
    runs=simulated(b2=0.95, b2_=0.96, b4=0.955, b4_=0.945, b8=0.952, b8_=0.948),
    setting=setting_of(configuration(data={"declared": "public"})),
    predicted_on="2026-01-31",
    library_version="0.1.0",
)
BENT = replace(PREDICTION, runs=simulated(b2=0.80, b2_=0.801, b4=0.90, b4_=0.901, b8=0.91, b8_=0.911))
BEYOND = replace(PREDICTION, runs=simulated(b2=0.50, b4=0.80, b8=0.97))
