"""The methods beside one another, each with what is proven for it: for whoever must decide which one to use.

No run is made for it alone: it reads those of the papers' own tables, at the last look within one proven ε.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lehr.papers import adadp_levels, sa_dpsgd_runs, tempered_sigmoids_runs
from lehr.papers.adadp_runs import PROVEN
from lehr.papers.experiment import Experiment, Outcome, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.sa_dpsgd_costs import proven_epsilon
from lehr.papers.sa_dpsgd_runs import AUTO_S, DIGITS, FASHION_MNIST, MNIST, RELU, TANH, Scheme, Setting, proven_run
from lehr.papers.table import Cell, Column, Measured, Shown, Table, measured

PAPER = "methods"
_STEPS_ON_COMPONENTS = 6_000

Part = tuple[Measured, float | None]  # accuracies, and the ε that is proven for them


def _settings(size: Size) -> tuple[Setting, ...]:
    return (DIGITS,) if size.is_quick else (MNIST, FASHION_MNIST)


def _seeds(setting: Setting, size: Size) -> range:
    return sa_dpsgd_runs.seeds_of(setting, size)


def _last_look(setting: Setting, scheme: Scheme) -> int:
    """The steps after which a run was last scored within the candidates that are proven to cost at most 3."""
    end = setting.last_step if scheme.goes_on else setting.steps
    return min(setting.proven_steps // setting.evaluate_every * setting.evaluate_every, end)


def after(outcome: Outcome, steps: int) -> float | None:
    """The accuracy when so many candidates had been drawn; nothing if it was not looked at then."""
    return next((float(row[2]) for row in outcome["trajectory"] if row[0] == steps), None)


# --- On images ------------------------------------------------------------------------------------------------------


def _of_scheme(setting: Setting, scheme: Scheme, outcomes: Outcomes, size: Size) -> Part:
    found = outcomes.of_all([*sa_dpsgd_runs.runs_of(setting, scheme, size)])
    steps = _last_look(setting, scheme)
    return measured([after(outcome, steps) for outcome in found]), proven_epsilon(setting, steps)


def _of_proven(setting: Setting, method: str, outcomes: Outcomes, size: Size) -> Part:
    found = outcomes.of_all([proven_run(setting, method, seed) for seed in _seeds(setting, size)])
    return measured([outcome["accuracy"] for outcome in found]), proven_epsilon(setting, setting.proven_steps)


def _of_tempered(setting: Setting, outcomes: Outcomes, size: Size) -> Part:
    [own] = [each for each in tempered_sigmoids_runs.settings_of(size) if each.data == setting.data]
    found = outcomes.of_all(_tempered_runs(own, size))
    epsilons = [outcome["epsilon_proven"] for outcome in found]
    return measured([outcome["accuracy"] for outcome in found]), max(epsilons, default=None)


def _tempered_runs(setting: tempered_sigmoids_runs.Setting, size: Size) -> list[Job]:
    tempered = tempered_sigmoids_runs.TEMPERED
    seeds = tempered_sigmoids_runs.seeds_of(setting, size)
    return [tempered_sigmoids_runs.private(setting, tempered, seed) for seed in seeds]


def _on_images(outcomes: Outcomes, size: Size) -> Iterator[tuple[Cell, ...]]:
    settings = _settings(size)
    for scheme, words in (
        (RELU, "nothing"),
        (TANH, "nothing"),
        (AUTO_S, "nothing; no clip norm to choose"),
    ):
        yield _row(scheme.title, [_of_scheme(setting, scheme, outcomes, size) for setting in settings], words)
    tempered = [_of_tempered(setting, outcomes, size) for setting in settings]
    yield _row("DPSGD, tempered sigmoid, other batch and steps", tempered, "nothing; a triplet from public data")
    for method, title, words in (
        ("dpsgd", "DPSGD, tanh, on half of the test records", "nothing"),
        ("sa-dpsgd", "SA-DPSGD, tanh, on the same half", "public records like the private ones"),
    ):
        yield _row(title, [_of_proven(setting, method, outcomes, size) for setting in settings], words)


def _row(title: str, parts: Sequence[Part], needs: str) -> tuple[Cell, ...]:
    return (title, *(cell for part in parts for cell in part), needs)


def _images_table(outcomes: Outcomes, size: Size) -> Table:
    settings = _settings(size)
    quick = "Quick, on small data. " if size.is_quick else ""
    return Table(
        title=f"{quick}Convolutional network: accuracy within a proven ε of 3",
        columns=(
            Column(title="method"),
            *(
                column
                for setting in settings
                for column in (
                    Column(title=setting.title, kind="percent"),
                    Column(title=f"proven ε, {setting.title}", kind="epsilon"),
                )
            ),
            Column(title="needs besides"),
        ),
        rows=tuple(_on_images(outcomes, size)),
        notes=(
            "Settings are those of SA-DPSGD's paper and of the tempered sigmoids' tables. The last two rows are scored "
            "on the same half of the test records, and are to be compared with one another.",
        ),
    )


# --- On principal components ----------------------------------------------------------------------------------------


def _levels(size: Size) -> adadp_levels.Levels:
    return adadp_levels.QUICK if size.is_quick else adadp_levels.MNIST


def _components_table(outcomes: Outcomes, size: Size) -> Table:
    levels = _levels(size)
    steps = min(_STEPS_ON_COMPONENTS, *(way.steps for way in levels.ways))
    epsilon = levels.setting.epsilon(steps, accountant=PROVEN)
    quick = "Quick, on small data. " if size.is_quick else ""
    return Table(
        title=f"{quick}Principal components and one layer: accuracy after {steps:,} steps",
        columns=(
            Column(title="method"),
            Column(title=levels.setting.title, kind="percent"),
            Column(title="proven ε", kind="epsilon"),
        ),
        rows=tuple(
            (way.name, measured([after(run, steps) for run in found]), epsilon if way.is_proven else "nothing proven")
            for way in levels.ways
            for found in [outcomes.of_all(levels.runs(way, _component_seeds(size)))]
        ),
        notes=("δ is 1e-4 here, and ε has the private principal components in it. Rates beside a name are ours.",),
    )


def _component_seeds(size: Size) -> range:
    return range(adadp_levels.SEEDS if size.seeds is None else size.seeds)


# --- All of it ------------------------------------------------------------------------------------------------------


def _jobs(size: Size) -> list[Job]:
    found: list[Job] = []
    for setting in _settings(size):
        for scheme in (RELU, TANH, AUTO_S):
            found += sa_dpsgd_runs.runs_of(setting, scheme, size)
        found += [
            proven_run(setting, method, seed) for method in ("dpsgd", "sa-dpsgd") for seed in _seeds(setting, size)
        ]
    for own in tempered_sigmoids_runs.settings_of(size):
        if own.data in {setting.data for setting in _settings(size)}:
            found += _tempered_runs(own, size)
    return [*found, *_levels(size).jobs(_component_seeds(size))]


def _shown(outcomes: Outcomes, size: Size) -> Shown:
    return Shown(tables=(_images_table(outcomes, size), _components_table(outcomes, size)))


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        paper=PAPER,
        name="side-by-side",
        title="What the methods reach at what is proven for them",
        about=(
            "The runs of the papers' tables, read off at one proven ε instead of at each paper's own. Nothing is run "
            "for this table alone."
        ),
        jobs=_jobs,
        shown=_shown,
    ),
)
