"""Runs in another library's loop: plan, ledger, budget and certificate are those of any other run."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset, default_collate

from lehr.accounting.claims import IDEAL_ARITHMETIC
from lehr.accounting.ledger import Ledger
from lehr.certificates.release import release
from lehr.certificates.run_reading import State, read_run
from lehr.config import CLIP_NORM
from lehr.errors import BudgetExceeded, InvalidValue, NotPrivate, StoreError
from lehr.integrations.external_loop import ExternalRun, PrivacyConfig, check_optimizer, write_gradients
from lehr.integrations.record_independence import RecordLoop
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.planning.budget import Budget
from lehr.privacy.clipping import AutomaticClip, PerCoordinateClip, PerLayerClip
from lehr.privacy.noise import DiscreteNoise, IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.sharded import Layout, ShardRandomness
from tests.integrations.refusals import invalid

HELD = 20
INPUTS = torch.linspace(-1, 1, 3 * HELD).reshape(HELD, 3)
TARGETS = torch.arange(HELD) % 2


def config(folder: Path, **changed: Any) -> PrivacyConfig:
    settings: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "records": HELD, "expected_batch_size": 5}
    return PrivacyConfig(**{**settings, "directory": folder / "run", **changed})


def open_run(
    folder: Path,
    *,
    steps: int = 6,
    resumed_at: int | None = None,
    model: nn.Module | None = None,
    loss_fn: Any = cross_entropy,
    **changed: Any,
) -> ExternalRun:
    torch.manual_seed(0)
    model = model or nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return ExternalRun(
        config(folder, **changed),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        dataset=TensorDataset(INPUTS, TARGETS),
        loop=RecordLoop(
            model=model, batch_of=default_collate, loss_of=lambda batch: loss_fn(model(batch[0]), batch[1])
        ),
        library="a loop 1.0",
        steps=steps,
        resumed_at=resumed_at,
    )


def backward(run: ExternalRun, indices: Tensor) -> None:
    cross_entropy(run.model(INPUTS[indices]), TARGETS[indices]).backward()  # type: ignore[no-untyped-call]


def take(run: ExternalRun, count: int) -> dict[str, Tensor]:
    """Take steps; the last released values."""
    values: dict[str, Tensor] = {}
    for _ in range(count):
        for batch in run.current_batches:
            backward(run, batch.indices_P)
            run.add()
        values = run.release().values
    return values


def test_physical_batches_add_up_to_the_same_sum(tmp_path: Path) -> None:
    found = []
    for size in (100, 3, 1):
        run = open_run(tmp_path / str(size), noise_multiplier=1e-9, expected_batch_size=HELD, physical_batch=size)
        found.append(take(run, 1))
        run.close()
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def test_noise_has_the_charged_scale_and_an_empty_draw_adds_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 400), nn.Linear(400, 2))
    run = open_run(tmp_path, model=model, expected_batch_size=1e-6, noise_multiplier=2.0, clip_norm=0.1)
    assert [batch.mask_P.tolist() for batch in run.current_batches] == [[False]]
    flat = torch.cat([value.flatten() for value in take(run, 1).values()])
    assert float(flat.std()) == pytest.approx(2.0 * 0.1, rel=0.1)
    run.close()


class NothingToSum:
    """The engine of a rank that has two rows of each weight, whose gradients are zero."""

    def private_sum(self, clip: Any, inputs: Any, targets: Any, mask_P: Tensor) -> PrivateSum:
        return PrivateSum(values={"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, sensitivity=clip.sensitivity)


def test_sharded_weights_get_the_noise_of_their_rows(tmp_path: Path) -> None:
    model, local = nn.Linear(3, 4), nn.Linear(3, 2)
    shapes = {name: value.shape for name, value in model.named_parameters()}
    layout = Layout(shapes=shapes, trained=tuple(shapes), number=1, total=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def shard() -> Any:
        optimizer.param_groups[0]["params"] = list(local.parameters())

        def at(key: RunKey, step: int, attempt: int) -> ShardRandomness:
            return ShardRandomness(key=key, step=step, attempt=attempt, layout=layout)

        return SimpleNamespace(local=local, at=at)

    run = ExternalRun(
        config(tmp_path, expected_batch_size=HELD, physical_batch=6, noise_multiplier=2.0),
        model=model,
        optimizer=optimizer,
        dataset=TensorDataset(INPUTS, TARGETS),
        loop=RecordLoop(
            model=model, batch_of=default_collate, loss_of=lambda batch: cross_entropy(model(batch[0]), batch[1])
        ),
        library="a loop 1.0",
        steps=1,
        engine=NothingToSum(),
        shard=shard,
    )
    for batch in run.current_batches:
        run.add(INPUTS[batch.indices_P], TARGETS[batch.indices_P])
    randomness = run._run.key.at(0, run._run.charger.attempt.number)
    released = run.release()
    zeros = PrivateSum(
        values={name: torch.zeros(shape).double() for name, shape in shapes.items()}, sensitivity=CLIP_NORM
    )
    whole = IsotropicNoise().release(zeros, noise_multiplier=2.0, randomness=randomness)
    for name, value in whole.values.items():
        torch.testing.assert_close(released.values[name].double(), value[2:])
        torch.testing.assert_close(local.get_parameter(name).grad, (value[2:] / HELD).float())
    run.close()


def test_records_left_out_or_run_twice_are_refused_before_a_charge(tmp_path: Path) -> None:
    run = open_run(tmp_path, expected_batch_size=HELD, physical_batch=5)
    first, *others = run.current_batches
    backward(run, first.indices_P)
    run.add()
    with invalid("step"):
        run.release()  # three batches are missing
    for batch in others:
        backward(run, torch.cat([batch.indices_P, batch.indices_P[:1]]))
        run.add()
    with invalid("step"):
        run.release()  # records were run twice
    backward(run, first.indices_P)
    with invalid("backward"):
        run.add()  # one batch too many
    assert run.epsilon_spent == 0
    run.close()


def test_the_sampler_yields_the_draws_of_the_steps_and_has_a_public_length(tmp_path: Path) -> None:
    run = open_run(tmp_path, physical_batch=2)
    sampler = run.sampler()
    expected = [batch.indices_P.tolist() for step in range(4) for batch in run.batches(step)]
    assert (len(sampler), list(sampler)) == (4, expected)
    assert run.is_last_batch == (len(run.current_batches) == 1)
    take(run, 4)
    assert list(sampler) == [batch.indices_P.tolist() for step in (4, 5) for batch in run.batches(step)]
    run.close()


def test_every_step_is_in_the_ledger_and_the_plan_ends_the_run(tmp_path: Path) -> None:
    run = open_run(tmp_path, noise_multiplier=None, epsilon=5.0)
    take(run, 3)
    halfway = run.epsilon_spent
    take(run, 3)
    assert 0 < halfway <= run.epsilon_spent <= 5.0
    assert run.epsilon_spent == pytest.approx(run.proven_claim.epsilon)
    assert run.is_over
    with invalid("step"):
        take(run, 1)
    run.close()
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert ledger.count("steps") == 6


@pytest.mark.parametrize("stated", ["fixed", None])
def test_a_finished_run_is_read_and_released_like_any_other(tmp_path: Path, stated: str | None) -> None:
    run = open_run(tmp_path, settings_chosen_on=stated)
    take(run, 6 if stated else 2)
    certificate = run.finish(run.model.state_dict())
    run.close()
    record = read_run(tmp_path / "run")
    assert record.certificate == certificate
    assert record.config["training"]["integration"] == "a loop 1.0"
    assert record.config["method"]["update"] == {"custom": "torch.optim.sgd.SGD"}
    assert "forward" not in vars(run.model)
    if certificate is None:
        return
    assert record.state is State.COMPLETED
    assert certificate.epsilon == pytest.approx(run.proven_claim.epsilon, rel=1e-3)
    release(tmp_path / "run", tmp_path / "released")
    assert not (tmp_path / "run" / "private" / "key").exists()


def test_a_resumed_run_draws_anew_and_charges_repeated_steps(tmp_path: Path) -> None:
    def draws(run: ExternalRun) -> list[list[int]]:
        return [batch.indices_P.tolist() for step in (2, 3) for batch in run.batches(step)]

    first = open_run(tmp_path)
    take(first, 4)
    drawn = draws(first)
    first.close()
    for changed in ({"noise_multiplier": 2.0}, {"clip_norm": 2.0}, {"clipping": AutomaticClip(1.0)}):
        with pytest.raises(InvalidValue, match="was"):
            open_run(tmp_path, resumed_at=2, **changed)
    with pytest.raises(StoreError):
        open_run(tmp_path)  # there is a run already
    second = open_run(tmp_path, resumed_at=2)
    assert second.end_step == 4
    assert draws(second) != drawn
    take(second, 2)
    assert second.is_over
    second.close()


def test_a_budget_pays_for_the_plan_and_gets_back_what_was_not_used(tmp_path: Path) -> None:
    where = tmp_path / "budget"
    Budget.create(where, dataset="people", epsilon=20.0, delta=1e-3).close()
    open_run(tmp_path, budget=where, name="refused").close()  # without a step it leaves nothing
    assert not (tmp_path / "run").exists()
    with Budget.open(where) as account:
        assert account.status().epsilon_spent == 0
    run = open_run(tmp_path, budget=where, name="first", settings_chosen_on="fixed")
    take(run, 2)
    certificate = run.finish(run.model.state_dict())
    run.close()
    assert certificate is not None
    assert certificate.budget is not None
    with Budget.open(where) as budget:
        assert all(paid.is_settled for paid in budget.status().runs)
    with pytest.raises(BudgetExceeded):
        open_run(tmp_path / "second", budget=where, name="second", noise_multiplier=0.1)
    assert not (tmp_path / "second").exists()


def test_every_layer_has_a_budget_of_its_own(tmp_path: Path) -> None:
    norms = {"0": 0.01, "2": 0.02}
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    by_hand = copy.deepcopy(model)
    settings: dict[str, Any] = {
        "noise_multiplier": 1e-9,
        "expected_batch_size": HELD,
        "clipping": PerLayerClip.with_norms(norms),
    }
    run = open_run(tmp_path, model=model, **settings)
    found = take(run, 1)
    run.close()
    expected = {name: torch.zeros_like(value) for name, value in by_hand.named_parameters()}
    for index in range(HELD):
        loss = cross_entropy(by_hand(INPUTS[index]), TARGETS[index])
        grads = dict(zip(expected, torch.autograd.grad(loss, list(by_hand.parameters())), strict=True))
        for layer, norm in norms.items():
            total = torch.cat([grads[f"{layer}.weight"].flatten(), grads[f"{layer}.bias"]]).norm()
            for name in (f"{layer}.weight", f"{layer}.bias"):
                expected[name] += grads[name] * (norm / total).clamp(max=1)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].float(), value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["float", "discrete"])
def test_discrete_noise_is_that_of_lehr_fit(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[float | dict[str, Tensor]] = []
    release = DiscreteNoise.release

    def noting(self: DiscreteNoise, private: PrivateSum, **given: Any) -> ReleasedSum:
        found = release(self, private, **given)
        added.append(found.noise_std)
        return found

    monkeypatch.setattr(DiscreteNoise, "release", noting)
    run = open_run(tmp_path, noise=kind, settings_chosen_on="fixed")
    take(run, 6)
    certificate = run.finish(run.model.state_dict())
    run.close()
    assert certificate is not None
    assert len(added) == (6 if kind == "discrete" else 0)
    assert (IDEAL_ARITHMETIC.statement in certificate.assumptions) == (kind == "float")


@pytest.mark.parametrize(
    "changed",
    [
        {"bands": 4},
        {"correlation": "banded-inverse"},
        {"sampling": "balls-in-bins"},
        {"largest_batch": 9},
        {"adjacency": "zero-out"},
        {"clip": "quantile"},
        {"noise": "integers"},
    ],
    ids=str,
)
def test_options_of_fit_that_this_loop_has_not_are_refused_by_name(tmp_path: Path, changed: dict[str, Any]) -> None:
    [name] = changed
    with invalid(name):
        config(tmp_path, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": 1.0},
        {"noise_multiplier": None},
        {"records": 0},
        {"delta": float("nan")},
        {"settings_chosen_on": "a guess"},
    ],
)
def test_invalid_privacy_settings_are_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        config(tmp_path, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"clipping": PerCoordinateClip({"0.weight": torch.ones(4, 3)})},
        {"records": 3 * HELD + 1},
        {"loss_fn": lambda outputs, targets: (outputs - outputs.mean(0)).square().mean()},
    ],
    ids=["clipping", "records", "loss"],
)
def test_unsupported_loops_are_refused_before_a_folder_is_made(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises((InvalidValue, NotPrivate)):
        open_run(tmp_path, **changed)
    assert not (tmp_path / "run").exists()


def test_the_default_batch_size_is_public() -> None:
    own = PrivacyConfig(epsilon=1.0, delta=1e-5, records=100)
    assert (own.batch_size, own.steps_per_epoch) == (40, 3)


def test_frozen_parameters_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    values = {name: torch.ones_like(value) for name, value in model.named_parameters() if value.requires_grad}
    write_gradients(model, ReleasedSum(values=values), divisor=4.0)
    assert model[0].weight.grad is None
    assert torch.equal(torch.as_tensor(model[1].bias.grad), torch.full((1,), 0.25))


def test_optimizers_over_other_parameters_or_with_closures_are_refused(tmp_path: Path) -> None:
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    both = [*model.parameters(), *other.parameters()]
    for refused in (torch.optim.SGD(both), torch.optim.LBFGS(model.parameters())):
        with invalid("optimizer"):
            check_optimizer(model, refused)
    other.requires_grad_(False)
    check_optimizer(model, torch.optim.SGD(both))
    run = open_run(tmp_path)
    run.optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters())})
    with invalid("optimizer"):
        take(run, 1)
    assert run.epsilon_spent == 0
    run.close()
