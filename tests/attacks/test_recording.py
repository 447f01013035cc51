"""Neighbouring runs differ only in the sum before its noise, and a bug that makes them differ is found."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Decision, PrivateEnergy, PublicEnergy
from lehr.acceptance.rules import Always
from lehr.accounting.events import Adjacency
from lehr.accounting.ledger import Ledger
from lehr.attacks import canaries as planting
from lehr.attacks.canaries import NUM_CLASSES, PRESENT, REPLACED, ZEROED
from lehr.attacks.harness import observed
from lehr.attacks.recording import (
    DRAWS,
    Comparison,
    Difference,
    Trace,
    TracingAcceptance,
    TracingKey,
    compare,
    traced,
    value_text,
)
from lehr.attacks.step_attack import canaries_for
from lehr.data import InMemory
from lehr.errors import Diverged, InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import PrivateSum, ReleasedSum
from lehr.methods.adadp import adadp
from lehr.methods.by_name import METHODS, named
from lehr.methods.dpsgd import dpsgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip, QuantileClip
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.loop import Loop
from lehr.run.loss_oracle import LossOracle
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateStep
from lehr.training.public_plan import plan_for

KEY = RunKey(bytes(range(32)))
SETTINGS: dict[str, dict[str, Any]] = {
    "agd": {"choice_batch_size": 8, "step_sizes": 4},
    "dpsur": {"test_batch_size": 8, "loss_clip": 0.1, "test_noise_multiplier": 2.0},
}
HELD = 28
PRIVATE = [name for name in METHODS if named(name).is_private]


def plan_of(method: Method, *, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE_ONE, **given: Any) -> Plan:
    wanted: dict[str, Any] = {"noise_multiplier": 1.0}
    if method.noise.needs_limit:
        wanted = {"epsilon": 8.0}
    wanted |= {"records": 32, "expected_batch_size": 16, "steps": 6, "delta": 1e-3}
    return plan_for(method=method, adjacency=adjacency, **(wanted | given))


def replayed(method: Method, *, plan: Plan | None = None, held: int = HELD) -> Comparison:
    """With canaries that saturate the clip, one of which is the record in question."""
    plan = plan or plan_of(method)
    canaries = canaries_for(method, plan, num_canaries=64)
    is_replacing, index = plan.adjacency is not Adjacency.ADD_OR_REMOVE_ONE, 1
    num_records = plan.records if is_replacing else held
    instead = ZEROED if plan.adjacency is Adjacency.ZERO_OUT else REPLACED
    rows = torch.arange(min(num_records, canaries.num_canaries))
    opposite = canaries.records(torch.tensor([index]), torch.tensor([instead])).at(torch.tensor([0]))
    return compare(
        canaries.network(),
        canaries.records(rows, torch.full_like(rows, PRESENT)).at(torch.arange(num_records)),
        index,
        method=method,
        plan=plan,
        loss_fn=planting.loss,
        num_classes=NUM_CLASSES,
        replacement=opposite if is_replacing else None,
        public=canaries.public() if isinstance(method.acceptance.energy, PublicEnergy) else None,
        key=KEY,
        physical_batch=4,
    )


def assert_only_the_sum_moves(found: Comparison) -> None:
    assert found.differences == (), str(found)
    assert 0 < len(found.steps_drawn) < found.steps
    assert 0.99 <= found.measured_sensitivity <= 1 + 1e-6


@pytest.mark.parametrize("name", PRIVATE)
def test_of_every_method_only_the_sum_depends_on_a_record(name: str) -> None:
    assert_only_the_sum_moves(replayed(named(name, **SETTINGS.get(name, {}))))


@pytest.mark.parametrize("name", ["dpsgd", "dpsur", "adan"])
def test_a_record_replaced_by_its_opposite_moves_the_sum_by_twice_its_own(name: str) -> None:
    method = named(name, **SETTINGS.get(name, {}))
    plan = plan_of(method, adjacency=Adjacency.REPLACE_ONE, records=64, expected_batch_size=32)
    assert_only_the_sum_moves(replayed(method, plan=plan))


@pytest.mark.parametrize("name", ["dpsgd", "adan"])
def test_a_record_that_is_zeroed_out_moves_the_sum_by_its_own(name: str) -> None:
    given = {"records": 64, "expected_batch_size": 32}
    method = named(name, **SETTINGS.get(name, {}))
    assert_only_the_sum_moves(replayed(method, plan=plan_of(method, adjacency=Adjacency.ZERO_OUT, **given)))


def test_bounds_of_coordinates_are_compared_as_well() -> None:
    bounded: list[bool] = []
    method = observed(named("adan"), lambda private, released: bounded.append(private.bounds is not None))
    assert_only_the_sum_moves(replayed(method, plan=plan_of(method, noise_multiplier=0.3)))
    assert any(bounded)


@pytest.mark.parametrize("count_share", [0.1, 0.7])
def test_with_a_clip_norm_that_follows_a_quantile_only_sum_and_count_move(count_share: float) -> None:
    norms: list[float] = []
    method = replace(dpsgd(), clipping=QuantileClip(0.1, target_quantile=0.9, count_share=count_share))
    method = observed(method, lambda private, released: norms.append(private.sensitivity))
    assert_only_the_sum_moves(replayed(method))
    assert len(set(norms)) > 5


@pytest.mark.parametrize("count_share", [0.1, 0.7])
def test_a_count_that_is_replaced_is_covered_too(count_share: float) -> None:
    """A canary and its opposite are clipped alike and differ in their gradients only."""
    method = replace(dpsgd(), clipping=QuantileClip(0.1, count_share=count_share))
    plan = plan_of(method, adjacency=Adjacency.REPLACE_ONE, records=64, expected_batch_size=32)
    found = replayed(method, plan=plan)
    assert found.differences == (), str(found)
    assert found.measured_sensitivity == pytest.approx(math.sqrt(1 - count_share**2), rel=0.01)


def test_momentum_of_rejected_candidates_follows_from_what_was_released() -> None:
    found = replayed(named("sa-dpsgd", keeps_momentum=True, initial_inverse_temperature=1e6, cooling="floored"))
    assert found.passes, str(found)


def with_private_queries() -> Method:
    return named("sa-dpsgd", energy=PrivateEnergy(loss_clip=0.1, noise_multiplier=2.0, expected_batch_size=16))


def test_an_answer_of_private_records_moves_by_the_stated_sensitivity() -> None:
    found = replayed(with_private_queries())
    assert found.differences == (), str(found)
    assert found.measured_query is not None
    assert 0.99 <= found.measured_query <= 1 + 1e-9


class Net(nn.Sequential):
    """With dropout, which draws random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__(nn.Linear(5, 7), nn.Tanh(), nn.Dropout(0.5), nn.Linear(7, 3))


