"""The run that a paid search was for: its certificate says what paid for it, and its page is made anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.files import json_file, strict_json, whole_file
from lehr.reports import certificate_file, issuing, run_page, run_reading
from lehr.run_shape import RunFiles
from lehr.search import paying
from lehr.search.paid import PaidSearch


def certify(run: RunFiles, paid: PaidSearch, *, name: str, budget: Path | None, created_on: str | None = None) -> None:
    """Issue the certificate anew, with the budget where there is one, and of the day of the search if it is given.

    The one that was there is of the day on which the trial ended, which says something of its place in the search. On
    which day the search itself ended says how many trials it had; what is certified was fixed on its first.
    """
    config = json_file.read(run.config, strict_json.a_table)
    changed = {"budget": paying.dataset_of(budget)} | ({} if created_on is None else {"created_on": created_on})
    json_file.write(run.config, {**config, **changed}, overwrite=True)
    event, cost = paid.price.certified(paid.trial_event)
    certificate = issuing.issue(
        event,
        delta=paid.plan.delta,
        adjacency=paid.plan.adjacency,
        stated=certificate_file.read(run.certificate).stated,
        settings_cost=cost,
        budget=None if budget is None else paying.shared(budget, name=name),
    )
    dated = certificate if created_on is None else replace(certificate, issued_on=created_on)
    certificate_file.write(run.certificate, dated, overwrite=True)
    page = run_page.render(run_reading.read_run(run.directory))
    whole_file.write(run.report, page, overwrite=True)
