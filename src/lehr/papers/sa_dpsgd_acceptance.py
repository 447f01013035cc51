"""Does acceptance pay? SA-DPSGD against DPSGD at one proven ε, which its paper does not ask; and the search before.

Both are charged for every candidate. Acceptance looks at a random half of the test records, both are scored on the
other half, and runs of one seed share their first weights and their halves. Settings were chosen on seeds 100 and 101,
and are reported on others.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, Training
from lehr.papers.sa_dpsgd_runs import DIGITS, FASHION_MNIST, MNIST, Setting, proven_run, seeds_of, titled
from lehr.papers.table import Cell, Column, Measured, Shown, Table, measured

_SEARCH_SEEDS = (100, 101)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """Settings of DPSGD, or of SA-DPSGD where ``annealed``; what is not given is the method's own."""

    rate: float
    annealed: bool = False
    temperature: float | None = None
    threshold: int | None = None
    salvage: bool = False
    step_scales: tuple[float, ...] = ()
    falls_to: float | None = None  # of the rate, at the end
    decay: float | None = None  # of the average of weights
    is_once: bool = False  # tried with the first seed of the search alone

    @property
    def title(self) -> str:
        """In words."""
        return ", ".join([f"{'SA-DPSGD' if self.annealed else 'DPSGD'}, rate {self.rate:g}", *self._parts()])

    def _parts(self) -> Iterator[str]:
        if self.falls_to is not None:
            yield f"falling to {self.falls_to:g} of it"
        if self.threshold is not None:
            yield f"at most {self.threshold} rejection{'s' if self.threshold > 1 else ''} in a row"
        if self.temperature is not None:
            yield f"Q0 {self.temperature:g}"
        if self.salvage:
            yield "salvage"
        if self.step_scales:
            yield f"{len(self.step_scales)} step sizes"
        if self.decay is not None:
            yield f"weights averaged ({self.decay:g})"

    def run(self, setting: Setting, seed: int) -> Training:
        """The job."""
        usual = proven_run(setting, "sa-dpsgd" if self.annealed else "dpsgd", seed)
        averaging = None if self.decay is None else {"kind": "exponential", "decay": self.decay}
        return replace(usual, settings=self._settings(setting), averaging=averaging)

    def _settings(self, setting: Setting) -> dict[str, Any]:
        falling = {"kind": "linear-decay", "steps": setting.proven_steps, "first": 1.0, "last": self.falls_to}
        said = {
            "learning_rate": self.rate,
            "initial_inverse_temperature": self.temperature,
            "rejection_threshold": self.threshold,
            "salvage": self.salvage or None,
            "step_scales": [*self.step_scales] or None,
            "schedule": falling if self.falls_to is not None else None,
        }
        return {name: value for name, value in said.items() if value is not None}


def _dpsgd(rate: float, **settings: Any) -> Tried:
    return Tried(rate=rate, **settings)


def _annealed(rate: float, **settings: Any) -> Tried:
    return Tried(rate=rate, annealed=True, **settings)


