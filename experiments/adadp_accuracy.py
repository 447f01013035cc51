"""ADADP (Xu et al. 2020): Table I with the search for rates, then Figures 2, 3 and 4b. Settings: ``adadp_runs``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from experiments.adadp_runs import (
    CIFAR_EPOCH,
    EPOCH,
    PAPER,
    PROVEN,
    PUBLISHED,
    RATE_CHOSEN,
    RECORDS,
    SEED_OF_SEARCHES,
    Setting,
    Variant,
    costs_in_words,
    dpsgd_at,
    epsilon_words,
    frozen_on_digits,
    on_cifar,
    on_digits,
    on_mnist,
    variant,
    variants_on_cifar,
    variants_on_mnist,
)
from experiments.experiment import (
    Cell,
    Outcome,
    Outcomes,
    Report,
    Row,
    Size,
    Table,
    Training,
    accuracy_after,
    chart,
    experiment,
    mean_curve,
    report,
    statistic,
    table,
)
from lehr.reports.chart import Chart, Line

# --- Table I: the ε at which accuracies are reached -----------------------------------------------------------------

DELTA = 1e-4
SEEDS = 3

# On MNIST ADADP's last ε, 1.40, is that of 5 960 steps. DPSGD's are 2 857, 8 549 and 13 561 steps, and more than
# 100 000 for the last one, which is not run.
STEPS_OF_ADADP, STEPS_OF_DPSGD = 6_000, 14_000
# On CIFAR-10 the first three of ADADP are 181, 545 and 2 101 steps, the first two of DPSGD 377 and 1 599. The others,
# 5 508 for ADADP, 9 415 and 25 503 for DPSGD, are not run.
STEPS_ON_CIFAR = 2_200
_ON_CIFAR = ("DPSGD, rate 0.052", "ADADP, published", "ADADP, proven")


@dataclass(frozen=True, kw_only=True)
class AccuracyTable:
    """A half of Table I: what is run, the accuracies, and the ε that the paper prints for each."""

    setting: Setting
    variants: tuple[Variant, ...]
    accuracies: tuple[float, ...]
    looked_at: tuple[int, ...]  # steps at which accuracies are shown
    evaluate_every: int
    printed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def runs(self, variant: Variant, seeds: Iterable[int]) -> list[Training]:
        """One for each seed."""
        return [self.setting.job(variant, seed, evaluate_every=self.evaluate_every) for seed in seeds]


MNIST = AccuracyTable(
    setting=on_mnist(noise=3.0, components=6.0, delta=DELTA),
    variants=(
        variant("DPSGD", STEPS_OF_DPSGD),
        variant("ADADP, published", STEPS_OF_ADADP),
        variant("ADADP, proven", STEPS_OF_ADADP),
        *(dpsgd_at(rate, steps=STEPS_OF_DPSGD) for rate in (0.05, 0.2, 0.5)),
        *(
            variant(name, STEPS_OF_ADADP, learning_rate=RATE_CHOSEN)
            for name in ("ADADP, proven", "ADADP, published", "ADAL")
        ),
    ),
    accuracies=(0.92, 0.94, 0.95, 0.96),
    printed={"DPSGD": (1.10, 1.61, 1.96, 5.48), "ADADP": (0.75, 0.78, 0.80, 1.40)},
    looked_at=(500, 1_000, 3_000, 6_000, 14_000),
    evaluate_every=100,
    notes=(
        f"DPSGD is trained for {STEPS_OF_DPSGD:,} steps and the others for {STEPS_OF_ADADP:,}. The paper's 5.48 for "
        "DPSGD at 0.96 would be more than 100,000 steps, and is not run.",
    ),
)
CIFAR_10 = AccuracyTable(
    setting=on_cifar(noise=4.0, delta=DELTA),
    variants=variants_on_cifar(STEPS_ON_CIFAR, *_ON_CIFAR),
    accuracies=(0.68, 0.69, 0.70, 0.71),
    printed={"DPSGD": (0.89, 1.85, 4.75, 8.36), "ADADP": (0.62, 1.07, 2.13, 3.55)},
    looked_at=(200, 500, 1_000, STEPS_ON_CIFAR),
    evaluate_every=50,
    notes=(
        f"All are trained for {STEPS_ON_CIFAR:,} steps. The paper's 3.55 for ADADP would be 5,508, its 4.75 and 8.36 "
        "for DPSGD 9,415 and 25,503, and are not run.",
        "Convolutions are trained on CIFAR-100, which counts as public. The paper does not say how: thirty passes of "
        "plain SGD are ours, and so are the rates, which it prints for its figures only.",
    ),
)
QUICK = AccuracyTable(
    setting=on_digits(noise=3.0, components=6.0, delta=DELTA),
    variants=tuple(variant(name, 200) for name in ("DPSGD", "ADADP, published", "ADADP, proven")),
    accuracies=(0.3, 0.5, 0.6, 0.7),
    looked_at=(50, 100, 200),
    evaluate_every=10,
)
QUICK_FROZEN = AccuracyTable(
    setting=frozen_on_digits(noise=4.0, delta=DELTA),
    variants=variants_on_cifar(40, *_ON_CIFAR),
    accuracies=(0.3, 0.5),
    looked_at=(10, 40),
    evaluate_every=10,
    notes=("Convolutions stay as they are drawn at first; nothing is trained on CIFAR-100.",),
)


@experiment(PAPER, "table1", "ε at which accuracies are reached on MNIST, DPSGD and ADADP")
def table1(outcomes: Outcomes, size: Size) -> Report:
    """The paper measures how much ε DPSGD and ADADP need for an accuracy on test records. Here both forms of ADADP are
    run: as published, where nothing is proven, and with bounds from released sums, which is proven. Beside the paper's
    rates stand rates of ours, for DPSGD as well: a comparison in which one side is tuned is none. ε has the private
    principal components in it.
    """
    return _accuracy_tables(QUICK if size.is_quick else MNIST, outcomes, size)


@experiment(PAPER, "table1-cifar-10", "ε at which accuracies are reached on CIFAR-10, DPSGD and ADADP")
def table1_cifar_10(outcomes: Outcomes, size: Size) -> Report:
    """The paper measures how much ε DPSGD and ADADP need for an accuracy on test records. Here both forms of ADADP are
    run: as published, where nothing is proven, and with bounds from released sums, which is proven. The convolutions
    come from CIFAR-100, which must be on the machine, and stay as they are.
    """
    return _accuracy_tables(QUICK_FROZEN if size.is_quick else CIFAR_10, outcomes, size)


def _accuracy_tables(shown: AccuracyTable, outcomes: Outcomes, size: Size) -> Report:
    setting, variants, accuracies = shown.setting, shown.variants, shown.accuracies
    found = {each.name: outcomes.get_all(shown.runs(each, size.seed_range(SEEDS))) for each in variants}
    title = f"Table I, {setting.title}, δ {setting.delta:g}, noise multiplier {setting.noise_multiplier:g}"

    def reached(variant: Variant, accountant: str) -> Row:
        cells = (_first(setting, variant, found[variant.name], level, accountant) for level in accuracies)
        return variant.name, *cells, variant.differs or None

    by_the_papers_rule = table(
        f"{title}: ε by the paper's rule where an accuracy is reached",
        ("method", *(f"{level:.2f} [number]" for level in accuracies), "what differs"),
        (
            *((f"{name}, in the paper", *values, None) for name, values in shown.printed.items()),
            *(reached(variant, PUBLISHED) for variant in variants),
        ),
        *shown.notes,
    )
    proven = table(
        f"{title}: proven ε where an accuracy is reached",
        ("method", *(f"{level:.2f} [epsilon]" for level in accuracies), "what differs"),
        (reached(variant, PROVEN) for variant in variants if variant.is_proven),
        "The ε of a plan that stops at this step. Where to stop was read off the test records afterwards, as in "
        "the paper. ADADP as it is published is left out, since nothing is proven about it.",
    )
    after_steps = table(
        f"{title}: accuracy after so many steps, and their ε by the paper's rule, proven",
        ("method", *(f"{steps:,} ({costs_in_words(setting, steps)}) [percent]" for steps in shown.looked_at)),
        (
            (name, *(statistic(accuracy_after(run, steps) for run in runs) for steps in shown.looked_at))
            for name, runs in found.items()
        ),
    )
    return report(by_the_papers_rule, proven, after_steps)


def _first(setting: Setting, variant: Variant, runs: list[Outcome], level: float, accountant: str) -> Cell:
    """The mean ε over runs where all of them reach the accuracy, and how many do where they do not."""
    if not runs:
        return None
    rows = [[int(row[0]) for row in run["trajectory"] if row[2] >= level] for run in runs]
    reached = [steps[0] for steps in rows if steps]
    if len(reached) == len(runs):
        return statistic(setting.epsilon(steps, accountant=accountant) for steps in reached)
    last = setting.epsilon(variant.steps, accountant=accountant)
    return f"{len(reached)} of {len(runs)} by {epsilon_words(last, accountant=accountant)}"


# The search for rates, with a seed that the table does not use

_ADAPTIVE_RATES = (0.001, 0.002, 0.005, 0.01)
_DPSGD_RATES = {4.0: (0.02, 0.05, 0.1, 0.2, 0.5), 1.0: (0.1, 0.2, 0.5, 1.0)}  # by clip norm
_LOOKS = (1, 3, 10)  # tenths of the steps


@experiment(PAPER, "rates", "Rates that were tried before Table I")
def rates(outcomes: Outcomes, size: Size) -> Report:
    """Not in the paper. One run for each rate, of each method, with a seed that no table uses."""
    setting, steps = (QUICK.setting, 100) if size.is_quick else (MNIST.setting, 3_000)
    variants = (
        *(dpsgd_at(rate, clip_norm=clip, steps=steps) for clip, several in _DPSGD_RATES.items() for rate in several),
        *(
            variant(name, steps, learning_rate=rate)
            for name in ("ADAL", "ADADP, proven", "ADADP, published")
            for rate in _ADAPTIVE_RATES
        ),
    )
    every = steps // 10
    rows: list[Row] = []
    for each in variants[:: 4 if size.is_quick else 1]:
        found = outcomes.get_all([setting.job(each, SEED_OF_SEARCHES, evaluate_every=every)])
        rows.append((each.name, *(statistic(accuracy_after(run, n * every) for run in found).mean for n in _LOOKS)))
    return report(
        table(
            f"Rates tried with seed {SEED_OF_SEARCHES}, {setting.title}: accuracy after so many steps",
            ("tried", *(f"{n * every:,} [percent]" for n in _LOOKS)),
            rows,
            "One run each, scored on the same test records as Table I: rates that are taken from here had a look.",
        )
    )


# --- Figures 2, 3 and 4b: accuracy along training -------------------------------------------------------------------

CURVE_DELTA = 1e-5
NOISES = ((8.0, 16.0), (4.0, 7.0), (2.0, 4.0))  # of the steps and of the components
STEPS = 10 * EPOCH
CURVE_SEEDS = 5
# How many points the paper's ADADP is above each, at the three noise levels.
GAINS_ON_MNIST: Mapping[str, tuple[float, ...]] = {
    "DPSGD": (0.059, 0.027, 0.010),
    "DPOPT": (0.043, 0.015, 0.007),
    "AGD": (0.088, 0.095, 0.067),
}
GAINS_ON_CIFAR: Mapping[str, tuple[float, ...]] = {
    "DPSGD": (0.032, 0.053, 0.048),
    "DPOPT": (0.021, 0.035, 0.032),
    "AGD": (0.085, 0.080, 0.069),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Variants compared at several settings by how they end, and by how they get there."""

    settings: tuple[Setting, ...]
    variants: tuple[Variant, ...]
    drawn: tuple[str, ...]  # the names of the variants that have a line
    evaluate_every: int
    seeds: range
    seeds_drawn: range

    def ends(self, setting: Setting, variant: Variant) -> list[Training]:
        """Runs that are scored at their end only."""
        return [setting.job(variant, seed) for seed in self.seeds]

    def lines(self, setting: Setting, variant: Variant) -> list[Training]:
        """Runs that are scored as they go."""
        if variant.name not in self.drawn:
            return []
        return [setting.job(variant, seed, evaluate_every=self.evaluate_every) for seed in self.seeds_drawn]


