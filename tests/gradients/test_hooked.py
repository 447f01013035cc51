"""The engine for loops of one's own. Networks of every kind are in tests/contracts/test_model_zoo.py."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import contributions
from lehr.gradients.hooked import HookedEngine
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import (
    CASES,
    NUM_CLASSES,
    Gain,
    Model,
    Recurrent,
    assert_close,
    assert_same_gradients,
    loss_fn,
    untouched,
)

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def differentiate(loss: Tensor, *, retain_graph: bool = False) -> None:
    """As the user's own loop does it."""
    loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


def images_of(inputs: Tensor, targets: Tensor, *, views: int) -> tuple[Tensor, Tensor]:
    return (inputs.flatten(0, 1), targets.repeat_interleave(views)) if views > 1 else (inputs, targets)


def grads_of(
    engine: HookedEngine, model: nn.Module, inputs: Tensor, targets: Tensor, mask: Tensor | None = None
) -> Any:
    """The gradients of one batch with a mean loss."""
    with engine:
        differentiate(loss_fn(model(inputs), targets).mean())
        return engine.gradients(mask)


def refused(model: nn.Module, inputs: Tensor) -> NotPrivate:
    """The refusal of a model, which is left as it was."""
    before = untouched(model)
    with pytest.raises(NotPrivate) as refusal:
        grads_of(HookedEngine(model), model, inputs, torch.arange(len(inputs)) % 3)
    assert untouched(model) == before
    return refusal.value


def linear() -> nn.Linear:
    return nn.Linear(3, NUM_CLASSES).double()


def four() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 3).double(), torch.arange(4)


@every_case
@pytest.mark.parametrize("views, reduction", [(1, "mean"), (2, "sum")])
@pytest.mark.parametrize("records", [0, 1, 5])
@pytest.mark.parametrize("is_on_gpu", [False, True], ids=["", "stored as on a GPU"])
def test_a_loop_over_records_agrees_and_the_model_is_left_as_it_was(
    case: Any, views: int, records: int, reduction: str, is_on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = contributions._stored
    monkeypatch.setattr(contributions, "_stored", lambda parts, **_: stored(parts, is_on_gpu=is_on_gpu))
    model = case.model()
    before = untouched(model)
    inputs, targets = case.batch(records, views=views)
    mask = torch.arange(records) != 2
    engine = HookedEngine(model, views=views, loss_reduction=reduction)
    images, labels = images_of(inputs, targets, views=views)
    with engine:
        differentiate(functional.cross_entropy(model(images), labels, reduction=reduction))
        found = engine.gradients(mask)
    expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, targets, mask)
    assert_same_gradients(found, expected, records=records)
    assert untouched(model) == before


@every_case
def test_weights_of_views_are_factors_of_their_losses(case: Any) -> None:
    model, weights_BK = case.model(), torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.5, 1.5]]).double()
    images, labels = images_of(*case.batch(3, views=2), views=2)
    found = []
    for is_in_loss in (True, False):
        with HookedEngine(model, views=2, loss_reduction="sum") as engine:
            losses = functional.cross_entropy(model(images), labels, reduction="none")
            differentiate((losses * weights_BK.flatten() if is_in_loss else losses).sum())
            found.append(engine.gradients(weights_BK=None if is_in_loss else weights_BK))
    assert_same_gradients(found[1], found[0], records=3)
    with HookedEngine(model, views=2, loss_reduction="sum") as engine:
        differentiate(functional.cross_entropy(model(images), labels, reduction="sum"))
        with pytest.raises(InvalidValue, match=r"^weights_BK must be"):
            engine.gradients(weights_BK=weights_BK[:2])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_case
def test_a_gpu_agrees_with_a_loop_on_a_cpu(case: Any) -> None:
    inputs, targets = case.batch(5)
    expected = OneByOneEngine(case.model(), loss_fn).gradients(inputs, targets)
    model = case.model().cuda()
    found = grads_of(HookedEngine(model), model, inputs.cuda(), targets.cuda())
    assert_close(found.norms().cpu(), expected.norms(), 1e-9)


