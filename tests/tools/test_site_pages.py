from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.site_pages import ROOT, fetched_from_elsewhere, filled, outside_docs, place_of


@pytest.mark.parametrize(
    "path, uri",
    [
        ("README.md", "index.md"),
        ("docs/train.md", "train.md"),
        ("docs/pictures/beale.svg", "pictures/beale.svg"),
        ("src/lehr/clipping/flat.proof.md", "proofs/clipping_flat.md"),
        ("src/lehr/events.py", "reference/events.md"),
        ("src/lehr/clipping", "reference/clipping.md"),
        ("src/lehr/__init__.py", "reference/public_names.md"),
        ("benchmarks/results", None),
    ],
)
def test_a_file_is_shown_on_its_page(path: str, uri: str | None) -> None:
    assert (ROOT / path).exists()
    assert place_of(path) == uri


def test_no_two_files_share_a_page() -> None:
    uris = list(outside_docs().values())
    assert len(uris) == len(set(uris))


def test_a_folder_of_made_pages_is_filled_in_wherever_it_stands() -> None:
    nav = [{"Start": ["index.md"]}, {"Trust": ["audit.md", {"Proofs": "proofs/"}]}]
    assert filled(nav, {"proofs/": ["proofs/a.md"]}) == [
        {"Start": ["index.md"]},
        {"Trust": ["audit.md", {"Proofs": ["proofs/a.md"]}]},
    ]


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://example.org/a.js">',
        "<img alt=x src=//example.org/a.png>",
        '<link href="https://example.org/a.css" rel="stylesheet">',
        '<link rel=preconnect href="https://example.org">',
    ],
)
def test_what_a_page_fetches_from_elsewhere_is_found(page: str) -> None:
    [address] = fetched_from_elsewhere(page)
    assert "//example.org" in address


def test_what_a_page_only_links_to_is_not_fetched() -> None:
    page = '<a href="https://example.org">far</a><script src="a.js"></script><link rel="stylesheet" href="a.css">'
    assert fetched_from_elsewhere(page) == []


@pytest.mark.parametrize(
    "text, fails",
    [("[down](#below)\n\n## Below", False), ("[down](#nowhere)", True), ("[gone](gone.md)", True)],
)
def test_the_strict_build_fails_on_a_link_that_leads_nowhere(text: str, fails: bool, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    settings = f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nsite_dir: site\nhooks: []\nplugins: []\n"
    settings += "theme: mkdocs\nnav: [index.md]\nextra_css: []\n"
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "mkdocs.yml"],
        cwd=tmp_path,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode != 0) is fails, built.stderr