# The first two of each are what the others are compared with: the paper's rate, and what was chosen for DPSGD.
_REPORTED = (
    (
        MNIST,
        (
            _dpsgd(0.5),
            _dpsgd(0.7, falls_to=0.1),
            _annealed(0.5),
            _annealed(0.5, threshold=2, salvage=True),
            _annealed(0.7, falls_to=0.1, temperature=0.1),
        ),
    ),
    (
        FASHION_MNIST,
        (
            _dpsgd(4.0),
            _dpsgd(4.0, falls_to=0.1),
            _annealed(4.0),
            _annealed(4.0, threshold=2),
            _annealed(2.0, temperature=0.1),
            _annealed(4.0, falls_to=0.1, temperature=0.01),
        ),
    ),
)
_THREE, _FIVE = (0.5, 1.0, 2.0), (0.25, 0.5, 1.0, 2.0, 4.0)
_SEARCHED = (
    (
        MNIST,
        (
            _dpsgd(0.25),
            _dpsgd(0.25, falls_to=0.1),
            _dpsgd(0.35, falls_to=0.1),
            _dpsgd(0.35, decay=0.998),
            _dpsgd(0.5),
            _dpsgd(0.5, falls_to=0.01),
            _dpsgd(0.5, falls_to=0.1),
            _dpsgd(0.5, falls_to=0.1, decay=0.998),
            _dpsgd(0.5, decay=0.998),
            _dpsgd(0.7, falls_to=0.1),
            _dpsgd(0.7, decay=0.998),
            _dpsgd(1.0, is_once=True),
            _dpsgd(1.0, falls_to=0.1, is_once=True),
            _dpsgd(2.0, is_once=True),
            _dpsgd(2.0, falls_to=0.1, is_once=True),
            _annealed(0.25, threshold=2),
            _annealed(0.5, temperature=10.0, is_once=True),
            _annealed(0.5, temperature=10.0, step_scales=_FIVE, is_once=True),
            _annealed(0.5, temperature=0.1, is_once=True),
            _annealed(0.5, temperature=0.1, step_scales=_THREE, is_once=True),
            _annealed(0.5, temperature=1.0, is_once=True),
            _annealed(0.5, threshold=1),
            _annealed(0.5, threshold=1, decay=0.998),
            _annealed(0.5, threshold=2),
            _annealed(0.5, threshold=2, salvage=True),
            _annealed(0.5, threshold=2, salvage=True, decay=0.998),
            _annealed(0.5, threshold=4, salvage=True),
            _annealed(0.5, temperature=0.1, falls_to=0.1),
            _annealed(0.5, threshold=2, falls_to=0.1),
            _annealed(0.7, threshold=2, salvage=True),
            _annealed(1.0, temperature=10.0, is_once=True),
            _annealed(1.0, temperature=0.1, is_once=True),
            _annealed(1.0, temperature=1.0, is_once=True),
            _annealed(1.0, temperature=1.0, salvage=True, is_once=True),
            _annealed(1.0, threshold=2, is_once=True),
            _annealed(1.0, temperature=0.1, falls_to=0.1, is_once=True),
            _annealed(1.0, temperature=0.1, step_scales=_THREE, falls_to=0.1, is_once=True),
            _annealed(1.0, temperature=1.0, falls_to=0.1, is_once=True),
            _annealed(1.0, temperature=10.0, salvage=True, is_once=True),
            _annealed(2.0, temperature=10.0, is_once=True),
            _annealed(2.0, temperature=0.1, is_once=True),
            _annealed(2.0, temperature=1.0, is_once=True),
            _annealed(2.0, temperature=1.0, falls_to=0.1, is_once=True),
            _annealed(2.0, temperature=10.0, salvage=True, is_once=True),
        ),
    ),
    (
        FASHION_MNIST,
        (
            _dpsgd(1.0),
            _dpsgd(1.0, falls_to=0.1),
            _dpsgd(2.0),
            _dpsgd(2.0, falls_to=0.1),
            _dpsgd(3.0, falls_to=0.1),
            _dpsgd(4.0),
            _dpsgd(4.0, falls_to=0.1),
            _dpsgd(4.0, decay=0.99),
            _dpsgd(4.0, decay=0.998),
            _dpsgd(5.5, falls_to=0.1),
            _dpsgd(5.5, falls_to=0.1, decay=0.99),
            _dpsgd(8.0),
            _dpsgd(8.0, falls_to=0.1),
            _dpsgd(8.0, decay=0.998),
            _annealed(1.0, threshold=2),
            _annealed(2.0, temperature=0.1),
            _annealed(2.0, temperature=0.1, threshold=2, step_scales=_THREE),
            _annealed(2.0, threshold=1),
            _annealed(2.0, threshold=2),
            _annealed(2.0, threshold=2, salvage=True),
            _annealed(2.0, threshold=2, falls_to=0.1),
            _annealed(4.0, temperature=10.0),
            _annealed(4.0, temperature=10.0, step_scales=_FIVE),
            _annealed(4.0, temperature=0.1),
            _annealed(4.0, temperature=0.1, step_scales=_THREE),
            _annealed(4.0, temperature=0.1, step_scales=_THREE, decay=0.99),
            _annealed(4.0, temperature=0.1, decay=0.99),
            _annealed(4.0, temperature=1.0),
            _annealed(4.0, threshold=1),
            _annealed(4.0, threshold=2),
            _annealed(4.0, threshold=2, salvage=True, decay=0.99),
            _annealed(4.0, threshold=2, decay=0.99),
            _annealed(4.0, temperature=0.01, falls_to=0.1),
            _annealed(4.0, temperature=0.1, falls_to=0.1),
            _annealed(4.0, threshold=1, falls_to=0.1),
            _annealed(4.0, threshold=2, falls_to=0.1),
            _annealed(4.0, threshold=2, salvage=True, falls_to=0.1),
            _annealed(5.5, temperature=0.03, falls_to=0.1),
            _annealed(8.0, temperature=10.0),
            _annealed(8.0, temperature=0.1),
            _annealed(8.0, temperature=1.0),
            _annealed(8.0, temperature=1.0, salvage=True),
            _annealed(8.0, threshold=2),
            _annealed(8.0, threshold=2, salvage=True, decay=0.99),
            _annealed(8.0, temperature=0.1, falls_to=0.1),
            _annealed(8.0, temperature=0.1, step_scales=_THREE, falls_to=0.1),
            _annealed(8.0, temperature=1.0, falls_to=0.1),
            _annealed(8.0, temperature=10.0, salvage=True),
            _annealed(16.0, temperature=10.0),
            _annealed(16.0, temperature=0.1),
            _annealed(16.0, temperature=1.0),
            _annealed(16.0, temperature=1.0, falls_to=0.1),
            _annealed(16.0, temperature=10.0, salvage=True),
        ),
    ),
)
_QUICK = ((DIGITS, (_dpsgd(0.5), _dpsgd(0.7, falls_to=0.1), _annealed(0.5), _annealed(0.5, threshold=2))),)

