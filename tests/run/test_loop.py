"""The loop itself: what it draws, charges, releases, keeps and says. tests/privacy/test_killed_runs.py kills it."""

from __future__ import annotations

import json
import math
import random
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Decision, PrivateChoice, PrivateEnergy, Proposal, PublicEnergy
from lehr.acceptance.rules import NoisyMax
from lehr.accounting.events import Adjacency, Event, Gaussian, PoissonSampled, counted, together
from lehr.data import InMemory
from lehr.errors import Diverged
from lehr.gradients.execution import rng_states
from lehr.interfaces import ClipRule, ComponentState, PrivateSum, ReleasedSum, StepOutcome
from lehr.methods.adadp import adadp
from lehr.methods.dpopt import dpopt
from lehr.methods.dpsgd import dpsgd
from lehr.methods.dpsur import dpsur
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.optim.averaging import ExponentialAverage, NoAverage
from lehr.optim.optimizers import sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import FlatClip, with_schedule
from lehr.privacy.noise import IsotropicNoise, with_rounding
from lehr.privacy.rng import RunKey, StepRandomness
from lehr.run import checkpoint
from lehr.run.evaluation import NoisyScore, PublicScore, Score
from lehr.run.folder import RunFolder
from lehr.run.loop import Engine, Loop, Training, TrainingPhase
from lehr.run.loss_oracle import LossOracle, event_of
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateRun, RunSpec
from lehr.run.replay import RunPlan
from lehr.run.shape import COMPLETED, Callback, End, Evaluation, Progress
from lehr.schedules import LinearDecay
from tests.gradients.one_by_one import OneByOneEngine

KEY = RunKey(bytes(range(32)))
RECORDS = InMemory(
    torch.randn(40, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(40) % 2
)
PUBLIC = InMemory(
    torch.randn(10, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64), torch.arange(10) % 2
)
PLAN = Plan(noise_multiplier=1.0, expected_batch_size=8, records=40, steps=6, delta=1e-5)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


class Summing:
    """The slow engine, with the loop's interface; it notes what it was given."""

    def __init__(self, model: nn.Module) -> None:
        self._engine = OneByOneEngine(model, losses)
        self.counted: list[int] = []

    def private_sum(self, clip: ClipRule, inputs: Any, targets: Any, mask_B: Tensor) -> PrivateSum:
        self.counted.append(int(mask_B.sum()))
        return clip(self._engine.gradients(inputs, targets, mask_B))


def model() -> nn.Module:
    made = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    return made


@dataclass(frozen=True, kw_only=True)
class Given:
    """A run as it is decided: what is trained, and what it may do to the records."""

    training: Training
    mechanism: Mechanism
    run_plan: RunPlan
    physical_batch: int

    @property
    def model(self) -> nn.Module:
        return self.training.model

    @property
    def engine(self) -> Any:
        return self.training.phases[0].engine

    def on(self, opened: RunFolder) -> PrivateRun:
        spec = RunSpec(
            name="test",
            run_plan=self.run_plan,
            mechanism=self.mechanism,
            directory=opened.files.directory,
            config={},
            fingerprint=lambda key: "",
            physical_batch=self.physical_batch,
            epsilon_of=lambda event: float(sum(counted(event).values())),
        )
        return PrivateRun(spec, key=opened.key, folder=opened)


def whole_run(engine: Engine) -> TrainingPhase:
    return TrainingPhase(engine=engine, prepare_inputs=lambda inputs, generator: inputs)


def training(**changed: Any) -> Given:
    trained = changed.pop("model", None) or model()
    plan = changed.pop("plan", PLAN)
    method = changed.pop("method", None) or Method(
        name="dpsgd", clipping=FlatClip(1.0), noise=IsotropicNoise(), update=sgd(0.5, momentum=0.9)
    )
    scorer = PublicScore(records=PUBLIC, loss_fn=losses, prepare=lambda inputs: inputs)
    energy = method.acceptance.energy
    oracle = None
    if energy is not None:
        oracle = LossOracle(
            energy=energy,
            plan=plan,
            model=trained,
            loss_fn=losses,
            prepare=lambda inputs: inputs,
            private=RECORDS,
            public=scorer if isinstance(energy, PublicEnergy) else None,
        )
    run_plan = changed.pop("run_plan", None) or RunPlan(plan=plan, evaluate_every=2)
    physical_batch = changed.pop("physical_batch", 5)
    made = Training(
        model=trained,
        phases=[whole_run(Summing(trained))],
        method=method,
        private_records=RECORDS,
        averaging=NoAverage(),
        scorer=scorer,
        oracle=oracle,
        environment={"same": "always"},
    )
    return Given(
        training=replace(made, **changed),
        mechanism=Mechanism.of(method, plan),
        run_plan=run_plan,
        physical_batch=physical_batch,
    )


def folder(path: Path, given: Given) -> RunFolder:
    if (path / "config.json").exists():
        return RunFolder.open(path)
    return RunFolder.create(
        path,
        config={
            "format": "lehr-run",
            "format_version": 1,
            "run": "test",
            "method": {"name": "dpsgd"},
            "data": {},
            "model": {},
            "training": {},
        },
        key=KEY,
        plan_event=given.run_plan.event,
        delta=PLAN.delta,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        fingerprint=lambda key: "",
    )


def run(path: Path, given: Given, callbacks: Sequence[Callback] = ()) -> tuple[Loop, End]:
    with folder(path, given) as opened:
        loop = Loop(given.training, given.on(opened), callbacks)
        return loop, loop.train()


def charged(path: Path) -> Event:
    with RunFolder.open(path) as opened:
        return opened.ledger.charged()


def weights(given: Given) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in given.model.parameters()])


