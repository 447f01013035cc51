from __future__ import annotations

import math
from typing import Any

import pytest

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.best_step import BestStep
from lehr.acceptance.salvage import Salvage
from lehr.methods.dpsgd import dpsgd
from lehr.reports import annealing
from tests.written_runs import configuration, evaluations

CHOICES: dict[str, dict[str, Any]] = {
    "accepted": {},
    "floored": {"cooling": "floored"},
    "classic": {"cooling": "classic", "cooling_rate": 0.9},
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_temperature_is_the_one_that_annealing_has_itself(name: str) -> None:
    annealed = Annealed(initial_inverse_temperature=4.0, **CHOICES[name])
    state: Any = annealed.start()
    for step in range(1, 6):
        inverse = float(annealed._cooled(_tensor(state["inverse_temperature"]), _tensor(step)))
        state = {**state, "inverse_temperature": inverse}
    [row] = evaluations((5,))
    assert annealing.temperature(annealed.to_json(), row) == pytest.approx(1 / inverse)


def _tensor(value: float) -> Any:
    import torch

    return torch.tensor(value, dtype=torch.float64)


def test_before_anything_is_accepted_it_is_infinite_unless_it_has_a_floor() -> None:
    [row] = evaluations((5,), accepted=0)
    assert annealing.temperature(Annealed().to_json(), row) == math.inf
    assert annealing.temperature(Annealed(cooling="floored").to_json(), row) == 0.1


def test_it_is_found_under_whatever_it_is_wrapped_in() -> None:
    annealed = Annealed()
    for acceptance in (annealed, Salvage(annealed), BestStep(Salvage(annealed))):
        config = configuration(method={"acceptance": acceptance.to_json()})
        assert annealing.settings(config) == annealed.to_json()


@pytest.mark.parametrize("acceptance", [dpsgd().acceptance.to_json(), None, "annealed", {"of": 3}], ids=str)
def test_other_runs_have_none(acceptance: object) -> None:
    assert annealing.settings(configuration(method={"acceptance": acceptance})) is None
    assert annealing.settings(configuration()) is None
