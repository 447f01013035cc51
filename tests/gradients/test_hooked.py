from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from lehr.errors import InvalidValue, NotPrivate
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


def linear() -> nn.Linear:
    return nn.Linear(3, NUM_CLASSES).double()


@every_case
@pytest.mark.parametrize("views, reduction", [(1, "mean"), (2, "sum")])
@pytest.mark.parametrize("records", [0, 1, 5])
def test_the_oracle_agrees(case: Any, views: int, records: int, reduction: str) -> None:
    model = case.model()
    inputs, targets = case.batch(records, views=views)
    mask = torch.arange(records) != 2
    engine = HookedEngine(model, views=views, loss_reduction=reduction)
    images, labels = images_of(inputs, targets, views=views)
    with engine:
        differentiate(functional.cross_entropy(model(images), labels, reduction=reduction))
        found = engine.gradients(mask)
    expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, targets, mask)
    assert_same_gradients(found, expected, records=records)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_case
def test_a_gpu_agrees_with_the_oracle_on_a_cpu(case: Any) -> None:
    inputs, targets = case.batch(5)
    expected = OneByOneEngine(case.model(), loss_fn).gradients(inputs, targets)
    model = case.model().cuda()
    found = grads_of(HookedEngine(model), model, inputs.cuda(), targets.cuda())
    assert_close(found.norms().cpu(), expected.norms(), 1e-9)


@every_case
def test_the_model_is_as_it_was_afterwards_and_no_grad_was_written(case: Any) -> None:
    model = case.model()
    before = untouched(model)
    grads_of(HookedEngine(model), model, *case.batch(3))
    assert untouched(model) == before


@every_case
def test_the_model_is_as_it_was_after_an_exception_in_the_loop(case: Any) -> None:
    model = case.model()
    before = untouched(model)
    inputs, targets = case.batch(3)

    def loop() -> None:
        with HookedEngine(model):
            loss_fn(model(inputs), targets).mean()
            raise RuntimeError("in the loop")

    with pytest.raises(RuntimeError, match="in the loop"):
        loop()
    assert untouched(model) == before


def test_a_plain_training_loop_with_physical_batches_goes_the_way_of_the_oracle() -> None:
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
    case = CASES["sequences"]
    model = case.model()
    inputs, targets = case.batch(4)
    inputs[1] = float("nan")
    with HookedEngine(model, loss_reduction="sum") as engine:
        differentiate(loss_fn(model(inputs), targets).sum())
        found = engine.gradients()
    expected = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    assert found.norms()[1] == 0
    assert_same_gradients(found, expected, records=4)


def test_computed_weights_are_trained_through_their_computation() -> None:
    model = linear()
    parametrize.register_parametrization(
        model, "weight", Model(lambda _, weight: weight - weight.mean(1, keepdim=True))
    )
    inputs, targets = torch.randn(4, 3).double(), torch.arange(4)
    before = untouched(model)
    found = grads_of(HookedEngine(model), model, inputs, targets)
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=4)
    assert untouched(model) == before


def test_two_backward_passes_through_one_graph_add_up() -> None:
    model = linear()
    inputs, targets = torch.randn(4, 3).double(), torch.arange(4)
    with HookedEngine(model) as engine:
        losses = loss_fn(model(inputs), targets)
        differentiate(losses.mean() / 4, retain_graph=True)
        differentiate(losses.mean() * 3 / 4)
        found = engine.gradients()
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=4)


def test_several_passes_over_the_same_records_make_one_gradient() -> None:
    model = linear()
    left, right, targets = torch.randn(4, 3).double(), torch.randn(4, 3).double(), torch.arange(4)
    with HookedEngine(model, num_passes=2) as engine:
        differentiate(loss_fn(model(left) * model(right), targets).mean())
        found = engine.gradients()

    siamese = Model(lambda siamese, left, right: siamese.model(left) * siamese.model(right), model=model)
    expected = OneByOneEngine(siamese, loss_fn).gradients((left, right), targets)
    weights = torch.rand(4).double()
    assert_close(found.norms(), expected.norms(), 1e-10)
    assert_close(found.weighted_sum(weights)["weight"], expected.weighted_sum(weights)["model.weight"], 1e-10)


