"""One step with a record and without it: the honest mechanism holds, and a broken one is refuted."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lehr import accounting
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled
from lehr.attacks import neighbours
from lehr.auditing import Audit, Verdict
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.methods.by_name import named
from lehr.methods.dpsgd import dpsgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import QuantileClip
from lehr.privacy.rng import RunKey
from lehr.run.mechanism import Mechanism
from tests.attacks.sabotage import sampling_doubled, scale_noise, turn_clipping_off

LOSS = partial(cross_entropy, reduction="none")
KEY = RunKey(bytes(range(32)))
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=12, records=24, steps=10, delta=1e-3)


def model(*, dropout: float = 0.0) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(4, 3), nn.Dropout(dropout) if dropout else nn.Tanh(), nn.Linear(3, 2))


def records() -> InMemory:
    drawn = torch.Generator().manual_seed(3)
    return InMemory(torch.randn(24, 4, generator=drawn), torch.randint(0, 2, (24,), generator=drawn))


def audit(method: Any = None, **changed: Any) -> Audit:
    given = {"plan": PLAN, "loss_fn": LOSS, "repetitions": 240, "key": KEY, **changed}
    return neighbours.attack(
        given.pop("model", None) or model(),
        given.pop("private", None) or records(),
        given.pop("record", None),
        method=method or named("dpsgd"),
        **given,
    )


def test_an_honest_step_holds_and_much_of_its_claim_is_certified() -> None:
    own, state = model(), torch.get_rng_state()
    before = [value.clone() for value in own.parameters()]
    result = audit(model=own)
    claimed = accounting.claim(PoissonSampled(0.5, Gaussian(1.0)), delta=1e-3).epsilon
    assert result.verdict is Verdict.NOT_REFUTED
    assert result.claimed_epsilon == claimed
    assert 0.2 * claimed < result.decisive.epsilon
    assert result.is_private
    assert (result.members, result.others, result.steps) == (240, 240, 1)
    assert all(map(torch.equal, before, own.parameters()))
    assert torch.equal(state, torch.get_rng_state())


def test_half_the_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.5)
    assert audit().verdict is Verdict.REFUTED


def test_no_noise_is_refuted_by_either_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.0)
    plan = Plan(noise_multiplier=1.0, expected_batch_size=24, records=24, steps=10, delta=0.3)
    result = audit(plan=plan, repetitions=60)
    assert all(bound.epsilon > result.claimed_epsilon for bound in result.bounds)


def test_a_record_that_is_not_clipped_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    turn_clipping_off(monkeypatch)
    assert audit(repetitions=100).verdict is Verdict.REFUTED


def test_a_doubled_sampling_rate_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    sampling_doubled(dpsgd(), monkeypatch)
    result = audit(repetitions=150)
    assert result.verdict is not Verdict.NOT_REFUTED
    assert [check.statement for check in result.checks if not check.passed] == [neighbours.DRAWN_AS_STATED]


def test_a_record_that_moves_nothing_is_refused_and_one_that_moves_little_certifies_little() -> None:
    linear = nn.Linear(4, 2, bias=False)
    with pytest.raises(InvalidValue, match=r"^record"):
        audit(model=linear, record=(torch.zeros(4), torch.tensor(0)), repetitions=8)
    faint = audit(model=linear, record=(torch.full((4,), 1e-4), torch.tensor(0)), repetitions=100)
    assert faint.decisive.epsilon == 0
    assert faint.verdict is Verdict.NOT_REFUTED


@pytest.mark.parametrize("method", ["dpsgd-per-layer", "adadp"])
def test_methods_with_other_clips_and_noise_hold(method: str) -> None:
    assert audit(named(method), repetitions=40).verdict is Verdict.NOT_REFUTED


# Most of what is released about a record is whether it was clipped.
COUNTING = replace(dpsgd(), clipping=QuantileClip(0.1, count_share=0.95))


def test_a_count_of_unclipped_records_holds_and_is_refuted_with_half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = audit(COUNTING)
    assert honest.verdict is Verdict.NOT_REFUTED
    assert 0.2 * honest.claimed_epsilon < honest.decisive.epsilon
    scale_noise(monkeypatch, 0.5)
    assert audit(COUNTING).verdict is Verdict.REFUTED


def test_a_record_is_taken_by_its_index_or_given_and_by_default_has_the_largest_gradient() -> None:
    own = records()
    index = neighbours.largest_gradient(model(), own, loss_fn=LOSS)
    others = own.at(torch.tensor([other for other in range(24) if other != index]))
    given = audit(private=others, record=(own.inputs[index], own.targets[index]), repetitions=4)
    # The same records in the same order: the same attack.
    assert given.bounds == audit(record=index, repetitions=4).bounds == audit(repetitions=4).bounds
    own.inputs[11] *= 50
    linear = nn.Linear(4, 2)
    nn.init.zeros_(linear.weight)  # so that every record is as wrong as any other
    assert neighbours.largest_gradient(linear, own, loss_fn=LOSS) == 11


def test_dropout_is_the_same_with_the_record_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scale_noise(monkeypatch, 0.0)
    own = model(dropout=0.5)
    experiment = neighbours.StepExperiment(
        model=own,
        engine=GhostEngine(own, LOSS, compiled=False),
        mechanism=Mechanism.of(named("dpsgd"), PLAN),
        records=records(),
        prepare=lambda inputs: inputs,
        physical_batch=8,
        key=KEY,
    )
    drawn = experiment.repeat(20).drawn.members
    # All that is left is the record, of which the clip leaves no more than one noise; with other layers dropped for the
    # others, they would be left too.
    assert len(drawn) > 5
    assert np.abs(drawn).max() <= 1.0 + 1e-5


def test_a_record_that_is_seldom_drawn_gets_more_draws() -> None:
    plan = Plan(noise_multiplier=0.4, expected_batch_size=2.4, records=24, steps=10, delta=1e-3)
    result = audit(plan=plan, repetitions=240)
    assert 0.1 * result.claimed_epsilon < result.decisive.epsilon <= result.claimed_epsilon


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"record": 24}, "record"),
        ({"record": (torch.zeros(5), torch.tensor(0))}, "record"),
        ({"repetitions": 1}, "repetitions"),
        ({"confidence": math.nan}, "confidence"),
        ({"method": named("plain-sgd")}, "method"),
        ({"plan": replace(PLAN, adjacency=Adjacency.REPLACE_ONE)}, "plan"),
        ({"records_are_public": "yes"}, "records_are_public"),
    ],
)
def test_bad_arguments_are_refused_by_name(changed: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{name}"):
        audit(**changed)
