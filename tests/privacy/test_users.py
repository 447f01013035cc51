"""The user as the unit of privacy: which records of a drawn user enter, how they are averaged, what one user can do."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import make_plan
from lehr.accounting.events import Adjacency, Gaussian, GroupPoissonSampled, PoissonSampled, Repeated
from lehr.accounting.pld import PLD
from lehr.attacks.harness import observed, plan_run, train_in_temporary_folder
from lehr.attacks.step_attack import attack
from lehr.auditing import Verdict
from lehr.certificates.certificate import certificate_text
from lehr.data import InMemory
from lehr.data.private_pca import PrivatePCA
from lehr.errors import InvalidValue, UnsupportedEvent
from lehr.gradients.batches import LossFn, weighted
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.hooked import ShardedEngine
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import PrivateSum, ViewTargets
from lehr.methods import dpsgd
from lehr.methods.by_name import named
from lehr.planning.budget import Budget
from lehr.planning.plan import USER, Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.rng import RunKey
from lehr.privacy.sampling import PoissonSampling
from lehr.privacy.users import UserRecords, records_of_run, user_indices
from tests.attacks.sabotage import keys_of, scale_noise
from tests.training.tiny import HELD, PRIVATE, fit_tiny, linear

KEY = RunKey(bytes(range(32)))
COUNTS = (5, 1, 3, 8, 2, 3)  # records of each user
OWNERS = torch.arange(len(COUNTS)).repeat_interleave(torch.tensor(COUNTS))[
    torch.randperm(sum(COUNTS), generator=torch.Generator().manual_seed(3))
]
EVERYBODY = torch.arange(len(COUNTS))
JAX_PRIVACY = json.loads(Path(__file__).with_name("jax_privacy_reference.json").read_text(encoding="utf-8"))
LOSS: LossFn = partial(cross_entropy, reduction="none")


def numbered(records_per_user: int = 3) -> UserRecords:
    """Records whose input and target are their own number."""
    numbers = torch.arange(len(OWNERS))
    return UserRecords(InMemory(numbers.view(-1, 1).float(), numbers), OWNERS, records_per_user)


def chosen_at(step: int, users: Tensor = EVERYBODY, records_per_user: int = 3) -> list[list[int]]:
    """The records of each user that count at a step."""
    _, (targets, weights) = numbered(records_per_user).of_draw(users, KEY.at(step, 0)).batch(users)
    return [row[own > 0].tolist() for row, own in zip(targets, weights, strict=True)]


def test_ids_may_be_numbers_or_text() -> None:
    expected = [1, 0, 1, 2]
    for ids in (["b", "a", "b", "c"], np.array([5, -2, 5, 9]), torch.tensor([7, 1, 7, 8]), ("x2", "x1", "x2", "x3")):
        assert user_indices(ids, num_records=4).tolist() == expected


@pytest.mark.parametrize(
    "ids",
    [["a", "b"], [[1], [2], [3]], ["secret id", None, "b"], [1.0, float("nan"), 2.0], ["secret id", 2.5, None], 3],
)
def test_a_missing_id_is_refused_without_quoting_one(ids: Any) -> None:
    with pytest.raises(InvalidValue) as error:
        user_indices(ids, num_records=3)
    assert error.value.name == "owners"
    assert "secret" not in str(error.value)


def test_at_most_k_different_records_of_the_user_enter() -> None:
    for step in range(20):
        for user, (records, count) in enumerate(zip(chosen_at(step), COUNTS, strict=True)):
            assert len(records) == len(set(records)) == min(3, count)
            assert {int(OWNERS[record]) for record in records} == {user}


def test_every_record_of_a_user_is_chosen_equally_often_and_anew_at_each_step() -> None:
    steps, biggest = 600, 3
    found = torch.tensor([chosen_at(step)[biggest] for step in range(steps)])
    counts = torch.bincount(found.flatten(), minlength=len(OWNERS))[biggest == OWNERS].double()
    expected = steps * 3 / COUNTS[biggest]
    assert float(((counts - expected).abs() / (expected * (1 - 3 / 8)) ** 0.5).max()) < 5
    same = (found[1:].sort().values == found[:-1].sort().values).all(1).double().mean()
    assert float(same) < 0.05  # 1 of 56 by chance


def test_what_a_user_enters_with_does_not_depend_on_the_order_or_the_batches() -> None:
    records, users = numbered(), torch.tensor([4, 0, 3])
    drawn = records.of_draw(users, KEY.at(0, 0))
    whole = drawn.batch(users)[1].targets
    apart = [targets.targets for _, targets, _ in drawn.batches([users[:1], users[1:]])]
    assert torch.equal(whole, torch.cat(apart))


def test_a_user_that_was_not_drawn_is_padding() -> None:
    for users in (torch.tensor([1, 4]), torch.zeros(0, dtype=torch.int64)):
        drawn = numbered().of_draw(users, KEY.at(0, 0))
        [(_, targets, is_drawn)] = drawn.batches([EVERYBODY])
        assert is_drawn.tolist() == [user in users.tolist() for user in range(len(COUNTS))]
        assert not targets.weights_BK[~is_drawn].any()


def drawn_beside(row: dict[str, Any], *, first_step: int) -> tuple[int, float]:
    """How many users our draws have beyond those of jax_privacy, at all steps, and the variance of that by chance.

    Checks on the way that as many different records of each user enter.
    """
    held, most = row["users"], row["most"]
    counts = 1 + torch.arange(held) % most
    owners = torch.arange(held).repeat_interleave(counts)
    numbers = torch.arange(len(owners))
    records = UserRecords(InMemory(numbers.view(-1, 1).float(), numbers), owners, row["records_per_user"])
    sampling, excess = PoissonSampling(expected_batch_size=row["batch"], records=held), -row["drawn"]
    for step in range(first_step, first_step + row["steps"]):
        users = sampling.draw(held, KEY.at(step, 0))
        _, (targets, weights) = records.of_draw(users, KEY.at(step, 0)).batch(users)
        for user, chosen, weight in zip(users, targets, weights, strict=True):
            expected = row["different"][int(counts[user]) - 1]
            assert expected in (0, len(set(chosen[weight > 0].tolist())))  # 0 where theirs never drew such a user
        excess += len(users)
    probability = row["batch"] / held
    return excess, 2 * row["steps"] * held * probability * (1 - probability)


def test_users_are_drawn_and_counted_as_by_jax_privacy_at_random_settings() -> None:
    """Theirs takes the records of a user in turns and ours at random, so that the records themselves differ."""
    rows = JAX_PRIVACY["users"]
    compared = [drawn_beside(row, first_step=1000 * number) for number, row in enumerate(rows)]
    excesses, variances = zip(*compared, strict=True)
    assert (np.abs(excesses) < 4.5 * np.sqrt(variances)).all()
    # All together notice a sampling probability that is a fiftieth off.
    assert abs(sum(excesses)) < 4 * math.sqrt(sum(variances)) < 0.02 * sum(row["drawn"] for row in rows)
    for row in rows:
        plan = make_plan(
            records=row["users"],
            expected_batch_size=row["batch"],
            steps=row["steps"],
            noise_multiplier=row["noise_multiplier"],
            delta=JAX_PRIVACY["delta"],
        )
        plan = replace(plan, records_per_user=row["records_per_user"])
        epsilon = PLD.epsilon(plan.event, delta=plan.delta, adjacency=plan.adjacency)
        assert epsilon == pytest.approx(row["epsilon"], rel=5e-3, abs=1e-3)


def mean_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    loss = LOSS(model(inputs), targets).mean()
    return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])


def flat(private: PrivateSum) -> Tensor:
    return torch.cat([value.flatten() for value in private.values.values()]).float()


@pytest.mark.parametrize("records_per_user", [1, 2, 4])
@pytest.mark.parametrize("engine", [MaterialisedEngine, partial(GhostEngine, compiled=False), ShardedEngine])
def test_the_gradients_of_a_user_are_averaged_before_the_clip(engine: Any, records_per_user: int) -> None:
    pictures, labels = PRIVATE
    owners = torch.arange(HELD) % 7 // 2  # some users have more records than others
    users, model = torch.tensor([0, 2, 3]), linear()
    records = UserRecords(InMemory(pictures, labels), owners, records_per_user)
    inputs, targets = records.of_draw(users, KEY.at(0, 0)).batch(users)
    rule = FlatClip(0.05)
    expected = torch.zeros(())
    for row in range(len(users)):
        counts = targets.weights_BK[row] > 0
        own = mean_gradient(model, inputs[row][counts], targets.targets[row][counts])  # type: ignore[index]
        expected = expected + own * (0.05 / own.norm()).clamp(max=1)
    views = inputs if records_per_user > 1 else inputs.squeeze(1)  # type: ignore[union-attr]
    found = engine(model, weighted(LOSS), views=records_per_user).private_sum(
        rule, views, targets, torch.ones(len(users), dtype=torch.bool)
    )
    assert torch.allclose(flat(found), expected, atol=2e-4)
    assert found.sensitivity == rule.sensitivity


def test_a_loss_over_the_whole_batch_is_refused_although_weights_would_hide_it() -> None:
    def whole(outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)

    targets = ViewTargets(torch.zeros(4, dtype=torch.int64), torch.ones(4))
    with pytest.raises(InvalidValue, match=r"^loss_fn must be"):
        weighted(whole)(torch.zeros(4, 3), targets)


# Through the real loop.

PLAN = make_plan(noise_multiplier=1.0, delta=1e-3, records=10, expected_batch_size=10, steps=1)
USER_PLAN = replace(PLAN, records_per_user=3)


def sum_of(
    owners: Tensor,
    *,
    plan: Plan = USER_PLAN,
    steps: int = 1,
    records: tuple[Tensor, ...] = PRIVATE,
    **changed: Any,
) -> list[Tensor]:
    """The sums before noise of a run in which everybody is drawn."""
    pictures, labels = records
    sums: list[Tensor] = []
    method = observed(dpsgd(clip_norm=0.05), lambda private, released: sums.append(flat(private)))
    run = plan_run(
        linear(),
        InMemory(100 * pictures[: len(owners)], labels[: len(owners)]),
        method=method,
        plan=replace(plan, steps=steps),
        loss_fn=LOSS,
        num_classes=3,
        owners=owners,
        **changed,
    )
    train_in_temporary_folder(run, key=KEY)
    return sums


def test_one_user_moves_the_sum_by_at_most_the_clip_norm_however_many_records_they_have() -> None:
    """All gradients are far above the clip norm, so that a record clipped by itself would show."""
    owners = torch.cat([torch.arange(9), torch.full((30,), 9)])
    [one], [other] = sum_of(owners), sum_of(owners[:9])
    assert 0.03 < float((one - other).norm()) <= 0.05 * (1 + 1e-6)


def test_with_one_record_each_a_run_of_users_is_the_run_of_records() -> None:
    owners = torch.arange(9)
    [users] = sum_of(owners, plan=replace(PLAN, records_per_user=1))
    [records] = sum_of(owners, plan=replace(PLAN, records_per_user=4))
    assert torch.allclose(users, records, atol=1e-6)


def test_other_records_of_a_user_enter_at_the_next_step() -> None:
    owners = torch.arange(40) % 2
    method_steps = sum_of(owners, plan=replace(PLAN, records_per_user=1, noise_multiplier=1e-6), steps=2)
    assert not torch.allclose(method_steps[0], method_steps[1], atol=1e-4)


def test_physical_batches_change_nothing() -> None:
    owners = torch.arange(40) % 9
    [small], [large] = sum_of(owners, physical_batch=2), sum_of(owners, physical_batch=64)
    assert torch.allclose(small, large, atol=1e-6)


AUDITED = replace(
    make_plan(epsilon=3.0, delta=1e-5, records=60_000, expected_batch_size=30_000, steps=100), records_per_user=3
)


def test_users_as_canaries_show_most_of_the_claim() -> None:
    audit = attack(dpsgd(), AUDITED, num_canaries=4096, keys=keys_of("a"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.decisive.epsilon >= 0.7 * audit.claimed_epsilon


def test_half_the_noise_is_refuted_by_users_as_canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.5)
    assert attack(dpsgd(), AUDITED, num_canaries=1024, keys=keys_of("a")).verdict is Verdict.REFUTED


# Records of users, drawn and clipped one by one.

GROUP_PLAN = replace(PLAN, records=30, expected_batch_size=30, max_records_per_user=3)
AUDITED_GROUPS = make_plan(
    epsilon=3.0, delta=1e-5, records=60_000, expected_batch_size=30_000, steps=100, max_records_per_user=3
)


@pytest.mark.parametrize("most", [1, 3, 100])
def test_at_most_so_many_records_of_each_user_are_in_the_run_and_no_others(most: int) -> None:
    found = records_of_run(OWNERS, most=most, key=KEY)
    assert found.tolist() == sorted(set(found.tolist()))
    assert torch.bincount(OWNERS[found]).tolist() == [min(count, most) for count in COUNTS]


def test_the_records_of_a_run_are_chosen_at_random_by_its_key_alone() -> None:
    keys = [RunKey(bytes([number % 256, number // 256, *range(30)])) for number in range(800)]
    counts = sum(torch.bincount(records_of_run(OWNERS, most=3, key=key), minlength=len(OWNERS)) for key in keys)
    expected = len(keys) * 3 / COUNTS[3]
    of_biggest = counts[OWNERS == 3].double()  # type: ignore[index]
    assert float(((of_biggest - expected).abs() / (expected * (1 - 3 / 8)) ** 0.5).max()) < 5
    assert torch.equal(records_of_run(OWNERS, most=3, key=KEY), records_of_run(OWNERS, most=3, key=KEY))


def test_one_user_moves_a_sum_by_at_most_so_many_clip_norms_however_many_records_they_have() -> None:
    """All of them alike, far above the clip norm, and drawn: more of them would show."""
    pictures, labels = PRIVATE
    alike = {"data": (torch.cat([pictures[:9], pictures[:1].repeat(20, 1, 1, 1)]), labels[[*range(9), *[0] * 20]])}
    owners = torch.cat([torch.arange(9), torch.full((20,), 9)])
    [one], [other] = (
        sum_of(owners[:number], plan=GROUP_PLAN, records=tuple(part[:number] for part in alike["data"]))
        for number in (len(owners), 9)
    )
    assert 0.14 < float((one - other).norm()) <= 3 * 0.05 * (1 + 1e-6)


def test_with_one_record_each_records_of_users_are_records() -> None:
    owners = torch.arange(9)
    [users] = sum_of(owners, plan=GROUP_PLAN)
    [records] = sum_of(owners, plan=replace(PLAN, records_per_user=1))
    assert torch.allclose(users, records, atol=1e-6)


def test_every_start_of_a_run_chooses_the_same_records_of_a_user() -> None:
    """The sums of a run whose users have more records than are in it, made twice with the run's key."""
    owners, plan = torch.arange(40) % 5, replace(GROUP_PLAN, records=15, expected_batch_size=15)
    [first], [again] = sum_of(owners, plan=plan), sum_of(owners, plan=plan)
    assert torch.equal(first, again)
    [all_of_them] = sum_of(owners, plan=replace(plan, max_records_per_user=8))
    assert not torch.allclose(first, all_of_them, atol=1e-3)


