"""The private optimizer: one charged release for each draw; clip rules; schedules of noise and clip norm."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from lehr.accounting.events import Event, Gaussian, PoissonSampled
from lehr.integrations.opacus import BatchMemoryManager, DPOptimizer, GradSampleModule, UnprovenWarning
from lehr.integrations.opacus.data_loader import DPDataLoader
from lehr.integrations.opacus.grad_sample import GradSampleHooks
from lehr.integrations.opacus.optimizers import (
    AdaptiveClipping,
    ExponentialNoise,
    LambdaGradClip,
    LambdaNoise,
    StepNoise,
)
from lehr.interfaces import UNCLIPPED_COUNT, Groups, ReleasedSum, StepOutcome
from lehr.privacy.clipping import LARGEST_CLIP_NORM, AutomaticClip, FlatClip, PerLayerClip, QuantileRule
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey
from lehr.run.private_run import PrivateRun, UnplannedRunSpec
from tests.integrations.opacus.loops import (
    clipped_mean,
    differentiate,
    network,
    private,
    records,
    sgd,
    take_steps,
)
from tests.integrations.refusals import invalid


def test_changed_noise_is_charged_and_an_invalid_clip_norm_costs_nothing() -> None:
    loop = private(noise_multiplier=1.0)
    take_steps(loop, 2)
    loop.optimizer.noise_multiplier, loop.optimizer.max_grad_norm = 0.5, 0.1
    take_steps(loop, 1)
    loop.optimizer.max_grad_norm = math.nan
    with invalid("clip_norm"):
        take_steps(loop, 1)
    assert loop.engine.accountant.history == [(1.0, 0.2, 2), (0.5, 0.2, 1)]


def test_a_step_without_a_backward_pass_is_refused_and_costs_nothing() -> None:
    loop = private()
    next(iter(loop.loader))
    with invalid("loop"):
        loop.optimizer.step()
    assert len(loop.engine.accountant) == 0


def test_closures_and_step_hooks_are_called_once() -> None:
    """The closure for the gradients, the hook between release and step."""
    loop, calls = private(), []
    inputs, targets = next(iter(loop.loader))
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]

    def closure() -> float:
        calls.append("closure")
        loss = functional.cross_entropy(loop.model(inputs), targets)
        differentiate(loss)
        return float(loss.detach())

    def hook(optimizer: DPOptimizer) -> None:
        calls.append("hook")
        assert all(map(torch.equal, optimizer.params, before))
        assert all(parameter.grad is not None for parameter in optimizer.params)

    loop.optimizer.attach_step_hook(hook)
    loop.optimizer.step(closure)
    assert calls == ["closure", "hook"]
    assert len(loop.engine.accountant) == 1


def test_unsupported_methods_are_refused() -> None:
    loop = private()
    with invalid("loop"):
        loop.optimizer.signal_skip_step()
    with invalid("param_groups"):
        loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(loop.optimizer)


def test_a_parameter_added_later_is_never_trained_without_noise() -> None:
    loop, extra = private(), nn.Linear(3, 3).double()
    loop.optimizer.original_optimizer.add_param_group({"params": list(extra.parameters())})
    before = extra.weight.detach().clone()
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(extra(loop.model(inputs)), targets))
    with invalid("optimizer"):
        loop.optimizer.step()
    assert torch.equal(extra.weight, before)
    assert len(loop.engine.accountant) == 0


def test_an_older_gradient_never_moves_a_frozen_parameter() -> None:
    model: Any = network()
    differentiate(functional.cross_entropy(model(records().tensors[0]), records().tensors[1]))
    model[0].requires_grad_(False)
    before = model[0].weight.detach().clone()
    loop = private(model=model)
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(loop.model(inputs), targets))
    loop.optimizer.step()
    assert torch.equal(model[0].weight, before)
    assert len(loop.optimizer.params) == 2


def by_hand(model: Any = None, **options: Any) -> tuple[Any, DPOptimizer]:
    model = model or GradSampleModule(nn.Linear(6, 3).double())
    settings: Any = {"noise_multiplier": 0.0, "max_grad_norm": 0.5, "expected_batch_size": 10, "accept_unproven": True}
    with pytest.warns(UnprovenWarning, match="built by hand"):
        return model, DPOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), **{**settings, **options})


def test_an_optimizer_built_by_hand_clips_and_divides_and_needs_the_flag() -> None:
    model, optimizer = by_hand()
    inputs, targets = records()[:10]
    differentiate(functional.cross_entropy(model(inputs), targets))
    optimizer.step()
    expected = clipped_mean(model.to_standard_module(), inputs, targets, clip_norm=0.5, divisor=10)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, wanted, atol=1e-12)
    with invalid("accept_unproven"):
        DPOptimizer(sgd(network()), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)


def test_an_optimizer_built_by_hand_needs_a_hooked_model_that_no_engine_counts() -> None:
    counted = private().model
    for model in (network(), counted):
        _, optimizer = by_hand(model)
        differentiate(functional.cross_entropy(model(records()[:4][0]), records()[:4][1]))
        with invalid("optimizer"):
            optimizer.step()


class Recorded:
    """A model with an optimizer whose run records what is charged."""

    def __init__(self, *, rand_on_empty: bool = False, sample_rate: float = 1.0) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1).double()
        self.charged: list[Event] = []
        dataset = TensorDataset(torch.ones(4, 3, dtype=torch.float64))
        self.loader: Any = DPDataLoader(dataset, sample_rate=sample_rate, steps=4, rand_on_empty=rand_on_empty)
        self.charge: Callable[[Event], None] = self.charged.append
        spec = UnplannedRunSpec(
            sampling=self.loader.sampling,
            num_records=4,
            physical_batch=4,
            on_charge=lambda event: self.charge(event),
        )
        self.loader.tracker.run = PrivateRun.open(spec)
        self.optimizer = DPOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.0),
            noise_multiplier=1e-9,
            max_grad_norm=0.5,
            expected_batch_size=1,
            engine=GradSampleHooks(self.model),
            tracker=self.loader.tracker,
        )

    def batches(self, size: int = 4) -> Iterator[Any]:
        manager = BatchMemoryManager(data_loader=self.loader, max_physical_batch_size=size, optimizer=self.optimizer)
        return (inputs for (inputs,) in manager.split_loader)

    def run(self, inputs: Tensor) -> None:
        differentiate(self.model(inputs).sum() / max(1, len(inputs)))

    def step(self, inputs: Tensor) -> None:
        self.run(inputs)
        self.optimizer.step()

    @property
    def norm(self) -> float:
        """The norm of the released sum."""
        return float(torch.cat([torch.as_tensor(value.grad).flatten() for value in self.model.parameters()]).norm())


def test_a_release_is_charged_before_its_value_is_handed_out() -> None:
    made = Recorded()

    def refuse(_: Event) -> None:
        raise RuntimeError("the disk is full")

    made.charge = refuse
    made.run(next(made.batches()))
    with pytest.raises(RuntimeError, match="disk"):
        made.optimizer.step()
    assert all(value.grad is None or not value.grad.any() for value in made.model.parameters())


def test_the_batches_of_a_draw_are_clipped_by_one_rule_and_released_once() -> None:
    made = Recorded()
    batches = made.batches(3)
    made.step(next(batches))
    assert made.charged == []
    made.optimizer.max_grad_norm = 100.0
    made.step(next(batches))
    assert made.norm == pytest.approx(4 * 0.5, rel=1e-3)
    assert made.charged == [PoissonSampled(1.0, Gaussian(1e-9))]


def test_an_unfinished_draw_is_not_released_and_no_batch_may_be_left_out() -> None:
    made = Recorded()
    batches = made.batches(2)
    made.step(next(batches))
    next(batches)  # the second half of the first draw
    for _ in range(2):
        made.step(next(batches))
    assert made.norm == pytest.approx(4 * 0.5, rel=1e-3)
    next(batches)
    with invalid("step"):
        made.step(next(batches))
    assert len(made.charged) == 1


@pytest.mark.parametrize("rand_on_empty", [True, False])
def test_an_empty_draw_is_noise_alone(rand_on_empty: bool) -> None:
    made = Recorded(rand_on_empty=rand_on_empty, sample_rate=1e-12)
    inputs = next(made.batches())
    assert len(inputs) == int(rand_on_empty)
    made.step(inputs + 1)
    assert 0 < made.norm < 1e-6
    assert len(made.charged) == 1


def test_zero_grad_drops_a_backward_pass_and_a_new_batch_a_forward_pass() -> None:
    made = Recorded()
    batches = made.batches()
    made.run(next(batches))
    made.optimizer.zero_grad()
    made.model(next(batches))
    loss = made.model(next(batches)).mean()
    made.optimizer.zero_grad()
    differentiate(loss)
    made.optimizer.step()
    assert len(made.charged) == 1


def test_calling_layers_of_the_model_is_refused() -> None:
    """What the loop does between them, here a mean over the batch, is never checked."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)).double()
    loop = private(model=model)
    inputs, targets = next(iter(loop.loader))
    inner = model[0](inputs)
    differentiate(functional.cross_entropy(model[1](inner - inner.mean(0)), targets))
    with invalid("loop"):
        loop.optimizer.step()
    assert len(loop.engine.accountant) == 0


