"""What every engine that is given a batch promises, for every engine that is found by crawling.

The engine for loops that call ``backward`` themselves is given no batch; see tests/gradients/test_hooked.py.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lehr.gradients
from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients.precision import margin
from lehr.privacy.clipping import FlatClip
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, TOKEN, Model, assert_close, assert_same_gradients, loss_fn, untouched


def engines() -> dict[str, type[Any]]:
    """Every class of the package that is built from a model and a loss, and gives gradients."""
    modules = [
        importlib.import_module(found.name)
        for found in pkgutil.iter_modules(lehr.gradients.__path__, "lehr.gradients.")
    ]
    classes = {thing for module in modules for _, thing in inspect.getmembers(module, inspect.isclass)}
    return {thing.__name__: thing for thing in sorted(classes, key=lambda kind: kind.__name__) if _is_an_engine(thing)}


def _is_an_engine(thing: type[Any]) -> bool:
    own = thing.__module__.startswith("lehr.gradients.") and "gradients" in vars(thing)
    return own and list(inspect.signature(thing).parameters)[:2] == ["model", "loss_fn"]


ENGINES = {**engines(), "OneByOneEngine": OneByOneEngine}
every_engine = pytest.mark.parametrize("kind", ENGINES.values(), ids=ENGINES.keys())
every_case = pytest.mark.parametrize("case", [*CASES.values(), TOKEN], ids=[*CASES, "token"])


def build(kind: type[Any], model: nn.Module, loss: Any = loss_fn, **settings: Any) -> Any:
    """An engine that need not be compiled, since that takes longer than all of these tests together."""
    if "compiled" in inspect.signature(kind).parameters:
        settings["compiled"] = False
    return kind(model, loss, **settings)


def test_the_crawl_finds_the_engines() -> None:
    assert {"GhostEngine", "MaterialisedEngine"} <= set(ENGINES)


@every_engine
@every_case
@pytest.mark.parametrize("views", [1, 2])
def test_a_loop_over_records_agrees_and_the_model_is_left_as_it_was(kind: type[Any], case: Any, views: int) -> None:
    model = case.model()
    before = untouched(model)
    engine = build(kind, model, views=views)
    for records in (5, 1):
        inputs, targets = case.batch(records, views=views)
        mask = torch.arange(records) != 2
        expected = OneByOneEngine(model, loss_fn, views=views).gradients(inputs, targets, mask)
        found = engine.gradients(inputs, targets, mask)
        assert_same_gradients(found, expected, records=records)
        assert 0 <= found.margin < 0.1
    empty = engine.gradients(*case.batch(0, views=views))
    assert empty.norms().shape == (0,)
    sums = empty.weighted_sum(empty.norms())
    assert {name: value.shape for name, value in sums.items()} == {n: p.shape for n, p in model.named_parameters()}
    assert all(torch.equal(value, torch.zeros_like(value)) for value in sums.values())
    assert untouched(model) == before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_engine
@every_case
@pytest.mark.parametrize("views", [1, 2])
def test_a_gpu_agrees_with_a_loop_on_a_cpu(kind: type[Any], case: Any, views: int) -> None:
    inputs, targets = case.batch(5, views=views)
    expected = OneByOneEngine(case.model(), loss_fn, views=views).gradients(inputs, targets)
    found = build(kind, case.model().cuda(), views=views).gradients(inputs.cuda(), targets.cuda())
    weights = torch.linspace(0, 1, 5, dtype=torch.float64)
    assert_close(found.norms().cpu(), expected.norms(), 1e-9)
    for name, value in found.weighted_sum(weights.cuda()).items():
        assert_close(value.cpu(), expected.weighted_sum(weights)[name], 1e-9)


@every_engine
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["images", "sequences", "without rule"])
def test_a_record_that_is_not_finite_counts_as_zero_whatever_its_weight(kind: type[Any], name: str, bad: float) -> None:
    case = CASES[name]
    model = case.model()
    inputs, targets = case.batch(4)
    inputs[1] = bad
    gradients = build(kind, model).gradients(inputs, targets)
    others = OneByOneEngine(model, loss_fn).gradients(inputs[[0, 2, 3]], targets[[0, 2, 3]])
    assert gradients.norms()[1] == 0
    assert torch.allclose(gradients.norms()[[0, 2, 3]], others.norms(), rtol=1e-10)
    found = gradients.weighted_sum(torch.tensor([1, float("inf"), 1, 1]))
    for parameter, expected in others.weighted_sum(torch.ones(3)).items():
        assert torch.allclose(found[parameter], expected, rtol=1e-10, atol=1e-12)


@every_engine
def test_a_record_that_the_mask_leaves_out_counts_as_zero_whatever_it_holds(kind: type[Any]) -> None:
    model = CASES["sequences"].model()
    inputs, targets = CASES["sequences"].batch(3)
    mask = torch.tensor([True, False, True])
    expected = build(kind, model).gradients(inputs, targets, mask)
    inputs[1] = float("nan")
    found = build(kind, model).gradients(inputs, targets, mask)
    assert_same_gradients(found, expected, records=3)
    assert found.norms()[1] == 0


@every_engine
@every_case
def test_physical_batches_add_up_to_the_drawn_one(kind: type[Any], case: Any) -> None:
    engine = build(kind, case.model())
    inputs, targets = case.batch(5)
    weights = torch.linspace(0, 1, 5, dtype=torch.float64)
    whole = engine.gradients(inputs, targets).weighted_sum(weights)
    first, second = (
        engine.gradients(inputs[part], targets[part]).weighted_sum(weights[part]) for part in (slice(3), slice(3, 5))
    )
    for name in whole:
        assert torch.allclose(whole[name], first[name] + second[name], rtol=1e-10, atol=1e-14)


SUMMING = {name: kind for name, kind in ENGINES.items() if hasattr(kind, "private_sum")}


@pytest.mark.parametrize("kind", SUMMING.values(), ids=SUMMING.keys())
@pytest.mark.parametrize("views", [1, 3])
def test_one_record_moves_a_private_sum_by_the_clip_norm_however_many_views(kind: type[Any], views: int) -> None:
    """Its views are averaged before they are clipped: as records of their own they would move it by three norms."""
    clip = FlatClip(1e-3)
    engine = build(kind, CASES["images"].model(), views=views)
    batch = CASES["images"].batch(3, views=views)
    with_all, without = (
        engine.private_sum(clip, *batch, torch.tensor(mask)) for mask in ([True] * 3, [True, False, True])
    )
    moved = [(with_all.values[name] - value).flatten() for name, value in without.values.items()]
    assert with_all.sensitivity == clip.sensitivity
    assert 0.99 * clip.sensitivity <= float(torch.cat(moved).norm()) <= clip.sensitivity


@every_engine
@every_case
def test_a_frozen_parameter_has_no_gradient_and_changes_no_other(kind: type[Any], case: Any) -> None:
    model = case.model()
    inputs, targets = case.batch(3)
    whole = OneByOneEngine(model, loss_fn).gradients(inputs, targets)
    frozen = next(name for name, _ in model.named_parameters())
    model.get_parameter(frozen).requires_grad_(False)
    gradients = build(kind, model).gradients(inputs, targets)
    assert gradients.names == tuple(name for name in whole.names if name != frozen)
    expected = whole.weighted_sum(torch.ones(3))
    for name, value in gradients.weighted_sum(torch.ones(3)).items():
        assert torch.allclose(value, expected[name], rtol=1e-10, atol=1e-14)


@every_engine
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_norms_are_in_float32_and_sums_in_float64(kind: type[Any], dtype: torch.dtype, tolerance: float) -> None:
    case = CASES["images"]
    inputs, targets = case.batch(4, dtype=dtype)
    gradients = build(kind, case.model(dtype)).gradients(inputs, targets)
    exact = OneByOneEngine(case.model().to(dtype).double(), loss_fn).gradients(inputs.double(), targets)
    assert gradients.norms().dtype is torch.float32
    assert torch.allclose(gradients.norms().double(), exact.norms(), rtol=tolerance)
    for name, value in gradients.weighted_sum(torch.ones(4)).items():
        assert value.dtype is torch.float64
        expected = exact.weighted_sum(torch.ones(4))[name]
        assert (value.double() - expected).norm() <= tolerance * max(expected.norm(), exact.norms().max())


@every_engine
def test_inputs_may_be_several_positional_or_named(kind: type[Any]) -> None:
    model = Model(lambda model, left, right: model.layer(left) - model.layer(right), layer=nn.Linear(3, 5)).double()
    left, right, targets = torch.randn(4, 3).double(), torch.randn(4, 3).double(), torch.arange(4)
    expected = OneByOneEngine(model, loss_fn).gradients((left, right), targets)
    for inputs in ((left, right), {"right": right, "left": left}):
        assert_same_gradients(build(kind, model).gradients(inputs, targets), expected, records=4)


@every_engine
def test_the_margin_is_that_of_the_narrowest_parameter_wherever_it_stands(kind: type[Any]) -> None:
    def run(model: Any, values: Tensor) -> Any:
        return model.last(model.narrow(model.first(values).bfloat16()).float())

    first, narrow, last = (nn.Linear(2, 2).to(dtype) for dtype in (torch.float64, torch.bfloat16, torch.float32))
    model = Model(run, first=first, narrow=narrow, last=last)
    engine = build(kind, model, lambda outputs, targets: outputs.sum(1))
    assert engine.gradients(torch.ones(1, 2).double(), torch.ones(1)).margin == margin(torch.bfloat16)


@every_engine
def test_mixed_records_and_missing_views_are_refused(kind: type[Any]) -> None:
    with pytest.raises(NotPrivate, match="BatchNorm1d"):
        build(kind, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    for inputs in (torch.ones(4, 3), torch.ones(4, 3, 3), torch.ones(4)):
        with pytest.raises(InvalidValue, match="inputs"):
            build(kind, nn.Linear(3, 2), views=2).gradients(inputs, torch.arange(4))
