"""``lehr train``: a private training run, from a configuration or from options, or one that is resumed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.cli import answering
from lehr.cli.options import ExpectedBatchSize, Json, NoiseMultiplier, Records, Steps, example, refuse
from lehr.cli.settings import tables
from lehr.reports import run_claims
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.training.ending import Run

# Written out, because naming them by their functions would load torch for a help text.
METHODS = (
    "adadp, adal, adan, agd, auto-s, dpopt, dpsgd, dpsgd-per-layer, dpsur, sa-dpsgd, or plain-sgd: no privacy, "
    "--steps only."
)
EXAMPLE = example(
    "  lehr train --dataset digits --epsilon 8 --steps 60 --expected-batch-size 64 --run first \\\n",
    "      --settings-chosen-on fixed\n",
)


def train(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="A configuration.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A known data set (lehr data list).")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for it first.")] = None,
    npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Records of your own: inputs and targets.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Images in folders named after classes.")
    ] = None,
    test_npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Public records to score on.")] = None,
    test_folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same, as images.")] = None,
    public_npz: Annotated[Path | None, typer.Option(metavar="FILE", help="Public records for acceptance.")] = None,
    public_folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The same, as images.")] = None,
    image_side: Annotated[int | None, typer.Option(help="Scale the images of folders to this side.")] = None,
    channels: Annotated[int | None, typer.Option(help="Of the images of folders: 3, or 1 for grey.")] = None,
    streamed: Annotated[
        bool | None, typer.Option("--streamed", help="Leave the images of folders on the disk until they are drawn.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes that decode streamed images; 4 if left out.")] = None,
    records: Records = None,
    num_classes: Annotated[int | None, typer.Option(help="Stated for data of your own.")] = None,
    declared: Annotated[
        str | None, typer.Option(help="public or synthetic for records that need no protection: nothing is promised.")
    ] = None,
    held_out_fraction: Annotated[
        float | None, typer.Option(help="Private records to score on, with noise that is charged.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most ε that the whole run may cost.")] = None,
    delta: Annotated[float | None, typer.Option(help="The δ of (ε, δ); a power of ten below 1/records.")] = None,
    noise_multiplier: NoiseMultiplier = None,
    expected_batch_size: ExpectedBatchSize = None,
    steps: Steps = None,
    simulated_batch_size: Annotated[
        float | None, typer.Option(help="Stand in for the plan with smaller batches; for public records alone.")
    ] = None,
    settings_chosen_on: Annotated[
        str | None, typer.Option(help="fixed, public or private: without it there is no certificate.")
    ] = None,
    budget: Annotated[Path | None, typer.Option(metavar="BUDGET", help="The budget that pays for the run.")] = None,
    accounting: Annotated[
        str | None, typer.Option(help="proven, or published: planned by the paper's rule, and both are shown.")
    ] = None,
    method: Annotated[str | None, typer.Option(help=METHODS)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="The step size.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="The largest norm of one record's gradient.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Of the optimizer.")] = None,
    network: Annotated[str | None, typer.Option(help="A network by its name; otherwise one for the images.")] = None,
    activation: Annotated[
        str | None,
        typer.Option(help="tanh, relu, tempered_sigmoid(mnist), tempered_sigmoid(1.97, 2.27, 1.15), ..."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the method; TABLE.KEY=VALUE of a file."),
    ] = None,
    augmentation: Annotated[str | None, typer.Option(help="none, flip_crop, rrc, ours or simclr.")] = None,
    views: Annotated[int | None, typer.Option(help="Augmented copies of a record, averaged before clipping.")] = None,
    precision: Annotated[str | None, typer.Option(help="as_model or bfloat16.")] = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between two evaluations.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many evaluations without a better loss.")] = None,
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where the run is kept; a new folder.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder.")] = None,
    name: Annotated[str | None, typer.Option(help="The name of the run, in its ledger and the budget.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the first weights; noise has no seed.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    physical_batch: Annotated[int | None, typer.Option(help="Records that are run at once.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile the step.")] = None,
    sharded: Annotated[
        bool, typer.Option("--shard", help="Under torchrun: each process holds a share of the weights.")
    ] = False,
    tensorboard: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write TensorBoard scalars.")] = None,
    diagnostics: Annotated[
        bool, typer.Option("--private-diagnostics", help="Keep un-noised values in the run's private folder.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Train a network on private records, with an ε that is proven, charged before it is spent, and certified.

    Options override what CONFIG.toml says, and --set overrides them. A run that was killed goes on with --resume, to
    the bit.
    """
    from lehr.configuration import Configuration
    from lehr.distributed import is_first
    from lehr.run_folder import read_config

    said: dict[str, dict[str, Any]] = {
        "data": {
            "name": dataset,
            "npz": npz,
            "folder": folder,
            "test_npz": test_npz,
            "test_folder": test_folder,
            "public_npz": public_npz,
            "public_folder": public_folder,
            "image_side": image_side,
            "channels": channels,
            "streamed": streamed,
            "workers": workers,
            "records": records,
            "declared": declared,
            "num_classes": num_classes,
        },
        "privacy": {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            "expected_batch_size": expected_batch_size,
            "steps": steps,
            "simulated_batch_size": simulated_batch_size,
            "settings_chosen_on": settings_chosen_on,
            "accounting": accounting,
        },
        "method": {"name": method, "learning_rate": learning_rate, "clip_norm": clip_norm, "momentum": momentum},
        "model": {"network": network, "activation": activation},
        "training": {
            "augmentation": augmentation,
            "views": views,
            "precision": precision,
            "evaluate_every": evaluate_every,
            "patience": patience,
            "held_out_fraction": held_out_fraction,
        },
    }
    if resume is not None:
        refuse("resume", config=config, run=run, seed=seed, method=method, set=settings or None)
        for table in ("privacy", "method", "model", "training"):
            refuse("resume", **said[table])
        asked = Configuration.of_run(resume).with_words(data=said["data"])
        name = name or read_config(resume)["run"]
    else:
        asked = (Configuration() if config is None else Configuration.read(config)).with_words(**said)
        asked = asked.with_words(**tables(settings or ()))
    done = asked.train(
        data_dir=data_dir,
        seed=seed,
        directory=resume or run,
        resume=resume is not None,
        name=name,
        budget=budget,
        device=device,
        physical_batch=physical_batch,
        compiled=compiled,
        sharded=sharded,
        callbacks=_callbacks(tensorboard),
        diagnostics=diagnostics,
        quiet=quiet or json,
    )
    if is_first():  # of several processes, one speaks
        _answer(done, json=json)


