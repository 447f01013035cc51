"""``lehr search --pay``: a search on private records, of which only the winner is seen, or all trials are charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lehr import validate
from lehr.cli import answering
from lehr.cli.failing import that_goes_on
from lehr.cli.options import refuse, required
from lehr.errors import InvalidValue
from lehr.planning.search_cost import (
    COMPOSITION,
    SELECTION,
    WAYS,
    Composition,
    Paid,
    RepeatedSelection,
    law_in_words,
    to_json,
)
from lehr.reports.rounding import at_most, exactly

if TYPE_CHECKING:
    from lehr.claims import Claim
    from lehr.search.asked import Search
    from lehr.search.composition import PaidStudy
    from lehr.search.paid import PaidSearch
    from lehr.search.selection import Selection

LAWS: Mapping[str, float | None] = {"geometric": 1.0, "logarithmic": 0.0, "poisson": None}


@dataclass(frozen=True, kw_only=True)
class PayOptions:
    """What the command line says about paying."""

    pay: str | None
    mean: float | None
    law: str | None
    epsilon: float | None
    budget: Path | None

    def refuse_without_pay(self) -> None:
        """Refuse what means nothing where a search is free."""
        for name in ("mean", "law", "epsilon", "budget"):
            if (given := getattr(self, name)) is not None:
                allowed = "left out without --pay: a search on records that need no protection costs nothing"
                if name == "epsilon":
                    allowed += " (the ε of the run itself is said with --set privacy.epsilon=...)"
                raise InvalidValue(name, allowed=allowed, given=str(given))

    def price(self, *, trials: int | None, said: int) -> Paid:
        """The price: of a mean number of trials by a law, or of a number of trials."""
        if validate.one_of(WAYS, pay=self.pay) == COMPOSITION:
            refuse("--pay composition", mean=self.mean, law=self.law)
            return Composition(said if trials is None else trials)
        if trials is not None:
            allowed = "left out beside --pay selection, whose number of trials is drawn: give --mean"
            raise InvalidValue("trials", allowed=allowed, given=trials)
        law = "geometric" if self.law is None else validate.one_of(LAWS, law=self.law)
        return RepeatedSelection(mean=required(mean=self.mean), shape=LAWS[law])


def planned(asked: Search, options: PayOptions, price: Paid, *, sampler: str | None) -> PaidSearch:
    """The search at its price; a selection draws at random, where no other sampler is named."""
    from lehr.search.paid import RANDOM, paid_search

    if isinstance(price, RepeatedSelection) and sampler is None and "sampler" not in asked.named:
        asked = replace(asked, sampler=RANDOM)
    return paid_search(asked, price, epsilon=options.epsilon)


def select(selection: Selection, *, quiet: bool, json: bool) -> Path | None:
    """Run a selection to its winner. Nothing is said before its end but what was known before its beginning."""
    if not quiet:
        typer.echo(_before(selection), err=True)
    with that_goes_on():
        winner = selection.run()
    answer = _answer(selection, winner)
    if json:
        answering.as_json(answer)
    elif winner is None:
        answering.line(
            "No model was kept: no trial was drawn, or none ended with a model. The search is charged. "
            "Try the settings on public records first."
        )
    else:
        answering.facts("Selected", _rows(answer))
    return winner


def price_of_trials(study: PaidStudy, number: int | None) -> dict[str, Any]:
    """What a composition cost, for a program: with the run of this trial, where one has won."""
    claim = study.paid.claim()
    return {
        "pay": COMPOSITION,
        "price": to_json(study.price),
        "run": None if number is None else str(study.study.trial_directory(number)),
        "epsilon": claim.epsilon,
        "delta": claim.delta,
    }


def tell_before_trials(study: PaidStudy) -> None:
    """Say what all trials cost together, before the first."""
    said = f"A composition on private records: all of its {study.price.trials} trials are charged and shown."
    typer.echo(f"{said} ε = {_whole(study.paid.claim())} for all of it.", err=True)


def told_of_trials(study: PaidStudy, number: int | None) -> None:
    """Where the model of a composition is, and what it promises."""
    from lehr.reports import certificate_file

    if number is None:
        return
    run = study.study.trial_directory(number)
    promised = certificate_file.read(run / "certificate.json")
    said = f"ε = {at_most(promised.epsilon)} at δ = {exactly(promised.delta)} for all {study.price.trials} trials"
    answering.line(f"{answering.printable(str(run))}: the run of the winner, {said}")


def _before(selection: Selection) -> str:
    price, claim = selection.price, selection.paid.claim()
    return (
        f"A selection on private records: settings are drawn at random for {price.mean:g} trials on average, by the "
        f"{law_in_words(price.shape)} law. ε = {_whole(claim)} for all of it. "
        "Nothing is shown before its end."
    )


def _whole(claim: Claim) -> str:
    return f"{at_most(claim.epsilon)} at δ = {exactly(claim.delta)}"


def _answer(selection: Selection, winner: Path | None) -> dict[str, Any]:
    from lehr.files import json_file, strict_json
    from lehr.reports.run_reading import read_run
    from lehr.search.selection import SETTINGS

    answer: dict[str, Any] = {
        "search": str(selection.directory),
        "pay": SELECTION,
        "price": to_json(selection.price),
        "winner": None if winner is None else str(winner),
    }
    if winner is None:
        return answer
    record = read_run(winner)
    assert record.certificate is not None  # as every trial has one
    assert record.last is not None  # or it would not have won
    return answer | {
        "settings": json_file.read(winner / SETTINGS, strict_json.a_table),
        "accuracy": record.last.accuracy,
        "loss": record.last.loss,
        "scored_on": record.last.on,
        "epsilon": record.certificate.epsilon,
        "delta": record.certificate.delta,
    }


def _rows(answer: Mapping[str, Any]) -> dict[str, str]:
    from lehr.reports.search_rows import setting_in_words

    settings = ", ".join(f"{name} {setting_in_words(value)}" for name, value in answer["settings"].items())
    return {
        "winner": answer["winner"],
        "settings": settings,
        "accuracy": f"{answer['accuracy']:.2%} on {answer['scored_on']} (loss {answer['loss']:.4f})",
        "ε of the search": f"{at_most(answer['epsilon'])} at δ = {exactly(answer['delta'])}",
        "report": f"{answer['winner']}/report.html",
    }
