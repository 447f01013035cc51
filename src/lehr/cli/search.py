"""``lehr search``: settings for a run, found by trials on records that need no protection, or for a price."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr.cli import answering
from lehr.cli.failing import NO, that_goes_on
from lehr.cli.options import Json, example, refuse
from lehr.cli.settings import tables

if TYPE_CHECKING:
    from lehr.reports.search_rows import Row, SearchCallback
    from lehr.search.asked import Search
    from lehr.search.finishing import Finished

# Written out, because naming them by where they are defined would load torch for a help text.
SAMPLERS = "tpe, random, grid, qmc or gp."
PRUNERS = "none, median, hyperband or successive-halving."
SHOWN = 10
EXAMPLE = example(
    "  lehr search --set data.declared=public --set privacy.noise_multiplier=1 --set privacy.steps=5 \\\n",
    "      --set privacy.expected_batch_size=64 --trials 2 --study found\n",
)


def search(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="A configuration, with [search] in it.")
    ] = None,
    trials: Annotated[int | None, typer.Option(help="How many settings are tried; 20.")] = None,
    study: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where the study is kept; one that began goes on.")
    ] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="A database that machines share; a file in the folder.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the study in its database; that of its folder.")] = None,
    sampler: Annotated[str | None, typer.Option(help="What is tried next: " + SAMPLERS)] = None,
    pruner: Annotated[str | None, typer.Option(help="What is given up early: " + PRUNERS)] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is tried and of first weights; noise has none.")] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="TABLE.KEY=VALUE", help="Any key of the configuration, outside of [search]."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    data_dir: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where to look for the data first.")] = None,
    physical_batch: Annotated[int | None, typer.Option(help="Records that are run at once.")] = None,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile the step.")] = None,
    pay: Annotated[
        str | None, typer.Option(help="On private records: selection, only the winner is seen; or composition.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Trials of a selection on average; the number is secret.")] = None,
    law: Annotated[str | None, typer.Option(help="Of that number: geometric, logarithmic or poisson.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The most ε that a whole paid search may cost.")] = None,
    budget: Annotated[Path | None, typer.Option(metavar="BUDGET", help="What a paid search is paid from.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    json: Json = False,
) -> None:
    """Try settings of a configuration, and write the best as a configuration that `lehr train` takes.

    The records that are searched on are those of [search.data], or of [data], and are declared public or synthetic; or
    they are private, and the search is paid for (--pay). The same command again goes on with a study that was stopped
    or killed.
    """
    from lehr.cli.search_paid import PayOptions, planned
    from lehr.search.asked import Search

    words = tables(settings or ())
    if epsilon is not None:
        words = {**words, "privacy": {**words.get("privacy", {}), "epsilon": epsilon}}
    asked = Search.read(config, words=words)
    said: dict[str, Any] = {"trials": trials, "sampler": sampler, "pruner": pruner, "seed": seed}
    asked = replace(asked, **{key: value for key, value in said.items() if value is not None})
    folder = study or Path("search" if config is None else f"{config.stem}-search")
    how = {"device": device, "data_dir": data_dir, "physical_batch": physical_batch, "compiled": compiled}
    paying = PayOptions(pay=pay, mean=mean, law=law, epsilon=epsilon, budget=budget)
    if pay is not None:
        refuse("pay", storage=storage)
        in_file = asked.trials if "trials" in asked.named else None
        price = paying.price(trials=in_file if trials is None else trials, said=asked.trials)
        paid = planned(asked, paying, price, sampler=sampler)
        in_folder = {"paid": paid, "directory": folder, "name": name or f"search {folder.absolute().name}"}
        _searched_for_a_price(in_folder, budget=budget, how=how, quiet=quiet, json=json)
        return
    paying.refuse_without_pay()
    rows, finished = _searched(asked, folder, name=name, storage=storage, how=how, quiet=quiet or json)
    _answer(asked, rows, finished, folder, json=json)
    _fail_without_a_winner(finished.winner)


def _searched(
    asked: Search, folder: Path, *, name: str | None, storage: str | None, how: dict[str, Any], quiet: bool
) -> tuple[Sequence[Row], Finished]:
    from lehr.search.finishing import finish
    from lehr.search.study import Study
    from lehr.search.terms import free_terms

    study = Study(
        search=asked,
        terms=free_terms(asked),
        directory=folder,
        name=name or folder.absolute().name,
        url=storage,
        how=how,
    )
    with that_goes_on():
        rows = study.run(_told(quiet=quiet))
    return rows, finish(study, rows)


def _searched_for_a_price(
    said: dict[str, Any], *, budget: Path | None, how: dict[str, Any], quiet: bool, json: bool
) -> None:
    from lehr.cli.search_paid import price_of_trials, select, tell_before_trials, told_of_trials
    from lehr.planning.search_cost import RepeatedSelection
    from lehr.search.composition import PaidStudy
    from lehr.search.finishing import finish
    from lehr.search.selection import Selection

    if isinstance(said["paid"].price, RepeatedSelection):
        _fail_without_a_winner(select(Selection(**said, budget=budget, how=how), quiet=quiet or json, json=json))
        return
    paid_study = PaidStudy(**said, budget=budget, how=how)
    if not (quiet or json):
        tell_before_trials(paid_study)
    with that_goes_on():
        rows = paid_study.run(_told(quiet=quiet or json))
    study = paid_study.study
    finished = finish(study, rows)
    number = None if finished.best is None else finished.best.number
    paid = price_of_trials(paid_study, number)
    _answer(study.search, rows, finished, paid_study.directory, json=json, paid=paid)
    if not json:
        told_of_trials(paid_study, number)
    _fail_without_a_winner(finished.winner)


def _fail_without_a_winner(winner: Path | None) -> None:
    if winner is None:
        raise typer.Exit(NO)


def _told(*, quiet: bool) -> list[SearchCallback]:
    from lehr.reports.search_progress import search_progress_for

    return [] if quiet else [search_progress_for(sys.stderr)]


def _answer(
    asked: Search,
    rows: Sequence[Row],
    finished: Finished,
    folder: Path,
    *,
    json: bool,
    paid: Mapping[str, object] | None = None,
) -> None:
    if json:
        answering.as_json(
            {
                "study": str(folder),
                "score": asked.score,
                "best": None if finished.best is None else finished.best.to_json(),
                "winner": None if finished.winner is None else str(finished.winner),
                "report": str(finished.page),
                "trials": [row.to_json() for row in rows],
                **(paid or {}),
            }
        )
        return
    _tell_trials(asked, rows)
    _tell_end(asked, rows, finished, use="to train it again is to pay again" if paid else "for lehr train")


def _tell_trials(asked: Search, rows: Sequence[Row]) -> None:
    from lehr.reports.search_progress import settings
    from lehr.reports.search_rows import best_first, score_in_words

    listed = [
        (str(row.number), score_in_words(row.score, score=asked.score), row.state, row.note or settings(row.parameters))
        for row in best_first(rows, score=asked.score)[:SHOWN]
    ]
    title = f"The best {len(listed)} of {len(rows)} trials" if len(rows) > SHOWN else f"{len(rows)} trials"
    answering.listing(title, ("trial", asked.score, "state", "settings"), listed)


def _tell_end(asked: Search, rows: Sequence[Row], finished: Finished, *, use: str) -> None:
    from lehr.reports.search_rows import RUNNING

    if others := sum(row.state == RUNNING for row in rows):
        answering.line(f"{others} trials are worked on elsewhere; run the command again when they are done.")
    if len(rows) < asked.trials:
        answering.line("There is nothing else to try: every combination was.")
    if finished.winner is None:
        answering.line("No trial was scored: there is no winner.")
    else:
        answering.line(f"{answering.printable(str(finished.winner))}: the winner, {use}")
    answering.line(f"{answering.printable(str(finished.page))}: all of it, with charts")
