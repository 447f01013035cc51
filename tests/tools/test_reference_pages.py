from __future__ import annotations

import re
from pathlib import Path

import lehr
from tools.reference_pages import PACKAGE, PUBLIC_NAMES, mapped_modules, offered, pages


def test_every_public_name_is_described() -> None:
    shown = re.findall(r"^::: lehr\.(\w+)$", pages()[PUBLIC_NAMES], flags=re.MULTILINE)
    assert sorted(shown) == sorted(set(lehr.__all__) - {"__version__"})


def test_every_module_of_the_map_has_a_page_and_exists() -> None:
    for name in mapped_modules():
        assert f"::: lehr.{name}\n" in pages()[f"reference/{name}.md"]
        assert (PACKAGE / f"{name}.py").exists() or (PACKAGE / name).is_dir()


def test_the_page_of_a_package_has_all_of_its_modules() -> None:
    page = pages()["reference/clipping.md"]
    for module in PACKAGE.joinpath("clipping").glob("[a-z]*.py"):
        assert f"'{module.stem}'" in page


def test_what_a_package_offers_is_found_with_where_it_is_made(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("import os\nfrom lehr.clipping.flat import FlatClip\n", encoding="utf-8")
    assert offered(tmp_path) == {"FlatClip": "lehr.clipping.flat.FlatClip"}
    assert offered(tmp_path / "nothing") == {}
