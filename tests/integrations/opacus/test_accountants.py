"""Accountants in Opacus's shape, and calibration of noise."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated, together
from lehr.errors import InvalidValue
from lehr.integrations.opacus import PrivacyEngine, UnprovenWarning
from lehr.integrations.opacus.accountants import (
    GaussianAccountant,
    IAccountant,
    PRVAccountant,
    RDPAccountant,
    calibrate,
    create_accountant,
    get_noise_multiplier,
    register_accountant,
)
from tests.integrations.opacus.loops import private

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


@pytest.mark.parametrize("name, mechanism", [("prv", "prv"), ("pld", "prv"), ("rdp", "rdp"), ("gdp", "gdp")])
def test_names_pick_accountants(name: str, mechanism: str) -> None:
    assert create_accountant(name).mechanism() == mechanism


class Hopeful(PRVAccountant):
    def get_epsilon(self, delta: float) -> float:  # type: ignore[override]
        return 0.0


def test_an_accountant_of_the_users_own_is_no_guarantee_and_takes_no_name_of_lehrs() -> None:
    register_accountant("hopeful", Hopeful, force=True)
    with pytest.warns(UnprovenWarning, match="user's own"):
        engine = PrivacyEngine(accountant="hopeful")
    assert not engine.claim(delta=1e-5).is_proven
    for name in ("prv", "hopeful"):
        with pytest.raises(InvalidValue, match="mechanism"):
            register_accountant(name, Hopeful)
    with pytest.raises(InvalidValue, match="mechanism"):
        register_accountant("prv", Hopeful, force=True)


TARGET: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.02}


def test_a_target_is_met_and_never_passed() -> None:
    sigma = get_noise_multiplier(**TARGET, steps=200, accountant="prv")
    spent = bound(Repeated(PoissonSampled(0.02, Gaussian(sigma)), 200), delta=1e-5).epsilon
    assert 0.99 * 2 <= spent <= 2
    assert get_noise_multiplier(**TARGET, epochs=2) == get_noise_multiplier(**TARGET, steps=100)


def test_what_was_spent_before_leaves_less() -> None:
    before = Repeated(PoissonSampled(0.02, Gaussian(1.5)), 100)
    sigma = calibrate(2.0, 1e-5, accountant="prv", sampling_probability=0.02, steps=100, before=before)
    after = Repeated(PoissonSampled(0.02, Gaussian(sigma)), 100)
    assert sigma > calibrate(2.0, 1e-5, accountant="prv", sampling_probability=0.02, steps=100)
    assert bound(together(before, after), delta=1e-5).epsilon <= 2


@pytest.mark.parametrize(
    "given, name",
    [({}, "epochs"), ({"steps": 10, "epochs": 1}, "epochs"), ({"steps": 10, "accountant": "gdp"}, "estimate")],
)
def test_calibration_needs_a_length_and_a_bound(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        get_noise_multiplier(**TARGET, **given)
