"""A file that is added to and never changed: what it keeps, what it refuses, and what it leaves as it was."""

from __future__ import annotations

import math
import os
import random
import resource
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError
from lehr.files import append_only
from lehr.files.append_only import AppendOnlyFile, FileBacked, FileFormat, Journal, Row, check_name, row_errors

ROLLBACK, WRITE_AHEAD = (
    FileFormat(application_id=0x54657374, version=3, name="test file", journal=journal)
    for journal in (Journal.ROLLBACK, Journal.WRITE_AHEAD)
)


@dataclass(frozen=True)
class Place:
    """Where a file of this format is, or will be: alone in a folder."""

    path: Path
    form: FileFormat

    def create(self, rows: int = 3) -> tuple[Row, ...]:
        with AppendOnlyFile.create(self.path, self.form, kind="opened", body={"limit": 3.0}) as file:
            for number in range(1, rows):
                file.append("counted", {"number": number, "text": "a" * 40})
            return file.rows()

    def open(self, *, continuing: str | None = None) -> AppendOnlyFile:
        return AppendOnlyFile.open(self.path, self.form, continuing=continuing)

    def content(self) -> dict[str, bytes]:
        """Every byte of the file. SQLite's shared memory is scratch space, and an empty log says nothing."""
        found = {file.name: file.read_bytes() for file in self.path.parent.iterdir() if "-shm" not in file.name}
        return {name: content for name, content in found.items() if content}

    def change(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            for statement in statements:
                connection.execute(statement)
            connection.commit()

    def assert_refused(self, content: bytes) -> None:
        self.path.write_bytes(content)
        before = self.content()
        with pytest.raises((ForeignFile, DamagedFile), match=str(self.path)):
            self.open()
        assert self.content() == before


@pytest.fixture(params=[ROLLBACK, WRITE_AHEAD], ids=["rollback", "write ahead"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    (tmp_path / "folder").mkdir()
    return Place(tmp_path / "folder" / "file", request.param)


def test_rows_are_read_back_in_order(place: Place) -> None:
    rows = place.create()
    with place.open() as file:
        assert file.rows() == rows
        assert file.head == rows[-1].head
    assert [row.seq for row in rows] == [1, 2, 3]
    assert rows[1].content() == {"number": 1, "text": "a" * 40}
    assert list(place.content()) == ["file"]


def test_commits_wait_for_the_disk(place: Place) -> None:
    place.create()
    with place.open() as file:
        extra = 3
        assert file._usable().execute("PRAGMA synchronous").fetchone() == (extra,)
        assert file._usable().execute("PRAGMA journal_mode").fetchone() == (place.form.journal.value,)


def test_two_openings_see_each_other_s_rows(place: Place) -> None:
    place.create()
    with place.open() as one, place.open() as other:
        one.append("from", {"who": "one"})
        other.append("from", {"who": "other"})
        assert one.rows() == other.rows()
        assert [row.seq for row in one.rows()] == [1, 2, 3, 4, 5]


def add_and_fail(file: AppendOnlyFile) -> None:
    with file.transaction() as transaction:
        transaction.append("counted", {"number": 7})
        assert len(transaction.rows) == 4
        raise ZeroDivisionError


def test_a_failed_transaction_adds_nothing(place: Place) -> None:
    rows = place.create()
    with place.open() as file:
        with pytest.raises(ZeroDivisionError):
            add_and_fail(file)
        assert file.rows() == rows
        assert file.append("counted", {"number": 8}).seq == 4


def test_threads_share_one_opening(place: Place) -> None:
    with AppendOnlyFile.create(place.path, place.form, kind="opened", body={}) as file:
        threads = [threading.Thread(target=lambda: [file.append("counted", {}) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [row.seq for row in file.rows()] == list(range(1, 82))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET body = '{}' WHERE seq = 2",
        "DELETE FROM entry WHERE seq = 3",
        "INSERT OR REPLACE INTO entry VALUES (2, '', 'k', '{}', '')",
        "INSERT INTO entry VALUES (9, '', 'k', '{}', '')",
    ],
)
def test_sqlite_itself_refuses_to_change_rows(place: Place, statement: str) -> None:
    place.create()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        place.change(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TRIGGER entries_are_never_changed", "UPDATE entry SET body = '{}' WHERE seq = 2"],
        ["DROP TRIGGER entries_are_never_removed"],
        [
            "DROP TRIGGER entries_are_never_removed",
            "DELETE FROM entry WHERE seq = 3",
            append_only._SCHEMA["entries_are_never_removed"],  # the trigger is put back
        ],
        ["CREATE TABLE more (x)"],
        ["INSERT INTO entry VALUES (4, 'now', 'counted', '{}', 'not the hash')"],
        ["UPDATE sqlite_sequence SET seq = 2"],
        ["DELETE FROM sqlite_sequence"],
    ],
)
def test_changes_that_bypass_the_triggers_are_found_on_opening(place: Place, statements: list[str]) -> None:
    place.create()
    place.change(*statements)
    before = place.content()
    with pytest.raises(DamagedFile):
        place.open()
    assert place.content() == before


def test_a_row_changed_while_the_file_is_open_is_found(place: Place) -> None:
    place.create()
    with place.open() as file:
        place.change("DROP TRIGGER entries_are_never_changed", "UPDATE entry SET body = '{}' WHERE seq = 3")
        with pytest.raises(DamagedFile, match="row 3"):
            file.append("counted", {})


def test_every_truncation_is_refused(place: Place) -> None:
    place.create(rows=60)
    whole = place.path.read_bytes()
    around_pages = {at + by for at in range(0, len(whole), 4096) for by in (-1, 0, 1)}
    lengths = {*range(1, 120, 7), *around_pages, len(whole) - 1} & set(range(1, len(whole)))
    assert len(lengths) > 25
    for length in sorted(lengths):
        place.assert_refused(whole[:length])


def test_an_empty_file_is_refused_and_may_be_created_anew(place: Place) -> None:
    place.path.touch()
    with pytest.raises(ForeignFile):
        place.open()
    AppendOnlyFile.create(place.path, place.form, kind="opened", body={}).close()


def test_a_flipped_bit_is_refused_or_changes_no_row(place: Place) -> None:
    rows = place.create(rows=12)
    whole, chance, outcomes = place.path.read_bytes(), random.Random(20), []
    for at in (*range(100), *(chance.randrange(len(whole)) for _ in range(300))):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << chance.randrange(8)
        place.path.write_bytes(flipped)
        before = place.content()
        try:
            with place.open() as file:
                assert file.rows() == rows, at
                outcomes.append("same rows")
        except StoreError:
            assert place.content() == before, at
            outcomes.append("refused")
        for left in set(place.path.parent.iterdir()) - {place.path}:
            left.unlink()
    assert outcomes.count("refused") > 40
    assert outcomes.count("same rows") > 40


def test_every_flipped_byte_of_a_row_is_refused(place: Place) -> None:
    place.create()
    whole = place.path.read_bytes()
    body = b'{"number":1,"text":"' + b"a" * 40 + b'"}'
    start = whole.index(body)
    for at in range(start - 40, start + len(body) + 64):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        place.assert_refused(bytes(flipped))


@pytest.mark.parametrize("content", [b"name,value\n" * 1000, b"hello"])
def test_a_text_file_is_refused(place: Place, content: bytes) -> None:
    place.assert_refused(content)


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_another_program_s_database_is_refused_with_its_journal_untouched(place: Place, journal: str) -> None:
    place.change(f"PRAGMA journal_mode = {journal}", "CREATE TABLE theirs (x)")
    place.path.with_name("file-journal").write_bytes(b"a journal of theirs")
    before = place.content()
    with pytest.raises(ForeignFile):
        place.open()
    assert place.content() == before


@pytest.mark.parametrize("version", [4, 2])
def test_a_file_of_another_version_is_refused(place: Place, version: int) -> None:
    replace(place, form=replace(place.form, version=version)).create()
    before = place.content()
    with pytest.raises(ForeignFile, match=f"format {version}.*reads 3"):
        place.open()
    assert place.content() == before


def test_folders_pipes_and_missing_files_are_refused(place: Place) -> None:
    os.mkfifo(place.path)
    for what, error in (
        (place.path, ForeignFile),
        (place.path.parent, ForeignFile),
        (place.path.with_name("missing"), StoreError),
    ):
        with pytest.raises(error):
            AppendOnlyFile.open(what, place.form)
    assert not place.path.with_name("missing").exists()


def test_creating_never_replaces_anything(place: Place) -> None:
    place.create()
    place.path.with_name("text").write_text("mine")
    before = place.content()
    for taken in (
        place.path,
        place.path.with_name("text"),
        place.path.with_name("missing") / "file",
        Path("/proc/self/file"),
    ):
        with pytest.raises(StoreError, match=str(taken)):
            AppendOnlyFile.create(taken, place.form, kind="opened", body={})
    assert place.content() == before


@contextmanager
def without_rights(folder: Path, mode: int) -> Iterator[None]:
    """The administrator may do everything, so such a test process becomes somebody else for a while."""
    below_temporary = [path for path in [folder, *folder.parents] if Path(tempfile.gettempdir()) in path.parents]
    user, was = os.geteuid(), [(path, path.stat().st_mode) for path in below_temporary]
    folder.chmod(mode)
    if user == 0:
        for parent, _ in was[1:]:
            parent.chmod(0o755)
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        for path, before in was:
            path.chmod(before)


def test_a_folder_without_rights_is_a_store_error(place: Place) -> None:
    place.create()
    with without_rights(place.path.parent, 0o000), pytest.raises(StoreError):
        place.open()
    for mode in (0o000, 0o555):
        with without_rights(place.path.parent, mode), pytest.raises(StoreError):
            AppendOnlyFile.create(place.path.with_name("new"), place.form, kind="opened", body={})


def test_a_file_in_a_read_only_folder_can_be_inspected_and_not_added_to(place: Place) -> None:
    rows, before = place.create(), place.content()
    with without_rights(place.path.parent, 0o555), place.open() as file:
        assert file.rows() == rows
        with pytest.raises(StoreError):
            file.append("counted", {"number": 3})
        assert file.rows() == rows
    assert place.content() == before
    place.path.write_bytes(place.path.read_bytes().replace(b'"number":1', b'"number":9'))
    with without_rights(place.path.parent, 0o555), pytest.raises(DamagedFile, match="row 2"):
        place.open()


def test_rows_that_are_only_in_the_log_are_never_passed_over(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    live, copy = Place(tmp_path / "file", WRITE_AHEAD), Place(tmp_path / "archive" / "file", WRITE_AHEAD)
    live.create()
    with live.open() as file:
        file.append("counted", {"number": 3})
        for ending in ("", "-wal"):
            shutil.copy(f"{live.path}{ending}", f"{copy.path}{ending}")
    # Without the shared memory, which cannot be made here, the log cannot be read: better no answer than an old one.
    with without_rights(copy.path.parent, 0o555), pytest.raises(StoreError, match=str(copy.path)):
        copy.open()


def test_a_full_disk_is_a_store_error_and_loses_nothing(place: Place) -> None:
    place.create()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with place.open() as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * place.path.stat().st_size, hard))
        try:
            with pytest.raises(StoreError):
                file.append("counted", {"text": "a" * 100_000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert len(file.rows()) == 3
        assert file.append("counted", {"number": 3}).seq == 4


def test_odd_names_links_and_a_change_of_folder_do_no_harm(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a b?mode=ro#%41.é"
    place.path.symlink_to(place.path.with_name(name))
    monkeypatch.chdir(place.path.parent)
    with AppendOnlyFile.create(name, place.form, kind="opened", body={}) as file:
        monkeypatch.chdir("/")
        file.append("counted", {})
        with place.open() as linked:
            assert linked.append("counted", {}).seq == 3
        assert len(file.rows()) == 3


def test_a_file_in_use_for_too_long_is_a_store_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.create()
    monkeypatch.setattr(append_only, "LOCK_PATIENCE_S", 0.05)
    with (
        place.open() as one,
        place.open() as other,
        one.transaction(),
        pytest.raises(StoreError, match="in use by another process"),
    ):
        other.append("counted", {})


def test_an_older_copy_is_recognised_by_its_head(place: Place) -> None:
    place.create()
    older = place.path.read_bytes()
    with place.open() as file:
        head = file.append("counted", {}).head
        file.append("counted", {})
    place.open(continuing=head).close()
    place.path.write_bytes(older)
    place.open().close()
    with pytest.raises(DamagedFile, match="4:"):
        place.open(continuing=head)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_file_moved_or_removed_while_open_takes_no_more_rows(place: Place, spoil: Callable[[Path], object]) -> None:
    place.create()
    with place.open() as file:
        spoil(place.path)
        with pytest.raises(StoreError, match="moved, removed or replaced"):
            file.append("counted", {})


def test_a_closed_file_and_a_forked_process_take_no_more_rows(place: Place) -> None:
    with AppendOnlyFile.create(place.path, place.form, kind="opened", body={}) as file:
        file._process = os.getpid() + 1  # what a fork changes, without the danger of forking a test process
        with pytest.raises(StoreError, match="forked"):
            file.append("counted", {})
    file.close()
    with pytest.raises(StoreError, match="closed"):
        file.append("counted", {})


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_a_body_that_is_not_json_is_refused(place: Place, value: object) -> None:
    rows = place.create()
    with place.open() as file:
        with pytest.raises(InvalidValue, match=r"^body"):
            file.append("counted", {"value": value})
        assert file.rows() == rows


@pytest.mark.parametrize("error", [RecursionError("too deep"), BudgetExceeded("too much"), KeyError("run")])
def test_whatever_is_wrong_with_a_row_is_damage(error: Exception) -> None:
    row = Row(seq=7, at="", kind="odd", body='{"a":' * 100_000 + "1" + "}" * 100_000, chain="")
    with pytest.raises(DamagedFile, match=r"row 7 \(odd\)"), row_errors(Path("file"), row):
        raise error
    with pytest.raises(DamagedFile, match="row 7"), row_errors(Path("file"), row):
        row.content()  # nested beyond the stack


@pytest.mark.parametrize("name", ["a run", "MNIST, training half", "Läufe 1–3 (ε = 3)", "画像"])
def test_one_line_of_printable_text_is_a_name(name: str) -> None:
    assert check_name(run=name) == name


@pytest.mark.parametrize("name", ["", "a\nb", "a\r", "a\tb", "\x1b[31mred", "a\x00", "\u202eabc", "\ud800", None, 3])
def test_other_text_is_no_name(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"^run must be"):
        check_name(run=name)


class Notebook(FileBacked):
    """The smallest object kept in a file. Every row has a number."""

    file_format = ROLLBACK

    def __init__(self, file: AppendOnlyFile) -> None:
        super().__init__(file)
        for row in file.rows():
            with row_errors(self.path, row):
                self.last = row.content()["number"]


def test_an_object_kept_in_a_file_has_its_path_and_head(tmp_path: Path) -> None:
    with AppendOnlyFile.create(tmp_path / "file", ROLLBACK, kind="remark", body={"number": 1}) as file:
        head = file.head
    with Notebook.open(tmp_path / "file", continuing=head) as notebook:
        assert (notebook.path, notebook.head, notebook.last) == (tmp_path / "file", head, 1)
    with pytest.raises(StoreError, match="closed"):
        _ = notebook.head


def test_a_file_whose_rows_are_refused_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Place(tmp_path / "file", ROLLBACK).create()
    closed: list[Path] = []
    monkeypatch.setattr(AppendOnlyFile, "close", lambda file: closed.append(file.path))
    with pytest.raises(DamagedFile, match="row 1"):
        Notebook.open(tmp_path / "file")
    assert closed == [tmp_path / "file"]


def test_a_copy_has_the_same_rows_at_one_moment(place: Place) -> None:
    rows, target, at = place.create(), place.path.with_name("copy"), "2026-01-31T12:00+00:00"
    AppendOnlyFile.copy_at(place.path, target, place.form, at=at)
    with AppendOnlyFile.open(target, place.form) as copy:
        assert [(row.seq, row.kind, row.body) for row in copy.rows()] == [(r.seq, r.kind, r.body) for r in rows]
        assert {row.at for row in copy.rows()} == {at}
        copy.append("remark", {"text": "it goes on"})
    with pytest.raises(StoreError):
        AppendOnlyFile.copy_at(place.path, target, place.form, at=at)
