"""What an experiment is made of: jobs, outcomes, tables, and the list of papers.

- ``Training``, ``Measurement``: a job. Its key is a hash of its settings, so tables share jobs and continue.
- ``Outcomes``: what jobs gave. ``Statistic``, ``Column``, ``Table``, ``Report``: what an experiment shows
- ``experiment``: makes an ``Experiment`` of a function that draws a report from outcomes
- ``PAPERS``, ``experiments``, ``find_experiment``: the papers and their tables and figures

>>> [each.name for each in experiments("sa-dpsgd")][:1]
['table1']
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from lehr import validate
from lehr.config import RunConfig
from lehr.errors import InvalidValue
from lehr.reports.chart import Chart

ScoredOn: TypeAlias = Literal["all", "half", "seen"]
_DELTA = 1e-5  # of a run that names no other


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run: its configuration, and what an experiment adds. Draws and noise are fresh in every run.

    ``scored_on`` says which test records count: "all" of them; "half", where the other half is what acceptance looks
    at; or "seen", all of them although acceptance looked at them, which is how SA-DPSGD's paper scores itself and is
    not a fair score. The configuration's ``records`` are the first ones of the training set, and ``steps`` candidates;
    with published accounting they are accepted ones. Use ``training`` to make one.
    """

    config: RunConfig
    scored_on: ScoredOn = "all"
    is_plain: bool = False  # inputs are pixels in [0, 1], not standardised
    pretrained: Mapping[str, Any] | None = None  # a part with weights from public records: experiments.training

    def __post_init__(self) -> None:
        validate.one_of(("all", "half", "seen"), scored_on=self.scored_on)

    @property
    def seed(self) -> int:
        """The seed of the first weights, and of the halves of the test records."""
        return self.config.run.seed or 0

    @property
    def batch_size(self) -> float:
        """The expected number of records in a batch that is really drawn."""
        return self.config.privacy.simulated_batch_size or self.config.privacy.expected_batch_size or 0.0

    def to_json(self) -> dict[str, Any]:
        """The options that differ from the defaults, so that a new option changes no key."""
        config = self.config
        model, method, privacy = dict(config.model), dict(config.method), dict(config.privacy)
        method.pop("name", None)
        if privacy.get("delta") == _DELTA:
            del privacy["delta"]
        added = {"pretrained": self.pretrained, "is_plain": self.is_plain or None, "settings": method or None}
        return _plain(
            {
                "kind": "training",
                "data": config.data.name,
                "records": config.data.records,
                "network": [model.pop("network"), model],
                "method": config.method.name,
                "scored_on": None if self.scored_on == "all" else self.scored_on,
                **added,
                **privacy,
                **config.training,
                **config.run,
            }
        )


def training(
    *,
    data: str,
    network: tuple[str, Mapping[str, Any]],
    method: str,
    settings: Mapping[str, Any] = MappingProxyType({}),
    scored_on: ScoredOn = "all",
    is_plain: bool = False,
    pretrained: Mapping[str, Any] | None = None,
    delta: float = _DELTA,
    **options: Any,
) -> Training:
    """Make a training job of a data set, a network, a method with its settings, and options of ``fit``."""
    name, arguments = network
    config = RunConfig.of(
        data={"name": data}, model={"network": name, **arguments}, method={"name": method, **settings}
    )
    config = config.with_options(delta=delta, **options)
    return Training(config=config, scored_on=scored_on, is_plain=is_plain, pretrained=pretrained)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Whatever is no training run: a function of a preset's file, and its arguments. It returns a JSON object.

    One that takes times runs by itself, with no other job beside it.
    """

    function: str  # such as "adadp:time_of_a_step"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    takes_times: bool = False  # not among the words: it decides when the job is run, not what it gives

    def to_json(self) -> dict[str, Any]:
        return _plain({"kind": "measurement", "function": self.function, "arguments": dict(self.arguments)})

    def called(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        """What it gives, on a device."""
        module, _, name = self.function.partition(":")
        if not (module.isidentifier() and name.isidentifier()):
            raise InvalidValue("function", allowed="a file of experiments and a function in it", given=self.function)
        found = getattr(import_module(f"experiments.{module}"), name)  # of this package, whatever a file says
        result: dict[str, Any] = found(device=device, data_dir=data_dir, **self.arguments)
        return result


Job: TypeAlias = "Training | Measurement"


def key_of(job: Job) -> str:
    """Return the key that a job's outcome is stored by."""
    return key_of_words(job.to_json())