def by_hand(given: Given, steps: int) -> Tensor:
    """The same run in the plainest words: draw, clip one by one, add noise, divide by a constant, step."""
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.5, momentum=0.9)
    for step in range(steps):
        randomness = KEY.at(step, 0)
        places = given.mechanism.sampling.draw(len(RECORDS), randomness)
        total = {name: torch.zeros_like(value) for name, value in trained.named_parameters()}
        for place in places.tolist():
            loss = losses(trained(RECORDS.inputs[place : place + 1]), RECORDS.targets[place : place + 1]).sum()
            grads = torch.autograd.grad(loss, list(trained.parameters()))
            norm = math.hypot(*(float(grad.norm()) for grad in grads))
            for name, grad in zip(total, grads, strict=True):
                total[name] += grad * min(1.0, 1.0 / norm)
        noise = randomness.normals("noise", total)
        for name, parameter in trained.named_parameters():
            parameter.grad = (total[name] + with_rounding(1.0) * noise[name]) / 8
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in trained.parameters()])


def test_run_equals_dpsgd_by_hand(tmp_path: Path) -> None:
    given = training()
    _, end = run(tmp_path / "run", given)
    assert end.reason == COMPLETED
    assert (end.step, end.accepted) == (6, 6)
    torch.testing.assert_close(weights(given), by_hand(given, 6), rtol=1e-9, atol=1e-9)


def test_plan_is_charged_exactly(tmp_path: Path) -> None:
    given = training()
    run(tmp_path / "run", given)
    assert counted(charged(tmp_path / "run")) == counted(given.run_plan.event)
    run(tmp_path / "run", training())
    assert counted(charged(tmp_path / "run")) == counted(given.run_plan.event)


def test_step_is_charged_on_disk_before_the_draw(tmp_path: Path) -> None:
    seen: list[int] = []

    class Looking(Summing):
        def private_sum(self, clip: ClipRule, inputs: Any, targets: Any, mask_B: Tensor) -> PrivateSum:
            seen.append(sum(counted(opened.ledger.charged()).values()))
            return super().private_sum(clip, inputs, targets, mask_B)

    given = training(physical_batch=40)
    given = replace(given, training=replace(given.training, phases=[whole_run(Looking(given.model))]))
    with folder(tmp_path / "run", given) as opened:
        Loop(given.training, given.on(opened)).train()
    assert seen == [1, 2, 3, 4, 5, 6]


