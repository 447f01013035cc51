from __future__ import annotations

from pathlib import Path

import griffe

from tools.docstring_markdown import DocstringMarkdown, as_markdown

DOCSTRING = """Adds.

>>> 1 + 1
2
>>> for digit in (1, 2):
...     digit
1
2

What it does not do:
- subtract
- divide"""


def test_an_example_becomes_a_block_of_its_own_and_text_stays() -> None:
    lines = as_markdown(DOCSTRING).splitlines()
    first, last = lines.index("```pycon"), lines.index("```")
    assert lines[first + 1 : last] == [
        ">>> 1 + 1",
        "2",
        ">>> for digit in (1, 2):",
        "...     digit",
        "1",
        "2",
    ]
    assert lines[0] == "Adds."


def test_a_list_right_below_text_gets_the_empty_line_that_makes_it_one() -> None:
    assert "do:\n\n- subtract\n- divide\n" in as_markdown(DOCSTRING)


def test_a_docstring_without_either_stays_as_it_is() -> None:
    assert as_markdown("Adds.\n\nAnd no more.") == "Adds.\n\nAnd no more.\n"


def test_every_docstring_of_a_package_is_rewritten(tmp_path: Path) -> None:
    module = tmp_path / "sums.py"
    module.write_text('def add():\n    """Adds.\n\n    >>> 1 + 1\n    2\n    """\n', encoding="utf-8")
    extensions = griffe.load_extensions(DocstringMarkdown())
    loaded = griffe.load("sums", search_paths=[tmp_path], extensions=extensions)
    docstring = loaded["add"].docstring
    assert docstring is not None
    assert "```pycon\n>>> 1 + 1\n2\n```" in docstring.value
