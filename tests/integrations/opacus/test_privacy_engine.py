"""A loop made private by the engine: steps, targets, certificates, budgets and checkpoints."""

from __future__ import annotations

import inspect
import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from lehr.accounting import bound
from lehr.accounting.claims import Standing
from lehr.accounting.events import NOTHING, Adjacency, Gaussian, PoissonSampled, Repeated, together
from lehr.auditing import Scores
from lehr.auditing.bounds import known_variance, variance_p_value
from lehr.certificates.certificate import Statements, read_certificate
from lehr.certificates.checking import check
from lehr.errors import BudgetExceeded, DamagedFile, InvalidValue, StoreError
from lehr.integrations.opacus import BatchMemoryManager, PrivacyEngine, UnprovenWarning
from lehr.integrations.opacus.privacy_engine import Options
from lehr.integrations.opacus.validators import UnsupportedModuleError
from lehr.planning.budget import Budget
from tests.integrations.opacus.loops import (
    FEATURES,
    RECORDS,
    Loop,
    clipped_mean,
    differentiate,
    network,
    private,
    records,
    sgd,
    take_step,
    take_steps,
)

TINY = 1e-9  # noise that is there, and cannot be seen


def grads_of(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def largest_difference(some: list[Tensor], others: list[Tensor]) -> float:
    return max(float((one - other).abs().max()) for one, other in zip(some, others, strict=True))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_step_is_the_clipped_mean_over_the_expected_batch(mode: str) -> None:
    loop = private(noise_multiplier=TINY, max_grad_norm=0.3, grad_sample_mode=mode)
    twin = network()
    inputs, targets = next(iter(loop.loader))
    expected = clipped_mean(twin, inputs, targets, clip_norm=0.3, divisor=8)
    take_step(loop, (inputs, targets))
    assert largest_difference(grads_of(loop.model), expected) < 1e-4 * 0.3  # the clip leaves a margin for rounding


def test_a_sum_is_not_divided() -> None:
    loop = private(noise_multiplier=TINY, loss_reduction="sum")
    inputs, targets = next(iter(loop.loader))
    expected = clipped_mean(network(), inputs, targets, clip_norm=1.0, divisor=1)
    differentiate(functional.cross_entropy(loop.model(inputs), targets, reduction="sum"))
    loop.optimizer.step()
    assert largest_difference(grads_of(loop.model), expected) < 1e-3


def test_physical_batches_sum_to_the_same() -> None:
    parted = private(noise_multiplier=TINY, batch_size=20)
    inputs, targets = [torch.cat(parts) for parts in zip(*_parts(parted, size=3), strict=True)]
    expected = clipped_mean(network(), inputs, targets, clip_norm=1.0, divisor=20)
    assert largest_difference(grads_of(parted.model), expected) < 1e-4
    assert len(parted.engine.accountant) == 1


def _parts(loop: Any, *, size: int) -> list[Any]:
    """The parts of the first draw, each of them stepped on."""
    with BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=size, optimizer=loop.optimizer) as loader:
        seen = []
        for batch in loader:
            assert len(batch[0]) <= size
            seen.append(batch)
            take_step(loop, batch)
            if len(loop.engine.accountant):
                return seen
    raise AssertionError("no draw was complete")


def test_what_is_counted_is_what_lehr_counts_for_the_same_plan() -> None:
    loop = private(noise_multiplier=0.9)
    take_steps(loop, 7)
    step = PoissonSampled(8 / RECORDS, Gaussian(0.9))
    assert loop.engine.get_epsilon(delta=1e-3) == bound(Repeated(step, 7), delta=1e-3).epsilon
    assert loop.engine.claim(delta=1e-3).is_proven


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    inputs, targets = records().tensors
    inputs[3] = math.nan
    loop = private(dataset=TensorDataset(inputs, targets), batch_size=RECORDS, noise_multiplier=TINY)
    others = (torch.cat([part[:3], part[4:]]) for part in (inputs, targets))
    expected = clipped_mean(network(), *others, clip_norm=1.0, divisor=RECORDS)
    take_steps(loop, 1)
    assert largest_difference(grads_of(loop.model), expected) < 1e-4


