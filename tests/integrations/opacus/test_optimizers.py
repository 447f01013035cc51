"""The private optimizer: one charged release for each draw; schedules of its noise and clip norm."""

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

from lehr.accounting.events import Event, Gaussian, PoissonSampled, Repeated
from lehr.errors import BudgetExceeded, InvalidValue
from lehr.integrations.opacus import BatchMemoryManager, DPOptimizer, GradSampleModule, UnprovenWarning
from lehr.integrations.opacus.data_loader import DPDataLoader
from lehr.integrations.opacus.grad_sample import GradSampleHooks
from lehr.integrations.opacus.schedulers import (
    ExponentialGradClip,
    ExponentialNoise,
    LambdaGradClip,
    LambdaNoise,
    StepGradClip,
    StepNoise,
)
from lehr.run.private_run import OpenRunSpec, PrivateRun
from tests.integrations.opacus.loops import (
    clipped_mean,
    differentiate,
    network,
    private,
    records,
    sgd,
    take_step,
    take_steps,
)


def test_noise_has_the_stated_standard_deviation() -> None:
    """Zero inputs leave the gradient of the weight to the noise alone."""
    loop = private(noise_multiplier=2.0, max_grad_norm=0.5, batch_size=8, model=nn.Linear(6, 300).double())
    noise = []
    for inputs, targets in loop.loader:
        loop.optimizer.zero_grad()
        differentiate(functional.cross_entropy(loop.model(inputs * 0), targets))
        loop.optimizer.step()
        noise.append(loop.model.weight.grad.flatten())
    std = float(torch.cat(noise).std())
    assert std == pytest.approx(2.0 * 0.5 / 8, rel=0.06)
    assert std != pytest.approx(2.0 * 0.5 / 8 / 2, rel=0.06)


def test_the_wrapped_optimizer_is_the_one_that_steps() -> None:
    loop = private()
    loop.optimizer.original_optimizer.param_groups[0]["momentum"] = 0.9
    take_steps(loop, 2)
    assert len(loop.optimizer.state) == 4
    assert loop.optimizer.state_dict()["param_groups"][0]["momentum"] == 0.9
    later = private()
    later.optimizer.load_state_dict(loop.optimizer.state_dict())
    assert later.optimizer.param_groups[0]["momentum"] == 0.9
    assert isinstance(later.optimizer, DPOptimizer)
    assert "SGD" in repr(later.optimizer)


def test_noise_and_clip_norm_may_change_and_are_charged_as_they_are() -> None:
    loop = private(noise_multiplier=1.0)
    take_steps(loop, 2)
    loop.optimizer.noise_multiplier = 0.5
    loop.optimizer.max_grad_norm = 0.1
    take_steps(loop, 1)
    assert loop.engine.accountant.history == [(1.0, 0.2, 2), (0.5, 0.2, 1)]


def test_a_clip_norm_that_is_no_number_is_refused_before_anything_is_released() -> None:
    loop = private()
    loop.optimizer.max_grad_norm = float("nan")
    with pytest.raises(InvalidValue, match="clip_norm"):
        take_steps(loop, 1)
    assert len(loop.engine.accountant) == 0


def test_a_step_without_a_backward_pass_is_refused_and_costs_nothing() -> None:
    loop = private()
    next(iter(loop.loader))
    with pytest.raises(InvalidValue, match="backward"):
        loop.optimizer.step()
    assert len(loop.engine.accountant) == 0


def test_a_closure_is_called_once_for_the_gradients() -> None:
    loop = private()
    inputs, targets = next(iter(loop.loader))
    calls = []

    def closure() -> float:
        calls.append(1)
        loss = functional.cross_entropy(loop.model(inputs), targets)
        differentiate(loss)
        return float(loss.detach())

    loop.optimizer.step(closure)
    assert len(calls) == 1
    assert len(loop.engine.accountant) == 1


def test_a_hook_runs_between_release_and_step() -> None:
    loop = private()
    seen: list[Any] = []
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]

    def hook(optimizer: DPOptimizer) -> None:
        seen.append(all(torch.equal(a, b) for a, b in zip(optimizer.params, before, strict=True)))
        assert all(parameter.grad is not None for parameter in optimizer.params)

    loop.optimizer.attach_step_hook(hook)
    take_step(loop, next(iter(loop.loader)))
    assert seen == [True]


def test_what_would_count_wrongly_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="BatchMemoryManager"):
        loop.optimizer.signal_skip_step()
    with pytest.raises(InvalidValue, match="param_groups"):
        loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(loop.optimizer)


def test_a_parameter_that_joins_the_optimizer_later_is_never_trained_without_noise() -> None:
    loop, extra = private(), nn.Linear(3, 3).double()
    loop.optimizer.original_optimizer.add_param_group({"params": list(extra.parameters())})
    before = extra.weight.detach().clone()
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(extra(loop.model(inputs)), targets))
    with pytest.raises(InvalidValue, match="2 other trainable parameters"):
        loop.optimizer.step()
    assert torch.equal(extra.weight, before)
    assert len(loop.engine.accountant) == 0