def test_a_second_pass_that_was_not_announced_is_refused() -> None:
    model = linear()
    with HookedEngine(model), pytest.raises(InvalidValue, match="num_passes"):
        model(torch.randn(2, 3).double()) + model(torch.randn(2, 3).double())


def test_inputs_without_the_record_axis_are_refused() -> None:
    model = linear()
    with HookedEngine(model), pytest.raises(InvalidValue, match="record axis"):
        model(torch.zeros(()))


def test_accumulation_without_asking_for_the_gradients_is_refused() -> None:
    model = linear()
    with HookedEngine(model) as engine:
        differentiate(model(torch.randn(2, 3).double()).sum())
        with pytest.raises(InvalidValue, match=r"gradients\(\) is called between"):
            model(torch.randn(2, 3).double())
        engine.forget()
        differentiate(model(torch.randn(2, 3).double()).sum())
        assert engine.gradients().norms().shape == (2,)


def test_a_pass_without_gradients_does_not_count() -> None:
    case = CASES["images"]
    model = case.model()
    inputs, targets = case.batch(3)
    with HookedEngine(model) as engine:
        with torch.no_grad():
            model(inputs)
        differentiate(loss_fn(model(inputs), targets).mean())
        with torch.no_grad():
            model(inputs[:2])
        found = engine.gradients()
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=3)


def test_parts_of_the_model_may_be_called_by_themselves() -> None:
    model = nn.Sequential(linear(), nn.Tanh(), nn.Linear(NUM_CLASSES, NUM_CLASSES).double())
    inputs, targets = torch.randn(4, 3).double(), torch.arange(4)
    with HookedEngine(model) as engine:
        differentiate(loss_fn(model[2](torch.tanh(model[0](inputs))), targets).mean())
        found = engine.gradients()
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=4)


def test_gradients_before_the_backward_pass_are_refused() -> None:
    model = linear()
    with HookedEngine(model) as engine:
        model(torch.randn(2, 3).double())
        with pytest.raises(InvalidValue, match="no backward pass"):
            engine.gradients()


def test_images_that_are_no_whole_number_of_records_are_refused() -> None:
    model = linear()
    with pytest.raises(InvalidValue, match="2 views of every record"):
        grads_of(HookedEngine(model, views=2), model, torch.randn(3, 3).double(), torch.arange(3))


def test_two_engines_do_not_attach_to_one_model() -> None:
    model = linear()
    before = untouched(model)
    with HookedEngine(model):
        other = HookedEngine(model)
        with pytest.raises(InvalidValue, match="no engine is attached"):
            other.attach()
    assert untouched(model) == before


def test_an_average_of_the_weights_that_is_copied_inside_the_loop_is_a_model_of_its_own() -> None:
    case = CASES["without rule"]
    model = case.model()
    inputs, targets = case.batch(3)
    with HookedEngine(model) as engine:
        average = copy.deepcopy(model)
        for parameter in average.parameters():
            nn.init.zeros_(parameter)
        assert torch.equal(average(inputs), torch.zeros(3, NUM_CLASSES).double())
        differentiate(loss_fn(model(inputs), targets).mean())
        found = engine.gradients()
    assert_same_gradients(found, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=3)


def assert_right(model: nn.Module, inputs: Tensor, *, views: int = 1) -> None:
    """The gradients are those of the oracle, in every batch, and the model is as it was."""
    model, inputs = model.double(), inputs.double()
    targets = torch.arange(len(inputs)) % NUM_CLASSES
    before = untouched(model)
    engine = HookedEngine(model, views=views)
    for records in (len(inputs), 1, 2):
        expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs[:records], targets[:records])
        found = grads_of(engine, model, *images_of(inputs[:records], targets[:records], views=views))
        assert_same_gradients(found, expected, records=records)
    assert untouched(model) == before


