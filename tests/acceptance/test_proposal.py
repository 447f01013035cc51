"""Every acceptance keeps the protocol: its state is JSON, and its form says what it is."""

from __future__ import annotations

import json

import pytest

from lehr.acceptance.always import Always
from lehr.acceptance.annealed import Annealed
from lehr.acceptance.proposal import Acceptance
from tests.acceptance.proposed import Proposed


@pytest.mark.parametrize("acceptance", [Always(), Annealed(), Annealed(cooling="classic", cooling_rate=0.9)])
def test_a_state_that_went_through_a_file_decides_the_same(acceptance: Acceptance) -> None:
    state = acceptance.start()
    for drawn in (0.1, 0.9, 0.95, 0.3, 0.99):
        proposal = Proposed(now=1.0, proposed=1.05, drawn=drawn)
        from_file = json.loads(json.dumps(state, allow_nan=False))
        assert acceptance.decide(from_file, proposal) == acceptance.decide(state, proposal)
        _, state = acceptance.decide(state, proposal)


@pytest.mark.parametrize("acceptance", [Always(), Annealed()])
def test_deciding_leaves_the_state_before_as_it_was(acceptance: Acceptance) -> None:
    state = acceptance.start()
    acceptance.decide(state, Proposed(now=1.0, proposed=2.0))
    assert state == acceptance.start()