def test_no_earlier_sum_stays_in_memory(tmp_path: Path) -> None:
    """A clipped sum is as large as the model: of earlier batches and steps, only the running total may remain."""
    earlier: list[weakref.ref[PrivateSum]] = []
    alive: list[int] = []

    class Noting(Summing):
        def private_sum(self, clip: ClipRule, inputs: Any, targets: Any, mask_B: Tensor) -> PrivateSum:
            alive.append(sum(one() is not None for one in earlier))
            made = super().private_sum(clip, inputs, targets, mask_B)
            earlier.append(weakref.ref(made))
            return made

    given = training()
    run(tmp_path / "run", replace(given, training=replace(given.training, phases=[whole_run(Noting(given.model))])))
    assert len(alive) > 6
    assert not any(alive)


class PartlyUnreadable(InMemory):
    """Records of which every fourth turns out to be none when it is asked for."""

    def batches(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        return ((*self.batch(part), part % 4 != 0) for part in parts)


def test_unreadable_record_adds_nothing(tmp_path: Path) -> None:
    streamed = training(private_records=PartlyUnreadable(RECORDS.inputs, RECORDS.targets))
    inputs = RECORDS.inputs.clone()
    inputs[::4] = math.nan
    held = training(private_records=InMemory(inputs, RECORDS.targets))
    for name, given in (("streamed", streamed), ("held", held)):
        run(tmp_path / name, given)
    assert weights(streamed).equal(weights(held))
    whole = training()
    run(tmp_path / "whole", whole)
    assert not weights(whole).equal(weights(held))


def test_empty_draw_still_adds_noise(tmp_path: Path) -> None:
    plan = replace(PLAN, expected_batch_size=1e-6, steps=2)
    given = training(plan=plan)
    before = weights(given).clone()
    run(tmp_path / "run", given)
    assert given.engine.counted == [0, 0]
    assert (weights(given) - before).abs().min() > 0


def test_draw_is_never_truncated(tmp_path: Path) -> None:
    plan = replace(PLAN, expected_batch_size=40, steps=1)
    given = training(plan=plan)
    run(tmp_path / "run", given)
    assert given.engine.counted == [5] * 8


def test_physical_batch_size_makes_no_difference(tmp_path: Path) -> None:
    small, large = training(physical_batch=3), training(physical_batch=40)
    run(tmp_path / "small", small)
    run(tmp_path / "large", large)
    torch.testing.assert_close(weights(small), weights(large), rtol=1e-9, atol=1e-9)


def test_resume_in_the_same_environment_is_free(tmp_path: Path) -> None:
    whole, broken = training(averaging=ExponentialAverage(decay=0.9)), training(averaging=ExponentialAverage(decay=0.9))
    run(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", broken, [StopAt(4)])
    again = training(averaging=ExponentialAverage(decay=0.9))
    _, end = run(tmp_path / "broken", again)
    assert torch.equal(weights(whole), weights(again))
    assert end.step == 6
    assert counted(charged(tmp_path / "broken")) == counted(charged(tmp_path / "whole"))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "broken")]
    assert metrics[0] == metrics[1]


