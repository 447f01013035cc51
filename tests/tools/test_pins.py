from __future__ import annotations

from pathlib import Path

from tools.pins import declared, explained, pinned


def test_dependencies_are_read_without_their_versions_and_extras_are_included(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["numpy>=2.0,<3", "Dp_Accounting[all]~=0.6"]\n'
        '[project.optional-dependencies]\ntest = ["pytest"]\n'
    )
    assert declared(file) == {"numpy", "dp-accounting", "pytest"}


def test_pins_are_read_with_their_versions_and_comments_are_not(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text("# tested\nnumpy==2.4.6\nDP_accounting==0.6.0  # reference\n\n")
    assert pinned(file) == {"numpy": "2.4.6", "dp-accounting": "0.6.0"}


def test_only_the_first_column_of_a_table_explains_a_dependency(tmp_path: Path) -> None:
    file = tmp_path / "dependencies.md"
    file.write_text(
        "| dependency | for | instead of |\n|---|---|---|\n| `numpy` | arrays | `array` |\n\n`scipy` is used.\n"
    )
    assert explained(file) == {"numpy"}