def test_a_gradient_from_before_never_moves_a_frozen_parameter() -> None:
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


def test_one_that_was_built_by_hand_needs_the_switch() -> None:
    settings: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 4}
    with pytest.raises(InvalidValue, match="accept_unproven"):
        DPOptimizer(torch.optim.SGD(GradSampleModule(network()).parameters(), lr=0.1), **settings)


def test_one_that_was_built_by_hand_clips_every_record_and_divides_by_the_batch_size() -> None:
    model, optimizer = by_hand()
    inputs, targets = records()[:10]
    differentiate(functional.cross_entropy(model(inputs), targets))
    optimizer.step()
    expected = clipped_mean(model.to_standard_module(), inputs, targets, clip_norm=0.5, divisor=10)
    for parameter, wanted in zip(model.parameters(), expected, strict=True):
        assert torch.allclose(parameter.grad, wanted, atol=1e-12)


def test_one_that_was_built_by_hand_adds_fresh_noise_and_repeats_it_only_with_a_generator() -> None:
    found = []
    for seed in (1, 1, None):
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        wrapped = GradSampleModule(nn.Linear(6, 400).double())
        model, optimizer = by_hand(wrapped, noise_multiplier=2.0, generator=generator)
        for _ in range(2):
            differentiate(model(torch.zeros(4, 6).double()).mean())
            optimizer.step()
            found.append(model.weight.grad)
        with pytest.raises(InvalidValue, match="backward"):
            optimizer.step()
    assert float(torch.cat(found).std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.06)
    assert not torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[4])


def test_parameters_without_hooks_are_refused() -> None:
    model, optimizer = by_hand(network())
    differentiate(functional.cross_entropy(model(records()[:4][0]), records()[:4][1]))
    with pytest.raises(InvalidValue, match="GradSampleModule"):
        optimizer.step()


def test_none_is_built_by_hand_over_a_model_whose_steps_are_counted() -> None:
    loop = private()
    _, other = by_hand(loop.model)
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(loop.model(inputs), targets))
    with pytest.raises(InvalidValue, match="make_private"):
        other.step()


class Recorded:
    """A model with an optimizer whose run records what is charged."""

    def __init__(
        self, *, rand_on_empty: bool = False, sample_rate: float = 1.0, planned: Repeated | None = None
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1).double()
        self.charged: list[Event] = []
        dataset = TensorDataset(torch.ones(4, 3, dtype=torch.float64))
        self.loader: Any = DPDataLoader(dataset, sample_rate=sample_rate, steps=4, rand_on_empty=rand_on_empty)
        self.charge: Callable[[Event], None] = self.charged.append
        spec = OpenRunSpec(
            sampling=self.loader.sampling,
            num_records=4,
            physical_batch=4,
            planned=planned,
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

    def batches(self, size: int | None = None) -> Iterator[Any]:
        loader = self.loader
        if size is not None:
            loader = BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=size, optimizer=self.optimizer
            ).__enter__()
        return (inputs for (inputs,) in loader)

    def run(self, inputs: Tensor) -> None:
        differentiate(self.model(inputs).sum() / max(1, len(inputs)))

    @property
    def norm(self) -> float:
        """The norm of the released sum."""
        return float(torch.cat([value.grad.flatten() for value in self.model.parameters()]).norm())  # type: ignore[union-attr]


def test_a_release_is_charged_before_its_value_is_handed_out() -> None:
    made = Recorded()

    def refuse(_: Event) -> None:
        raise RuntimeError("the disk is full")

    made.charge = refuse
    made.run(next(made.batches()))
    before = [None if value.grad is None else value.grad.clone() for value in made.model.parameters()]
    with pytest.raises(RuntimeError, match="disk"):
        made.optimizer.step()
    after = [value.grad for value in made.model.parameters()]
    assert all(one is other or torch.equal(one, other) for one, other in zip(before, after, strict=True))  # type: ignore[arg-type]


def test_the_batches_of_a_draw_are_clipped_by_one_rule_and_released_once() -> None:
    made = Recorded()
    batches = made.batches(3)
    made.run(next(batches))
    made.optimizer.step()
    assert made.charged == []
    made.optimizer.max_grad_norm = 100.0
    made.run(next(batches))
    made.optimizer.step()
    assert made.norm == pytest.approx(4 * 0.5, rel=1e-3)
    assert made.charged == [PoissonSampled(1.0, Gaussian(1e-9))]


def test_a_draw_that_was_left_is_not_released_and_a_batch_is_not_left_out() -> None:
    made = Recorded()
    batches = made.batches(2)
    made.run(next(batches))
    made.optimizer.step()
    next(batches)  # the second half of the first draw
    for _ in range(2):
        made.run(next(batches))
        made.optimizer.step()
    assert made.norm == pytest.approx(4 * 0.5, rel=1e-3)
    next(batches)
    made.run(next(batches))
    with pytest.raises(InvalidValue, match="BatchMemoryManager"):
        made.optimizer.step()
    assert len(made.charged) == 1