class Tossing(nn.Linear):
    """A layer that draws one number from each kind of generator for what it is run on."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * (1 + random.random()) * (1 + np.random.random()) * (1 + torch.rand(()))


def test_a_replayed_step_draws_the_same_numbers_from_every_generator(tmp_path: Path) -> None:
    """With the same noise and other numbers, the difference of both releases would be that of two sums."""
    results: list[Tensor] = []
    for name in ("whole", "broken", "broken"):
        made = Tossing(3, 2, dtype=torch.float64)
        made.load_state_dict(model().state_dict())
        given = training(model=made, checkpoint_seconds=0.0)
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        with suppress(KeyboardInterrupt):
            run(tmp_path / name, given, [StopAt(4)] if name == "broken" and len(results) == 1 else [])
        results.append(weights(given))
    assert results[0].equal(results[2])
    assert not results[0].equal(results[1])


@pytest.mark.parametrize("environment", [{"same": "no longer"}, None])
def test_resume_in_another_environment_is_charged_again(tmp_path: Path, environment: dict[str, str] | None) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", training(environment=environment and {"same": "at first"}), [StopAt(4)])
    given = training(environment=environment)
    loop, end = run(tmp_path / "run", given)
    assert loop.state.attempt != 0
    assert end.step == 2  # four of the six steps had been charged, and none of them was kept
    assert counted(charged(tmp_path / "run")) == counted(given.run_plan.event)
    assert not torch.equal(weights(given), by_hand(given, 2))


def test_each_environment_gets_a_new_attempt(tmp_path: Path) -> None:
    """Going back to the first environment does not go back to the first attempt's randomness."""
    attempts = []
    for word in ("one", "two", "one"):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "run", training(environment={"word": word}), [StopAt(1)])
        attempts.append(json.loads((tmp_path / "run/private/attempts.jsonl").read_text().splitlines()[-1])["number"])
    assert attempts[0] == 0
    assert len(set(attempts)) == 3


def test_rejected_candidates_are_charged(tmp_path: Path) -> None:
    class Never(Annealed):
        def decide(self, state: Any, proposal: Proposal, released: ReleasedSum) -> Decision:
            assert math.isfinite(proposal.change())
            return Decision(0.0, state)

    method = Method(
        name="never", clipping=FlatClip(1.0), noise=IsotropicNoise(), update=sgd(0.5, momentum=0.9), acceptance=Never()
    )
    given = training(method=method)
    loop, end = run(tmp_path / "run", given)
    assert (end.step, end.accepted) == (6, 0)
    assert torch.equal(weights(given), weights(training()))
    assert not [name for name in loop.state.checkpoint().tensors if "momentum" in name]
    assert counted(charged(tmp_path / "run")) == counted(given.run_plan.event)


def test_private_scores_are_charged_with_the_steps(tmp_path: Path) -> None:
    scorer = NoisyScore(
        records=PUBLIC, loss_fn=losses, prepare=lambda inputs: inputs, noise_multiplier=5.0, stated_records=10
    )
    run_plan = RunPlan(plan=PLAN, score_event=scorer.event, evaluate_every=2)
    assert counted(run_plan.event) == {PLAN.step_event: 6, scorer.event: 3}
    whole, broken = training(scorer=scorer, run_plan=run_plan), training(scorer=scorer, run_plan=run_plan)
    run(tmp_path / "whole", whole)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", broken, [StopAt(3)])
    run(tmp_path / "broken", training(scorer=scorer, run_plan=run_plan))
    assert counted(charged(tmp_path / "broken")) == counted(run_plan.event) == counted(charged(tmp_path / "whole"))
    metrics = [(tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "broken")]
    assert metrics[0] == metrics[1]


def test_second_attempt_omits_scores_it_cannot_pay(tmp_path: Path) -> None:
    scorer = NoisyScore(
        records=PUBLIC, loss_fn=losses, prepare=lambda inputs: inputs, noise_multiplier=5.0, stated_records=10
    )
    run_plan = RunPlan(plan=PLAN, score_event=scorer.event, evaluate_every=1)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", training(scorer=scorer, run_plan=run_plan), [StopAt(3)])
    loop, end = run(tmp_path / "run", training(scorer=scorer, run_plan=run_plan, environment=None))
    assert end.step == 3
    assert counted(charged(tmp_path / "run")) == counted(run_plan.event)
    assert len(loop.rows) == 3


