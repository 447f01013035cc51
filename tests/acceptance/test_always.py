"""Every candidate is accepted, and nothing is asked about it."""

from __future__ import annotations

from lehr.acceptance.always import Always
from lehr.acceptance.proposal import Decision
from tests.acceptance.proposed import NOTHING_RELEASED, Unasked, released


def test_every_candidate_is_accepted_without_a_look() -> None:
    always = Always()
    assert always.decide(always.start(), Unasked(), NOTHING_RELEASED) == Decision(1.0, {})
    assert always.energy is None
    assert always.most_rejections == 0


def test_a_candidate_is_made_from_what_was_just_released() -> None:
    just = released(1.0)
    assert Always().combined({}, just) is just
