"""The fast engine, compiled and not. What every engine promises is in tests/contracts/test_engines.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from lehr.errors import InvalidValue, NotPrivate
from lehr.gradients import ghost
from lehr.gradients.differentiation import Layers, StreamedGradients
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import PrivateSum, RecordGradients
from lehr.privacy.clipping import FlatClip
from tests.gradients.one_by_one import OneByOneEngine
from tests.gradients.small_models import CASES, NUM_CLASSES, Case, assert_same_gradients, loss_fn, untouched

IMAGES = CASES["images"]
# As small as compiling it takes long: a convolution, a normalisation and a linear layer.
ONE_LAYER_EACH = Case(
    lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, NUM_CLASSES)), (3, 6, 6)
)
CLIP = FlatClip(clip_norm=0.5)
RECORDS = 4


def assert_same_sums(some: dict[str, Tensor], others: dict[str, Tensor], *, tolerance: float) -> None:
    assert list(some) == list(others)
    scale = max(float(value.abs().max()) for value in others.values())
    for name, value in some.items():
        assert value.shape == others[name].shape
        torch.testing.assert_close(value, others[name], rtol=0, atol=tolerance * max(scale, 1e-3))


def expected_sum(model: nn.Module, inputs: Any, targets: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    return CLIP(OneByOneEngine(model, loss_fn).gradients(inputs, targets, mask)).values


def eager(model: nn.Module, **settings: Any) -> GhostEngine:
    return GhostEngine(model, loss_fn, compiled=False, **settings)


class Compiled:
    """A model, its engine, and the one graph that all tests of this kind run."""

    def __init__(self) -> None:
        self.model = ONE_LAYER_EACH.model()
        self.before = untouched(self.model)
        self.engine = GhostEngine(self.model, loss_fn)

    def sum(self, inputs: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        return self.engine.private_sum(CLIP, inputs, targets, mask).values


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compiled]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield Compiled()
    torch._dynamo.reset()


@pytest.mark.slow
class TestCompiled:
    def test_a_batch_gives_what_a_loop_gives(self, compiled: Compiled) -> None:
        batch = ONE_LAYER_EACH.batch(RECORDS)
        for mask in (None, torch.arange(RECORDS) != 2):
            expected = expected_sum(compiled.model, *batch, mask)
            assert_same_sums(compiled.sum(*batch, mask), expected, tolerance=1e-9)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        assert untouched(compiled.model) == compiled.before

    def test_a_record_that_is_not_finite_counts_as_zero(self, compiled: Compiled) -> None:
        inputs, targets = ONE_LAYER_EACH.batch(RECORDS)
        inputs[1] = torch.inf
        inputs[2] = torch.nan
        kept = [0, 3]
        expected = expected_sum(compiled.model, inputs[kept], targets[kept])
        assert_same_sums(compiled.sum(inputs, targets), expected, tolerance=1e-9)

    def test_a_mask_that_leaves_everyone_out_gives_exact_zeros(self, compiled: Compiled) -> None:
        found = compiled.sum(*ONE_LAYER_EACH.batch(RECORDS), torch.zeros(RECORDS, dtype=torch.bool))
        assert all(torch.equal(value, torch.zeros_like(value)) for value in found.values())

    def test_one_record_is_no_longer_than_the_sensitivity(self, compiled: Compiled) -> None:
        for index in range(RECORDS):
            found = compiled.sum(*ONE_LAYER_EACH.batch(RECORDS), torch.arange(RECORDS) == index)
            length = torch.stack([value.square().sum() for value in found.values()]).sum().sqrt()
            assert 0.9 * CLIP.sensitivity < length <= CLIP.sensitivity

    def test_a_sum_outlives_the_next_batch(self, compiled: Compiled) -> None:
        first = compiled.sum(*ONE_LAYER_EACH.batch(RECORDS))
        kept = {name: value.clone() for name, value in first.items()}
        compiled.sum(*(value.flip(0) for value in ONE_LAYER_EACH.batch(RECORDS)))
        assert all(torch.equal(first[name], kept[name]) for name in kept)

    def test_weights_that_an_optimizer_changed_in_place_are_the_ones_that_are_used(self, compiled: Compiled) -> None:
        """Last, since it changes the model."""
        batch = ONE_LAYER_EACH.batch(RECORDS)
        before = compiled.sum(*batch)
        optimizer = torch.optim.SGD(compiled.model.parameters(), lr=0.5)
        torch.autograd.backward(loss_fn(compiled.model(batch[0]), batch[1]).sum())
        optimizer.step()
        optimizer.zero_grad()
        after = compiled.sum(*batch)
        assert_same_sums(after, expected_sum(compiled.model, *batch), tolerance=1e-9)
        assert not torch.allclose(before["3.weight"], after["3.weight"])


@pytest.mark.whole
def test_a_compiled_step_in_bfloat16_keeps_the_sensitivity() -> None:
    """A compiler may round at other places than an eager run; the margin has room for it."""
    torch._dynamo.reset()
    model = IMAGES.model(torch.float32)
    engine = GhostEngine(model, loss_fn, precision="bfloat16")
    inputs, targets = IMAGES.batch(RECORDS, dtype=torch.float32)
    for index in range(RECORDS):
        found = engine.private_sum(CLIP, inputs, targets, torch.arange(RECORDS) == index).values
        assert all(value.dtype is torch.float64 for value in found.values())
        length = torch.stack([value.square().sum() for value in found.values()]).sum().sqrt()
        assert 0.9 * CLIP.sensitivity < length <= CLIP.sensitivity
    torch._dynamo.reset()


def test_an_empty_batch_is_not_compiled_and_gives_exact_zeros() -> None:
    model = IMAGES.model()
    found = GhostEngine(model, loss_fn).private_sum(CLIP, *IMAGES.batch(0))
    assert {name: value.shape for name, value in found.values.items()} == {
        name: parameter.shape for name, parameter in model.named_parameters()
    }
    assert all(torch.equal(value, torch.zeros_like(value)) for value in found.values.values())


def test_images_of_another_size() -> None:
    model = IMAGES.model()
    engine = eager(model)
    for size in (6, 8, 6):
        inputs = torch.randn(3, 3, size, size, dtype=torch.float64)
        found = engine.private_sum(CLIP, inputs, torch.arange(3)).values
        assert_same_sums(found, expected_sum(model, inputs, torch.arange(3)), tolerance=1e-9)


def test_another_clip_rule_gets_a_step_of_its_own() -> None:
    engine = eager(IMAGES.model())
    batch = IMAGES.batch(3)
    small, large = (engine.private_sum(FlatClip(clip_norm=norm), *batch) for norm in (0.1, 0.2))
    assert (small.sensitivity, large.sensitivity) == (0.1, 0.2)
    assert_same_sums(large.values, {name: 2 * value for name, value in small.values.items()}, tolerance=1e-9)


def test_training_flags_are_followed_from_batch_to_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, NUM_CLASSES)).double()
    engine = eager(model)
    inputs, targets = torch.randn(3, 6, dtype=torch.float64), torch.arange(3)
    model.eval()
    still = engine.gradients(inputs, targets)
    assert_same_gradients(still, OneByOneEngine(model, loss_fn).gradients(inputs, targets), records=3)
    model.train()
    moving = [engine.gradients(inputs, targets).norms() for _ in range(2)]
    assert not torch.allclose(moving[0], moving[1])
    model.eval()
    assert torch.equal(engine.gradients(inputs, targets).norms(), still.norms())
    assert not model.training


def test_a_layer_under_two_names_keeps_the_users_weights() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(NUM_CLASSES, NUM_CLASSES)
    model = nn.Sequential(layer, nn.Tanh(), layer).double()
    before, weight = untouched(model), layer.weight
    inputs, targets = torch.randn(3, NUM_CLASSES, dtype=torch.float64), torch.arange(3)
    engine = eager(model)
    found = engine.private_sum(CLIP, inputs, targets).values
    with pytest.raises(RuntimeError, match="shape"):
        engine.gradients(inputs[:, :2], targets)
    assert layer.weight is weight
    assert untouched(model) == before
    assert_same_sums(found, expected_sum(model, inputs, targets), tolerance=1e-9)


class Adjustable(nn.Module):
    """What a user may change between batches without touching a parameter or a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.dropout = nn.Dropout(0.0)
        self.last = nn.Linear(16, NUM_CLASSES)
        self.temperature = 1.0
        self.shift = torch.zeros(6, dtype=torch.float64)

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.dropout(torch.tanh(self.first(values + self.shift))))
        return outputs / self.temperature


