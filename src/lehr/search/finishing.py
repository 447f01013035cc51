"""What is left of a search: the winner as a configuration, and a page with all trials, both in its folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lehr.files import whole_file
from lehr.reports import search_page
from lehr.reports.rounding import at_most, exactly
from lehr.reports.search_rows import Row, best_of, score_in_words
from lehr.run_shape import PRIVATE
from lehr.search import winner
from lehr.search.asked import Search
from lehr.search.study import Study

PAGE = "report.html"


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The best trial, where any was scored, and the files that say so."""

    best: Row | None
    winner: Path | None
    page: Path


def finish(study: Study, rows: Sequence[Row]) -> Finished:
    """Write the winner and the page, over those that there are."""
    best = best_of(rows, score=study.search.score)
    path = None if best is None else study.directory / winner.FILE
    if best is not None and path is not None:
        chosen = winner.winning(study.search, dict(best.parameters), settings_chosen_on=study.terms.settings_chosen_on)
        winner.write(path, chosen, about=_about(study, best, rows))
    page = study.directory / PAGE
    text = search_page.render(
        rows,
        title=f"Search {study.name}",
        score=study.search.score,
        trials=study.search.trials,
        terms=study.terms.words,
        winner="" if path is None else whole_file.read(path),
        names=[dimension.name for dimension in study.search.space.dimensions],
    )
    whole_file.write(page, text, overwrite=True)
    return Finished(best=best, winner=path, page=page)


def _about(study: Study, best: Row, rows: Sequence[Row]) -> str:
    reached = score_in_words(best.score, score=study.search.score)
    said = f"Trial {best.number} of {len(rows)}: {study.search.score} {reached} while searching, "
    how = "at its full batch"
    if "simulated_batch_size" in study.search.configuration.privacy:
        how = "simulated by smaller batches; this is the run that they stood for"
    about = f"{said}{how}.\nThe search was {study.terms.words}.{_other_cost(study.search, best)}"
    if study.terms.settings_chosen_on != PRIVATE:
        return about
    return f"{about}\nIts model is in trials/{best.number}. To train this file is another run, which is paid for again."


def _other_cost(search: Search, best: Row) -> str:
    """With other batches at the same noise the run costs nearly the same ε, and nearly is to be said."""
    if "epsilon" in search.configuration.privacy or best.parameters.get("batch_factor", 1) == 1:
        return ""
    _, plan = search.reference(dict(best.parameters)).method_and_plan()
    promised, before = (at_most(each.bound().epsilon) for each in (plan, search.plan))
    costs = f"ε = {promised} at δ = {exactly(plan.delta)}"
    return f"\nOn private records this run would cost {costs}; with the batch as it was configured, {before}."
