"""``lehr search``: settings for a run, found by trials on public records, or on private ones for a price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lehr import validate
from lehr.accounting.claims import Claim
from lehr.certificates.certificate import Certificate, read_certificate
from lehr.certificates.run_reading import read_run
from lehr.cli import common
from lehr.cli.common import (
    NO,
    Json,
    Quiet,
    Settings,
    command_app,
    config_options,
    parse_settings,
    refuse,
    required,
    resumable,
)
from lehr.errors import InvalidValue
from lehr.files import strict_json
from lehr.planning.search_cost import (
    COMPOSITION,
    SELECTION,
    WAYS,
    Composition,
    RepeatedSelection,
    law_in_words,
    to_json,
)
from lehr.reports.progress import (
    RUNNING,
    SearchCallback,
    SearchProgress,
    TrialRow,
    best_first,
    score_text,
    settings_text,
)
from lehr.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.search.paid import PaidSearch
    from lehr.search.request import Search
    from lehr.search.study import SearchResult

LAWS: Mapping[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}
SHOWN = 10


@config_options("device", "data_dir", "physical_batch", "compiled", "budget")
def search(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Configuration with a table [search].")
    ] = None,
    *,
    trials: Annotated[int | None, typer.Option(help="Number of trials; 20 by default.")] = None,
    study: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Folder of the study, new or to resume.")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Database that machines share; a file in the folder by default.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the study; that of its folder by default.")] = None,
    # Listed here, because importing optuna just for a help text would be slow.
    sampler: Annotated[str | None, typer.Option(help="tpe, random, grid, qmc or gp.")] = None,
    pruner: Annotated[str | None, typer.Option(help="none, median, hyperband or successive-halving.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed for the sampler and weight initialisation; DP noise is never seeded.")
    ] = None,
    settings: Settings = None,
    pay: Annotated[
        str | None, typer.Option(help="For private records: selection (only the winner is seen) or composition.")
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Expected number of trials of a selection.")] = None,
    law: Annotated[str | None, typer.Option(help="Its distribution: geometric, logarithmic or poisson.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Largest ε of a whole paid search.")] = None,
    quiet: Quiet = False,
    json: Json = False,
    **fields: Any,
) -> None:
    """Try settings of a configuration, and write the best as a configuration for `lehr train`.

    The search uses the records of [search.data], or of [data]. Either they are declared public or synthetic, or they
    are private and the search itself is charged (--pay). The same command continues a study that was stopped.
    """
    from lehr.search.request import Search

    values = parse_settings(settings or ())
    if epsilon is not None:
        values = {**values, "privacy": {**values.get("privacy", {}), "epsilon": epsilon}}
    request = Search.read(config, words=values)
    given: dict[str, Any] = {"trials": trials, "sampler": sampler, "pruner": pruner, "seed": seed}
    request = replace(request, **{key: value for key, value in given.items() if value is not None})
    folder = study or Path("search" if config is None else f"{config.stem}-search")
    budget = fields.pop("budget")
    callbacks = [] if quiet or json else [SearchProgress()]
    if pay is None:
        _refuse_without_pay(mean=mean, law=law, epsilon=epsilon, budget=budget)
        where = {"directory": folder, "name": name or folder.absolute().name, "url": storage}
        winner = _search(request, where, fields, callbacks, json=json)
    else:
        refuse("pay", storage=storage)
        price = _price(pay, mean=mean, law=law, trials=trials, request=request)
        paid = {
            "paid": _planned(request, price, epsilon=epsilon, sampler=sampler),
            "directory": folder,
            "name": name or f"search {folder.absolute().name}",
            "budget": budget,
            "options": fields,
        }
        run = _select if isinstance(price, RepeatedSelection) else _compose
        winner = run(paid, callbacks, json=json)
    if winner is None:
        raise typer.Exit(NO)


def _search(
    request: Search, where: dict[str, Any], options: dict[str, Any], callbacks: Sequence[SearchCallback], *, json: bool
) -> Path | None:
    """Search on public records."""
    from lehr.search.study import Study, finish

    study = Study(search=request, options=options, **where)
    with resumable():
        rows = study.run(callbacks)
    result = finish(study, rows)
    _print_trials(request, rows, result, where["directory"], json=json)
    return result.winner


def _print_trials(
    request: Search,
    rows: Sequence[TrialRow],
    result: SearchResult,
    folder: Path,
    *,
    json: bool,
    paid: Mapping[str, object] | None = None,
) -> None:
    score = request.score
    if json:
        common.print_json(
            {
                "study": folder,
                "score": score,
                "best": result.best and result.best.to_json(),
                "winner": result.winner,
                "report": result.page,
                "trials": [row.to_json() for row in rows],
                **(paid or {}),
            }
        )
        return
    listed = [
        (str(row.number), score_text(row.score, score=score), row.state, row.note or settings_text(row.parameters))
        for row in best_first(rows, score=score)[:SHOWN]
    ]
    title = f"The best {len(listed)} of {len(rows)} trials" if len(rows) > SHOWN else f"{len(rows)} trials"
    common.print_table(title, ("trial", score, "state", "settings"), listed)
    if others := sum(row.state == RUNNING for row in rows):
        common.print_line(f"{others} trials are running elsewhere; run the command again when they are done.")
    if len(rows) < request.trials:
        common.print_line("There is nothing else to try: every combination was tried.")
    use = "training it again is paid for again" if paid else "for lehr train"
    won = "No trial was scored: there is no winner." if result.winner is None else f"{result.winner}: the winner, {use}"
    common.print_line(f"{won}\n{result.page}: all trials, with charts")


# Searches on private records.


def _refuse_without_pay(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            allowed = "left out without --pay: a search on public records costs nothing"
            if name == "epsilon":
                allowed += " (set the ε of the run itself with --set privacy.epsilon=...)"
            raise InvalidValue(name, allowed=allowed, given=str(value))


def _price(
    pay: str, *, mean: float | None, law: str | None, trials: int | None, request: Search
) -> RepeatedSelection | Composition:
    if validate.one_of(WAYS, pay=pay) == COMPOSITION:
        refuse("--pay composition", mean=mean, law=law)
        return Composition(request.trials)
    asked = trials if trials is not None else request.trials if "trials" in request.named else None
    if asked is not None:
        allowed = "left out beside --pay selection, whose number of trials is drawn: give --mean"
        raise InvalidValue("trials", allowed=allowed, given=asked)
    chosen = "geometric" if law is None else validate.one_of(LAWS, law=law)
    return RepeatedSelection(mean=required(mean=mean), shape=LAWS[chosen])


def _planned(
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
    from lehr.search.study import finish

    study = PaidStudy(**paid)
    claim, price = study.paid.claim(), study.price
    if callbacks:
        charged = f"A composition on private records: all of its {price.trials} trials are charged and shown."
        typer.echo(f"{charged} ε = {_epsilon(claim)} for all of it.", err=True)
    with resumable():
        rows = study.run(callbacks)
    result = finish(study.study, rows)
    run = None if result.best is None else study.study.trial_directory(result.best.number)
    numbers = {"epsilon": claim.epsilon, "delta": claim.delta}
    shape = {"pay": COMPOSITION, "price": to_json(price), "run": run, **numbers}
    _print_trials(study.study.search, rows, result, study.directory, json=json, paid=shape)
    if run is not None and not json:
        promised = _epsilon(read_certificate(run / "certificate.json"))
        common.print_line(f"{run}: the run of the winner, ε = {promised} for all {price.trials} trials")
    return result.winner


def _select(paid: dict[str, Any], callbacks: Sequence[SearchCallback], *, json: bool) -> Path | None:
    """Run a selection to its winner. Before its end, only what was known at its start is shown."""
    from lehr.search.paid import SETTINGS, Selection

    selection = Selection(**paid)
    price = selection.price
    if callbacks:
        typer.echo(
            f"A selection on private records: random settings for {price.mean:g} trials on average, by the "
            f"{law_in_words(price.shape)} law. ε = {_epsilon(selection.paid.claim())} for all of it. "
            "Nothing is shown before its end.",
            err=True,
        )
    with resumable():
        winner = selection.run()
    shape = {"search": selection.directory, "pay": SELECTION, "price": to_json(price), "winner": winner}
    if winner is None:
        if json:
            common.print_json(shape)
        else:
            common.print_line(
                "No model was kept: no trial was drawn, or none ended with a model. The search is charged. "
                "Try the settings on public records first."
            )
        return None
    record, settings = read_run(winner), strict_json.read(winner / SETTINGS, strict_json.check_table)
    last, certificate = record.last, record.certificate
    assert last is not None  # or it would not have won
    assert certificate is not None  # as every trial has one
    if json:
        scores = {"accuracy": last.accuracy, "loss": last.loss, "scored_on": last.on}
        numbers = {"epsilon": certificate.epsilon, "delta": certificate.delta}
        common.print_json({**shape, "settings": settings, **scores, **numbers})
    else:
        common.print_facts(
            "Selected",
            {
                "winner": str(winner),
                "settings": settings_text(settings),
                "accuracy": f"{last.accuracy:.2%} on {last.on} (loss {last.loss:.4f})",
                "ε of the search": _epsilon(certificate),
                "report": f"{winner}/report.html",
            },
        )
    return winner


def _epsilon(claim: Claim | Certificate) -> str:
    return f"{at_most(claim.epsilon)} at δ = {exactly(claim.delta)}"


search_command = command_app(
    search,
    "  lehr search --set data.declared=public --set privacy.noise_multiplier=1 --set privacy.steps=5 \\\n",
    "      --set privacy.expected_batch_size=64 --trials 2 --study found\n",
)