def key_of_words(words: Mapping[str, Any]) -> str:
    """Return the key of the JSON form of a job."""
    said = json.dumps(words, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(said.encode()).hexdigest()[:24]


def _plain(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None as JSON gives them back: tuples are lists, and 512.0 is 512."""
    given = {name: value for name, value in said.items() if value is not None}
    found: dict[str, Any] = json.loads(json.dumps(given, allow_nan=False, default=dict), parse_float=_shortest)
    return found


def _shortest(number: str) -> float | int:
    value = float(number)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


@dataclass(frozen=True, slots=True)
class Statistic:
    """A mean over runs; None without a run, and a spread with two or more."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation between runs."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


# What a cell may be: words, one number, a mean over runs, or nothing ("–").
Cell = str | float | int | Statistic | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column and how its numbers are written."""

    title: str
    kind: str = "text"  # "percent" (of shares in [0, 1]), "epsilon" (proven, rounded up), "number", "count"
    digits: int = 2


def columns(*specs: str) -> tuple[Column, ...]:
    """Columns from their titles, each with its kind and digits in brackets where it has numbers.

    >>> columns("method | ours [percent 1]")[1]
    Column(title='ours', kind='percent', digits=1)
    """
    parts = [re.fullmatch(r"(.*?)(?: ?\[(\w+)(?: (\d))?\])?", spec.strip()) for spec in " | ".join(specs).split(" | ")]
    return tuple(
        Column(title=part[1], kind=part[2] or "text", digits=2 if part[3] is None else int(part[3]))
        for part in parts
        if part is not None
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with its title; each row has as many cells as there are columns. ``notes`` stand below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that an experiment shows."""

    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()


def statistic(values: Iterable[float | None]) -> Statistic:
    """Return a statistic of the values that are not None."""
    return Statistic(tuple(value for value in values if value is not None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much of an experiment is run. A quick one takes minutes on a CPU and is labelled as such."""

    seeds: int | None = None  # otherwise as many as the experiment has by itself
    is_quick: bool = False

    def seed_range(self, usual: int, *, quick: int = 1) -> range:
        """The seeds to run: as many as are asked for, or as are usual for this size."""
        return range(self.seeds or (quick if self.is_quick else usual))


Outcome: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """The outcomes there are, by the keys of their jobs. ``requested`` gathers the jobs that were looked up."""

    by_key: Mapping[str, Outcome]
    requested: dict[str, Job] = field(default_factory=dict, compare=False)

    def of(self, job: Job) -> Outcome | None:
        """Return the outcome of a job, or None where it was not run or failed."""
        key = key_of(job)
        self.requested[key] = job
        return self.by_key.get(key)

    def of_all(self, jobs: Iterable[Job]) -> list[Outcome]:
        """Return the outcomes of those jobs that were run."""
        return [found for job in jobs if (found := self.of(job)) is not None]

    def statistic(self, jobs: Iterable[Job], name: str = "accuracy") -> Statistic:
        """Return a statistic of one number of the outcomes."""
        return statistic(found[name] for found in self.of_all(jobs))


def accuracy_after(outcome: Outcome, steps: int) -> float | None:
    """The accuracy when exactly so many candidates had been drawn; None if it was not evaluated then."""
    return next((float(row[2]) for row in outcome["trajectory"] if row[0] == steps), None)


def mean_curve(outcomes: Iterable[Outcome]) -> dict[int, float]:
    """The mean accuracy over runs, by the steps at which all of them were evaluated."""
    curves = [{int(row[0]): float(row[2]) for row in outcome["trajectory"]} for outcome in outcomes]
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    return {steps: statistics.fmean(curve[steps] for curve in curves) for steps in shared}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One table or figure. ``report`` draws it from whatever outcomes there are."""

    paper: str  # "sa-dpsgd", "tempered-sigmoids", "adadp", "tan"
    name: str  # "table1", "figure3"
    title: str
    about: str  # what the paper shows there, what is done here, and what differs and why, in a few sentences
    report: Callable[[Outcomes, Size], Report]

    def jobs(self, size: Size) -> list[Job]:
        """The jobs whose outcomes the report looks up: all with the first seed, before any with the second."""
        return [*_jobs(self, size)]


@cache
def _jobs(experiment: Experiment, size: Size) -> tuple[Job, ...]:
    outcomes = Outcomes({})
    experiment.report(outcomes, size)
    return tuple(sorted(outcomes.requested.values(), key=lambda job: getattr(job, "seed", 0)))


def experiment(paper: str, name: str, title: str) -> Callable[[Callable[[Outcomes, Size], Report]], Experiment]:
    """Make an experiment of a function that draws its report; the docstring says what it is about."""

    def made(report: Callable[[Outcomes, Size], Report]) -> Experiment:
        return Experiment(
            paper=paper, name=name, title=title, about=" ".join((report.__doc__ or "").split()), report=report
        )

    return made


# The file of each, and what it is.
PAPERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sa-dpsgd": ("sa_dpsgd", "Fu et al. 2022: SA-DPSGD, DPSGD with simulated annealing"),
        "tempered-sigmoids": ("tempered_sigmoids", "Papernot et al. 2021: tempered sigmoid activations"),
        "adadp": ("adadp", "Xu et al. 2020: ADADP, adaptive clipping and noise"),
        "tan": ("tan", "Sander et al. 2023: TAN, total amount of noise"),
        "methods": ("side_by_side", "No paper: the methods of all of them beside one another, at one proven ε"),
    }
)


def experiments(paper: str) -> tuple[Experiment, ...]:
    """The tables and figures of a paper."""
    module, _ = PAPERS[validate.one_of(PAPERS, paper=paper)]
    found: tuple[Experiment, ...] = import_module(f"experiments.{module}").EXPERIMENTS
    return found


def find_experiment(paper: str, name: str) -> Experiment:
    """One of them."""
    named = {each.name: each for each in experiments(paper)}
    return named[validate.one_of(named, name=name)]