@pytest.mark.parametrize("noise", ["of the claim", "half of it"])
def test_canaries_do_not_refute_the_claim_and_do_refute_half_of_the_noise(noise: str) -> None:
    """Every record is drawn, and has a coordinate of its own, half of which are of nobody."""
    canaries, claimed = 1200, 1.0
    model = nn.Linear(2 * canaries, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    inputs = torch.eye(2 * canaries, dtype=torch.float64)[:canaries]
    loop = private(
        model=model,
        optimizer=sgd(model, lr=0.0),
        dataset=TensorDataset(inputs),
        batch_size=canaries,
        noise_multiplier=claimed if noise == "of the claim" else claimed / 2,
    )
    releases = []
    for _ in range(8):  # the weights do not move: eight releases of the same sum
        for (drawn,) in loop.loader:
            differentiate(loop.model(drawn).sum() / len(drawn))
            loop.optimizer.step()
        assert model.weight.grad is not None
        releases.append((model.weight.grad[0] * canaries).numpy().astype(np.float64))
        loop.optimizer.zero_grad()
    members, others = (np.concatenate(part) for part in zip(*(np.split(each, 2) for each in releases), strict=True))
    scores = Scores(members=members, others=others)
    delta = 1e-3
    shown = known_variance(scores, std=float(others.std()), delta=delta, confidence=0.999).epsilon
    claim = bound(PoissonSampled(1.0, Gaussian(claimed)), delta=delta).epsilon
    if noise == "of the claim":
        assert 0.75 * claim < shown <= claim
        assert variance_p_value(others, std=claimed) > 1e-4
    else:
        assert shown > claim


def test_unknown_keywords_and_modes_are_refused() -> None:
    with pytest.raises(InvalidValue, match="grad_sample_mode"):
        private(grad_sample_mode="no_op")
    with pytest.raises(TypeError, match="max_grad_nrom"):
        private(max_grad_nrom=1.0)
    with pytest.raises(TypeError, match="secure"):
        PrivacyEngine(secure=True)  # type: ignore[call-arg]


def test_shuffled_batches_need_the_flag_and_are_no_guarantee() -> None:
    with pytest.raises(InvalidValue, match="accept_unproven"):
        private(poisson_sampling=False)
    with pytest.warns(UnprovenWarning, match="shuffled"):
        loop = private(poisson_sampling=False, accept_unproven=True)
    take_steps(loop, 6)
    with pytest.warns(UnprovenWarning, match="shuffled"):
        assert 0 < loop.engine.get_epsilon(delta=1e-3) < math.inf
    claim = loop.engine.claim(delta=1e-3)
    assert claim.kind == "published"
    assert [premise.standing for premise in claim.broken] == [Standing.BROKEN]
    assert bound(loop.engine.charger.charged(), delta=1e-3).epsilon == math.inf


def test_shuffled_batches_are_the_loaders_own_and_can_be_split() -> None:
    with pytest.warns(UnprovenWarning):
        loop = private(poisson_sampling=False, accept_unproven=True, batch_size=16)
    assert [len(inputs) for inputs, _ in loop.loader] == [16, 16, 8]
    with BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=10, optimizer=loop.optimizer) as loader:
        sizes = []
        for batch in loader:
            sizes.append(len(batch[0]))
            take_step(loop, batch)
    assert sizes == [10, 6, 10, 6, 8]
    assert len(loop.engine.accountant) == 3


def test_only_a_generator_repeats_the_noise_and_it_is_no_guarantee() -> None:
    weights = []
    for is_seeded in (True, True, False, False):
        if is_seeded:
            with pytest.warns(UnprovenWarning, match="generator"):
                loop = private(noise_generator=torch.Generator().manual_seed(3), accept_unproven=True)
        else:
            loop = private()
        take_steps(loop, 2)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()]))
    assert torch.equal(*weights[:2])
    assert not torch.equal(*weights[2:])
    with pytest.raises(InvalidValue, match="accept_unproven"):
        private(noise_generator=torch.Generator())


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_a_target_is_met_and_never_passed(accountant: str) -> None:
    loop = private(PrivacyEngine(accountant=accountant), target_epsilon=3.0)
    take_steps(loop, 10)
    assert 0.99 * 3 <= loop.engine.get_epsilon(delta=1e-3) <= 3
    with pytest.raises(BudgetExceeded, match="10 steps"):
        take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) <= 3


def test_what_was_spent_before_is_counted_into_a_target() -> None:
    engine = PrivacyEngine()
    for target in (1.0, 3.0):
        take_steps(private(engine, target_epsilon=target), 10)
    assert 2.9 <= engine.get_epsilon(delta=1e-3) <= 3


