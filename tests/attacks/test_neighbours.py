"""One step with a record and without it: the honest mechanism holds, and one that is broken is refuted."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr import accounting
from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled
from lehr.attacks import neighbours
from lehr.auditing import Audit, Verdict
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import PrivateSum, RecordGradients
from lehr.methods.by_name import named
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.privacy.sampling import PoissonSampling
from lehr.run.mechanism import Mechanism

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
    said = {"plan": PLAN, "loss_fn": LOSS, "repetitions": 240, "key": KEY, **changed}
    return neighbours.attack(
        said.pop("model", None) or model(),
        said.pop("private", None) or records(),
        said.pop("record", None),
        method=method or named("dpsgd"),
        **said,
    )


@pytest.fixture
def noise_times(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every noise from here on is so many times as large."""
    whole = StepRandomness.normals

    def change(factor: float) -> None:
        def scaled(self: StepRandomness, purpose: str, like: Any) -> dict[str, Tensor]:
            return {name: factor * value for name, value in whole(self, purpose, like).items()}

        monkeypatch.setattr(StepRandomness, "normals", scaled)

    return change


def test_an_honest_step_holds_and_much_of_its_claim_is_certified() -> None:
    result = audit()
    claimed = accounting.claim(PoissonSampled(0.5, Gaussian(1.0)), delta=1e-3).epsilon
    assert result.verdict is Verdict.NOT_REFUTED
    assert result.claimed_epsilon == claimed
    assert 0.2 * claimed < result.decisive.epsilon
    assert result.is_private
    assert (result.members, result.others, result.steps) == (240, 240, 1)


def test_noise_of_half_the_size_is_refuted(noise_times: Any) -> None:
    noise_times(0.5)
    assert audit().verdict is Verdict.REFUTED


def test_no_noise_is_refuted_by_either_bound(noise_times: Any) -> None:
    noise_times(0.0)
    plan = Plan(noise_multiplier=1.0, expected_batch_size=24, records=24, steps=10, delta=0.3)
    result = audit(plan=plan, repetitions=60)
    assert all(bound.epsilon > result.claimed_epsilon for bound in result.bounds)


def test_a_record_that_is_not_clipped_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(self: FlatClip, gradients: RecordGradients) -> PrivateSum:
        ones = torch.ones_like(gradients.norms())
        return PrivateSum(values=gradients.weighted_sum(ones), sensitivity=self.sensitivity)

    monkeypatch.setattr(FlatClip, "__call__", unclipped)
    assert audit(repetitions=100).verdict is Verdict.REFUTED


def test_a_sampling_rate_that_is_doubled_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawing = PoissonSampling.draw

    def twice(self: PoissonSampling, num_records: int, randomness: StepRandomness) -> Tensor:
        doubled = PoissonSampling(expected_batch_size=2 * self.expected_batch_size, records=self.records)
        return drawing(doubled, num_records, randomness)

    monkeypatch.setattr(PoissonSampling, "draw", twice)
    result = audit(repetitions=150)
    assert result.verdict is not Verdict.NOT_REFUTED
    assert [check.statement for check in result.checks if not check.passed] == [neighbours.DRAWN_AS_STATED]


def test_a_record_that_moves_nothing_is_refused_and_one_that_moves_little_certifies_little() -> None:
    quiet = (torch.zeros(4), torch.tensor(0))
    linear = nn.Linear(4, 2, bias=False)
    with pytest.raises(InvalidValue, match="gradient other than zero"):
        audit(model=linear, record=quiet, repetitions=8)
    faint = audit(model=linear, record=(torch.full((4,), 1e-4), torch.tensor(0)), repetitions=100)
    assert faint.decisive.epsilon == 0
    assert faint.verdict is Verdict.NOT_REFUTED


@pytest.mark.parametrize("method", ["dpsgd-per-layer", "adadp"])
def test_methods_of_other_clips_and_noise_hold(method: str) -> None:
    result = audit(named(method), repetitions=40)
    assert result.verdict is Verdict.NOT_REFUTED


def test_a_place_is_taken_out_and_a_record_of_ones_own_is_put_in() -> None:
    own = records()
    place = neighbours.loudest(model(), own, loss_fn=LOSS)
    others = own.at(torch.tensor([index for index in range(24) if index != place]))
    given = audit(private=others, record=(own.inputs[place], own.targets[place]), repetitions=4)
    # The same records in the same order: the same game.
    assert given.bounds == audit(record=place, repetitions=4).bounds == audit(repetitions=4).bounds


def test_the_loudest_record_has_the_largest_gradient() -> None:
    own = records()
    own.inputs[11] *= 50
    linear = nn.Linear(4, 2)
    nn.init.zeros_(linear.weight)  # so that every record is as wrong as any other
    assert neighbours.loudest(linear, own, loss_fn=LOSS) == 11


def test_dropout_is_the_same_with_the_record_and_without_it(noise_times: Any) -> None:
    noise_times(0.0)
    own, method = model(dropout=0.5), named("dpsgd")
    experiment = neighbours.StepExperiment(
        model=own,
        engine=GhostEngine(own, LOSS, compiled=False),
        mechanism=Mechanism.of(method, PLAN),
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


def test_a_record_that_is_seldom_drawn_is_waited_for() -> None:
    plan = Plan(noise_multiplier=0.4, expected_batch_size=2.4, records=24, steps=10, delta=1e-3)
    result = audit(plan=plan, repetitions=240)
    assert 0.1 * result.claimed_epsilon < result.decisive.epsilon <= result.claimed_epsilon


def test_what_the_model_has_learnt_and_torchs_own_generator_stay_as_they_were() -> None:
    own, state = model(), torch.get_rng_state()
    before = [value.clone() for value in own.parameters()]
    audit(model=own, repetitions=8)
    assert all(map(torch.equal, before, own.parameters()))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    "changed, named_in_it",
    [
        pytest.param({"record": 24}, "record", id="no such place"),
        pytest.param({"record": (torch.zeros(5), torch.tensor(0))}, "record", id="another shape"),
        pytest.param({"repetitions": 1}, "repetitions", id="too few"),
        pytest.param({"confidence": math.nan}, "confidence", id="NaN"),
        pytest.param({"method": named("plain-sgd")}, "method", id="no noise"),
        pytest.param(
            {
                "plan": Plan(
                    noise_multiplier=1.0,
                    expected_batch_size=6,
                    records=24,
                    steps=10,
                    delta=1e-3,
                    adjacency=Adjacency.REPLACE_ONE,
                )
            },
            "plan",
            id="replaced",
        ),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(changed: dict[str, Any], named_in_it: str) -> None:
    with pytest.raises(InvalidValue, match=named_in_it):
        audit(**changed)