def test_the_model_is_left_as_it_was_after_an_exception_in_the_loop() -> None:
    model = CASES["without rule"].model()
    before = untouched(model)

    def loop() -> None:
        with HookedEngine(model):
            model(CASES["without rule"].batch(3)[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert untouched(model) == before


def test_a_plain_training_loop_with_physical_batches_goes_the_way_of_a_loop_over_records() -> None:
    case = CASES["images"]
    models = [case.model(), case.model()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9) for model in models]
    inputs, targets = case.batch(6)
    oracle = OneByOneEngine(models[1], loss_fn)
    engine = HookedEngine(models[0])
    with engine:
        for _ in range(3):
            sums = [torch.zeros_like(parameter) for parameter in models[0].parameters()]
            for part in (slice(4), slice(4, 6)):
                differentiate(loss_fn(models[0](inputs[part]), targets[part]).mean())
                gradients = engine.gradients()
                clipped = gradients.weighted_sum(1 / gradients.norms().clamp_min(0.1))
                sums = [total + value for total, value in zip(sums, clipped.values(), strict=True)]
            expected = oracle.gradients(inputs, targets)
            wanted = expected.weighted_sum(1 / expected.norms().clamp_min(0.1))
            for optimizer, model, grads in zip(optimizers, models, (sums, wanted.values()), strict=True):
                for parameter, grad in zip(model.parameters(), grads, strict=True):
                    parameter.grad = grad
                optimizer.step()
                optimizer.zero_grad()
    for parameter, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert_close(parameter.detach(), other.detach(), 1e-9)


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    model = CASES["sequences"].model()
    inputs, targets = CASES["sequences"].batch(4)
    inputs[1] = float("nan")
    with HookedEngine(model, loss_reduction="sum") as engine:
        differentiate(loss_fn(model(inputs), targets).sum())
        found = engine.gradients()
    assert found.norms()[1] == 0
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=4)


def twice_through_one_graph(model: Any, inputs: Tensor, targets: Tensor) -> None:
    losses = loss_fn(model(inputs), targets)
    differentiate(losses.mean() / 4, retain_graph=True)
    differentiate(losses.mean() * 3 / 4)


def without_gradients_in_between(model: Any, inputs: Tensor, targets: Tensor) -> None:
    with torch.no_grad():
        model(inputs)
    differentiate(loss_fn(model(inputs), targets).mean())
    with torch.no_grad():
        model(inputs[:2])


def part_by_part(model: Any, inputs: Tensor, targets: Tensor) -> None:
    differentiate(loss_fn(model[2](torch.tanh(model[0](inputs))), targets).mean())


def beside_a_copy(model: Any, inputs: Tensor, targets: Tensor) -> None:
    """An average of the weights that is made inside the loop is a model of its own."""
    average = copy.deepcopy(model)
    for parameter in average.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(average(inputs), torch.zeros(4, NUM_CLASSES).double())
    differentiate(loss_fn(model(inputs), targets).mean())


@pytest.mark.parametrize("loop", [twice_through_one_graph, without_gradients_in_between, part_by_part, beside_a_copy])
def test_loops_of_many_kinds(loop: Callable[..., None]) -> None:
    model = nn.Sequential(linear(), nn.Tanh(), nn.Linear(NUM_CLASSES, NUM_CLASSES).double())
    inputs, targets = four()
    with HookedEngine(model) as engine:
        loop(model, inputs, targets)
        found = engine.gradients()
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=4)


def test_several_passes_over_the_same_records_make_one_gradient() -> None:
    model = linear()
    (left, targets), (right, _) = four(), four()
    with HookedEngine(model, num_passes=2) as engine:
        differentiate(loss_fn(model(left) * model(right), targets).mean())
        found = engine.gradients()
    siamese = Model(lambda siamese, left, right: siamese.model(left) * siamese.model(right), model=model)
    expected = OneByOneEngine(siamese, loss_fn).gradients((left, right), targets)
    weights = torch.rand(4).double()
    assert_close(found.norms(), expected.norms(), 1e-10)
    assert_close(found.weighted_sum(weights)["weight"], expected.weighted_sum(weights)["model.weight"], 1e-10)


def a_second_pass(model: nn.Module, engine: HookedEngine) -> Any:
    return model(torch.ones(2, 3).double()) + model(torch.ones(2, 3).double())


def accumulation(model: nn.Module, engine: HookedEngine) -> None:
    for _ in range(2):
        differentiate(model(torch.ones(2, 3).double()).sum())


