from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lehr.gradients.contributions import chunks
from lehr.gradients.contributions.chunks import records_together, squared_norms_by_forming
from lehr.gradients.contributions.materialised import Materialised
from lehr.gradients.contributions.stacked import Stacked
from lehr.interfaces import Contribution
from tests.gradients.contributions.parts import drawn


def formed_sizes(part: Contribution) -> tuple[list[int], Tensor]:
    sizes = []

    def formed(uses: Sequence[Contribution]) -> Tensor:
        grads = uses[0].materialised()
        sizes.append(grads.shape[0])
        return grads

    return sizes, squared_norms_by_forming([part], formed)


@pytest.mark.parametrize("records", [0, 1, 7, 8])
def test_a_few_records_at_a_time_give_the_norms_of_all(records: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "FORMED_BYTES", 4 * 10 * 3)  # three records of ten numbers
    part = Materialised(drawn(records, 10))
    sizes, squares_B = formed_sizes(part)  # noqa: N806
    assert sum(sizes) == records
    assert max(sizes) <= 3
    torch.testing.assert_close(squares_B, part.squared_norms())


def test_what_cannot_be_divided_is_formed_at_once() -> None:
    part = Stacked((Materialised(drawn(9, 2)),))
    sizes, squares_B = formed_sizes(part)  # noqa: N806
    assert sizes == [9]
    torch.testing.assert_close(squares_B, part.squared_norms())


def test_what_is_formed_at_once_stays_within_its_bytes_or_is_one_record() -> None:
    for numbers in (0, 1, 1000, 10**6, 10**9):
        together = records_together(4096, numbers=numbers)
        assert together == 1 or 4 * numbers * together <= chunks.FORMED_BYTES