Compared = tuple[tuple[Setting, tuple[Tried, ...]], ...]


# Acceptance: what was chosen, on seeds that were not searched on.


def _reported(size: Size) -> Compared:
    return _QUICK if size.is_quick else _REPORTED


def _acceptance_jobs(size: Size) -> list[Job]:
    return [
        tried.run(setting, seed)
        for setting, several in _reported(size)
        for seed in seeds_of(setting, size)
        for tried in several
    ]


def _acceptance(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=tuple(_acceptance_of(setting, several, outcomes, size) for setting, several in _reported(size)))


def _acceptance_of(setting: Setting, several: tuple[Tried, ...], outcomes: Outcomes, size: Size) -> Table:
    by_seed = {tried: _accuracies(tried, setting, outcomes, size) for tried in several}
    usual, chosen = several[0], several[1]
    return Table(
        title=titled(setting, size, f"acceptance at a proven ε of 3, {setting.proven_steps:,} candidates each"),
        columns=(
            Column(title="method"),
            Column(title="accuracy", kind="percent"),
            Column(title="accepted", kind="percent", digits=0),
            Column(title="against DPSGD, paper's rate"),
            Column(title="against DPSGD, chosen"),
        ),
        rows=tuple(
            (
                tried.title,
                measured([*by_seed[tried].values()]),
                _shares(tried, setting, outcomes, size),
                *(_against(by_seed[tried], by_seed[base]) if tried is not base else None for base in (usual, chosen)),
            )
            for tried in several
        ),
        notes=(
            "Differences are in points, means over pairs of one seed; p is that of a paired t-test, and nothing is "
            "corrected for how many rows there are.",
        ),
    )


