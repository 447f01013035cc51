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
from tests.integrations.refusals import invalid

RUN = Repeated(PoissonSampled(0.02, Gaussian(1.1)), 300)


def counted(kind: type[IAccountant]) -> IAccountant:
    accountant = kind()
    for _ in range(300):
        accountant.step(noise_multiplier=1.1, sample_rate=0.02)
    return accountant


def test_bounds_are_those_of_lehr_and_an_estimate_warns() -> None:
    prv, rdp, gdp = (counted(kind) for kind in (PRVAccountant, RDPAccountant, GaussianAccountant))
    balle20 = ACCOUNTANTS["rdp-balle20"].epsilon(RUN, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    assert prv.get_epsilon(1e-5) == bound(RUN, delta=1e-5).epsilon
    assert rdp.get_epsilon(1e-5) == balle20 > prv.get_epsilon(1e-5)
    with pytest.warns(UnprovenWarning, match="estimates") as caught:
        assert gdp.get_epsilon(1e-5) < prv.get_epsilon(1e-5)
    assert caught[0].filename == __file__  # the user's line
    prv.step(noise_multiplier=2.0, sample_rate=0.02)
    assert (prv.history, len(prv)) == ([(1.1, 0.02, 300), (2.0, 0.02, 1)], 301)
    prv.get_optimizer_hook_fn(sample_rate=0.2)(private().optimizer)
    assert prv.history[-1] == (1.0, 0.2, 1)


@pytest.mark.parametrize("kind", [PRVAccountant, RDPAccountant])
def test_no_steps_cost_nothing_and_no_noise_costs_everything(kind: type[IAccountant]) -> None:
    accountant = kind()
    assert accountant.get_epsilon(1e-5) == 0
    accountant.step(noise_multiplier=0.0, sample_rate=0.1)
    assert accountant.get_epsilon(1e-5) == math.inf


def test_a_state_is_loaded_only_by_its_own_kind() -> None:
    state, later = counted(PRVAccountant).state_dict(), PRVAccountant()
    later.load_state_dict(state)
    assert later.history == [(1.1, 0.02, 300)]
    for accountant, wrong in ((RDPAccountant(), state), (later, {"mechanism": "prv"}), (later, {})):
        with invalid("state_dict"):
            accountant.load_state_dict(wrong)
    with invalid("steps"):
        later.load_state_dict({"mechanism": "prv", "history": [(1.0, 0.1, -5)]})


def test_options_that_would_change_the_result_are_refused() -> None:
    with invalid("alphas"):
        RDPAccountant().get_epsilon(1e-5, alphas=[2.0])  # type: ignore[arg-type]
    with invalid("poisson"):
        GaussianAccountant().get_epsilon(1e-5, poisson=False)
    with invalid("sampling_probability"):
        PRVAccountant().step(noise_multiplier=1.0, sample_rate=math.nan)


class Hopeful(PRVAccountant):
    def get_epsilon(self, delta: float) -> float:  # type: ignore[override]
        return 0.0


def test_a_custom_accountant_is_no_guarantee_and_cannot_replace_a_built_in_one() -> None:
    assert [create_accountant(name).mechanism() for name in ("prv", "rdp", "gdp")] == ["prv", "rdp", "gdp"]
    register_accountant("hopeful", Hopeful, force=True)
    with pytest.warns(UnprovenWarning, match="user's own"):
        engine = PrivacyEngine(accountant="hopeful")
    assert not engine.claim(delta=1e-5).is_proven
    for name, force in (("prv", False), ("hopeful", False), ("prv", True)):
        with invalid("mechanism"):
            register_accountant(name, Hopeful, force=force)


TARGET: dict[str, Any] = {"target_epsilon": 2.0, "target_delta": 1e-5, "sample_rate": 0.02}


def test_noise_is_calibrated_to_the_target_and_to_earlier_steps() -> None:
    sigma = get_noise_multiplier(**TARGET, steps=100, accountant="prv")
    assert 0.99 * 2 <= bound(Repeated(PoissonSampled(0.02, Gaussian(sigma)), 100), delta=1e-5).epsilon <= 2
    assert get_noise_multiplier(**TARGET, epochs=2) == get_noise_multiplier(**TARGET, steps=100)
    before = Repeated(PoissonSampled(0.02, Gaussian(1.5)), 100)
    more = calibrate(2.0, 1e-5, accountant="prv", sample_rate=0.02, steps=100, before=before)
    assert more > sigma
    assert bound(together(before, Repeated(PoissonSampled(0.02, Gaussian(more)), 100)), delta=1e-5).epsilon <= 2


@pytest.mark.parametrize("given", [{}, {"steps": 10, "epochs": 1}, {"steps": 10, "accountant": "gdp"}])
def test_calibration_needs_a_length_and_a_bound(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        get_noise_multiplier(**TARGET, **given)