@pytest.mark.parametrize("views", [1, 2])
def test_a_weight_that_is_used_behind_its_layers_back_is_copied_for_each_record(views: int) -> None:
    layer = nn.Linear(NUM_CLASSES, NUM_CLASSES)
    model = Model(lambda model, x: functional.linear(model.layer(x), model.layer.weight), layer=layer)
    assert_right(model, torch.randn(4, *[2] * (views > 1), NUM_CLASSES), views=views)


def test_a_layer_without_a_rule_that_is_given_no_records_is_run_for_each() -> None:
    def run(model: Any, x: Tensor) -> Any:
        return model.layer(x) + model.gain(torch.ones(NUM_CLASSES, dtype=x.dtype))

    assert_right(Model(run, layer=nn.Linear(3, NUM_CLASSES), gain=Gain(NUM_CLASSES)), torch.randn(4, 3))


def test_a_penalty_on_a_weight_is_refused_and_no_grad_is_written() -> None:
    model = linear()
    with HookedEngine(model):
        loss = loss_fn(model(torch.randn(4, 3).double()), torch.arange(4)).mean() + model.weight.square().sum()
        with pytest.raises(NotPrivate, match=r"weight.*outside the forward pass"):
            differentiate(loss)
    assert model.weight.grad is None


class ClassToken(nn.Module):
    """Parameters beside layers, in a model and in a block of it, and a dropout that drops nothing."""

    def __init__(self, block: nn.Module | None = None) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.linspace(-1, 1, 3))
        self.layer = nn.Linear(3, 3)
        self.block = block or nn.Linear(3, NUM_CLASSES)

    def forward(self, values: Tensor) -> Tensor:
        tokens = self.token.expand(values.shape[0], 1, -1)
        mixed = torch.tanh(self.layer(torch.cat([tokens, values], 1)).cumsum(1))
        return self.block(mixed * self.token)  # type: ignore[no-any-return]


@pytest.mark.parametrize("views", [1, 2])
def test_a_parameter_beside_layers_is_copied_for_each_record(views: int) -> None:
    class Mean(ClassToken):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values).mean(1)

    block = ClassToken(nn.Conv1d(4, NUM_CLASSES, 1))
    inputs = torch.randn(4, *[2] * (views > 1), 2, 3)
    assert_right(Mean(), inputs, views=views)
    assert_right(
        nn.Sequential(ClassToken(nn.Linear(3, 3)), block, nn.Flatten(2), Model(lambda _, x: x.mean(-1))),
        inputs,
        views=views,
    )


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_are_copied_for_each_record(kind: Any, batch_first: bool) -> None:
    assert_right(Recurrent(kind(3, 4, batch_first=batch_first)), torch.randn(4, 5, 3))


def test_a_model_that_vmap_cannot_run_is_refused_by_name_and_the_next_is_not_disturbed() -> None:
    class Branches(ClassToken):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values if values.sum() > 0 else -values).mean(1)

    model = Branches()
    with pytest.raises(NotPrivate, match=r"the model itself \(Branches\).*vmap"):
        grads_of(HookedEngine(model), model, torch.randn(4, 2, 3), torch.arange(4))
    assert_right(ClassToken(nn.Sequential(nn.Flatten(), nn.Linear(9, NUM_CLASSES))), torch.randn(4, 2, 3))


def test_a_loss_over_all_records_inside_a_module_with_copies_is_refused_by_name() -> None:
    class Loss(ClassToken):
        def forward(self, values: Tensor) -> Tensor:
            return super().forward(values).mean()

    model = Loss()
    with HookedEngine(model), pytest.raises(NotPrivate, match=r"does not begin with the records"):
        model(torch.randn(4, 2, 3))


def test_buffers_that_a_backward_pass_needs_are_not_written_to() -> None:
    scaled = Model(lambda model, x: model.layer(x * model.scale) * model.scale.sum(), layer=nn.Linear(3, NUM_CLASSES))
    scaled.register_buffer("scale", torch.linspace(1, 2, 3))
    assert_right(nn.Sequential(nn.Linear(3, 3), scaled), torch.randn(4, 3))


