"""Certificates and budgets of a loop that is somebody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from lehr.accounting import bound
from lehr.compat.opacus import PrivacyEngine, UnprovenWarning
from lehr.compat.opacus.promise import Planned, Promise
from lehr.compat.opacus.spending import Allowed
from lehr.errors import BudgetExceeded, InvalidValue, StoreError
from lehr.events import NOTHING, Adjacency, Gaussian, PoissonSampled, Repeated, together
from lehr.planning.budget import Budget
from lehr.reports import certificate_file
from lehr.reports.certificate import Statements
from lehr.reports.checking import check
from tests.compat.opacus.loops import Loop, network, private, records, sgd, take_steps

DELTA = 1e-3
STEP = PoissonSampled(8 / 40, Gaussian(1.0))
STEPS_OF_AN_EPOCH = 5


def planned_loop(engine: PrivacyEngine, *, epochs: int = 2) -> Loop:
    return private(engine, epochs=epochs)


def with_target(engine: PrivacyEngine, *, epsilon: float) -> Loop:
    model = network()
    made = engine.make_private_with_epsilon(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(records(), batch_size=8),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=2,
        max_grad_norm=1.0,
    )
    return Loop(engine, made[0], made[1], made[-1])


def a_budget(tmp_path: Path, *, epsilon: float = 20.0, **options: Any) -> Path:
    path = tmp_path / "data.budget"
    Budget.create(path, dataset="names", epsilon=epsilon, delta=DELTA, **options).close()
    return path


def test_a_certificate_is_for_all_that_was_planned_wherever_the_loop_stopped(tmp_path: Path) -> None:
    engine = PrivacyEngine(directory=tmp_path / "run", delta=DELTA, settings_chosen_on="fixed")
    take_steps(planned_loop(engine), 3)
    certificate = engine.finish()
    assert certificate is not None
    assert certificate.event == Repeated(STEP, 2 * STEPS_OF_AN_EPOCH)
    assert certificate.epsilon == pytest.approx(bound(certificate.event, delta=DELTA).epsilon, rel=1e-6)
    assert certificate.ex_post is not None
    assert certificate.ex_post.event == Repeated(STEP, 3)
    assert certificate.stated.records == 40
    assert certificate_file.read(tmp_path / "run/certificate.json") == certificate
    check(certificate)
    assert engine.finish() is certificate


def test_a_target_is_what_the_certificate_stays_within() -> None:
    engine = PrivacyEngine(stated=Statements(settings_chosen_on="public"))
    take_steps(with_target(engine, epsilon=3.0), 2 * STEPS_OF_AN_EPOCH)
    certificate = engine.finish()
    assert certificate is not None
    assert 2.9 < certificate.epsilon <= 3.0
    assert certificate.delta == DELTA


def test_what_was_done_before_is_certified_too(tmp_path: Path) -> None:
    first = PrivacyEngine(directory=tmp_path, delta=DELTA)
    take_steps(private(first, noise_multiplier=2.0), 1)
    first.finish()
    engine = PrivacyEngine(directory=tmp_path, delta=DELTA, settings_chosen_on="fixed")
    before = engine.accountant.event()
    planned_loop(engine)
    certificate = engine.finish()
    assert before != NOTHING
    assert certificate is not None
    assert certificate.event == together(before, Repeated(STEP, 2 * STEPS_OF_AN_EPOCH))


def test_no_step_is_taken_behind_the_end() -> None:
    loop = planned_loop(PrivacyEngine(delta=DELTA, settings_chosen_on="fixed"))
    take_steps(loop, 1)
    loop.engine.finish()
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    with pytest.raises(InvalidValue, match="finish"):
        take_steps(loop, 1)
    assert all(torch.equal(*pair) for pair in zip(before, loop.model.parameters(), strict=True))


def test_a_planned_loop_refuses_the_step_behind_its_plan() -> None:
    loop = private(epochs=1)
    take_steps(loop, STEPS_OF_AN_EPOCH)
    with pytest.raises(BudgetExceeded):
        take_steps(loop, 1)
    assert loop.engine.finish() is None


def test_a_budget_pays_for_the_steps_that_were_taken(tmp_path: Path) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, budget=path, name="first", settings_chosen_on="fixed")
    loop = planned_loop(engine)
    with Budget.open(path) as account:
        assert account.reservation("first").event == Repeated(STEP, 2 * STEPS_OF_AN_EPOCH)
    take_steps(loop, 3)
    certificate = engine.finish()
    with Budget.open(path) as account:
        [ours] = account.status().runs
    assert ours.is_settled
    assert ours.charged == Repeated(STEP, 3)
    assert certificate is not None
    assert certificate.budget is not None
    assert certificate.budget.dataset == "names"
    check(certificate)


def test_what_a_budget_does_not_cover_is_refused_and_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    path = a_budget(tmp_path, epsilon=0.5)
    model = network()
    with pytest.raises(BudgetExceeded):
        private(PrivacyEngine(budget=path), model=model, epochs=2)
    assert "forward" not in vars(model)
    private(model=model)


@pytest.mark.parametrize("asked", [{"settings_chosen_on": "fixed", "delta": DELTA}, {"budget": "data.budget"}])
def test_a_loop_without_a_plan_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match="epochs"):
        private(PrivacyEngine(**asked))


def test_a_loop_of_which_nothing_is_proven_is_refused() -> None:
    engine = PrivacyEngine(settings_chosen_on="fixed", delta=DELTA)
    with pytest.warns(UnprovenWarning), pytest.raises(InvalidValue, match="accept_unproven"):
        private(engine, epochs=1, poisson_sampling=False, accept_unproven=True)


def test_a_second_training_is_refused() -> None:
    engine = PrivacyEngine(settings_chosen_on="fixed", delta=DELTA)
    planned_loop(engine)
    with pytest.raises(InvalidValue, match="one training"):
        planned_loop(engine)


def test_a_checkpoint_with_steps_that_nobody_promised_is_refused(tmp_path: Path) -> None:
    other = private(noise_multiplier=2.0)
    take_steps(other, 1)
    other.engine.save_checkpoint(path=tmp_path / "other.pt", module=other.model)
    loop = planned_loop(PrivacyEngine(settings_chosen_on="fixed", delta=DELTA))
    take_steps(loop, 1)
    loop.engine.save_checkpoint(path=tmp_path / "own.pt", module=loop.model, optimizer=loop.optimizer)
    loop.engine.load_checkpoint(path=tmp_path / "own.pt", module=loop.model, optimizer=loop.optimizer)
    with pytest.raises(InvalidValue, match="checkpoint"):
        loop.engine.load_checkpoint(path=tmp_path / "other.pt", module=loop.model)


def test_a_budget_has_not_paid_for_what_came_before_nor_counts_otherwise(tmp_path: Path) -> None:
    promise = Promise(name="late", budget=a_budget(tmp_path))
    with pytest.raises(InvalidValue, match="budget"):
        Planned(promise, Allowed(STEP, steps=1), before=STEP, delta=None, records=40)
    (tmp_path / "other").mkdir()
    replaced = a_budget(tmp_path / "other", adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(InvalidValue, match="budget"):
        Planned(Promise(name="x", budget=replaced), Allowed(STEP, steps=1), before=NOTHING, delta=None, records=40)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"name": "x", "settings_chosen_on": "nowhere"},
        {"name": "x", "settings_chosen_on": "fixed", "stated": Statements(settings_chosen_on="fixed")},
    ],
)
def test_a_promise_that_says_nothing_clear_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Promise(**wrong)


def test_a_certificate_needs_a_delta() -> None:
    with pytest.raises(InvalidValue, match="delta"):
        planned_loop(PrivacyEngine(settings_chosen_on="fixed"))


def test_a_loop_that_never_took_a_step_gives_everything_back_and_certifies_nothing(tmp_path: Path) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, name="refused", settings_chosen_on="fixed", budget=path)
    planned_loop(engine)
    assert engine.finish() is None
    with Budget.open(path) as account:
        assert account.status().epsilon_spent == 0


def test_an_end_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, name="first", settings_chosen_on="fixed", budget=path)
    take_steps(planned_loop(engine), 1)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        engine.finish()
    (tmp_path / "elsewhere").rename(path)
    certificate = engine.finish()
    assert certificate is not None
    assert certificate is engine.finish()
    with Budget.open(path) as account:
        assert account.status().runs[0].is_settled


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_no_budget_pays_for_a_loop_whose_loss_is_reduced_otherwise(tmp_path: Path, mode: str) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, name="first", budget=path)
    with pytest.raises(InvalidValue, match="reduction 'mean'"):
        private(engine, epochs=1, grad_sample_mode=mode, criterion=torch.nn.CrossEntropyLoss(reduction="sum"))
    with Budget.open(path) as account:
        assert not account.status().runs
