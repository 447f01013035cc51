"""The parts of an experiment: jobs, outcomes, tables, and the list of papers.

- ``Training``, ``Measurement``: a job. Its key is a hash of its settings, so tables share jobs and can be continued.
- ``Outcomes``: the results of jobs. ``Statistic``, ``Table``, ``Report``: what an experiment shows
- ``experiment``: turns a function that draws a report from outcomes into an ``Experiment``
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
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from lehr import validate
from lehr.config import RunConfig
from lehr.errors import InvalidValue
from lehr.reports.chart import Chart

ScoredOn: TypeAlias = Literal["all", "half", "seen"]
_DELTA = 1e-5  # the default


@dataclass(frozen=True, kw_only=True)
class Training:
    """One run: its configuration, and what an experiment adds. Sampling and noise are fresh in every run.

    ``scored_on`` says which test records count: "all" of them; "half", where acceptance uses the other half; or
    "seen", all of them although acceptance used them, which is how SA-DPSGD's paper scores itself and is not a fair
    score. The configuration's ``records`` are the first ones of the training set, and ``steps`` are candidates; with
    published accounting they are accepted ones. Use ``training`` to make one.
    """

    config: RunConfig
    scored_on: ScoredOn = "all"
    is_plain: bool = False  # inputs are pixels in [0, 1], not standardised
    pretrained: Mapping[str, Any] | None = None  # arguments of experiments.training.load_pretrained
    prior: Mapping[str, Any] | None = None  # settings of a prior that the weights start from

    def __post_init__(self) -> None:
        validate.one_of(("all", "half", "seen"), scored_on=self.scored_on)

    @property
    def seed(self) -> int:
        """The seed of the initial weights, and of the halves of the test records."""
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
        return _canonical(
            {
                "kind": "training",
                "data": config.data.name,
                "records": config.data.records,
                "network": [model.pop("network"), model],
                "method": config.method.name,
                "settings": method or None,
                "scored_on": None if self.scored_on == "all" else self.scored_on,
                "is_plain": self.is_plain or None,
                "pretrained": self.pretrained,
                "prior": self.prior,
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
    """A training job from a data set, a network, a method with its settings, and options of ``fit``."""
    name, arguments = network
    config = RunConfig.of(
        data={"name": data}, model={"network": name, **arguments}, method={"name": method, **settings}
    )
    config = config.with_options(delta=delta, **options)
    return Training(config=config, scored_on=scored_on, is_plain=is_plain, pretrained=pretrained)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Any other job: a function of this package and its arguments. It returns a JSON object."""

    function: str  # such as "adadp:times_of_steps"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_timing: bool = False  # runs alone, with no other job beside it; not part of the key

    def to_json(self) -> dict[str, Any]:
        return _canonical({"kind": "measurement", "function": self.function, "arguments": dict(self.arguments)})

    def run(self, *, device: str, data_dir: str | None) -> dict[str, Any]:
        """Call the function."""
        module, _, name = self.function.partition(":")
        if not (module.isidentifier() and name.isidentifier()):
            raise InvalidValue("function", allowed="a file of experiments and a function in it", given=self.function)
        function = getattr(import_module(f"experiments.{module}"), name)  # of this package, whatever a file says
        result: dict[str, Any] = function(device=device, data_dir=data_dir, **self.arguments)
        return result


Job: TypeAlias = "Training | Measurement"


