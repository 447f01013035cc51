from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lehr.attacks.canaries import (
    FIRST_CLASS,
    LOUDNESS,
    PRESENT,
    REPLACED,
    Canaries,
    CoordinateCanaries,
    Host,
    SignCanaries,
    hadamard,
    loss,
)
from lehr.data import InMemory
from lehr.errors import InvalidValue

HOST = Host(
    network=nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 4)),
    records=InMemory(torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4),
    num_classes=4,
)
KINDS: dict[str, Canaries] = {
    "coordinates": CoordinateCanaries(num_canaries=12, num_layers=3),
    "coordinates beside a host": CoordinateCanaries(num_canaries=12, num_layers=2, host=HOST),
    "signs": SignCanaries(side=4, num_loud=3),
}
each_kind = pytest.mark.parametrize("planted", KINDS.values(), ids=KINDS)


def gradients_of(planted: Canaries, records: InMemory) -> list[dict[str, Tensor]]:
    """Every record's own gradient, by plain backward passes through the network."""
    network = planted.network()
    found = []
    for inputs, target in zip(records.inputs, records.targets, strict=True):
        network.zero_grad()
        loss(network(inputs[None]), target[None]).sum().backward()  # type: ignore[no-untyped-call]
        found.append(
            {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in network.named_parameters()}
        )
    return found


def patterns(planted: Canaries) -> Tensor:
    rows = torch.arange(planted.num_canaries)
    records = planted.records(rows, torch.full_like(rows, PRESENT))
    alone = InMemory(records.inputs[: len(rows)], records.targets[: len(rows)])
    return (
        torch.stack([torch.cat([part.flatten() for part in one.values()]) for one in gradients_of(planted, alone)])
        / LOUDNESS
    )


@each_kind
def test_patterns_of_signs_are_orthogonal(planted: Canaries) -> None:
    found = patterns(planted)
    assert set(found.flatten().tolist()) <= {-1.0, 0.0, 1.0}
    products = found @ found.T
    assert torch.equal(products, torch.diag(products.diag()))
    assert len(set(products.diag().tolist())) == 1


def test_one_coordinate_of_every_layer_is_a_pattern() -> None:
    assert set(patterns(KINDS["coordinates"]).abs().sum(1).tolist()) == {3.0}


def test_a_pattern_of_signs_has_every_coordinate_and_no_coordinate_has_them_all_alike() -> None:
    found = patterns(SignCanaries(side=8, num_loud=0))
    assert bool((found.abs() == 1).all())
    # Of 124 rows, the sum in no coordinate is beyond what a bent function leaves and four unused rows may add.
    assert float(found.sum(0).abs().max()) <= 2 * 8 + 4


def test_loud_records_are_orthogonal_to_every_pattern_and_fill_a_quarter() -> None:
    planted = SignCanaries(side=4, num_loud=3)
    nobody = torch.empty(0, dtype=torch.long)
    loud = gradients_of(planted, planted.records(nobody, nobody))
    assert len(loud) == 3
    flat = torch.cat([part.flatten() for part in loud[0].values()]) / LOUDNESS
    assert float(flat.sum()) == flat.numel() / 4
    assert torch.equal(patterns(planted) @ flat, torch.zeros(planted.num_canaries))


@each_kind
def test_a_replaced_canary_pulls_the_other_way(planted: Canaries) -> None:
    rows = torch.tensor([0, 0])
    records = planted.records(rows, torch.tensor([PRESENT, REPLACED]))
    one, other = gradients_of(planted, InMemory(records.inputs[:2], records.targets[:2]))
    assert all(torch.equal(one[name], -other[name]) for name in one)
    assert any(bool(part.any()) for part in one.values())


@each_kind
def test_looking_along_the_patterns_is_an_inner_product_with_each(planted: Canaries) -> None:
    made = torch.Generator().manual_seed(1)
    values = {
        name: torch.randn(parameter.shape, generator=made, dtype=torch.float64)
        for name, parameter in planted.network().named_parameters()
    }
    flat = torch.cat([value.flatten() for value in values.values()])
    assert torch.allclose(planted.along(values).double(), patterns(planted).double() @ flat)


@pytest.mark.parametrize("signs", [(1.0, 0.0), (1.0, -1.0)], ids=["added", "replaced"])
@pytest.mark.parametrize("clips_coordinates", [True, False])
def test_the_sum_that_is_expected_is_that_of_all_records(signs: tuple[float, float], clips_coordinates: bool) -> None:
    planted = SignCanaries(side=4, num_loud=3)
    there = torch.arange(planted.num_canaries) % 3 == 0
    signs_R = torch.where(there, *signs).double()
    expected = planted.expected(signs_R, clips_coordinates=clips_coordinates)
    flat = torch.cat([part.flatten() for part in expected.values()])
    loud = torch.zeros(2, 4, 4)
    loud[0, :2] = 3 * (1 if clips_coordinates else 2)
    assert torch.allclose(flat, signs_R @ patterns(planted).double() + loud.flatten())


def test_canaries_of_coordinates_are_in_nobodys_way() -> None:
    assert KINDS["coordinates"].expected(torch.ones(12), clips_coordinates=False) == {}


def test_a_host_learns_from_its_own_records_and_canaries_leave_it_alone() -> None:
    planted = KINDS["coordinates beside a host"]
    records = planted.records(torch.tensor([3]), torch.tensor([PRESENT]))
    assert len(records) == 1 + 6
    canary, *others = gradients_of(planted, records)
    assert not any(bool(part.any()) for name, part in canary.items() if name.startswith("host."))
    for other in others:
        assert any(bool(part.any()) for name, part in other.items() if name.startswith("host."))
        assert not any(bool(part.any()) for name, part in other.items() if name.startswith("tables."))


def test_the_host_is_copied_for_every_network() -> None:
    planted = KINDS["coordinates beside a host"]
    first = planted.network()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1.0)
    assert not torch.equal(dict(first.named_parameters())["host.0.weight"], HOST.network[0].weight)  # type: ignore[index]


@each_kind
def test_the_public_record_is_no_canarys(planted: Canaries) -> None:
    public = planted.public()
    rows = torch.arange(planted.num_canaries)
    used = planted.records(rows, torch.full_like(rows, PRESENT)).inputs[: len(rows)]
    assert not any(torch.equal(public.inputs[0], row) for row in used)
    assert bool((public.targets < planted.num_classes).all())


def test_targets_of_a_host_come_after_those_of_canaries() -> None:
    planted = KINDS["coordinates beside a host"]
    nobody = torch.empty(0, dtype=torch.long)
    assert planted.num_classes == FIRST_CLASS + 4
    assert planted.records(nobody, nobody).targets.tolist() == [2, 3, 4, 5, 2, 3]


def test_the_matrix_of_signs_has_orthogonal_rows() -> None:
    matrix = hadamard(16)
    assert torch.equal(matrix @ matrix.T, 16 * torch.eye(16))


@pytest.mark.parametrize("wrong", [{"side": 6}, {"side": 2}, {"num_loud": -1}])
def test_patterns_of_signs_come_in_powers_of_two(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidValue):
        SignCanaries(**wrong)


@pytest.mark.parametrize("wrong", [{"num_canaries": 0}, {"num_canaries": 3, "num_layers": 0}])
def test_coordinates_are_counted(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidValue):
        CoordinateCanaries(**wrong)  # type: ignore[arg-type]
