"""One run with canaries: an honest training holds, a broken one is refuted, and canaries unseen certify nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lehr.accounting.events import Adjacency
from lehr.attacks import one_run
from lehr.auditing import Audit, Verdict
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.methods.by_name import named
from lehr.planning.plan import Plan
from lehr.privacy.rng import RunKey
from tests.attacks.sabotage import scale_noise, turn_clipping_off

LOSS = partial(cross_entropy, reduction="none")
KEY = RunKey(bytes(range(32)))
WIDTH, CANARIES = 600, 400
PLAN = Plan(noise_multiplier=8.0, expected_batch_size=125, records=250, steps=25, delta=1e-3)
SHORT = replace(PLAN, expected_batch_size=9, steps=1)
each_box = pytest.mark.parametrize("white_box", [False, True])


def records(count: int = 50, *, seed: int = 1) -> InMemory:
    drawn = torch.Generator().manual_seed(seed)
    return InMemory(torch.rand(count, WIDTH, generator=drawn) - 0.5, torch.randint(0, 2, (count,), generator=drawn))


def model() -> nn.Module:
    linear = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def audit(**changed: Any) -> Audit:
    given = {"method": named("dpsgd", learning_rate=4.0, clip_norm=1.0), "plan": PLAN, "loss_fn": LOSS, **changed}
    canaries = given.pop("canaries", None) or records(CANARIES, seed=2)
    trained = given.pop("model", None) or model()
    return one_run.attack(trained, records(), canaries, num_classes=2, key=KEY, physical_batch=256, **given)


@each_box
def test_an_honest_training_holds(white_box: bool) -> None:
    result = audit(white_box=white_box)
    assert result.attack == (one_run.FROM_THE_SUMS if white_box else one_run.FROM_THE_MODEL)
    assert result.verdict is Verdict.NOT_REFUTED
    assert 0.5 < result.claimed_epsilon < 2
    assert result.members + result.others == CANARIES
    assert (result.runs, result.steps, result.is_private) == (1, 25, True)
    assert (result.decisive.by, result.decisive.assumes) == ("one run", ())


@pytest.mark.parametrize("white_box, factor", [(False, 0.0), (True, 0.0), (True, 0.25)])
def test_a_training_with_too_little_noise_is_refuted(
    white_box: bool, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale_noise(monkeypatch, factor)
    assert audit(white_box=white_box).verdict is Verdict.REFUTED


def test_a_training_that_does_not_clip_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_clipping_off(monkeypatch)
    assert audit().verdict is Verdict.REFUTED


@each_box
def test_canaries_that_were_never_drawn_certify_nothing(white_box: bool) -> None:
    result = audit(plan=replace(PLAN, expected_batch_size=1e-6, steps=5), white_box=white_box)
    assert [bound.epsilon for bound in result.bounds] == [0.0, 0.0]


def test_clips_by_coordinates_and_public_energies_are_attacked_too() -> None:
    plan = replace(PLAN, steps=4)
    assert audit(plan=plan, method=named("adadp"), white_box=True, look_every=2).verdict is Verdict.NOT_REFUTED
    assert audit(plan=plan, method=named("sa-dpsgd"), public=records(20, seed=5)).verdict is Verdict.NOT_REFUTED


def test_sums_are_observed_only_in_a_white_box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(one_run, "CanaryObserver")
    audit(plan=SHORT)
    with pytest.raises(NameError):
        audit(plan=SHORT, white_box=True)


def test_the_model_is_left_as_it_was_and_so_many_guesses_are_made_as_asked() -> None:
    given = model()
    result = audit(model=given, plan=SHORT, guesses=0, records_are_public=True)
    assert not any(value.any() for value in given.parameters())
    assert result.decisive.epsilon == 0
    assert not result.is_private


def test_mislabelled_records_keep_their_inputs_and_lose_their_labels() -> None:
    own = InMemory(torch.arange(30.0).view(30, 1), torch.arange(30) % 3)
    made = one_run.mislabelled_canaries(own, 20, num_classes=3, generator=torch.Generator().manual_seed(4))
    indices = made.inputs[:, 0].long()
    assert len(set(indices.tolist())) == 20
    assert not (made.targets == own.targets[indices]).any()
    assert set(made.targets.tolist()) == {0, 1, 2}
    with pytest.raises(InvalidValue, match=r"^num_canaries"):
        one_run.mislabelled_canaries(own, 31, num_classes=2, generator=torch.Generator())


@pytest.mark.parametrize("dtype, largest", [(torch.uint8, 255), (torch.float32, 1.0), (torch.float64, 1.0)])
def test_canaries_of_noise_are_shaped_like_the_records(dtype: torch.dtype, largest: float) -> None:
    like = InMemory(torch.zeros(3, 1, 4, 4, dtype=dtype), torch.zeros(3, dtype=torch.long))
    made = one_run.noise_canaries(like, 50, num_classes=5, generator=torch.Generator().manual_seed(4))
    assert made.inputs.shape == (50, 1, 4, 4)
    assert made.inputs.dtype == dtype
    assert largest / 2 < made.inputs.max() <= largest
    assert set(made.targets.tolist()) == set(range(5))


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"method": named("plain-sgd")}, "method"),
        ({"plan": replace(PLAN, adjacency=Adjacency.REPLACE_ONE)}, "plan"),
        ({"canaries": records(31)}, "canaries"),
        ({"canaries": InMemory(torch.zeros(40, 3), torch.zeros(40))}, "canaries"),
        ({"guesses": CANARIES + 1}, "guesses"),
        ({"confidence": 1.0}, "confidence"),
        ({"look_every": 0}, "look_every"),
        ({"records_are_public": "yes"}, "records_are_public"),
    ],
)
def test_bad_arguments_are_refused_by_name_before_anything_is_trained(changed: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}"):
        audit(**changed)