# Clip rules.

CLIP = AdaptiveClipping(
    target_unclipped_quantile=0.5,
    clipbound_learning_rate=0.2,
    max_clipbound=10.0,
    min_clipbound=0.1,
    unclipped_num_std=5.0,
)
SETTINGS = vars(CLIP)


@pytest.mark.parametrize(
    "clipping, given, expected",
    [
        ("flat", 0.5, FlatClip(0.5)),
        ("flat", 1e20, FlatClip(LARGEST_CLIP_NORM)),
        ("automatic", math.inf, AutomaticClip(LARGEST_CLIP_NORM)),
        ("per_layer", 0.5, PerLayerClip(0.5)),
        # A norm for each parameter becomes one for each layer, with the same sensitivity.
        ("per_layer", [3.0, 4.0, 5.0, 12.0], PerLayerClip.with_norms({"0": 5.0, "2": 13.0})),
    ],
)
def test_clipping_by_name(clipping: str, given: Any, expected: Any) -> None:
    loop = private(clipping=clipping, max_grad_norm=given)
    assert loop.optimizer.clip_rule() == expected
    take_steps(loop, 1)
    assert loop.engine.accountant.history == [(1.0, 0.2, 1)]


@pytest.mark.parametrize(
    "name, options",
    [
        ("max_grad_norm", {"max_grad_norm": [1.0, 1.0]}),
        ("max_grad_norm", {"clipping": "per_layer", "max_grad_norm": [1.0]}),
        ("clipping", {"clipping": "quantile"}),
        ("clipping", {"clipping": "adaptive"}),
        ("clipping", {"clipping": "adaptive", "min_clipbound": 1.0}),
        ("clipping", {"clipping": "flat", **SETTINGS}),
        ("max_clipbound", {"clipping": "adaptive", **SETTINGS, "max_clipbound": 0.05}),
        ("noise_multiplier", {"clipping": "adaptive", **SETTINGS, "noise_multiplier": 10.0}),
    ],
)
def test_incomplete_clipping_is_refused(name: str, options: dict[str, Any]) -> None:
    with invalid(name):
        private(**options)