def test_a_plan_of_groups_is_calibrated_and_counted_as_groups() -> None:
    plan = AUDITED_GROUPS
    assert plan.event == Repeated(GroupPoissonSampled(0.5, 3, Gaussian(plan.noise_multiplier)), 100)
    assert 2.99 < plan.bound().epsilon <= 3.0
    assert Plan.from_json(plan.to_json()) == plan
    assert (plan.unit, plan.drawn) == (USER, "record")
    of_one = Repeated(PoissonSampled(0.5, Gaussian(plan.noise_multiplier)), 100)
    assert PLD.epsilon(of_one, delta=1e-5, adjacency=Adjacency.ADD_OR_REMOVE_ONE) < 1.0


@pytest.mark.parametrize("clip", ["flat", "quantile"])
def test_users_with_several_records_as_canaries_show_most_of_the_claim(clip: str) -> None:
    audit = attack(dpsgd(clip=clip), AUDITED_GROUPS, num_canaries=4096, keys=keys_of("a"))
    assert audit.verdict is Verdict.NOT_REFUTED
    assert audit.decisive.epsilon >= 0.7 * audit.claimed_epsilon


def test_half_the_noise_is_refuted_by_users_with_several_records(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.5)
    assert attack(dpsgd(), AUDITED_GROUPS, num_canaries=1024, keys=keys_of("a")).verdict is Verdict.REFUTED


