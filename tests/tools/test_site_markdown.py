from __future__ import annotations

from pathlib import Path

import pytest

from tools.site_markdown import as_mkdocs_reads_it, for_the_site

PLACES = {"docs/train.md": "train.md", "src/proof.md": "proofs/proof.md"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("docs/train.md", "src/proof.md", "results.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def _led(markdown: str, root: Path, *, source: str = "docs/page.md", uri: str = "page.md") -> str:
    return for_the_site(markdown, source=source, uri=uri, root=root, place_of=PLACES.get)


@pytest.mark.parametrize(
    "link, led",
    [
        ("[how](train.md)", "[how](train.md)"),
        ("[how](train.md#scores)", "[how](train.md#scores)"),
        ("[the proof](../src/proof.md)", "[the proof](proofs/proof.md)"),
        ("[`code`](../src/proof.md#edges)", "[`code`](proofs/proof.md#edges)"),
        ("![picture](train.md)", "![picture](train.md)"),
    ],
)
def test_a_link_leads_to_the_page_of_its_file(link: str, led: str, root: Path) -> None:
    assert _led(f"See {link}.", root) == f"See {led}."


def test_a_page_further_down_finds_its_way_up(root: Path) -> None:
    led = _led("[train](../docs/train.md)", root, source="src/proof.md", uri="proofs/proof.md")
    assert led == "[train](../train.md)"


def test_a_link_to_a_file_without_a_page_keeps_its_words_only(root: Path) -> None:
    assert _led("in [results](../results.json)", root) == "in results"


@pytest.mark.parametrize("link", ["[gone](gone.md)", "[up](#top)", "[far](https://example.org/train.md)"])
def test_a_link_to_nothing_to_the_same_page_or_to_elsewhere_stays_as_it_is(link: str, root: Path) -> None:
    assert _led(link, root) == link


def test_what_looks_like_a_link_in_a_block_of_code_is_none(root: Path) -> None:
    block = "```text\n[results](../results.json)\n```"
    assert _led(block, root) == block


def test_a_session_with_prompts_is_named_so_and_other_python_is_not() -> None:
    assert as_mkdocs_reads_it("```python\n>>> 1\n1\n\n```") == "```pycon\n>>> 1\n1\n```"
    assert as_mkdocs_reads_it("```python\nx = 1\n```") == "```python\nx = 1\n```"


def test_what_a_proof_quotes_stands_below_its_name() -> None:
    quoted = as_mkdocs_reads_it("```python lehr.clipping.flat:FlatClip\nclass FlatClip: ...\n```")
    assert quoted == '```python title="lehr.clipping.flat:FlatClip"\nclass FlatClip: ...\n```'


def test_a_table_below_a_comment_is_a_table() -> None:
    assert as_mkdocs_reads_it("text\n\n<!-- made -->\n| a |\n") == "text\n\n\n| a |\n"


def test_an_item_below_a_paragraph_of_another_is_an_item() -> None:
    assert as_mkdocs_reads_it("1. a\n\n   more\n2. b\n") == "1. a\n\n    more\n\n2. b\n"