@pytest.mark.parametrize("views", [1, 2])
def test_records_that_are_folded_into_another_axis_are_run_alone(views: int) -> None:
    def flattened(model: Any, values: Tensor) -> Any:
        return model.layer(values.flatten(0, 1)).unflatten(0, values.shape[:2]).mean(1)

    model = Model(flattened, layer=nn.Linear(3, NUM_CLASSES))
    assert_right(model, torch.randn(4, *[2] * (views > 1), 2, 3), views=views)


@pytest.mark.parametrize("length", [1, 2, 4])
def test_time_before_records_is_run_alone_also_where_both_are_as_long(length: int) -> None:
    model = Model(lambda model, x: model.layer(x.transpose(0, 1)).mean(0), layer=nn.Linear(3, NUM_CLASSES))
    assert_right(model, torch.randn(4, length, 3))


def test_a_layer_of_the_users_own_that_mixes_records_is_refused() -> None:
    centred = Model(lambda model, x: model.layer(x - x.mean(0)), layer=nn.Linear(3, NUM_CLASSES))
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), centred)
    with pytest.raises(NotPrivate, match="changes with the other records"):
        grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))


def around(function: Any, before: Any = lambda _, values: values) -> Any:
    """A function of all records between two layers, and one of the model and its records before both."""
    run = lambda model, x: model.second(function(model.first(before(model, x))))  # noqa: E731
    return Model(run, first=nn.Linear(3, 4), second=nn.Linear(4, NUM_CLASSES))


@pytest.mark.parametrize("first", [torch.zeros(4, 3), torch.full((4, 3), torch.nan)], ids=["equal", "not numbers"])
def test_mixing_is_found_whatever_the_records_of_the_first_batch_are(first: Tensor) -> None:
    model = around(lambda hidden: hidden - hidden.mean(0))
    with pytest.raises(NotPrivate, match=r"second \(Linear\).*changes with the other records"):
        grads_of(HookedEngine(model), model, first, torch.arange(4))


def test_mixing_in_training_only_is_found_when_training_begins() -> None:
    model = around(torch.tanh, lambda model, x: x - x.mean(0) if model.training else x).eval()
    engine = HookedEngine(model)
    assert grads_of(engine, model, torch.randn(4, 3), torch.arange(4)).norms().isfinite().all()
    with pytest.raises(NotPrivate, match="changes with the other records"):
        grads_of(engine, model.train(), torch.randn(4, 3), torch.arange(4))


def test_mixing_behind_a_gain_that_begins_at_zero_is_found() -> None:
    model = around(lambda hidden: hidden - hidden.mean(0))
    nn.init.zeros_(model.second.weight)
    whole = nn.Sequential(model, nn.Linear(NUM_CLASSES, NUM_CLASSES))
    with pytest.raises(NotPrivate, match="changes with the other records"):
        grads_of(HookedEngine(whole), whole, torch.randn(4, 3), torch.arange(4))


@pytest.mark.parametrize(
    "function",
    [lambda hidden: hidden * 0, lambda hidden: hidden / 0, lambda hidden: hidden.sqrt() + (-hidden).sqrt()],
    ids=["the same for all", "infinite", "not numbers"],
)
def test_a_model_of_which_a_try_says_nothing_is_refused(function: Any) -> None:
    model = around(function)
    with pytest.raises(NotPrivate, match="cannot be checked on synthetic records"):
        grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))


@pytest.mark.parametrize(
    "function", [lambda hidden: hidden.abs().log(), lambda hidden: hidden.float().to(hidden.dtype)]
)
def test_a_model_for_numbers_of_another_kind_is_tried_on_them(function: Any) -> None:
    model = around(function)
    assert grads_of(HookedEngine(model), model, torch.rand(4, 3), torch.arange(4)).norms().isfinite().all()


def test_what_is_wrong_with_the_model_itself_is_said_first() -> None:
    model = linear()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        grads_of(HookedEngine(model), model, torch.randn(4, 7).double(), torch.arange(4))


