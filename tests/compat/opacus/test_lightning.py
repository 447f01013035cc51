from __future__ import annotations

import pytest

from lehr.compat.opacus.lightning import DPLightningDataModule
from lehr.errors import InvalidValue


def test_the_name_can_be_imported_and_says_where_to_go() -> None:
    with pytest.raises(InvalidValue, match=r"lehr\.compat\.lightning"):
        DPLightningDataModule(object())