def gradients_before_the_backward_pass(model: nn.Module, engine: HookedEngine) -> None:
    model(torch.ones(2, 3).double())
    engine.gradients()


def checkpointed(model: Any, engine: HookedEngine) -> None:
    hidden: Any = checkpoint(lambda x: torch.tanh(model[0](x)), torch.randn(4, 3).double(), use_reentrant=False)
    differentiate(model[2](hidden).sum())


REFUSED_LOOPS: dict[str, tuple[Callable[..., Any], str]] = {
    "a second pass that was not announced": (a_second_pass, "num_passes"),
    "accumulation": (accumulation, "loop"),
    "gradients before the backward pass": (gradients_before_the_backward_pass, "loop"),
    "checkpoints": (checkpointed, "loop"),
    "no record axis": (lambda model, engine: model(torch.zeros(())), "inputs"),
    "another engine": (lambda model, engine: HookedEngine(model).attach(), "model"),
}


@pytest.mark.parametrize("loop, name", REFUSED_LOOPS.values(), ids=REFUSED_LOOPS.keys())
def test_loops_that_are_refused(loop: Callable[..., Any], name: str) -> None:
    model = nn.Sequential(linear(), nn.Tanh(), nn.Linear(NUM_CLASSES, NUM_CLASSES).double())
    before = untouched(model)
    with HookedEngine(model) as engine:
        with pytest.raises(InvalidValue) as refusal:
            loop(model, engine)
        assert refusal.value.name == name
        engine.forget()
        differentiate(model(torch.ones(2, 3).double()).sum())
        assert engine.gradients().norms().shape == (2,)
    assert untouched(model) == before


def test_images_that_are_no_whole_number_of_records_are_refused() -> None:
    model = linear()
    with pytest.raises(InvalidValue) as refusal:
        grads_of(HookedEngine(model, views=2), model, torch.randn(3, 3).double(), torch.arange(3))
    assert refusal.value.name == "batch"


def assert_right(model: nn.Module, inputs: Tensor, *, views: int = 1) -> None:
    """The gradients are those of a loop over records, in every batch, and the model is as it was."""
    model, inputs = model.double(), inputs.double()
    targets = torch.arange(len(inputs)) % NUM_CLASSES
    before = untouched(model)
    engine = HookedEngine(model, views=views)
    for records in (len(inputs), 1, 2):
        expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs[:records], targets[:records])
        found = grads_of(engine, model, *images_of(inputs[:records], targets[:records], views=views))
        assert_same_gradients(found, expected, records=records)
    assert untouched(model) == before


def with_token(block: nn.Module | None = None) -> nn.Module:
    """Parameters beside layers, in a model and in a block of it."""

    def run(model: Any, values: Tensor) -> Any:
        tokens = model.token.expand(values.shape[0], 1, -1)
        return model.block(torch.tanh(model.layer(torch.cat([tokens, values], 1)).cumsum(1)) * model.token).mean(1)

    token = nn.Parameter(torch.linspace(-1, 1, 3))
    return Model(run, token=token, layer=nn.Linear(3, 3), block=block or nn.Linear(3, NUM_CLASSES))


def flattened(model: Any, values: Tensor) -> Any:
    return model.layer(values.flatten(0, 1)).unflatten(0, values.shape[:2]).mean(1)


def computed() -> nn.Module:
    centred = Model(lambda _, weight: weight - weight.mean(1, keepdim=True))
    return parametrize.register_parametrization(nn.Linear(3, NUM_CLASSES), "weight", centred)


def scaled() -> nn.Module:
    def run(model: Any, x: Tensor) -> Any:
        return model.layer(x * model.scale) * model.scale.sum()

    model = Model(run, layer=nn.Linear(3, NUM_CLASSES), scale=torch.linspace(1, 2, 3))
    return nn.Sequential(nn.Linear(3, 3), model)


