from __future__ import annotations

from pathlib import Path

from tools.twins import sources_without_test


def test_a_source_file_without_a_test_of_its_path_is_found(tmp_path: Path) -> None:
    for name in ("src/__init__.py", "src/flat.py", "src/deep/flat.py", "src/deep/tested.py", "src/deep/page.proof.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("tests/test_flat.py", "tests/deep/test_tested.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert sources_without_test(tmp_path / "src", tmp_path / "tests") == ["deep/flat.py"]
