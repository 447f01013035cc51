"""The temperature of an annealed run. It follows from its settings and from how many candidates were accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lehr.run_shape import Evaluation


def settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """How the acceptance of a run is annealed, under whatever it is wrapped in; None where it is not."""
    acceptance = config["method"].get("acceptance")
    while isinstance(acceptance, Mapping):
        if acceptance.get("kind") == "annealed":
            return acceptance
        acceptance = acceptance.get("of")
    return None


def temperature(annealed: Mapping[str, Any], row: Evaluation) -> float:
    """The temperature after a step, by the cooling of ``lehr.acceptance.annealed``; infinite before any acceptance.

    >>> row = Evaluation(step=8, accepted=5, epsilon_spent=1.0, loss=0.5, accuracy=0.5, on="test", learning_rate=0.1)
    >>> temperature({"initial_inverse_temperature": 10.0, "cooling": "accepted", "cooling_rate": None}, row)
    0.02
    """
    first = 1 / float(annealed["initial_inverse_temperature"])
    if annealed["cooling"] == "classic":
        return first * float(annealed["cooling_rate"]) ** row.step
    accepted = max(row.accepted, 1) if annealed["cooling"] == "floored" else row.accepted
    return first / accepted if accepted else float("inf")
