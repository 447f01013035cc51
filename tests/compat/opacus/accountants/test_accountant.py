from __future__ import annotations

import math

import pytest

from lehr.accounting import ACCOUNTANTS, bound
from lehr.compat.opacus.accountants import GaussianAccountant, IAccountant, PRVAccountant, RDPAccountant
from lehr.compat.opacus.notes import UnprovenWarning
from lehr.errors import InvalidValue
from lehr.events import Adjacency, Gaussian, PoissonSampled, Repeated
from tests.compat.opacus.loops import private

RUN = Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300)


def counted(kind: type[IAccountant]) -> IAccountant:
    accountant = kind()
    for _ in range(300):
        accountant.step(noise_multiplier=1.1, sample_rate=0.02)
    return accountant


def test_steps_of_one_kind_are_one_entry() -> None:
    accountant = counted(PRVAccountant)
    accountant.step(noise_multiplier=2.0, sample_rate=0.02)
    assert accountant.history == [(1.1, 0.02, 300), (2.0, 0.02, 1)]
    assert len(accountant) == 301


def test_bounds_are_lehrs() -> None:
    assert counted(PRVAccountant).get_epsilon(1e-5) == bound(RUN, delta=1e-5).epsilon
    rdp = ACCOUNTANTS["rdp-balle20"].epsilon(RUN, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert counted(RDPAccountant).get_epsilon(1e-5) == rdp > counted(PRVAccountant).get_epsilon(1e-5)


def test_an_estimate_is_called_one_every_time() -> None:
    with pytest.warns(UnprovenWarning, match="estimates"):
        assert counted(GaussianAccountant).get_epsilon(1e-5) < counted(PRVAccountant).get_epsilon(1e-5)


@pytest.mark.parametrize("kind", [PRVAccountant, RDPAccountant])
def test_nothing_costs_nothing_and_no_noise_costs_everything(kind: type[IAccountant]) -> None:
    accountant = kind()
    assert accountant.get_epsilon(1e-5) == 0
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_a_state_is_loaded_by_its_own_kind_alone() -> None:
    state = counted(PRVAccountant).state_dict()
    later = PRVAccountant()
    later.load_state_dict(state)
    assert later.history == [(1.1, 0.02, 300)]
    with pytest.raises(InvalidValue, match="rdp"):
        RDPAccountant().load_state_dict(state)
    with pytest.raises(InvalidValue, match="history"):
        later.load_state_dict({"mechanism": "prv"})
    with pytest.raises(InvalidValue, match="steps"):
        later.load_state_dict({"mechanism": "prv", "history": [(1.0, 0.1, -5)]})


def test_settings_that_would_change_the_answer_are_refused() -> None:
    with pytest.raises(InvalidValue, match="alphas"):
        RDPAccountant().get_epsilon(1e-5, alphas=[2.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="poisson"):
        GaussianAccountant().get_epsilon(1e-5, poisson=False)
    with pytest.raises(InvalidValue, match="sampling_probability"):
        PRVAccountant().step(noise_multiplier=1.0, sample_rate=math.nan)


def test_a_hook_counts_the_noise_that_the_optimizer_has() -> None:
    accountant = PRVAccountant()
    accountant.get_optimizer_hook_fn(sample_rate=0.2)(private().optimizer)
    assert accountant.history == [(1.0, 0.2, 1)]
