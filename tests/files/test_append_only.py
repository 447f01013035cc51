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
from pathlib import Path

import numpy as np
import pytest

from lehr.errors import BudgetExceeded, DamagedFile, ForeignFile, InvalidValue, StoreError
from lehr.files import append_only
from lehr.files.append_only import (
    AppendOnlyFile,
    FileBacked,
    FileFormat,
    Journal,
    Row,
    canonical_json,
    check_name,
    reading,
)

FORMATS = {
    journal: FileFormat(application_id=0x54657374, version=3, name="test file", journal=journal) for journal in Journal
}


@pytest.fixture(params=list(Journal), ids=lambda journal: journal.name.lower())
def file_format(request: pytest.FixtureRequest) -> FileFormat:
    journal: Journal = request.param
    return FORMATS[journal]


def made(path: Path, file_format: FileFormat, rows: int = 3) -> tuple[Row, ...]:
    with AppendOnlyFile.create(path, file_format, kind="opened", body={"limit": 3.0}) as file:
        for number in range(1, rows):
            file.append("counted", {"number": number, "text": "a" * 40})
        return file.rows()


def files_beside(path: Path) -> dict[str, bytes]:
    """Every byte that belongs to the file. SQLite's shared memory is scratch space, and an empty log says nothing."""
    found = {file.name: file.read_bytes() for file in path.parent.iterdir() if not file.name.endswith("-shm")}
    return {name: content for name, content in found.items() if content}


def test_rows_are_read_back_in_order_by_another_opening(tmp_path: Path, file_format: FileFormat) -> None:
    rows = made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        assert file.rows() == rows
        assert file.head == rows[-1].head
    assert [row.seq for row in rows] == [1, 2, 3]
    assert rows[1].content() == {"number": 1, "text": "a" * 40}


def test_the_journal_is_the_one_asked_for_and_commits_wait_for_the_disk(
    tmp_path: Path, file_format: FileFormat
) -> None:
    with AppendOnlyFile.create(tmp_path / "file", file_format, kind="opened", body={}) as file:
        connection = file._usable()
        assert connection.execute("PRAGMA journal_mode").fetchone() == (file_format.journal.value,)
        extra = 3
        assert connection.execute("PRAGMA synchronous").fetchone() == (extra,)


def test_two_openings_see_each_other_s_rows(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format)
    with (
        AppendOnlyFile.open(tmp_path / "file", file_format) as one,
        AppendOnlyFile.open(tmp_path / "file", file_format) as other,
    ):
        one.append("from", {"who": "one"})
        other.append("from", {"who": "other"})
        assert one.rows() == other.rows()
        assert [row.seq for row in one.rows()] == [1, 2, 3, 4, 5]


def test_a_transaction_that_fails_adds_nothing(tmp_path: Path, file_format: FileFormat) -> None:
    rows = made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        with pytest.raises(ZeroDivisionError):
            add_and_fail(file)
        assert file.rows() == rows
        assert file.append("counted", {"number": 8}).seq == 4


def test_threads_share_one_opening(tmp_path: Path, file_format: FileFormat) -> None:
    with AppendOnlyFile.create(tmp_path / "file", file_format, kind="opened", body={}) as file:

        def add() -> None:
            for _ in range(20):
                file.append("counted", {})

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [row.seq for row in file.rows()] == list(range(1, 82))


