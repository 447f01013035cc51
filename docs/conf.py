"""Sphinx builds the site from the README, docs/ and the proofs: ``make docs``, then open build/site/index.html.

The source folder is the repository, so links between Markdown files work here as they do in a checkout.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import lehr  # noqa: E402  (from this checkout)

project = html_title = "Lehr"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/*.md", "docs/tutorials/*.md", "src/lehr/**.proof.md"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # proofs may skip a heading level
autodoc_member_order = "groupwise"
# What ``lehr`` itself offers is described there alone.
autodoc_default_options = {"members": True, "imported-members": True, "exclude-members": ", ".join(lehr.__all__)}
maximum_signature_line_length = 80
html_show_search_summary = False  # a page opened from a folder cannot fetch the others
html_theme = "furo"
html_show_sphinx = html_show_copyright = html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

# The navigation. A page that is missing here is a warning, and so an error.
PAGES = {
    "Tutorials": ["tutorial", "tutorials/own_data", "tutorials/fine_tuning"],
    "How-to guides": [
        "train",
        "data",
        "units",
        "methods",
        "search",
        "budget",
        "certificate",
        "audit",
        "distributed",
        "opacus",
        "lightning",
        "transformers",
        "scikit_learn",
    ],
    "Reference": ["api", "command_line", "networks", "dependencies", "planted_bugs"],
    "Explanation": [
        "choosing_epsilon",
        "pitfalls",
        "how_proofs_work",
        "published_claims",
        "tan",
        "engine",
        "results",
        "papers",
    ],
}
PROJECT = ["CONTRIBUTING", "SECURITY", "CHANGELOG"]


def navigation() -> str:
    proofs = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in (ROOT / "src").rglob("*.proof.md"))
    groups = {name: [f"docs/{page}" for page in pages] for name, pages in PAGES.items()}
    groups |= {"Project": PROJECT, "Proofs": proofs}
    head = "\n```{{toctree}}\n:hidden:\n:caption: {}\n\n"
    return "".join(head.format(name) + "\n".join(pages) + "\n```\n" for name, pages in groups.items())


def add_navigation(app: Any, docname: str, source: list[str]) -> None:
    """Add the navigation to the README, which is the first page of the site."""
    if docname == root_doc:
        source[0] += navigation()


def copy_first_page(app: Any, error: Exception | None) -> None:
    if error is None:
        shutil.copy(Path(app.outdir, "README.html"), Path(app.outdir, "index.html"))


def omit_module_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Leave out what a module's docstring says to its developers."""
    if what == "module":
        lines.clear()


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", omit_module_docstring)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", copy_first_page)
