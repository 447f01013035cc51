"""The final model alone: a training without noise is refuted by its own losses, an honest one is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import fit
from lehr.attacks import final_model
from lehr.attacks.final_model import Sides
from lehr.auditing import Audit, Verdict
from lehr.certificates.release import release
from lehr.data import InMemory
from lehr.errors import InvalidValue, StoreError
from lehr.methods.by_name import named
from lehr.privacy.rng import RunKey
from lehr.training.ending import Run
from tests.attacks.sabotage import scale_noise

KEY = RunKey(bytes(range(32)))
WIDTH = 300


def records(count: int, *, seed: int) -> InMemory:
    """With random labels: only memorisation explains a small loss."""
    drawn = torch.Generator().manual_seed(seed)
    return InMemory(torch.rand(count, WIDTH, generator=drawn) - 0.5, torch.randint(0, 2, (count,), generator=drawn))


def model() -> nn.Module:
    linear = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def memorised(members: InMemory, *, steps: int = 60) -> nn.Module:
    """A model that was trained without any privacy."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=5.0)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(network(members.inputs), members.targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network


MEMBERS, OTHERS = records(200, seed=1), records(200, seed=2)


def audit(network: nn.Module, *, claimed_epsilon: float = 1.0, **changed: Any) -> Audit:
    return final_model.attack(network, MEMBERS, OTHERS, claimed_epsilon=claimed_epsilon, delta=1e-3, **changed)


def test_a_model_that_remembers_its_records_is_refuted() -> None:
    result = audit(memorised(MEMBERS))
    assert result.verdict is Verdict.REFUTED
    assert result.is_private
    assert (result.members, result.others) == (200, 200)
    assert [bound.by for bound in result.bounds] == ["Clopper-Pearson", "Gaussian trade-off"]
    assert result.decisive.assumes == (final_model.INDEPENDENT, final_model.ONE_POPULATION)


@pytest.mark.parametrize("seed", range(3))
def test_a_model_that_saw_neither_side_certifies_nothing(seed: int) -> None:
    result = audit(memorised(records(200, seed=seed + 10)), confidence=0.999)
    assert [bound.epsilon for bound in result.bounds] == [0.0, 0.0]


def test_a_reference_cancels_what_is_hard_about_a_record_by_itself() -> None:
    hard = InMemory(torch.cat([20 * MEMBERS.inputs, OTHERS.inputs]), torch.cat([MEMBERS.targets, OTHERS.targets]))
    trained = memorised(hard)
    alone, relative = (
        final_model.scores_of(trained, hard, reference=other, loss_fn=None, prepare=None) for other in (None, trained)
    )
    assert np.ptp(alone) > 0
    assert not relative.any()


def test_losses_are_those_in_evaluation_mode() -> None:
    network = nn.Sequential(nn.Dropout(0.5), memorised(MEMBERS))
    found = final_model.losses(network, MEMBERS, loss_fn=None, prepare=None)
    expected = cross_entropy(network[1](MEMBERS.inputs), MEMBERS.targets, reduction="none")
    assert found == pytest.approx(expected.detach().double().numpy(), rel=1e-5)
    assert network.training


def test_a_loss_that_is_no_number_is_the_worst_of_all() -> None:
    found = final_model.losses(
        model(), MEMBERS, loss_fn=lambda outputs, _: torch.full((len(outputs),), torch.nan), prepare=None
    )
    assert (found == 1e30).all()


def test_bad_arguments_are_refused_by_name() -> None:
    for changed in ({"confidence": 0.0}, {"claimed_epsilon": float("nan")}):
        with pytest.raises(InvalidValue, match=next(iter(changed))):
            audit(model(), **changed)
    with pytest.raises(InvalidValue, match=r"^others"):
        final_model.attack(model(), MEMBERS, OTHERS.at(torch.tensor([0])), claimed_epsilon=1.0, delta=1e-3)


# A finished run


def trained(directory: Path, data: InMemory, **changed: Any) -> Run:
    given: dict[str, Any] = {
        "method": named("dpsgd", learning_rate=4.0, clip_norm=1.0),
        "noise_multiplier": 8.0,
        "steps": 25,
        "expected_batch_size": len(data) / 4,
        "records": len(data),
        "num_classes": 2,
        "delta": 1e-3,
        "settings_chosen_on": "fixed",
        "compiled": False,
        "quiet": True,
        "device": "cpu",
        **changed,
    }
    return fit(model(), data, directory=directory, **given)


HELD_OUT: dict[str, Any] = {"held_out_fraction": 0.5, "held_out_noise_multiplier": 500.0, "evaluate_every": 25}


def test_a_run_without_noise_is_refuted_by_its_held_out_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_noise(monkeypatch, 0.0)
    run = trained(tmp_path / "run", records(400, seed=3), **HELD_OUT)
    result = final_model.attack_run(run.directory, records(400, seed=3), model=model(), key=KEY)
    assert result.verdict is Verdict.REFUTED
    assert result.decisive.assumes == ()
    assert [bound.by for bound in result.bounds][:2] == ["one run", "one run, trade-off"]
    assert result.claimed_epsilon == pytest.approx(run.proven.epsilon)
    assert result.members + result.others == 400


