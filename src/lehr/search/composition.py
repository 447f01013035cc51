"""Composition: a number of trials that is fixed beforehand, all of them charged, so that all of them may be shown.

It is a study like any other, but that every trial has one plan, that all are reserved before the first, and that the
certificate of each is for all of them. ``price.json`` in its folder says so.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lehr.append_only import a_name
from lehr.errors import InvalidValue, StoreError
from lehr.files import json_file, new_folder, strict_json
from lehr.planning import search_cost
from lehr.planning.search_cost import Composition
from lehr.reports.search_rows import Row, SearchCallback
from lehr.rng import RunKey
from lehr.run_folder import differences, refuse_used
from lehr.run_shape import PRIVATE, RunFiles
from lehr.search import paying
from lehr.search import storage as storages
from lehr.search.certifying import certify
from lehr.search.checking import refuse_unfit_records
from lehr.search.paid import PaidSearch
from lehr.search.study import Study
from lehr.search.terms import Terms

LOCK = "locks/begin"
NAME = "search"  # of the study within its folder, which has no other


@dataclass(frozen=True, kw_only=True, eq=False)
class PaidStudy:
    """A study that is paid for, to be run to its end. ``how`` goes on to every training: the device and the like."""

    paid: PaidSearch
    directory: Path
    name: str
    budget: Path | None = None
    how: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        a_name(name=self.name)

    @property
    def price(self) -> Composition:
        """How many trials are paid for."""
        if not isinstance(self.paid.price, Composition):
            raise InvalidValue("price", allowed="a Composition", given=self.paid.price)
        return self.paid.price

    @property
    def study(self) -> Study:
        """The trials. They are kept in its folder alone: others could not see how many are begun elsewhere."""
        return Study(
            search=replace(self.paid.search, trials=self.price.trials),
            terms=Terms(
                words=f"paid for: {self.price.trials} trials on private records, all of them charged",
                settings_chosen_on=PRIVATE,
                num_trials=self.price.trials,
                plan=self.paid.plan,
            ),
            directory=self.directory,
            name=NAME,
            how={**(self.how or {}), "name": self.name, **self.paid.how()},
        )

    def run(self, told: Sequence[SearchCallback] = ()) -> list[Row]:
        """Make every trial that is left, after all of them were reserved; and say what paid for each."""
        study, path = self.study, self.directory / "price.json"
        if not path.exists():
            self._begin(path)
        self._refuse_lost_trials()
        kept, asked = json_file.read(path, strict_json.a_table), strict_json.loads(strict_json.dumps(self._asked()))
        run_id = kept.pop("run_id", None)
        if differing := differences(kept, strict_json.a_table(asked)):
            raise InvalidValue("search", allowed=f"gone on with as it began ({path})", given="; ".join(differing))
        if self.budget is not None:
            if not (self.directory / "trials").exists():
                paying.reserve(self.budget, self.paid, name=self.name, run_id=run_id)
            paying.refuse_unreserved(self.budget, self.paid, name=self.name, run_id=run_id)
        rows = study.run(told)
        for row in rows if self.budget is not None else ():
            run = RunFiles(study.trial_directory(row.number))
            if run.certificate.exists():
                certify(run, self.paid, name=self.name, budget=self.budget)
        return rows

    def _begin(self, path: Path) -> None:
        self.paid.claim()
        self.paid.refuse_other_events(RunKey.fresh().at(0, 0).generator("settings looked at", "cpu"))
        refuse_unfit_records(self.paid.search, data_dir=(self.how or {}).get("data_dir"))
        refuse_used(self.directory)
        run_id = secrets.token_hex(16)
        with new_folder.made(self.directory, locked_by=LOCK) as beside:
            _ = replace(self.study, directory=beside).study  # its database is there from now on
            json_file.write(beside / path.name, {**self._asked(), "run_id": run_id})
        if self.budget is not None:
            with new_folder.removed_if_refused(self.directory, locked_by=LOCK):
                paying.reserve(self.budget, self.paid, name=self.name, run_id=run_id)

    def _refuse_lost_trials(self) -> None:
        """Without the database nobody knows which trials were made: all of them would be made again, unpaid."""
        if not (self.directory / storages.FILE).exists():
            raise StoreError(f"cannot go on in {self.directory}: {storages.FILE}, which knows its trials, is gone")

    def _asked(self) -> dict[str, object]:
        return {
            "name": self.name,
            "plan": self.paid.plan.to_json(),
            "price": search_cost.to_json(self.price),
            "budget": paying.dataset_of(self.budget),
        }