GROUPS: dict[str, Any] = {"owners": torch.arange(HELD) % 12, "records": HELD, "max_records_per_user": 3}


def test_a_run_of_groups_states_its_unit_and_its_event(tmp_path: Path) -> None:
    run = fit_tiny(tmp_path / "run", **GROUPS | {"settings_chosen_on": "fixed"})
    assert run.certificate is not None
    assert run.certificate.stated.unit_of_privacy == (
        "one user with all their records, at most 3 of them in the whole run"
    )
    assert run.certificate.stated.treated_as_public[0] == "the number of records"
    assert isinstance(run.plan.gradient_event(0), GroupPoissonSampled)
    text = " ".join(certificate_text(run.certificate).split())
    for stated in ("at most 3 of them in the whole run", f"Number of records, stated as public: {HELD}"):
        assert stated in text
    fit_tiny(tmp_path / "run", resume=True, **GROUPS | {"settings_chosen_on": "fixed"})
    others = {"owners": torch.arange(HELD) % 11, "settings_chosen_on": "fixed"}
    with pytest.raises(InvalidValue, match=r"^data must be"):
        fit_tiny(tmp_path / "run", resume=True, **GROUPS | others)


def test_a_shared_budget_refuses_groups_by_unit_or_because_it_cannot_count_them(tmp_path: Path) -> None:
    for unit in ("record", USER):
        Budget.create(tmp_path / unit, dataset="tiny", epsilon=200.0, delta=1e-3, unit=unit).close()
    with pytest.raises(InvalidValue, match=r"^unit must be"):
        fit_tiny(tmp_path / "other", budget=tmp_path / "record", **GROUPS)
    with pytest.raises(UnsupportedEvent, match="groups of records"):
        fit_tiny(tmp_path / "run", budget=tmp_path / USER, **GROUPS)


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"owners": None}, "max_records_per_user"),
        ({"users": 10}, "users"),
        ({"records": None}, "records"),
        ({"records": 4}, "records"),  # a third of those in the run are more
        ({"max_records_per_user": 0}, "max_records_per_user"),
        ({"records_per_user": 2}, "max_records_per_user"),
        ({"sampling": "truncated-poisson"}, "max_records_per_user"),
        ({"sampling": "balls-in-bins"}, "max_records_per_user"),
        ({"sampling": "without-replacement"}, "max_records_per_user"),
        ({"bands": 2}, "bands"),
        ({"noise": "discrete"}, "max_records_per_user"),
        ({"method": named("dpsur", test_batch_size=4)}, "max_records_per_user"),
        ({"private_pca": PrivatePCA(dimensions=4, noise_multiplier=5.0)}, "private_pca"),
        ({"test": None, "held_out_fraction": 0.2, "delta": 1e-2}, "held_out_fraction"),
    ],
    ids=str,
)
def test_what_a_run_of_groups_refuses(tmp_path: Path, changed: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        fit_tiny(tmp_path / "run", **GROUPS | changed)
    assert error.value.name == name
    assert not (tmp_path / "run").exists()


# What a run of users refuses.

USERS: dict[str, Any] = {"owners": torch.arange(HELD) % 12, "users": 10, "records": None, "expected_batch_size": 4}


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"users": None}, "users"),
        ({"users": 100}, "users"),  # more than three times as many as there are
        ({"owners": None}, "users"),
        ({"owners": None, "users": None, "records": 40, "records_per_user": 2}, "records_per_user"),
        ({"owners": torch.arange(5)}, "owners"),
        ({"owners": "user"}, "owners"),
        ({"method": named("dpsur", test_batch_size=4)}, "method"),
        ({"private_pca": PrivatePCA(dimensions=4, noise_multiplier=5.0)}, "private_pca"),
        (
            {
                "plan": replace(PLAN, records=10),
                "expected_batch_size": None,
                "steps": None,
                "noise_multiplier": None,
                "delta": None,
            },
            "plan",
        ),
    ],
    ids=str,
)
def test_what_a_run_of_users_refuses(tmp_path: Path, changed: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue) as error:
        fit_tiny(tmp_path / "run", **USERS | changed)
    assert error.value.name == name
    assert not (tmp_path / "run").exists()


