"""Where an audit of a run goes, and where it does not."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.auditing import Audit, Verdict
from lehr.auditing import audit as auditing
from lehr.certificates.certificate import read_certificate
from lehr.certificates.checking import mismatches
from lehr.certificates.run_reading import read_run
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.reports.audit_file import keep, keep_private, refuse_weaker
from lehr.run.shape import RunFiles
from tests.audits import PRIVATE, REFUTED, SUSPICIOUS, showing
from tests.written_runs import certificate, write_run

HELD = showing(0.1, claimed_epsilon=certificate(steps_taken=40).epsilon)


@pytest.fixture
def run(tmp_path: Path) -> RunFiles:
    return write_run(tmp_path / "run")


def test_the_folder_the_certificate_and_the_page_have_it(run: RunFiles) -> None:
    kept = keep(run.directory, HELD)
    assert (kept.path, kept.replaced, kept.not_certified_because) == (run.audit, None, None)
    assert strict_json.read(run.audit, auditing.from_json) == HELD
    assert read_run(run.directory).audit == HELD
    issued = read_certificate(run.certificate)
    assert mismatches(issued) == ()
    assert issued.audit is not None
    assert issued.audit.epsilon_lower_bound == 0.1
    assert "audit-roc-0" in run.report.read_text(encoding="utf-8")


def test_only_the_audit_and_the_issuing_of_a_certificate_change(run: RunFiles) -> None:
    before = read_certificate(run.certificate)
    keep(run.directory, HELD)
    after = read_certificate(run.certificate)
    changed = {"audit": None, "issued_on": before.issued_on, "library_version": before.library_version}
    assert replace(after, **changed, accounting_version=before.accounting_version) == before  # type: ignore[arg-type]


def test_another_audit_takes_the_place_of_the_first(run: RunFiles) -> None:
    keep(run.directory, HELD)
    again = keep(run.directory, showing(0.05, claimed_epsilon=HELD.claimed_epsilon))
    assert again.replaced is Verdict.NOT_REFUTED
    issued = read_certificate(run.certificate)
    assert issued.audit is not None
    assert issued.audit.epsilon_lower_bound == 0.05


@pytest.mark.parametrize("audit", [REFUTED, SUSPICIOUS], ids=["refuted", "suspicious"])
def test_what_speaks_against_the_claim_is_on_the_page_and_not_in_the_certificate(audit: Audit, run: RunFiles) -> None:
    before = run.certificate.read_bytes()
    kept = keep(run.directory, audit)
    assert kept.not_certified_because == "it does not bear the claim out"
    assert run.certificate.read_bytes() == before
    assert "Do not rely on the claim" in run.report.read_text(encoding="utf-8")


def test_an_earlier_audit_does_not_stay_in_the_certificate_when_a_later_one_speaks_against_it(run: RunFiles) -> None:
    keep(run.directory, HELD)
    kept = keep(run.directory, REFUTED)
    assert kept.replaced is Verdict.NOT_REFUTED
    assert read_certificate(run.certificate).audit is None


def test_a_weaker_audit_is_refused_after_one_that_was_not_passed(run: RunFiles) -> None:
    refuse_weaker(run.directory, num_canaries=64, confidence=0.5)
    keep(run.directory, REFUTED)
    most = REFUTED.members + REFUTED.others
    refuse_weaker(run.directory, num_canaries=most, confidence=0.95)
    for canaries, confidence in ((most - 1, 0.95), (most, 0.9)):
        with pytest.raises(InvalidValue, match="the last one was not passed"):
            refuse_weaker(run.directory, num_canaries=canaries, confidence=confidence)


def test_an_audit_of_another_plan_is_not_put_into_a_certificate(run: RunFiles) -> None:
    keep(run.directory, HELD)
    config = json.loads(run.config.read_text(encoding="utf-8"))
    config["plan"]["noise_multiplier"] *= 20
    run.config.write_text(json.dumps(config), encoding="utf-8")
    assert keep(run.directory, HELD).not_certified_because == "the certificate is for another plan"
    assert read_certificate(run.certificate).audit is None


def test_more_than_a_certificate_promises_is_not_put_into_it(run: RunFiles) -> None:
    before = run.certificate.read_bytes()
    kept = keep(run.directory, showing(0.5, claimed_epsilon=0.6))
    assert "above the 0.20" in (kept.not_certified_because or "")
    assert run.certificate.read_bytes() == before


def test_an_audit_at_another_delta_is_not_put_into_a_certificate(run: RunFiles) -> None:
    bounds = (replace(HELD.decisive, delta=1e-6),)
    kept = keep(run.directory, replace(HELD, delta=1e-6, bounds=bounds))
    assert kept.not_certified_because == "the certificate is at another δ, 1e-05"
    assert read_certificate(run.certificate).audit is None


def test_a_run_without_a_certificate_keeps_it_all_the_same(run: RunFiles) -> None:
    run.certificate.unlink()
    assert keep(run.directory, HELD).not_certified_because == "the run has no certificate yet"
    assert not run.certificate.exists()
    assert read_run(run.directory).audit == HELD


def test_what_is_private_is_kept_for_its_owner_alone(run: RunFiles) -> None:
    before = run.certificate.read_bytes()
    path = keep_private(run.directory, PRIVATE)
    assert path.parent == run.private
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert run.certificate.read_bytes() == before
    assert not run.audit.exists()
    assert read_run(run.directory).audit is None
    assert keep_private(run.directory, PRIVATE) == path  # in the place of the first


def test_a_link_does_not_lead_what_is_private_out_of_its_folder(run: RunFiles, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text("mine")
    run.private.mkdir(exist_ok=True)
    run.private_audit.symlink_to(elsewhere)
    keep_private(run.directory, PRIVATE)
    assert elsewhere.read_text() == "mine"
    assert not run.private_audit.is_symlink()


def test_what_is_private_is_refused_where_others_look(run: RunFiles) -> None:
    with pytest.raises(InvalidValue, match="made-up records"):
        keep(run.directory, PRIVATE)
    assert not run.audit.exists()
