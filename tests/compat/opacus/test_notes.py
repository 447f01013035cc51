from __future__ import annotations

import logging

import pytest

from lehr.compat.opacus.notes import Notes, UnprovenWarning, warn_unproven


def test_a_note_is_kept_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    notes = Notes()
    with caplog.at_level(logging.INFO, logger="lehr.compat.opacus"):
        notes.add("one engine")
        notes.add("one engine")
    assert list(notes) == ["one engine"]
    assert caplog.messages == ["one engine"]
    assert notes.unproven == ()


def test_a_broken_proof_is_warned_of_and_remembered() -> None:
    notes = Notes()
    with pytest.warns(UnprovenWarning, match="shuffled"):
        notes.break_proof("shuffled")
    assert notes.unproven == ("shuffled",)


def test_a_warning_points_at_the_line_of_the_user() -> None:
    with pytest.warns(UnprovenWarning) as caught:
        warn_unproven("a reason")
    assert caught[0].filename == __file__


def test_a_caution_is_warned_of_and_breaks_no_proof() -> None:
    notes = Notes()
    with pytest.warns(UserWarning, match="padded"):
        notes.caution("padded")
    assert (list(notes), notes.unproven) == (["padded"], ())
