"""``lehr evaluate``: how well a released model does on records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.options import Json, example
from lehr.cli.release import RELEASE, TRAIN
from lehr.errors import InvalidValue

if TYPE_CHECKING:
    from lehr.interfaces import Records
    from lehr.released_model import Scores
    from lehr.voting import Ballot

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="A folder that `lehr release` wrote.")]
DataSetName = Annotated[str | None, typer.Option(help="A known data set; its test records are taken.")]
DataDir = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data set first.")]
Resize = Annotated[bool, typer.Option("--resize", help="Scale images to the size that the model takes.")]
Votes = Annotated[
    int, typer.Option(metavar="K", help="Augmented views of each record that vote on its class; 1 asks the model once.")
]
Views = Annotated[
    str | None,
    typer.Option(help="What makes the views: none, flip_crop, rrc, ours or simclr; by default, as in training."),
]

EXAMPLE = example(TRAIN, RELEASE, "  lehr evaluate model --dataset digits\n")
WARNING = "A score on private records is itself private: publish it only if these records are public."


def evaluate(
    model: ModelFolder,
    dataset: DataSetName = None,
    npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Arrays of inputs and targets.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Images, in folders named after their classes.")
    ] = None,
    data_dir: DataDir = None,
    resize: Resize = False,
    allow_seen: Annotated[
        bool, typer.Option("--allow-seen", help="Score on records of which training has looked at a part.")
    ] = False,
    votes: Votes = 1,
    augmentation: Views = None,
    json: Json = False,
) -> None:
    """Score a released model on the records of one data set: loss, accuracy, and accuracy by class."""
    from lehr import released_model

    if dataset is not None and not allow_seen:
        _refuse_seen(model, dataset)
    ballot = released_model.ballot(model, augmentation=augmentation, votes=votes)
    with answering.working("Reading the records"):
        records = _records(model, dataset=dataset, npz=npz, folder=folder, data_dir=data_dir, resize=resize)
    with answering.working("Asking the model"):
        scores = released_model.evaluate(model, records, augmentation=ballot.augmentation, votes=ballot.votes)
    (_answer_program if json else _answer_person)(scores, ballot)


def _refuse_seen(model: Path, dataset: str) -> None:
    """An error for the data set of which training has looked at public records: a score there says too much."""
    from lehr import released_model

    data = released_model.read_config(released_model.ReleasedFiles(model))["data"]
    if data.get("public_records") and data.get("name") == dataset:
        allowed = f"another than that of which training looked at {data['public_records']!r} (or give --allow-seen)"
        raise InvalidValue("dataset", allowed=allowed, given=dataset)


def _records(
    model: Path, *, dataset: str | None, npz: Path | None, folder: Path | None, data_dir: Path | None, resize: bool
) -> Records:
    from lehr import data, released_model
    from lehr.data import image_folder
    from lehr.data import npz as npz_file

    shape = tuple(released_model.read_config(released_model.ReleasedFiles(model))["data"]["shape"])
    given = [name for name, value in (("dataset", dataset), ("npz", npz), ("folder", folder)) if value is not None]
    if len(given) != 1:
        raise InvalidValue("records", allowed="given by exactly one of --dataset, --npz and --folder", given=given)
    if dataset is not None:
        return data.load(dataset, data_dir).test
    if npz is not None:
        return npz_file.read(npz)
    assert folder is not None
    channels, *size = _of_images(shape)
    return image_folder.read(folder, size=(size[0], size[1]) if resize else None, channels=channels).records


def _of_images(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of what a model takes, or an error where it takes no images."""
    if len(shape) != 3:
        raise InvalidValue("model", allowed="one that takes images, where it is given some", given=shape)
    return shape[0], shape[1], shape[2]


def _answer_program(scores: Scores, ballot: Ballot) -> None:
    answering.as_json(
        {
            "records": scores.records,
            "votes": ballot.votes,
            "augmentation": ballot.augmentation.name,
            "accuracy": scores.accuracy,
            "loss": scores.loss,
            "accuracy_by_class": list(scores.accuracy_by_class),
            "note": WARNING,
        }
    )


def _answer_person(scores: Scores, ballot: Ballot) -> None:
    rows = {"records": f"{scores.records:,}"}
    if not ballot.is_unanimous:
        rows["votes"] = f"{ballot.votes}, by views of {answering.printable(ballot.augmentation.name)}"
    rows |= {"accuracy": f"{scores.accuracy:.2%}", "loss": f"{scores.loss:.4f}"}
    for label, accuracy in enumerate(scores.accuracy_by_class):
        rows[f"class {label}"] = "no record" if accuracy is None else f"{accuracy:.2%}"
    answering.facts("Evaluation", rows)
    answering.line(WARNING)