def plain_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def ordinary(model: nn.Module, **given: Any) -> Comparison:
    made = torch.Generator().manual_seed(7)
    records = InMemory(torch.randn(24, 5, generator=made), torch.randint(3, (24,), generator=made))
    settings: dict[str, Any] = {"method": dpsgd(), "loss_fn": plain_loss, "num_classes": 3, "physical_batch": 4}
    settings |= {"plan": plan_of(settings["method"]), "key": KEY} | given
    return compare(model, records, 5, **settings)


def test_an_ordinary_record_moves_the_sum_alone_and_the_network_is_left_as_it_was() -> None:
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = ordinary(model, key=None)
    assert found.differences == (), str(found)
    assert 0.9 <= found.measured_sensitivity <= 1 + 1e-6  # a clip norm of 0.1 is small
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


# Bugs, each planted into the real parts, and the difference in which it shows


def draw_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records were drawn, of every draw from here on."""
    draw, sizes = Mechanism.draw, [0]

    def counting(self: Mechanism, num_records: int, randomness: Any, **given: Any) -> Tensor:
        indices = draw(self, num_records, randomness, **given)
        sizes.append(len(indices))
        return indices

    monkeypatch.setattr(Mechanism, "draw", counting)
    return sizes


def clip_is_off(monkeypatch: pytest.MonkeyPatch) -> Method:
    clip = FlatClip.__call__

    def twice(self: FlatClip, gradients: Any) -> PrivateSum:
        return replace(clip(FlatClip(2 * self.clip_norm), gradients), sensitivity=self.sensitivity)

    monkeypatch.setattr(FlatClip, "__call__", twice)
    return dpsgd()


@dataclass(frozen=True)
class NoiseUnlessEmpty(IsotropicNoise):
    """Draws no noise for an empty sum."""

    def release(self, private: PrivateSum, **given: Any) -> ReleasedSum:
        if any(bool(value.any()) for value in private.values.values()):
            return super().release(private, **given)
        std = private.sensitivity * given["noise_multiplier"]
        return ReleasedSum(values=private.values, noise_std=std, noise_multiplier=given["noise_multiplier"])


def no_noise_on_an_empty_batch(monkeypatch: pytest.MonkeyPatch) -> Method:
    return replace(dpsgd(), noise=NoiseUnlessEmpty())


@dataclass(frozen=True)
class NoiseFromTheSum(IsotropicNoise):
    """Scales its noise by the sum that it is to cover, and states that, or not."""

    states: bool = True

    def release(self, private: PrivateSum, **given: Any) -> ReleasedSum:
        norm = sum(float(value.norm()) for value in private.values.values())
        released = super().release(replace(private, sensitivity=private.sensitivity * (1 + norm)), **given)
        return released if self.states else replace(released, noise_std=private.sensitivity * given["noise_multiplier"])


def noise_std_from_the_batch(monkeypatch: pytest.MonkeyPatch) -> Method:
    return replace(dpsgd(), noise=NoiseFromTheSum())


def noise_from_the_batch_and_another_std_stated(monkeypatch: pytest.MonkeyPatch) -> Method:
    return replace(dpsgd(), noise=NoiseFromTheSum(states=False))


@dataclass(frozen=True)
class TooLittleNoise(IsotropicNoise):
    """Half of the required noise, and states that."""

    def release(self, private: PrivateSum, **given: Any) -> ReleasedSum:
        return super().release(private, **(given | {"noise_multiplier": given["noise_multiplier"] / 2}))


def less_noise_than_is_charged(monkeypatch: pytest.MonkeyPatch) -> Method:
    return replace(dpsgd(), noise=TooLittleNoise())


def event_counts_the_records_drawn(monkeypatch: pytest.MonkeyPatch) -> Method:
    record, drawn = Ledger.record, draw_sizes(monkeypatch)

    def counting(self: Ledger, event: Any, *, note: str = "", counts: Any = None) -> None:
        record(self, event, note=note, counts={**(counts or {}), "records": drawn[-1]})

    monkeypatch.setattr(Ledger, "record", counting)
    return dpsgd()


def divisor_is_the_size_of_the_draw(monkeypatch: pytest.MonkeyPatch) -> Method:
    drawn = draw_sizes(monkeypatch)
    monkeypatch.setattr(Mechanism, "divisor", property(lambda self: float(max(1, drawn[-1]))))
    return dpsgd()


def steps_follow_the_draws(monkeypatch: pytest.MonkeyPatch) -> Method:
    drawn = draw_sizes(monkeypatch)
    monkeypatch.setattr(Loop, "_reason_to_stop", lambda self: "enough drawn" if drawn[-1] % 2 else "")
    return dpsgd()


def error_follows_the_draws(monkeypatch: pytest.MonkeyPatch) -> Method:
    def failing(self: Loop, step: PrivateStep) -> None:
        if int(step.indices.max()) == HELD - 1:  # where the record in question is put
            raise RuntimeError("this record cannot be used")

    monkeypatch.setattr(Loop, "_peek", failing)
    return dpsgd()


def probability_follows_the_records_held(monkeypatch: pytest.MonkeyPatch) -> Method:
    def draw(self: Mechanism, num_records: int, randomness: Any, **_: Any) -> Tensor:
        uniforms: Tensor = randomness.uniforms("sampling", num_records)
        return (uniforms < 14 / num_records).nonzero().squeeze(1)

    monkeypatch.setattr(Mechanism, "draw", draw)
    return dpsgd()


def shuffled_with_all_records(monkeypatch: pytest.MonkeyPatch) -> Method:
    def draw(self: Mechanism, num_records: int, randomness: Any, **_: Any) -> Tensor:
        uniforms: Tensor = randomness.uniforms("sampling", num_records)
        return uniforms.argsort()[:8]

    monkeypatch.setattr(Mechanism, "draw", draw)
    return dpsgd()


def padding_is_counted(monkeypatch: pytest.MonkeyPatch) -> Method:
    summed = GhostEngine.private_sum

    def unmasked(self: GhostEngine, clip: Any, inputs: Any, targets: Any, mask_B: Tensor) -> PrivateSum:
        return summed(self, clip, inputs, targets, torch.ones_like(mask_B))

    monkeypatch.setattr(GhostEngine, "private_sum", unmasked)
    return dpsgd()


def bounds_from_gradients_without_noise(monkeypatch: pytest.MonkeyPatch) -> Method:
    return adadp(accounting="published")


def clip_of_a_query_is_off(monkeypatch: pytest.MonkeyPatch) -> Method:
    answer = LossOracle.private_change

    def ten_times(self: LossOracle, *given: Any) -> float:
        assert isinstance(self.energy, PrivateEnergy)
        return answer(replace(self, energy=replace(self.energy, loss_clip=10 * self.energy.loss_clip)), *given)

    monkeypatch.setattr(LossOracle, "private_change", ten_times)
    return with_private_queries()


def public_answers_follow_private_records(monkeypatch: pytest.MonkeyPatch) -> Method:
    answer = LossOracle.public_loss
    monkeypatch.setattr(LossOracle, "public_loss", lambda self: answer(self) * len(self.private))
    return named("sa-dpsgd")


def momentum_follows_the_draws(monkeypatch: pytest.MonkeyPatch) -> Method:
    decide, drawn = Annealed.decide, draw_sizes(monkeypatch)

    def by_size(self: Annealed, *given: Any) -> Decision:
        return decide(self, *given)._replace(keeps_momentum=drawn[-1] % 2 == 0)

    monkeypatch.setattr(Annealed, "decide", by_size)
    return named("sa-dpsgd")


PLANTED: list[tuple[Callable[[pytest.MonkeyPatch], Method], str]] = [
    (clip_is_off, "sum before its noise"),
    (no_noise_on_an_empty_batch, DRAWS),
    (noise_std_from_the_batch, "noise std"),
    (noise_from_the_batch_and_another_std_stated, "noise that was added"),
    (less_noise_than_is_charged, "sum over its noise"),
    (event_counts_the_records_drawn, "ledger"),
    (divisor_is_the_size_of_the_draw, "divisor"),
    (steps_follow_the_draws, "callback at the end"),
    (error_follows_the_draws, "error"),
    (probability_follows_the_records_held, "sum, though the record was not drawn"),
    (shuffled_with_all_records, "sum, though the record was not drawn"),
    (padding_is_counted, "sum before its noise"),
    (bounds_from_gradients_without_noise, "stated bounds"),
    (clip_of_a_query_is_off, "answer of private records"),
    (public_answers_follow_private_records, "answer of public records"),
    (momentum_follows_the_draws, "decision"),
]


@pytest.mark.parametrize("plant, shown_in", [pytest.param(*bug, id=bug[0].__name__) for bug in PLANTED])
def test_a_planted_bug_is_found_where_it_shows(
    plant: Callable[[pytest.MonkeyPatch], Method], shown_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = plant(monkeypatch)
    if plant is no_noise_on_an_empty_batch:  # it takes a draw of the record in question alone
        found = replayed(method, plan=plan_of(method, expected_batch_size=8, steps=12), held=2)
    else:
        found = replayed(method)
    assert shown_in in {difference.what for difference in found.differences}, str(found)


def test_differences_after_other_weights_are_left_out() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = replayed(divisor_is_the_size_of_the_draw(monkeypatch))
    steps = {difference.what: difference.step for difference in found.differences}
    assert steps["divisor"] == steps["weights after the step"] == found.steps_drawn[0]
    assert {difference.step for difference in found.differences} == {found.steps_drawn[0], None}
    assert steps["file model.safetensors"] is None


def test_an_error_that_ends_both_runs_is_raised() -> None:
    with pytest.raises(Diverged):
        ordinary(Net(), method=dpsgd(learning_rate=1e38, clip_norm=1e4))


def test_a_comparison_is_printed_as_private() -> None:
    found = Comparison(
        differences=(Difference(what="divisor", step=3, one="9.0", other="8.0"),),
        measured_sensitivity=0.998,
        measured_query=0.5,
        steps=10,
        steps_drawn=(2, 3),
    )
    lines = str(found).splitlines()
    assert lines[0].startswith("private")
    assert lines[-1] == str(found.differences[0]) == "step 3: divisor: 9.0 with the record, 8.0 without"
    assert not found.passes


@pytest.mark.parametrize(
    "changed, name",
    [
        ({"index": 24}, "index"),
        ({"replacement": InMemory(torch.zeros(1, 5), torch.zeros(1))}, "replacement"),
        ({"method": named("plain-sgd")}, "method"),
        ({"private": InMemory(torch.zeros(1, 5), torch.zeros(1))}, "records_held"),
        ({"plan": plan_of(dpsgd(), adjacency=Adjacency.REPLACE_ONE)}, "replacement"),
    ],
)
def test_bad_arguments_are_refused_by_name(changed: dict[str, Any], name: str) -> None:
    settings: dict[str, Any] = {"private": InMemory(torch.zeros(24, 5), torch.zeros(24)), "index": 0}
    settings |= {"method": dpsgd(), "plan": plan_of(dpsgd()), "loss_fn": plain_loss, "num_classes": 3}
    with pytest.raises(InvalidValue, match=f"^{name}"):
        compare(Net(), **(settings | changed))


# Traces


def release(trace: Trace | None, value: float, *, step: int = 0) -> Tensor:
    method = dpsgd() if trace is None else traced(dpsgd(), trace)
    private = PrivateSum(values={"weight": torch.full((3,), value)}, sensitivity=0.1)
    released = method.noise.release(private, noise_multiplier=2.0, randomness=KEY.at(step, 0), state={})
    return released.values["weight"]


def test_a_second_run_goes_on_with_the_sums_of_the_first_and_keeps_its_own() -> None:
    first = Trace()
    one = release(first, 5.0)
    assert torch.equal(one, release(None, 5.0))
    second = Trace(replayed=first)
    assert torch.equal(one, release(second, 7.0))
    own = second.sums[0]
    assert float(own.private.values["weight"][0]) == 7.0
    assert torch.allclose(own.released.values["weight"] - one, torch.full((3,), 2.0))
    assert first.notes == second.notes
    assert not torch.equal(release(Trace(replayed=first), 7.0, step=1), one)  # a step that the first did not take
    one.zero_()
    assert bool(first.sums[0].released.values["weight"].any())


def test_answers_of_private_records_are_replayed_and_kept() -> None:
    first = Trace()
    assert first.add_answer(0.5) == 0.5
    second = Trace(replayed=first)
    assert second.add_answer(0.7) == 0.5
    assert second.answers == [(0, 0.7)]


def test_a_method_that_always_accepts_keeps_the_type_that_the_loop_knows() -> None:
    assert isinstance(traced(dpsgd(), Trace()).acceptance, Always)
    method = named("dpsur")
    wrapped = traced(method, Trace()).acceptance
    assert isinstance(wrapped, TracingAcceptance)
    assert wrapped.to_json() == method.acceptance.to_json()
    assert wrapped.energy == method.acceptance.energy


def test_values_have_the_same_text_only_where_they_are_equal_to_the_bit() -> None:
    value = torch.tensor([1.0, 2.0])
    nudged = torch.nextafter(value, torch.tensor(9.0))
    assert value_text({"a": value}) == value_text({"a": value.clone()})
    assert value_text({"a": value}) != value_text({"a": nudged})
    assert value_text((0.1, None)) != value_text((0.1 + 1e-17 + 2e-17, None))
    assert value_text(float("nan")) == value_text(float("nan"))


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_traced_key_gives_the_same_numbers_and_notes_every_draw(adjacency: Adjacency) -> None:
    trace = Trace()
    key = TracingKey(secret=KEY.secret, trace=trace, adjacency=adjacency)
    recorded, plain = key.at(4, 1), KEY.at(4, 1)
    like = {"weight": torch.zeros(2, 3), "bias": torch.zeros(3)}
    assert torch.equal(recorded.uniforms("sampling", 9), plain.uniforms("sampling", 9))
    normals = recorded.normals("noise", like), plain.normals("noise", like)
    assert all(torch.equal(normals[0][name], normals[1][name]) for name in like)
    assert recorded.seed("layers") == plain.seed("layers")
    first, second = (torch.rand(5, generator=each.generator("layers", "cpu")) for each in (recorded, plain))
    assert torch.equal(first, second)
    count = None if adjacency is Adjacency.ADD_OR_REMOVE_ONE else 9
    assert trace.notes[4, DRAWS][:3] == [
        str((1, "uniforms", "sampling", count)),
        str((1, "normals", "noise", 9)),
        str((1, "seed", "layers", None)),
    ]
    assert str(KEY.secret) not in repr(key)
