from __future__ import annotations

import inspect
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lehr.accounting import bound
from lehr.auditing import Scores
from lehr.auditing.known_variance import lower_bound, variance_p_value
from lehr.claims import Standing
from lehr.compat.opacus import BatchMemoryManager, PrivacyEngine, UnprovenWarning
from lehr.compat.opacus.validators.errors import UnsupportedModuleError
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.events import Gaussian, PoissonSampled, Repeated
from tests.compat.opacus.loops import (
    FEATURES,
    RECORDS,
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


@pytest.mark.parametrize("mode", ["hooks", "functorch", "ew", "ghost"])
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


def test_an_empty_draw_takes_a_noisy_step_and_is_charged() -> None:
    loop = private(batch_size=1, max_grad_norm=1.0)
    steps = empty = 0
    while not empty:
        for inputs, targets in loop.loader:
            take_step(loop, (inputs, targets))
            steps += 1
            if not len(inputs):
                empty += 1
                assert all(bool((grad != 0).all()) and bool(grad.isfinite().all()) for grad in grads_of(loop.model))
    assert len(loop.engine.accountant) == steps


def test_an_empty_draw_may_be_shown_as_one_record_that_counts_for_nothing() -> None:
    loop = private(batch_size=1, rand_on_empty=True, noise_multiplier=TINY)
    sizes = set()
    for _ in range(4):
        for inputs, targets in loop.loader:
            sizes.add(len(inputs))
            take_step(loop, (inputs, targets))
            if len(inputs) == 1 and not inputs.any():
                assert largest_difference(grads_of(loop.model), [torch.zeros(1)] * 4) < 1e-6
    assert 0 not in sizes


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    inputs, targets = records().tensors
    inputs[3] = math.nan
    model = network()
    engine = PrivacyEngine()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=RECORDS)
    listened, optimizer, private_loader = engine.make_private(
        module=model, optimizer=sgd(model), data_loader=loader, noise_multiplier=TINY, max_grad_norm=1.0
    )
    expected = clipped_mean(
        network(), *(torch.cat([part[:3], part[4:]]) for part in (inputs, targets)), clip_norm=1.0, divisor=RECORDS
    )
    drawn, labels = next(iter(private_loader))
    differentiate(functional.cross_entropy(listened(drawn), labels, reduction="none").mean())
    optimizer.step()
    assert largest_difference(grads_of(model), expected) < 1e-4


@pytest.mark.parametrize("noise", ["of the claim", "half of it"])
def test_canaries_do_not_refute_the_claim_and_do_refute_half_of_the_noise(noise: str) -> None:
    """Every record is drawn, and has a coordinate of its own, half of which are of nobody."""
    canaries, claimed = 1200, 1.0
    model = nn.Linear(2 * canaries, 1, bias=False).double()
    nn.init.zeros_(model.weight)
    inputs = torch.eye(2 * canaries, dtype=torch.float64)[:canaries]
    engine = PrivacyEngine()
    listened, optimizer, loader = engine.make_private(
        module=model,
        optimizer=sgd(model, lr=0.0),
        data_loader=DataLoader(TensorDataset(inputs), batch_size=canaries),
        noise_multiplier=claimed if noise == "of the claim" else claimed / 2,
        max_grad_norm=1.0,
    )
    for (drawn,) in loader:
        differentiate(listened(drawn).sum() / len(drawn))
        optimizer.step()
    assert model.weight.grad is not None
    noisy = (model.weight.grad[0] * canaries).numpy().astype(np.float64)
    scores = Scores(members=noisy[:canaries], others=noisy[canaries:])
    delta = 1e-3
    shown = lower_bound(scores, std=float(noisy[canaries:].std()), delta=delta, confidence=0.999).epsilon
    claim = bound(PoissonSampled(1.0, Gaussian(claimed)), delta=delta).epsilon
    if noise == "of the claim":
        assert 0.75 * claim < shown <= claim
        assert variance_p_value(noisy[canaries:], std=claimed) > 1e-4
    else:
        assert shown > claim


def test_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="max_grad_nrom"):
        private(max_grad_nrom=1.0)
    with pytest.raises(TypeError, match="secure"):
        PrivacyEngine(secure=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("mode", ["no_op", "ghost_fsdp", "hook"])
def test_modes_that_are_not_there_are_refused(mode: str) -> None:
    with pytest.raises(InvalidValue, match="grad_sample_mode"):
        private(grad_sample_mode=mode)


def test_shuffled_batches_are_refused_without_the_flag() -> None:
    with pytest.raises(InvalidValue, match="accept_unproven"):
        private(poisson_sampling=False)


def test_shuffled_batches_with_the_flag_are_no_guarantee() -> None:
    with pytest.warns(UnprovenWarning, match="shuffled"):
        loop = private(poisson_sampling=False, accept_unproven=True)
    take_steps(loop, 6)
    with pytest.warns(UnprovenWarning, match="shuffled"):
        assert 0 < loop.engine.get_epsilon(delta=1e-3) < math.inf
    claim = loop.engine.claim(delta=1e-3)
    assert claim.kind == "published"
    assert [premise.standing for premise in claim.broken] == [Standing.BROKEN]
    assert bound(loop.engine.spending.charged(), delta=1e-3).epsilon == math.inf


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


def test_a_generator_repeats_the_noise_and_is_no_guarantee() -> None:
    weights = []
    for _ in range(2):
        with pytest.warns(UnprovenWarning, match="generator"):
            loop = private(noise_generator=torch.Generator().manual_seed(3), accept_unproven=True)
        take_steps(loop, 3)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()]))
    assert torch.equal(*weights)
    with pytest.raises(InvalidValue, match="accept_unproven"):
        private(noise_generator=torch.Generator())


