from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lehr.gradients import convolutions
from lehr.gradients.convolutions import Convolved, Geometry
from tests.gradients.convolutions import SHAPES, Convolution, every_shape, in_order_of_columns

IMAGE = Convolution(channels=3, outputs=5, sizes=(7, 6), kernel=3, padding=1, views=2)
HUNDRED = Convolution(channels=2, outputs=3, sizes=(6, 6), kernel=3, records=100, views=2)
SQUARE = Convolution(channels=3, outputs=8, sizes=(9, 9), kernel=3, stride=2, padding=1, views=2)
CHECKS = ("test_schema", "test_faketensor")
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def squares_by_loop(shape: Convolution, inputs: Tensor, output_grads: Tensor) -> Tensor:
    return shape.grads_by_loop(inputs, output_grads).flatten(1).square().sum(1)


def both_norms(shape: Convolution, inputs: Tensor, output_grads: Tensor) -> tuple[Tensor, Tensor]:
    part = shape.part(inputs, output_grads)
    return part.squares_by_gram(), part.formed()[1]


def summed(shape: Convolution, inputs: Tensor, output_grads: Tensor, weights_B: Tensor, counted_B: Tensor) -> Tensor:
    weights_N, counted_N = (values.repeat_interleave(shape.views) for values in (weights_B, counted_B))
    return shape.part(inputs, output_grads).sum_at_once(weights_N, counted_N)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("layer, sizes", [(nn.Conv1d, (9,)), (nn.Conv2d, (9, 8)), (nn.Conv3d, (5, 4, 6))])
def test_geometry_knows_the_shape_of_the_weight_and_survives_a_flat_list(
    layer: type[nn.Conv2d], sizes: tuple[int, ...], groups: int
) -> None:
    shape = Convolution(channels=4, outputs=6, sizes=sizes, kernel=3, stride=2, padding=1, groups=groups)
    assert shape.geometry.weight_shape(*shape.batch()) == layer(4, 6, 3, groups=groups).weight.shape
    assert Geometry.of(shape.geometry.flat()) == shape.geometry


@every_shape
def test_norms_gradients_and_sums_are_those_of_a_loop(shape: Convolution) -> None:
    batch = shape.batch()
    _, by_forming = convolutions.form(*batch, shape.geometry.flat(), shape.records, is_kept=False)
    for found in (*both_norms(shape, *batch), by_forming, shape.part(*batch).squared_norms()):
        torch.testing.assert_close(found, squares_by_loop(shape, *batch), rtol=1e-10, atol=0)
    by_loop = shape.grads_by_loop(*batch)
    expected, atol = in_order_of_columns(by_loop), 1e-12 * float(by_loop.abs().max())
    torch.testing.assert_close(shape.part(*batch).formed()[0], expected, rtol=0, atol=atol)
    weights_B = torch.linspace(0, 1.5, shape.records, dtype=torch.float64)
    expected = torch.tensordot(weights_B, by_loop, dims=1)
    for found in (
        summed(shape, *batch, weights_B, weights_B >= 0),
        shape.part(*batch).weighted_sum(weights_B, weights_B >= 0),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * max(1, float(expected.abs().max())))


