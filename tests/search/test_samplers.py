from __future__ import annotations

from typing import Any

import optuna
import pytest

from lehr.errors import InvalidValue
from lehr.search.names import PRUNERS, SAMPLERS
from lehr.search.samplers import PRUNER_OF, pruner_named, sampler_for

SOME = [name for name in SAMPLERS if name != "gp"]  # which takes seconds


def drawn(name: str, *, seed: int, first: int, count: int) -> list[tuple[Any, ...]]:
    """The draws of a study that was begun with trial ``first``."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    found = []
    for number in range(first, first + count):
        study.sampler = sampler_for(name, seed=seed, number=number)
        trial = study.ask()
        values = trial.suggest_float("rate", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        study.tell(trial, values[0])
        found.append(values)
    return found


@pytest.mark.parametrize("name", SOME)
def test_no_two_trials_draw_the_same_even_after_a_new_start(name: str) -> None:
    rates = [rate for rate, _ in drawn(name, seed=1, first=0, count=6)]
    assert len(set(rates)) == 6


def test_a_trial_draws_the_same_whenever_it_is_begun() -> None:
    assert drawn("random", seed=1, first=0, count=4)[2:] == drawn("random", seed=1, first=2, count=2)
    assert drawn("random", seed=1, first=0, count=2) != drawn("random", seed=2, first=0, count=2)


def test_every_name_stands_for_something_and_others_are_refused() -> None:
    for name in SAMPLERS:
        assert isinstance(sampler_for(name, seed=0, number=0), optuna.samplers.BaseSampler)
    assert set(PRUNER_OF) == set(PRUNERS)
    with pytest.raises(InvalidValue, match=r"sampler must be one of .*; given: 'cmaes'"):
        sampler_for("cmaes", seed=0, number=0)
    with pytest.raises(InvalidValue, match="pruner"):
        pruner_named("patient")
