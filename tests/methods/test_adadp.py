"""ADADP, ADAN and ADAL as combinations of components."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.errors import InvalidValue
from lehr.methods.adadp import adadp, adal, adan
from lehr.optim.optimizers import Update, sgd
from lehr.privacy.clipping import AdaptiveClip, FlatClip, RawPrior, ReleasedPrior
from lehr.privacy.noise import IsotropicNoise, ProportionalNoise
from lehr.run.mechanism import Method
from tests.training.tiny import fit_tiny


def test_adadp_has_both_parts_adan_the_noise_and_adal_the_steps() -> None:
    both, noise, steps = adadp(clip_norm=2.0), adan(clip_norm=2.0, learning_rate=0.2), adal(clip_norm=2.0, decay=0.8)
    assert both.clipping == noise.clipping == AdaptiveClip(clip_norm=2.0, prior=ReleasedPrior())
    assert both.noise == noise.noise == ProportionalNoise()
    assert noise.update == sgd(0.2, momentum=0.0)
    assert (steps.clipping, steps.noise) == (FlatClip(2.0), IsotropicNoise())
    assert steps.update == Update(optimizer="rmsprop", learning_rate=0.001, arguments={"alpha": 0.8})
    assert isinstance(both.update, Update)
    assert both.update.optimizer == "rmsprop"


@pytest.mark.parametrize("made", [adadp, adan])
def test_only_as_published_are_the_bounds_taken_from_gradients_without_noise(made: Callable[..., Method]) -> None:
    proven, published = made(memory=0.7), made(memory=0.7, accounting="published")
    assert isinstance(proven.clipping, AdaptiveClip)
    assert isinstance(published.clipping, AdaptiveClip)
    assert proven.clipping.prior == ReleasedPrior(memory=0.7)
    assert published.clipping.prior == RawPrior(memory=0.7)
    assert proven.published is None
    assert published.published is not None
    assert published.published.is_broken


def test_as_published_there_is_the_papers_number_and_no_guarantee(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=adadp(accounting="published"), settings_chosen_on="fixed")
    assert run.published is not None
    assert run.published.kind == "published"
    assert math.isfinite(run.published.epsilon)
    assert "no noise" in run.published.broken[0].because
    assert "docs/published_claims.md" in run.published.broken[0].because
    assert run.proven.epsilon == math.inf
    assert run.certificate is None


def test_as_proven_there_is_a_certificate_and_it_costs_what_dpsgd_costs(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=adadp(), settings_chosen_on="fixed")
    plain = fit_tiny(tmp_path / "plain", method="dpsgd")
    assert run.certificate is not None
    assert run.published is None
    assert run.proven.epsilon == plain.proven.epsilon <= run.certificate.epsilon
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)  # rounded up


def test_the_papers_rule_for_adal_holds_and_is_a_bound(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method="adal", accounting="published")
    assert run.published is not None
    assert run.published.is_proven
    assert run.proven.epsilon <= run.published.epsilon < math.inf


@pytest.mark.parametrize("made", [adadp, adan])
@pytest.mark.parametrize("wrong", [{"clip_norm": math.nan}, {"learning_rate": -1.0}, {"accounting": "paper"}], ids=str)
def test_a_setting_that_is_not_sound_is_refused_by_name(made: Callable[..., Method], wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as caught:
        made(**wrong)
    assert [caught.value.name] == list(wrong)


@pytest.mark.parametrize("wrong", [{"clip_norm": math.nan}, {"learning_rate": -1.0}, {"decay": 1.5}], ids=str)
def test_settings_of_adal_that_cannot_be_are_refused_by_their_own_names(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(InvalidValue, match=name):
        adal(**wrong)
