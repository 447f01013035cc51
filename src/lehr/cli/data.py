"""``lehr data``: the built-in data sets, where they are on this machine, and how to get them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from typer import Argument, Exit, Option

from lehr.cli import common

if TYPE_CHECKING:
    from lehr.data.catalogue import DataSetInfo, FetchResult

DataDir = Annotated[Path | None, Option(metavar="FOLDER", help="Search this folder first, then the usual folders.")]

_SHIPPED = "shipped with Lehr"
_LIST = "  lehr data list\n"
_GET = "  lehr data get digits\n"

app = common.group_app("List, download and check the built-in data sets.", _LIST, _GET)


@app.command("list", epilog=common.example(_LIST))
def list_built_in(data_dir: DataDir = None, json: common.Json = False) -> None:
    """List the built-in data sets, and which are on this machine."""
    from lehr.data import catalogue

    shapes, rows = [], []
    names = ("name", "homepage", "citation", "records", "test_records", "num_classes")
    with common.working("Looking for data sets"):
        for each in catalogue.CATALOGUE.values():
            copy = catalogue.find_copy(each, data_dir)
            folder = None if copy is None else str(copy.folder)
            place = {"present": not each.files or folder is not None, "folder": folder}
            shapes.append(
                {name: getattr(each, name) for name in names}
                | {"shape": list(each.shape), "bytes": each.num_bytes, **place}
            )
            counts = (f"{each.records:,}", f"{each.test_records:,}", str(each.num_classes))
            where = _SHIPPED if not each.files else folder or "not here"
            rows.append((each.name, *counts, f"{each.num_bytes / 1e6:,.1f} MB", where))
    if json:
        common.print_json({"data_sets": shapes})
    else:
        common.print_table("Data sets", ("name", "records", "test", "classes", "size", "where"), rows)


@app.command(epilog=common.example(_GET))
def get(
    name: Annotated[str, Argument(help="The name of a data set, as shown by `lehr data list`.")],
    data_dir: DataDir = None,
    offline: Annotated[bool, Option("--offline", help="Only look on this machine; download nothing.")] = False,
    json: common.Json = False,
) -> None:
    """Find a data set on this machine, or download it. The content of its files is verified.

    Searches --data-dir, LEHR_DATA and the usual folders, then downloads from the official addresses. If that fails, it
    prints which files to put where.
    """
    from lehr.data import catalogue

    each = catalogue.data_set_info(name)
    if not each.files:
        shape: dict[str, object] = {"name": name, "folder": None, "source": _SHIPPED, "failures": [], "put": None}
        common.print_answer(shape, f"{name} is {_SHIPPED}; there is nothing to get", json=json)
        return
    with common.working(f"Looking for {name}"):
        got = catalogue.get(each, data_dir, offline=True)
    if got.folder is None and not offline:
        got = _download(each, data_dir)
    put = None if got.folder is not None else catalogue.target_folder(each, data_dir)
    if json:
        files = [{"name": file.name, "bytes": file.num_bytes, "sha256": file.sha256} for file in each.files]
        common.print_json(
            {
                "name": name,
                "folder": got.folder,
                "source": got.source,
                "failures": list(got.failures),
                "put": put and {"folder": str(put), "files": files},
            }
        )
    else:
        for failure in got.failures:
            common.complain(failure)
        if put is None:
            common.print_line(f"{name} is in {got.folder}, verified by content (from {got.source})")
        else:
            common.print_line("\n".join(_what_to_put(each, put)))
    if put is not None:
        raise Exit(common.NO)


def _download(each: DataSetInfo, data_dir: Path | None) -> FetchResult:
    """Download with progress bars on standard error, if that is a terminal."""
    from lehr.data import catalogue

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bars:
        tasks: dict[str, TaskID] = {}

        def show(name: str, received: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=received, total=total)

        return catalogue.get(each, data_dir, progress=show)


def _what_to_put(each: DataSetInfo, folder: Path) -> Iterator[str]:
    yield f"{each.name} could not be downloaded. Put these files, as they are or with .gz, into\n    {folder}"
    for file in each.files:
        content = f"SHA-256 {file.sha256}" if file.sha256 else "hash not known"
        yield f"  {file.name}\n    {file.num_bytes:,} bytes, {content}"
    for source in each.sources:
        if source.md5 is not None:
            yield f"They come in {source.address}, MD5 {source.md5}"
    yield f"They are described at {each.homepage}"


@app.command(epilog=common.example("  lehr data check digits\n"))
def check(
    name: Annotated[
        str | None,
        Argument(metavar="NAME|FOLDER", help="A data set or a folder of images; by default all that are found."),
    ] = None,
    data_dir: DataDir = None,
    workers: Annotated[int, Option(help="Processes that decode the images of a folder.")] = 4,
    json: common.Json = False,
) -> None:
    """Compare the files of a data set, wherever they are found, with their published hashes.

    In a folder of images (one folder for each class), every image is decoded, and files that are not images are named:
    training on a streamed folder would silently count them as zero gradients.
    """
    from lehr.data.catalogue import CATALOGUE

    with common.working("Reading the files"):
        if name is not None and name not in CATALOGUE and Path(name).is_dir():
            rows = [*_check_images(Path(name), workers)]
        else:
            rows = [*_check_data_sets(name, data_dir)]
    if not rows:
        common.complain("none of the built-in data sets was found" if name is None else f"{name} was not found")
    if json:
        common.print_json({"checked": rows})
    elif rows:
        cells = [[row["name"], row["where"], row["told"]] for row in rows]
        common.print_table("Checked", ["name", "where", "verdict"], cells)
    if not rows or any(row["verdict"] == "wrong" for row in rows):
        raise Exit(common.NO)


def _check_images(folder: Path, workers: int) -> Iterator[dict[str, str]]:
    from lehr.data import image_folder

    records = image_folder.stream_image_folder(folder, image_side=1, workers=workers)
    bad = list(records.not_images())
    for index in bad:
        yield _row(folder.name, os.fsdecode(records.files.at(index).path), "wrong", "it cannot be decoded as an image")
    decoded = f"{len(records) - len(bad):,} images of {len(records.classes):,} classes can be decoded"
    yield _row(folder.name, str(folder), "decoded", decoded)


def _check_data_sets(name: str | None, data_dir: Path | None) -> Iterator[dict[str, str]]:
    from lehr.data import catalogue, data_set

    every = [each for each in catalogue.CATALOGUE.values() if each.files]
    for each in every if name is None else [catalogue.data_set_info(name)]:
        if not each.files:
            data_set.load(each.name)  # which verifies it
            yield _row(each.name, _SHIPPED, "genuine", "genuine: it has the known hash")
        for copy in catalogue.local_copies(each, data_dir):
            hashed = all(file.sha256 for file in each.files)
            verdict = "genuine" if hashed else "right size"
            text = "genuine: the content has the known hashes" if hashed else "of the right size; its hash is not known"
            if (problem := copy.problem()) is not None:
                verdict, text = "wrong", problem
            yield _row(each.name, str(copy.folder), verdict, text)


def _row(name: str, where: str, verdict: str, told: str) -> dict[str, str]:
    return {"name": name, "where": where, "verdict": verdict, "told": told}


data_command = app
