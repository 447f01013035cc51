from __future__ import annotations

import pytest

from lehr.errors import InvalidValue
from lehr.games.private_methods import a_private_method
from lehr.methods.by_name import named


def test_a_method_with_noise_is_handed_back() -> None:
    method = named("dpsgd")
    assert a_private_method(method) is method


def test_a_method_without_noise_has_no_claim() -> None:
    with pytest.raises(InvalidValue, match="method must be one with noise: without it there is no claim"):
        a_private_method(named("plain-sgd"))
