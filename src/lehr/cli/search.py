"""``lehr search``: settings for a run, found by trials on public records, or on private ones for a price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Exit, Option

from lehr import validate
from lehr.certificates.certificate import read_certificate
from lehr.certificates.run_reading import read_run
from lehr.cli import common
from lehr.files import strict_json
from lehr.planning import search_cost
from lehr.planning.search_cost import COMPOSITION, SELECTION, Composition, RepeatedSelection
from lehr.reports.progress import RUNNING, SearchCallback, SearchProgress, TrialRow, settings_text
from lehr.reports.search_page import trial_table

if TYPE_CHECKING:
    from lehr.search.paid import PaidSearch
    from lehr.search.request import Search
    from lehr.search.study import SearchResult, Study

LAWS: Mapping[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
SHOWN = 10


@common.config_options("device", "data_dir", "physical_batch", "compiled", "budget")
def search(
    config: Annotated[Path | None, Argument(metavar="[CONFIG.toml]", help="Configuration with a [search].")] = None,
    *,
    trials: Annotated[int | None, Option(help="Number of trials; 20 by default.")] = None,
    study: Annotated[Path | None, Option(metavar="FOLDER", help="Folder of the study, new or to resume.")] = None,
    storage: Annotated[
        str | None, Option(metavar="URL", help="Database that machines share; a file in the folder by default.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the study; that of its folder by default.")] = None,
    # Listed here, because importing optuna just for a help text would be slow.
    sampler: Annotated[str | None, Option(help="tpe, random, grid, qmc or gp.")] = None,
    pruner: Annotated[str | None, Option(help="none, median, hyperband or successive-halving.")] = None,
    seed: Annotated[int | None, Option(help="Seed for the sampler and the weights; DP noise is never seeded.")] = None,
    settings: common.Settings = None,
    pay: Annotated[
        str | None, Option(help="For private records: selection (only the winner is seen) or composition.")
    ] = None,
    mean: Annotated[float | None, Option(help="Expected number of trials of a selection.")] = None,
    law: Annotated[str | None, Option(help="Its distribution: geometric, logarithmic or poisson.")] = None,
    epsilon: Annotated[float | None, Option(help="Largest ε of a whole paid search.")] = None,
    quiet: common.Quiet = False,
    json: common.Json = False,
    **fields: Any,
) -> None:
    """Try settings of a configuration, and write the best as a configuration for `lehr train`.

    The search uses the records of [search.data], or of [data]. Either they are declared public or synthetic, or they
    are private and the search itself is charged (--pay). The same command continues a study that was stopped.
    """
    from lehr.search.request import Search
    from lehr.search.study import Study

    values = common.parse_settings(settings or ())
    if epsilon is not None:
        values = {**values, "privacy": {**values.get("privacy", {}), "epsilon": epsilon}}
    request = Search.read(config, words=values)
    options: dict[str, Any] = {"trials": trials, "sampler": sampler, "pruner": pruner, "seed": seed}
    request = replace(request, **{key: value for key, value in options.items() if value is not None})
    folder = study or Path("search" if config is None else f"{config.stem}-search")
    budget = fields.pop("budget")
    callbacks = [] if quiet or json else [SearchProgress()]
    if pay is None:
        without = "a search without --pay (the ε of the run itself is --set privacy.epsilon=...)"
        common.refuse(without, mean=mean, law=law, epsilon=epsilon, budget=budget)
        name = name or folder.absolute().name
        free = Study(search=request, directory=folder, name=name, url=storage, options=fields)
        with common.resumable():
            rows = free.run(callbacks)
        winner = _finish(free, rows, json=json)
    else:
        common.refuse("pay", storage=storage)
        price = _price(pay, mean=mean, law=law, trials=trials, request=request)
        paid = {
            "paid": _plan_search(request, price, epsilon=epsilon, sampler=sampler),
            "directory": folder,
            "name": name or f"search {folder.absolute().name}",
            "budget": budget,
            "options": fields,
        }
        run = _select if isinstance(price, RepeatedSelection) else _compose
        winner = run(paid, callbacks, json=json)
    if winner is None:
        raise Exit(common.NO)


def _finish(
    study: Study, rows: Sequence[TrialRow], *, json: bool, paid: Callable[[SearchResult], dict[str, Any]] | None = None
) -> Path | None:
    """Write the winner and the page, and print the trials; ``paid`` returns what is added to the JSON object."""
    from lehr.search.study import finish

    result, score = finish(study, rows), study.search.score
    if json:
        common.print_json(
            {
                "study": study.directory,
                "score": score,
                "best": result.best and result.best.to_json(),
                "winner": result.winner,
                "report": result.page,
                "trials": [row.to_json() for row in rows],
                **({} if paid is None else paid(result)),
            }
        )
        return result.winner
    table = trial_table(rows, score=score)
    title = f"The best {SHOWN} of {len(rows)} trials" if len(rows) > SHOWN else f"{len(rows)} trials"
    common.print_table(title, table.headings, table.rows[:SHOWN])
    if others := sum(row.state == RUNNING for row in rows):
        common.print_line(f"{others} trials are running elsewhere; run the command again when they are done.")
    if len(rows) < study.search.trials:
        common.print_line("There is nothing else to try: every combination was tried.")
    use = "for lehr train" if paid is None else "training it again is paid for again"
    won = "No trial was scored: there is no winner." if result.winner is None else f"{result.winner}: the winner, {use}"
    common.print_line(f"{won}\n{result.page}: all trials, with charts")
    if paid is not None and (run := paid(result)["run"]) is not None:
        promised = common.epsilon_text(read_certificate(run / "certificate.json"))
        common.print_line(f"{run}: the run of the winner, ε = {promised} for all {study.search.trials} trials")
    return result.winner


# Searches on private records.


def _price(
    pay: str, *, mean: float | None, law: str | None, trials: int | None, request: Search
) -> RepeatedSelection | Composition:
    if validate.one_of(search_cost.WAYS, pay=pay) == COMPOSITION:
        common.refuse("--pay composition", mean=mean, law=law)
        return Composition(request.trials)
    asked = trials if trials is not None else request.trials if "trials" in request.named else None
    common.refuse("--pay selection, whose number of trials is drawn: give --mean", trials=asked)
    chosen = "geometric" if law is None else validate.one_of(LAWS, law=law)
    return RepeatedSelection(mean=common.required(mean=mean), shape=LAWS[chosen])


def _plan_search(
    request: Search, price: RepeatedSelection | Composition, *, epsilon: float | None, sampler: str | None
) -> PaidSearch:
    """The search at its price; a selection samples at random by default."""
    from lehr.search.paid import RANDOM, paid_search

    if isinstance(price, RepeatedSelection) and sampler is None and "sampler" not in request.named:
        request = replace(request, sampler=RANDOM)
    return paid_search(request, price, epsilon=epsilon)


def _compose(paid: dict[str, Any], callbacks: Sequence[SearchCallback], *, json: bool) -> Path | None:
    """Charge and show every trial."""
    from lehr.search.paid import PaidStudy

    study = PaidStudy(**paid)
    claim, price = study.paid.claim(), study.price
    if callbacks:
        charged = f"A composition on private records: all of its {price.trials} trials are charged and shown."
        typer.echo(f"{charged} ε = {common.epsilon_text(claim)} for all of it.", err=True)
    with common.resumable():
        rows = study.run(callbacks)

    def shape(result: SearchResult) -> dict[str, Any]:
        run = None if result.best is None else study.study.trial_directory(result.best.number)
        numbers = {"epsilon": claim.epsilon, "delta": claim.delta}
        return {"pay": COMPOSITION, "price": search_cost.to_json(price), "run": run, **numbers}

    return _finish(study.study, rows, json=json, paid=shape)


def _select(paid: dict[str, Any], callbacks: Sequence[SearchCallback], *, json: bool) -> Path | None:
    """Run a selection to its winner. Before its end, only what was known at its start is shown."""
    from lehr.search.paid import SETTINGS, Selection

    selection = Selection(**paid)
    price = selection.price
    if callbacks:
        law, epsilon = search_cost.law_in_words(price.shape), common.epsilon_text(selection.paid.claim())
        typer.echo(
            f"A selection on private records: random settings for {price.mean:g} trials on average, by the {law} law. "
            f"ε = {epsilon} for all of it. Nothing is shown before its end.",
            err=True,
        )
    with common.resumable():
        winner = selection.run()
    shape: dict[str, Any] = {
        "search": selection.directory,
        "pay": SELECTION,
        "price": search_cost.to_json(price),
        "winner": winner,
    }
    facts = {
        "winner": "none: no trial was drawn, or none ended with a model. The search is charged. Try the settings on "
        "public records first."
    }
    if winner is not None:
        record, settings = read_run(winner), strict_json.read(winner / SETTINGS, strict_json.check_table)
        last, certificate = record.last, record.certificate
        assert last is not None  # or it would not have won
        assert certificate is not None  # as every trial has one
        shape |= {"settings": settings, "accuracy": last.accuracy, "loss": last.loss, "scored_on": last.on}
        shape |= {"epsilon": certificate.epsilon, "delta": certificate.delta}
        facts = {
            "winner": str(winner),
            "settings": settings_text(settings),
            "accuracy": f"{last.accuracy_text} on {last.on} (loss {last.loss:.4f})",
            "ε of the search": common.epsilon_text(certificate),
            "report": f"{winner}/report.html",
        }
    common.print_json(shape) if json else common.print_facts("Selected", facts)
    return winner


search_command = common.command_app(
    search,
    "  lehr search --set data.declared=public --set privacy.noise_multiplier=1 --set privacy.steps=5 \\\n",
    "      --set privacy.expected_batch_size=64 --trials 2 --study found\n",
)
