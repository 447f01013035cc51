"""The Markdown of the repository's files as that of the documentation site's pages.

Pages are written to be read in the repository, where links lead to files. A link to a file that has a page leads to
that page; to any other file of the repository, it keeps its words and leads nowhere. A link to a file that does not
exist stays as it is, so that the strict build fails.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_FENCE = re.compile(r"^(?P<ticks>```+).*?^(?P=ticks)[ \t]*$", flags=re.MULTILINE | re.DOTALL)
_QUOTED = re.compile(r"```python (?P<name>\S+)")
_LINK = re.compile(r"(?P<image>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_COMMENT = re.compile(r"^<!--.*?-->\n", flags=re.MULTILINE)
_INDENTED_BY_THREE = re.compile(r"^   (?=\S)", flags=re.MULTILINE)
_ITEM_BELOW_PARAGRAPH = re.compile(r"(?P<paragraph>\n\n(?: {4}[^\s*-].*\n)+)(?=\d+\. |[-*] )")


def for_the_site(
    markdown: str, *, source: str, uri: str, root: Path, place_of: Callable[[str], str | None] = lambda path: None
) -> str:
    """The text of ``source``, a path below ``root``, as the page ``uri``; ``place_of`` says which page another has."""

    def led(found: re.Match[str]) -> str:
        path, _, anchor = found["target"].partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not path or ":" in found["target"] or not (root / target).exists():
            return found[0]
        place = place_of(target)
        if place is None:
            return found["words"]
        link = posixpath.relpath(place, posixpath.dirname(uri) or ".") + ("#" + anchor if anchor else "")
        return f"{found['image']}[{found['words']}]({link})"

    return _outside_fences(as_mkdocs_reads_it(markdown), lambda text: _LINK.sub(led, text))


def as_mkdocs_reads_it(markdown: str) -> str:
    """Lists indented by three, an item right below a paragraph, a table right below a comment: GitHub takes them."""
    return _outside_fences(_FENCE.sub(_block, markdown), _with_room)


def _with_room(text: str) -> str:
    indented = _INDENTED_BY_THREE.sub("    ", _COMMENT.sub("\n", text))
    return _ITEM_BELOW_PARAGRAPH.sub(r"\g<paragraph>\n", indented)


def _block(fence: re.Match[str]) -> str:
    """A session is coloured as one, less the empty line that ends it for doctest; a quotation has its name above it."""
    first, *lines, last = fence[0].splitlines()
    if quoted := _QUOTED.fullmatch(first):
        return "\n".join([f'```python title="{quoted["name"]}"', *lines, last])
    if first != "```python" or not lines or not lines[0].startswith(">>> "):
        return fence[0]
    return "\n".join(["```pycon", "\n".join(lines).rstrip(), last])


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    return "".join(part if is_fence else change(part) for part, is_fence in _parts(markdown))


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    end = 0
    for fence in _FENCE.finditer(markdown):
        yield markdown[end : fence.start()], False
        yield fence[0], True
        end = fence.end()
    yield markdown[end:], False