def test_a_model_need_not_be_wrapped() -> None:
    model = network()
    loop = private(model=model, wrap_model=False)
    for inputs, targets in loop.loader:
        loop.optimizer.zero_grad()
        differentiate(functional.cross_entropy(model(inputs), targets))
        loop.optimizer.step()
    loop.model.cleanup()
    assert all("forward" not in vars(layer) for layer in model.modules())


def test_dictionaries_of_tokens_are_drawn_too() -> None:
    class Tokens(torch.utils.data.Dataset[dict[str, Tensor]]):
        def __len__(self) -> int:
            return 30

        def __getitem__(self, place: int) -> dict[str, Tensor]:
            return {"input_ids": torch.arange(4) + place % 5, "labels": torch.tensor(place % 2)}

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits = self.out(self.words(input_ids).mean(1))
            return {"loss": functional.cross_entropy(logits, labels), "logits": logits}

    loop = private(model=Classifier(), dataset=Tokens(), batch_size=1)
    sizes = set()
    for batch in loop.loader:
        sizes.add(len(batch["labels"]))
        loop.optimizer.zero_grad()
        differentiate(loop.model(**batch)["loss"])
        loop.optimizer.step()
    assert {0, 1} <= sizes


def test_what_cannot_be_private_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"):
        private(model=model)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert PrivacyEngine().is_compatible(module=fixed, optimizer=None, data_loader=None)


def test_an_optimizer_over_other_parameters_is_refused() -> None:
    with pytest.raises(InvalidValue, match="optimizer"):
        private(optimizer=sgd(network()))


def test_a_step_on_records_that_were_not_drawn_is_refused_and_costs_nothing() -> None:
    loop = private()
    inputs, targets = records().tensors
    next(iter(loop.loader))
    with pytest.raises(InvalidValue, match="another number of records"):
        take_step(loop, (inputs, targets))
    with pytest.raises(InvalidValue, match="without a new batch"):
        take_step(loop, (inputs, targets))
    assert len(loop.engine.accountant) == 0


def test_every_step_is_in_the_ledger_of_the_directory_before_it_is_released(tmp_path: Path) -> None:
    loop = private(PrivacyEngine(directory=tmp_path, delta=1e-3))
    take_steps(loop, 5)
    spent = loop.engine.get_epsilon(delta=1e-3)
    loop.engine.charger.close()
    later = PrivacyEngine(directory=tmp_path, delta=1e-3)
    assert len(later.accountant) >= 5
    assert later.get_epsilon(delta=1e-3) >= spent
    take_steps(private(later), 1)
    assert len(later.accountant) >= 6


def test_notes_say_what_is_done_otherwise() -> None:
    loop = private(PrivacyEngine(secure_mode=True), grad_sample_mode="functorch")
    assert [note.split(":")[0] for note in loop.engine.notes] == [
        'accountant="prv"',
        "grad_sample_mode='functorch'",
        "secure_mode",
    ]


def test_checkpoints_round_trip_and_fresh_noise_is_charged(tmp_path: Path) -> None:
    loop = private()
    take_steps(loop, 4)
    saved = tmp_path / "checkpoint.pt"
    loop.engine.save_checkpoint(
        path=saved, module=loop.model, optimizer=loop.optimizer, checkpoint_dict={"epoch": 4, "note": "mine"}
    )
    take_steps(loop, 1)
    later = private()
    found = later.engine.load_checkpoint(path=saved, module=later.model, optimizer=later.optimizer)
    assert (found["epoch"], found["note"]) == (4, "mine")
    assert later.engine.accountant.history == [(1.0, 0.2, 4)]
    take_steps(later, 1)
    assert later.engine.accountant.history == loop.engine.accountant.history == [(1.0, 0.2, 5)]
    pairs = zip(loop.model.parameters(), later.model.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_going_back_to_a_checkpoint_does_not_give_back_what_was_spent(tmp_path: Path) -> None:
    loop = private()
    loop.engine.save_checkpoint(path=tmp_path / "first.pt", module=loop.model, optimizer=loop.optimizer)
    take_steps(loop, 3)
    loop.engine.load_checkpoint(path=tmp_path / "first.pt", module=loop.model, optimizer=loop.optimizer)
    assert len(loop.engine.accountant) == 3


def test_a_resumed_target_allows_only_what_is_left(tmp_path: Path) -> None:
    loop, later = private(target_epsilon=3.0), private(target_epsilon=3.0)
    take_steps(loop, 5)
    loop.engine.save_checkpoint(path=tmp_path / "half.pt", module=loop.model, optimizer=loop.optimizer)
    later.engine.load_checkpoint(path=tmp_path / "half.pt", module=later.model, optimizer=later.optimizer)
    take_steps(later, 5)
    with pytest.raises(BudgetExceeded):
        take_steps(later, 1)
    assert later.engine.get_epsilon(delta=1e-3) <= 3


def test_learning_rate_schedulers_work() -> None:
    loop = private()
    scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, step_size=1, gamma=0.5)
    take_steps(loop, 2)
    scheduler.step()
    assert loop.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("method", ["make_private", "make_private_with_epsilon", "save_checkpoint", "load_checkpoint"])