def add_and_fail(file: AppendOnlyFile) -> None:
    with file.transaction() as transaction:
        transaction.append("counted", {"number": 7})
        assert len(transaction.rows) == 4
        raise ZeroDivisionError


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET body = '{}' WHERE seq = 2",
        "DELETE FROM entry WHERE seq = 3",
        "INSERT OR REPLACE INTO entry VALUES (2, '', 'k', '{}', '')",
        "INSERT INTO entry VALUES (9, '', 'k', '{}', '')",
    ],
)
def test_sqlite_itself_refuses_to_change_rows(tmp_path: Path, file_format: FileFormat, statement: str) -> None:
    made(tmp_path / "file", file_format)
    with (
        closing(sqlite3.connect(tmp_path / "file")) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TRIGGER entries_are_never_changed", "UPDATE entry SET body = '{}' WHERE seq = 2"],
        ["DROP TRIGGER entries_are_never_removed"],
        ["CREATE TABLE more (x)"],
        ["INSERT INTO entry VALUES (4, 'now', 'counted', '{}', 'not the hash')"],
        ["UPDATE sqlite_sequence SET seq = 2"],
        ["DELETE FROM sqlite_sequence"],
    ],
)
def test_what_gets_round_the_triggers_is_seen_on_opening(
    tmp_path: Path, file_format: FileFormat, statements: list[str]
) -> None:
    made(tmp_path / "file", file_format)
    with closing(sqlite3.connect(tmp_path / "file")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    before = files_beside(tmp_path / "file")
    with pytest.raises(DamagedFile, match="file"):
        AppendOnlyFile.open(tmp_path / "file", file_format)
    assert files_beside(tmp_path / "file") == before


def test_a_removed_last_row_is_missed_even_when_the_triggers_are_put_back(
    tmp_path: Path, file_format: FileFormat
) -> None:
    made(tmp_path / "file", file_format)
    with closing(sqlite3.connect(tmp_path / "file")) as connection:
        connection.execute("DROP TRIGGER entries_are_never_removed")
        connection.execute("DELETE FROM entry WHERE seq = 3")
        connection.execute(append_only._SCHEMA["entries_are_never_removed"])
        connection.commit()
    with pytest.raises(DamagedFile, match="rows are missing"):
        AppendOnlyFile.open(tmp_path / "file", file_format)


def test_a_row_changed_while_the_file_is_open_is_seen(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        with closing(sqlite3.connect(tmp_path / "file")) as connection:
            connection.execute("DROP TRIGGER entries_are_never_changed")
            connection.execute("UPDATE entry SET body = '{}' WHERE seq = 3")
            connection.commit()
        with pytest.raises(DamagedFile, match="row 3"):
            file.append("counted", {})


def test_every_truncation_is_refused_and_leaves_the_file_as_it_was(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format, rows=60)
    whole = (tmp_path / "file").read_bytes()
    page = 4096
    around_pages = {at + by for at in range(0, len(whole), page) for by in (-1, 0, 1)}
    lengths = {*range(1, 120, 7), *around_pages, len(whole) - 1} & set(range(1, len(whole)))
    assert len(lengths) > 25
    for length in sorted(lengths):
        assert_refused(tmp_path / f"cut{length}" / "file", whole[:length], file_format)


def test_an_empty_file_is_refused_and_may_be_created_anew(tmp_path: Path, file_format: FileFormat) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ForeignFile, match="empty"):
        AppendOnlyFile.open(path, file_format)
    AppendOnlyFile.create(path, file_format, kind="opened", body={}).close()


def assert_refused(path: Path, content: bytes, file_format: FileFormat) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    before = files_beside(path)
    with pytest.raises((ForeignFile, DamagedFile), match=str(path)):
        AppendOnlyFile.open(path, file_format)
    assert files_beside(path) == before


def test_a_flipped_bit_is_refused_or_changes_no_row(tmp_path: Path, file_format: FileFormat) -> None:
    rows = made(tmp_path / "file", file_format, rows=12)
    whole = (tmp_path / "file").read_bytes()
    chance = random.Random(20)
    places = [*range(100), *(chance.randrange(len(whole)) for _ in range(300))]
    outcomes = [
        after_flip(tmp_path / f"flip{i}", whole, at, chance.randrange(8), rows, file_format)
        for i, at in enumerate(places)
    ]
    assert outcomes.count("refused") > 40
    assert outcomes.count("same rows") > 40


def after_flip(folder: Path, whole: bytes, at: int, bit: int, rows: tuple[Row, ...], file_format: FileFormat) -> str:
    folder.mkdir()
    path = folder / "file"
    flipped = bytearray(whole)
    flipped[at] ^= 1 << bit
    path.write_bytes(flipped)
    before = files_beside(path)
    try:
        with AppendOnlyFile.open(path, file_format) as file:
            assert file.rows() == rows, f"bit {bit} of byte {at}"
            return "same rows"
    except StoreError:
        assert files_beside(path) == before, f"bit {bit} of byte {at}"
        return "refused"
    finally:
        shutil.rmtree(folder)


def test_every_flipped_byte_of_a_row_is_refused(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format)
    whole = (tmp_path / "file").read_bytes()
    body = b'{"number":1,"text":"' + b"a" * 40 + b'"}'
    start = whole.index(body)
    for at in range(start - 40, start + len(body) + 64):
        flipped = bytearray(whole)
        flipped[at] ^= 1
        assert_refused(tmp_path / str(at) / "file", bytes(flipped), file_format)


def test_a_text_file_is_refused(tmp_path: Path, file_format: FileFormat) -> None:
    assert_refused(tmp_path / "folder" / "file", b"name,value\n" * 1000, file_format)
    assert_refused(tmp_path / "short" / "file", b"hello", file_format)


def test_another_program_s_database_is_refused_with_its_journal_untouched(
    tmp_path: Path, file_format: FileFormat
) -> None:
    for journal in ("delete", "wal"):
        path = tmp_path / journal / "file"
        path.parent.mkdir()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal}")
            connection.execute("CREATE TABLE theirs (x)")
            connection.commit()
        path.with_name("file-journal").write_bytes(b"a journal of theirs")
        before = files_beside(path)
        with pytest.raises(ForeignFile, match="application id"):
            AppendOnlyFile.open(path, file_format)
        assert files_beside(path) == before


