"""The methods beside one another, each with what is proven for it: for whoever must decide which one to use.

No run is made for it alone: it reads those of the papers' own tables, at the last evaluation within one proven ε.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from experiments import adadp_accuracy, adadp_runs, sa_dpsgd_runs, tempered_sigmoids_runs
from experiments.experiment import (
    Outcomes,
    Report,
    Row,
    Size,
    Statistic,
    Table,
    accuracy_after,
    experiment,
    report,
    statistic,
    table,
)
from experiments.sa_dpsgd_runs import AUTO_S, DIGITS, FASHION_MNIST, MNIST, RELU, TANH, Scheme, Setting

_STEPS_ON_COMPONENTS = 6_000

Result = tuple[Statistic, float | None]  # accuracies, and their proven ε


@experiment("methods", "side-by-side", "What the methods reach at what is proven for them")
def side_by_side(outcomes: Outcomes, size: Size) -> Report:
    """The runs of the papers' tables, read off at one proven ε instead of at each paper's own. Nothing is run for this
    table alone.
    """
    return report(_images_table(outcomes, size), _components_table(outcomes, size))


def _images_table(outcomes: Outcomes, size: Size) -> Table:
    settings = (DIGITS,) if size.is_quick else (MNIST, FASHION_MNIST)

    def of_scheme(scheme: Scheme, setting: Setting) -> Result:
        """At the last evaluation within the candidates that are proven to cost at most 3."""
        end = setting.last_step if scheme.goes_on else setting.steps
        steps = min(setting.proven_steps // setting.evaluate_every * setting.evaluate_every, end)
        runs = outcomes.get_all(sa_dpsgd_runs.runs_of(setting, scheme, size))
        return statistic(accuracy_after(run, steps) for run in runs), setting.proven_epsilon(steps)

    def of_tempered(setting: Setting) -> Result:
        [own] = [each for each in tempered_sigmoids_runs.settings_of(size) if each.data == setting.data]
        runs = outcomes.get_all(tempered_sigmoids_runs.private_runs(own, tempered_sigmoids_runs.TEMPERED, size))
        epsilon = max((run["epsilon_proven"] for run in runs), default=None)
        return statistic(run["accuracy"] for run in runs), epsilon

    def of_proven(method: str, setting: Setting) -> Result:
        runs = sa_dpsgd_runs.proven_runs(setting, method, range(size.seeds or setting.seeds))
        return outcomes.statistic(runs), setting.proven_epsilon(setting.proven_steps)

    def row(title: str, result: Callable[[Setting], Result], needs: str) -> Row:
        return (title, *(cell for setting in settings for cell in result(setting)), needs)

    return table(
        f"{_quick(size)}Convolutional network: accuracy within a proven ε of 3",
        (
            "method",
            *(f"{setting.title} [percent] | proven ε, {setting.title} [epsilon]" for setting in settings),
            "also needs",
        ),
        (
            row(RELU.title, partial(of_scheme, RELU), "nothing"),
            row(TANH.title, partial(of_scheme, TANH), "nothing"),
            row(AUTO_S.title, partial(of_scheme, AUTO_S), "nothing; no clip norm to choose"),
            row("DPSGD, tempered sigmoid, other batch and steps", of_tempered, "nothing; a triplet from public data"),
            row("DPSGD, tanh, on half of the test records", partial(of_proven, "dpsgd"), "nothing"),
            row(
                "SA-DPSGD, tanh, on the same half",
                partial(of_proven, "sa-dpsgd"),
                "public records like the private ones",
            ),
        ),
        "Settings are those of SA-DPSGD's paper and of the tempered sigmoids' tables. The last two rows are scored "
        "on the same half of the test records, and are to be compared with one another.",
    )


def _components_table(outcomes: Outcomes, size: Size) -> Table:
    shown = adadp_accuracy.QUICK if size.is_quick else adadp_accuracy.MNIST
    steps = min(_STEPS_ON_COMPONENTS, *(variant.steps for variant in shown.variants))
    epsilon = shown.setting.epsilon(steps, accountant=adadp_runs.PROVEN)
    rows: list[Row] = []
    for variant in shown.variants:
        runs = outcomes.get_all(shown.runs(variant, range(size.seeds or adadp_accuracy.SEEDS)))
        accuracies = statistic(accuracy_after(run, steps) for run in runs)
        rows.append((variant.name, accuracies, epsilon if variant.is_proven else "nothing proven"))
    return table(
        f"{_quick(size)}Principal components and one layer: accuracy after {steps:,} steps",
        f"method | {shown.setting.title} [percent] | proven ε [epsilon]",
        rows,
        "δ is 1e-4 here, and ε includes the private PCA. "
        "Rows that name a learning rate use ours; the others use the paper's.",
    )


def _quick(size: Size) -> str:
    return "Quick, on small data. " if size.is_quick else ""


EXPERIMENTS = (side_by_side,)