def _accuracies(tried: Tried, setting: Setting, outcomes: Outcomes, size: Size) -> dict[int, float]:
    found = {seed: outcomes.of(tried.run(setting, seed)) for seed in seeds_of(setting, size)}
    return {seed: outcome["accuracy"] for seed, outcome in found.items() if outcome is not None}


def _shares(tried: Tried, setting: Setting, outcomes: Outcomes, size: Size) -> Measured:
    found = outcomes.of_all([tried.run(setting, seed) for seed in seeds_of(setting, size)])
    return measured([outcome["accepted"] / outcome["candidates"] for outcome in found])


def _against(mine: dict[int, float], theirs: dict[int, float]) -> str | None:
    """The mean difference in points, and how likely one as large is by chance; nothing without two pairs."""
    differences = [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]
    if len(differences) < 2:
        return None
    mean = 100 * statistics.fmean(differences)
    return f"{mean:+.2f}, p {_p_value(differences):.2g}".replace("-", "−", 1)


def _p_value(differences: list[float]) -> float:
    """Of a paired t-test. Differences that are all the same leave no doubt, unless they are zero."""
    from scipy.stats import ttest_1samp

    if len(set(differences)) == 1:
        return 1.0 if differences[0] == 0 else 0.0
    return float(ttest_1samp(differences, 0.0).pvalue)


# The search behind it.


def _searched(size: Size) -> Compared:
    return _QUICK if size.is_quick else _SEARCHED


def _search_seeds(tried: Tried, size: Size) -> tuple[int, ...]:
    wanted = len(_SEARCH_SEEDS) if size.seeds is None else size.seeds
    return _SEARCH_SEEDS[: 1 if tried.is_once or size.is_quick else wanted]


def _search_jobs(size: Size) -> list[Job]:
    return [
        tried.run(setting, seed)
        for setting, several in _searched(size)
        for tried in several
        for seed in _search_seeds(tried, size)
    ]


def _search(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=tuple(_search_of(setting, several, outcomes, size) for setting, several in _searched(size)))


def _search_of(setting: Setting, several: tuple[Tried, ...], outcomes: Outcomes, size: Size) -> Table:
    def row(tried: Tried) -> tuple[Cell, ...]:
        found = outcomes.of_all([tried.run(setting, seed) for seed in _search_seeds(tried, size)])
        return (
            tried.title,
            measured([outcome["accuracy"] for outcome in found]),
            measured([outcome["accepted"] / outcome["candidates"] for outcome in found]),
        )

    return Table(
        title=titled(setting, size, f"settings tried at a proven ε of 3, {setting.proven_steps:,} candidates each"),
        columns=(
            Column(title="method"),
            Column(title="accuracy", kind="percent"),
            Column(title="accepted", kind="percent", digits=0),
        ),
        rows=tuple(row(tried) for tried in several),
        notes=("One or two seeds each, which are not those that are reported: a hint, and no result.",),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper="sa-dpsgd",
        name="acceptance",
        title="Does acceptance pay at one proven ε?",
        about=(
            "Not in the paper. DPSGD and SA-DPSGD both have a proven ε of 3, with every candidate charged. Acceptance "
            "looks at a random half of the test records, which then count as public, and both are scored on the other "
            "half. Settings were chosen on other seeds (acceptance-search)."
        ),
        jobs=_acceptance_jobs,
        shown=_acceptance,
    ),
    Experiment(
        paper="sa-dpsgd",
        name="acceptance-search",
        title="The settings that were tried before",
        about=(
            "Not in the paper. Rates, their schedules, averages of the weights, temperatures, thresholds, salvage of "
            "rejected gradients and several step sizes, at a proven ε of 3, on seeds that nothing is reported on."
        ),
        jobs=_search_jobs,
        shown=_search,
    ),
)
