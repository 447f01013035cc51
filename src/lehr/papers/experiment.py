"""A table or figure of a paper that can be run again: its jobs, and what is made of their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lehr.papers.job import Job, key_of
from lehr.papers.table import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much of an experiment is run. A quick one is small and honest: it runs on a CPU in minutes, and says so."""

    seeds: int | None = None  # otherwise as many as the experiment has by itself
    is_quick: bool = False


Outcome: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes that are there, by the keys of their jobs. What a training's has: ``lehr.papers.training``."""

    by_key: Mapping[str, Outcome]

    def of(self, job: Job) -> Outcome | None:
        """What a job gave; nothing where it was not run yet, or failed."""
        return self.by_key.get(key_of(job))

    def of_all(self, jobs: list[Job]) -> list[Outcome]:
        """What those of the jobs gave that were run."""
        return [found for job in jobs if (found := self.of(job)) is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One table or figure.

    ``jobs`` are in order of worth: where time is short, the first are run first. ``shown`` takes whatever outcomes
    there are. A ``jobs`` that is empty means that all of it is arithmetic.
    """

    paper: str  # "sa-dpsgd", "tempered-sigmoids", "adadp", "tan"
    name: str  # "table1", "figure3"
    title: str
    about: str  # what the paper shows there, what is done here, and what differs and why, in a few sentences
    jobs: Callable[[Size], list[Job]]
    shown: Callable[[Outcomes, Size], Shown]