@pytest.mark.parametrize("evaluate_every", [2, 100])
def test_private_scores_of_a_run_that_ends_early_are_charged(tmp_path: Path, evaluate_every: int) -> None:
    scored: list[int] = []

    class Noting(NoisyScore):
        def score(self, model: nn.Module, randomness: StepRandomness) -> Score:
            scored.append(randomness.step)
            return super().score(model, randomness)

    scorer = Noting(
        records=PUBLIC, loss_fn=losses, prepare=lambda inputs: inputs, noise_multiplier=5.0, stated_records=10
    )
    method = sa_dpsgd(clip_norm=1.0, initial_inverse_temperature=1e9, rejection_threshold=2, cooling="floored")
    for enough in (1, 2, 3):
        plan = replace(PLAN, steps=9, stops_at_accepted=enough)
        run_plan = RunPlan(plan=plan, score_event=scorer.event, evaluate_every=evaluate_every)
        path = tmp_path / str(enough)
        _, end = run(path, training(plan=plan, method=method, scorer=scorer, run_plan=run_plan))
        assert end.step < 9
        assert len(scored) == Counter[Event](counted(charged(path)))[scorer.event]
        run(path, training(plan=plan, method=method, scorer=scorer, run_plan=run_plan))
        assert len(scored) == Counter[Event](counted(charged(path)))[scorer.event]
        scored.clear()


@pytest.mark.parametrize("first", [0, 999, 65_535])
def test_every_step_has_its_own_randomness(tmp_path: Path, first: int) -> None:
    given = training()
    with folder(tmp_path / "run", given) as opened:
        private = given.on(opened)
        private.begin(num_records=40)
        steps = [0, 1, *range(first, first + 4), 2 * first + 1]
        zeros = PrivateSum(values={"weight": torch.zeros(3)}, sensitivity=1.0)
        noises, draws = {}, {}
        for step in steps:
            randomness = private.randomness(step)
            noise = given.mechanism.release(zeros, {}, planned_step=0, randomness=randomness).values["weight"]
            noises[tuple(noise.tolist())] = step
            draws[tuple(randomness.uniforms("sampling", 2).tolist())] = step
        assert len(noises) == len(draws) == len(set(steps))


class Deaf(IsotropicNoise):
    """Noise alone: what is released is the same whatever the records are."""

    def release(self, private: PrivateSum, **more: Any) -> ReleasedSum:
        zeros = {name: torch.zeros_like(value) for name, value in private.values.items()}
        return super().release(replace(private, values=zeros), **more)


@pytest.mark.parametrize("clipping", [FlatClip(1.0), with_schedule(FlatClip(1.0), LinearDecay(steps=5, last=0.5))])
def test_everything_public_follows_from_releases(tmp_path: Path, clipping: Any) -> None:
    """Where the released sums are the same, nothing that is written or told may differ with the records."""
    told: dict[str, list[str]] = {"one": [], "other": []}

    class Listening(Callback):
        def __init__(self, heard: list[str]) -> None:
            self.heard = heard

        def stepped(self, progress: Progress) -> None:
            self.heard.append(repr(progress))

        def evaluated(self, evaluation: Evaluation) -> None:
            self.heard.append(repr(evaluation))

        def ended(self, end: End) -> None:
            self.heard.append(repr(end))

    others = InMemory(torch.full((41, 3), 7.0, dtype=torch.float64), torch.ones(41, dtype=torch.int64))
    found = {}
    for name, records in (("one", RECORDS), ("other", others)):
        method = Method(name="deaf", clipping=clipping, noise=Deaf(), update=sgd(0.5, momentum=0.9))
        loop, _ = run(tmp_path / name, training(method=method, private_records=records), [Listening(told[name])])
        with RunFolder.open(tmp_path / name) as opened:
            entries = [replace(entry, at="") for entry in opened.ledger.entries()]
        state = loop.state.checkpoint()
        tensors = {key: value.tolist() for key, value in state.tensors.items()}
        found[name] = ((tmp_path / name / "metrics.jsonl").read_bytes(), entries, state.numbers, tensors)
    assert told["one"] == told["other"]
    assert found["one"] == found["other"]


def test_diverged_run_stops_and_stays_charged(tmp_path: Path) -> None:
    method = Method(name="wild", clipping=FlatClip(1.0), noise=IsotropicNoise(), update=sgd(1e308, momentum=0.9))
    with pytest.raises(Diverged, match="learning rate"):
        run(tmp_path / "run", training(method=method))
    spent = sum(counted(charged(tmp_path / "run")).values())
    assert 1 <= spent <= 6
    latest = checkpoint.latest(tmp_path / "run/checkpoints", KEY)
    assert latest is not None
    assert all(bool(value.isfinite().all()) for value in latest.tensors.values() if value.is_floating_point())