CHANGES: dict[str, Callable[[Adjustable], object]] = {
    "a number": lambda model: setattr(model, "temperature", 0.5),
    "another tensor": lambda model: setattr(model, "shift", torch.ones(6, dtype=torch.float64)),
    "a tensor that is written over": lambda model: model.shift.fill_(1),
    "a rate": lambda model: setattr(model.dropout, "p", 1.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_is_changed_between_batches_is_followed(change: Callable[[Adjustable], object]) -> None:
    torch.manual_seed(0)
    model = Adjustable().double()
    engine = eager(model)
    batch = torch.randn(3, 6, dtype=torch.float64), torch.arange(3)
    before = engine.private_sum(CLIP, *batch).values
    assert_same_sums(before, expected_sum(model, *batch), tolerance=1e-9)
    change(model)
    expected = OneByOneEngine(model, loss_fn).gradients(*batch)
    assert_same_gradients(engine.gradients(*batch), expected, records=3)
    after = engine.private_sum(CLIP, *batch).values
    assert_same_sums(after, expected_sum(model, *batch), tolerance=1e-9)
    assert not torch.allclose(after["first.weight"], before["first.weight"])


class Switched(nn.Module):
    """A setting that decides what is run."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_CLASSES, NUM_CLASSES)
        self.last = nn.Linear(NUM_CLASSES, NUM_CLASSES)
        self.setting = "plain"

    def forward(self, values: Tensor) -> Tensor:
        outputs: Tensor = self.last(values if self.setting == "short" else torch.tanh(self.first(values)))
        if self.setting == "behind the layer's back":
            return outputs @ self.first.weight
        return outputs - outputs.mean(0) if self.setting == "mixed" else outputs


@pytest.mark.parametrize("setting", ["behind the layer's back", "short"])
def test_a_setting_that_decides_what_is_run_is_followed(setting: str) -> None:
    torch.manual_seed(0)
    model = Switched().double()
    engine = eager(model)
    batch = torch.randn(3, NUM_CLASSES, dtype=torch.float64), torch.arange(3)
    for each in ("plain", setting, "plain"):
        model.setting = each
        expected = OneByOneEngine(model, loss_fn).gradients(*batch)
        assert_same_gradients(engine.gradients(*batch), expected, records=3)
        found = engine.private_sum(CLIP, *batch).values
        assert_same_sums(found, expected_sum(model, *batch), tolerance=1e-9)


def test_a_setting_that_lets_records_meet_is_refused_when_it_is_made() -> None:
    model = Switched().double()
    engine = eager(model)
    batch = torch.randn(3, NUM_CLASSES, dtype=torch.float64), torch.arange(3)
    engine.private_sum(CLIP, *batch)
    model.setting = "mixed"
    with pytest.raises(NotPrivate):
        engine.private_sum(CLIP, *batch)


class Counting(nn.Linear):
    """Notes how often it was run."""

    runs = 0
    seen: ClassVar[list[int]] = []

    def forward(self, values: Tensor) -> Tensor:
        self.runs += 1
        self.seen.append(id(self))
        return super().forward(values)


def test_a_model_that_notes_something_when_it_is_run_is_tried_once_and_left_as_it_was() -> None:
    Counting.seen.clear()
    layer = Counting(6, NUM_CLASSES)
    engine = eager(nn.Sequential(layer))
    counts = []
    for _ in range(3):
        engine.private_sum(CLIP, torch.randn(3, 6), torch.arange(3))
        counts.append(Counting.seen.count(id(layer)))
    assert counts[0] == counts[1] == counts[2] > 0  # only the trial runs the user's own model
    assert layer.runs == 0


BUILT: dict[str, tuple[bool, Callable[[Any], object]]] = {
    "frozen": (False, lambda model: model[0].weight.requires_grad_(False)),
    "thawed": (False, lambda model: model[0].bias.requires_grad_(True)),
    "another layer": (False, lambda model: model.__setitem__(1, nn.ReLU())),
    "one more layer": (False, lambda model: model.append(nn.Linear(NUM_CLASSES, NUM_CLASSES))),
    "tied": (False, lambda model: setattr(model[2], "weight", model[0].weight)),
    "untied": (True, lambda model: setattr(model[2], "weight", nn.Parameter(torch.eye(NUM_CLASSES)))),
}


@pytest.mark.parametrize("is_tied, change", BUILT.values(), ids=BUILT.keys())
def test_a_model_that_was_built_anew_since_is_refused(is_tied: bool, change: Callable[[Any], object]) -> None:
    """Which gradients belong together was read once; a tied weight's would be clipped as two."""
    model = nn.Sequential(nn.Linear(NUM_CLASSES, NUM_CLASSES), nn.Tanh(), nn.Linear(NUM_CLASSES, NUM_CLASSES))
    model[0].bias.requires_grad_(False)
    if is_tied:
        model[2].weight = model[0].weight
    inputs, targets = torch.randn(3, NUM_CLASSES), torch.arange(3)
    engine = eager(model)
    engine.gradients(inputs, targets)
    change(model)
    for run in (engine.gradients, partial(engine.private_sum, CLIP)):
        with pytest.raises(InvalidValue) as refusal:
            run(inputs, targets)
        assert refusal.value.name == "model"


def test_weights_that_were_replaced_or_loaded_are_used() -> None:
    model: Any = IMAGES.model()
    engine = eager(model)
    engine.private_sum(CLIP, *IMAGES.batch(3))
    for change in ("replaced", "loaded"):
        if change == "replaced":
            model.head.weight = nn.Parameter(2 * model.head.weight.detach())
        else:
            model.load_state_dict(IMAGES.build().double().state_dict(), assign=True)
        found = engine.private_sum(CLIP, *IMAGES.batch(3)).values
        assert_same_sums(found, expected_sum(model, *IMAGES.batch(3)), tolerance=1e-9)


class Noting(FlatClip):
    """A rule that can be told from an equal one by who was asked."""

    asked: ClassVar[list[int]] = []

    def __call__(self, gradients: RecordGradients) -> PrivateSum:
        self.asked.append(id(self))
        return super().__call__(gradients)


def test_equal_clip_rules_share_one_step() -> None:
    """A schedule that builds its rule anew for every batch must not have every batch compiled."""
    Noting.asked.clear()
    engine = eager(IMAGES.model())
    rules = [Noting(clip_norm=0.5), Noting(clip_norm=0.5), Noting(clip_norm=0.25)]
    sums = [engine.private_sum(rule, *IMAGES.batch(3)) for rule in rules]
    assert Noting.asked == [id(rules[0]), id(rules[0]), id(rules[2])]
    assert [found.sensitivity for found in sums] == [0.5, 0.5, 0.25]
    assert_same_sums(sums[1].values, sums[0].values, tolerance=0)


def test_dropout_draws_for_each_record_and_for_each_batch() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, NUM_CLASSES)
    engine = eager(nn.Sequential(*layers).double())
    inputs = torch.randn(1, 6, dtype=torch.float64).expand(8, 6)
    norms = engine.gradients(inputs, torch.zeros(8, dtype=torch.long)).norms()
    assert len(set(norms.tolist())) > 1


@pytest.mark.parametrize("name", ["images", "sequences", "words", "attention"])
def test_two_passes_give_what_one_pass_gives(name: str) -> None:
    case = CASES[name]
    model = case.model()
    inputs, targets = case.batch(RECORDS)
    mask = torch.arange(RECORDS) != 1
    one, two = (eager(model, passes=passes) for passes in ("one", "two"))
    assert isinstance(two.gradients(inputs, targets), StreamedGradients)
    sums = (engine.private_sum(CLIP, inputs, targets, mask).values for engine in (two, one))
    assert_same_sums(*sums, tolerance=1e-6)


def test_free_memory_decides_between_one_pass_and_two(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, targets = IMAGES.batch(RECORDS)
    for free, kind in ((2**40, False), (0, True)):
        monkeypatch.setattr(ghost, "free_memory", lambda device, free=free: free)
        found = eager(IMAGES.model()).gradients(inputs, targets)
        assert isinstance(found, StreamedGradients) is kind


def test_a_second_pass_with_larger_gradients_is_refused() -> None:
    head = nn.Linear(4, NUM_CLASSES)
    engine = eager(nn.Sequential(nn.Linear(3, 4), head), passes="two")
    inputs, targets = torch.randn(RECORDS, 3), torch.arange(RECORDS)
    gradients = engine.gradients(inputs, targets)
    with torch.no_grad():
        head.weight.mul_(3)
    with pytest.raises(NotPrivate, match="second pass"):
        gradients.weighted_sum(torch.ones(RECORDS))


def test_dropout_is_the_same_in_both_passes() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, NUM_CLASSES))
    inputs, targets = torch.randn(RECORDS, 3), torch.arange(RECORDS)
    for _ in range(5):
        eager(model, passes="two").private_sum(CLIP, inputs, targets)


def test_too_little_memory_is_not_reported_as_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    model, (inputs, targets) = IMAGES.model(), IMAGES.batch(RECORDS)
    for target in ("torch.autograd.grad", "lehr.gradients.ghost.ModeSearch._wrong"):
        with monkeypatch.context() as patched:
            patched.setattr(target, fail)
            with pytest.raises(torch.OutOfMemoryError):
                eager(model).gradients(inputs, targets)


def test_a_large_model_is_tried_without_a_copy_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ghost, "MOST_WIDE_WEIGHTS", 10)
    seen: list[torch.dtype] = []

    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return loss_fn(outputs, targets)

    model, (inputs, targets) = IMAGES.model().float(), IMAGES.batch(RECORDS)
    search = ghost.ModeSearch(model, Layers(model), losses, views=1)
    assert not search.mode(inputs.float(), targets).is_record_by_record
    assert set(seen) == {torch.float32}
