"""Private principal components: sensitivity, noise, and what they find."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

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


@pytest.mark.parametrize("name", ["not a number", "infinite"])
def test_a_record_that_is_not_finite_counts_as_zero(name: str) -> None:
    others = _drawn(20)
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


@pytest.mark.parametrize("records", [0, 30])
def test_components_are_orthonormal_and_follow_from_the_released_values(records: int) -> None:
    pca = PrivatePCA(dimensions=5, noise_multiplier=2.0)
    assert pca.event() == Gaussian(2.0)
    released = _noised(_moment(_drawn(records)), 2.0)
    first, second = (pca.components(released, inputs=INPUTS) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (INPUTS, 5)
    torch.testing.assert_close(first.T @ first, torch.eye(5, dtype=torch.float64))
    assert (first.gather(0, first.abs().argmax(dim=0, keepdim=True)) > 0).all()


def test_images_are_prepared_and_flattened() -> None:
    images = torch.randint(0, 256, (9, 3, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    found = _moment(images, lambda stored: stored.float() / 255)  # type: ignore[union-attr]
    expected = _moment((images.float() / 255).flatten(1))
    torch.testing.assert_close(found.values["moment"], expected.values["moment"])


@pytest.mark.parametrize("dimensions, inputs", [(INPUTS + 1, INPUTS), (2, INPUTS - 1)])
def test_other_sizes_are_refused(dimensions: int, inputs: int) -> None:
    pca = PrivatePCA(dimensions=dimensions, noise_multiplier=1.0)
    with pytest.raises(InvalidValue):
        pca.private_moment(_records(_drawn(3)), _as_it_is, inputs=inputs)
    with pytest.raises(InvalidValue):
        pca.components(ReleasedSum(values={"moment": torch.zeros(78)}), inputs=inputs)


@pytest.mark.parametrize(
    "wrong",
    [{"noise_multiplier": value} for value in (0.0, math.nan, math.inf, True, "1")]
    + [{"dimensions": value} for value in (0, 2.0, math.nan, True, None)],
    ids=str,
)
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        PrivatePCA(**{"dimensions": 2, "noise_multiplier": 1.0} | wrong)


def test_the_json_form_reads_back() -> None:
    pca = PrivatePCA(dimensions=60, noise_multiplier=4.0)
    assert PrivatePCA.from_json(pca.to_json()) == pca
    for shape in (None, {}, {"dimensions": 3}, {**pca.to_json(), "seed": 0}, {**pca.to_json(), "dimensions": "3"}):
        with pytest.raises(InvalidValue):
            PrivatePCA.from_json(shape)
