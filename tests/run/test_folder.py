"""The folder of a run: who may open it, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.accounting.events import Adjacency, Gaussian, PoissonSampled, Repeated
from lehr.errors import InvalidValue, StoreError
from lehr.privacy.rng import RunKey
from lehr.run.folder import RunFolder, default_directory, differences, read_config, refuse_used
from lehr.run.shape import Evaluation, RunFiles

KEY = RunKey(bytes(range(32)))
CONFIG: dict[str, Any] = {
    "format": "lehr-run",
    "format_version": 1,
    "run": "test",
    "created_on": "2026-01-01",
    "library_version": "0",
    "plan": {"steps": 5, "delta": 1e-5},
    "method": {"name": "dpsgd"},
    "data": {},
    "model": {},
    "training": {},
}


def create(path: Path, fingerprint: Callable[[RunKey], str] = lambda key: "mark") -> RunFolder:
    return RunFolder.create(
        path,
        config=CONFIG,
        key=KEY,
        plan_event=Repeated(PoissonSampled(0.1, Gaussian(1.0)), 5),
        delta=1e-5,
        adjacency=Adjacency.ADD_OR_REMOVE_ONE,
        fingerprint=fingerprint,
    )


def test_new_folder(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    files = RunFiles(tmp_path / "run")
    assert files.config.is_file()
    assert files.ledger.is_file()
    assert files.private.stat().st_mode & 0o777 == 0o700
    for file in files.private.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    assert not any(KEY.secret in file.read_bytes() for file in files.directory.glob("*") if file.is_file())


def test_open_folder(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    with RunFolder.open(tmp_path / "run") as folder:
        assert folder.key == KEY
        assert folder.config == CONFIG
        assert folder.ledger.run == "test"


def test_folder_is_locked(tmp_path: Path) -> None:
    with create(tmp_path / "run"), pytest.raises(StoreError, match="another process"):
        RunFolder.open(tmp_path / "run")
    RunFolder.open(tmp_path / "run").close()


def test_run_without_its_key_cannot_resume(tmp_path: Path) -> None:
    with create(tmp_path / "run") as folder:
        files = folder.files
    for path in files.private.iterdir():
        path.unlink()
    with pytest.raises(StoreError, match="its key is gone"):
        RunFolder.open(files.directory)
    assert not list(files.private.iterdir())


def test_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        create(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]
    refuse_used(tmp_path / "new")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_unwritable_parent(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match="Permission"):
        create(tmp_path / "run")


def test_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot use"):
        create(tmp_path / "file" / "run")


def test_folder_without_config(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    (tmp_path / "run/config.json").unlink()
    with pytest.raises(StoreError, match="config"):
        RunFolder.open(tmp_path / "run")


def test_config_of_another_format(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    (tmp_path / "run/config.json").write_text('{"format": "something"}')
    with pytest.raises(StoreError, match="lehr-run"):
        read_config(tmp_path / "run")


def test_config_without_a_section(tmp_path: Path) -> None:
    create(tmp_path / "run").close()
    (tmp_path / "run/config.json").write_text(json.dumps({**CONFIG, "model": None}))
    with pytest.raises(StoreError, match="model must be an object"):
        read_config(tmp_path / "run")


def test_other_plan_or_records(tmp_path: Path) -> None:
    with create(tmp_path / "run") as folder:
        folder.check_same(config=CONFIG, fingerprint=lambda key: "mark")
        with pytest.raises(InvalidValue, match=r"plan.steps was 5 and is 6"):
            folder.check_same(config={**CONFIG, "plan": {"steps": 6, "delta": 1e-5}}, fingerprint=lambda key: "mark")
        with pytest.raises(InvalidValue, match="other records"):
            folder.check_same(config=CONFIG, fingerprint=lambda key: "another")


def test_date_version_and_claims_may_differ() -> None:
    assert differences(CONFIG, {**CONFIG, "created_on": "2027-01-01", "library_version": "1"}) == []
    assert differences(CONFIG, {**CONFIG, "claims": {"proven": {"epsilon": 2.0}}}) == []
    assert differences({"a": {"created_on": 1}}, {"a": {"created_on": 2}}) == ["a.created_on was 1 and is 2"]
    assert differences({"a": 1}, {}) == ["a was 1 and is None"]


def test_rows_after_a_step_are_deleted(tmp_path: Path) -> None:
    rows = [
        Evaluation(step=step, accepted=step, epsilon_spent=1.0, loss=0.5, accuracy=0.5, on="test", learning_rate=0.1)
        for step in (2, 4, 6)
    ]
    with create(tmp_path / "run") as folder:
        from lehr.files import strict_json

        for row in rows:
            strict_json.append_line(folder.files.metrics, row.to_json())
        with open(folder.files.metrics, "a") as file:
            file.write('{"step": 8, "acc')
        assert folder.evaluations() == tuple(rows)
        folder.forget_evaluations_after(4)
        assert folder.evaluations() == tuple(rows[:2])


def test_remove_leaves_other_files(tmp_path: Path) -> None:
    create(tmp_path / "run").remove()
    assert not (tmp_path / "run").exists()
    folder = create(tmp_path / "run")
    (tmp_path / "run" / "notes.txt").write_text("mine", encoding="utf-8")
    folder.remove()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["notes.txt"]


def test_charged_run_is_never_removed(tmp_path: Path) -> None:
    with create(tmp_path / "run") as folder:
        folder.ledger.record(PoissonSampled(0.1, Gaussian(1.0)), counts={"steps": 1})
        with pytest.raises(InvalidValue, match="charged nothing"):
            folder.remove()
    with RunFolder.open(tmp_path / "run") as again:
        assert again.ledger.count("steps") == 1


def test_default_folders_differ_within_a_second() -> None:
    first = default_directory("dpsgd on digits/8")
    assert first != default_directory("dpsgd on digits/8")
    assert first.match("runs/*-dpsgd-on-digits-8")