class Lengths:
    """Records whose gradients are numbers."""

    names = ("weight",)
    margin = 0.0

    def __init__(self, *values: float) -> None:
        self.values = torch.tensor(values, dtype=torch.float64)

    def norms(self, groups: Groups | None = None) -> Tensor:
        return self.values.abs()

    def weighted_sum(self, weights: Tensor, groups: Groups | None = None) -> dict[str, Tensor]:
        return {"weight": (weights * self.values).sum()}


def rule_of(*, clip_norm: float, noise_multiplier: float) -> QuantileRule:
    clip = CLIP.clip(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
    return clip.rule(clip.start({}), 0)


def vector(rule: QuantileRule, *values: float) -> Tensor:
    return torch.stack(list(rule(Lengths(*values)).values.values()))


@pytest.mark.parametrize("record", [0.0, 1e-12, 0.5, 1.0, 1.0001, 50.0])
def test_one_record_moves_sum_and_count_by_at_most_the_sensitivity(record: float) -> None:
    rule = rule_of(clip_norm=1.0, noise_multiplier=2.0)
    moved = float((vector(rule, 0.3, 4.0, record) - vector(rule, 0.3, 4.0)).norm())
    assert moved <= rule.sensitivity * (1 + 1e-12)
    assert record != 1.0 or moved == pytest.approx(rule.sensitivity)


def test_adaptive_noise_is_that_of_theorem_1() -> None:
    """Andrew et al. (2021): (σ⁻² - (2 σ_b)⁻²)^(-1/2) on the sum, σ_b on the count."""
    rule = rule_of(clip_norm=0.7, noise_multiplier=2.0)
    std = 2.0 * rule.sensitivity
    assert std == pytest.approx(0.7 * (2.0**-2 - (2 * 5.0) ** -2) ** -0.5)
    assert std / rule.count_weight == pytest.approx(5.0)


def test_the_count_is_released_with_noise() -> None:
    rule = rule_of(clip_norm=1.0, noise_multiplier=2.0)
    private_sum = rule(Lengths(0.5))
    released = [
        IsotropicNoise()
        .release(private_sum, noise_multiplier=2.0, randomness=RunKey.fresh().at(0, 0))
        .values[UNCLIPPED_COUNT]
        for _ in range(400)
    ]
    std = float(torch.stack(released).std()) / rule.count_weight
    assert 4.2 < std < 5.8
    assert not 4.2 < std / 2 < 5.8


@pytest.mark.parametrize(
    "clip_norm, length, expected", [(1.0, 0.1, math.exp(-0.1)), (1.0, 5.0, math.exp(0.1)), (0.1, 0.01, 0.1)]
)
def test_the_clip_norm_follows_the_quantile(clip_norm: float, length: float, expected: float) -> None:
    rule = rule_of(clip_norm=clip_norm, noise_multiplier=1e-6)
    released = ReleasedSum(values=rule(Lengths(*[length] * 10)).values)
    clip = CLIP.clip(clip_norm=clip_norm, noise_multiplier=1e-6)
    learnt = clip.learn(clip.start({}), StepOutcome(released=released, divisor=10, is_accepted=True))
    assert learnt["clip_norm"] == pytest.approx(expected)


def test_a_loop_adapts_its_clip_norm_under_one_noise_multiplier() -> None:
    loop = private(clipping="adaptive", max_grad_norm=5.0, noise_multiplier=0.5, batch_size=20, **SETTINGS)
    take_steps(loop, 10)
    assert loop.optimizer.max_grad_norm < 5.0
    assert loop.engine.accountant.history == [(0.5, 0.5, 10)]


# Schedules.


def test_a_loaded_schedule_moves_the_value_of_its_own_optimizer() -> None:
    schedule = StepNoise(private().optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        schedule.step()
    later = StepNoise(private(noise_multiplier=8.0).optimizer, step_size=2, gamma=0.5)
    for _ in range(2):
        later.load_state_dict(schedule.state_dict())
        assert later.optimizer.noise_multiplier == 2.0
    assert later.state_dict() == schedule.state_dict()
    assert set(LambdaNoise(later.optimizer, noise_lambda=lambda epoch: 1.0).state_dict()) == {"last_epoch"}


def test_every_step_of_a_schedule_without_noise_costs_everything() -> None:
    loop = private()
    schedule = LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: float(epoch == 0))
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) < 100
    schedule.step()
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) == math.inf


@pytest.mark.parametrize(
    "name, kind, options",
    [
        ("noise_multiplier", LambdaNoise, {"noise_lambda": lambda epoch: -1.0}),
        ("max_grad_norm", LambdaGradClip, {"scheduler_function": lambda epoch: 0.0}),
        ("gamma", ExponentialNoise, {"gamma": math.nan}),
    ],
)
def test_undefined_values_of_a_schedule_are_refused(name: str, kind: Any, options: dict[str, Any]) -> None:
    with invalid(name):
        kind(private().optimizer, **options)
    with invalid("optimizer"):
        ExponentialNoise(sgd(network()), gamma=0.9)
