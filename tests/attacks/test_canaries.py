from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lehr.attacks.canaries import (
    LOUDNESS,
    NUM_CLASSES,
    PRESENT,
    REPLACED,
    Canaries,
    CoordinateCanaries,
    SignCanaries,
    loss,
)
from lehr.data import InMemory
from lehr.errors import InvalidValue

SIGNS = SignCanaries(side=4, num_loud=3)
KINDS: dict[str, Canaries] = {"coordinates": CoordinateCanaries(num_canaries=12, num_layers=3), "signs": SIGNS}
each_kind = pytest.mark.parametrize("canaries", KINDS.values(), ids=KINDS)


def gradients_of(canaries: Canaries, records: InMemory) -> Tensor:
    """Every record's own gradient, by plain backward passes through the network, in units of the loudness."""
    network = canaries.network()
    rows = []
    for inputs, target in zip(records.inputs, records.targets, strict=True):
        network.zero_grad()
        loss(network(inputs[None]), target[None]).sum().backward()  # type: ignore[no-untyped-call]
        rows.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    return torch.stack(rows) / LOUDNESS


def patterns(canaries: Canaries) -> Tensor:
    rows = torch.arange(canaries.num_canaries)
    return gradients_of(canaries, canaries.records(rows, torch.full_like(rows, PRESENT)))[: len(rows)]


@each_kind
def test_patterns_are_orthogonal_rows_of_signs(canaries: Canaries) -> None:
    found = patterns(canaries)
    assert set(found.flatten().tolist()) <= {-1.0, 0.0, 1.0}
    products = found @ found.T
    assert torch.equal(products, torch.diag(products.diag()))
    assert len(set(products.diag().tolist())) == 1


def test_a_pattern_has_one_coordinate_of_every_layer_or_all_of_them() -> None:
    assert set(patterns(KINDS["coordinates"]).abs().sum(1).tolist()) == {3.0}
    found = patterns(SignCanaries(side=8, num_loud=0))
    assert bool((found.abs() == 1).all())
    # Of 124 rows, the sum in no coordinate is beyond what a bent function leaves and four unused rows may add.
    assert float(found.sum(0).abs().max()) <= 2 * 8 + 4


def test_loud_records_are_orthogonal_to_every_pattern_and_fill_a_quarter() -> None:
    none = torch.empty(0, dtype=torch.long)
    loud = gradients_of(SIGNS, SIGNS.records(none, none))
    assert len(loud) == 3
    assert float(loud[0].sum()) == loud[0].numel() / 4
    assert not (patterns(SIGNS) @ loud[0]).any()


@each_kind
def test_a_replaced_canary_has_the_opposite_gradient(canaries: Canaries) -> None:
    records = canaries.records(torch.tensor([0, 0]), torch.tensor([PRESENT, REPLACED]))
    one, other, *_ = gradients_of(canaries, records)
    assert torch.equal(one, -other)
    assert bool(one.any())


@each_kind
def test_values_along_the_patterns_are_inner_products(canaries: Canaries) -> None:
    generator = torch.Generator().manual_seed(1)
    values = {
        name: torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        for name, parameter in canaries.network().named_parameters()
    }
    flat = torch.cat([value.flatten() for value in values.values()])
    assert torch.allclose(canaries.along(values).double(), patterns(canaries).double() @ flat)


@pytest.mark.parametrize("signs", [(1.0, 0.0), (1.0, -1.0)], ids=["added", "replaced"])
@pytest.mark.parametrize("clips_coordinates", [True, False])
def test_the_expected_sum_is_that_of_all_records(signs: tuple[float, float], clips_coordinates: bool) -> None:
    signs_R = torch.where(torch.arange(SIGNS.num_canaries) % 3 == 0, *signs).double()
    expected = SIGNS.expected(signs_R, clips_coordinates=clips_coordinates)
    assert expected.keys() == dict(SIGNS.network().named_parameters()).keys()
    flat = torch.cat([part.flatten() for part in expected.values()])
    loud = torch.zeros(2, 4, 4)
    loud[0, :2] = 3 * (1 if clips_coordinates else 2)
    assert torch.allclose(flat, signs_R @ patterns(SIGNS).double() + loud.flatten())
    assert KINDS["coordinates"].expected(torch.ones(12), clips_coordinates=clips_coordinates) == {}


@each_kind
def test_the_public_record_is_no_canary(canaries: Canaries) -> None:
    public, rows = canaries.public(), torch.arange(canaries.num_canaries)
    used = canaries.records(rows, torch.full_like(rows, PRESENT)).inputs[: len(rows)]
    assert not (used == public.inputs[0]).all(dim=1).any()
    assert bool((public.targets < NUM_CLASSES).all())


def test_sizes_are_checked() -> None:
    for wrong in ({"side": 6}, {"side": 2}, {"num_loud": -1}):
        with pytest.raises(InvalidValue):
            SignCanaries(**wrong)
    for wrong in ({"num_canaries": 0}, {"num_canaries": 3, "num_layers": 0}):
        with pytest.raises(InvalidValue):
            CoordinateCanaries(**wrong)
