"""Mutations of one file, by its kind: bytes, structure, and other things in the place of a file."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from inspect import signature
from pathlib import Path
from random import Random
from typing import Any

from lehr.accounting.ledger import LEDGER_FORMAT
from lehr.config import options
from lehr.files.append_only import _SCHEMA, _link, _seed
from lehr.methods.by_name import METHODS
from lehr.networks.registry import NETWORKS
from lehr.optim.optimizers import OPTIMIZERS
from lehr.planning.budget import BUDGET_FORMAT
from lehr.privacy.sampling import SAMPLERS

JSON_VALUES = (
    *("null", "true", "false", "0", "-0.0", "-1", "1", "2.5", "1e308", "1e400", "-1e400", "1e-320", "NaN", "Infinity"),
    *("9" * 18, "9" * 30, "9" * 5000, '""', '"infinity"', '"/dev/zero"', '"\\ud800"', '"\\u0000"', '"a\\nb"'),
    *("[]", "{}", "[1e400]", '[["x"]]', '{"kind": []}', "[" * 80 + "]" * 80, '"' + "x" * 100_000 + '"'),
)
_NAMES = (*METHODS, *NETWORKS, *SAMPLERS, *OPTIMIZERS, "published", "private")
TOML_VALUES = (
    *(f'"{name}"' for name in _NAMES),
    *("true", "0", "-1", "1", "2.5", "1e308", "inf", "-inf", "nan", "9" * 18, "9" * 30, '""', '"word"', "1979-05-27"),
    *("[]", "{}", "[inf]", "[[1]]", "{ kind = [1] }", '{ kind = "word" }', "[[[[[{}]]]]]", '"/dev/zero"', '["none"]'),
    *('{ low = "a" }', "[nan, nan]", "0x7fffffffffffffff", '"\\u0000"', "00:00:00", "[" * 2000 + "]" * 2000),
)
# Keys that some table, method or network takes, whichever table they are put into.
TOML_KEYS = sorted(
    {each.key for each in options().values()}
    | {key for makes in (*METHODS.values(), *NETWORKS.values()) for key in signature(makes).parameters}
    | {"network", "trials", "seed", "space", "score", "sampler", "pruner", "model.name", "data", "privacy", "x"}
)
NPY_HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 1, 4, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 99999999999999999999999), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 500 + ")" * 500 + ", }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1, " * 3000 + "), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 1.5), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (48, 1, 4, 4), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (48, 1, 4, 4), }",
    "{'descr': '<V0', 'fortran_order': False, 'shape': (9999999999,), }",
    "{'descr': '<U1', 'fortran_order': 3, 'shape': (48, 1, 4, 4), }",
    "{'descr': '>f2', 'fortran_order': True, 'shape': (48, 1, 4, 8), }",
    "{'descr': ('<f4', (4, 4)), 'fortran_order': True, 'shape': (48, 1), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (48",
    "{'descr': '<f4' 'fortran_order'",
    "'''",
    "",
)
NO_FILES = (
    *("/dev/zero", "/dev/full", "/dev/null", "nowhere/at/all"),
    *("loop", "pipe", "folder", "empty", "sparse", "gone"),
)


def mutate(path: Path, kind: str, random: Random) -> str:
    """Change the file in one way or a few; returns which, for the report."""
    if kind == "folder" or random.random() < 0.02:
        return put_in_its_place(path, random.choice(NO_FILES))
    change = random.choice((*_OF_KIND[kind], _change_bytes))
    change(path, random)
    return change.__name__


def put_in_its_place(path: Path, what: str) -> str:
    """Something that is no file of this kind, or no file at all; returns what."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    match what:
        case "/dev/zero" | "/dev/full" | "/dev/null" | "nowhere/at/all":
            path.symlink_to(what)
        case "loop":
            path.symlink_to(path.name)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "empty" | "sparse":
            path.touch()
            os.truncate(path, 0 if what == "empty" else 1024**4)
    return what


def _change_bytes(path: Path, random: Random) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 1, 2, 8))):
        at = min(random.choice((random.randrange(len(content) + 1), random.randrange(128))), len(content))
        end = min(len(content), at + random.choice((1, 4, 8, 100)))
        content[at:end] = random.choice(
            (
                random.randbytes(end - at),
                random.choice((b"\xff", b"\x00", b"\x7f")) * (end - at),
                content[at:end] * random.choice((0, 2, 101)),
                random.choice((b"{", b"[", b'"', b"\n", b"\xff\xfe", b"(", b"-", b"9" * 20)) + content[at:end],
            )
        )
        if random.random() < 0.2:
            del content[at:]
    path.write_bytes(content)