@pytest.mark.parametrize("records", [1, 64, 65, 200])
@pytest.mark.parametrize("channels", [3, 96])
def test_a_gradient_that_is_formed_for_a_sum_is_that_of_its_norm(channels: int, records: int) -> None:
    """Small products are made by one kernel, large ones by another one, and both in rounds of some records."""
    shape = Convolution(channels=channels, outputs=2 * channels, sizes=(12, 12), kernel=3, padding=1, records=records)
    batch = shape.batch(torch.float32)
    grads, squares = convolutions.form(*batch, shape.geometry.flat(), records, is_kept=True)
    _, squares_alone = convolutions.form(*batch, shape.geometry.flat(), records, is_kept=False)
    assert torch.equal(squares, squares_alone)
    for at in {0, records // 2, records - 1}:
        one = torch.zeros(records).index_fill(0, torch.tensor(at), 1)
        summed = convolutions.sum_of_formed(*batch, shape.geometry.flat(), one)
        assert summed.dtype is torch.float64
        assert torch.equal(summed.float(), grads[at])
    expected = in_order_of_columns(shape.grads_by_loop(*batch)[:1]).flatten(1)
    torch.testing.assert_close(grads[:1].double(), expected, rtol=0, atol=1e-6 * float(expected.abs().max()))


def test_a_record_that_is_not_counted_adds_nothing_to_a_sum_of_formed_gradients() -> None:
    shape = Convolution(channels=4, outputs=64, sizes=(6, 6), kernel=5, padding=2, records=3)
    inputs, output_grads = shape.batch(torch.float32)
    inputs[1] = torch.inf
    part, weights_B, counted_B = shape.part(inputs, output_grads), torch.ones(3), torch.tensor([True, False, True])
    assert part.sum_is_formed()
    others = shape.grads_by_loop(inputs, output_grads)[[0, 2]].sum(0)
    torch.testing.assert_close(part.weighted_sum(weights_B, counted_B), others, rtol=0, atol=1e-4)


def test_both_norms_are_chosen_by_some_shape_and_small_gradients_are_kept() -> None:
    few_positions = Convolution(channels=64, outputs=64, sizes=(2, 2), kernel=1)
    small = Convolution(channels=2, outputs=2, sizes=(16, 16), kernel=3)
    large = Convolution(channels=32, outputs=64, sizes=(5, 5), kernel=3)
    for shape, is_gram in ((few_positions, True), (small, False)):
        assert shape.part(*shape.batch()).gram_is_cheaper() is is_gram
    for shape, is_kept in ((small, True), (large, False)):
        assert shape.part(*shape.batch()).keeping_pays() is is_kept


def test_half_precision_is_summed_in_float32_or_better() -> None:
    shape = Convolution(channels=4, outputs=6, sizes=(12, 12), kernel=3, padding=1, records=64)
    batch = shape.batch(torch.bfloat16)
    for norms in both_norms(shape, *batch):
        assert norms.dtype is torch.float32
        torch.testing.assert_close(norms.double(), squares_by_loop(shape, *batch), rtol=1e-4, atol=0)
    found = summed(shape, *batch, torch.ones(64), torch.ones(64) > 0)
    expected = shape.grads_by_loop(*batch).sum(0)
    assert found.dtype is torch.float64
    assert (found - expected).norm() <= 1e-5 * expected.norm()


def test_a_record_that_is_not_finite_spoils_no_other_norm() -> None:
    shape = SHAPES["image"]
    inputs, output_grads = shape.batch()
    expected = squares_by_loop(shape, inputs, output_grads)
    inputs[1] = torch.inf
    for found in both_norms(shape, inputs, output_grads):
        assert not found[1].isfinite()
        torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=1e-10, atol=0)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_record_that_is_not_counted_adds_exactly_nothing_whatever_it_holds(bad: float) -> None:
    inputs, output_grads = IMAGE.batch()
    counted_B = torch.tensor([True, False, True])

    def sum_with(value: float) -> Tensor:
        changed, changed_grads = inputs.clone(), output_grads.clone()
        changed[2:4] = changed_grads[2:4] = value
        weights_B = torch.tensor([0.5, value, 1.0], dtype=torch.float64)
        return summed(IMAGE, changed, changed_grads, weights_B, counted_B)

    assert torch.equal(sum_with(bad), sum_with(0))
    nobody = summed(IMAGE, inputs, output_grads, torch.ones(3), torch.zeros(3, dtype=torch.bool))
    assert torch.equal(nobody, torch.zeros_like(nobody))


@pytest.mark.parametrize("shape", [SHAPES["sequence, groups"], SHAPES["image, views, groups"], SHAPES["volume"]])
def test_the_sum_without_tf32_is_the_same_and_a_sound_operator_that_leaves_torchs_settings(shape: Convolution) -> None:
    batch = shape.batch(torch.float32)
    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark
    operator = torch.ops.lehr.convolution_sum.default
    expected = summed(shape, *batch, torch.ones(shape.records), torch.ones(shape.records, dtype=torch.bool))
    torch.testing.assert_close(operator(*batch, shape.geometry.flat()), expected.float())
    torch.library.opcheck(operator, (*batch, shape.geometry.flat()), test_utils=CHECKS)
    assert before == (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark)


