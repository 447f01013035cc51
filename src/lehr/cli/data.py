"""``lehr data``: the known data sets, where they are on this machine, and how to get them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.failing import NO, Commands, complain
from lehr.cli.options import Json, example

if TYPE_CHECKING:
    from lehr.data.downloading import Progress
    from lehr.data.finding import Found
    from lehr.data.getting import Got
    from lehr.data.known import KnownDataSet, KnownFile

Name = Annotated[str, typer.Argument(help="The name of a data set, as `lehr data list` shows it.")]
SomeName = Annotated[
    str | None,
    typer.Argument(metavar="NAME|FOLDER", help="A data set, or a folder of images; otherwise all that are found."),
]
DataDir = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Look here first, before LEHR_DATA and the usual folders.")
]
Offline = Annotated[bool, typer.Option("--offline", help="Only look on this machine; download nothing.")]

_SHIPPED = "shipped with scikit-learn"
_LIST = "  lehr data list\n"
_GET = "  lehr data get digits\n"
_CHECK = "  lehr data check digits\n"

app = typer.Typer(
    cls=Commands,
    help="The known data sets: what there is, how to get it, whether it is genuine.",
    epilog=example(_LIST, _GET),
    rich_markup_mode=None,
)


@app.command("list", epilog=example(_LIST))
def list_known(data_dir: DataDir = None, json: Json = False) -> None:
    """Show the known data sets, and which are on this machine."""
    from lehr.data import finding
    from lehr.data.known import KNOWN

    with answering.working("Looking for data sets"):
        places = {name: finding.first_genuine(known, data_dir) for name, known in KNOWN.items()}
    if json:
        answering.as_json(
            {"data_sets": [_public(known) | _place(known, places[known.name]) for known in KNOWN.values()]}
        )
        return
    answering.listing(
        "Data sets",
        ["name", "records", "test", "classes", "size", "where"],
        [
            [
                known.name,
                f"{known.records:,}",
                f"{known.test_records:,}",
                str(known.num_classes),
                f"{known.num_bytes / 1e6:,.1f} MB",
                _where(known, places[known.name]),
            ]
            for known in KNOWN.values()
        ],
    )


@app.command(epilog=example(_GET))
def get(name: Name, data_dir: DataDir = None, offline: Offline = False, json: Json = False) -> None:
    """Find a data set on this machine, or else download it; whatever comes is verified by content.

    Looks in --data-dir, in LEHR_DATA and in the usual folders; then asks the public mirrors, and then the package
    clients that are installed. Where nothing helps, it says which files to put where.
    """
    from lehr.data import getting
    from lehr.data.known import named

    known = named(name)
    if not known.layouts:
        _answer_shipped(known, json=json)
        return
    with answering.working(f"Looking for {name}"):
        got = getting.get(known, data_dir, offline=True)
    if got.folder is None and not offline:
        with _shown_progress() as progress:
            got = getting.get(known, data_dir, progress=progress)
    if json:
        answering.as_json(_result(known, got, data_dir))
    else:
        _say_result(known, got, data_dir)
    if got.folder is None:
        raise typer.Exit(NO)


@app.command(epilog=example(_CHECK))
def check(
    name: SomeName = None,
    data_dir: DataDir = None,
    workers: Annotated[int, typer.Option(help="Processes that decode the images of a folder.")] = 4,
    json: Json = False,
) -> None:
    """Compare the files of a data set, wherever they are found, with what is known of their content.

    Of a folder of images, one folder for each class, every image is decoded, and those that are none are named: in
    training on a streamed folder they would count for nothing, without a word.
    """
    from lehr.data import finding
    from lehr.data.known import KNOWN, named

    if name is not None and name not in KNOWN and Path(name).is_dir():
        with answering.working("Decoding the images"):
            _answer_checked([*_verdicts_on_images(Path(name), workers)], json=json)
        return
    chosen = [known for known in KNOWN.values() if known.layouts] if name is None else [named(name)]
    with answering.working("Reading the files"):
        rows = [
            _verdict(known, found, finding.wrong(found))
            for known in chosen
            for found in finding.candidates(known, data_dir)
        ]
        rows += [_verdict_on_digits(known) for known in chosen if not known.layouts]
    if not rows:
        complain("none of the known data sets was found" if name is None else f"{name} was not found")
    _answer_checked(rows, json=json)


_VERDICT = ("name", "where", "told")


def _answer_checked(rows: list[dict[str, str]], *, json: bool) -> None:
    if json:
        answering.as_json({"checked": rows})
    elif rows:
        answering.listing("Checked", ["name", "where", "verdict"], [[row[key] for key in _VERDICT] for row in rows])
    if not rows or any(row["verdict"] == "wrong" for row in rows):
        raise typer.Exit(NO)


def _verdicts_on_images(folder: Path, workers: int) -> Iterator[dict[str, str]]:
    from lehr.data import streamed_folder

    records = streamed_folder.read(folder, image_side=1, workers=workers)
    bad = list(records.not_images())
    for place in bad:
        where = os.fsdecode(records.files.at(place).path)
        yield {"name": folder.name, "where": where, "verdict": "wrong", "told": "it cannot be decoded as an image"}
    told = f"{len(records) - len(bad):,} images of {len(records.classes):,} classes can be decoded"
    yield {"name": folder.name, "where": str(folder), "verdict": "decoded", "told": told}


def _verdict(known: KnownDataSet, found: Found, reason: str | None) -> dict[str, str]:
    hashed = all(file.sha256 or file.md5 for file in found.layout.files)
    genuine = "genuine: the content has the known hashes" if hashed else "of the right size; no hash of it is known"
    return {
        "name": known.name,
        "where": str(found.folder),
        "verdict": "wrong" if reason is not None else "genuine" if hashed else "right size",
        "told": reason or genuine,
    }


def _verdict_on_digits(known: KnownDataSet) -> dict[str, str]:
    from lehr.data.loading import load

    load(known.name)
    return {"name": known.name, "where": _SHIPPED, "verdict": "genuine", "told": "genuine: it has the known hash"}


def _public(known: KnownDataSet) -> dict[str, object]:
    return {
        "name": known.name,
        "title": known.title,
        "homepage": known.homepage,
        "citation": known.citation,
        "records": known.records,
        "test_records": known.test_records,
        "num_classes": known.num_classes,
        "shape": list(known.shape),
        "bytes": known.num_bytes,
    }


def _place(known: KnownDataSet, found: Found | None) -> dict[str, object]:
    present = not known.layouts or found is not None
    return {"present": present, "folder": None if found is None else str(found.folder)}


def _where(known: KnownDataSet, found: Found | None) -> str:
    if not known.layouts:
        return _SHIPPED
    return "not here" if found is None else str(found.folder)


def _answer_shipped(known: KnownDataSet, *, json: bool) -> None:
    if json:
        answering.as_json({"name": known.name, "folder": None, "source": _SHIPPED, "failures": [], "put": None})
    else:
        answering.line(f"{known.name} is {_SHIPPED}; there is nothing to get")


def _result(known: KnownDataSet, got: Got, data_dir: Path | None) -> dict[str, object]:
    from lehr.data import getting

    needed = [
        {"name": file.name, "bytes": file.num_bytes, "sha256": file.sha256, "md5": file.md5}
        for file in known.layouts[0].files
    ]
    put = {"folder": str(getting.destination(known, data_dir)), "files": needed}
    return {
        "name": known.name,
        "folder": None if got.folder is None else str(got.folder),
        "source": got.source,
        "failures": list(got.failures),
        "put": put if got.folder is None else None,
    }


def _say_result(known: KnownDataSet, got: Got, data_dir: Path | None) -> None:
    from lehr.data import getting
    from lehr.data.known import Archive

    for failure in got.failures:
        complain(failure)
    if got.folder is not None:
        answering.line(f"{known.name} is in {got.folder}, verified by content (from {got.source})")
        return
    folder = getting.destination(known, data_dir)
    answering.line(f"{known.name} could not be had. Put these files, as they are or with .gz, into")
    answering.line(f"    {folder}")
    for file in known.layouts[0].files:
        answering.line(f"  {file.name}")
        answering.line(f"    {_told_by(file)}")
    for source in known.sources:
        if isinstance(source, Archive):
            answering.line(f"They come in {source.address}, md5 {source.md5}")
    answering.line(f"They are described at {known.homepage}")


def _told_by(file: KnownFile) -> str:
    size = "" if file.num_bytes is None else f"{file.num_bytes:,} bytes"
    hashed = f"sha256 {file.sha256}" if file.sha256 else f"md5 {file.md5}" if file.md5 else "hash not known"
    return ", ".join(part for part in (size, hashed) if part)


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """Bars on standard error where a person is looking."""
    from lehr.data import downloading

    if not sys.stderr.isatty():
        yield downloading.quiet
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known_bars = {}

        def show(name: str, received: int, total: int | None) -> None:
            if name not in known_bars:
                known_bars[name] = bars.add_task(name, total=total)
            bars.update(known_bars[name], completed=received, total=total)

        yield show