def _changed_json(text: str, random: Random) -> str:
    """The same JSON but for one node in it, or two; what no Python value stands for is put in as text."""
    shape = {"root": json.loads(text)}
    literals: dict[str, str] = {}
    for _ in range(random.choice((1, 1, 1, 2))):
        holder, key = random.choice(list(_nodes(shape)))
        match random.randrange(6):
            case 0 if holder is not shape:
                del holder[key]
            case 1:
                holder[key] = [holder[key]]
            case 2:
                holder[key] = {"kind": holder[key]}
            case 3 if isinstance(holder, dict) and holder is not shape:
                literals[json.dumps(f"again {key}")] = json.dumps(key)  # named twice
                holder[f"again {key}"] = holder[key]
            case 4 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
                holder[key] = random.choice((-holder[key], holder[key] * 1000, holder[key] / 1000, str(holder[key])))
            case _:
                holder[key] = mark = f"literal {len(literals)}"
                literals[json.dumps(mark)] = random.choice(JSON_VALUES)
    changed = json.dumps(shape["root"], ensure_ascii=False)
    for mark, literal in literals.items():
        changed = changed.replace(mark, literal)
    return changed


def _nodes(shape: Any) -> Any:
    for key in list(shape) if isinstance(shape, dict) else range(len(shape)):
        yield shape, key
        if isinstance(shape[key], dict | list):
            yield from _nodes(shape[key])


def _change_json(path: Path, random: Random) -> None:
    path.write_text(_changed_json(path.read_text(), random), encoding="utf-8")


def _change_json_lines(path: Path, random: Random) -> None:
    lines = path.read_text().splitlines()
    at = random.randrange(len(lines))
    lines[at] = _changed_json(lines[at], random)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _change_toml(path: Path, random: Random) -> None:
    lines = path.read_text().splitlines()
    at = random.randrange(len(lines))
    key, _, value = lines[at].partition(" = ")
    added = f"{random.choice(TOML_KEYS)} = {random.choice(TOML_VALUES)}"
    match random.randrange(6):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2 if value:
            lines[at] = f"{random.choice(TOML_KEYS)} = {value}"
        case 3 if value:
            lines[at] = f"{key} = {random.choice(TOML_VALUES)}"
        case 4 if not value:
            lines[at] = random.choice((f"[{lines[at]}]", "[other]", added))
        case _:
            lines.insert(at + 1, added)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _change_npz(path: Path, random: Random) -> None:
    """Another header in the array of a name, or another name, stored as it is or compressed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    changed = random.choice(list(members))
    with zipfile.ZipFile(path, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members.items():
            if name == changed:
                content = _with_other_header(content, random)
            archive.writestr(random.choice((name, name, name, "y.npy", "../inputs.npy", name.upper())), content)


def _change_npy(path: Path, random: Random) -> None:
    path.write_bytes(_with_other_header(path.read_bytes(), random))


def _with_other_header(content: bytes, random: Random) -> bytes:
    length = 10 + struct.unpack("<H", content[8:10])[0]
    header = random.choice(NPY_HEADERS).encode()
    version = random.choice((b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = struct.pack("<H" if version[0] == 1 else "<I", random.choice((len(header) + 1, len(header) + 1, 65_535)))
    bomb = bytes(random.choice((0, 0, 0, 16 * 1024**2)))  # which compresses to nothing
    return b"\x93NUMPY" + version + size + header + b"\n" + content[length:] + bomb


def _change_idx(path: Path, random: Random) -> None:
    path.write_bytes(_with_other_axes(path.read_bytes(), random))


def _change_idx_gz(path: Path, random: Random) -> None:
    content = gzip.decompress(path.read_bytes())
    bomb = bytes(random.choice((0, 0, 32 * 1024**2)))
    changed = random.choice((content[: random.randrange(2000)], _with_other_axes(content, random) + bomb))
    path.write_bytes(gzip.compress(changed, 1))


def _with_other_axes(content: bytes, random: Random) -> bytes:
    axes = random.choice((1, 2, 3, 4, 8, 200))
    lengths = [random.choice((0, 1, 4, 48, 65_536, 2**31, 2**32 - 1)) for _ in range(axes)]
    kind = random.choice((8, 8, 9, 11, 12, 13, 14, 0, 255))
    return bytes((0, 0, kind, axes)) + struct.pack(f">{axes}I", *lengths) + content[16:]


def _change_safetensors(path: Path, random: Random) -> None:
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = _changed_json(content[8 : 8 + length].decode(), random)
    if random.random() < 0.3:
        before = random.choice(("F32", "[", ":0", '"shape"'))
        kinds = ("F64", "F16", "BF16", "F8_E5M2", "F8_E4M3", "I64", "U8", "BOOL", "C64", "F4", "[9,", ":-1", '"x"')
        header = header.replace(before, random.choice(kinds), random.choice((1, 100)))
    claimed = random.choice((len(header.encode("utf-8", "replace")),) * 4 + (0, 2**24, 2**62, 2**64 - 1))
    path.write_bytes(struct.pack("<Q", claimed) + header.encode("utf-8", "replace") + content[8 + length :])


def _change_png(path: Path, random: Random) -> None:
    """Another size in the header, with the checksum that belongs to it."""
    content = bytearray(path.read_bytes())
    sides = (0, 1, 4, 20_000, 2**31 - 1, 2**32 - 1)
    content[16:24] = struct.pack(">2I", random.choice(sides), random.choice(sides))
    content[24:26] = bytes((random.choice((1, 8, 16, 9)), random.choice((0, 2, 3, 6, 7))))
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)


def _change_database(path: Path, random: Random) -> None:
    """Any value of any table of an SQLite file, its triggers and its schema."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file, suppress(sqlite3.Error):
        named = file.execute("SELECT name, type FROM sqlite_master").fetchall()
        for name in (name for name, kind in named if kind == "trigger"):
            file.execute(f"DROP TRIGGER {name}")
        tables = [name for name, kind in named if kind == "table"]
        table = random.choice(tables)
        column = random.choice([row[1] for row in file.execute(f"PRAGMA table_info({table})")])
        row = random.choice([row for (row,) in file.execute(f"SELECT rowid FROM {table}")] or [1])
        new = random.choice((None, "", "x", -1, 2**62, 1e308, b"\xff\xfe", "{}", "[]", "null", "NaN", "x" * 10_000))
        match random.randrange(6):
            case 0:
                file.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))
            case 1:
                file.execute(f"DROP TABLE {table}")
            case 2:
                file.execute(f"PRAGMA {random.choice(('application_id', 'user_version'))} = {random.randrange(9)}")
            case _:
                file.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (new, row))
        if random.random() < 0.8 and tables[0] == "entry":
            for statement in list(_SCHEMA.values())[1:]:
                file.execute(statement)


