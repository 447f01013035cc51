from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lehr.compat.opacus import DPOptimizer, GradSampleModule, PrivacyEngine, UnprovenWarning
from lehr.errors import InvalidValue
from tests.compat.opacus.loops import clipped_mean, differentiate, network, private, records, take_step, take_steps


def test_noise_has_the_stated_standard_deviation() -> None:
    """Zero inputs leave the gradient of the first weight to the noise alone."""
    loop = private(noise_multiplier=2.0, max_grad_norm=0.5, batch_size=8, model=nn.Linear(6, 3).double())
    inputs, targets = next(iter(loop.loader))
    loop.optimizer.original_optimizer.param_groups[0]["lr"] = 0.0
    noise = []
    for _ in range(30):
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


def test_gradients_may_be_cleared_between_forward_and_backward() -> None:
    loop = private()
    inputs, targets = next(iter(loop.loader))
    loss = functional.cross_entropy(loop.model(inputs), targets)
    loop.optimizer.zero_grad()
    differentiate(loss)
    loop.optimizer.step()
    assert len(loop.engine.accountant) == 1


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


def test_an_optimizer_that_looks_twice_is_refused() -> None:
    model = network()
    loader = torch.utils.data.DataLoader(records(), batch_size=8)
    with pytest.raises(InvalidValue, match="closure"):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.LBFGS(model.parameters()),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )


def test_frozen_parameters_stay_as_they_are() -> None:
    model = network()
    model[0].requires_grad_(False)  # type: ignore[index]
    before = model[0].weight.detach().clone()  # type: ignore[index]
    loop = private(model=model)
    take_steps(loop, 2)
    assert torch.equal(model[0].weight, before)  # type: ignore[index]
    assert len(loop.optimizer.params) == 2


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
    model = network()
    differentiate(functional.cross_entropy(model(records().tensors[0]), records().tensors[1]))
    model[0].requires_grad_(False)  # type: ignore[index]
    before = model[0].weight.detach().clone()  # type: ignore[index]
    loop = private(model=model)
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(loop.model(inputs), targets))
    loop.optimizer.step()
    assert torch.equal(model[0].weight, before)  # type: ignore[index]


def test_a_private_optimizer_is_not_copied() -> None:
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(private().optimizer)


def by_hand(**options: Any) -> tuple[Any, DPOptimizer]:
    model = GradSampleModule(nn.Linear(6, 3).double())
    settings: Any = {"noise_multiplier": 0.0, "max_grad_norm": 0.5, "expected_batch_size": 10, "accept_unproven": True}
    return model, hand_built(torch.optim.SGD(model.parameters(), lr=0.0), **{**settings, **options})


def hand_built(optimizer: torch.optim.Optimizer, **settings: Any) -> DPOptimizer:
    with pytest.warns(UnprovenWarning, match="built by hand"):
        return DPOptimizer(optimizer, **settings)


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


def test_one_that_was_built_by_hand_adds_fresh_noise_to_every_batch_and_takes_each_once() -> None:
    model, optimizer = by_hand(noise_multiplier=2.0)
    noise = []
    for _ in range(300):
        differentiate(functional.cross_entropy(model(torch.zeros(4, 6).double()), torch.zeros(4, dtype=torch.long)))
        optimizer.step()
        noise.append(model.weight.grad.flatten())
    assert float(torch.cat(noise).std()) == pytest.approx(2.0 * 0.5 / 10, rel=0.06)
    assert not torch.equal(noise[0], noise[1])
    with pytest.raises(InvalidValue, match="backward"):
        optimizer.step()


def test_one_that_was_built_by_hand_repeats_its_noise_only_with_a_generator() -> None:
    found = []
    for generator in (torch.Generator().manual_seed(1), torch.Generator().manual_seed(1), None):
        model, optimizer = by_hand(noise_multiplier=1.0, generator=generator)
        differentiate(model(torch.zeros(4, 6).double()).mean())
        optimizer.step()
        found.append(model.weight.grad)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_parameters_that_nobody_listens_to_are_refused() -> None:
    model = network()
    settings: Any = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 4, "accept_unproven": True}
    optimizer = hand_built(torch.optim.SGD(model.parameters(), lr=0.1), **settings)
    differentiate(functional.cross_entropy(model(records()[:4][0]), records()[:4][1]))
    with pytest.raises(InvalidValue, match="GradSampleModule"):
        optimizer.step()


def test_none_is_built_by_hand_over_a_model_whose_steps_are_counted() -> None:
    loop = private()
    settings: Any = {"noise_multiplier": 0.0, "max_grad_norm": 1.0, "expected_batch_size": 4, "accept_unproven": True}
    other = hand_built(loop.optimizer.original_optimizer, **settings)
    inputs, targets = next(iter(loop.loader))
    differentiate(functional.cross_entropy(loop.model(inputs), targets))
    with pytest.raises(InvalidValue, match="make_private"):
        other.step()
