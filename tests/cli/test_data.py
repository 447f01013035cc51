from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from lehr.cli import data
from lehr.data import catalogue
from tests.data import picture_folders, small_known

Run = Callable[..., Result]
ALL = catalogue.CATALOGUE


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command on a machine without data sets, which knows a small one and the digits."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(catalogue, "_SYSTEM", tmp_path / "usr")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(catalogue.VARIABLE, raising=False)
    some = {"small": small_known.known(), "digits": ALL["digits"]}
    monkeypatch.setattr(catalogue, "CATALOGUE", MappingProxyType(some))

    def invoke(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(data.app, list(arguments))
        assert result.exit_code == code, f"{result.exit_code}: {result.output}{result.exception!r}"
        return result

    return invoke


def as_json(result: Result) -> dict[str, Any]:
    shape = json.loads(result.stdout)
    assert isinstance(shape, dict)
    return shape


def test_the_list_says_what_is_here_and_where(run: Run, tmp_path: Path) -> None:
    assert "not here" in run("list").stdout
    folder = small_known.write(tmp_path / "data" / "small")
    assert str(folder) in run("list").stdout
    small, digits = as_json(run("list", "--json"))["data_sets"]
    assert (small["name"], small["records"], small["present"], small["folder"]) == ("small", 6, True, str(folder))
    assert (digits["present"], digits["folder"]) == (True, None)


def test_what_is_here_is_found(run: Run, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "mine")
    assert f"small is in {folder}, verified" in run("get", "small", "--data-dir", "mine").stdout
    found = as_json(run("get", "small", "--data-dir", "mine", "--json"))
    assert (found["folder"], found["source"], found["put"]) == (str(folder), "this machine", None)


def test_what_cannot_be_had_is_told_file_by_file(run: Run, tmp_path: Path) -> None:
    said = run("get", "small", "--offline", code=1).stdout
    missing = as_json(run("get", "small", "--offline", "--json", code=1))["put"]
    assert missing["folder"] == str(tmp_path / ".cache" / "lehr" / "Small" / "raw")
    assert missing["folder"] in said
    for file in small_known.FILES:
        assert {"name": file.name, "bytes": file.num_bytes, "sha256": file.sha256} in missing["files"]
        assert file.name in said
        assert f"{file.num_bytes} bytes, SHA-256 {file.sha256}" in said


def test_files_put_where_it_says_are_found(run: Run) -> None:
    missing = as_json(run("get", "small", "--json", code=1))["put"]
    small_known.write(Path(missing["folder"]), compressed=True)
    run("get", "small")


def test_digits_need_nothing(run: Run) -> None:
    assert "nothing to get" in run("get", "digits").stdout
    assert as_json(run("get", "digits", "--json"))["source"] == "shipped with Lehr"
    assert as_json(run("check", "digits", "--json"))["checked"][0]["verdict"] == "genuine"


def test_a_changed_file_fails_the_check_by_name(run: Run, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "mine")
    assert "genuine" in run("check", "--data-dir", "mine").stdout
    (folder / "test-images").write_bytes(bytes(28))
    [row] = as_json(run("check", "small", "--data-dir", "mine", "--json", code=1))["checked"]
    assert row["verdict"] == "wrong"
    assert "test-images" in row["told"]
    run("check", "--data-dir", "mine", code=1)


def test_a_check_of_nothing_is_no(run: Run) -> None:
    assert "small was not found" in run("check", "small", code=1).stderr
    assert "none of the built-in data sets" in run("check", code=1).stderr


def test_an_unknown_name_is_not_understood(run: Run) -> None:
    assert "one of digits, small" in run("get", "imagenet", code=2).stderr


def test_files_without_a_known_hash_are_called_no_more_than_of_the_right_size(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cifar_100 = ALL["cifar-100"]
    monkeypatch.setattr(catalogue, "CATALOGUE", {"cifar-100": cifar_100})
    for file in cifar_100.files:
        with open(tmp_path / file.name, "wb") as written:
            written.truncate(file.num_bytes)
    assert as_json(run("check", "--data-dir", ".", "--json"))["checked"][0]["verdict"] == "right size"
    said = run("get", "cifar-100", "--offline", "--data-dir", "elsewhere", code=1).stdout
    assert "hash not known" in said
    assert "MD5 03b5dce01913d631647c71ecec9e9cb8" in said


def test_every_image_of_a_folder_is_decoded_and_those_that_are_none_are_named(run: Run, tmp_path: Path) -> None:
    folder = picture_folders.write(tmp_path / "pictures", 9, seed=1)
    [row] = as_json(run("check", "pictures", "--workers", "0", "--json"))["checked"]
    assert (row["verdict"], row["told"]) == ("decoded", "9 images of 3 classes can be decoded")
    bad = picture_folders.spoil(folder)
    wrong, right = as_json(run("check", "pictures", "--workers", "1", "--json", code=1))["checked"]
    assert (wrong["verdict"], wrong["where"]) == ("wrong", str(bad))
    assert right["told"] == "9 images of 3 classes can be decoded"
    assert "cannot be decoded" in run("check", str(folder), "--workers", "0", code=1).stdout
