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
from tests.integrations.refusals import invalid

TINY = 1e-9  # noise that is there, and cannot be seen
DELTA = 1e-3
STEP = PoissonSampled(8 / RECORDS, Gaussian(1.0))
PLANNED = Repeated(STEP, 10)  # two epochs
UNPROVEN: dict[str, Any] = {"poisson_sampling": False, "accept_unproven": True}
CERTIFIED: dict[str, Any] = {"settings_chosen_on": "fixed", "delta": DELTA}


def assert_gradients(model: nn.Module, expected: list[Tensor], *, atol: float = 1e-4) -> None:
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("loss_reduction, divisor", [("mean", 8), ("sum", 1)])
def test_gradients_are_the_clipped_mean_over_the_expected_batch(mode: str, loss_reduction: str, divisor: int) -> None:
    options: Any = {"loss_reduction": loss_reduction, "grad_sample_mode": mode}
    loop = private(noise_multiplier=TINY, max_grad_norm=0.3, **options)
    criterion = loop.criterion if mode == "ghost" else nn.CrossEntropyLoss(reduction=loss_reduction)
    inputs, targets = batch = next(iter(loop.loader))
    take_step(loop._replace(criterion=criterion), batch)
    expected = clipped_mean(network(), inputs, targets, clip_norm=0.3, divisor=divisor)
    assert_gradients(loop.model, expected, atol=2.4e-4 / divisor)  # the clip leaves a margin for rounding


def test_physical_batches_add_up_to_the_draw() -> None:
    loop, seen = private(noise_multiplier=TINY, batch_size=20), []
    with BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=3, optimizer=loop.optimizer) as loader:
        for batch in loader:
            assert len(batch[0]) <= 3
            seen.append(batch)
            take_step(loop, batch)
            if len(loop.engine.accountant):
                break
    inputs, targets = [torch.cat(parts) for parts in zip(*seen, strict=True)]
    assert_gradients(loop.model, clipped_mean(network(), inputs, targets, clip_norm=1.0, divisor=20))
    assert len(loop.engine.accountant) == 1


def test_epsilon_is_that_of_the_steps_taken() -> None:
    loop = private(noise_multiplier=0.9)
    take_steps(loop, 7)
    step = PoissonSampled(8 / RECORDS, Gaussian(0.9))
    assert loop.engine.get_epsilon(delta=DELTA) == bound(Repeated(step, 7), delta=DELTA).epsilon
    assert loop.engine.claim(delta=DELTA).is_proven


def test_a_record_with_nan_counts_as_zero() -> None:
    inputs, targets = records().tensors
    inputs[3] = math.nan
    loop = private(dataset=TensorDataset(inputs, targets), batch_size=RECORDS, noise_multiplier=TINY)
    others = (torch.cat([part[:3], part[4:]]) for part in (inputs, targets))
    take_steps(loop, 1)
    assert_gradients(loop.model, clipped_mean(network(), *others, clip_norm=1.0, divisor=RECORDS))