def test_an_honest_run_is_not_refuted_by_its_held_out_records(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", records(400, seed=3), **HELD_OUT)
    result = final_model.attack_run(run.directory, records(400, seed=3), model=model())
    assert result.verdict is Verdict.NOT_REFUTED
    assert result.is_private


def test_a_run_without_held_out_records_is_compared_with_its_test_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_noise(monkeypatch, 0.0)
    run = trained(tmp_path / "run", records(300, seed=3), test=records(300, seed=4))
    given: dict[str, Any] = {"test": records(300, seed=4), "model": model()}
    result = final_model.attack_run(run.directory, records(300, seed=3), **given)
    assert result.verdict is Verdict.REFUTED
    assert result.decisive.assumes == (final_model.INDEPENDENT, final_model.ONE_POPULATION)
    with pytest.raises(InvalidValue, match=r"^data must be"):
        final_model.attack_run(run.directory, records(300, seed=5), **given)
    with pytest.raises(InvalidValue, match=r"^data must be"):
        final_model.attack_run(run.directory, records(300, seed=3), model=model())


def test_test_records_that_acceptance_used_are_left_out(tmp_path: Path) -> None:
    method = named("sa-dpsgd")
    run = trained(tmp_path / "run", records(60, seed=3), test=records(60, seed=4), method=method, steps=3)
    given: dict[str, Any] = {"test": records(60, seed=4), "model": model()}
    result = final_model.attack_run(run.directory, records(60, seed=3), **given)
    assert 10 < result.others < 50
    final_weights = load_file(run.directory / "model.safetensors")["weight"]
    assert torch.equal(given["model"].state_dict()["weight"], final_weights)


def test_a_built_in_network_is_built_by_its_name(tmp_path: Path) -> None:
    data, test = (InMemory(torch.rand(40, 1, 8, 8), torch.arange(40) % 2) for _ in range(2))
    said: dict[str, Any] = {"records": 40, "num_classes": 2, "delta": 1e-2, "epsilon": 2.0, "quiet": True}
    run = fit("small_cnn", data, test=test, steps=2, directory=tmp_path / "run", device="cpu", compiled=False, **said)
    result = final_model.attack_run(run.directory, data, test=test)
    assert result.verdict is Verdict.NOT_REFUTED
    assert (result.members, result.others) == (40, 40)


def test_a_run_that_cannot_be_attacked_is_refused(tmp_path: Path) -> None:
    data = records(60, seed=3)
    run = trained(tmp_path / "run", data, steps=2)
    with pytest.raises(InvalidValue, match="network of your own"):
        final_model.attack_run(run.directory, data)
    with pytest.raises(InvalidValue, match="the run trained"):
        final_model.attack_run(run.directory, data, model=nn.Linear(3, 2))
    with pytest.raises(InvalidValue, match="test"):
        final_model.attack_run(run.directory, data, model=model())
    with pytest.raises(StoreError):
        final_model.attack_run(tmp_path / "nowhere", data)
    release(run.directory, tmp_path / "model")
    with pytest.raises(StoreError, match="key is gone"):
        final_model.attack_run(run.directory, data, model=model())
    (run.directory / "model.safetensors").unlink()
    with pytest.raises(StoreError, match="has not finished"):
        final_model.attack_run(run.directory, data, model=model())


# Fair coins


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.8])
def test_records_that_stay_were_trained_on_by_a_fair_coin(fraction: float) -> None:
    whole = records(4000, seed=6)
    is_out = torch.rand(4000, generator=torch.Generator().manual_seed(7)) < fraction
    sides = Sides(
        members=whole.at((~is_out).nonzero()[:, 0]), others=whole.at(is_out.nonzero()[:, 0]), held_out_fraction=fraction
    )
    stays, is_member = sides.fair(KEY)
    assert len(stays) == len(is_member)
    # Each with probability 2 min(f, 1 - f), and of those half.
    assert len(stays) == pytest.approx(8000 * min(fraction, 1 - fraction), abs=5 * 32)
    assert is_member.mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(len(stays)))
    # The order says nothing: members are spread over it.
    halves = np.array_split(is_member, 2)
    assert abs(halves[0].mean() - halves[1].mean()) < 5 / np.sqrt(len(stays))


def test_the_same_records_stay_on_either_side() -> None:
    whole = records(300, seed=6)
    one = Sides(members=whole.at(torch.arange(150)), others=whole.at(torch.arange(150, 300)), held_out_fraction=0.5)
    other = replace(one, members=one.others, others=one.members)
    (first, is_rank_0), (second, is_second) = one.fair(KEY), other.fair(KEY)
    assert torch.equal(first.inputs, second.inputs)
    assert (is_rank_0 == ~is_second).all()


def test_duplicate_records_are_left_out() -> None:
    whole = records(20, seed=6)
    twice = whole.at(torch.tensor([0, 0, *range(1, 10)]))
    stays, _ = Sides(members=twice, others=whole.at(torch.arange(10, 20)), held_out_fraction=0.5).fair(KEY)
    assert len(stays) == 19
    assert not (stays.inputs == whole.inputs[0]).all(dim=1).any()
