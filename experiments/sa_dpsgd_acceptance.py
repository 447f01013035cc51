"""Does acceptance pay? SA-DPSGD against DPSGD at one proven ε, which its paper does not ask; and the search before.

Both are charged for every candidate. Acceptance uses a random half of the test records, both are scored on the other
half, and runs of one seed share their initial weights and their halves. Settings were chosen on seeds 100 and 101, and
are reported on others. All settings are in ``presets/sa_dpsgd_acceptance.toml``.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from scipy.stats import ttest_1samp

from experiments.experiment import (
    Experiment,
    Outcomes,
    Report,
    Row,
    Size,
    Table,
    Training,
    experiment,
    report,
    statistic,
    table,
)
from experiments.sa_dpsgd_runs import DIGITS, FASHION_MNIST, MNIST, Setting, proven_runs, titled
from experiments.settings import read_presets

_SEARCH_SEEDS = (100, 101)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Settings of DPSGD, or of SA-DPSGD where ``annealed``; a setting that is not given is the method's own."""

    rate: float
    annealed: bool = False
    temperature: float | None = None
    threshold: int | None = None
    salvage: bool = False
    step_scales: tuple[float, ...] = ()
    falls_to: float | None = None  # the last learning rate, as a share of the first
    decay: float | None = None  # of the average of weights
    is_once: bool = False  # with the first seed of the search only

    @property
    def title(self) -> str:
        parts = {
            f"{'SA-DPSGD' if self.annealed else 'DPSGD'}, rate {self.rate:g}": True,
            f"falling to {self.falls_to or 0:g} of it": self.falls_to,
            f"at most {self.threshold} rejection{'s' if self.threshold != 1 else ''} in a row": self.threshold,
            f"Q0 {self.temperature or 0:g}": self.temperature,
            "salvage": self.salvage,
            f"{len(self.step_scales)} step sizes": self.step_scales,
            f"weights averaged ({self.decay or 0:g})": self.decay,
        }
        return ", ".join(part for part, is_set in parts.items() if is_set)

    def runs(self, setting: Setting, seeds: Iterable[int]) -> list[Training]:
        """One job for each seed."""
        schedule = {"kind": "linear-decay", "steps": setting.proven_steps, "first": 1.0, "last": self.falls_to}
        settings = {
            "learning_rate": self.rate,
            "initial_inverse_temperature": self.temperature,
            "rejection_threshold": self.threshold,
            "salvage": self.salvage or None,
            "step_scales": [*self.step_scales] or None,
            "schedule": schedule if self.falls_to is not None else None,
        }
        return proven_runs(
            setting,
            "sa-dpsgd" if self.annealed else "dpsgd",
            seeds,
            {name: value for name, value in settings.items() if value is not None},
            averaging=None if self.decay is None else {"kind": "exponential", "decay": self.decay},
        )

    def row(self, setting: Setting, outcomes: Outcomes, seeds: Iterable[int]) -> Row:
        """The title, the accuracy and the share of accepted candidates."""
        found = outcomes.get_all(self.runs(setting, seeds))
        accepted = statistic(outcome["accepted"] / outcome["candidates"] for outcome in found)
        return self.title, statistic(outcome["accuracy"] for outcome in found), accepted


def _trials(kind: str) -> dict[Setting, list[Trial]]:
    settings = {setting.data: setting for setting in (MNIST, FASHION_MNIST, DIGITS)}
    presets: dict[str, list[dict[str, Any]]] = read_presets("sa_dpsgd_acceptance")[kind]
    return {
        settings[data]: [Trial(**{**each, "step_scales": tuple(each.get("step_scales", ()))}) for each in several]
        for data, several in presets.items()
    }


REPORTED, SEARCHED, QUICK = map(_trials, ("reported", "searched", "quick"))


@experiment("sa-dpsgd", "acceptance", "Does acceptance pay at one proven ε?")
def acceptance(outcomes: Outcomes, size: Size) -> Report:
    """Not in the paper. DPSGD and SA-DPSGD both have a proven ε of 3, with every candidate charged. Acceptance looks
    at a random half of the test records, which then count as public, and both are scored on the other half. Settings
    were chosen on other seeds (acceptance-search).
    """
    reported = QUICK if size.is_quick else REPORTED
    return report(*(_acceptance_of(setting, several, outcomes, size) for setting, several in reported.items()))


def _acceptance_of(setting: Setting, several: list[Trial], outcomes: Outcomes, size: Size) -> Table:
    seeds = range(size.seeds or setting.seeds)

    def by_seed(trial: Trial) -> dict[int, float]:
        found = {run.seed: outcomes.get(run) for run in trial.runs(setting, seeds)}
        return {seed: outcome["accuracy"] for seed, outcome in found.items() if outcome is not None}

    def against(trial: Trial, base: Trial) -> str | None:
        return None if trial is base else _difference(by_seed(trial), by_seed(base))

    return table(
        titled(setting, size, f"acceptance at a proven ε of 3, {setting.proven_steps:,} candidates each"),
        "method | accuracy [percent] | accepted [percent 0] | against DPSGD, paper's rate | against DPSGD, chosen",
        ((*each.row(setting, outcomes, seeds), *(against(each, base) for base in several[:2])) for each in several),
        "Differences are in points, means over pairs of one seed; p is that of a paired t-test, and nothing is "
        "corrected for how many rows there are.",
    )


def _difference(mine: dict[int, float], theirs: dict[int, float]) -> str | None:
    """The mean difference in points, and the p-value of a paired t-test; None without two pairs."""
    differences = [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]
    if len(differences) < 2:
        return None
    p_value = float(differences[0] == 0)  # equal differences leave no doubt, unless they are zero
    if len(set(differences)) > 1:
        p_value = float(ttest_1samp(differences, 0.0).pvalue)
    return f"{100 * statistics.fmean(differences):+.2f}, p {p_value:.2g}".replace("-", "−", 1)


@experiment("sa-dpsgd", "acceptance-search", "The settings that were tried before")
def search(outcomes: Outcomes, size: Size) -> Report:
    """Not in the paper. Rates, their schedules, averages of the weights, temperatures, thresholds, salvage of rejected
    gradients and several step sizes, at a proven ε of 3, on seeds that nothing is reported on.
    """

    def seeds(trial: Trial) -> tuple[int, ...]:
        return _SEARCH_SEEDS[: 1 if trial.is_once or size.is_quick else size.seeds]

    return report(
        *(
            table(
                titled(setting, size, f"settings tried at a proven ε of 3, {setting.proven_steps:,} candidates each"),
                "method | accuracy [percent] | accepted [percent 0]",
                (trial.row(setting, outcomes, seeds(trial)) for trial in several),
                "One or two seeds each, which are not those that are reported: a hint, and no result.",
            )
            for setting, several in (QUICK if size.is_quick else SEARCHED).items()
        )
    )


EXPERIMENTS: tuple[Experiment, ...] = (acceptance, search)
