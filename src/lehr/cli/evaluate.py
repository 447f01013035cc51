"""``lehr evaluate`` and ``lehr predict``: use a released model."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lehr.cli import common
from lehr.errors import InvalidValue
from lehr.files import atomic

if TYPE_CHECKING:
    from lehr.interfaces import Records

ModelFolder = Annotated[Path, Argument(metavar="MODEL", help="A folder written by `lehr release`.")]
DataSetName = Annotated[str | None, Option(help="A built-in data set; its test records are used.")]
Resize = Annotated[bool, Option("--resize", help="Scale images to the input size of the model.")]
Votes = Annotated[int, Option(metavar="K", help="Augmented views of a record that vote on its class; 1 for no vote.")]
Views = Annotated[
    str | None,
    Option(help="Augmentation of the views: none, flip_crop, rrc, ours or simclr; by default that of training."),
]

WARNING = "A score on private records is itself private: publish it only if these records are public."
COLUMNS = ("input", "record", "class", "probability")


@common.config_options("npz", "folder", "data_dir")
def evaluate(
    model: ModelFolder,
    dataset: DataSetName = None,
    resize: Resize = False,
    allow_seen: Annotated[bool, Option("--allow-seen", help="Allow a data set that training used in part.")] = False,
    votes: Votes = 1,
    augmentation: Views = None,
    json: common.Json = False,
    **records: Any,
) -> None:
    """Evaluate a released model on one data set: loss, accuracy, and accuracy of each class."""
    from lehr.certificates import released_model

    data = released_model.read_config(model)["data"]
    if data.get("public_records") and data.get("name") == dataset and not allow_seen:
        allowed = f"one that training did not use; it used {data['public_records']!r} (or give --allow-seen)"
        raise InvalidValue("dataset", allowed=allowed, given=dataset)
    prediction = released_model.augmented_prediction(model, augmentation=augmentation, votes=votes)
    with common.working("Reading the records"):
        read = _records(data["shape"], dataset=dataset, resize=resize, **records)
    with common.working("Evaluating the model"):
        scores = released_model.evaluate(model, read, augmentation=prediction.augmentation, votes=prediction.votes)
    if json:
        common.print_json(
            {
                "records": scores.records,
                "votes": prediction.votes,
                "augmentation": prediction.augmentation.name,
                "accuracy": scores.accuracy,
                "loss": scores.loss,
                "accuracy_by_class": list(scores.accuracy_by_class),
                "note": WARNING,
            }
        )
        return
    rows = {"records": f"{scores.records:,}"}
    if not prediction.is_identity:
        rows["votes"] = f"{prediction.votes}, by views of {prediction.augmentation.name}"
    rows |= {"accuracy": f"{scores.accuracy:.2%}", "loss": f"{scores.loss:.4f}"}
    for label, accuracy in enumerate(scores.accuracy_by_class):
        rows[f"class {label}"] = "no record" if accuracy is None else f"{accuracy:.2%}"
    common.print_facts("Evaluation", rows)
    common.print_line(WARNING)


def _records(shape: Sequence[int], *, data_dir: Path | None, resize: bool, **sources: Any) -> Records:
    from lehr import data
    from lehr.data import image_folder, readers

    chosen = {name: value for name, value in sources.items() if value is not None}
    if len(chosen) != 1:
        allowed = "given by exactly one of --dataset, --npz and --folder"
        raise InvalidValue("records", allowed=allowed, given=[*chosen])
    [(kind, source)] = chosen.items()
    if kind == "dataset":
        return data.load(source, data_dir).test
    if kind == "npz":
        return readers.read_npz(source)
    if len(shape) != 3:
        raise InvalidValue("model", allowed="one that takes images, to use --folder", given=tuple(shape))
    channels, height, width = shape
    return image_folder.read_image_folder(source, size=(height, width) if resize else None, channels=channels).records


@common.config_options("data_dir")
def predict(
    model: ModelFolder,
    inputs: Annotated[list[Path] | None, Argument(metavar="[INPUT]...", help="Files: npz, idx, png, jpg, ...")] = None,
    to: Annotated[Path | None, Option(metavar="FILE", help="Write a CSV file instead of printing it.")] = None,
    dataset: DataSetName = None,
    resize: Resize = False,
    votes: Votes = 1,
    augmentation: Views = None,
    overwrite: common.Overwrite = False,
    json: common.Json = False,
    **fields: Any,
) -> None:
    """Predict the class of each record, with its probability."""
    from lehr import data
    from lehr.certificates import released_model
    from lehr.data import readers

    if to is not None:
        atomic.refuse_to_replace(to, overwrite=overwrite)
    if not inputs and dataset is None:
        raise InvalidValue("inputs", allowed="given: files, or --dataset", given=None)
    prediction = released_model.augmented_prediction(model, augmentation=augmentation, votes=votes)
    image = tuple(released_model.read_config(model)["data"]["shape"])
    rows: list[tuple[str, int, int, float]] = []
    with common.working("Evaluating the model"):
        batches = [(str(path), readers.read_inputs(path, shape=image, resize=resize)) for path in inputs or ()]
        if dataset is not None:
            batches.append((dataset, data.load(dataset, fields["data_dir"]).test.inputs))
        for name, batch in batches:
            predicted = released_model.predict(
                model, batch, augmentation=prediction.augmentation, votes=prediction.votes
            )
            probabilities = predicted.probabilities.tolist()
            classes = enumerate(predicted.classes.tolist())
            rows += [(name, index, label, probabilities[index][label]) for index, label in classes]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([COLUMNS, *((*row[:3], f"{row[3]:.6f}") for row in rows)])
    if to is not None:
        atomic.write(to, text.getvalue(), overwrite=overwrite)
    predictions = [dict(zip(COLUMNS, row, strict=True)) for row in rows] if to is None else None
    shape = {"records": len(rows), "to": to, "predictions": predictions}
    printed = text.getvalue().rstrip("\n") if to is None else f"{to}: {len(rows):,} records"
    common.print_answer(shape, printed, json=json)


_MODEL = (common.TRAIN, common.RELEASE)
evaluate_command = common.command_app(evaluate, *_MODEL, "  lehr evaluate model --dataset digits\n")
predict_command = common.command_app(predict, *_MODEL, "  lehr predict model --dataset digits --to predictions.csv\n")