def _on_mnist(size: Size) -> Comparison:
    drawn = ("DPSGD", "ADADP, published", "ADADP, proven", f"ADADP, proven, rate {RATE_CHOSEN:g}", "DPOPT")
    if size.is_quick:
        return Comparison(
            settings=tuple(on_digits(noise=noise, components=16.0, delta=CURVE_DELTA) for noise, _ in NOISES),
            variants=tuple(variant for variant in variants_on_mnist(100) if variant.name in drawn),
            drawn=drawn,
            evaluate_every=10,
            seeds=range(0),
            seeds_drawn=size.seed_range(1),
        )
    return Comparison(
        settings=tuple(on_mnist(noise=noise, components=parts, delta=CURVE_DELTA) for noise, parts in NOISES),
        variants=variants_on_mnist(STEPS),
        drawn=drawn,
        evaluate_every=EPOCH // 2,
        seeds=size.seed_range(CURVE_SEEDS),
        seeds_drawn=range(min(size.seeds or 1, CURVE_SEEDS)),
    )


@experiment(PAPER, "figure2", "Accuracy on MNIST at three noise levels")
def figure2(outcomes: Outcomes, size: Size) -> Report:
    """The paper trains DPSGD, AGD, DPOPT and ADADP at three privacy levels. Here they are trained for ten passes each,
    which is ours: the paper prints neither its passes nor its ε. ADADP is run as published, where nothing is proven,
    and as proven, at the paper's rate and at one of ours. ε has the private components in it.
    """
    comparison = _on_mnist(size)
    return report(
        _ends_table(comparison, outcomes, "Figure 2"),
        _gains_table(comparison, outcomes),
        *_charts(comparison, outcomes),
    )