RUN_RIGHT: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "a weight that is used behind its layer's back": (
        lambda: Model(
            lambda model, x: functional.linear(model.layer(x), model.layer.weight),
            layer=nn.Linear(NUM_CLASSES, NUM_CLASSES),
        ),
        (NUM_CLASSES,),
    ),
    "a parameter beside layers": (with_token, (2, 3)),
    "records folded into another axis": (lambda: Model(flattened, layer=nn.Linear(3, NUM_CLASSES)), (2, 3)),
    "a computed weight": (computed, (3,)),
    "a buffer that the backward pass needs": (scaled, (3,)),
}


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("build, shape", RUN_RIGHT.values(), ids=RUN_RIGHT.keys())
def test_models_of_many_kinds(build: Callable[[], nn.Module], shape: tuple[int, ...], views: int) -> None:
    assert_right(build(), torch.randn(4, *[2] * (views > 1), *shape), views=views)


def test_a_layer_without_a_rule_that_is_given_no_records_is_run_for_each() -> None:
    def run(model: Any, x: Tensor) -> Any:
        return model.layer(x) + model.gain(torch.ones(NUM_CLASSES, dtype=x.dtype))

    assert_right(Model(run, layer=nn.Linear(3, NUM_CLASSES), gain=Gain(NUM_CLASSES)), torch.randn(4, 3))


@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_layers_are_copied_for_each_record(batch_first: bool) -> None:
    assert_right(Recurrent(nn.LSTM(3, 4, batch_first=batch_first)), torch.randn(4, 5, 3))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_time_before_records_is_run_alone_also_where_both_are_as_long(length: int) -> None:
    model = Model(lambda model, x: model.layer(x.transpose(0, 1)).mean(0), layer=nn.Linear(3, NUM_CLASSES))
    assert_right(model, torch.randn(4, length, 3))


def test_a_penalty_on_a_weight_is_refused_and_no_grad_is_written() -> None:
    model = linear()
    inputs, targets = four()
    with HookedEngine(model):
        loss = loss_fn(model(inputs), targets).mean() + model.weight.square().sum()
        with pytest.raises(NotPrivate) as refusal:
            differentiate(loss)
    assert refusal.value.layer == "weight"
    assert model.weight.grad is None


def around(function: Any, before: Any = lambda _, values: values, **buffers: Tensor) -> Any:
    """A function of all records between two layers, and one of the model and its records before both."""
    run = lambda model, x: model.second(function(model.first(before(model, x))))  # noqa: E731
    return Model(run, first=nn.Linear(3, 4), second=nn.Linear(4, NUM_CLASSES), **buffers)


def branching() -> nn.Module:
    model: Any = with_token()
    return Model(lambda own, x: own.inner(x if x.sum() > 0 else -x), inner=model, gain=nn.Parameter(torch.ones(1)))


def replaced(model: Any, values: Tensor) -> Tensor:
    model.centre = 0.9 * model.centre + 0.1 * values.mean(0)
    return values


def written(model: Any, values: Tensor) -> Tensor:
    model.centre.mul_(0.9).add_(0.1 * values.mean(0))
    return values


def writing_over(model: Any, values: Tensor) -> Any:
    values = values * 1
    return (model.layer(values) + values.zero_()).mean(1)


def behind_a_gain_of_zero() -> nn.Module:
    model = around(lambda hidden: hidden - hidden.mean(0))
    nn.init.zeros_(model.second.weight)
    return nn.Sequential(model, nn.Linear(NUM_CLASSES, NUM_CLASSES))


MEAN, CENTRE = "the model itself (Model)", {"centre": torch.zeros(2, 3)}
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "mixed records": (lambda: around(lambda hidden: hidden - hidden.mean(0)), "second (Linear)"),
    "mixed records behind a gain of zero": (behind_a_gain_of_zero, "0.second (Linear)"),
    "a loss over all records": (lambda: Model(lambda model, x: model.token(x).mean(), token=Gain(3)), MEAN),
    "a branch that vmap cannot run": (branching, MEAN),
    "the same for all": (lambda: around(lambda hidden: hidden * 0), MEAN),
    "infinite": (lambda: around(lambda hidden: hidden / 0), MEAN),
    "not numbers": (lambda: around(lambda hidden: hidden.sqrt() + (-hidden).sqrt()), MEAN),
    "a buffer that is replaced": (lambda: around(torch.tanh, replaced, **CENTRE), f"centre of {MEAN}"),
    "a buffer that is written to": (lambda: around(torch.tanh, written, **CENTRE), f"centre of {MEAN}"),
    "an input that is written over": (lambda: Model(writing_over, layer=nn.Linear(3, 3)), "layer (Linear)"),
}