def test_patience(tmp_path: Path) -> None:
    method = Method(name="backwards", clipping=FlatClip(1.0), noise=IsotropicNoise(), update=sgd(1e-30))
    run_plan = RunPlan(plan=PLAN, evaluate_every=1)
    given = training(method=method, patience=2, run_plan=run_plan)
    _, end = run(tmp_path / "run", given)
    assert end.reason == "no better for 2 evaluations"
    assert end.step == 3
    _, again = run(tmp_path / "run", training(method=method, patience=2, run_plan=run_plan))
    assert again.step == 3


def test_callbacks(tmp_path: Path) -> None:
    told: list[Any] = []

    class Listening(Callback):
        def stepped(self, progress: Progress) -> None:
            told.append(progress)

        def evaluated(self, evaluation: Evaluation) -> None:
            told.append(evaluation)

        def ended(self, end: End) -> None:
            told.append(end)

    run(tmp_path / "run", training(), [Listening()])
    assert [type(each).__name__ for each in told] == ["Progress", "Progress", "Evaluation"] * 3 + ["End"]
    assert told[0] == Progress(step=1, accepted=1, epsilon_spent=1.0)


def test_diagnostics_are_opt_in_and_private(tmp_path: Path) -> None:
    run(tmp_path / "without", training())
    assert not (tmp_path / "without/private/diagnostics.jsonl").exists()
    run(tmp_path / "with", training(writes_diagnostics=True))
    file = tmp_path / "with/private/diagnostics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 6
    assert all(row["private"] for row in rows)
    assert file.stat().st_mode & 0o077 == 0


def test_global_generators_are_restored(tmp_path: Path) -> None:
    given = training()
    before = rng_states(torch.device("cpu"))
    run(tmp_path / "run", given)
    assert rng_states(torch.device("cpu")) == before


@dataclass(frozen=True)
class Noting(IsotropicNoise):
    """Notes how much noise there was."""

    used: list[float] = field(default_factory=list)

    def release(self, private: PrivateSum, *, noise_multiplier: float, **more: Any) -> ReleasedSum:
        self.used.append(noise_multiplier)
        return super().release(private, noise_multiplier=noise_multiplier, **more)


def test_second_attempt_has_the_noise_of_the_steps_that_pay(tmp_path: Path) -> None:
    plan = replace(PLAN, noise_schedule=LinearDecay(steps=5, first=2.0, last=1.0))
    noise = Noting()
    method = Method(name="test", clipping=FlatClip(1.0), noise=noise, update=sgd(0.5))

    def paid() -> dict[Event, int]:
        q = plan.sampling_probability
        return dict(Counter(PoissonSampled(q, Gaussian(multiplier)) for multiplier in noise.used))

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", training(plan=plan, method=method), [StopAt(2)])
    assert noise.used == pytest.approx([2.0, 1.8])
    assert counted(charged(tmp_path / "run")) == paid()
    _, end = run(tmp_path / "run", training(plan=plan, method=method, environment=None))
    assert end.step == 4  # two of the six steps of the plan were lost
    assert noise.used == pytest.approx([2.0, 1.8, 1.6, 1.4, 1.2, 1.0])
    assert counted(charged(tmp_path / "run")) == paid() == counted(plan.event)


def test_components_learn_from_releases_only(tmp_path: Path) -> None:
    released: list[ReleasedSum] = []
    learnt: list[ReleasedSum] = []

    @dataclass(frozen=True)
    class Remembering(IsotropicNoise):
        def release(self, private: PrivateSum, **more: Any) -> ReleasedSum:
            released.append(super().release(private, **more))
            return released[-1]

        def learn(self, state: ComponentState, taken: StepOutcome) -> ComponentState:
            learnt.append(taken.released)
            return state

    method = Method(name="test", clipping=FlatClip(1.0), noise=Remembering(), update=sgd(0.5))
    run(tmp_path / "run", training(method=method))
    assert len(learnt) == 6
    assert all(one is other for one, other in zip(learnt, released, strict=True))


