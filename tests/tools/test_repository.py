from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.repository import LARGEST_BYTES, declared, explained, large_files, local_paths, pinned, tracked_files


def written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_only_existing_tracked_files_are_listed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    kept, gone = written(tmp_path / "kept ü.py", ""), written(tmp_path / "gone.py", "")
    written(tmp_path / "untracked.py", "")
    subprocess.run(["git", "add", kept.name, gone.name], cwd=tmp_path, check=True)
    gone.unlink()
    assert tracked_files(tmp_path) == (kept,)


@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
def test_a_path_of_one_machine_is_found_with_its_line(tmp_path: Path, folder: str) -> None:
    lines = ("fine", "/{}/someone/data", 'path = "/{}/x"', "see (/{}/notes.md)", "/{}/a and more")
    file = written(tmp_path / "page.md", "\n".join(lines).format(*[folder] * 4))
    assert local_paths([file]) == [f"{file}:{number}" for number in (2, 3, 4, 5)]


def test_similar_paths_are_left_alone(tmp_path: Path) -> None:
    texts = (
        "https://example.org/" + "home/page",
        "~/" + "work/x",
        "src/" + "work/flat.py",
        "/homework",
        "a/" + "root/b",
    )
    assert local_paths([written(tmp_path / "page.md", "\n".join(texts))]) == []


def test_a_file_over_one_mebibyte_is_found(tmp_path: Path) -> None:
    fits = written(tmp_path / "fits.csv", "x" * LARGEST_BYTES)
    large = written(tmp_path / "large.csv", "x" * (LARGEST_BYTES + 1))
    assert large_files([fits, large]) == [str(large)]


def test_dependencies_are_read_from_three_files(tmp_path: Path) -> None:
    project = '[project]\ndependencies = ["numpy>=2.0,<3", "Dp_Accounting[all]~=0.6"]\n'
    extras = '[project.optional-dependencies]\ntest = ["pytest"]\n'
    assert declared(written(tmp_path / "pyproject.toml", project + extras)) == {"numpy", "dp-accounting", "pytest"}
    pins = written(tmp_path / "constraints.txt", "# tested\nnumpy==2.4.6\nDP_accounting==0.6.0  # reference\n\n")
    assert pinned(pins) == {"numpy": "2.4.6", "dp-accounting": "0.6.0"}
    rows = "| dependency | for | instead of |\n|---|---|---|\n| `numpy` | arrays | `array` |\n\n`scipy` is used.\n"
    assert explained(written(tmp_path / "dependencies.md", rows)) == {"numpy"}
