"""One run with canaries: an honest training holds, a broken one is refuted, and canaries unseen certify nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.accounting.events import Adjacency
from lehr.attacks import one_run
from lehr.auditing import Audit, Verdict
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import PrivateSum, RecordGradients
from lehr.methods.by_name import named
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.rng import RunKey, StepRandomness

LOSS = partial(cross_entropy, reduction="none")
KEY = RunKey(bytes(range(32)))
WIDTH, CANARIES = 600, 400
PLAN = Plan(noise_multiplier=8.0, expected_batch_size=125, records=250, steps=25, delta=1e-3)


def records(count: int = 50, *, seed: int = 1) -> InMemory:
    drawn = torch.Generator().manual_seed(seed)
    return InMemory(torch.rand(count, WIDTH, generator=drawn) - 0.5, torch.randint(0, 2, (count,), generator=drawn))


def model() -> nn.Module:
    linear = nn.Linear(WIDTH, 2, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


def audit(**changed: Any) -> Audit:
    said = {"method": named("dpsgd", learning_rate=4.0, clip_norm=1.0), "plan": PLAN, "loss_fn": LOSS, **changed}
    canaries = said.pop("canaries", None) or records(CANARIES, seed=2)
    trained = said.pop("model", None) or model()
    return one_run.attack(trained, records(), canaries, num_classes=2, key=KEY, physical_batch=256, **said)


@pytest.fixture
def noise_times(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every noise from here on is so many times as large."""
    whole = StepRandomness.normals

    def change(factor: float) -> None:
        def scaled(self: StepRandomness, purpose: str, like: Any) -> dict[str, Tensor]:
            return {name: factor * value for name, value in whole(self, purpose, like).items()}

        monkeypatch.setattr(StepRandomness, "normals", scaled)

    return change


@pytest.mark.parametrize("white_box", [False, True])
def test_an_honest_training_holds(white_box: bool) -> None:
    result = audit(white_box=white_box)
    assert result.verdict is Verdict.NOT_REFUTED
    assert 0.5 < result.claimed_epsilon < 2
    assert result.members + result.others == CANARIES
    assert (result.runs, result.steps, result.is_private) == (1, 25, True)
    assert result.decisive.by == "one run"
    assert result.decisive.assumes == ()


@pytest.mark.parametrize("white_box", [False, True])
def test_a_training_without_noise_is_refuted(white_box: bool, noise_times: Any) -> None:
    noise_times(0.0)
    assert audit(white_box=white_box).verdict is Verdict.REFUTED


def test_a_training_with_a_quarter_of_its_noise_is_refuted(noise_times: Any) -> None:
    noise_times(0.25)
    assert audit(white_box=True).verdict is Verdict.REFUTED


def test_a_training_that_does_not_clip_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(self: FlatClip, gradients: RecordGradients) -> PrivateSum:
        ones = torch.ones_like(gradients.norms())
        return PrivateSum(values=gradients.weighted_sum(ones), sensitivity=self.sensitivity)

    monkeypatch.setattr(FlatClip, "__call__", unclipped)
    assert audit().verdict is Verdict.REFUTED


@pytest.mark.parametrize("white_box", [False, True])
def test_canaries_that_were_never_drawn_certify_nothing(white_box: bool) -> None:
    plan = Plan(noise_multiplier=8.0, expected_batch_size=1e-6, records=250, steps=5, delta=1e-3)
    result = audit(plan=plan, white_box=white_box)
    assert [bound.epsilon for bound in result.bounds] == [0.0, 0.0]


def test_clips_by_coordinates_and_public_energies_are_played_too() -> None:
    plan = Plan(noise_multiplier=8.0, expected_batch_size=125, records=250, steps=4, delta=1e-3)
    assert audit(plan=plan, method=named("adadp"), white_box=True, look_every=2).verdict is Verdict.NOT_REFUTED
    assert audit(plan=plan, method=named("sa-dpsgd"), public=records(20, seed=5)).verdict is Verdict.NOT_REFUTED


def test_nobody_listens_where_the_final_model_alone_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise AssertionError("a listener was made")

    monkeypatch.setattr(one_run, "CanaryObserver", refuse)
    plan = Plan(noise_multiplier=8.0, expected_batch_size=9, records=250, steps=1, delta=1e-3)
    assert audit(plan=plan).attack == one_run.FROM_THE_MODEL
    with pytest.raises(AssertionError, match="a listener was made"):
        audit(plan=plan, white_box=True)


def test_the_model_that_was_given_stays_as_it_was() -> None:
    given = model()
    audit(model=given, plan=Plan(noise_multiplier=8.0, expected_batch_size=9, records=250, steps=1, delta=1e-3))
    assert not any(value.any() for value in given.parameters())


def test_the_number_of_guesses_that_was_fixed_is_the_one_that_is_made() -> None:
    plan = Plan(noise_multiplier=8.0, expected_batch_size=9, records=250, steps=1, delta=1e-3)
    assert audit(plan=plan, guesses=0, records_are_public=True).decisive.epsilon == 0
    assert not audit(plan=plan, guesses=0, records_are_public=True).is_private


def test_mislabelled_records_keep_their_inputs_and_lose_their_labels() -> None:
    own = InMemory(torch.arange(30.0).view(30, 1), torch.arange(30) % 3)
    made = one_run.mislabelled_canaries(own, 20, num_classes=3, generator=torch.Generator().manual_seed(4))
    places = made.inputs[:, 0].long()
    assert len(set(places.tolist())) == 20
    assert not (made.targets == own.targets[places]).any()
    assert set(made.targets.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("dtype, largest", [(torch.uint8, 255), (torch.float32, 1.0), (torch.float64, 1.0)])
def test_canaries_of_noise_are_shaped_like_the_records(dtype: torch.dtype, largest: float) -> None:
    like = InMemory(torch.zeros(3, 1, 4, 4, dtype=dtype), torch.zeros(3, dtype=torch.long))
    made = one_run.noise_canaries(like, 50, num_classes=5, generator=torch.Generator().manual_seed(4))
    assert made.inputs.shape == (50, 1, 4, 4)
    assert made.inputs.dtype == dtype
    assert largest / 2 < made.inputs.max() <= largest
    assert set(made.targets.tolist()) == set(range(5))


REPLACING = Plan(
    noise_multiplier=8.0, expected_batch_size=125, records=250, steps=5, delta=1e-3, adjacency=Adjacency.REPLACE_ONE
)


@pytest.mark.parametrize(
    "changed, said",
    [
        pytest.param({"method": named("plain-sgd")}, "method", id="no noise"),
        pytest.param({"plan": REPLACING}, "plan", id="replaced"),
        pytest.param({"canaries": records(31)}, "canaries", id="too few"),
        pytest.param({"canaries": InMemory(torch.zeros(40, 3), torch.zeros(40))}, "canaries", id="another shape"),
        pytest.param({"guesses": CANARIES + 1}, "guesses", id="more guesses than canaries"),
        pytest.param({"confidence": 1.0}, "confidence", id="certain"),
        pytest.param({"look_every": 0}, "look_every", id="never"),
        pytest.param({"records_are_public": "yes"}, "records_are_public", id="a word"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_is_trained(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        audit(**changed)


def test_more_mislabelled_than_there_are_records_are_refused() -> None:
    with pytest.raises(InvalidValue, match="num_canaries"):
        one_run.mislabelled_canaries(records(3), 4, num_classes=2, generator=torch.Generator())
