"""What an installation is made from: metadata, extras, the citation file and the changelog say the same."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import lehr

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", citation, flags=re.MULTILINE) == [lehr.__version__]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", changelog, flags=re.MULTILINE)
    assert versions[0] == lehr.__version__


def test_metadata_names_the_pythons_that_lehr_ran_on() -> None:
    pythons = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each}
    assert pythons == {"3.11", "3.12"}


def test_the_page_on_installation_lists_every_extra() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    table = page.partition("## Install")[2].partition("\n## ")[0]
    extras = set(PROJECT["optional-dependencies"]) - {"benchmark", "docs", "examples", "test"}
    assert {extra for extra in extras if f"`{extra}`" in table} == extras


def test_the_source_distribution_can_be_built_and_tested(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    expected = {"CITATION.cff", "CHANGELOG.md", "LICENSE", "conftest.py", "pyproject.toml", "src/lehr/__init__.py"}
    assert expected <= names
