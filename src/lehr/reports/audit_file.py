"""Keep the audit of a run in its folder, on its page, and in its certificate.

A certificate never has an audit that speaks against its claim, nor one of private records or of another plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lehr.accounting.events import is_part
from lehr.auditing import Audit, Verdict
from lehr.certificates import issuing
from lehr.certificates.certificate import Certificate, write_certificate
from lehr.certificates.issuing import audit_result, why_not_certified
from lehr.certificates.run_reading import RunRecord, read_run
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.files import atomic, strict_json
from lehr.reports import run_page
from lehr.run.shape import RunFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditUpdate:
    """Where an audit was written, the verdict that it replaced, and why the certificate does not have it, if so."""

    path: Path
    replaced: Verdict | None
    not_certified_because: str | None


def refuse_weaker(directory: str | os.PathLike[str], *, num_canaries: int, confidence: float) -> None:
    """Refuse an audit that is too weak to replace one that was not passed."""
    last = read_run(directory).audit
    if last is None or last.verdict is Verdict.NOT_REFUTED:
        return
    least, sure = last.members + last.others, last.decisive.confidence
    if num_canaries < least or confidence < sure:
        allowed = f"with {least} canaries or more and a confidence of {sure:g} or more: the last one was not passed"
        raise InvalidValue("audit", allowed=allowed, given=f"{num_canaries} canaries, confidence {confidence:g}")


def keep(directory: str | os.PathLike[str], audit: Audit) -> AuditUpdate:
    """Write a public audit to the folder of its run, and reissue the certificate with it where that is allowed."""
    if audit.is_private:
        raise InvalidValue("audit", allowed="one of made-up records: it is kept where others can see it", given=True)
    record = read_run(directory)
    files = RunFiles(Path(directory))
    strict_json.write(files.audit, audit.to_json(), overwrite=True)
    because = _certify(files, record, audit)
    atomic.write(files.report, run_page.render(read_run(directory)), overwrite=True)
    replaced = None if record.audit is None else record.audit.verdict
    return AuditUpdate(path=files.audit, replaced=replaced, not_certified_because=because)


def keep_private(directory: str | os.PathLike[str], audit: Audit) -> Path:
    """Write an audit of the records themselves to the private folder of the run."""
    path = RunFiles(Path(directory)).private_audit
    atomic.write_private(path, strict_json.text(audit.to_json()))
    return path


def _certify(files: RunFiles, record: RunRecord, audit: Audit) -> str | None:
    """Reissue the certificate with the audit, or without any where it may not have it; why not, if so."""
    certificate = record.certificate
    if certificate is None:
        return "the run has no certificate yet"
    because = why_not_certified(audit) or _why_unrelated(certificate, record, audit)
    if because is not None and certificate.audit is None:
        return because
    try:
        again = issuing.reissue(certificate, audit=None if because is not None else audit_result(audit))
    except CertificateMismatch as error:
        return str(error)
    write_certificate(files.certificate, again, overwrite=True)
    return because


def _why_unrelated(certificate: Certificate, record: RunRecord, audit: Audit) -> str | None:
    """Why an audit says nothing about the certificate, if so."""
    if certificate.delta != audit.delta:
        return f"the certificate is at another δ, {certificate.delta:g}"
    plan = record.plan
    if plan is None or certificate.adjacency is not plan.adjacency or not is_part(plan.event, of=certificate.event):
        return "the certificate is for another plan"
    return None
