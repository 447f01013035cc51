"""Methods as combinations of components, by name and from files, and what their runs charge and claim."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import PrivateChoice, PrivateEnergy
from lehr.acceptance.rules import Always, BestStep, NoisyMax, NoisyTest, Salvage
from lehr.accounting import ACCOUNTANTS, bound
from lehr.accounting.events import Gaussian, PoissonSampled, Repeated, counted
from lehr.accounting.ledger import Ledger
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.methods import (
    METHODS,
    adadp,
    adal,
    adan,
    agd,
    auto_s,
    dpopt,
    dpsgd,
    dpsgd_per_layer,
    dpsur,
    named,
    plain_sgd,
    sa_dpsgd,
)
from lehr.methods.by_name import MOMENTS
from lehr.optim.optimizers import Update, adam, sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import (
    AdaptiveClip,
    AutomaticClip,
    FlatClip,
    PerLayerClip,
    RawPrior,
    ReleasedPrior,
    ScheduledClip,
    Unclipped,
)
from lehr.privacy.noise import BudgetedNoise, IsotropicNoise, NoNoise, OptimisedNoise, ProportionalNoise
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Mechanism, Method
from lehr.run.shape import Callback, Progress
from lehr.schedules import Cosine, LinearWarmup, StepDecay
from lehr.training.public_plan import MOST_CANDIDATES
from tests.training.tiny import HELD, PRIVATE, fit_tiny, linear, new_budget

PLAN = Plan(noise_multiplier=1.5, expected_batch_size=8, records=40, steps=5, delta=1e-3)
STEP = PoissonSampled(0.2, Gaussian(1.0))
ENERGY = PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=10)
TEST = PrivateEnergy(loss_clip=0.01, noise_multiplier=2.0, expected_batch_size=100, clipped="batch")
HALVED = StepDecay(every=2, decay=0.5)
SLOTS = ("clipping", "noise", "update", "acceptance")
RMSPROP = Update(optimizer="rmsprop", learning_rate=0.002, arguments={"alpha": 0.8})


def published(prior: Any, **settings: Any) -> AdaptiveClip:
    return AdaptiveClip(clip_norm=2.0, prior=prior, **settings)


COMPOSED: list[tuple[Method, tuple[Any, ...]]] = [
    (
        dpsgd(learning_rate=0.3, clip_norm=2.0, momentum=0.8),
        (FlatClip(2.0), IsotropicNoise(), sgd(0.3, momentum=0.8), Always()),
    ),
    (
        dpsgd_per_layer(clip_norm=2.0, shares={"last": 1.0, "first": 3.0}, clip_schedule=HALVED, update=adam(0.1)),
        (
            ScheduledClip(PerLayerClip(2.0, shares=(("first", 3.0), ("last", 1.0))), HALVED),
            IsotropicNoise(),
            adam(0.1),
            Always(),
        ),
    ),
    (
        auto_s(learning_rate=0.3, clip_norm=2.0, stability=0.05, momentum=0.0, schedule=Cosine(total_steps=9)),
        (
            AutomaticClip(2.0, stability=0.05),
            IsotropicNoise(),
            sgd(0.3, momentum=0.0, schedule=Cosine(total_steps=9)),
            Always(),
        ),
    ),
    (plain_sgd(learning_rate=0.2, momentum=0.5), (Unclipped(), NoNoise(), sgd(0.2, momentum=0.5), Always())),
    (
        adadp(clip_norm=2.0, memory=0.7, decay=0.8),
        (published(ReleasedPrior(memory=0.7)), ProportionalNoise(), RMSPROP, Always()),
    ),
    (
        adadp(clip_norm=2.0, memory=0.7, decay=0.8, accounting="published"),
        (published(RawPrior(memory=0.7), bound_scale=1.2), ProportionalNoise(), RMSPROP, Always()),
    ),
    (
        adan(clip_norm=2.0, learning_rate=0.2),
        (published(ReleasedPrior()), ProportionalNoise(), sgd(0.2, momentum=0.0), Always()),
    ),
    (adal(clip_norm=2.0, learning_rate=0.002, decay=0.8), (FlatClip(2.0), IsotropicNoise(), RMSPROP, Always())),
    (
        dpopt(clip_norm=2.0, memory=0.8, bound_scale=1.5, found_by="projected-gradient", least_share=0.2),
        (
            published(ReleasedPrior(memory=0.8), bound_scale=1.5),
            OptimisedNoise(found_by="projected-gradient", memory=0.8, least_share=0.2),
            sgd(0.1, momentum=0.0),
            Always(),
        ),
    ),
    (
        dpsur(clip_norm=1.0, learning_rate=0.3, loss_clip=0.01, test_noise_multiplier=2.0, test_batch_size=100),
        (FlatClip(1.0), IsotropicNoise(), sgd(0.3, momentum=0.9), NoisyTest(energy=TEST, threshold=-1.0)),
    ),
    (
        agd(clip_norm=0.7, loss_clip=2.0, choice_epsilon=0.3, growth=0.2, step_sizes=5, largest_step=1.5),
        (
            FlatClip(0.7),
            BudgetedNoise(growth=0.2),
            Update(optimizer="normalised-sgd", learning_rate=1.0),
            Salvage(NoisyMax(energy=PrivateChoice(loss_clip=2.0, epsilon=0.3), step_sizes=5, largest=1.5)),
        ),
    ),
    (
        sa_dpsgd(learning_rate=0.3, clip_norm=2.0, initial_inverse_temperature=5.0, rejection_threshold=3),
        (
            FlatClip(2.0),
            IsotropicNoise(),
            sgd(0.3, momentum=0.9),
            Annealed(initial_inverse_temperature=5.0, rejection_threshold=3),
        ),
    ),
]


@pytest.mark.parametrize("method, slots", COMPOSED, ids=lambda value: getattr(value, "name", ""))
def test_a_method_composes_its_components(method: Method, slots: tuple[Any, ...]) -> None:
    for name, expected in zip(SLOTS, slots, strict=True):
        assert getattr(method, name) == expected, name
    assert method.is_private == (method.name != "plain-sgd")
    if method.is_private and isinstance(method.acceptance, Always | Annealed) and method.published is None:
        assert Mechanism.of(method, PLAN).event(1.5) == PLAN.step_event


@pytest.mark.parametrize(
    "settings, acceptance",
    [
        ({"salvage": True}, Salvage(Annealed())),
        ({"step_scales": [0.5, 1.0]}, BestStep(Annealed(), (0.5, 1.0))),
        ({"salvage": True, "step_scales": [0.5, 1.0]}, BestStep(Salvage(Annealed()), (0.5, 1.0))),
        ({"energy": ENERGY}, Annealed(energy=ENERGY)),
        ({"keeps_momentum": True, "accounting": "published"}, Annealed(keeps_momentum=True)),
        ({"keeps_momentum": True, "momentum": 0.0, "update": adam(0.1)}, Annealed(keeps_momentum=True)),
    ],
    ids=str,
)
def test_the_acceptance_of_sa_dpsgd(settings: dict[str, Any], acceptance: Any) -> None:
    assert sa_dpsgd(**settings).acceptance == acceptance


# --- By name --------------------------------------------------------------------------------------------------------


def test_every_method_is_found_under_its_own_name() -> None:
    assert " ".join(METHODS) == "adadp adal adan agd auto-s dpopt dpsgd dpsgd-per-layer dpsur plain-sgd sa-dpsgd"
    assert [named(name).name for name in METHODS] == list(METHODS)
    assert not MOMENTS.is_broken
    assert not MOMENTS.counts_accepted_only


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_norm": 1.0},
        {"schedule": LinearWarmup(steps=2, after=Cosine(total_steps=9))},
        {"schedule": {"kind": "constant"}},
        {"update": adam(0.02)},
        {"update": adam(0.02).to_json(), "clip_norm": 3.0},
    ],
    ids=str,
)
def test_recorded_settings_make_the_same_method_again(settings: dict[str, Any]) -> None:
    method = named("dpsgd", **settings)
    recorded = json.loads(json.dumps(dict(method.settings)))
    again = named("dpsgd", **recorded)
    assert all(getattr(again, slot) == getattr(method, slot) for slot in SLOTS)
    assert dict(again.settings) == recorded


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    ("dp-sgd", {}, "method"),
    (3, {}, "method"),
    ("dpsgd", {"clip_nrom": 1.0}, "setting of dpsgd"),
    ("dpsgd", {"stability": 0.1}, "setting of dpsgd"),
    *(
        ("dpsgd", {name: value}, name)
        for name in ("learning_rate", "clip_norm", "momentum")
        for value in (math.nan, math.inf, "much", True)
    ),
    ("dpsgd", {"momentum": -1.0}, "arguments of sgd"),
    ("dpsgd", {"schedule": "cosine"}, "schedule"),
    ("dpsgd", {"schedule": {"kind": "sine"}}, "schedule"),
    ("dpsgd", {"clip_schedule": {"kind": "up"}}, "clip_schedule"),
    ("dpsgd", {"update": "adam"}, "update"),
    ("dpsgd", {"update": adam(0.1).to_json(), "momentum": 0.5}, "update"),
    ("dpsgd-per-layer", {"shares": 3}, "shares"),
    ("dpsgd-per-layer", {"clip_norm": -1.0}, "clip_norm"),
    ("auto-s", {"stability": math.nan}, "stability"),
    ("auto-s", {"clip_norm": -1.0}, "clip_norm"),
    *((name, {"clip_norm": math.nan}, "clip_norm") for name in ("adadp", "adan", "adal", "dpopt")),
    *((name, {"learning_rate": -1.0}, "learning_rate") for name in ("adadp", "adan", "adal", "dpopt")),
    ("adal", {"decay": 1.5}, "decay"),
    ("dpopt", {"found_by": "search"}, "found_by"),
    ("dpopt", {"least_share": 2.0}, "least_share"),
    ("dpsur", {"loss_clip": 0.0}, "loss_clip"),
    ("dpsur", {"threshold": "abc"}, "threshold"),
    ("dpsur", {"clipped": "mean"}, "clipped"),
    ("agd", {"growth": math.nan}, "growth"),
    ("agd", {"step_sizes": 0}, "step_sizes"),
    ("agd", {"adapted_every": 0}, "adapted_every"),
    ("agd", {"accounting": "published"}, "accounting"),
    ("plain-sgd", {"accounting": "published"}, "accounting"),
    ("sa-dpsgd", {"rejection_threshold": 1.5}, "rejection_threshold"),
    ("sa-dpsgd", {"initial_inverse_temperature": math.nan}, "initial_inverse_temperature"),
    ("sa-dpsgd", {"salvage": "no"}, "salvage"),
    ("sa-dpsgd", {"step_scales": 2}, "step_scales"),
    ("sa-dpsgd", {"energy": {"kind": "private choice", "loss_clip": 1.0, "epsilon": 0.1}}, "energy"),
    ("sa-dpsgd", {"energy": ENERGY, "step_scales": [0.5, 1.0]}, "inner"),
    ("sa-dpsgd", {"keeps_momentum": True, "salvage": True}, "keeps_momentum"),
    ("sa-dpsgd", {"keeps_momentum": True, "momentum": 0.0}, "keeps_momentum"),
    ("sa-dpsgd", {"accounting": "published", "salvage": True}, "accounting"),
    ("sa-dpsgd", {"accounting": "published", "step_scales": (0.5, 1.0)}, "accounting"),
    *(
        (name, {"accounting": word}, "accounting")
        for name in ("dpsgd", "adadp", "dpsur", "sa-dpsgd")
        for word in ("Proven", "", None, True)
    ),
]


@pytest.mark.parametrize("method, settings, name", REFUSED, ids=str)
def test_unknown_and_impossible_settings_are_refused_by_name(method: Any, settings: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        named(method, **settings)
    assert refused.value.name == name


# --- Runs -----------------------------------------------------------------------------------------------------------


def charged(folder: Path) -> dict[Any, int]:
    with Ledger.open(folder / "ledger.db") as ledger:
        return dict(counted(ledger.charged()))


def test_adadp_as_published_has_the_papers_number_and_no_guarantee(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=adadp(accounting="published"), settings_chosen_on="fixed")
    assert run.published is not None
    assert run.published.kind == "published"
    assert math.isfinite(run.published.epsilon)
    assert "docs/published_claims.md" in run.published.broken[0].because
    assert (run.proven.epsilon, run.certificate) == (math.inf, None)


def test_adadp_as_proven_costs_as_much_as_dpsgd(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=adadp(), settings_chosen_on="fixed")
    plain = fit_tiny(tmp_path / "plain", method="dpsgd")
    assert run.certificate is not None
    assert run.published is None
    assert run.proven.epsilon == plain.proven.epsilon <= run.certificate.epsilon
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)  # rounded up


def test_the_papers_rule_for_adal_holds(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method="adal", accounting="published")
    assert run.published is not None
    assert run.published.is_proven
    assert run.proven.epsilon <= run.published.epsilon < math.inf


SMALL_TEST: dict[str, Any] = {"clip_norm": 1.0, "test_batch_size": 10, "test_noise_multiplier": 2.0}


@pytest.mark.parametrize("method", [dpsur(**SMALL_TEST), sa_dpsgd(energy=ENERGY)], ids=lambda method: method.name)
def test_every_candidate_is_charged_for_its_gradient_and_its_query(method: Method, tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", method=method, settings_chosen_on="fixed", test=None)
    query = PoissonSampled(0.25, Gaussian(2.0))
    assert charged(tmp_path / "run") == dict(counted(run.plan.event)) == {STEP: 5, query: 5}
    assert run.certificate is not None
    assert counted(run.certificate.event) == {STEP: 5, query: 5}
    assert run.certificate.epsilon > bound(Repeated(STEP, 5), delta=1e-3).epsilon


def test_a_query_of_more_records_than_there_are_is_refused_before_anything_is_spent(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="at most the 40 records"):
        fit_tiny(tmp_path / "run", method=dpsur(test_batch_size=256))
    assert not (tmp_path / "run").exists()


def test_dpsur_as_published_counts_accepted_candidates_and_charges_all(tmp_path: Path) -> None:
    method = dpsur(**SMALL_TEST, accounting="published", threshold=1e6)
    run = fit_tiny(tmp_path / "run", method=method, steps=3, settings_chosen_on="fixed")
    assert (run.plan.stops_at_accepted, run.plan.steps) == (3, 3 * MOST_CANDIDATES)
    assert (run.end.accepted, run.end.step) == (3, 3)
    assert run.published is not None
    assert run.published.epsilon < run.proven.epsilon < math.inf
    assert run.certificate is not None
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)
    [claim] = run.certificate.published_claims
    assert (claim, claim.kind) == (run.published, "published")


@pytest.mark.parametrize("keeps_momentum", [False, True])
def test_sa_dpsgd_as_published_plans_for_all_candidates_and_counts_them(keeps_momentum: bool, tmp_path: Path) -> None:
    method = sa_dpsgd(rejection_threshold=2, accounting="published", keeps_momentum=keeps_momentum)
    run = fit_tiny(tmp_path / "run", method=method, steps=3, settings_chosen_on="fixed")
    assert (run.plan.steps, run.plan.stops_at_accepted, run.end.accepted) == (3 * (2 + 1), 3, 3)
    assert run.published is not None
    assert run.certificate is not None
    # The paper's number is that of three steps; what holds is that of nine candidates.
    paper = ACCOUNTANTS["rdp-mironov17"].epsilon(Repeated(STEP, 3), delta=1e-3, adjacency=run.plan.adjacency)
    assert run.published.epsilon == paper
    assert run.proven.epsilon == bound(Repeated(STEP, 9), delta=1e-3).epsilon
    assert run.certificate.epsilon == pytest.approx(run.proven.epsilon, rel=1e-6)
    assert [claim.kind for claim in run.certificate.published_claims] == ["published"]
    assert charged(tmp_path / "run") == {run.plan.step_event: run.end.step}
    # One more premise is broken where rejected gradients stay in the momentum.
    assert ("stay in the momentum" in str(run.published.premises)) == keeps_momentum
    assert ("stay in the momentum" in (tmp_path / "run/certificate.json").read_text("utf-8")) == keeps_momentum
    config = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))
    assert config["method"]["acceptance"]["keeps_momentum"] is keeps_momentum


def test_sa_dpsgd_as_published_has_the_noise_of_the_papers_rule(tmp_path: Path) -> None:
    method = sa_dpsgd(rejection_threshold=20, accounting="published")
    run = fit_tiny(tmp_path / "run", method=method, noise_multiplier=None, epsilon=2.0, steps=3)
    assert run.published is not None
    assert 0.99 * 2 <= run.published.epsilon <= 2 < run.proven.epsilon


# --- Without privacy ------------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"method": "plain-sgd", "delta": None, "noise_multiplier": None}
EVERYBODY: dict[str, Any] = {**PLAIN, "records": HELD, "expected_batch_size": HELD}  # nothing is random


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise KeyboardInterrupt


def test_plain_sgd_has_an_infinite_epsilon_and_no_certificate(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", **PLAIN, settings_chosen_on="fixed")
    assert (run.certificate, run.published) == (None, None)
    assert not (tmp_path / "run/certificate.json").exists()
    assert run.proven.epsilon == run.end.epsilon_spent == math.inf
    assert run.evaluations
    assert all(row.epsilon_spent == math.inf for row in run.evaluations)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert "NoNoise" in json.dumps(config["method"]["noise_rule"])


def test_plain_sgd_is_torchs_and_resumes_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunKey, "fresh", lambda **_: RunKey(bytes(range(32))))  # by which records are put into order
    whole = fit_tiny(tmp_path / "whole", **EVERYBODY)
    with pytest.raises(KeyboardInterrupt):
        fit_tiny(tmp_path / "run", **EVERYBODY, callbacks=[StopAt(3)])
    run = fit_tiny(tmp_path / "run", **EVERYBODY, resume=True)
    assert (run.end.step, run.evaluations) == (5, whole.evaluations)
    model, (inputs, labels) = linear(), PRIVATE
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(whole.model.state_dict()[name], value)
        assert torch.equal(run.model.state_dict()[name], whole.model.state_dict()[name])


@pytest.mark.parametrize("wrong", [{"epsilon": 3.0}, {"noise_multiplier": 1.0}, {"steps": None}], ids=str)
def test_settings_of_privacy_are_refused_without_it(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue) as refused:
        fit_tiny(tmp_path / "run", **{**PLAIN, **wrong})
    assert [refused.value.name] == list(wrong)


def test_no_budget_pays_for_a_run_without_privacy(tmp_path: Path) -> None:
    with pytest.raises(BudgetExceeded, match="to inf"):
        fit_tiny(tmp_path / "run", **PLAIN, budget=new_budget(tmp_path / "budget"))
