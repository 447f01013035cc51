"""What became of an audit of a run: kept in its folder, shown on its page, and in its certificate where it may be.

A certificate never has an audit that does not bear its claim out, nor one of private records. It stays as it was then.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lehr.auditing import Audit
from lehr.errors import CertificateMismatch, InvalidValue
from lehr.files import json_file, whole_file
from lehr.reports import audit_words, certificate_file, issuing, run_page, run_reading
from lehr.reports.certificate import Certificate
from lehr.run_shape import RunFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """Where an audit went. ``not_certified_because`` says why the certificate, if there is one, does not have it."""

    path: Path
    has_replaced: bool
    not_certified_because: str | None


def keep(directory: str | os.PathLike[str], audit: Audit) -> Kept:
    """Put a public audit into the folder of its run, and issue the certificate again with it, where it may be there."""
    if audit.is_private:
        raise InvalidValue("audit", allowed="one of made-up records: it is kept where others can see it", given=True)
    files = RunFiles(Path(directory))
    has_replaced = files.audit.exists()
    json_file.write(files.audit, audit.to_json(), overwrite=True)
    because = _certify(files, audit)
    page = run_page.render(run_reading.read_run(files.directory))
    whole_file.write(files.report, page, overwrite=True)
    return Kept(path=files.audit, has_replaced=has_replaced, not_certified_because=because)


def keep_private(directory: str | os.PathLike[str], audit: Audit) -> Kept:
    """Put an audit of the records themselves where nobody but their owner looks."""
    files = RunFiles(Path(directory))
    has_replaced = files.private_audit.exists()
    whole_file.write_private(files.private_audit, json_file.text(audit.to_json()))
    because = audit_words.kept_out_because(audit)
    return Kept(path=files.private_audit, has_replaced=has_replaced, not_certified_because=because)


def _certify(files: RunFiles, audit: Audit) -> str | None:
    """Why the certificate does not have it, or nothing where it has it now."""
    if not files.certificate.is_file():
        return "the run has no certificate yet"
    certificate = certificate_file.read(files.certificate)
    because = audit_words.kept_out_because(audit) or _another_delta(certificate, audit)
    if because is not None:
        return because
    try:
        again = issuing.issued_again(certificate, audit=audit_words.for_certificate(audit))
    except CertificateMismatch as error:
        return str(error)
    certificate_file.write(files.certificate, again, overwrite=True)
    return None


def _another_delta(certificate: Certificate, audit: Audit) -> str | None:
    return None if certificate.delta == audit.delta else f"the certificate is at another δ, {certificate.delta:g}"
