"""Slots combine: clips, noises and acceptances are strangers, and any of them that may meet are trained together.

All three are found by crawling. For every two of them a method is made, with the third slot filled in turn, and run for
three steps through the real loop: what a record can do to each sum, what the ledger is charged, and what ε that is.
What cannot hold is refused, with the reason, before anything is spent.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lehr.acceptance
import lehr.privacy.clipping
import lehr.privacy.noise
from lehr.acceptance import (
    Always,
    Annealed,
    BestStep,
    NoisyMax,
    NoisyTest,
    PrivateChoice,
    PrivateEnergy,
    PublicEnergy,
    Salvage,
)
from lehr.accounting.accountant import bound
from lehr.accounting.events import NOTHING, Adjacency, Event, NonPrivate, Repeated, counted, together
from lehr.data import InMemory
from lehr.errors import InvalidValue
from lehr.gradients.materialised import MaterialisedEngine
from lehr.interfaces import ClipRule, PrivateSum
from lehr.methods.sa_dpsgd import sa_dpsgd
from lehr.optim.averaging import NoAverage
from lehr.optim.optimizers import sgd
from lehr.planning.plan import Plan
from lehr.privacy.clipping import (
    AdaptiveClip,
    AutomaticClip,
    FlatClip,
    NormClip,
    PerCoordinateClip,
    PerLayerClip,
    QuantileClip,
    RawPrior,
    ReleasedPrior,
    ScheduledClip,
    Unclipped,
)
from lehr.privacy.noise import BudgetedNoise, DiscreteNoise, IsotropicNoise, NoNoise, OptimisedNoise, ProportionalNoise
from lehr.privacy.rng import RunKey
from lehr.run.evaluation import PublicScore
from lehr.run.folder import RunFolder
from lehr.run.loop import Loop, Training, TrainingPhase
from lehr.run.loss_oracle import LossOracle, event_of
from lehr.run.mechanism import Mechanism, Method
from lehr.run.private_run import PrivateRun, RunSpec
from lehr.run.replay import RunPlan
from lehr.schedules import StepDecay
from lehr.training.public_plan import plan_for
from tests.contracts.crawling import classes_of

KEY = RunKey(bytes(range(32)))
HELD, BATCH, STEPS, DELTA, NOISE = 12, 6, 3, 1e-3, 1.1
MADE = torch.Generator().manual_seed(4)
INPUTS = torch.randn(HELD, 3, generator=MADE)
INPUTS[::3] *= 1000  # so that clips have something to do
PRIVATE = InMemory(INPUTS, torch.arange(HELD) % 2)
PUBLIC = InMemory(torch.randn(6, 3, generator=MADE), torch.arange(6) % 2)

ENERGY = PrivateEnergy(loss_clip=0.5, noise_multiplier=2.0, expected_batch_size=4)
OF_BATCH = PrivateEnergy(loss_clip=0.5, noise_multiplier=2.0, expected_batch_size=4, clipped="batch")
CHOICE = PrivateChoice(loss_clip=1.0, epsilon=0.3, expected_batch_size=4)
BOUNDS = {"weight": torch.tensor([[0.3, 0.1, 0.2], [0.05, 0.0, 0.4]]), "bias": torch.tensor([0.1, 0.2])}
# Every component of every kind. A new one that is not here fails the test of completeness, and nothing else is needed.
CLIPS: dict[type, tuple[Any, ...]] = {
    AdaptiveClip: (
        AdaptiveClip(clip_norm=0.7, prior=ReleasedPrior(memory=0.5)),
        AdaptiveClip(clip_norm=0.7, prior=RawPrior()),
    ),
    AutomaticClip: (AutomaticClip(0.7),),
    FlatClip: (FlatClip(0.7),),
    PerCoordinateClip: (PerCoordinateClip(BOUNDS),),
    PerLayerClip: (PerLayerClip(0.7),),
    QuantileClip: (QuantileClip(0.7, count_share=0.5),),
    ScheduledClip: (ScheduledClip(FlatClip(0.7), StepDecay(every=1, decay=0.5)),),
    Unclipped: (Unclipped(),),
}
NOISES: dict[type, tuple[Any, ...]] = {
    BudgetedNoise: (BudgetedNoise(growth=0.5),),
    DiscreteNoise: (DiscreteNoise(),),
    IsotropicNoise: (IsotropicNoise(),),
    NoNoise: (NoNoise(),),
    OptimisedNoise: (OptimisedNoise(), OptimisedNoise(found_by="projected-gradient")),
    ProportionalNoise: (ProportionalNoise(),),
}
ACCEPTANCES: dict[type, tuple[Any, ...]] = {
    Always: (Always(),),
    Annealed: (Annealed(), Annealed(energy=ENERGY, initial_inverse_temperature=1e3)),
    BestStep: (BestStep(Salvage(Annealed())),),
    NoisyMax: (NoisyMax(energy=CHOICE, step_sizes=3),),
    NoisyTest: (NoisyTest(energy=OF_BATCH),),
    Salvage: (Salvage(NoisyTest(energy=ENERGY)),),
}


def kinds(package: ModuleType, *promises: str) -> set[type]:
    """The dataclasses of a module or package that have these attributes."""
    return {
        kind
        for kind in classes_of(package)
        if dataclasses.is_dataclass(kind)
        and not inspect.isabstract(kind)
        and all(hasattr(kind, name) for name in promises)
    }


def of(table: dict[type, tuple[Any, ...]]) -> list[Any]:
    return [component for own in table.values() for component in own]


def test_every_filling_of_a_slot_is_tried_here() -> None:
    assert kinds(lehr.privacy.clipping, "start", "rule") - {NormClip} == set(CLIPS)  # a base class
    assert kinds(lehr.privacy.noise, "start", "release") == set(NOISES)
    assert kinds(lehr.acceptance, "start", "decide") == set(ACCEPTANCES)
    for table in (CLIPS, NOISES, ACCEPTANCES):
        assert {type(component) for component in of(table)} == set(table)
    assert kinds(lehr.privacy.clipping, "squares", "peek") == {type(clip.prior) for clip in CLIPS[AdaptiveClip]}
    asked = {type(acceptance.energy) for acceptance in of(ACCEPTANCES)} - {type(None)}
    assert asked == {PublicEnergy, PrivateEnergy, PrivateChoice}


@dataclass(frozen=True)
class Triple:
    """One combination of components."""

    clip: Any
    noise: Any
    acceptance: Any

    def __str__(self) -> str:
        return "-".join(_word(component) for component in (self.clip, self.noise, self.acceptance))

    @property
    def holds(self) -> bool:
        """Not where nothing is clipped, noise has another shape than the bound, or costs follow what is not proven."""
        is_covered = isinstance(self.noise, NoNoise) or not isinstance(self.clip, Unclipped)
        has_shape = self.clip.needs_coordinates or not self.noise.needs_bounds
        return is_covered and has_shape and (self.clip.unproven is None or not self.noise.needs_limit)

    @property
    def is_proven(self) -> bool:
        return not isinstance(self.noise, NoNoise) and self.clip.unproven is None

    def method(self) -> Method:
        return Method(name="made", clipping=self.clip, noise=self.noise, update=sgd(0.05), acceptance=self.acceptance)


def _word(component: Any) -> str:
    inner = [getattr(component, name, None) for name in ("prior", "inner", "energy", "found_by")]
    words = [part if isinstance(part, str) else type(part).__name__ for part in inner if part is not None]
    return type(component).__name__ + (f"({','.join(words)})" if words else "")


def holding() -> list[Triple]:
    """Triples in which every two components that may be combined are combined."""
    clips, noises, acceptances = of(CLIPS), of(NOISES), of(ACCEPTANCES)
    found = []
    for i, clip in enumerate(clips):
        fitting = [noise for noise in noises if Triple(clip, noise, Always()).holds]
        found += [Triple(clip, fitting[(i + k) % len(fitting)], each) for k, each in enumerate(acceptances)]
    met = {(_word(triple.noise), _word(triple.acceptance)) for triple in found}
    found += [
        Triple(CLIPS[AdaptiveClip][0], noise, each)
        for noise in noises
        for each in acceptances
        if (_word(noise), _word(each)) not in met
    ]
    return found


HOLDING = holding()
PAIRS = [Triple(clip, noise, Always()) for clip in of(CLIPS) for noise in of(NOISES)]
REFUSED = [triple for triple in PAIRS if not triple.holds]


def test_every_two_fillings_that_may_meet_are_trained_together() -> None:
    met = [(_word(t.clip), _word(t.noise), _word(t.acceptance)) for t in HOLDING]
    refused = {(_word(t.clip), _word(t.noise)) for t in REFUSED}
    clips, noises, acceptances = ([_word(each) for each in of(table)] for table in (CLIPS, NOISES, ACCEPTANCES))
    assert {(c, n) for c, n, _ in met} == {(c, n) for c in clips for n in noises} - refused
    assert {(c, a) for c, _, a in met} == {(c, a) for c in clips for a in acceptances}
    assert {(n, a) for _, n, a in met} == {(n, a) for n in noises for a in acceptances}


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def planned(method: Method) -> Plan:
    """A plan for the method. Finding noise for a limit takes long, and depends on no more than is kept here."""
    key = (type(method.noise), method.acceptance.energy, method.clipping.unproven)
    if key not in PLANS:
        PLANS[key] = new_plan(method)
    return PLANS[key]


PLANS: dict[object, Plan] = {}


def new_plan(method: Method) -> Plan:
    given: dict[str, Any] = {"records": HELD, "delta": DELTA, "expected_batch_size": BATCH, "steps": STEPS}
    if not method.is_private:
        return plan_for(**given, method=method)
    if method.noise.needs_limit:
        return replace(plan_for(**given, method=method, epsilon=40.0), steps=STEPS)
    return plan_for(**given, method=method, noise_multiplier=NOISE)


@lru_cache
def epsilon_of(event: Event) -> float:
    return bound(event, delta=DELTA).epsilon


class Watched:
    """An engine that also leaves out each record in turn, at the same weights, and keeps how far the sum moved."""

    def __init__(self, model: nn.Module) -> None:
        self._engine = MaterialisedEngine(model, losses)
        self.moved: list[float] = []  # over the stated sensitivity

    def private_sum(self, clip: ClipRule, inputs: Any, targets: Any, mask_B: Tensor) -> PrivateSum:
        whole = clip(self._engine.gradients(inputs, targets, mask_B))
        for place in mask_B.nonzero().flatten().tolist():
            others = mask_B.clone()
            others[place] = False
            self._compare(whole, clip(self._engine.gradients(inputs, targets, others)))
        return whole

    def _compare(self, whole: PrivateSum, without: PrivateSum) -> None:
        moved = {name: (value - without.values[name]).double() for name, value in whole.values.items()}
        norm = math.hypot(*(float(value.norm()) for value in moved.values()))
        self.moved.append(norm / whole.sensitivity)
        for name, limit in (whole.bounds or {}).items():
            assert bool((moved[name].abs() <= limit * (1 + ROUNDING) + ROUNDING).all())


ROUNDING = 1e-5  # of adding up in float32


@dataclass
class Noted:
    """A noise that notes with which multiplier it was asked to release."""

    noise: Any
    multipliers: list[float] = field(default_factory=list)

    def release(self, private: PrivateSum, *, noise_multiplier: float, **given: Any) -> Any:
        self.multipliers.append(noise_multiplier)
        return self.noise.release(private, noise_multiplier=noise_multiplier, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.noise, name)


@dataclass
class Ran:
    """What was seen of a run."""

    charged: Event
    done: Event
    moved: list[float]
    plan: Plan
    model: nn.Module


def model() -> nn.Module:
    made = nn.Linear(3, 2)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view(parameter.shape))
    return made


def ran(method: Method, path: Path) -> Ran:
    """Three steps in a folder, through the loop."""
    plan, trained = planned(method), model()
    engine, noise = Watched(trained), Noted(method.noise)
    mechanism = replace(Mechanism.of(method, plan), noise=noise)
    training = Training(
        model=trained,
        phases=[TrainingPhase(engine=engine, prepare_inputs=lambda inputs, generator: inputs)],
        method=method,
        private_records=PRIVATE,
        averaging=NoAverage(),
        oracle=judge(method, plan, trained),
        environment={"same": "always"},
    )
    with folder(path, plan) as opened:
        spec = RunSpec(
            name="test",
            run_plan=RunPlan(plan=plan),
            mechanism=mechanism,
            directory=path,
            config={},
            fingerprint=lambda key: "",
            physical_batch=HELD,
            epsilon_of=lambda event: 0.0,
        )
        run = PrivateRun(spec, key=opened.key, folder=opened)
        Loop(training, run).train()
        charged = opened.ledger.charged()
    asked = event_of(method.acceptance.energy, records=HELD, adjacency=Adjacency.ADD_OR_REMOVE_ONE)
    if method.clipping.unproven is not None:
        asked = together(asked, NonPrivate(method.clipping.unproven))
    steps = [mechanism.event(multiplier) for multiplier in noise.multipliers]
    done = together(*steps, *([Repeated(asked, len(steps))] if asked != NOTHING else []))
    return Ran(charged=charged, done=done, moved=engine.moved, plan=plan, model=trained)


def judge(method: Method, plan: Plan, trained: nn.Module) -> LossOracle | None:
    energy = method.acceptance.energy
    if energy is None:
        return None
    given: dict[str, Any] = {"loss_fn": losses, "prepare": lambda inputs: inputs}
    public = PublicScore(records=PUBLIC, **given)
    return LossOracle(energy=energy, plan=plan, model=trained, private=PRIVATE, public=public, **given)


def folder(path: Path, plan: Plan) -> RunFolder:
    words: dict[str, dict[str, Any]] = {"method": {"name": "made"}, "data": {}, "model": {}, "training": {}}
    return RunFolder.create(
        path / "run",
        config={"format": "lehr-run", "format_version": 1, "run": "test", **words},
        key=KEY,
        plan_event=plan.event,
        delta=plan.delta,
        adjacency=plan.adjacency,
        fingerprint=lambda key: "",
    )


@pytest.mark.parametrize("triple", HOLDING, ids=str)
def test_what_combines_keeps_its_sensitivity_and_is_charged_as_what_it_did(triple: Triple, tmp_path: Path) -> None:
    run = ran(triple.method(), tmp_path)
    assert max(run.moved) <= 1 + ROUNDING
    assert counted(run.charged) == counted(run.done)
    assert sum(count for atom, count in counted(run.charged).items()) >= STEPS
    epsilon = epsilon_of(run.charged)
    assert math.isfinite(epsilon) == triple.is_proven
    assert epsilon <= run.plan.bound().epsilon
    if run.plan.limit is None:
        assert epsilon == epsilon_of(run.plan.event)
    assert all(bool(parameter.isfinite().all()) for parameter in run.model.parameters())


@pytest.mark.parametrize("triple", REFUSED, ids=str)
def test_what_cannot_hold_is_refused_before_anything_is_spent(triple: Triple) -> None:
    with pytest.raises(InvalidValue):
        Mechanism.of(triple.method(), planned(triple.method()))


@pytest.mark.parametrize("clip", [clip for clip in of(CLIPS) if not isinstance(clip, Unclipped)], ids=_word)
def test_a_clip_that_states_less_than_a_record_can_do_is_found_out(clip: Any, tmp_path: Path) -> None:
    """What is checked of each combination has teeth: with half of its sensitivity stated, each of them fails."""
    run = ran(Method(name="made", clipping=clip, noise=IsotropicNoise(), update=sgd(0.05)), tmp_path)
    assert max(run.moved) > 0.5


def planned_without(**changed: Any) -> Mechanism:
    method = Method(
        **{"name": "made", "clipping": FlatClip(0.7), "noise": IsotropicNoise(), "update": sgd(0.05), **changed}
    )
    is_limited = method.noise.needs_limit
    return Mechanism.of(method, replace(planned(method), **({"limit": None} if is_limited else {"asked": NOTHING})))


def plan_without_noise(**asked: Any) -> Plan:
    method = Triple(FlatClip(0.7), NoNoise(), Always()).method()
    return plan_for(method=method, records=HELD, delta=DELTA, expected_batch_size=BATCH, steps=STEPS, **asked)


# What cannot be set up at all, by the name of the argument that is refused.
UNFIT: dict[str, tuple[Callable[[], object], str]] = {
    **{
        f"several step sizes on private records, {_word(inner)}": (partial(BestStep, inner), "inner")
        for energy in (ENERGY, OF_BATCH)
        for inner in (Annealed(energy=energy), NoisyTest(energy=energy), Salvage(NoisyTest(energy=energy)))
    },
    "several step sizes by a noisy maximum": (lambda: BestStep(NoisyMax(energy=CHOICE)), "inner"),
    "salvage where a paper does not count it": (
        lambda: sa_dpsgd(salvage=True, accounting="published"),
        "accounting",
    ),
    "step sizes where a paper does not count them": (
        lambda: sa_dpsgd(step_scales=(0.5, 1.0), accounting="published"),
        "accounting",
    ),
    "epsilon without noise": (lambda: plan_without_noise(epsilon=3.0), "epsilon"),
    "a noise multiplier without noise": (lambda: plan_without_noise(noise_multiplier=1.0), "noise_multiplier"),
    "a plan without what a clip looks at": (lambda: planned_without(clipping=CLIPS[AdaptiveClip][1]), "plan"),
    "a plan without what is asked": (lambda: planned_without(acceptance=NoisyTest(energy=ENERGY)), "plan"),
    "noise that follows what is released, without a limit": (lambda: planned_without(noise=BudgetedNoise()), "plan"),
}


@pytest.mark.parametrize("make, name", UNFIT.values(), ids=UNFIT.keys())
def test_what_is_unfit_is_refused_by_name(make: Callable[[], object], name: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        make()
    assert refusal.value.name == name


def test_rejected_gradients_can_be_used_where_no_paper_counts() -> None:
    assert sa_dpsgd(salvage=True).published is None
    assert sa_dpsgd(step_scales=(0.5, 1.0)).published is None
