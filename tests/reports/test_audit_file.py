"""Where an audit of a run goes, and where it does not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.auditing import Audit, Verdict
from lehr.certificates.certificate import read_certificate
from lehr.certificates.checking import mismatches
from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue
from lehr.reports.audit_file import keep, keep_private, refuse_weaker
from lehr.run.shape import RunFiles
from tests.audits import PRIVATE, REFUTED, SUSPICIOUS, showing
from tests.written_runs import certificate, write_run

HELD = showing(0.1, claimed_epsilon=certificate(steps_taken=40).epsilon)


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return write_run(tmp_path / "run")


def test_folder_certificate_and_page_have_the_audit(run: RunFiles) -> None:
    before = read_certificate(run.certificate)
    kept = keep(run.directory, HELD)
    assert (kept.path, kept.replaced, kept.not_certified_because) == (run.audit, None, None)
    assert read_run(run.directory).audit == HELD
    issued = read_certificate(run.certificate)
    assert mismatches(issued) == ()
    assert issued.audit is not None
    assert issued.audit.epsilon_lower_bound == 0.1
    assert replace(issued, audit=None, issued_on=before.issued_on) == before  # nothing else changed
    assert "audit-roc-0" in run.report.read_text(encoding="utf-8")


def test_a_later_audit_replaces_the_first(run: RunFiles) -> None:
    keep(run.directory, HELD)
    again = keep(run.directory, showing(0.05, claimed_epsilon=HELD.claimed_epsilon))
    assert again.replaced is Verdict.NOT_REFUTED
    issued = read_certificate(run.certificate).audit
    assert issued is not None
    assert issued.epsilon_lower_bound == 0.05


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS], ids=["refuted", "suspicious"])
def test_a_failed_audit_is_on_the_page_and_never_in_the_certificate(audit: Audit, run: RunFiles) -> None:
    before = run.certificate.read_bytes()
    assert keep(run.directory, audit).not_certified_because is not None
    assert run.certificate.read_bytes() == before
    assert "Do not rely on the claim" in run.report.read_text(encoding="utf-8")


def test_a_failed_audit_removes_an_earlier_one_from_the_certificate(run: RunFiles) -> None:
    keep(run.directory, HELD)
    assert keep(run.directory, REFUTED).replaced is Verdict.NOT_REFUTED
    assert read_certificate(run.certificate).audit is None


def test_a_weaker_audit_cannot_replace_a_failed_one(run: RunFiles) -> None:
    refuse_weaker(run.directory, num_canaries=64, confidence=0.5)
    keep(run.directory, REFUTED)
    most = REFUTED.members + REFUTED.others
    refuse_weaker(run.directory, num_canaries=most, confidence=0.95)
    for canaries, confidence in ((most - 1, 0.95), (most, 0.9)):
        with pytest.raises(InvalidValue, match="audit"):
            refuse_weaker(run.directory, num_canaries=canaries, confidence=confidence)


def test_an_audit_of_another_plan_is_not_certified(run: RunFiles) -> None:
    keep(run.directory, HELD)
    config = json.loads(run.config.read_text(encoding="utf-8"))
    config["plan"]["noise_multiplier"] *= 20
    run.config.write_text(json.dumps(config), encoding="utf-8")
    assert "another plan" in str(keep(run.directory, HELD).not_certified_because)
    assert read_certificate(run.certificate).audit is None


@pytest.mark.parametrize(
    "audit, because",
    [
        (showing(0.5, claimed_epsilon=0.6), "above the 0.20"),
        (replace(HELD, delta=1e-6, bounds=(replace(HELD.decisive, delta=1e-6),)), "another δ"),
    ],
    ids=["more than the certificate promises", "another delta"],
)
def test_an_audit_that_does_not_fit_is_not_certified(run: RunFiles, audit: Audit, because: str) -> None:
    before = run.certificate.read_bytes()
    assert because in str(keep(run.directory, audit).not_certified_because)
    assert run.certificate.read_bytes() == before


def test_a_run_without_a_certificate_keeps_its_audit(run: RunFiles) -> None:
    run.certificate.unlink()
    assert keep(run.directory, HELD).not_certified_because is not None
    assert not run.certificate.exists()
    assert read_run(run.directory).audit == HELD


def test_a_private_audit_stays_in_the_private_folder(run: RunFiles, tmp_path: Path) -> None:
    before = run.certificate.read_bytes()
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("mine")
    run.private_audit.symlink_to(elsewhere)
    assert keep_private(run.directory, PRIVATE) == run.private_audit
    assert elsewhere.read_text() == "mine"  # a link does not lead it out of the folder
    assert os.lstat(run.private_audit).st_mode & 0o777 == 0o600
    with pytest.raises(InvalidValue, match="made-up records"):
        keep(run.directory, PRIVATE)
    assert run.certificate.read_bytes() == before
    assert not run.audit.exists()
    assert read_run(run.directory).audit is None