def _ends_table(comparison: Comparison, outcomes: Outcomes, title: str) -> Table:
    """The accuracies at the end. Runs with a line end too, and stand in where there are no others."""
    settings, steps = comparison.settings, comparison.variants[0].steps

    def end(setting: Setting, variant: Variant) -> Cell:
        ends, lines = (outcomes.statistic(runs(setting, variant)) for runs in (comparison.ends, comparison.lines))
        return ends if ends.values else lines

    levels = (f"σ* {each.noise_multiplier:g} (ε {costs_in_words(each, steps)}) [percent]" for each in settings)
    return table(
        f"{title}, {settings[0].title}: accuracy after {steps:,} steps, δ {settings[0].delta:g}",
        ("method", *levels, "what differs"),
        (
            (variant.name, *(end(setting, variant) for setting in settings), variant.differs or None)
            for variant in comparison.variants
        ),
        "The first ε is by the paper's rule, the second is proven, but not for ADADP as published.",
    )


def _gains_table(comparison: Comparison, outcomes: Outcomes) -> Table:
    """How far ADADP is above the others, seed by seed, and in the paper."""
    settings, variants = comparison.settings, comparison.variants

    def gain(setting: Setting, variant: Variant, other: Variant) -> Cell:
        ends, lines = (
            [*zip(runs(setting, variant), runs(setting, other), strict=False)]
            for runs in (comparison.ends, comparison.lines)
        )
        found = [(outcomes.get(first), outcomes.get(second)) for first, second in ends or lines]
        return statistic(a["accuracy"] - b["accuracy"] for a, b in found if a is not None and b is not None)

    printed = GAINS_ON_MNIST if settings[0].data == "mnist" else {}
    rows: list[Row] = [(f"in the paper, above {name}", *gains) for name, gains in printed.items()]
    for other in (each for each in variants if each.name in GAINS_ON_MNIST):
        for each in (each for each in variants if each.method == "adadp"):
            rows.append((f"{each.name}, above {other.name}", *(gain(setting, each, other) for setting in settings)))
    return table(
        f"Figure 2, {settings[0].title}: points that ADADP is above others",
        ("", *(f"σ* {setting.noise_multiplier:g} [percent]" for setting in settings)),
        rows,
        "AGD is not run here: what it costs follows what it releases, and it has no fixed number of steps.",
    )


