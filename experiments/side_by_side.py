"""The methods beside one another, each with what is proven for it: for whoever must decide which one to use.

No run is made for it alone: it reads those of the papers' own tables, at the last look within one proven ε.
"""

from __future__ import annotations

from collections.abc import Sequence

from experiments import adadp_accuracy, sa_dpsgd_runs, tempered_sigmoids_runs
from experiments.adadp_accuracy import PROVEN
from experiments.experiment import (
    Cell,
    Outcomes,
    Report,
    Size,
    Statistic,
    Table,
    accuracy_after,
    columns,
    experiment,
    statistic,
)
from experiments.sa_dpsgd_runs import AUTO_S, DIGITS, FASHION_MNIST, MNIST, RELU, TANH, Scheme, Setting, proven_epsilon

_STEPS_ON_COMPONENTS = 6_000

Part = tuple[Statistic, float | None]  # accuracies, and the ε that is proven for them


@experiment("methods", "side-by-side", "What the methods reach at what is proven for them")
def side_by_side(outcomes: Outcomes, size: Size) -> Report:
    """The runs of the papers' tables, read off at one proven ε instead of at each paper's own. Nothing is run for this
    table alone.
    """
    return Report(tables=(_images_table(outcomes, size), _components_table(outcomes, size)))


def _images_table(outcomes: Outcomes, size: Size) -> Table:
    settings = (DIGITS,) if size.is_quick else (MNIST, FASHION_MNIST)
    schemes = ((RELU, "nothing"), (TANH, "nothing"), (AUTO_S, "nothing; no clip norm to choose"))
    pairs = (
        ("dpsgd", "DPSGD, tanh, on half of the test records", "nothing"),
        ("sa-dpsgd", "SA-DPSGD, tanh, on the same half", "public records like the private ones"),
    )
    tempered = [_of_tempered(setting, outcomes, size) for setting in settings]
    return Table(
        title=f"{_quick(size)}Convolutional network: accuracy within a proven ε of 3",
        columns=columns(
            "method",
            *(f"{setting.title} [percent] | proven ε, {setting.title} [epsilon]" for setting in settings),
            "needs besides",
        ),
        rows=(
            *(
                _row(scheme.title, [_of_scheme(setting, scheme, outcomes, size) for setting in settings], needs)
                for scheme, needs in schemes
            ),
            _row("DPSGD, tempered sigmoid, other batch and steps", tempered, "nothing; a triplet from public data"),
            *(
                _row(title, [_of_proven(setting, method, outcomes, size) for setting in settings], needs)
                for method, title, needs in pairs
            ),
        ),
        notes=(
            "Settings are those of SA-DPSGD's paper and of the tempered sigmoids' tables. The last two rows are scored "
            "on the same half of the test records, and are to be compared with one another.",
        ),
    )


def _quick(size: Size) -> str:
    return "Quick, on small data. " if size.is_quick else ""


def _row(title: str, parts: Sequence[Part], needs: str) -> tuple[Cell, ...]:
    return (title, *(cell for part in parts for cell in part), needs)


def _of_scheme(setting: Setting, scheme: Scheme, outcomes: Outcomes, size: Size) -> Part:
    """At the last evaluation within the candidates that are proven to cost at most 3."""
    end = setting.last_step if scheme.goes_on else setting.steps
    steps = min(setting.proven_steps // setting.evaluate_every * setting.evaluate_every, end)
    found = outcomes.of_all(sa_dpsgd_runs.runs_of(setting, scheme, size))
    return statistic(accuracy_after(outcome, steps) for outcome in found), proven_epsilon(setting, steps)


def _of_proven(setting: Setting, method: str, outcomes: Outcomes, size: Size) -> Part:
    runs = sa_dpsgd_runs.proven_runs(setting, method, range(size.seeds or setting.seeds))
    return outcomes.statistic(runs), proven_epsilon(setting, setting.proven_steps)


def _of_tempered(setting: Setting, outcomes: Outcomes, size: Size) -> Part:
    [own] = [each for each in tempered_sigmoids_runs.settings_of(size) if each.data == setting.data]
    found = outcomes.of_all(tempered_sigmoids_runs.private_runs(own, tempered_sigmoids_runs.TEMPERED, size))
    epsilons = [outcome["epsilon_proven"] for outcome in found]
    return statistic(outcome["accuracy"] for outcome in found), max(epsilons, default=None)


def _components_table(outcomes: Outcomes, size: Size) -> Table:
    table = adadp_accuracy.QUICK if size.is_quick else adadp_accuracy.MNIST
    steps = min(_STEPS_ON_COMPONENTS, *(variant.steps for variant in table.variants))
    epsilon, seeds = table.setting.epsilon(steps, accountant=PROVEN), range(size.seeds or adadp_accuracy.SEEDS)
    return Table(
        title=f"{_quick(size)}Principal components and one layer: accuracy after {steps:,} steps",
        columns=columns(f"method | {table.setting.title} [percent] | proven ε [epsilon]"),
        rows=tuple(
            (
                variant.name,
                statistic(accuracy_after(run, steps) for run in outcomes.of_all(table.runs(variant, seeds))),
                epsilon if variant.is_proven else "nothing proven",
            )
            for variant in table.variants
        ),
        notes=(
            "δ is 1e-4 here, and ε includes the private PCA. "
            "Rows that name a learning rate use ours; the others use the paper's.",
        ),
    )


EXPERIMENTS = (side_by_side,)
