"""Every candidate is accepted, and nothing is asked about it."""

from __future__ import annotations

from lehr.acceptance.always import Always
from tests.acceptance.proposed import Unasked


def test_every_candidate_is_accepted_without_a_look() -> None:
    always = Always()
    assert always.decide(always.start(), Unasked()) == (True, {})
    assert not always.needs_energy