def _charts(comparison: Comparison, outcomes: Outcomes) -> Iterable[Chart]:
    """Accuracy over passes, a line for each variant: one chart for each setting."""
    for setting in comparison.settings:
        curves = {
            variant.name: mean_curve(outcomes.get_all(comparison.lines(setting, variant)))
            for variant in comparison.variants
        }
        yield accuracy_chart(f"passes over the records (σ* {setting.noise_multiplier:g})", setting, curves)


def accuracy_chart(x_title: str, setting: Setting, curves: Mapping[str, Mapping[int, float]]) -> Chart:
    """Accuracies over passes, by the names of their lines."""
    passes = setting.batch / RECORDS[setting.data]
    return chart(
        x_title=x_title,
        y_title="accuracy",
        y_format=".0%",
        point="%{y:.2%}",
        lines=tuple(
            Line(
                name=name,
                x=[steps * passes for steps in curve],
                y=[*curve.values()],
                dash="dash" if "published" in name else "solid",
            )
            for name, curve in curves.items()
            if curve
        ),
    )


def _on_cifar(outcomes: Outcomes, size: Size, title: str, *names: str) -> Report:
    setting, steps, every = on_cifar(noise=6.0, delta=CURVE_DELTA), 40 * CIFAR_EPOCH, CIFAR_EPOCH
    if size.is_quick:
        setting, steps, every = frozen_on_digits(noise=6.0, delta=CURVE_DELTA), 30, 10
    comparison = Comparison(
        settings=(setting,),
        variants=variants_on_cifar(steps, *names),
        drawn=names,
        evaluate_every=every,
        seeds=range(0),
        seeds_drawn=size.seed_range(3),
    )
    return report(_ends_table(comparison, outcomes, title), *_charts(comparison, outcomes))