def test_two_engines_never_draw_the_same() -> None:
    weights = []
    for _ in range(2):
        loop = private()
        take_steps(loop, 1)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in loop.model.parameters()]))
    assert not torch.equal(*weights)


def with_epsilon(engine: PrivacyEngine, epochs: int = 2, **options: Any) -> Any:
    model = network()
    return engine.make_private_with_epsilon(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(records(), batch_size=8),
        **{"target_epsilon": 3.0, "target_delta": 1e-3, "epochs": epochs, "max_grad_norm": 1.0, **options},
    )


def run(made: Any, *, epochs: int) -> None:
    model, optimizer, loader = made
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            differentiate(functional.cross_entropy(model(inputs), targets))
            optimizer.step()


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_a_target_is_met_and_never_passed(accountant: str) -> None:
    engine = PrivacyEngine(accountant=accountant)
    made = with_epsilon(engine)
    run(made, epochs=2)
    assert 0.99 * 3 <= engine.get_epsilon(delta=1e-3) <= 3
    with pytest.raises(BudgetExceeded, match="10 steps"):
        run(made, epochs=1)
    assert engine.get_epsilon(delta=1e-3) <= 3


def test_what_was_spent_before_is_counted_into_a_target() -> None:
    engine = PrivacyEngine()
    run(with_epsilon(engine, target_epsilon=1.0), epochs=2)
    run(with_epsilon(engine), epochs=2)
    assert 2.9 <= engine.get_epsilon(delta=1e-3) <= 3


def test_noise_is_never_planned_by_an_estimate() -> None:
    with pytest.raises(InvalidValue, match="estimate"):
        with_epsilon(PrivacyEngine(accountant="gdp"))


def test_planned_noise_cannot_be_changed() -> None:
    made = with_epsilon(PrivacyEngine())
    made[1].noise_multiplier /= 2
    with pytest.raises(InvalidValue, match="that of the plan"):
        run(made, epochs=1)


def test_ghost_returns_the_criterion_before_the_loader() -> None:
    model = network()
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=sgd(model),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(records(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    listened, optimizer, criterion, loader = made
    inputs, targets = next(iter(loader))
    loss = criterion(listened(inputs), targets)
    loss.backward()
    optimizer.step()
    assert math.isfinite(loss.item())


def test_a_model_need_not_be_wrapped() -> None:
    model = network()
    hooks, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(records(), batch_size=8),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        wrap_model=False,
    )
    for inputs, targets in loader:
        optimizer.zero_grad()
        differentiate(functional.cross_entropy(model(inputs), targets))
        optimizer.step()
    hooks.cleanup()
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

    model = Classifier()
    listened, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=sgd(model),
        data_loader=DataLoader(Tokens(), batch_size=1),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    sizes = set()
    for batch in loader:
        sizes.add(len(batch["labels"]))
        optimizer.zero_grad()
        differentiate(listened(**batch)["loss"])
        optimizer.step()
    assert {0, 1} <= sizes


def test_what_cannot_be_private_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"):
        private(model=model)
    fixed = PrivacyEngine.get_compatible_module(model)
    assert PrivacyEngine().is_compatible(module=fixed, optimizer=None, data_loader=None)


def test_an_optimizer_over_other_parameters_is_refused() -> None:
    with pytest.raises(InvalidValue, match="optimizer"):
        PrivacyEngine().make_private(
            module=network(),
            optimizer=sgd(network()),
            data_loader=DataLoader(records(), batch_size=8),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_a_step_on_records_that_were_not_drawn_is_refused_and_costs_nothing() -> None:
    loop = private()
    inputs, targets = records().tensors
    next(iter(loop.loader))
    with pytest.raises(InvalidValue, match="another number of records"):
        take_step(loop, (inputs, targets))
    with pytest.raises(InvalidValue, match="without a new batch"):
        take_step(loop, (inputs, targets))
    assert len(loop.engine.accountant) == 0


def test_a_second_step_on_the_same_batch_is_refused() -> None:
    loop = private()
    batch = next(iter(loop.loader))
    take_step(loop, batch)
    with pytest.raises(InvalidValue, match="one step on each"):
        take_step(loop, batch)


def test_every_step_is_in_the_ledger_of_the_directory_before_it_is_released(tmp_path: Path) -> None:
    loop = private(PrivacyEngine(directory=tmp_path, delta=1e-3))
    take_steps(loop, 5)
    spent = loop.engine.get_epsilon(delta=1e-3)
    loop.engine.spending.close()
    later = PrivacyEngine(directory=tmp_path, delta=1e-3)
    assert len(later.accountant) >= 5
    assert later.get_epsilon(delta=1e-3) >= spent
    take_steps(private(later), 1)
    assert len(later.accountant) >= 6


def test_a_step_without_noise_is_infinitely_expensive() -> None:
    loop = private(noise_multiplier=0.0)
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) == math.inf


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
    engine = PrivacyEngine()
    made = with_epsilon(engine)
    run(made, epochs=1)
    engine.save_checkpoint(path=tmp_path / "half.pt", module=made[0], optimizer=made[1])
    later = PrivacyEngine()
    resumed = with_epsilon(later)
    later.load_checkpoint(path=tmp_path / "half.pt", module=resumed[0], optimizer=resumed[1])
    run(resumed, epochs=1)
    with pytest.raises(BudgetExceeded):
        run(resumed, epochs=1)
    assert later.get_epsilon(delta=1e-3) <= 3


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
    ours = inspect.signature(getattr(PrivacyEngine, method)).parameters
    assert [name for name in theirs if name not in ours and name != "kwargs"] == []
    required = {name for name, one in ours.items() if one.default is inspect.Parameter.empty}
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
