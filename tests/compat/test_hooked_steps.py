"""A loop of somebody else's is charged before a value leaves, has its noise once, and runs whom it drew."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lehr.clipping.flat import FlatClip
from lehr.clipping.per_coordinate import PerCoordinateClip
from lehr.compat.hooked_steps import DrawnBatches, Draws, HookedSteps, Pays
from lehr.errors import InvalidValue
from lehr.gradients.hooked import HookedEngine
from lehr.interfaces import Clipping
from lehr.mechanism import Mechanism
from lehr.noise.isotropic import IsotropicNoise
from lehr.planning.plan import Plan
from lehr.rng import RunKey
from lehr.sampling import PoissonSampling

HELD = 30
INPUTS = torch.linspace(-1, 1, 3 * HELD).reshape(HELD, 3)
TARGETS = torch.arange(HELD) % 2


class Account:
    """Notes what was paid; ``allows`` is how many steps it has."""

    def __init__(self, allows: int = 100) -> None:
        self.paid: list[int] = []
        self.allows = allows

    def pay(self, step: int) -> int:
        if len(self.paid) >= self.allows:
            raise InvalidValue("step", allowed="paid for", given=step)
        self.paid.append(step)
        return 0


def a_mechanism(*, batch: float = 10, sigma: float = 1.0, clipping: Clipping | None = None) -> Mechanism:
    plan = Plan(noise_multiplier=sigma, expected_batch_size=batch, records=HELD, steps=50, delta=1e-4)
    sampling = PoissonSampling(expected_batch_size=batch, records=HELD)
    return Mechanism(sampling=sampling, clipping=clipping or FlatClip(0.1), noise=IsotropicNoise(), plan=plan)


def some_steps(
    model: nn.Module,
    mechanism: Mechanism,
    *,
    pays: Pays | None = None,
    physical_batch: int = 100,
    key: bytes = b"k" * 32,
) -> HookedSteps:
    draws = Draws(mechanism=mechanism, key=RunKey(key), attempt=0, num_held=HELD, physical_batch=physical_batch)
    return HookedSteps(HookedEngine(model), model, mechanism, pays=pays or Account(), draws=draws)


def a_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def run_parts(steps: HookedSteps, model: nn.Module) -> None:
    for part in steps.parts():
        cross_entropy(model(INPUTS[part.places]), TARGETS[part.places]).backward()  # type: ignore[no-untyped-call]
        steps.add()


def one_step(steps: HookedSteps, model: nn.Module) -> dict[str, Tensor]:
    with steps.engine:
        run_parts(steps, model)
    return steps.release().values


def test_physical_batches_add_up_to_the_same_sum_and_have_noise_once() -> None:
    found = []
    for physical_batch in (100, 3, 1):
        model = a_model()
        found.append(one_step(some_steps(model, a_mechanism(), physical_batch=physical_batch), model))
    for other in found[1:]:
        for name, value in found[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_the_noise_has_the_scale_that_is_charged() -> None:
    """Of draws of nobody what is released is noise alone; twice and half the scale would be seen."""
    model = nn.Sequential(nn.Linear(3, 400), nn.Linear(400, 2))
    values = one_step(some_steps(model, a_mechanism(batch=1e-6, sigma=2.0)), model)
    flat = torch.cat([value.flatten() for value in values.values()])
    assert float(flat.std()) == pytest.approx(2.0 * 0.1, rel=0.1)


def test_a_draw_of_nobody_runs_one_record_that_does_not_count() -> None:
    model = a_model()
    steps = some_steps(model, a_mechanism(batch=1e-6, sigma=1e-9))
    assert [part.is_counted for part in steps.parts()] == [False]
    assert all(float(value.abs().max()) < 1e-8 for value in one_step(steps, model).values())


def test_a_draw_of_nobody_needs_no_pass_at_all() -> None:
    account = Account()
    steps = some_steps(a_model(), a_mechanism(batch=1e-6), pays=account)
    assert all(bool(value.any()) for value in steps.release().values.values())
    assert account.paid == [0]


def test_nothing_is_released_that_is_not_paid_for() -> None:
    model = a_model()
    steps = some_steps(model, a_mechanism(), pays=Account(allows=1))
    one_step(steps, model)
    with pytest.raises(InvalidValue, match="paid for"):
        one_step(steps, model)
    assert steps.step == 1


@pytest.mark.parametrize("times", [0, 2])
def test_records_that_are_left_out_or_run_twice_are_noticed_before_a_charge(times: int) -> None:
    model, account = a_model(), Account()
    steps = some_steps(model, a_mechanism(), pays=account)
    with steps.engine:
        for _ in range(times):
            run_parts(steps, model)
    with pytest.raises(InvalidValue, match="exactly once"):
        steps.release()
    assert account.paid == []


def test_a_step_that_is_given_up_leaves_nothing_in_the_next() -> None:
    model = a_model()
    steps = some_steps(model, a_mechanism())
    with steps.engine:
        run_parts(steps, model)
    steps.forget()
    again = one_step(steps, model)
    straight = one_step(some_steps(model, a_mechanism()), model)
    assert all(torch.equal(again[name], straight[name]) for name in straight)


def test_the_optimizer_finds_the_mean_over_the_expected_batch() -> None:
    model = a_model()
    steps = some_steps(model, a_mechanism(batch=10))
    with steps.engine:
        run_parts(steps, model)
    released = steps.release()
    steps.write(released)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, (released.values[name] / 10).to(parameter.dtype))


def test_draws_follow_from_the_key_and_the_step_alone() -> None:
    first, same, other = (some_steps(a_model(), a_mechanism(), key=key) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    drawn = [[steps.draws.places(step).tolist() for step in range(20)] for steps in (first, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len({tuple(places) for places in drawn[0]}) > 10


def test_a_loader_may_read_ahead_and_ends_where_the_plan_does() -> None:
    steps = some_steps(a_model(), a_mechanism(), physical_batch=4)
    batches = DrawnBatches(steps.draws, next_step=lambda: 2, last_step=5, steps=10)
    expected = [part.places for step in range(2, 5) for part in steps.draws.parts(step)]
    assert list(batches) == expected
    assert len(batches) == 10


class _Peeks(FlatClip):
    """Says of itself that nothing holds for it."""

    unproven = "it peeks"


@pytest.mark.parametrize("clipping", [PerCoordinateClip({"0.weight": torch.ones(4, 3)}), _Peeks(0.1)])
def test_clips_that_need_more_than_norms_are_refused(clipping: Clipping) -> None:
    with pytest.raises(InvalidValue, match="clipping"):
        some_steps(a_model(), a_mechanism(clipping=clipping))