@on_a_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_sums_without_tf32_whatever_torch_is_set_to(dtype: torch.dtype) -> None:
    assert torch.backends.cudnn.allow_tf32
    shape = Convolution(channels=64, outputs=64, sizes=(16, 16), kernel=3, groups=2, records=8)
    batch = shape.batch(dtype, "cuda")
    weights_B = torch.linspace(0.1, 1, 8)
    found = summed(shape, *batch, weights_B.cuda(), weights_B.cuda() > 0)
    expected = torch.tensordot(weights_B.double(), shape.grads_by_loop(*batch), dims=1)
    assert (found.cpu().double() - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("records_at_once", [0, 7, 99, 100, 101])
def test_the_number_of_chunks_changes_nothing(records_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, output_grads = HUNDRED.batch()
    bytes_of_a_record = HUNDRED.views * 16 * HUNDRED.channels * 9 * inputs.element_size()
    monkeypatch.setattr(convolutions, "_CACHED_BYTES", max(1, records_at_once * bytes_of_a_record))
    arguments = (inputs, output_grads, HUNDRED.geometry.flat(), 100)
    (nothing, norms), (grads, same_norms) = (convolutions.form(*arguments, is_kept=kept) for kept in (False, True))
    assert not nothing.numel()
    for found in (norms, same_norms):
        torch.testing.assert_close(found, squares_by_loop(HUNDRED, inputs, output_grads), rtol=1e-10, atol=0)
    expected = in_order_of_columns(HUNDRED.grads_by_loop(inputs, output_grads))
    torch.testing.assert_close(grads, expected.flatten(1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("is_kept", [True, False])
def test_forming_is_a_sound_operator(is_kept: bool) -> None:
    shape = SHAPES["image, views, groups"]
    arguments = (*shape.batch(), shape.geometry.flat(), shape.records, is_kept)
    torch.library.opcheck(torch.ops.lehr.form_convolution.default, arguments, test_utils=CHECKS)
    others = (*arguments[:3], torch.ones(shape.records))
    torch.library.opcheck(torch.ops.lehr.sum_of_formed_convolutions.default, others, test_utils=CHECKS)


def on_a_made_up_gpu(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    "shape, dtype, groups, is_taken",
    [
        ((4, 8, 6, 6), torch.bfloat16, 1, True),
        ((4, 8, 6, 6), torch.float32, 1, False),
        ((4, 8, 6, 6), torch.bfloat16, 2, False),
        ((4, 8, 6), torch.bfloat16, 1, False),
        ((4, 8, 6, 6, 6), torch.bfloat16, 1, False),
    ],
)
def test_triton_takes_images_in_bfloat16_without_groups(
    shape: tuple[int, ...], dtype: torch.dtype, groups: int, is_taken: bool
) -> None:
    pytest.importorskip("triton", reason="Triton is for Linux")
    axes = len(shape) - 2
    geometry = Geometry((1,) * axes, (1,) * axes, (0,) * axes, (1,) * axes, groups)
    values = on_a_made_up_gpu(shape, dtype)
    assert Convolved(values, values, geometry, 4).is_for_triton() is is_taken
    assert not SQUARE.part(*SQUARE.batch(torch.bfloat16)).is_for_triton()  # on a CPU


def test_fake_triton_kernels_have_the_shapes_and_types_of_the_real_ones() -> None:
    pytest.importorskip("triton", reason="Triton is for Linux")
    images = SQUARE.records * SQUARE.views
    inputs = on_a_made_up_gpu((images, 3, 9, 9), torch.bfloat16)
    output_grads = on_a_made_up_gpu((images, 8, *SQUARE.places), torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True):
        norms = convolutions.triton_norms(inputs, output_grads, SQUARE.geometry.flat(), 3)
        grads, kept_norms = convolutions.triton_formed(inputs, output_grads, SQUARE.geometry.flat(), 3)
    assert norms.shape == kept_norms.shape == (3,)
    assert grads.shape == (3, 8, 27)
    assert norms.dtype is kept_norms.dtype is grads.dtype is torch.float32


@on_a_gpu
def test_the_triton_kernels_are_sound_operators() -> None:
    inputs, output_grads = SQUARE.batch(torch.bfloat16, "cuda")
    flat, weights = SQUARE.geometry.flat(), torch.linspace(0, 1, 6, device="cuda")
    for operator in (convolutions.triton_norms, convolutions.triton_formed):
        torch.library.opcheck(operator, (inputs, output_grads, flat, 3), test_utils=CHECKS)
    torch.library.opcheck(convolutions.triton_parts, (inputs, output_grads, flat, weights), test_utils=CHECKS)