def _callbacks(tensorboard: Path | None) -> list[Any]:
    if tensorboard is None:
        return []
    from lehr.reports.tensorboard import TensorBoard

    return [TensorBoard(tensorboard)]


def _answer(run: Run, *, json: bool) -> None:
    if json:
        answering.as_json(_shape(run))
    else:
        answering.facts("Trained", _rows(run))


def _shape(run: Run) -> dict[str, object]:
    last = run.evaluations[-1] if run.evaluations else None
    return {
        "run": str(run.directory),
        "reason": run.end.reason,
        "steps": run.end.step,
        "accepted": run.end.accepted,
        "epsilon": None if run.certificate is None else run.certificate.epsilon,
        "epsilon_spent": run.end.epsilon_spent if run.promises_nothing is None else None,
        "delta": run.plan.delta,
        "proven": run_claims.summary(run.proven if run.promises_nothing is None else None),
        "published": run_claims.summary(run.published),
        "promises_nothing": run.promises_nothing,
        "accuracy": None if last is None else last.accuracy,
        "loss": None if last is None else last.loss,
    }


def _rows(run: Run) -> dict[str, str]:
    rows = {"run": str(run.directory), "ended": f"{run.end.reason}, {run.end.step:,} steps"}
    if run.end.accepted != run.end.step or run.plan.stops_at_accepted is not None:
        planned = f"; {run.plan.steps:,} were planned" if run.plan.limit is None else ""
        rows["accepted"] = f"{run.end.accepted:,} of {run.end.step:,} candidates{planned}"
    rows["accuracy"] = "not scored: there are no test records"
    if run.evaluations:
        last = run.evaluations[-1]
        rows["accuracy"] = f"{last.accuracy:.2%} on {last.on} (loss {last.loss:.4f})"
    rows["ε, proven"] = _proven(run)
    if run.published is not None:
        rows["ε as published"] = run_claims.as_published(run.published)
    if run.certificate is None:
        rows["certificate"] = "none yet: state how the settings were chosen when you release the model"
        if not math.isfinite(run.proven.epsilon) or run.promises_nothing is not None:
            rows["certificate"] = "none: nothing is promised to anybody"
    rows["report"] = str(run.directory / "report.html")
    return rows


def _proven(run: Run) -> str:
    """The ε of the certificate, which may be a budget's limit, or that of the plan."""
    promised = run.proven if run.certificate is None else run.certificate
    if run.promises_nothing is not None:
        return f"no privacy: {run.promises_nothing}"
    if not math.isfinite(promised.epsilon):
        return "infinity: there is no privacy"
    return f"{at_most(promised.epsilon)} at δ = {exactly(promised.delta)}"
