"""DPSUR as a combination of components: every candidate is charged for its gradient and for its test."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from lehr.acceptance.proposal import PrivateEnergy
from lehr.acceptance.rules import NoisyTest
from lehr.accounting.events import Gaussian, PoissonSampled, counted
from lehr.accounting.ledger import Ledger
from lehr.errors import InvalidValue
from lehr.methods.dpsgd import dpsgd
from lehr.methods.dpsur import dpsur
from lehr.privacy.clipping import FlatClip
from lehr.training.public_plan import MOST_CANDIDATES
from tests.training.tiny import fit_tiny

SMALL: dict[str, Any] = {"clip_norm": 1.0, "test_batch_size": 10, "test_noise_multiplier": 2.0}


def test_it_is_dpsgd_with_a_test_on_private_records() -> None:
    method = dpsur(clip_norm=1.0, learning_rate=0.3, loss_clip=0.01, test_noise_multiplier=2.0, test_batch_size=100)
    energy = PrivateEnergy(loss_clip=0.01, noise_multiplier=2.0, expected_batch_size=100, clipped="batch")
    assert method.acceptance == NoisyTest(energy=energy, threshold=-1.0)
    assert method.clipping == FlatClip(1.0)
    assert method.update == dpsgd(learning_rate=0.3).update
    assert method.published is None


def test_every_candidate_is_charged_for_its_gradient_and_for_its_test(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=dpsur(**SMALL), settings_chosen_on="fixed")
    step, test = PoissonSampled(0.2, Gaussian(1.0)), PoissonSampled(0.25, Gaussian(2.0))
    with Ledger.open(tmp_path / "run/ledger.db") as ledger:
        assert counted(ledger.charged()) == {step: 5, test: 5}
    assert run.end.step == 5
    assert run.certificate is not None
    assert counted(run.certificate.event) == {step: 5, test: 5}
    assert run.certificate.epsilon > fit_tiny(tmp_path / "plain", method=dpsgd(clip_norm=1.0)).proven.epsilon


def test_as_published_accepted_candidates_are_counted_and_all_are_charged(tmp_path: Path) -> None:
    method = dpsur(**SMALL, accounting="published", threshold=1e6)
    run = fit_tiny(tmp_path / "run", method=method, steps=3, settings_chosen_on="fixed")
    assert run.plan.stops_at_accepted == 3
    assert run.plan.steps == 3 * MOST_CANDIDATES
    assert (run.end.accepted, run.end.step) == (3, 3)
    assert run.published is not None
    assert run.published.epsilon < run.proven.epsilon < math.inf
    assert run.certificate is not None
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)
    [published] = run.certificate.published_claims
    assert published == run.published
    assert published.kind == "published"


@pytest.mark.parametrize(
    "wrong",
    [{"loss_clip": 0.0}, {"threshold": math.nan}, {"clipped": "mean"}, {"accounting": "paper"}, {"clip_norm": -1.0}],
    ids=str,
)
def test_a_setting_that_is_not_sound_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        dpsur(**wrong)
    assert [caught.value.name] == list(wrong)


def test_a_test_on_more_records_than_there_are_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="batch size of a query"):
        fit_tiny(tmp_path / "run", method=dpsur(test_batch_size=256))
    assert not (tmp_path / "run").exists()
