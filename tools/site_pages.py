"""What MkDocs is told about the site's pages: which there are beside those of docs/, and where links lead.

The README is the first page, every proof has a page, and so has every module of the map. MkDocs calls what is named
``on_…``; the site is built by ``make docs``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import reference_pages
from tools.site_markdown import for_the_site

ROOT = Path(__file__).resolve().parent.parent
AROUND = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
}
PROOFS = "proofs/"

_ELSEWHERE = r"[\"']?(?P<from>(?:https?:)?//[^\"'>\s]+)"
_FETCHES = (
    re.compile(rf"<(?:script|img|iframe|source)\b[^>]*\bsrc={_ELSEWHERE}"),
    re.compile(rf"<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|pre|icon))[^>]*\bhref={_ELSEWHERE}"),
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made here in their places of the navigation."""
    made = {PROOFS: list(outside_docs(PROOFS).values()), reference_pages.FOLDER: list(_reference())}
    config.nav = filled(config.nav, made)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside docs/, and those of the reference."""
    for source, uri in outside_docs().items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / source)))
    for uri, content in _reference().items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The Markdown of a page as MkDocs reads it."""
    uri = page.file.src_uri
    if uri in _reference():
        return markdown
    source = {made: source for source, made in outside_docs().items()}.get(uri, f"docs/{uri}")
    return for_the_site(markdown, source=source, uri=uri, root=ROOT, place_of=place_of)


def on_post_build(config: MkDocsConfig) -> None:
    """The site is read offline too: no page may fetch anything from elsewhere."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        if found := fetched_from_elsewhere(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page.name} fetches {', '.join(found)}")


@cache
def outside_docs(folder: str = "") -> dict[str, str]:
    """The files outside docs/ that have a page, and the addresses of those pages, where they are below the folder."""
    package = ROOT / "src" / "lehr"
    names = sorted(path.relative_to(package).as_posix() for path in package.rglob("*.proof.md"))
    proofs = {f"src/lehr/{name}": PROOFS + name.replace("/", "_").replace(".proof.md", ".md") for name in names}
    return {source: uri for source, uri in (AROUND | proofs).items() if uri.startswith(folder)}


def place_of(path: str) -> str | None:
    """The page that shows a file or folder of the repository, if there is one."""
    if uri := outside_docs().get(path):
        return uri
    parts = PurePosixPath(path).parts
    if parts[0] == "docs" and len(parts) > 1:
        return "/".join(parts[1:])
    if parts[:2] == ("src", "lehr") and len(parts) > 2:
        uri = f"{reference_pages.FOLDER}{parts[2].removesuffix('.py')}.md"
        return uri if uri in _reference() else reference_pages.PUBLIC_NAMES
    return None


def filled(nav: Any, made: dict[str, list[str]]) -> Any:
    """The navigation with a list of pages wherever a folder of pages that are made is named."""
    if isinstance(nav, list):
        return [filled(entry, made) for entry in nav]
    if isinstance(nav, dict):
        return {title: filled(entry, made) for title, entry in nav.items()}
    return made.get(nav, nav)


def fetched_from_elsewhere(page: str) -> list[str]:
    """Everything that a browser would load from another address when it opens this page."""
    return [found["from"] for pattern in _FETCHES for found in pattern.finditer(page)]


@cache
def _reference() -> dict[str, str]:
    return reference_pages.pages()
