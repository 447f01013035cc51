from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pytest

from lehr.data import catalogue
from tests.cli.conftest import Run, RunJson
from tests.data import picture_folders, small_known

CIFAR_100 = catalogue.CATALOGUE["cifar-100"]


@pytest.fixture(autouse=True)
def _small_catalogue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lehr: Run) -> None:
    """A machine without data sets, which knows a small one and the digits."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(catalogue, "_SYSTEM", tmp_path / "usr")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv(catalogue.VARIABLE, raising=False)
    some = {"small": small_known.known(), "digits": catalogue.CATALOGUE["digits"]}
    monkeypatch.setattr(catalogue, "CATALOGUE", MappingProxyType(some))


def test_list_says_what_is_here_and_where(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    assert "not here" in lehr("data", "list").stdout
    folder = small_known.write(tmp_path / "data" / "small")
    assert str(folder) in lehr("data", "list").stdout
    small, digits = lehr_json("data", "list")["data_sets"]
    assert (small["name"], small["records"], small["present"], small["folder"]) == ("small", 6, True, str(folder))
    assert (digits["present"], digits["folder"]) == (True, None)


def test_local_data_set_is_found(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    folder = small_known.write(tmp_path / "mine")
    assert f"small is in {folder}, verified" in lehr("data", "get", "small", "--data-dir", "mine").stdout
    found = lehr_json("data", "get", "small", "--data-dir", "mine")
    assert (found["folder"], found["source"], found["put"]) == (str(folder), "this machine", None)
    assert "one of digits, small" in lehr("data", "get", "imagenet", code=2).stderr


def test_missing_files_are_listed_and_found_where_they_are_put(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    shown = lehr("data", "get", "small", "--offline", code=1).stdout
    missing = lehr_json("data", "get", "small", code=1)["put"]
    assert missing["folder"] == str(tmp_path / ".cache" / "lehr" / "Small" / "raw")
    assert missing["folder"] in shown
    for file in small_known.FILES:
        assert {"name": file.name, "bytes": file.num_bytes, "sha256": file.sha256} in missing["files"]
        assert f"{file.num_bytes} bytes, SHA-256 {file.sha256}" in shown
    small_known.write(Path(missing["folder"]), compressed=True)
    lehr("data", "get", "small")


def test_digits_are_shipped(lehr: Run, lehr_json: RunJson) -> None:
    assert "nothing to get" in lehr("data", "get", "digits").stdout
    assert lehr_json("data", "get", "digits")["source"] == "shipped with Lehr"
    assert lehr_json("data", "check", "digits")["checked"][0]["verdict"] == "genuine"


def test_changed_file_fails_the_check(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    for name in ((), ("small",)):
        assert "found" in lehr("data", "check", *name, code=1).stderr
    folder = small_known.write(tmp_path / "mine")
    assert "genuine" in lehr("data", "check", "--data-dir", "mine").stdout
    (folder / "test-images").write_bytes(bytes(28))
    [row] = lehr_json("data", "check", "small", "--data-dir", "mine", code=1)["checked"]
    assert row["verdict"] == "wrong"
    assert "test-images" in row["told"]


def test_files_without_a_known_hash_have_only_the_right_size(
    lehr: Run, lehr_json: RunJson, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "CATALOGUE", MappingProxyType({"cifar-100": CIFAR_100}))
    for file in CIFAR_100.files:
        with open(tmp_path / file.name, "wb") as written:
            written.truncate(file.num_bytes)
    assert lehr_json("data", "check", "--data-dir", ".")["checked"][0]["verdict"] == "right size"
    shown = lehr("data", "get", "cifar-100", "--offline", "--data-dir", "elsewhere", code=1).stdout
    assert "hash not known" in shown
    assert "MD5 03b5dce01913d631647c71ecec9e9cb8" in shown


def test_images_that_cannot_be_decoded_are_named(lehr: Run, lehr_json: RunJson, tmp_path: Path) -> None:
    folder = picture_folders.write(tmp_path / "pictures", 9, seed=1)
    [row] = lehr_json("data", "check", "pictures", "--workers", "0")["checked"]
    assert (row["verdict"], row["told"]) == ("decoded", "9 images of 3 classes can be decoded")
    bad = picture_folders.spoil(folder)
    wrong, right = lehr_json("data", "check", "pictures", "--workers", "1", code=1)["checked"]
    assert (wrong["verdict"], wrong["where"]) == ("wrong", str(bad))
    assert right["told"] == "9 images of 3 classes can be decoded"