def test_the_signature_is_opacuss_and_more(method: str) -> None:
    opacus = pytest.importorskip("opacus")
    theirs = inspect.signature(getattr(opacus.PrivacyEngine, method)).parameters
    ours = dict(inspect.signature(getattr(PrivacyEngine, method)).parameters)
    if "options" in ours:
        ours |= inspect.signature(Options).parameters
    assert [name for name in theirs if name not in ours and name != "kwargs"] == []
    required = {name for name, one in ours.items() if one.default is inspect.Parameter.empty} - {"options"}
    assert required <= set(theirs)


def test_epsilon_is_close_to_opacuss_for_the_same_history() -> None:
    opacus = pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = opacus.PrivacyEngine()
    engine = PrivacyEngine()
    for one in (theirs, engine):
        one.accountant.history = [(1.0, 0.01, 200)]
    assert engine.get_epsilon(delta=1e-5) == pytest.approx(theirs.get_epsilon(delta=1e-5), abs=0.02)
    assert engine.get_epsilon(delta=1e-5) <= theirs.get_epsilon(delta=1e-5)


def test_a_discriminator_is_run_twice_for_one_loss() -> None:
    """Of a record and the image that is made up beside it, both gradients are one record's and clipped together."""
    model = nn.Linear(FEATURES, 1).double()
    inputs = records()[:8][0]
    made_up = torch.randn(8, FEATURES, dtype=torch.float64)
    wanted = torch.zeros(FEATURES, dtype=torch.float64)
    for record in range(8):
        weight = torch.autograd.grad((model(inputs[record]) - model(made_up[record])).sum(), [*model.parameters()])
        whole = torch.cat([part.flatten() for part in weight])
        wanted += weight[0][0] * min(1.0, 0.1 / float(whole.norm()))
    options: Any = {"poisson_sampling": False, "accept_unproven": True, "noise_multiplier": 0.0, "max_grad_norm": 0.1}
    with pytest.warns(UnprovenWarning):
        loop = private(model=model, num_passes=2, batch_size=8, **options)
    batch, _ = next(iter(loop.loader))
    assert torch.equal(batch, inputs)
    differentiate((loop.model(batch) - loop.model(made_up)).mean())
    loop.optimizer.step()
    assert torch.allclose(grads_of(model)[0][0], wanted / 8, atol=1e-12)


def test_a_second_pass_that_was_not_stated_is_refused() -> None:
    loop = private()
    inputs, _ = next(iter(loop.loader))
    loop.model(inputs)
    with pytest.raises(InvalidValue, match="num_passes"):
        loop.model(inputs)


DELTA = 1e-3
STEP = PoissonSampled(8 / 40, Gaussian(1.0))
STEPS_OF_AN_EPOCH = 5


def planned_loop(engine: PrivacyEngine, *, epochs: int = 2) -> Loop:
    return private(engine, epochs=epochs)


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
    assert read_certificate(tmp_path / "run/certificate.json") == certificate
    check(certificate)
    assert engine.finish() is certificate


def test_a_target_is_what_the_certificate_stays_within() -> None:
    engine = PrivacyEngine(stated=Statements(settings_chosen_on="public"))
    take_steps(private(engine, target_epsilon=3.0), 2 * STEPS_OF_AN_EPOCH)
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


def test_a_budget_pays_for_the_steps_that_were_taken(tmp_path: Path) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, budget=path, name="first", settings_chosen_on="fixed")
    loop = planned_loop(engine)
    with Budget.open(path) as account:
        assert account.reservation("first") == Repeated(STEP, 2 * STEPS_OF_AN_EPOCH)
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


CERTIFIED = {"settings_chosen_on": "fixed", "delta": DELTA}