def test_an_empty_draw_is_noise_alone_with_and_without_a_placeholder() -> None:
    for rand_on_empty in (False, True):
        made = Recorded(rand_on_empty=rand_on_empty, sample_rate=1e-12)
        inputs = next(made.batches())
        assert len(inputs) == int(rand_on_empty)
        made.run(inputs + 1)
        made.optimizer.step()
        assert 0 < made.norm < 1e-6
        assert len(made.charged) == 1


def test_no_more_steps_than_planned_and_no_others() -> None:
    made = Recorded(planned=Repeated(PoissonSampled(1.0, Gaussian(1e-9)), 2))
    batches = made.batches()
    made.run(next(batches))
    made.optimizer.noise_multiplier = 1.0
    with pytest.raises(InvalidValue, match="plan"):
        made.optimizer.step()
    made.optimizer.noise_multiplier = 1e-9
    for _ in range(2):
        made.run(next(batches))
        made.optimizer.step()
    made.run(next(batches))
    with pytest.raises(BudgetExceeded, match="2 steps"):
        made.optimizer.step()
    assert len(made.charged) == 2


def test_zero_grad_drops_a_backward_pass_and_keeps_a_forward_pass() -> None:
    made = Recorded()
    batches = made.batches()
    made.run(next(batches))
    made.optimizer.zero_grad()
    loss = made.model(next(batches)).mean()
    made.optimizer.zero_grad()
    differentiate(loss)
    made.optimizer.step()
    assert len(made.charged) == 1


def test_a_forward_pass_that_was_left_does_not_stop_the_next_batch() -> None:
    made = Recorded()
    batches = made.batches()
    made.model(next(batches))
    made.run(next(batches))
    made.optimizer.step()
    assert len(made.charged) == 1


def test_a_model_whose_layers_the_loop_combines_is_refused() -> None:
    """What it does between them, here a mean over the batch, is never checked."""
    model = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)).double()
    loop = private(model=model)
    inputs, targets = next(iter(loop.loader))
    inner = model[0](inputs)
    differentiate(functional.cross_entropy(model[1](inner - inner.mean(0)), targets))
    with pytest.raises(InvalidValue, match="calls the model itself"):
        loop.optimizer.step()
    assert len(loop.engine.accountant) == 0


@pytest.mark.parametrize(
    "kind, options, expected",
    [
        (ExponentialNoise, {"gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
        (ExponentialGradClip, {"gamma": 0.5}, [1, 0.5, 0.25, 0.125]),
        (StepNoise, {"step_size": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5]),
        (StepGradClip, {"step_size": 2, "gamma": 0.5}, [1, 1, 0.5, 0.5]),
        (LambdaNoise, {"noise_lambda": lambda epoch: 1 + epoch}, [1, 2, 3, 4]),
        (LambdaGradClip, {"scheduler_function": lambda epoch: 1 + epoch}, [1, 2, 3, 4]),
    ],
)
def test_schedules_are_opacuss(kind: Any, options: dict[str, Any], expected: list[float]) -> None:
    schedule, found = kind(private().optimizer, **options), []
    for _ in range(4):
        by_clip, noise = schedule.optimizer.clip_rule().sensitivity, schedule.optimizer.noise_multiplier
        found.append(noise if kind.attribute == "noise_multiplier" else by_clip)
        schedule.step()
    assert found == expected


def test_a_state_has_no_function_and_no_optimizer() -> None:
    assert set(LambdaNoise(private().optimizer, noise_lambda=lambda epoch: 1.0).state_dict()) == {"last_epoch"}


def test_an_optimizer_without_noise_is_refused() -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        ExponentialNoise(sgd(network()), gamma=0.9)


def test_a_state_moves_the_value_that_was_stated() -> None:
    """A loop that goes on has the noise of one that was never stopped, for the noise that it was told itself."""
    schedule = StepNoise(private().optimizer, step_size=2, gamma=0.5)
    for _ in range(4):
        schedule.step()
    later = StepNoise(private(noise_multiplier=8.0).optimizer, step_size=2, gamma=0.5)
    for _ in range(2):
        later.load_state_dict(schedule.state_dict())
        assert later.optimizer.noise_multiplier == 2.0
    assert later.state_dict() == schedule.state_dict()


def test_a_schedule_without_noise_runs_and_every_such_step_costs_everything() -> None:
    loop = private()
    schedule = LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: float(epoch == 0))
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) < 100
    schedule.step()
    take_steps(loop, 1)
    assert loop.engine.get_epsilon(delta=1e-3) == math.inf


def test_a_value_that_means_nothing_is_refused() -> None:
    loop = private()
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        LambdaNoise(loop.optimizer, noise_lambda=lambda epoch: -1.0)
    with pytest.raises(InvalidValue, match="max_grad_norm"):
        LambdaGradClip(loop.optimizer, scheduler_function=lambda epoch: 0.0)
    with pytest.raises(InvalidValue, match="gamma"):
        ExponentialNoise(loop.optimizer, gamma=float(torch.tensor(float("nan"))))
