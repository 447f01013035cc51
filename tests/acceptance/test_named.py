"""JSON forms of acceptances."""

from __future__ import annotations

import json
import math

import pytest

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed
from lehr.acceptance.named import AnyAcceptance, from_json
from lehr.errors import InvalidValue


@pytest.mark.parametrize(
    "acceptance",
    [Always(), Annealed(), Annealed(rejection_threshold=5, cooling="classic", cooling_rate=0.5)],
    ids=repr,
)
def test_the_json_form_reads_back_as_the_same_acceptance(acceptance: AnyAcceptance) -> None:
    assert from_json(json.loads(json.dumps(acceptance.to_json()))) == acceptance


@pytest.mark.parametrize(
    "shape",
    [
        None,
        {"kind": "sometimes"},
        {"kind": {}},
        {"kind": "annealed"},
        {"kind": "always", "surplus": 1},
        Annealed().to_json() | {"initial_inverse_temperature": math.nan},
    ],
)
def test_a_bad_json_form_is_refused(shape: object) -> None:
    with pytest.raises(InvalidValue):
        from_json(shape)