@pytest.mark.filterwarnings("ignore::lehr.integrations.opacus.UnprovenWarning")
@pytest.mark.parametrize(
    "engine, options, match",
    [
        (CERTIFIED, {}, "epochs"),
        ({"budget": "data.budget"}, {}, "epochs"),
        ({"settings_chosen_on": "fixed"}, {"epochs": 2}, "delta"),
        (CERTIFIED, {"epochs": 1, "poisson_sampling": False, "accept_unproven": True}, "accept_unproven"),
        (CERTIFIED, {"epochs": 1, "noise_multiplier": 0.0}, "."),
    ],
)
def test_no_certificate_is_promised_without_plan_delta_proof_and_noise(
    engine: dict[str, Any], options: dict[str, Any], match: str
) -> None:
    with pytest.raises(InvalidValue, match=match):
        private(PrivacyEngine(**engine), **options)


def test_a_second_training_is_refused() -> None:
    engine = PrivacyEngine(settings_chosen_on="fixed", delta=DELTA)
    planned_loop(engine)
    with pytest.raises(InvalidValue, match="make_private"):
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
    engine = PrivacyEngine(name="late", budget=a_budget(tmp_path))
    engine.accountant.step(noise_multiplier=1.0, sample_rate=0.2)
    with pytest.raises(InvalidValue, match="budget"):
        planned_loop(engine)
    (tmp_path / "other").mkdir()
    replaced = a_budget(tmp_path / "other", adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(InvalidValue, match="adjacency"):
        planned_loop(PrivacyEngine(name="x", budget=replaced))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"settings_chosen_on": "nowhere"},
        {"settings_chosen_on": "fixed", "stated": Statements(settings_chosen_on="fixed")},
    ],
)
def test_statements_that_are_unclear_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        PrivacyEngine(**wrong)


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


def test_no_budget_pays_for_a_loop_whose_loss_is_reduced_otherwise(tmp_path: Path) -> None:
    path = a_budget(tmp_path)
    engine = PrivacyEngine(delta=DELTA, name="first", budget=path)
    with pytest.raises(InvalidValue, match="reduction='mean'"):
        private(engine, epochs=1, criterion=torch.nn.CrossEntropyLoss(reduction="sum"))
    with Budget.open(path) as account:
        assert not account.status().runs


def test_a_file_that_may_hold_code_or_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    loop = private()
    torch.save({"module_state_dict": torch.nn.Linear(1, 1)}, tmp_path / "code.pt")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        loop.engine.load_checkpoint(path=tmp_path / "code.pt", module=loop.model)
    options = {"weights_only": False}
    with pytest.raises(InvalidValue, match="weights_only"):
        loop.engine.load_checkpoint(path=tmp_path / "code.pt", module=loop.model, torch_load_kwargs=options)
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(DamagedFile, match="privacy_accountant_state_dict"):
        loop.engine.load_checkpoint(path=tmp_path / "other.pt", module=loop.model)


def test_open_files_are_read_and_written() -> None:
    loop = private()
    file = io.BytesIO()
    loop.engine.save_checkpoint(path=file, module=loop.model)
    file.seek(0)
    assert "optimizer_state_dict" not in loop.engine.load_checkpoint(path=file, module=loop.model)


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.01,
    "unclipped_num_std": 2.0,
}


@pytest.mark.parametrize("options, clip_norm", [({}, 1.0), (ADAPTIVE, 0.4)], ids=["flat", "adaptive"])
def test_only_what_adaptive_clipping_learned_is_restored(options: dict[str, Any], clip_norm: float) -> None:
    loop, later = private(noise_multiplier=2.0, **options), private(**options)
    loop.optimizer.max_grad_norm = 0.4
    file = io.BytesIO()
    loop.engine.save_checkpoint(path=file, module=loop.model, optimizer=loop.optimizer)
    file.seek(0)
    later.engine.load_checkpoint(path=file, module=later.model, optimizer=later.optimizer)
    assert (later.optimizer.noise_multiplier, later.optimizer.max_grad_norm) == (1.0, clip_norm)


def test_steps_of_another_training_count_in_addition() -> None:
    loop, other = private(), private()
    file = io.BytesIO()
    take_steps(other, 3)
    other.engine.save_checkpoint(path=file, module=other.model)
    take_steps(loop, 2)
    for _ in range(2):
        file.seek(0)
        loop.engine.load_checkpoint(path=file, module=loop.model)
        assert len(loop.engine.accountant) == 5
    file.seek(0)
    loop.engine.save_checkpoint(path=file, module=loop.model)
    take_steps(loop, 1)
    file.seek(0)
    loop.engine.load_checkpoint(path=file, module=loop.model)
    assert len(loop.engine.accountant) == 6
