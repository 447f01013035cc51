"""What every contribution must keep, and drawn tensors to build them from."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lehr.gradients import contributions
from lehr.gradients.contributions import (
    KEPT_BYTES,
    ContributedGradients,
    Lookup,
    Materialised,
    Outer,
    Shared,
    Stacked,
    Through,
    Unused,
    outer,
    together,
)
from lehr.gradients.convolutions import Convolved, Geometry
from lehr.gradients.precision import ROUNDING_OF_SUMS, margin, weigh
from lehr.interfaces import Contribution
from tests.gradients.oracle import assert_agrees, batch
from tests.gradients.standardised import standardised_convolution


def drawn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def assert_consistent(part: Contribution, *, tolerance: float = 1e-10) -> None:
    """Norms and sums are those of the gradients that ``materialised`` gives; what is not counted adds nothing."""
    grads = part.materialised().double()
    records = grads.shape[0]
    squares_B = grads.reshape(records, grads.shape[1:].numel()).square().sum(1)
    torch.testing.assert_close(part.squared_norms().double(), squares_B, rtol=2 * tolerance, atol=tolerance)
    weights_B, counted_B = drawn(records, seed=9), torch.arange(records) % 3 != 1
    expected = torch.tensordot(weights_B * counted_B, grads, dims=1)
    found = part.weighted_sum(weights_B.to(part.squared_norms().dtype), counted_B)
    assert found.dtype == part.squared_norms().dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(0, 3), (1, 2, 3), (4,), (4, 0), (5, 2)])
def test_any_shape_is_consistent(shape: tuple[int, ...]) -> None:
    assert_consistent(Materialised(drawn(*shape)))


def test_sums_of_bfloat16_gradients_are_kept_in_float32() -> None:
    ones = torch.ones(1000, 2, dtype=torch.bfloat16)
    table = Lookup(torch.zeros(1000, 1, dtype=torch.long), ones.unsqueeze(1), 3)
    everyone = torch.ones(1000), torch.ones(1000, dtype=torch.bool)
    assert Materialised(ones).weighted_sum(*everyone).tolist() == [1000.0, 1000.0]
    assert table.weighted_sum(*everyone)[0].tolist() == [1000.0, 1000.0]
    assert Lookup(torch.zeros(1, 1000, dtype=torch.long), ones.unsqueeze(0), 3).squared_norms().item() == 2e6


def test_a_record_that_is_not_counted_adds_nothing_whatever_its_weight() -> None:
    part = Materialised(torch.tensor([[1.0], [torch.nan]]))
    weights_B, counted_B = torch.tensor([2.0, torch.inf]), torch.tensor([True, False])
    assert part.weighted_sum(weights_B, counted_B).tolist() == [2.0]


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@settings(max_examples=20)
@given(records=st.integers(0, 3), positions=st.integers(0, 6), outputs=st.integers(1, 20), inputs=st.integers(1, 20))
def test_any_shape_is_consistent_of_outer(records: int, positions: int, outputs: int, inputs: int) -> None:
    part = Outer(drawn(records, positions, outputs), drawn(records, positions, inputs, seed=1))
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


@pytest.mark.parametrize("positions", [1, 3, 40])
def test_padding_columns_of_outer_are_no_rows_of_the_parameter(positions: int) -> None:
    grads, inputs = drawn(4, positions, 5), drawn(4, positions, 3, seed=1)
    plain, padded = Outer(grads, inputs), Outer(nn.functional.pad(grads, (0, 3)), inputs, rows=5)
    assert padded.shape == plain.shape
    assert_consistent(padded)
    # A product with more columns may add up in another order.
    torch.testing.assert_close(padded.taken(1, 3).materialised(), plain.taken(1, 3).materialised())
    assert together([padded, padded]).materialised().shape == plain.materialised().shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norms_of_half_precision_are_those_of_the_tensors_as_they_are(dtype: torch.dtype) -> None:
    for positions in (1, 3, 40):
        part = Outer(drawn(2, positions, 16, dtype=dtype), drawn(2, positions, 16, dtype=dtype, seed=1))
        squares = part.materialised().double().flatten(1).square().sum(1)
        torch.testing.assert_close(part.squared_norms().double(), squares, rtol=1e-4, atol=0)


@pytest.mark.parametrize("positions", [2, 30, 300])
@pytest.mark.parametrize("spread", [1e-2, 1e-1, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_summed_is_no_longer_than_its_norm_said(positions: int, spread: float, dtype: torch.dtype) -> None:
    """Scaling rounds half precision, in proportion to what cancels and not to what is left."""
    inputs = (drawn(16, 1, 128) + spread * drawn(16, positions, 128, seed=1)).to(dtype)
    output_grads = drawn(16, positions, 128, seed=2)
    part = Outer((output_grads - output_grads.mean(1, keepdim=True)).to(dtype), inputs)
    norms_B, weights_B = part.squared_norms().sqrt(), drawn(16, seed=3).abs().float()
    everyone = torch.ones(16, dtype=torch.bool)
    summed_B = torch.stack([part.weighted_sum(row, everyone).norm() for row in torch.diag(weights_B)])
    assert (summed_B <= norms_B * weights_B * (1 + margin(dtype) / 4)).all()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=on_a_gpu)])
@pytest.mark.parametrize("repeats", [1, 8, 64, 512])
def test_a_record_that_is_made_to_round_one_way_is_still_no_longer_than_its_norm_said(
    repeats: int, device: str
) -> None:
    """Scaled by this weight, 49 and 44 are rounded up and -93 is too, while the three add up to nothing."""
    values = torch.tensor([49.0, 44, -93], dtype=torch.bfloat16, device=device).repeat(repeats)
    part = Outer(
        values.reshape(1, -1, 1).expand(1, -1, 32), torch.ones_like(values).reshape(1, -1, 1).expand(1, -1, 32)
    )
    weights_B, everyone = torch.tensor([0.7123], device=device), torch.ones(1, dtype=torch.bool, device=device)
    summed = part.weighted_sum(weights_B, everyone).norm()
    assert summed <= part.squared_norms().sqrt() * weights_B * (1 + margin(torch.bfloat16))


@pytest.mark.parametrize("positions", [2, 5, 30, 100])
@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 1.0])
def test_a_norm_is_never_reported_too_small_however_much_cancels(positions: int, spread: float) -> None:
    """Nearly equal inputs meet output gradients that add up to nothing, as before a normalisation."""
    inputs = drawn(16, 1, 256, dtype=torch.float32) + spread * drawn(16, positions, 256, dtype=torch.float32, seed=1)
    output_grads = drawn(16, positions, 256, dtype=torch.float32, seed=2)
    output_grads = output_grads - output_grads.mean(1, keepdim=True)
    true = Outer(output_grads.double(), inputs.double()).materialised().flatten(1).norm(dim=1)
    before, after = (values.transpose(1, 2).contiguous() for values in (inputs, output_grads))
    convolved = Convolved(before, after, Geometry((1,), (1,), (0,), (1,)), 16)
    for part in (Outer(output_grads, inputs), convolved):
        norms = part.squared_norms().double().sqrt()
        assert (norms >= true * (1 - 1e-5)).all()
        summed = [part.weighted_sum(one, torch.ones(16, dtype=torch.bool)).norm() for one in torch.eye(16)]
        assert (torch.stack(summed) <= norms * (1 + margin(torch.float32) / 4)).all()


def test_where_nothing_cancels_the_norm_is_hardly_larger_than_it_is() -> None:
    output_grads, inputs = (drawn(8, 100, 512, dtype=torch.float32, seed=seed) for seed in (0, 1))
    true = Outer(output_grads.double(), inputs.double()).materialised().flatten(1).norm(dim=1)
    found = Outer(output_grads, inputs).squared_norms().double().sqrt()
    torch.testing.assert_close(found, true, rtol=5e-6, atol=0)


def test_a_small_gradient_is_kept_and_a_large_one_is_not() -> None:
    assert isinstance(outer(drawn(2, 9, 4), drawn(2, 9, 4, seed=1)), Materialised)
    assert isinstance(outer(drawn(2, 1, 4), drawn(2, 1, 4, seed=1)), Outer)  # one position: norms are products of norms
    assert isinstance(outer(drawn(2, 2, 64), drawn(2, 2, 64, seed=1)), Outer)  # few positions: products between them
    many = KEPT_BYTES // (4 * 2 * 3) + 1
    assert isinstance(outer(torch.empty(many, 6, 2), torch.empty(many, 6, 3)), Outer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_gradient_that_is_kept_has_the_norms_and_the_sum_of_one_that_is_not(dtype: torch.dtype) -> None:
    factors = drawn(3, 9, 4, dtype=dtype), drawn(3, 9, 5, dtype=dtype, seed=1)
    kept, plain = outer(*factors), Outer(*factors)
    torch.testing.assert_close(kept.squared_norms(), plain.squared_norms(), rtol=1e-4, atol=0)
    weights, counted = torch.tensor([0.5, 2.0, 1.0]), torch.tensor([True, False, True])
    found, expected = (part.weighted_sum(weights.to(kept.materialised().dtype), counted) for part in (kept, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_positions_that_cancel_hardly_round_what_other_records_add() -> None:
    """Every second record has two long positions that cancel; the others, each of the clip norm 1, stand between."""
    made = torch.Generator().manual_seed(0)
    output_grads, inputs = torch.rand(64, 2, 3, generator=made), torch.rand(64, 2, 5, generator=made)
    output_grads[::2, 1] = -output_grads[::2, 0]
    inputs[::2, 1] = inputs[::2, 0] = 1e9 * inputs[::2, 0]
    part, everybody = Outer(output_grads, inputs), torch.ones(64, dtype=torch.bool)
    weights_B = 1 / part.squared_norms().sqrt().clamp_min(1)
    scaled = weigh(output_grads, weights_B, everybody).double()
    exact = torch.einsum("bto,bti->oi", scaled, inputs.double())
    assert float((part.weighted_sum(weights_B, everybody) - exact).norm()) <= ROUNDING_OF_SUMS / 4


@settings(max_examples=25)
@given(records=st.integers(0, 3), positions=st.integers(0, 6), num_rows=st.integers(1, 4))
def test_rows_that_are_looked_up_again_and_again_add_up(records: int, positions: int, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(positions)
    rows = torch.randint(0, num_rows, (records, positions), generator=generator)
    part = Lookup(rows, drawn(records, positions, 3), num_rows)
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


def test_gradients_that_cancel_in_one_row_have_the_norm_that_rounding_may_leave() -> None:
    """Each position is rounded when it is scaled, so that their sum need not cancel as exactly as they do."""
    grads = drawn(1, 1, 3, dtype=torch.float32)
    part = Lookup(torch.tensor([[2, 2]]), torch.cat([grads, -grads], dim=1), 4)
    whole = float(part.squares_apart())
    assert 0 < float(part.squared_norms()) < 1e-12 * whole


def test_a_record_whose_rows_cancel_is_never_longer_than_its_norm_says() -> None:
    """Thirds of the first position and the rest in a second and third one, whose roundings differ."""
    grads = drawn(1, 1, 64, dtype=torch.float32)
    pieces = torch.cat([grads, -grads / 3, -(grads - grads / 3)], dim=1)
    part = Lookup(torch.zeros(1, 3, dtype=torch.long), pieces, 2)
    for weight in (0.1, 1 / 3, 0.7, 12345.678):
        summed = part.weighted_sum(torch.tensor([weight]), torch.tensor([True]))
        assert float(summed.norm()) <= weight * float(part.squared_norms().sqrt())


GEOMETRIES = {
    "one": (Geometry((3,), (2,), (1,), (1,)), (9,), (5,)),
    "two": (Geometry((3, 2), (1, 2), (1, 0), (1, 2), 2), (4, 6), (4, 2)),
    "three": (Geometry((2, 2, 2), (1, 1, 1), (0, 0, 0), (1, 1, 1)), (3, 3, 3), (2, 2, 2)),
}


@pytest.mark.parametrize("name", sorted(GEOMETRIES))
@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("records", [0, 1, 4])
def test_any_geometry_is_consistent(name: str, views: int, records: int) -> None:
    geometry, before, after = GEOMETRIES[name]
    part = Convolved(drawn(records * views, 4, *before), drawn(records * views, 6, *after, seed=1), geometry, records)
    assert part.materialised().shape == (records, *part.shape)
    assert_consistent(part)


def test_blocks_stand_one_above_the_other() -> None:
    upper, lower = Outer(drawn(3, 2, 4), drawn(3, 2, 5)), Materialised(drawn(3, 1, 5))
    both = Stacked((upper, lower))
    assert both.materialised().shape == (3, 5, 5)
    torch.testing.assert_close(both.materialised()[:, :4], upper.materialised())
    assert_consistent(both)


@pytest.mark.parametrize("records", [0, 1, 5])
def test_a_linear_map_of_the_gradients_is_consistent(records: int) -> None:
    matrix = drawn(4, 3)
    part = Through(Outer(drawn(records, 2, 3), drawn(records, 2, 5)), lambda grad: matrix @ grad)
    assert part.materialised().shape == (records, 4, 5)
    assert_consistent(part)


def test_a_weight_standardised_convolution_that_is_used_twice_or_partly_frozen() -> None:
    layer = standardised_convolution(2, 2)
    for records in (0, 3):
        assert_agrees(nn.Sequential(layer, nn.Tanh(), layer).double(), *batch(records, 2, 4, 4))
    for frozen in ("parametrizations.weight.original", "parametrizations.weight.0.gain"):
        layer = standardised_convolution(2, 3).double()
        layer.get_parameter(frozen).requires_grad_(False)
        assert_agrees(layer, *batch(3, 2, 4, 4))


def test_few_records_are_formed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributions, "FORMED_BYTES", 4 * 15 * 2)  # two records of 3 × 5 numbers
    seen: list[int] = []

    class Watched(Outer):
        def materialised(self) -> Tensor:
            seen.append(self.records)
            return super().materialised()

        def taken(self, first: int, last: int) -> Watched:
            return Watched(self.output_grads_BTO[first:last], self.inputs_BTI[first:last])

    for records, sizes in ((7, [2, 2, 2, 1]), (1, [1]), (0, [0])):
        part = Through(Watched(drawn(records, 2, 3), drawn(records, 2, 5)), lambda grad: 2 * grad)
        seen.clear()
        squares_B = part.squared_norms()
        assert seen == sizes
        torch.testing.assert_close(squares_B, part.materialised().flatten(1).square().sum(1))
    whole = Through(Stacked((Watched(drawn(7, 2, 3), drawn(7, 2, 5)),)), lambda grad: 2 * grad)
    seen.clear()
    whole.squared_norms()
    assert seen == [7]  # what cannot be divided is formed at once


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("records", [0, 3])
def test_zeros_of_the_right_shape_in_float32_or_better(dtype: torch.dtype, records: int) -> None:
    part = Unused(torch.Size([2, 4]), records, torch.ones(1, dtype=dtype))
    assert part.materialised().shape == (records, 2, 4)
    assert part.squared_norms().dtype == torch.promote_types(dtype, torch.float32)
    assert_consistent(part)


ROWS, COLUMNS = 6, 5


def a_lookup(records: int, seed: int) -> Lookup:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(0, ROWS, (records, 4), generator=generator)
    return Lookup(rows, drawn(records, 4, COLUMNS, seed=seed), ROWS)


def an_outer(records: int, seed: int) -> Outer:
    return Outer(drawn(records, 2, ROWS, seed=seed), drawn(records, 2, COLUMNS, seed=seed + 50))


def a_stored_one(records: int, seed: int) -> Materialised:
    return Materialised(drawn(records, ROWS, COLUMNS, seed=seed))


def blocks(records: int, seed: int) -> Stacked:
    return Stacked((Materialised(drawn(records, 2, COLUMNS, seed=seed)), Materialised(drawn(records, 4, COLUMNS))))


@pytest.mark.parametrize("one, other", list(product([a_lookup, an_outer, a_stored_one, blocks], repeat=2)))
@pytest.mark.parametrize("records", [0, 1, 3])
def test_any_two_uses_are_consistent(one: object, other: object, records: int) -> None:
    uses: tuple[Contribution, ...] = (one(records, 1), other(records, 2))  # type: ignore[operator]
    assert_consistent(Shared(uses))


@pytest.mark.parametrize("left", [0.0, 1e-5, 1e-3, 1.0])
def test_uses_that_cancel_are_never_reported_too_small(left: float) -> None:
    """The table takes back what the last layer gave, up to a little."""
    table = a_lookup(16, 1)
    grads = table.output_grads_BTD.float()
    one_hot = torch.nn.functional.one_hot(table.rows_BT, ROWS).float()
    back = Outer(-one_hot * (1 - left), grads)
    both = Shared((Lookup(table.rows_BT, grads, ROWS), back))
    exact = Shared((Lookup(table.rows_BT, grads.double(), ROWS), Outer(back.output_grads_BTO.double(), grads.double())))
    true = exact.materialised().flatten(1).norm(dim=1)
    assert (both.squared_norms().double().sqrt() >= true * (1 - 1e-5)).all()


GEOMETRY = Geometry((3,), (1,), (1,), (1,))


def images(length: int, *, views: int = 1, seed: int = 0) -> Contribution:
    inputs, output_grads = drawn(3 * views, 2, length, seed=seed), drawn(3 * views, 4, length, seed=seed + 50)
    return Convolved(inputs, output_grads, GEOMETRY, 3)


def an_outer_of(positions: int) -> Outer:
    return Outer(drawn(3, positions, 4, seed=positions), drawn(3, positions, 5, seed=positions + 9))


def a_lookup_of(positions: int) -> Lookup:
    rows = torch.arange(3 * positions).reshape(3, positions) % 3
    return Lookup(rows, drawn(3, positions, 5, seed=positions), 4)


TOGETHER: dict[str, tuple[list[Contribution], type]] = {
    "products become more positions": ([an_outer_of(1), an_outer_of(2), an_outer_of(6)], Outer),
    "lookups become more lookups": ([a_lookup_of(1), a_lookup_of(3)], Lookup),
    "stored gradients are added": ([Materialised(drawn(3, 2)), Materialised(drawn(3, 2, seed=1))], Materialised),
    "images of one size become more views": ([images(5), images(5, seed=1), images(5, views=2, seed=2)], Convolved),
    "images of several sizes": ([images(5), images(7, seed=1)], Shared),
    "different kinds": ([a_lookup_of(2), an_outer_of(2)], Shared),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_several_uses_of_one_parameter_add_up(name: str) -> None:
    uses, kind = TOGETHER[name]
    whole = together(uses)
    assert isinstance(whole, kind)
    torch.testing.assert_close(whole.materialised(), torch.stack([use.materialised() for use in uses]).sum(0))
    assert_consistent(whole)


GRADS = {"weight": torch.tensor([[3.0, 0.0], [0.0, 6.0], [1.0, 1.0]]), "bias": torch.tensor([[4.0], [8.0], [1.0]])}
GROUPS = [["weight"], ["bias"]]


def gradients(grads: dict[str, Tensor] = GRADS, mask: list[bool] | None = None) -> ContributedGradients:
    parts = {name: Materialised(value) for name, value in grads.items()}
    return ContributedGradients(parts, mask_B=torch.tensor(mask or [True] * 3), margin=0.25)


def test_norms_are_over_all_parameters_or_over_each_group() -> None:
    torch.testing.assert_close(gradients().norms(), torch.tensor([5.0, 10.0, 3**0.5]))
    torch.testing.assert_close(gradients().norms(GROUPS), torch.tensor([[3.0, 4.0], [6.0, 8.0], [2**0.5, 1.0]]))
    torch.testing.assert_close(gradients().norms([["bias", "weight"]]).squeeze(1), gradients().norms())


def test_sums_have_one_weight_for_each_record_or_for_each_group_of_it() -> None:
    sums = gradients().weighted_sum(torch.tensor([1.0, 0.5, 0.0]))
    assert {name: value.tolist() for name, value in sums.items()} == {"weight": [3, 3], "bias": [8]}
    by_group = gradients().weighted_sum(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), GROUPS)
    assert {name: value.tolist() for name, value in by_group.items()} == {"weight": [3, 0], "bias": [8]}


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e30])
@pytest.mark.parametrize("name", GRADS)
def test_a_record_that_is_not_finite_in_one_parameter_counts_as_zero_in_all(name: str, bad: float) -> None:
    """A number whose square is not finite has no norm either."""
    grads = {key: value.clone() for key, value in GRADS.items()}
    grads[name][1, 0] = bad
    found = gradients(grads)
    assert found.norms().tolist()[:2] == [5, 0]
    assert found.norms(GROUPS).tolist()[1] == [0, 0]
    sums = found.weighted_sum(torch.tensor([1.0, float("nan"), 1.0]))
    assert {key: value.tolist() for key, value in sums.items()} == {"weight": [4, 1], "bias": [5]}


def test_sums_lie_in_the_order_of_the_parameters_memory() -> None:
    grads = {"weight": torch.randn(3, 4, 2).transpose(1, 2)}
    assert gradients(grads).weighted_sum(torch.ones(3))["weight"].is_contiguous()


def test_a_scale_is_in_norms_and_sums_and_leaves_the_mask_alone() -> None:
    parts = {name: Materialised(value / 8) for name, value in GRADS.items()}
    mask = torch.tensor([True, False, True])
    scaled = ContributedGradients(parts, mask_B=mask, margin=0.25, scale=8)
    plain = gradients(mask=mask.tolist())
    assert torch.equal(scaled.norms(), plain.norms())
    assert torch.equal(scaled.norms(GROUPS), plain.norms(GROUPS))
    for weights, groups in ((torch.rand(3), None), (torch.rand(3, 2), GROUPS)):
        found, expected = (of.weighted_sum(weights, groups) for of in (scaled, plain))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("formed_bytes", [1, 4 * 5 * 7, 2**20])
def test_norms_of_large_gradients_are_formed_in_tiles(formed_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    grads, inputs = (torch.randn(3, 40, size, generator=generator) for size in (7, 5))
    monkeypatch.setattr(contributions, "FORMED_BYTES", formed_bytes)
    use = contributions.Outer(grads, inputs)
    assert use.is_formed
    torch.testing.assert_close(use.squared_norms(), use.materialised().square().sum((1, 2)), rtol=1e-5, atol=1e-5)
