"""What became of an audit of a run: kept in its folder, shown on its page, and in its certificate where it may be.

A certificate never has an audit that does not bear its claim out, nor one of private records or of another plan.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lehr.auditing import Audit, Verdict
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.events import is_part
from lehr.files import json_file, whole_file
from lehr.reports import audit_words, certificate_file, issuing, run_page, run_reading
from lehr.reports.certificate import Certificate
from lehr.reports.run_reading import RunRecord
from lehr.run_shape import RunFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where an audit went, and the one that was there. ``not_certified_because``: why the certificate has it not."""

    path: Path
    replaced: Verdict | None
    not_certified_because: str | None


def refuse_weaker(directory: str | os.PathLike[str], *, num_canaries: int, confidence: float) -> None:
    """Refuse an audit that could not find what the one before it has found."""
    found = run_reading.read_run(directory).audit
    if found is None or found.verdict is Verdict.NOT_REFUTED:
        return
    least, sure = found.members + found.others, found.decisive.confidence
    if num_canaries < least or confidence < sure:
        allowed = f"with {least} canaries or more and a confidence of {sure:g} or more: the last one was not passed"
        raise InvalidValue("audit", allowed=allowed, given=f"{num_canaries} canaries, confidence {confidence:g}")


def keep(directory: str | os.PathLike[str], audit: Audit) -> Kept:
    """Put a public audit into the folder of its run, and issue the certificate again with it, where it may be there."""
    if audit.is_private:
        raise InvalidValue("audit", allowed="one of made-up records: it is kept where others can see it", given=True)
    record = run_reading.read_run(directory)
    files = RunFiles(Path(directory))
    json_file.write(files.audit, audit.to_json(), overwrite=True)
    because = _certify(files, record, audit)
    page = run_page.render(run_reading.read_run(files.directory))
    whole_file.write(files.report, page, overwrite=True)
    replaced = None if record.audit is None else record.audit.verdict
    return Kept(path=files.audit, replaced=replaced, not_certified_because=because)


def keep_private(directory: str | os.PathLike[str], audit: Audit) -> Path:
    """Put an audit of the records themselves where nobody but their owner looks."""
    files = RunFiles(Path(directory))
    whole_file.write_private(files.private_audit, json_file.text(audit.to_json()))
    return files.private_audit


def _certify(files: RunFiles, record: RunRecord, audit: Audit) -> str | None:
    """Why the certificate does not have it, or nothing where it has it now. An earlier one then does not stay there."""
    certificate = record.certificate
    if certificate is None:
        return "the run has no certificate yet"
    because = audit_words.kept_out_because(audit) or _about_something_else(certificate, record, audit)
    if because is not None and certificate.audit is None:
        return because
    result = None if because is not None else audit_words.for_certificate(audit)
    try:
        again = issuing.issued_again(certificate, audit=result)
    except CertificateMismatch as error:
        return str(error)
    certificate_file.write(files.certificate, again, overwrite=True)
    return because


def _about_something_else(certificate: Certificate, record: RunRecord, audit: Audit) -> str | None:
    """Why an audit of a run's plan says nothing about its certificate, if so."""
    if certificate.delta != audit.delta:
        return f"the certificate is at another δ, {certificate.delta:g}"
    plan = record.plan
    if plan is None or certificate.adjacency is not plan.adjacency or not is_part(plan.event, of=certificate.event):
        return "the certificate is for another plan"
    return None
