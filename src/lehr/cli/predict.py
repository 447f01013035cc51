"""``lehr predict``: what a released model says about records without labels."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.cli import answering
from lehr.cli.evaluate import DataDir, DataSetName, ModelFolder, Resize, Views, Votes
from lehr.cli.options import Json, Overwrite, example
from lehr.cli.release import RELEASE, TRAIN
from lehr.errors import InvalidValue

if TYPE_CHECKING:
    from lehr.released_model import Predictions

EXAMPLE = example(TRAIN, RELEASE, "  lehr predict model --dataset digits --to predictions.csv\n")
Row = tuple[str, int, int, float]
COLUMNS = ("input", "record", "class", "probability")


def predict(
    model: ModelFolder,
    inputs: Annotated[
        list[Path] | None, typer.Argument(metavar="[INPUT]...", help="Files: npz, idx, or images such as png and jpg.")
    ] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="A CSV file; otherwise it is printed.")] = None,
    dataset: DataSetName = None,
    data_dir: DataDir = None,
    resize: Resize = False,
    votes: Votes = 1,
    augmentation: Views = None,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Say the most probable class of each record, and how probable the model holds it."""
    from lehr import released_model
    from lehr.files import whole_file

    if to is not None:
        whole_file.refuse_to_replace(to, overwrite=overwrite)
    ballot = released_model.ballot(model, augmentation=augmentation, votes=votes)
    rows: list[Row] = []
    with answering.working("Asking the model"):
        for name, batch in _batches(model, inputs or [], dataset=dataset, data_dir=data_dir, resize=resize):
            said = released_model.predict(model, batch, augmentation=ballot.augmentation, votes=ballot.votes)
            rows += _rows(name, said)
    if to is not None:
        whole_file.write(to, _as_csv(rows), overwrite=overwrite)
    _answer(rows, to=to, json=json)


def _answer(rows: Sequence[Row], *, to: Path | None, json: bool) -> None:
    if json:
        predictions = [dict(zip(COLUMNS, row, strict=True)) for row in rows] if to is None else None
        where = None if to is None else str(to)
        answering.as_json({"records": len(rows), "to": where, "predictions": predictions})
    elif to is None:
        typer.echo(_as_csv(rows), nl=False)
    else:
        answering.line(f"{answering.printable(str(to))}: {len(rows):,} records")


def _rows(name: str, predicted: Predictions) -> Iterator[Row]:
    probabilities = predicted.probabilities.tolist()
    for place, label in enumerate(predicted.classes.tolist()):
        yield name, place, label, probabilities[place][label]


def _as_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((name, place, label, f"{probability:.6f}") for name, place, label, probability in rows)
    return text.getvalue()


def _batches(
    model: Path, inputs: Sequence[Path], *, dataset: str | None, data_dir: Path | None, resize: bool
) -> Iterator[tuple[str, Any]]:
    """Each input by its name, as records that the model may take."""
    from lehr import data, released_model
    from lehr.data import unlabelled

    shape = tuple(released_model.read_config(released_model.ReleasedFiles(model))["data"]["shape"])
    if not inputs and dataset is None:
        raise InvalidValue("inputs", allowed="given: files, or --dataset", given=None)
    if dataset is not None:
        yield dataset, data.load(dataset, data_dir).test.inputs
    for path in inputs:
        yield str(path), unlabelled.read(path, shape=shape, resize=resize)