@pytest.mark.parametrize("build, layer", REFUSED.values(), ids=REFUSED.keys())
def test_models_that_are_refused(build: Callable[[], nn.Module], layer: str) -> None:
    assert refused(build(), torch.randn(4, 2, 3)).layer == layer


def test_a_refused_model_does_not_disturb_the_next() -> None:
    refused(branching(), torch.randn(4, 2, 3))
    assert_right(with_token(), torch.randn(4, 2, 3))


def test_a_buffer_that_learns_is_found_in_batches_of_one_record() -> None:
    assert refused(around(torch.tanh, written, **CENTRE), torch.randn(1, 2, 3)).layer == f"centre of {MEAN}"


@pytest.mark.parametrize("first", [torch.zeros(4, 3), torch.full((4, 3), torch.nan)], ids=["equal", "not numbers"])
def test_mixing_is_found_whatever_the_records_of_the_first_batch_are(first: Tensor) -> None:
    assert refused(around(lambda hidden: hidden - hidden.mean(0)), first).layer == "second (Linear)"


def test_mixing_in_training_only_is_found_when_training_begins() -> None:
    model = around(torch.tanh, lambda model, x: x - x.mean(0) if model.training else x).eval()
    engine = HookedEngine(model)
    assert grads_of(engine, model, torch.randn(4, 3), torch.arange(4)).norms().isfinite().all()
    with pytest.raises(NotPrivate):
        grads_of(engine, model.train(), torch.randn(4, 3), torch.arange(4))


@pytest.mark.parametrize(
    "function", [lambda hidden: hidden.abs().log(), lambda hidden: hidden.float().to(hidden.dtype)]
)
def test_a_model_for_numbers_of_another_kind_is_tried_on_them(function: Any) -> None:
    model = around(function)
    assert grads_of(HookedEngine(model), model, torch.rand(4, 3), torch.arange(4)).norms().isfinite().all()


def test_an_error_of_the_model_itself_is_raised_first() -> None:
    model = linear()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        grads_of(HookedEngine(model), model, torch.randn(4, 7).double(), torch.arange(4))


def test_a_buffer_that_counts_batches_is_accepted_and_counts_them() -> None:
    model = around(torch.tanh, lambda model, x: x + 0 * model.seen.add_(1), seen=torch.zeros(()))
    grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))
    assert model.seen == 1


@pytest.mark.parametrize("path", ["", "0"])
def test_a_forward_that_was_put_on_a_layer_itself_is_refused(path: str) -> None:
    model = nn.Sequential(nn.Linear(3, NUM_CLASSES), nn.Tanh())
    layer = model.get_submodule(path)
    own = layer.forward
    layer.forward = lambda values: 3 * own(values)
    assert refused(model, torch.randn(4, 3)).layer.startswith(path or "the model itself")


@pytest.mark.parametrize("is_inside", [True, False])
def test_batch_norm_that_is_put_into_training_is_refused_and_learns_nothing(is_inside: bool) -> None:
    model = nn.Sequential(nn.Linear(3, NUM_CLASSES), nn.BatchNorm1d(NUM_CLASSES)).eval()
    before = {name: value.clone() for name, value in model.named_buffers()}
    engine = HookedEngine(model)
    if is_inside:
        engine.attach()
    model.train()
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        model(torch.randn(4, 3)) if is_inside else engine.attach()
    engine.detach()
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_a_parameter_that_is_thawed_later_is_refused() -> None:
    model = linear()
    model.bias.requires_grad_(False)
    engine = HookedEngine(model)
    model.bias.requires_grad_(True)
    with pytest.raises(InvalidValue) as refusal:
        engine.attach()
    assert refusal.value.given == ["bias"]


def test_under_autocast_the_margin_is_that_of_the_narrow_type() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, NUM_CLASSES))
    inputs, targets = torch.randn(4, 3), torch.arange(4)
    with HookedEngine(model) as engine:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = model(inputs)
        differentiate(loss_fn(outputs.float(), targets).mean())
        found = engine.gradients()
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    assert found.margin > expected.margin
    assert found.norms().dtype is torch.float32
    assert torch.allclose(found.norms(), expected.norms(), rtol=0.05)
