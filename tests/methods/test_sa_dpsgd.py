"""SA-DPSGD as a combination of components."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import PrivateEnergy, PublicEnergy
from lehr.acceptance.rules import BestStep, Salvage
from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.events import Gaussian, PoissonSampled, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.errors import InvalidValue
from lehr.methods.dpsgd import dpsgd
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.optim.optimizers import adam
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.run.mechanism import Mechanism
from tests.training.tiny import fit_tiny

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)
PLAN_STEP = PoissonSampled(0.2, Gaussian(1.0))
ENERGY = PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=10)


def test_it_is_dpsgd_whose_candidates_may_be_refused() -> None:
    method = sa_dpsgd(learning_rate=0.3, clip_norm=2.0, initial_inverse_temperature=5.0, rejection_threshold=3)
    assert method.clipping == FlatClip(2.0)
    assert method.update == dpsgd(learning_rate=0.3).update
    assert method.acceptance == Annealed(initial_inverse_temperature=5.0, rejection_threshold=3)
    assert method.acceptance.energy == PublicEnergy()


def test_a_candidate_costs_what_a_step_of_dpsgd_costs() -> None:
    assert Mechanism.of(sa_dpsgd(), PLAN).event(1.5) == Mechanism.of(dpsgd(), PLAN).event(1.5) == PLAN.step_event


@pytest.mark.parametrize(
    "said",
    [{"rejection_threshold": 0}, {"initial_inverse_temperature": float("nan")}, {"initial_inverse_temperature": 0.0}],
    ids=str,
)
def test_a_setting_that_is_no_sound_number_is_refused_by_name(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        sa_dpsgd(**said)
    assert [caught.value.name] == list(said)


def test_salvage_and_step_sizes_go_round_the_annealing() -> None:
    assert sa_dpsgd(salvage=True).acceptance == Salvage(Annealed())
    assert sa_dpsgd(step_scales=[0.5, 1.0]).acceptance == BestStep(Annealed(), (0.5, 1.0))
    assert sa_dpsgd(salvage=True, step_scales=[0.5, 1.0]).acceptance == BestStep(Salvage(Annealed()), (0.5, 1.0))


def test_momentum_is_kept_by_rejections_or_salvaged_gradients_are_averaged_and_not_both() -> None:
    assert sa_dpsgd(keeps_momentum=True, accounting="published").acceptance == Annealed(keeps_momentum=True)
    with pytest.raises(InvalidValue, match="keeps_momentum must be false with salvage"):
        sa_dpsgd(keeps_momentum=True, salvage=True)
    with pytest.raises(InvalidValue, match="keeps_momentum must be false where momentum is 0"):
        sa_dpsgd(keeps_momentum=True, momentum=0.0)
    assert sa_dpsgd(keeps_momentum=True, momentum=0.0, update=adam(0.1)).acceptance == Annealed(keeps_momentum=True)


def test_as_published_a_momentum_that_is_kept_is_one_more_premise_that_is_broken(tmp_path: Path) -> None:
    method = sa_dpsgd(keeps_momentum=True, rejection_threshold=2, accounting="published")
    run = fit_tiny(tmp_path / "run", method=method, steps=3, settings_chosen_on="fixed")
    assert run.certificate is not None
    assert run.published is not None
    certificate = (tmp_path / "run/certificate.json").read_text(encoding="utf-8")
    for told in (str(run.published), certificate):
        assert "rejected gradients also stay in the momentum" in told
    assert run.certificate.claim.kind == "proven"
    config = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))
    assert config["method"]["acceptance"]["keeps_momentum"] is True


def test_a_private_energy_is_asked_and_cannot_be_asked_about_several_step_sizes() -> None:
    assert sa_dpsgd(energy=ENERGY).acceptance == Annealed(energy=ENERGY)
    with pytest.raises(InvalidValue, match="public energy"):
        sa_dpsgd(energy=ENERGY, step_scales=[0.5, 1.0])


@pytest.mark.parametrize("said", [{"salvage": True}, {"step_scales": (0.5, 1.0)}], ids=str)
def test_as_published_what_was_rejected_is_not_used(said: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="accounting must be proven where rejected gradients are used"):
        sa_dpsgd(accounting="published", **said)


def test_as_published_the_plan_has_as_many_candidates_as_can_be_needed_and_all_are_counted(tmp_path: Path) -> None:
    method = sa_dpsgd(rejection_threshold=2, accounting="published")
    run = fit_tiny(tmp_path / "run", method=method, steps=3, settings_chosen_on="fixed")
    assert (run.plan.steps, run.plan.stops_at_accepted) == (3 * (2 + 1), 3)
    assert run.end.accepted == 3
    assert run.published is not None
    assert run.certificate is not None
    # The paper's number is that of three steps; what holds is that of nine candidates.
    three, nine = Repeated(PLAN_STEP, 3), Repeated(PLAN_STEP, 9)
    adjacency = run.plan.adjacency
    assert run.published.epsilon == ACCOUNTANTS["rdp-mironov17"].epsilon(three, delta=1e-3, adjacency=adjacency)
    assert run.proven.epsilon == bound(nine, delta=1e-3).epsilon
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)
    assert [stated.kind for stated in run.certificate.published_claims] == ["published"]
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {run.plan.step_event: run.end.step}


def test_as_published_the_noise_is_that_of_the_papers_rule(tmp_path: Path) -> None:
    said: dict[str, Any] = {"noise_multiplier": None, "epsilon": 2.0, "steps": 3}
    method = sa_dpsgd(rejection_threshold=20, accounting="published")
    run = fit_tiny(tmp_path / "run", method=method, **said)
    assert run.published is not None
    assert 0.99 * 2 <= run.published.epsilon <= 2 < run.proven.epsilon


def test_a_private_energy_is_charged_for_every_candidate(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=sa_dpsgd(energy=ENERGY), test=None)
    asked = PoissonSampled(0.25, Gaussian(2.0))
    assert counted(run.plan.event) == {PLAN_STEP: 5, asked: 5}
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {PLAN_STEP: 5, asked: 5}