def test_a_buffer_that_learns_from_the_records_is_refused_by_name() -> None:
    def replaced(model: Any, values: Tensor) -> Tensor:
        model.centre = 0.9 * model.centre + 0.1 * values.mean(0)
        return values

    model = around(torch.tanh, replaced)
    model.register_buffer("centre", torch.zeros(3))
    with pytest.raises(NotPrivate, match=r"centre of.*no noise is added"):
        grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))


@pytest.mark.parametrize("records", [1, 4])
def test_a_buffer_that_learns_is_found_whatever_the_size_of_batches_and_keeps_nothing(records: int) -> None:
    def written(model: Any, values: Tensor) -> Tensor:
        model.centre.mul_(0.9).add_(0.1 * values.mean(0))
        return values

    model = around(torch.tanh, written)
    model.register_buffer("centre", torch.zeros(3))
    with pytest.raises(NotPrivate, match=r"centre of.*no noise is added"):
        grads_of(HookedEngine(model), model, torch.randn(records, 3), torch.arange(records))
    assert model.centre.count_nonzero() == 0


def test_batch_norm_that_is_put_into_training_inside_the_loop_learns_nothing() -> None:
    model = nn.Sequential(nn.Linear(3, NUM_CLASSES), nn.BatchNorm1d(NUM_CLASSES)).eval()
    before = {name: value.clone() for name, value in model.named_buffers()}
    with HookedEngine(model):
        model.train()
        with pytest.raises(NotPrivate, match="BatchNorm1d"):
            model(torch.randn(4, 3))
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_a_buffer_that_counts_batches_is_accepted_and_counts_them() -> None:
    model = around(torch.tanh, lambda model, x: x + 0 * model.seen.add_(1))
    model.register_buffer("seen", torch.zeros(()))
    grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))
    assert model.seen == 1


@pytest.mark.parametrize("path", ["", "0"])
def test_a_forward_that_was_put_on_a_layer_itself_is_refused_by_name(path: str) -> None:
    model = nn.Sequential(nn.Linear(3, NUM_CLASSES), nn.Tanh())
    layer = model.get_submodule(path)
    replaced = layer.forward
    layer.forward = lambda values: 3 * replaced(values)
    with pytest.raises(NotPrivate, match=rf"{path or 'the model itself'} .*forward was replaced"):
        grads_of(HookedEngine(model), model, torch.randn(4, 3), torch.arange(4))
    assert type(layer).forward is not layer.forward


def test_an_input_that_is_written_over_is_refused() -> None:
    def writing_over(model: Any, values: Tensor) -> Any:
        values = values * 1
        return model.layer(values) + values.zero_()

    model = Model(writing_over, layer=nn.Linear(3, 3))
    with pytest.raises(NotPrivate, match=r"layer \(Linear\).*changed in place"):
        grads_of(HookedEngine(model), model, torch.randn(3, 3), torch.arange(3))


def test_checkpointed_activations_are_refused() -> None:
    layers = nn.Sequential(nn.Sequential(linear(), nn.Tanh()), nn.Linear(NUM_CLASSES, NUM_CLASSES).double())
    with HookedEngine(layers):
        outputs = layers[1](checkpoint(layers[0], torch.randn(4, 3).double(), use_reentrant=False))
        with pytest.raises(InvalidValue, match="activation checkpointing is not supported"):
            differentiate(outputs.sum())


def test_batch_norm_that_is_put_back_into_training_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, NUM_CLASSES), nn.BatchNorm1d(NUM_CLASSES)).eval()
    engine = HookedEngine(model)
    model.train()
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        engine.attach()


def test_a_parameter_that_is_thawed_later_is_refused() -> None:
    model = linear()
    model.bias.requires_grad_(False)
    engine = HookedEngine(model)
    model.bias.requires_grad_(True)
    with pytest.raises(InvalidValue, match=r"trainable at first.*bias"):
        engine.attach()


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
