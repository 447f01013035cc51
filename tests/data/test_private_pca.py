"""Private principal components: sensitivity, noise, and what they find."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from lehr.accounting.events import Gaussian
from lehr.data.private_pca import RECORDS_AT_ONCE, PrivatePCA, within_unit_ball
from lehr.data.records import InMemory
from lehr.errors import InvalidValue
from lehr.interfaces import Inputs, PrivateSum, ReleasedSum
from lehr.privacy.noise import IsotropicNoise
from lehr.privacy.rng import RunKey

INPUTS = 12


def _records(inputs: Tensor) -> InMemory:
    return InMemory(inputs, torch.zeros(len(inputs)))


def _as_it_is(seen: Inputs) -> Inputs:
    return seen


def _moment(inputs: Tensor, prepare: Callable[[Inputs], Inputs] = _as_it_is) -> PrivateSum:
    pca = PrivatePCA(dimensions=3, noise_multiplier=1.0)
    return pca.private_moment(_records(inputs), prepare, inputs=INPUTS)


def _drawn(num_records: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(0.5, -1.5, INPUTS)
    return torch.randn(num_records, INPUTS, generator=generator) * scales


def _noised(private: PrivateSum, noise_multiplier: float, *, step: int = 0) -> ReleasedSum:
    randomness = RunKey(bytes(32)).at(step, 0)
    return IsotropicNoise().release(private, noise_multiplier=noise_multiplier, randomness=randomness)


ADVERSARIES = {
    "one long coordinate": torch.eye(INPUTS)[0] * 1e30,
    "all coordinates alike": torch.full((INPUTS,), 1e6),
    "just above the ball": torch.full((INPUTS,), (1 + 1e-7) / math.sqrt(INPUTS)),
    "on the ball": torch.full((INPUTS,), 1 / math.sqrt(INPUTS)),
    "subnormal": torch.full((INPUTS,), 1e-45),
    "mixed sizes": torch.logspace(-40, 38, INPUTS),
    "not a number": torch.tensor([math.nan] + [1.0] * (INPUTS - 1)),
    "infinite": torch.tensor([math.inf] + [1.0] * (INPUTS - 1)),
}


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("num_others", [0, 5, RECORDS_AT_ONCE])
def test_one_record_moves_the_sum_by_at_most_its_sensitivity(name: str, num_others: int) -> None:
    others = _drawn(num_others)
    with_it, without = _moment(torch.cat([others, ADVERSARIES[name][None]])), _moment(others)
    moved = torch.linalg.vector_norm(with_it.values["moment"] - without.values["moment"])
    assert with_it.sensitivity == without.sensitivity == 1.0
    assert moved <= 1.0
    assert with_it.values["moment"].isfinite().all()


def test_the_sensitivity_is_tight() -> None:
    moved = torch.linalg.vector_norm(_moment(ADVERSARIES["one long coordinate"][None]).values["moment"])
    assert moved == pytest.approx(1.0, abs=1e-8)


def test_no_row_leaves_the_unit_ball_and_short_ones_stay_as_they_are() -> None:
    rows = torch.cat([_drawn(1000).double() * 1e3, _drawn(1000).double() * 1e-3])
    scaled = within_unit_ball(rows)
    assert max(math.fsum(value**2 for value in row) for row in scaled.tolist()) <= 1.0
    assert torch.equal(scaled[1000:], rows[1000:])


def test_a_record_that_is_not_finite_counts_as_zero() -> None:
    others = _drawn(20)
    for name in ("not a number", "infinite"):
        spoilt = torch.cat([others, ADVERSARIES[name][None]])
        assert torch.equal(_moment(spoilt).values["moment"], _moment(others).values["moment"])


def _subspace_distance(found: Tensor, expected: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    """The sine of the largest angle between the two."""
    overlap = np.linalg.svd(found.numpy().T @ expected, compute_uv=False)
    return math.sqrt(max(0.0, 1 - float(overlap.min()) ** 2))


def test_without_noise_it_is_the_uncentred_pca_of_numpy() -> None:
    rows = _drawn(RECORDS_AT_ONCE * 2 + 7).double()
    pca = PrivatePCA(dimensions=4, noise_multiplier=1.0)
    moment = pca.private_moment(_records(rows), _as_it_is, inputs=INPUTS)
    found = pca.components(ReleasedSum(values=moment.values), inputs=INPUTS)
    scaled = rows.numpy() / np.maximum(np.linalg.norm(rows.numpy(), axis=1), 1)[:, None]
    expected = np.linalg.eigh(scaled.T @ scaled)[1][:, ::-1][:, :4]
    expected = expected * np.sign(np.take_along_axis(expected, np.abs(expected).argmax(axis=0)[None], axis=0))
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_a_known_subspace_is_found_through_little_noise_and_lost_in_much() -> None:
    generator = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(INPUTS, 3, generator=generator, dtype=torch.float64)).Q
    rows = torch.randn(2000, 3, generator=generator, dtype=torch.float64) @ basis.T
    distances = {}
    for noise_multiplier in (0.5, 1e5):
        pca = PrivatePCA(dimensions=3, noise_multiplier=noise_multiplier)
        released = _noised(pca.private_moment(_records(rows), _as_it_is, inputs=INPUTS), noise_multiplier)
        distances[noise_multiplier] = _subspace_distance(pca.components(released, inputs=INPUTS), basis.numpy())
    assert distances[0.5] < 0.02
    assert distances[1e5] > 0.5


@pytest.mark.parametrize("factor, is_right", [(1.0, True), (2 / 3, False), (1.5, False)])
def test_the_noise_on_every_entry_is_what_is_charged(factor: float, is_right: bool) -> None:
    pca = PrivatePCA(dimensions=3, noise_multiplier=4.0)
    private = _moment(_drawn(50))
    drawn = [
        _noised(private, factor * 4.0, step=step).values["moment"] - private.values["moment"] for step in range(40)
    ]
    noise_std = torch.stack(drawn).std().item()
    assert (abs(noise_std - pca.event().noise_multiplier * private.sensitivity) < 0.2) == is_right


def test_it_is_charged_as_one_gaussian_step_without_sampling() -> None:
    assert PrivatePCA(dimensions=3, noise_multiplier=7.0).event() == Gaussian(7.0)


def test_components_are_orthonormal_and_a_function_of_the_released_values_alone() -> None:
    pca = PrivatePCA(dimensions=5, noise_multiplier=2.0)
    released = _noised(_moment(_drawn(30)), 2.0)
    first, second = (pca.components(released, inputs=INPUTS) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (INPUTS, 5)
    torch.testing.assert_close(first.T @ first, torch.eye(5, dtype=torch.float64))
    assert (first.gather(0, first.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_no_records_leave_the_components_of_the_noise() -> None:
    private = _moment(_drawn(0))
    assert (private.values["moment"] == 0).all()
    pca = PrivatePCA(dimensions=2, noise_multiplier=1.0)
    assert pca.components(_noised(private, 1.0), inputs=INPUTS).shape == (INPUTS, 2)


def test_images_are_prepared_and_flattened() -> None:
    images = torch.randint(0, 256, (9, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    pca = PrivatePCA(dimensions=3, noise_multiplier=1.0)
    found = pca.private_moment(_records(images), _in_unit, inputs=INPUTS)
    expected = _moment((images.float() / 255).flatten(1))
    torch.testing.assert_close(found.values["moment"], expected.values["moment"])


def _in_unit(seen: Inputs) -> Inputs:
    assert isinstance(seen, Tensor)
    return seen.float() / 255


def test_more_dimensions_than_inputs_are_refused() -> None:
    pca = PrivatePCA(dimensions=INPUTS + 1, noise_multiplier=1.0)
    with pytest.raises(InvalidValue, match="dimensions must be at most the 12 inputs; given: 13"):
        pca.private_moment(_records(_drawn(3)), _as_it_is, inputs=INPUTS)
    with pytest.raises(InvalidValue, match="dimensions must be at most the 12 inputs; given: 13"):
        pca.components(ReleasedSum(values={"moment": torch.zeros(78)}), inputs=INPUTS)


def test_records_and_sums_of_other_sizes_are_refused() -> None:
    pca = PrivatePCA(dimensions=2, noise_multiplier=1.0)
    with pytest.raises(InvalidValue, match="records must be one tensor of 11 numbers for each"):
        pca.private_moment(_records(_drawn(3)), _as_it_is, inputs=11)
    with pytest.raises(InvalidValue, match="released must be the 66 entries"):
        pca.components(ReleasedSum(values={"moment": torch.zeros(78)}), inputs=11)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, True, "1", None], ids=repr)
def test_noise_must_be_a_number_above_zero(value: object) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        PrivatePCA(dimensions=2, noise_multiplier=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 2.0, math.nan, True, "1", None], ids=repr)
def test_dimensions_must_be_a_whole_number_above_zero(value: object) -> None:
    with pytest.raises(InvalidValue, match="dimensions"):
        PrivatePCA(dimensions=value, noise_multiplier=1.0)  # type: ignore[arg-type]


def test_it_survives_being_written_as_json_and_read_back() -> None:
    pca = PrivatePCA(dimensions=60, noise_multiplier=4.0)
    assert PrivatePCA.from_json(pca.to_json()) == pca
    for shape in (None, {}, {"dimensions": 3}, {**pca.to_json(), "seed": 0}, {**pca.to_json(), "dimensions": "3"}):
        with pytest.raises(InvalidValue):
            PrivatePCA.from_json(shape)
