from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.tracked_files import LARGEST_BYTES, large_files, local_paths, tracked


def written(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def test_only_tracked_files_that_still_exist_are_listed(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    kept, gone = written(tmp_path / "kept ü.py", ""), written(tmp_path / "gone.py", "")
    written(tmp_path / "untracked.py", "")
    subprocess.run(["git", "add", kept.name, gone.name], cwd=tmp_path, check=True)
    gone.unlink()
    assert tracked(tmp_path) == (kept,)


@pytest.mark.parametrize("folder", ["work", "root", "home", "Users"])
@pytest.mark.parametrize("template", ["/{}/someone/data", 'path = "/{}/x"', "see (/{}/notes.md)", "/{}/a and more"])
def test_a_path_of_one_machine_is_found_with_its_line(tmp_path: Path, folder: str, template: str) -> None:
    file = written(tmp_path / "page.md", "fine\n" + template.format(folder))
    assert local_paths([file]) == [f"{file}:2"]


@pytest.mark.parametrize(
    "text",
    ["https://example.org/" + "home/page", "~/" + "work/x", "src/" + "work/flat.py", "/homework", "a/" + "root/b"],
)
def test_what_only_resembles_a_local_path_is_left_alone(tmp_path: Path, text: str) -> None:
    assert local_paths([written(tmp_path / "page.md", text)]) == []


def test_a_file_over_one_mebibyte_is_found(tmp_path: Path) -> None:
    fits = written(tmp_path / "fits.csv", "x" * LARGEST_BYTES)
    large = written(tmp_path / "large.csv", "x" * (LARGEST_BYTES + 1))
    assert large_files([fits, large]) == [str(large)]
