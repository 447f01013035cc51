"""Private principal components: the directions in which the records vary most, from a noisy second-moment matrix.

After Abadi et al. (2016), Section 4, and as ADADP (Xu et al. 2020) uses it in front of its networks: every record is
scaled to norm one at most, the sum of x·xᵀ over all records gets Gaussian noise once, and the leading eigenvectors of
the noisy matrix are the components. Nothing is sampled, and the mean is not taken off.

>>> PrivatePCA(dimensions=60, noise_multiplier=4.0).event()
Gaussian(noise_multiplier=4.0)

``private_moment`` gives the sum, the caller adds the noise, and ``components`` looks at nothing but the noisy sum.
Axes: B records, D inputs of one record, T entries on and above the diagonal, K components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lehr import validate
from lehr.errors import InvalidValue
from lehr.events import Gaussian
from lehr.interfaces import Inputs, PrivateSum, Records, ReleasedSum

RECORDS_AT_ONCE = 1000
ROUNDING_MARGIN = 1e-9  # relative: what scaling to norm one leaves free, far more than the rounding of a long sum
SENSITIVITY = 1.0

_MOMENT = "moment"
_LARGEST_ENTRY = 1e150  # a record with a larger one has no norm that is a double


@dataclass(frozen=True, kw_only=True)
class PrivatePCA:
    """So many components, from a matrix whose noise has the standard deviation ``noise_multiplier`` on each entry.

    Adding or removing one record moves the entries on and above the diagonal, as one vector, by at most one in norm;
    replacing one moves them by at most two, and whoever protects that doubles the noise. A record that is not finite
    counts as zero. Without any record the components are those of the noise.
    """

    dimensions: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", validate.count(dimensions=self.dimensions))
        object.__setattr__(self, "noise_multiplier", validate.positive(noise_multiplier=self.noise_multiplier))

    def event(self) -> Gaussian:
        """What releasing the noisy matrix does to the records, where one is added or removed."""
        return Gaussian(noise_multiplier=self.noise_multiplier)

    def private_moment(self, records: Records, prepare: Callable[[Inputs], Inputs], inputs: int) -> PrivateSum:
        """Σ x·xᵀ over all records, on and above the diagonal, in float64.

        ``prepare`` turns what is stored into what is seen, and must treat each record by itself. ``inputs`` is how
        many numbers one record then has: it is public, and known without a record.
        """
        self._refuse_too_few(inputs)
        moment_DD = torch.zeros(inputs, inputs, dtype=torch.float64)  # noqa: N806
        for first in range(0, len(records), RECORDS_AT_ONCE):
            places = torch.arange(first, min(first + RECORDS_AT_ONCE, len(records)))
            scaled_BD = within_unit_ball(_flat(prepare(records.batch(places)[0]), inputs))  # noqa: N806
            moment_DD = moment_DD.to(scaled_BD.device) + scaled_BD.T @ scaled_BD  # noqa: N806
        rows, columns = _upper(inputs, moment_DD.device)
        return PrivateSum(values={_MOMENT: moment_DD[rows, columns]}, sensitivity=SENSITIVITY)

    def components(self, released: ReleasedSum, inputs: int) -> Tensor:
        """The leading eigenvectors of the noisy matrix as columns ``components_DK``, the largest eigenvalue first.

        The entry of each that is largest in size is positive.
        """
        self._refuse_too_few(inputs)
        upper_T = released.values[_MOMENT].double()  # noqa: N806
        if upper_T.shape != (inputs * (inputs + 1) // 2,):
            allowed = f"the {inputs * (inputs + 1) // 2} entries on and above the diagonal for {inputs} inputs"
            raise InvalidValue("released", allowed=allowed, given=tuple(upper_T.shape))
        rows, columns = _upper(inputs, upper_T.device)
        matrix_DD = torch.zeros(inputs, inputs, dtype=torch.float64, device=upper_T.device)  # noqa: N806
        matrix_DD[rows, columns] = upper_T
        matrix_DD[columns, rows] = upper_T
        leading_DK = torch.linalg.eigh(matrix_DD).eigenvectors.flip(1)[:, : self.dimensions]  # noqa: N806
        return _with_fixed_signs(leading_DK)

    def to_json(self) -> dict[str, object]:
        """The JSON form."""
        return {"dimensions": self.dimensions, "noise_multiplier": self.noise_multiplier}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """The same from its JSON form. Missing or surplus fields are refused."""
        if not isinstance(shape, dict) or set(shape) != {"dimensions", "noise_multiplier"}:
            allowed = "an object with the fields dimensions and noise_multiplier"
            raise InvalidValue("private_pca", allowed=allowed, given=shape)
        return cls(**shape)

    def _refuse_too_few(self, inputs: int) -> None:
        if not validate.count(inputs=inputs) >= self.dimensions:
            raise InvalidValue("dimensions", allowed=f"at most the {inputs} inputs", given=self.dimensions)


def within_unit_ball(rows_BD: Tensor) -> Tensor:  # noqa: N803
    """Each row divided by its norm where that is above one; rows that are not finite, or all but, are zero."""
    is_kept_B = rows_BD.abs().amax(dim=1) <= _LARGEST_ENTRY  # noqa: N806
    kept_BD = torch.where(is_kept_B[:, None], rows_BD, 0.0)  # noqa: N806
    norms_B: Tensor = torch.linalg.vector_norm(kept_BD, dim=1) * (1 + ROUNDING_MARGIN)  # noqa: N806
    return kept_BD / norms_B.clamp_min(1.0)[:, None]


def _flat(seen: Inputs, inputs: int) -> Tensor:
    if not isinstance(seen, Tensor) or seen[:1].numel() != inputs * len(seen[:1]):
        given = tuple(seen.shape[1:]) if isinstance(seen, Tensor) else type(seen)
        raise InvalidValue("records", allowed=f"one tensor of {inputs} numbers for each", given=given)
    return seen.reshape(len(seen), inputs).double()


def _upper(inputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(inputs, inputs, device=device)
    return rows, columns


def _with_fixed_signs(columns_DK: Tensor) -> Tensor:  # noqa: N803
    largest_K = columns_DK.gather(0, columns_DK.abs().argmax(dim=0, keepdim=True))  # noqa: N806
    return torch.where(largest_K < 0, -columns_DK, columns_DK).contiguous()
