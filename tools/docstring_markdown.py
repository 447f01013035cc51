"""Docstrings as Markdown, for the reference on the documentation site: their examples become blocks of code.

A docstring is written for whoever reads the code, with doctest's prompts, which Markdown takes for quotations.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^(?P<indent>[ ]*)>>> .*\n(?:(?P=indent)\S.*\n|(?P=indent)[ ]+\S.*\n)*", flags=re.MULTILINE)
_LIST_BELOW_TEXT = re.compile(r"^(?P<text>(?![-*] |\d+\. |\s).*\S)\n(?=(?:[-*]|\d+\.) )", flags=re.MULTILINE)


class DocstringMarkdown(Extension):
    """Rewrites the docstring of every object that is documented."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """The docstring with its examples in fences, and an empty line before each list."""
    return _LIST_BELOW_TEXT.sub(r"\g<text>\n\n", _EXAMPLE.sub(_fenced, docstring.rstrip() + "\n"))


def _fenced(example: re.Match[str]) -> str:
    indent = example["indent"]
    return f"\n{indent}```pycon\n{example[0].rstrip()}\n{indent}```\n"