def test_noise_follows_the_clip_schedule(tmp_path: Path) -> None:
    noise, clipping = Noting(), with_schedule(FlatClip(1.0), LinearDecay(steps=5, first=1.0, last=0.5))
    stds: list[float] = []

    class Telling(Noting):
        def release(self, private: PrivateSum, *, noise_multiplier: float, **more: Any) -> ReleasedSum:
            made = super().release(private, noise_multiplier=noise_multiplier, **more)
            assert isinstance(made.noise_std, float)
            stds.append(made.noise_std)
            return made

    method = Method(name="test", clipping=clipping, noise=Telling(noise.used), update=sgd(0.5))
    run(tmp_path / "run", training(method=method))
    assert noise.used == [1.0] * 6
    assert stds == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5])


def test_row_has_the_noise_and_clip_of_its_step(tmp_path: Path) -> None:
    method = Method(
        name="test",
        clipping=with_schedule(FlatClip(1.0), LinearDecay(steps=5, first=1.0, last=0.5)),
        noise=IsotropicNoise(),
        update=sgd(0.5),
    )
    loop, _ = run(tmp_path / "run", training(method=method))
    assert [row.step for row in loop.rows] == [2, 4, 6]
    assert [row.noise_multiplier for row in loop.rows] == [PLAN.noise_multiplier] * 3
    assert [row.clip_norm for row in loop.rows] == pytest.approx([0.9, 0.7, 0.5])


def test_unproven_clip_norm_is_not_published(tmp_path: Path) -> None:
    method = adadp(learning_rate=0.1, clip_norm=1.0, accounting="published")
    asked = method.asked(records=PLAN.records, adjacency=PLAN.adjacency)
    loop, _ = run(tmp_path / "run", training(method=method, plan=replace(PLAN, asked=asked)))
    assert loop.rows
    assert all(row.clip_norm is None for row in loop.rows)


def test_accuracy_by_class_on_public_records_only(tmp_path: Path) -> None:
    given: dict[str, Any] = {"records": PUBLIC, "loss_fn": losses, "prepare": lambda inputs: inputs}
    scorer = NoisyScore(**given, noise_multiplier=5.0, stated_records=10)
    run_plan = RunPlan(plan=PLAN, score_event=scorer.event, evaluate_every=2)
    hidden, _ = run(tmp_path / "hidden", training(scorer=scorer, run_plan=run_plan))
    assert [row.accuracy_by_class for row in hidden.rows] == [None] * 3
    open_, _ = run(tmp_path / "open", training(scorer=PublicScore(**given, tells_classes=True)))
    assert all(row.accuracy_by_class is not None and len(row.accuracy_by_class) == 2 for row in open_.rows)


ENERGY = PrivateEnergy(loss_clip=0.1, noise_multiplier=0.5, expected_batch_size=10)
CHOICE = PrivateChoice(loss_clip=2.0, epsilon=5.0)
STATEFUL = {
    "adadp": adadp(learning_rate=0.1, clip_norm=1.0),
    "dpopt": dpopt(clip_norm=1.0),
    "salvage": sa_dpsgd(salvage=True, clip_norm=1.0, initial_inverse_temperature=1e6, cooling="floored"),
    "best step": sa_dpsgd(salvage=True, step_scales=(0.5, 1.0), clip_norm=1.0, initial_inverse_temperature=1e6),
    "kept momentum": sa_dpsgd(keeps_momentum=True, clip_norm=1.0, initial_inverse_temperature=1e6, cooling="floored"),
    "private annealing": sa_dpsgd(energy=ENERGY, clip_norm=1.0, cooling="floored"),
    "dpsur": dpsur(clip_norm=1.0, test_batch_size=10, loss_clip=0.1, threshold=0.0),
    "noisy max": replace(dpsgd(clip_norm=1.0), acceptance=NoisyMax(energy=CHOICE, step_sizes=3, adapted_every=1)),
}


def plan_of(method: Method, **changed: Any) -> Plan:
    asked = event_of(method.acceptance.energy, records=PLAN.records, adjacency=PLAN.adjacency)
    return replace(PLAN, asked=asked, **changed)