@pytest.mark.parametrize("noise_multiplier", [1.0, 0.5])
def test_canaries_refute_half_the_noise_and_not_the_claim(noise_multiplier: float) -> None:
    """Every record is drawn, and has a coordinate of its own; half of the coordinates have no record."""
    canaries, claimed = 1200, 1.0
    model = nn.Linear(2 * canaries, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    inputs = torch.eye(2 * canaries, dtype=torch.float64)[:canaries]
    loop = private(
        model=model,
        optimizer=sgd(model, lr=0.0),
        dataset=TensorDataset(inputs),
        batch_size=canaries,
        noise_multiplier=noise_multiplier,
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
    shown = known_variance(scores, std=float(others.std()), delta=DELTA, confidence=0.999).epsilon
    claim = bound(PoissonSampled(1.0, Gaussian(claimed)), delta=DELTA).epsilon
    if noise_multiplier == claimed:
        assert 0.75 * claim < shown <= claim
        assert variance_p_value(others, std=claimed) > 1e-4
    else:
        assert shown > claim


def test_shuffled_batches_need_the_flag_and_are_no_guarantee() -> None:
    with invalid("accept_unproven"):
        private(poisson_sampling=False)
    with pytest.warns(UnprovenWarning, match="shuffled"):
        loop = private(batch_size=16, **UNPROVEN)
    sizes = []
    with BatchMemoryManager(data_loader=loop.loader, max_physical_batch_size=10, optimizer=loop.optimizer) as loader:
        for batch in loader:
            sizes.append(len(batch[0]))
            take_step(loop, batch)
    assert sizes == [10, 6, 10, 6, 8]  # the loader's own batches, split
    with pytest.warns(UnprovenWarning, match="shuffled"):
        assert 0 < loop.engine.get_epsilon(delta=DELTA) < math.inf
    claim = loop.engine.claim(delta=DELTA)
    assert (claim.kind, [premise.standing for premise in claim.broken]) == ("published", [Standing.BROKEN])
    assert len(loop.engine.accountant) == 3
    assert bound(loop.engine.charger.charged(), delta=DELTA).epsilon == math.inf


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
    with invalid("accept_unproven"):
        private(noise_generator=torch.Generator())


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_a_target_is_met_and_never_exceeded(accountant: str) -> None:
    engine = PrivacyEngine(accountant=accountant)
    engine.accountant.history.append((2.0, 0.2, 10))  # earlier steps count
    loop = private(engine, target_epsilon=3.0)
    take_steps(loop, 10)
    assert 0.99 * 3 <= engine.get_epsilon(delta=DELTA) <= 3
    with pytest.raises(BudgetExceeded):
        take_steps(loop, 1)
    assert engine.get_epsilon(delta=DELTA) <= 3


def test_unsupported_models_optimizers_and_options_are_refused() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"):
        private(model=model)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert PrivacyEngine().is_compatible(module=fixed, optimizer=None, data_loader=None)
    with invalid("optimizer"):
        private(optimizer=sgd(network()))
    with invalid("grad_sample_mode"):
        private(grad_sample_mode="no_op")
    with pytest.raises(TypeError, match="max_grad_nrom"):
        private(max_grad_nrom=1.0)


def test_a_step_on_other_records_is_refused_and_costs_nothing() -> None:
    loop = private()
    everybody = records().tensors
    next(iter(loop.loader))
    with invalid("batch"):
        take_step(loop, everybody)
    with invalid("loop"):
        take_step(loop, everybody)
    assert len(loop.engine.accountant) == 0


def test_the_ledger_of_a_directory_counts_earlier_processes(tmp_path: Path) -> None:
    loop = private(PrivacyEngine(directory=tmp_path, delta=DELTA))
    take_steps(loop, 5)
    spent = loop.engine.get_epsilon(delta=DELTA)
    loop.engine.charger.close()
    later = PrivacyEngine(directory=tmp_path, delta=DELTA)
    before = len(later.accountant)
    assert before >= 5
    assert later.get_epsilon(delta=DELTA) >= spent
    take_steps(private(later), 1)
    assert len(later.accountant) == before + 1


def test_learning_rate_schedulers_work() -> None:
    loop = private()
    scheduler = torch.optim.lr_scheduler.StepLR(loop.optimizer, step_size=1, gamma=0.5)
    take_steps(loop, 2)
    scheduler.step()
    assert loop.optimizer.param_groups[0]["lr"] == 0.05


@pytest.mark.parametrize("method", ["make_private", "make_private_with_epsilon", "save_checkpoint", "load_checkpoint"])
def test_signatures_contain_those_of_opacus(method: str) -> None:
    opacus = pytest.importorskip("opacus")
    theirs = inspect.signature(getattr(opacus.PrivacyEngine, method)).parameters
    ours = dict(inspect.signature(getattr(PrivacyEngine, method)).parameters)
    if "options" in ours:
        ours |= inspect.signature(Options).parameters
    assert [name for name in theirs if name not in ours and name != "kwargs"] == []
    required = {name for name, one in ours.items() if one.default is inspect.Parameter.empty} - {"options"}
    assert required <= set(theirs)


def test_epsilon_is_close_to_that_of_opacus_and_not_above_it() -> None:
    opacus = pytest.importorskip("opacus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = opacus.PrivacyEngine()
    engine = PrivacyEngine()
    for one in (theirs, engine):
        one.accountant.history = [(1.0, 0.01, 200)]
    assert engine.get_epsilon(delta=1e-5) == pytest.approx(theirs.get_epsilon(delta=1e-5), abs=0.02)
    assert engine.get_epsilon(delta=1e-5) <= theirs.get_epsilon(delta=1e-5)


def test_two_passes_for_one_loss_are_clipped_together() -> None:
    """A discriminator is run on a record and on an image made up beside it; both gradients are one record's."""
    model = nn.Linear(FEATURES, 1).double()
    inputs = records()[:8][0]
    made_up = torch.randn(8, FEATURES, dtype=torch.float64)
    wanted = torch.zeros(1, FEATURES, dtype=torch.float64)
    for record in range(8):
        weight, bias = torch.autograd.grad(
            (model(inputs[record]) - model(made_up[record])).sum(), [*model.parameters()]
        )
        wanted += weight * min(1.0, 0.1 / float(torch.cat([weight.flatten(), bias]).norm()))
    with pytest.warns(UnprovenWarning):
        loop = private(model=model, num_passes=2, noise_multiplier=0.0, max_grad_norm=0.1, **UNPROVEN)
    batch, _ = next(iter(loop.loader))
    assert torch.equal(batch, inputs)
    differentiate((loop.model(batch) - loop.model(made_up)).mean())
    loop.optimizer.step()
    torch.testing.assert_close(model.weight.grad, wanted / 8, rtol=0, atol=1e-12)


def test_a_second_pass_that_was_not_stated_is_refused() -> None:
    loop = private()
    inputs, _ = next(iter(loop.loader))
    loop.model(inputs)
    with pytest.raises(InvalidValue, match="num_passes"):
        loop.model(inputs)


# Certificates and budgets.


def planned(engine: PrivacyEngine) -> Loop:
    return private(engine, epochs=2)


def new_budget(folder: Path, *, epsilon: float = 20.0, **options: Any) -> Path:
    path = folder / "data.budget"
    Budget.create(path, dataset="names", epsilon=epsilon, delta=DELTA, **options).close()
    return path


def test_a_certificate_covers_the_plan_wherever_the_loop_stops(tmp_path: Path) -> None:
    engine = PrivacyEngine(directory=tmp_path / "run", **CERTIFIED)
    loop = planned(engine)
    take_steps(loop, 3)
    certificate = engine.finish()
    assert certificate is not None
    assert certificate.event == PLANNED
    assert certificate.epsilon == pytest.approx(bound(PLANNED, delta=DELTA).epsilon, rel=1e-6)
    assert certificate.ex_post is not None
    assert certificate.ex_post.event == Repeated(STEP, 3)
    assert certificate.stated.records == 40
    assert read_certificate(tmp_path / "run/certificate.json") == certificate
    check(certificate)
    assert engine.finish() is certificate
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    with invalid("step"):  # none after finish()
        take_steps(loop, 1)
    assert all(map(torch.equal, before, loop.model.parameters()))


def test_a_certificate_stays_within_the_target() -> None:
    engine = PrivacyEngine(stated=Statements(settings_chosen_on="public"))
    take_steps(private(engine, target_epsilon=3.0), 1)
    certificate = engine.finish()
    assert certificate is not None
    assert 2.9 < certificate.epsilon <= 3.0
    assert certificate.delta == DELTA


def test_a_certificate_covers_earlier_steps_of_the_directory(tmp_path: Path) -> None:
    first = PrivacyEngine(directory=tmp_path, delta=DELTA)
    take_steps(private(first, noise_multiplier=2.0), 1)
    first.finish()
    engine = PrivacyEngine(directory=tmp_path, **CERTIFIED)
    before = engine.accountant.event()
    planned(engine)
    certificate = engine.finish()
    assert before != NOTHING
    assert certificate is not None
    assert certificate.event == together(before, PLANNED)


def test_a_budget_pays_for_the_steps_taken_even_if_finish_fails_once(tmp_path: Path) -> None:
    path = new_budget(tmp_path)
    engine = PrivacyEngine(budget=path, name="first", **CERTIFIED)
    loop = planned(engine)
    with Budget.open(path) as account:
        assert account.reservation("first") == PLANNED
    take_steps(loop, 3)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        engine.finish()
    (tmp_path / "elsewhere").rename(path)
    certificate = engine.finish()
    with Budget.open(path) as account:
        [ours] = account.status().runs
    assert (ours.is_settled, ours.charged) == (True, Repeated(STEP, 3))
    assert certificate is not None
    assert certificate.budget is not None
    assert certificate.budget.dataset == "names"
    check(certificate)


def test_a_loop_without_a_step_gives_everything_back_and_certifies_nothing(tmp_path: Path) -> None:
    path = new_budget(tmp_path)
    engine = PrivacyEngine(name="refused", budget=path, **CERTIFIED)
    planned(engine)
    assert engine.finish() is None
    with Budget.open(path) as account:
        assert account.status().epsilon_spent == 0


def test_a_budget_pays_only_for_a_loop_that_it_covers_and_that_can_be_made(tmp_path: Path) -> None:
    model, path = network(), new_budget(tmp_path, epsilon=0.5)
    with pytest.raises(BudgetExceeded):
        private(PrivacyEngine(budget=path), model=model, epochs=2)
    assert "forward" not in vars(model)
    with invalid("criterion"):
        private(PrivacyEngine(budget=path), model=model, epochs=1, criterion=nn.CrossEntropyLoss(reduction="sum"))
    with Budget.open(path) as account:
        assert not account.status().runs
    private(model=model)
    late = PrivacyEngine(budget=path)
    late.accountant.step(noise_multiplier=1.0, sample_rate=0.2)
    with invalid("budget"):
        planned(late)
    (tmp_path / "other").mkdir()
    with invalid("adjacency"):
        planned(PrivacyEngine(budget=new_budget(tmp_path / "other", adjacency=Adjacency.REPLACE_ONE)))


@pytest.mark.filterwarnings("ignore::lehr.integrations.opacus.UnprovenWarning")
@pytest.mark.parametrize(
    "engine, options, name",
    [
        (CERTIFIED, {}, "epochs"),
        ({"budget": "data.budget"}, {}, "epochs"),
        ({"settings_chosen_on": "fixed"}, {"epochs": 2}, "delta"),
        (CERTIFIED, {"epochs": 1, **UNPROVEN}, "accept_unproven"),
        (CERTIFIED, {"epochs": 1, "noise_multiplier": 0.0}, "epsilon"),
    ],
)
def test_a_certificate_needs_plan_delta_proof_and_noise(engine: Any, options: Any, name: str) -> None:
    with invalid(name):
        private(PrivacyEngine(**engine), **options)


def test_a_second_training_with_one_certificate_is_refused() -> None:
    engine = PrivacyEngine(**CERTIFIED)
    planned(engine)
    with invalid("make_private"):
        planned(engine)


@pytest.mark.parametrize(
    "wrong",
    [{"name": ""}, {"settings_chosen_on": "nowhere"}, {**CERTIFIED, "stated": Statements(settings_chosen_on="fixed")}],
)
def test_unclear_statements_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        PrivacyEngine(**wrong)


# Checkpoints.


def saved(loop: Loop, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    loop.engine.save_checkpoint(path=file, module=loop.model, optimizer=loop.optimizer, **options)
    return file


def load(loop: Loop, file: Any, **options: Any) -> dict[str, Any]:
    if isinstance(file, io.BytesIO):
        file.seek(0)
    return loop.engine.load_checkpoint(path=file, module=loop.model, optimizer=loop.optimizer, **options)


def test_a_resumed_loop_has_fresh_noise_that_is_charged() -> None:
    loop, later = private(), private()
    take_steps(loop, 4)
    file = saved(loop, checkpoint_dict={"epoch": 4, "note": "mine"})
    take_steps(loop, 1)
    assert load(later, file).items() >= {"epoch": 4, "note": "mine"}.items()
    assert later.engine.accountant.history == [(1.0, 0.2, 4)]
    take_steps(later, 1)
    assert later.engine.accountant.history == loop.engine.accountant.history == [(1.0, 0.2, 5)]
    pairs = zip(loop.model.parameters(), later.model.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)


def test_loading_a_checkpoint_never_forgets_a_step() -> None:
    loop, other = private(), private()
    own = saved(loop)
    take_steps(loop, 2)
    load(loop, own)
    assert len(loop.engine.accountant) == 2
    take_steps(other, 3)
    foreign = saved(other)
    for _ in range(2):  # steps of another training count in addition, once
        load(loop, foreign)
        assert len(loop.engine.accountant) == 5
    own = saved(loop)
    take_steps(loop, 1)
    load(loop, own)
    assert len(loop.engine.accountant) == 6


def test_a_resumed_target_allows_only_the_remaining_steps() -> None:
    loop, later = private(target_epsilon=3.0), private(target_epsilon=3.0)
    take_steps(loop, 5)
    load(later, saved(loop))
    take_steps(later, 5)
    with pytest.raises(BudgetExceeded):
        take_steps(later, 1)
    assert later.engine.get_epsilon(delta=DELTA) <= 3


def test_a_certified_loop_refuses_the_checkpoint_of_another_training() -> None:
    other, loop = private(noise_multiplier=2.0), planned(PrivacyEngine(**CERTIFIED))
    for one in (other, loop):
        take_steps(one, 1)
    load(loop, saved(loop))
    with invalid("checkpoint"):
        load(loop, saved(other))


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.01,
    "unclipped_num_std": 2.0,
}


@pytest.mark.parametrize("options, clip_norm", [({}, 1.0), (ADAPTIVE, 0.4)], ids=["flat", "adaptive"])
def test_only_the_clip_norm_of_adaptive_clipping_is_restored(options: dict[str, Any], clip_norm: float) -> None:
    loop, later = private(noise_multiplier=2.0, **options), private(**options)
    loop.optimizer.max_grad_norm = 0.4
    load(later, saved(loop))
    assert (later.optimizer.noise_multiplier, later.optimizer.max_grad_norm) == (1.0, clip_norm)


def test_files_with_code_and_other_files_are_refused(tmp_path: Path) -> None:
    loop = private()
    torch.save({"module_state_dict": nn.Linear(1, 1)}, tmp_path / "code.pt")
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        load(loop, tmp_path / "code.pt")
    with invalid("torch_load_kwargs"):
        load(loop, tmp_path / "code.pt", torch_load_kwargs={"weights_only": False})
    torch.save({"weights": torch.ones(1)}, tmp_path / "other.pt")
    with pytest.raises(DamagedFile):
        load(loop, tmp_path / "other.pt")