@pytest.mark.parametrize("version, advice", [(4, "upgrade Lehr"), (2, "never such a format")])
def test_a_file_of_another_version_is_refused(
    tmp_path: Path, file_format: FileFormat, version: int, advice: str
) -> None:
    other = FileFormat(
        application_id=file_format.application_id, version=version, name="test file", journal=file_format.journal
    )
    made(tmp_path / "file", other)
    before = files_beside(tmp_path / "file")
    with pytest.raises(ForeignFile, match=f"format {version}.*reads 3.*{advice}"):
        AppendOnlyFile.open(tmp_path / "file", file_format)
    assert files_beside(tmp_path / "file") == before


def test_folders_pipes_and_missing_files_are_refused(tmp_path: Path, file_format: FileFormat) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ForeignFile, match="a folder"):
        AppendOnlyFile.open(tmp_path, file_format)
    with pytest.raises(ForeignFile, match="not a regular file"):
        AppendOnlyFile.open(tmp_path / "pipe", file_format)
    with pytest.raises(StoreError, match="No such file"):
        AppendOnlyFile.open(tmp_path / "missing", file_format)
    assert not (tmp_path / "missing").exists()


def test_creating_never_writes_over_anything(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format)
    (tmp_path / "text").write_text("mine")
    before = files_beside(tmp_path / "file")
    for taken in ("file", "text"):
        with pytest.raises(StoreError, match="exists already"):
            AppendOnlyFile.create(tmp_path / taken, file_format, kind="opened", body={})
    assert files_beside(tmp_path / "file") == before
    with pytest.raises(StoreError, match="no folder"):
        AppendOnlyFile.create(tmp_path / "missing" / "file", file_format, kind="opened", body={})


def test_a_folder_that_cannot_be_written_is_a_store_error(file_format: FileFormat) -> None:
    with pytest.raises(StoreError, match="/proc/self/file"):
        AppendOnlyFile.create("/proc/self/file", file_format, kind="opened", body={})


def test_a_folder_that_may_not_be_entered_or_written_is_a_store_error(tmp_path: Path, file_format: FileFormat) -> None:
    folder = tmp_path / "closed"
    folder.mkdir()
    made(folder / "file", file_format)
    with without_rights(folder, 0o000), pytest.raises(StoreError, match="Permission denied"):
        AppendOnlyFile.open(folder / "file", file_format)
    with without_rights(folder, 0o000), pytest.raises(StoreError, match="Permission denied"):
        AppendOnlyFile.create(folder / "new", file_format, kind="opened", body={})
    with without_rights(folder, 0o555), pytest.raises(StoreError, match=r"unable to open|readonly"):
        AppendOnlyFile.create(folder / "new", file_format, kind="opened", body={})


def test_a_closed_file_in_a_folder_that_may_not_be_written_can_be_inspected_and_not_added_to(
    tmp_path: Path, file_format: FileFormat
) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    rows = made(folder / "file", file_format)
    before = files_beside(folder / "file")
    with without_rights(folder, 0o555), AppendOnlyFile.open(folder / "file", file_format) as file:
        assert file.rows() == rows
        with pytest.raises(StoreError, match="readonly"):
            file.append("counted", {"number": 3})
        assert file.rows() == rows
    assert files_beside(folder / "file") == before


