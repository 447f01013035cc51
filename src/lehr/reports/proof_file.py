"""The fingerprint of a proof file of this package, so that a certificate names the very text that was relied on."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath

from lehr.errors import InvalidValue


def sha256_of_proof(proof: str) -> str:
    """The SHA-256 of a proof file, named by its path below the package ``lehr``."""
    path = PurePosixPath(proof)
    if path.is_absolute() or ".." in path.parts or not proof.endswith(".proof.md"):
        raise InvalidValue("proof", allowed="the path of a .proof.md file inside the package", given=proof)
    file = files("lehr").joinpath(*path.parts)
    if not file.is_file():
        raise InvalidValue("proof", allowed="the path of a proof file that this version of Lehr has", given=proof)
    return hashlib.sha256(file.read_bytes()).hexdigest()
