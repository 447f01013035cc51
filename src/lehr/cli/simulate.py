"""``lehr simulate``: what a private run will reach, told by cheap runs on records that need no protection."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.cli import answering
from lehr.cli.failing import that_goes_on
from lehr.cli.options import Json, example
from lehr.cli.settings import tables
from lehr.errors import InvalidValue

if TYPE_CHECKING:
    from lehr.planning.extrapolation import Prediction

EXAMPLE = example(
    "  lehr simulate --set data.name=digits --set data.declared=public --set privacy.steps=12 \\\n",
    "      --set privacy.noise_multiplier=2 --set privacy.expected_batch_size=256 \\\n",
    "      --set method.learning_rate=1 --batches 16,32,64 --seeds 3 --to cheap\n",
)


def simulate(
    batches: Annotated[str, typer.Option(help="The smaller batches to simulate it with, such as 64,128,256,512.")],
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="The run to be predicted.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="TABLE.KEY=VALUE", help="In place of what CONFIG.toml says.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each batch, each from other first weights.")] = 3,
    to: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the runs are kept; otherwise CONFIG-simulated, here.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the interval.")] = 0.95,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    physical_batch: Annotated[int | None, typer.Option(help="Records that are run at once.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile the step.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Predict what a private run will reach from cheap runs with smaller batches, and write it as a page.

    Batch and noise shrink together, so that the steps stay as noisy and the accuracies lie near a line over the
    logarithm of the batch. Such runs protect nobody: [data] of the configuration must be declared public or synthetic.
    The same command again goes on where it was stopped, and makes no run twice.
    """
    from lehr.planning.scaling_law import a_confidence

    a_confidence(confidence=confidence)
    sizes = _numbers(batches)
    from lehr.configuration import Configuration
    from lehr.search.scaling import Scaling

    asked = Configuration() if config is None else Configuration.read(config)
    where = to or Path("simulated" if config is None else f"{config.stem}-simulated")
    with answering.working("Planning"):
        scaling = Scaling.of(
            asked.with_words(**tables(settings or ())), batches=sizes, num_seeds=seeds, directory=where
        )
    with that_goes_on():
        prediction = scaling.predict(
            confidence=confidence,
            data_dir=data_dir,
            device=device,
            physical_batch=physical_batch,
            compiled=compiled,
            quiet=quiet or json,
        )
    _answer(prediction, where, left_out=scaling.left_out, json=json)


def _numbers(batches: str) -> list[float]:
    try:
        return [float(word) for word in batches.split(",")]
    except ValueError as error:
        raise InvalidValue("batches", allowed="numbers with commas between them: 64,128,256", given=batches) from error


def _answer(prediction: Prediction, where: Path, *, left_out: Sequence[str], json: bool) -> None:
    from lehr.reports import prediction_words

    if json:
        answering.as_json({**prediction.to_json(), "folder": str(where), "left_out": list(left_out)})
        return
    answering.facts("Simulated", dict(prediction_words.facts(prediction)))
    for sentence in (prediction_words.predicted(prediction), *prediction_words.sentences(prediction)):
        answering.line(answering.printable(sentence))
    if left_out:
        answering.line(f"Left out, since they were not asked for: {answering.printable(', '.join(left_out))}.")
    answering.line(f"{answering.printable(str(where / 'prediction.html'))}: the same, with the line through the runs")