@experiment(PAPER, "figure3", "Accuracy on CIFAR-10")
def figure3(outcomes: Outcomes, size: Size) -> Report:
    """Only the linear layers are trained; the convolutions come from CIFAR-100, which counts as public and must be on
    the machine. The noise multiplier is 6, and forty passes are made: how many the paper makes is not printed. How
    fast the first rate falls is not printed either: by a twentieth with every pass. No AGD.
    """
    names = ("DPSGD, rate 0.1, falling", "DPSGD, rate 0.052", "DPOPT", "ADADP, published", "ADADP, proven")
    ours = _on_cifar(outcomes, size, "Figure 3", *names)
    printed = table(
        "Figure 3, in the paper: points that ADADP is above others, at three privacy levels",
        "above | high [percent] | medium [percent] | low [percent]",
        ((name, *gains) for name, gains in GAINS_ON_CIFAR.items()),
    )
    return replace(ours, tables=(*ours.tables, printed))


@experiment(PAPER, "figure4b", "What each part of ADADP does on CIFAR-10")
def figure4b(outcomes: Outcomes, size: Size) -> Report:
    """Only the linear layers are trained; the convolutions come from CIFAR-100, which counts as public and must be on
    the machine. The noise multiplier is 6, and forty passes are made: how many the paper makes is not printed. ADAL
    has the learning rate of ADADP alone, ADAN its noise alone, in the proven form.
    """
    return _on_cifar(outcomes, size, "Figure 4b", "ADADP, published", "ADADP, proven", "ADAL", "ADAN")