@pytest.mark.parametrize("name", STATEFUL)
def test_component_state_survives_a_crash(tmp_path: Path, name: str) -> None:
    method = STATEFUL[name]
    plan = plan_of(method, steps=8)
    whole, broken, again = (training(plan=plan, method=method, checkpoint_seconds=0) for _ in range(3))
    one, _ = run(tmp_path / "whole", whole)
    for stop in (3, 6):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "broken", training(plan=plan, method=method, checkpoint_seconds=0), [StopAt(stop)])
    other, end = run(tmp_path / "broken", again)
    assert torch.equal(weights(whole), weights(again))
    assert not torch.equal(weights(whole), weights(broken))
    found, expected = other.state.checkpoint(), one.state.checkpoint()
    assert found.numbers == expected.numbers
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(value, expected.tensors[key]) for key, value in found.tensors.items())
    assert counted(charged(tmp_path / "broken")) == counted(plan.event)
    if name in ("salvage", "kept momentum", "dpsur", "private annealing"):
        assert 0 < end.accepted < end.step  # or nothing was there to remember


@pytest.mark.parametrize("name", STATEFUL)
def test_queries_are_charged_with_their_step(tmp_path: Path, name: str) -> None:
    method = STATEFUL[name]
    plan = plan_of(method)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", training(plan=plan, method=method), [StopAt(2)])
    assert counted(charged(tmp_path / "run")) == counted(together(*[plan.step_event] * 2))


@pytest.mark.parametrize("name", STATEFUL)
def test_no_random_stream_is_used_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two values with the same noise, or a draw by the numbers of another one, are not what is charged."""
    used: Counter[tuple[str | int, ...]] = Counter()
    derived = RunKey._derived

    def noting(key: RunKey, kind: str, *names: str | int) -> Any:
        used[kind, *names] += 1
        return derived(key, kind, *names)

    monkeypatch.setattr(RunKey, "_derived", noting)
    method = STATEFUL[name]
    plan = plan_of(method)
    scorer = NoisyScore(
        records=PUBLIC, loss_fn=losses, prepare=lambda inputs: inputs, noise_multiplier=5.0, stated_records=10
    )
    run_plan = RunPlan(plan=plan, score_event=scorer.event, evaluate_every=1)
    run(tmp_path / "run", training(plan=plan, method=method, scorer=scorer, run_plan=run_plan))
    random = {named: count for named, count in used.items() if named[0] in ("normals", "uniforms")}
    assert sum(random.values()) >= 3 * plan.steps  # the draw, the noise and the score of each step
    assert set(random.values()) == {1}


def test_stop_at_a_number_of_accepted_steps(tmp_path: Path) -> None:
    method = sa_dpsgd(clip_norm=1.0, initial_inverse_temperature=1e9, rejection_threshold=2, cooling="floored")
    plan = replace(PLAN, steps=9, stops_at_accepted=3)
    _, end = run(tmp_path / "run", training(plan=plan, method=method))
    assert end.accepted == 3
    assert 3 < end.step <= 9
    assert end.reason == "3 candidates accepted"
    assert counted(charged(tmp_path / "run")) == {plan.step_event: end.step}
    _, again = run(tmp_path / "run", training(plan=plan, method=method))
    assert again.step == end.step


def test_plan_ends_if_too_few_are_accepted(tmp_path: Path) -> None:
    class Never(Annealed):
        def decide(self, state: Any, proposal: Proposal, released: ReleasedSum) -> Decision:
            return Decision(0.0, state)

    method = replace(dpsgd(clip_norm=1.0), acceptance=Never())
    _, end = run(tmp_path / "run", training(plan=replace(PLAN, stops_at_accepted=2), method=method))
    assert (end.step, end.accepted, end.reason) == (6, 0, COMPLETED)


class StopAt(Callback):
    """Stops a run as Ctrl-C does, after so many steps."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stepped(self, progress: Progress) -> None:
        if progress.step == self._step:
            raise KeyboardInterrupt
