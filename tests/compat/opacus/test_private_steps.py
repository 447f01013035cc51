from __future__ import annotations

import pytest
import torch
from torch import nn

from lehr.clipping import FlatClip
from lehr.compat.opacus.draws import Draws, Part
from lehr.compat.opacus.private_steps import Listener, PrivateSteps, put_means, step_event
from lehr.errors import InvalidValue
from lehr.events import Gaussian, PoissonSampled
from lehr.interfaces import ReleasedSum
from lehr.sampling import PoissonSampling
from tests.compat.opacus.loops import differentiate

SAMPLING = PoissonSampling(expected_batch_size=4, records=16)


class Steps:
    """A model with its steps, and what was charged for them."""

    def __init__(self) -> None:
        self.model = nn.Linear(3, 1).double()
        self.charged: list[PoissonSampled] = []
        self.draws = Draws()
        listener = Listener(self.model)
        listener.attach()
        self.steps = PrivateSteps(listener, draws=self.draws, sampling=SAMPLING, charge=self.charged.append)

    def work_on(self, part: Part, *, rows: int | None = None) -> None:
        self.draws.begin(part)
        inputs = torch.ones(part.num_records if rows is None else rows, 3, dtype=torch.float64)
        differentiate(self.model(inputs).mean())


def part_of(draws: Draws, **changed: object) -> Part:
    return Part(**{"randomness": draws.fresh(), "num_records": 2, "is_last": True, **changed})  # type: ignore[arg-type]


def test_a_release_is_charged_before_its_noise_is_drawn() -> None:
    made = Steps()

    def refuse(_: PoissonSampled) -> None:
        raise RuntimeError("the disk is full")

    made.steps._charge = refuse
    made.work_on(part_of(made.draws))
    assert made.steps.collect(FlatClip(1.0))
    with pytest.raises(RuntimeError, match="disk"):
        made.steps.release(noise_multiplier=1.0)


def test_the_parts_of_a_draw_are_clipped_by_one_rule() -> None:
    made = Steps()
    first = part_of(made.draws, is_last=False)
    made.work_on(first)
    assert not made.steps.collect(FlatClip(0.5))
    made.work_on(Part(randomness=first.randomness, num_records=1, is_last=True))
    assert made.steps.collect(FlatClip(100.0))
    released = made.steps.release(noise_multiplier=1e-9)
    norm = torch.cat([value.flatten() for value in released.values.values()]).norm()
    assert float(norm) == pytest.approx(3 * 0.5, rel=1e-3)
    assert released.noise_std == pytest.approx(0.5e-9)


def test_a_draw_that_was_left_is_not_released() -> None:
    made = Steps()
    made.work_on(part_of(made.draws, is_last=False))
    made.steps.collect(FlatClip(1.0))
    made.work_on(part_of(made.draws))
    made.steps.collect(FlatClip(1.0))
    released = made.steps.release(noise_multiplier=1e-9)
    assert float(torch.cat([value.flatten() for value in released.values.values()]).norm()) == pytest.approx(
        2, rel=1e-3
    )


def test_half_a_draw_cannot_be_released() -> None:
    made = Steps()
    made.work_on(part_of(made.draws, is_last=False))
    made.steps.collect(FlatClip(1.0))
    with pytest.raises(InvalidValue, match="whole of a draw"):
        made.steps.release(noise_multiplier=1.0)
    assert made.charged == []


def test_records_that_were_not_drawn_are_refused() -> None:
    made = Steps()
    made.work_on(part_of(made.draws), rows=3)
    with pytest.raises(InvalidValue, match="another number of records"):
        made.steps.collect(FlatClip(1.0))


def test_a_record_that_is_made_up_counts_for_nothing() -> None:
    made = Steps()
    made.work_on(part_of(made.draws, num_records=1, is_made_up=True))
    made.steps.collect(FlatClip(1.0))
    released = made.steps.release(noise_multiplier=1e-9)
    assert all(float(value.abs().max()) < 1e-6 for value in released.values.values())


def test_forgetting_drops_a_backward_pass_and_keeps_a_forward_pass() -> None:
    made = Steps()
    made.work_on(part_of(made.draws))
    made.steps.forget()
    made.draws.begin(part_of(made.draws))
    loss = made.model(torch.ones(2, 3, dtype=torch.float64)).mean()
    made.steps.forget()
    differentiate(loss)
    assert made.steps.collect(FlatClip(1.0))


def test_the_event_has_the_sampling_and_the_noise() -> None:
    assert step_event(SAMPLING, 1.5) == PoissonSampled(0.25, Gaussian(1.5))
    assert step_event(SAMPLING, 0.0) == PoissonSampled(0.25, Gaussian(0.0))


def test_frozen_parameters_get_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    values = {name: torch.ones_like(value) for name, value in model.named_parameters() if value.requires_grad}
    put_means(model, ReleasedSum(values=values), divisor=4.0)
    assert model[0].weight.grad is None
    assert torch.equal(torch.as_tensor(model[1].bias.grad), torch.full((1,), 0.25))


def test_a_batch_that_was_run_and_left_does_not_stop_the_next() -> None:
    made = Steps()
    made.draws.begin(part_of(made.draws))
    made.model(torch.ones(2, 3, dtype=torch.float64))
    made.work_on(part_of(made.draws))
    assert made.steps.collect(FlatClip(1.0))


def test_two_batches_are_not_accumulated_by_the_way() -> None:
    made = Steps()
    made.work_on(part_of(made.draws))
    with pytest.raises(InvalidValue, match="after the backward pass"):
        made.work_on(part_of(made.draws))


def test_a_model_whose_parts_the_loop_puts_together_is_refused() -> None:
    """What it does between them, here a mean over the batch, is never tried."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)).double()
    draws, charged = Draws(), []  # type: ignore[var-annotated]
    listener = Listener(model)
    listener.attach()
    steps = PrivateSteps(listener, draws=draws, sampling=SAMPLING, charge=charged.append)
    draws.begin(part_of(draws))
    inner = model[0](torch.ones(2, 3, dtype=torch.float64))
    differentiate(model[1](inner - inner.mean(0)).mean())
    with pytest.raises(InvalidValue, match="calls the model itself"):
        steps.collect(FlatClip(1.0))
    assert not charged
