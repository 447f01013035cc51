from __future__ import annotations

import pytest

from lehr.compat.opacus.validators import errors
from lehr.errors import LehrError


@pytest.mark.parametrize(
    "name",
    [
        "UnsupportableModuleError",
        "NotYetSupportedModuleError",
        "ShouldReplaceModuleError",
        "IllegalModuleConfigurationError",
    ],
)
def test_every_error_is_caught_as_lehrs_as_opacuss_and_as_a_value_error(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, errors.UnsupportedModuleError)
    assert issubclass(kind, LehrError)
    assert issubclass(kind, ValueError)