def test_damage_is_seen_in_a_folder_that_may_not_be_written_too(tmp_path: Path, file_format: FileFormat) -> None:
    folder = tmp_path / "archive"
    folder.mkdir()
    made(folder / "file", file_format)
    whole = (folder / "file").read_bytes()
    (folder / "file").write_bytes(whole.replace(b'"number":1', b'"number":9'))
    with without_rights(folder, 0o555), pytest.raises(DamagedFile, match="row 2 was changed"):
        AppendOnlyFile.open(folder / "file", file_format)


def test_rows_that_are_only_in_the_log_are_never_passed_over(tmp_path: Path) -> None:
    file_format, folder = FORMATS[Journal.WRITE_AHEAD], tmp_path / "archive"
    folder.mkdir()
    made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        file.append("counted", {"number": 3})
        for ending in ("", "-wal"):
            shutil.copy(tmp_path / f"file{ending}", folder / f"file{ending}")
    # Without the shared memory, which cannot be made here, the log cannot be read: better no answer than an old one.
    with without_rights(folder, 0o555), pytest.raises(StoreError, match=str(folder / "file")):
        AppendOnlyFile.open(folder / "file", file_format)


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


def test_a_full_disk_is_a_store_error_and_loses_nothing(tmp_path: Path, file_format: FileFormat) -> None:
    made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        with (
            no_file_grows_beyond(2 * (tmp_path / "file").stat().st_size),
            pytest.raises(StoreError, match=r"full|disk I/O error"),
        ):
            file.append("counted", {"text": "a" * 100_000})
        assert len(file.rows()) == 3
        assert file.append("counted", {"number": 3}).seq == 4


@contextmanager
def no_file_grows_beyond(length: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_odd_names_links_and_a_change_of_folder_do_no_harm(
    tmp_path: Path, file_format: FileFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "a b?mode=ro#%41.é")
    monkeypatch.chdir(tmp_path)
    with AppendOnlyFile.create("real/a b?mode=ro#%41.é", file_format, kind="opened", body={}) as file:
        monkeypatch.chdir("/")
        for _ in range(200):
            file.append("counted", {"text": "a" * 40})
        with AppendOnlyFile.open(tmp_path / "link", file_format) as linked:
            assert linked.append("counted", {}).seq == 202
        assert len(file.rows()) == 202


def test_a_file_in_use_for_too_long_is_a_store_error(
    tmp_path: Path, file_format: FileFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "file", file_format)
    monkeypatch.setattr(append_only, "LOCK_PATIENCE_S", 0.05)
    with (
        AppendOnlyFile.open(tmp_path / "file", file_format) as one,
        AppendOnlyFile.open(tmp_path / "file", file_format) as other,
        one.transaction(),
        pytest.raises(StoreError, match=r"in use by another process for 0\.05 s"),
    ):
        other.append("counted", {})


def test_an_older_copy_is_told_by_its_head(tmp_path: Path, file_format: FileFormat) -> None:
    path = tmp_path / "file"
    made(path, file_format)
    shutil.copy(path, tmp_path / "older")
    with AppendOnlyFile.open(path, file_format) as file:
        head = file.append("counted", {}).head
        file.append("counted", {})
    AppendOnlyFile.open(path, file_format, continuing=head).close()
    shutil.copy(tmp_path / "older", path)
    AppendOnlyFile.open(path, file_format).close()
    with pytest.raises(DamagedFile, match="does not continue from 4:"):
        AppendOnlyFile.open(path, file_format, continuing=head)


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.rename(path.with_name("elsewhere"))])
def test_a_file_that_is_moved_or_removed_while_open_takes_no_more_rows(
    tmp_path: Path, file_format: FileFormat, spoil: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    made(path, file_format)
    with AppendOnlyFile.open(path, file_format) as file:
        spoil(path)
        with pytest.raises(StoreError, match="moved, removed or replaced"):
            file.append("counted", {})


def test_a_closed_file_takes_no_more_rows(tmp_path: Path, file_format: FileFormat) -> None:
    file = AppendOnlyFile.create(tmp_path / "file", file_format, kind="opened", body={})
    file.close()
    file.close()
    with pytest.raises(StoreError, match="closed"):
        file.append("counted", {})


def test_a_forked_process_must_open_its_own(tmp_path: Path, file_format: FileFormat) -> None:
    with AppendOnlyFile.create(tmp_path / "file", file_format, kind="opened", body={}) as file:
        file._process = os.getpid() + 1  # what a fork changes, without the danger of forking a test process
        with pytest.raises(StoreError, match="forked"):
            file.append("counted", {})


def test_a_body_has_one_text() -> None:
    assert canonical_json({"b": np.int64(2), "a": np.float32(0.5)}) == '{"a":0.5,"b":2}'
    assert canonical_json({"a": 0.5, "b": 2}) == '{"a":0.5,"b":2}'


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {1, 2}])
def test_a_body_that_is_not_json_is_refused(tmp_path: Path, file_format: FileFormat, value: object) -> None:
    rows = made(tmp_path / "file", file_format)
    with AppendOnlyFile.open(tmp_path / "file", file_format) as file:
        with pytest.raises(InvalidValue, match="body must be"):
            file.append("counted", {"value": value})
        assert file.rows() == rows


