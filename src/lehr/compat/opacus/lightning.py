"""Opacus's name for Lightning's data: it can be imported, and says where Lehr does it."""

from __future__ import annotations

from typing import Any

from lehr.errors import InvalidValue


class DPLightningDataModule:
    """Refused: the callback of ``lehr.compat.lightning`` draws by itself."""

    def __init__(self, datamodule: Any, generator: Any = None) -> None:
        allowed = "the data module itself, in a Trainer with the callback of lehr.compat.lightning"
        raise InvalidValue("DPLightningDataModule", allowed=allowed, given=type(datamodule).__name__)
