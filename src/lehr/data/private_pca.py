"""Private principal components: leading eigenvectors of a noisy second-moment matrix.

After Abadi et al. (2016), Section 4, and as ADADP (Xu et al. 2020) uses it in front of its networks: every record is
scaled to norm one at most, the sum of x·xᵀ over all records gets Gaussian noise once, and the leading eigenvectors of
the noisy matrix are the components. Nothing is sampled; the mean is not subtracted.

>>> PrivatePCA(dimensions=60, noise_multiplier=4.0).event()
Gaussian(noise_multiplier=4.0)

``private_moment`` returns the sum, the caller adds the noise, and ``components`` uses only the noisy sum.
Axes: B records, D inputs of one record, T entries on and above the diagonal, K components.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from lehr import validate
from lehr.accounting.events import Gaussian
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.interfaces import Inputs, PrivateSum, Records, ReleasedSum

RECORDS_AT_ONCE = 1000
ROUNDING_MARGIN = 1e-9  # relative: what scaling to norm one leaves free, far more than the rounding of a long sum
SENSITIVITY = 1.0

_MOMENT = "moment"
_LARGEST_ENTRY = 1e150  # a record with a larger one has no norm that is a double


@dataclass(frozen=True, kw_only=True)
class PrivatePCA:
    """The number of components, and the noise standard deviation on each entry of the matrix.

    Adding or removing one record changes the upper triangle, as one vector, by at most 1 in norm; replacing one by at
    most 2, so that adjacency needs twice the noise. A record that is not finite counts as zero.
    """

    dimensions: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimensions", validate.count(dimensions=self.dimensions))
        object.__setattr__(self, "noise_multiplier", validate.positive(noise_multiplier=self.noise_multiplier))

    def event(self) -> Gaussian:
        """Return the event of releasing the noisy matrix, under adding or removing one record."""
        return Gaussian(noise_multiplier=self.noise_multiplier)

    def private_moment(self, records: Records, prepare: Callable[[Inputs], Inputs], inputs: int) -> PrivateSum:
        """Return Σ x·xᵀ over all records, on and above the diagonal, in float64.

        ``prepare`` maps stored inputs to network inputs, each record by itself. ``inputs`` is the public number of
        values of one prepared record.
        """
        self._refuse_too_few(inputs)
        moment_DD = torch.zeros(inputs, inputs, dtype=torch.float64)
        for first in range(0, len(records), RECORDS_AT_ONCE):
            indices = torch.arange(first, min(first + RECORDS_AT_ONCE, len(records)))
            scaled_BD = within_unit_ball(_flat(prepare(records.batch(indices)[0]), inputs))
            moment_DD = moment_DD.to(scaled_BD.device) + scaled_BD.T @ scaled_BD
        rows, columns = _upper(inputs, moment_DD.device)
        return PrivateSum(values={_MOMENT: moment_DD[rows, columns]}, sensitivity=SENSITIVITY)

    def components(self, released: ReleasedSum, inputs: int) -> Tensor:
        """Return the leading eigenvectors of the noisy matrix, ``components_DK``, the largest eigenvalue first.

        The entry of largest magnitude of each is positive.
        """
        self._refuse_too_few(inputs)
        upper_T = released.values[_MOMENT].double()
        if upper_T.shape != (inputs * (inputs + 1) // 2,):
            allowed = f"the {inputs * (inputs + 1) // 2} entries on and above the diagonal for {inputs} inputs"
            raise InvalidValue("released", allowed=allowed, given=tuple(upper_T.shape))
        rows, columns = _upper(inputs, upper_T.device)
        matrix_DD = torch.zeros(inputs, inputs, dtype=torch.float64, device=upper_T.device)
        matrix_DD[rows, columns] = upper_T
        matrix_DD[columns, rows] = upper_T
        leading_DK = torch.linalg.eigh(matrix_DD).eigenvectors.flip(1)[:, : self.dimensions]
        return _with_fixed_signs(leading_DK)

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {"dimensions": self.dimensions, "noise_multiplier": self.noise_multiplier}

    @classmethod
    def from_json(cls, shape: object) -> Self:
        """Return the object of a JSON form; missing or surplus fields raise."""
        given: dict[str, Any] = strict_json.fields("private_pca", shape, ("dimensions", "noise_multiplier"))
        return cls(**given)

    def _refuse_too_few(self, inputs: int) -> None:
        if not validate.count(inputs=inputs) >= self.dimensions:
            raise InvalidValue("dimensions", allowed=f"at most the {inputs} inputs", given=self.dimensions)


def within_unit_ball(rows_BD: Tensor) -> Tensor:
    """Return each row divided by max(1, its norm); rows that are not finite, or nearly so, become zero."""
    is_kept_B = rows_BD.abs().amax(dim=1) <= _LARGEST_ENTRY
    kept_BD = torch.where(is_kept_B[:, None], rows_BD, 0.0)
    norms_B: Tensor = torch.linalg.vector_norm(kept_BD, dim=1) * (1 + ROUNDING_MARGIN)
    return kept_BD / norms_B.clamp_min(1.0)[:, None]


def _flat(seen: Inputs, inputs: int) -> Tensor:
    if not isinstance(seen, Tensor) or seen[:1].numel() != inputs * len(seen[:1]):
        given = tuple(seen.shape[1:]) if isinstance(seen, Tensor) else type(seen)
        raise InvalidValue("records", allowed=f"one tensor of {inputs} numbers for each", given=given)
    return seen.reshape(len(seen), inputs).double()


def _upper(inputs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(inputs, inputs, device=device)
    return rows, columns


def _with_fixed_signs(columns_DK: Tensor) -> Tensor:
    largest_K = columns_DK.gather(0, columns_DK.abs().argmax(dim=0, keepdim=True))
    return torch.where(largest_K < 0, -columns_DK, columns_DK).contiguous()