@pytest.mark.parametrize("error", [RecursionError("too deep"), BudgetExceeded("too much"), KeyError("run")])
def test_whatever_is_wrong_with_a_row_is_damage(error: Exception) -> None:
    row = Row(seq=7, at="", kind="odd", body="{}", chain="")
    with pytest.raises(DamagedFile, match="row 7"), reading(Path("file"), row):
        raise error


def test_a_body_nested_beyond_the_stack_is_damage() -> None:
    row = Row(seq=7, at="", kind="odd", body='{"a":' * 100_000 + "1" + "}" * 100_000, chain="")
    with pytest.raises(DamagedFile, match="row 7"), reading(Path("file"), row):
        row.content()


@pytest.mark.parametrize("name", ["a run", "MNIST, training half", "Läufe 1–3 (ε = 3)", "画像"])
def test_one_line_of_printable_text_is_a_name(name: str) -> None:
    assert check_name(run=name) == name


@pytest.mark.parametrize(
    "name", ["", " ", "a\nb", "a\r", "a\tb", "\x1b[31mred", "a\x00", "\u202eabc", "\ud800", None, 3]
)
def test_what_is_not_one_line_of_printable_text_is_no_name(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"^run must be"):
        check_name(run=name)


class Notebook(FileBacked):
    """The smallest thing that is kept in a file. It understands remarks only."""

    file_format = FORMATS[Journal.ROLLBACK]

    def __init__(self, file: AppendOnlyFile) -> None:
        super().__init__(file)
        for row in file.rows():
            with reading(self.path, row):
                self.last = row.content()["number"]


def test_what_is_kept_in_a_file_has_its_path_and_head_and_closes_with_its_block(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with AppendOnlyFile.create(path, Notebook.file_format, kind="remark", body={"number": 1}) as file:
        head = file.head
    with Notebook.open(path, continuing=head) as notebook:
        assert (notebook.path, notebook.head, notebook.last) == (path, head, 1)
    with pytest.raises(StoreError, match="closed"):
        _ = notebook.head


def test_a_file_whose_rows_are_refused_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "file", Notebook.file_format)
    closed: list[Path] = []
    close = AppendOnlyFile.close

    def noting(file: AppendOnlyFile) -> None:
        closed.append(file.path)
        close(file)

    monkeypatch.setattr(AppendOnlyFile, "close", noting)
    with pytest.raises(DamagedFile, match="row 1"):
        Notebook.open(tmp_path / "file")
    assert closed == [tmp_path / "file"]


def test_a_body_that_cannot_be_understood_is_named() -> None:
    row = Row(seq=7, at="", kind="odd", body="[]", chain="")
    with pytest.raises(DamagedFile, match=r"file: row 7 \(odd\) cannot be understood"), reading(Path("file"), row):
        row.content()["missing"]


def test_a_copy_has_the_same_rows_at_one_moment(tmp_path: Path, file_format: FileFormat) -> None:
    with AppendOnlyFile.create(tmp_path / "a", file_format, kind="opened", body={"by": "Ada"}) as file:
        file.append("remark", {"text": "late"})
        rows = file.rows()
    AppendOnlyFile.copy_at(tmp_path / "a", tmp_path / "b", file_format, at="2026-01-31T12:00+00:00")
    with AppendOnlyFile.open(tmp_path / "b", file_format) as copy:
        assert [(row.seq, row.kind, row.body) for row in copy.rows()] == [(r.seq, r.kind, r.body) for r in rows]
        assert {row.at for row in copy.rows()} == {"2026-01-31T12:00+00:00"}
        copy.append("remark", {"text": "it goes on"})
    with pytest.raises(StoreError, match="exists already"):
        AppendOnlyFile.copy_at(tmp_path / "a", tmp_path / "b", file_format, at="2026-01-31T12:00+00:00")
