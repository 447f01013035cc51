from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest

from lehr.accounting.filter import RenyiFilter
from lehr.errors import InvalidValue
from lehr.reports.proof_file import sha256_of_proof


def test_the_fingerprint_is_that_of_the_file() -> None:
    content = files("lehr").joinpath(*RenyiFilter.proof.split("/")).read_bytes()
    assert sha256_of_proof(RenyiFilter.proof) == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("path", ["/etc/passwd", "../a.proof.md", "accounting/../../a.proof.md", "events.py", ""])
def test_only_proof_files_of_the_package_are_opened(path: str) -> None:
    with pytest.raises(InvalidValue, match="inside the package"):
        sha256_of_proof(path)


def test_a_missing_proof_is_named() -> None:
    with pytest.raises(InvalidValue, match=r"that this version of Lehr has; given: 'accounting/none\.proof\.md'"):
        sha256_of_proof("accounting/none.proof.md")