def key_of(job: Job | Mapping[str, Any]) -> str:
    """The key of a job, or of its JSON form, that its outcome is stored by."""
    shape = job if isinstance(job, Mapping) else job.to_json()
    return hashlib.sha256(json.dumps(shape, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:24]


def _canonical(shape: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not None, as JSON reads them back: tuples are lists, and 512.0 is 512."""

    def number(text: str) -> float | int:
        value = float(text)
        return int(value) if value.is_integer() and abs(value) < 2**53 else value

    present = {name: value for name, value in shape.items() if value is not None}
    result: dict[str, Any] = json.loads(json.dumps(present, allow_nan=False, default=dict), parse_float=number)
    return result


# --- Reports --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Statistic:
    """Values of several runs."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation between runs; None for fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def statistic(values: Iterable[float | None]) -> Statistic:
    """A statistic of the values that are not None."""
    return Statistic(tuple(value for value in values if value is not None))


Cell: TypeAlias = str | float | int | Statistic | None  # None is shown as "–"
Row: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column and the format of its numbers."""

    title: str
    kind: str = "text"  # "percent" (of shares in [0, 1]), "epsilon" (proven, rounded up), "number", "count"
    digits: int = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table with its title; each row has as many cells as there are columns. ``notes`` stand below it."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()


def table(title: str, columns: str | Iterable[str], rows: Iterable[Row], *notes: str) -> Table:
    """A table whose columns are titles, divided by "|", with the kind and digits of numbers in brackets.

    >>> table("Accuracy", "method | ours [percent 1]", [("DPSGD", 0.98)]).columns[1]
    Column(title='ours', kind='percent', digits=1)
    """
    specs = columns if isinstance(columns, str) else " | ".join(columns)
    parts = [re.fullmatch(r"(.*?)(?: ?\[(\w+)(?: (\d))?\])?", spec.strip()) for spec in specs.split(" | ")]
    made = (
        Column(title=part[1], kind=part[2] or "text", digits=2 if part[3] is None else int(part[3]))
        for part in parts
        if part is not None
    )
    return Table(title=title, columns=tuple(made), rows=tuple(rows), notes=notes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All that an experiment shows."""

    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()


chart = partial(Chart, element="chart")  # a page numbers its charts itself


def report(*parts: Table | Chart | str) -> Report:
    """A report of tables, charts and notes. Charts without lines are left out."""
    return Report(
        tables=tuple(part for part in parts if isinstance(part, Table)),
        charts=tuple(part for part in parts if isinstance(part, Chart) and any(len(line.x) for line in part.lines)),
        notes=tuple(part for part in parts if isinstance(part, str)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """How much of an experiment is run. A quick one takes minutes on a CPU and is labelled as such."""

    seeds: int | None = None  # by default as many as the experiment has
    is_quick: bool = False

    def seed_range(self, usual: int, *, quick: int = 1) -> range:
        """The seeds to run."""
        return range(self.seeds or (quick if self.is_quick else usual))


Outcome: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Outcomes:
    """Outcomes by the keys of their jobs. ``requested`` collects the jobs that were looked up."""

    by_key: Mapping[str, Outcome]
    requested: dict[str, Job] = field(default_factory=dict, compare=False)

    def get(self, job: Job) -> Outcome | None:
        """The outcome of a job, or None where it was not run or failed."""
        key = key_of(job)
        self.requested[key] = job
        return self.by_key.get(key)

    def get_all(self, jobs: Iterable[Job]) -> list[Outcome]:
        """The outcomes of those jobs that were run."""
        return [outcome for job in jobs if (outcome := self.get(job)) is not None]

    def statistic(self, jobs: Iterable[Job], name: str = "accuracy") -> Statistic:
        """A statistic of one number of the outcomes."""
        return statistic(outcome[name] for outcome in self.get_all(jobs))


def accuracy_after(outcome: Outcome, steps: int) -> float | None:
    """The accuracy after exactly so many candidates; None if it was not evaluated then."""
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
    about: str  # what the paper shows, what is done here, and what differs and why
    report: Callable[[Outcomes, Size], Report]

    def jobs(self, size: Size) -> list[Job]:
        """The jobs whose outcomes the report looks up: all with the first seed before any with the second."""
        return [*_jobs(self, size)]


@cache
def _jobs(experiment: Experiment, size: Size) -> tuple[Job, ...]:
    outcomes = Outcomes({})
    experiment.report(outcomes, size)
    return tuple(sorted(outcomes.requested.values(), key=lambda job: getattr(job, "seed", 0)))


def experiment(paper: str, name: str, title: str) -> Callable[[Callable[[Outcomes, Size], Report]], Experiment]:
    """Turn a function that draws a report into an experiment; its docstring says what the experiment is about."""

    def make(report: Callable[[Outcomes, Size], Report]) -> Experiment:
        about = " ".join((report.__doc__ or "").split())
        return Experiment(paper=paper, name=name, title=title, about=about, report=report)

    return make


# The module and the title of each.
PAPERS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sa-dpsgd": ("sa_dpsgd", "Fu et al. 2022: SA-DPSGD, DPSGD with simulated annealing"),
        "tempered-sigmoids": ("tempered_sigmoids", "Papernot et al. 2021: tempered sigmoid activations"),
        "adadp": ("adadp", "Xu et al. 2020: ADADP, adaptive clipping and noise"),
        "tan": ("tan", "Sander et al. 2023: TAN, total amount of noise"),
        "recipes": ("recipes", "No paper: what the recipes reach at a proven ε"),
        "mechanisms": ("mechanisms", "No paper: units, samplers and noises beside DP-SGD at one proven ε"),
        "methods": ("side_by_side", "No paper: the methods of all of them beside one another, at one proven ε"),
    }
)


def experiments(paper: str) -> tuple[Experiment, ...]:
    """The tables and figures of a paper."""
    module, _ = PAPERS[validate.one_of(PAPERS, paper=paper)]
    every: tuple[Experiment, ...] = import_module(f"experiments.{module}").EXPERIMENTS
    return every


def find_experiment(paper: str, name: str) -> Experiment:
    """The table or figure of this name."""
    by_name = {each.name: each for each in experiments(paper)}
    return by_name[validate.one_of(by_name, name=name)]