def _change_entries(path: Path, random: Random) -> None:
    """Another body of a row of a ledger or a budget, and every hash after it as it then must be."""
    form = BUDGET_FORMAT if "budget" in path.name else LEDGER_FORMAT
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        rows = file.execute("SELECT seq, at, kind, body FROM entry ORDER BY seq").fetchall()
        for name in list(_SCHEMA)[1:]:
            file.execute(f"DROP TRIGGER {name}")
        chosen, chain = random.choice(rows)[0], _seed(form)
        for seq, at, kind, body in rows:
            if seq == chosen:
                body = _changed_json(body, random)
                kind = random.choice((kind, kind, kind, *{row[2] for row in rows}, "other"))
            with suppress(UnicodeEncodeError):
                chain = _link(chain, seq, at, kind, body)
                file.execute("UPDATE entry SET kind = ?, body = ?, chain = ? WHERE seq = ?", (kind, body, chain, seq))
        for statement in list(_SCHEMA.values())[1:]:
            file.execute(statement)


def _add_journal(path: Path, random: Random) -> None:
    """Something under a name by which SQLite looks for what a crash left behind."""
    beside = path.with_name(path.name + random.choice(("-wal", "-journal", "-shm")))
    beside.write_bytes(random.choice((random.randbytes(600), bytes(600), path.read_bytes()[:5000])))
    if random.random() < 0.5:
        put_in_its_place(beside, random.choice(NO_FILES))


_OF_KIND: dict[str, tuple[Callable[[Path, Random], None], ...]] = {
    "bytes": (),
    "json": (_change_json, _change_json, _change_json),
    "json lines": (_change_json_lines, _change_json_lines),
    "toml": (_change_toml,) * 8,
    "npz": (_change_npz,),
    "npy": (_change_npy,),
    "idx": (_change_idx,),
    "idx.gz": (_change_idx_gz, _change_idx_gz),
    "png": (_change_png,),
    "safetensors": (_change_safetensors, _change_safetensors),
    "entries": (_change_entries, _change_database, _change_database, _add_journal),
    "database": (_change_database,),
}