def test_holding_out_records_of_users_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match=r"^held_out_fraction must be"):
        fit_tiny(tmp_path / "run", **USERS | {"test": None, "held_out_fraction": 0.2, "delta": 1e-2})


def test_a_plan_of_users_needs_owners(tmp_path: Path) -> None:
    numbers = dict.fromkeys(("expected_batch_size", "steps", "noise_multiplier", "delta"))
    with pytest.raises(InvalidValue, match=r"^owners must be"):
        fit_tiny(tmp_path / "run", plan=replace(USER_PLAN, records=40, expected_batch_size=8), **numbers)


@pytest.mark.parametrize("unit", ["record", USER])
def test_a_budget_pays_for_runs_of_its_unit_only(tmp_path: Path, unit: str) -> None:
    Budget.create(tmp_path / "budget", dataset="tiny", epsilon=20.0, delta=1e-3, unit=unit).close()
    runs: dict[str, dict[str, Any]] = {"record": {}, USER: USERS}
    fit_tiny(
        tmp_path / "ours",
        budget=tmp_path / "budget",
        **runs.pop(unit) | {"noise_multiplier": 4.0, "expected_batch_size": 2},
    )
    [other] = runs.values()
    with pytest.raises(InvalidValue, match=r"^unit must be"):
        fit_tiny(tmp_path / "other", budget=tmp_path / "budget", **other)
    with Budget.open(tmp_path / "budget") as account:
        assert account.status().unit == unit
        assert len(account.status().runs) == 1


def test_a_resumed_run_has_the_same_owners(tmp_path: Path) -> None:
    fit_tiny(tmp_path / "run", **USERS)
    with pytest.raises(InvalidValue, match=r"^data must be"):
        fit_tiny(tmp_path / "run", resume=True, **USERS | {"owners": torch.arange(HELD) % 11})
    fit_tiny(tmp_path / "run", resume=True, **USERS)
