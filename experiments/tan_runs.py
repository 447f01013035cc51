"""TAN (Sander, Stock & Sablayrolles 2023): training runs on CIFAR-10 as jobs, costs of settings, the scaling law.

All runs stand for one private training or for one of the same η: batches of 4096 of 50 000 records at noise multiplier
3. Smaller batches simulate it, with the same noise per record and the same steps; they protect nobody, and CIFAR-10 is
public.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeAlias

from experiments.experiment import (
    Cell,
    Outcome,
    Outcomes,
    Row,
    Size,
    Statistic,
    Table,
    Training,
    chart,
    table,
    training,
)
from lehr.planning import tan
from lehr.planning.plan import Plan
from lehr.planning.simulation import Prediction, SimulatedRun, fit_law
from lehr.reports.chart import Chart, Line

Network: TypeAlias = tuple[str, Mapping[str, Any]]

REFERENCE_BATCH, REFERENCE_NOISE, RECORDS = 4096, 3.0, 50_000
RATE, CLIP_NORM, DECAY = 4.0, 1.0, 0.999
PAPER_STEPS, SHORT_STEPS = 2500, 600
LAW_BATCHES, LARGEST_FITTED = (64, 128, 256, 512, 1024, REFERENCE_BATCH), 512
CHEAP_BATCHES, CHEAP_STEPS = (32, *LAW_BATCHES), 300
HEADLINE_NOISE = 2.73  # the least, in two digits, whose ε by rdp-balle20 is at most 8 after 2500 steps
SEEDS = 3
RATE_SEED = 100  # none of the other runs has it
WIDE_RESNET: Network = ("wide_resnet", {"order": "after"})
VIT: Network = ("vision_transformer", {"width": 192, "depth": 6})
NF_RESNET: Network = ("nf_resnet", {"num_blocks": [2, 2, 2], "stem_channels": 56, "stem": "small", "num_classes": 10})
# Records at once, by batch and by views: about a whole draw, a half or a quarter of one.
AT_ONCE: Mapping[int, Mapping[int, int]] = {
    128: {4: 84, 8: 84},
    256: {1: 296, 4: 148, 8: 148},
    512: {1: 560, 4: 280, 8: 280, 16: 140},
    REFERENCE_BATCH: {1: 560, 4: 560, 16: 140},
}
_SHORTER = 30
_SMALLER = 32  # times: the digits of scikit-learn have about a thirty-second of CIFAR-10's records
QUICK = (
    f"Quick: trainings are of a tiny network on the digits of scikit-learn, with batches {_SMALLER} and steps "
    f"{_SHORTER} times smaller than written."
)
_TINY: Mapping[str, Mapping[str, Any]] = {
    "wide_resnet": {"depth": 10, "width": 1, "in_channels": 1},
    "vision_transformer": {"width": 24, "depth": 1, "image_side": 8, "patch_side": 2, "in_channels": 1},
    "nf_resnet": {"num_blocks": [1], "stem_channels": 8, "in_channels": 1},
}


def runs(
    size: Size,
    *,
    batch: int,
    steps: int = SHORT_STEPS,
    network: Network = WIDE_RESNET,
    rate: float = RATE,
    views: int = 1,
    augmentation: str = "none",
    records: int = RECORDS,
    stands_for: int = REFERENCE_BATCH,
    noise_multiplier: float = REFERENCE_NOISE,
    is_scored: bool = False,
    seeds: Iterable[int] | None = None,
) -> list[Training]:
    """Runs of one setting, one for each seed; ``is_scored``: on the way, too.

    A batch that is smaller than what it ``stands_for`` makes it a simulation. A quick one trains a tiny network on the
    digits of scikit-learn for a few steps.
    """
    (name, arguments), smaller = network, _SMALLER if size.is_quick else 1
    given: dict[str, Any] = {
        "expected_batch_size": stands_for / smaller,
        "simulated_batch_size": None if batch == stands_for else batch / smaller,
        "records": None if records == RECORDS else records // smaller,
    }
    if size.is_quick:
        given |= {"data": "digits", "network": (name, {**arguments, **_TINY[name]}), "steps": steps // _SHORTER}
        given |= {"evaluate_every": 5} if is_scored else {}
    else:
        given |= {"data": "cifar-10", "network": network, "steps": steps, "precision": "bfloat16"}
        given |= {"evaluate_every": 50, "physical_batch": AT_ONCE[batch][views]} if is_scored else {}
    return [
        training(
            method="dpsgd",
            settings={"learning_rate": rate, "clip_norm": CLIP_NORM, "momentum": 0.0},
            seed=seed,
            noise_multiplier=noise_multiplier,
            delta=delta_of(records),
            averaging={"kind": "exponential", "decay": DECAY},
            augmentation=augmentation,
            views=views,
            **given,
        )
        for seed in (size.seed_range(SEEDS) if seeds is None else seeds)
    ]


def augmented_runs(
    size: Size, *, batch: int = 512, views: int = 4, augmentation: str = "flip_crop", **more: Any
) -> list[Training]:
    """Runs with views of each record that are scored on the way: Figures 5 and 6, and Table 2 at small scale."""
    return runs(size, batch=batch, views=views, augmentation=augmentation, is_scored=True, **more)


def delta_of(records: int) -> float:
    """10⁻⁵ for all of CIFAR-10, and in proportion for fewer records, as the paper has it."""
    return 0.5 / records


def titled(words: str, size: Size) -> str:
    """The title of a table. What is quick says so."""
    return f"{QUICK} {words.replace('CIFAR-10', 'digits')}" if size.is_quick else words


IMAGENET = 1_281_167
IMAGENET_DELTA = 8e-7
IMAGENET_NOISE = 2.5
IMAGENET_STEPS = 72_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The numbers that decide ε."""

    batch: float
    records: int
    steps: int
    noise_multiplier: float
    delta: float

    @property
    def eta(self) -> float:
        """The signal of one record over the noise, in the whole run."""
        return self.batch / self.records * math.sqrt(self.steps / 2) / self.noise_multiplier

    def plan(self) -> Plan:
        return Plan(
            noise_multiplier=self.noise_multiplier,
            expected_batch_size=self.batch,
            records=self.records,
            steps=self.steps,
            delta=self.delta,
        )


@cache
def epsilons(setting: Setting) -> tuple[float, float, float]:
    """ε by the accountant of the paper, from η alone, which proves nothing, and by the tight accountant."""
    event, delta = setting.plan().event, setting.delta
    return (
        tan.balle20_epsilon(event, delta=delta),
        tan.estimated_epsilon(event, delta=delta),
        tan.tight_epsilon(event, delta=delta),
    )


def imagenet(
    *, batch: float, steps: int = IMAGENET_STEPS, records: int = IMAGENET, delta: float = IMAGENET_DELTA
) -> Setting:
    """A setting of the paper on ImageNet, all at one noise multiplier."""
    return Setting(batch=batch, records=records, steps=steps, noise_multiplier=IMAGENET_NOISE, delta=delta)


def constant_eta(*, device: str, data_dir: str | None, eta: float, steps: int) -> dict[str, Any]:
    """A line of Figure 2: ε against the noise multiplier, with batches that keep η. Neither device nor data is used."""
    at = imagenet(batch=math.sqrt(2 / steps) * eta * IMAGENET_NOISE * IMAGENET, steps=steps)
    [curve] = tan.eta_curves(at.plan(), step_factors=(1.0,))
    names = ("noise_multiplier", "sampling_probability", "epsilon", "epsilon_balle20")
    return {name: [getattr(point, name) for point in curve.points] for name in names}


EDGES = tuple(10 ** (tenths / 5) for tenths in range(-20, 11))  # of the bins: 10⁻⁴ to 10²

# --- The scaling law: Figures 1 and 4 -------------------------------------------------------------------------------

FEWEST_BATCHES = 3  # fewer show no line and no bend
PAPER_REFERENCE = "74.0 ± 0.5"  # Table 5, for batches of 4096 over 2500 steps


@dataclass(frozen=True, kw_only=True)
class LawLine:
    """Runs that differ in their batch only. The largest batch is the reference, which the others simulate."""

    name: str
    make: Callable[[Size, int], list[Training]]  # the runs of one batch
    steps: int
    records: int = RECORDS
    batches: tuple[int, ...] = LAW_BATCHES

    def reached(self, outcomes: Outcomes, size: Size, batch: int) -> Statistic:
        """The accuracies at a batch."""
        return outcomes.statistic(self.make(size, batch))

    def pairs(self, outcomes: Outcomes, size: Size, batches: Iterable[int]) -> list[tuple[int, float]]:
        """The batch and the accuracy of every run with one of these batches."""
        return [(batch, accuracy) for batch in batches for accuracy in self.reached(outcomes, size, batch).values]

    def prediction(self, outcomes: Outcomes, size: Size) -> Prediction | None:
        """What the batches up to 512 predict for the reference; None if runs of fewer than three are kept."""
        pairs = self.pairs(outcomes, size, [batch for batch in self.batches if batch <= LARGEST_FITTED])
        if len({batch for batch, _ in pairs}) < FEWEST_BATCHES:
            return None
        plan = setting_of(REFERENCE_BATCH, self.steps, records=self.records).plan()
        runs = (SimulatedRun(expected_batch_size=batch, accuracy=accuracy) for batch, accuracy in pairs)
        return Prediction(reference=plan, runs=tuple(runs))


def setting_of(batch: int, steps: int, *, records: int = RECORDS) -> Setting:
    """The setting of the reference, or of a run that simulates it."""
    noise = REFERENCE_NOISE * batch / REFERENCE_BATCH
    return Setting(batch=batch, records=records, steps=steps, noise_multiplier=noise, delta=delta_of(records))


SHORT = LawLine(name="600 steps", make=lambda size, batch: runs(size, batch=batch), steps=SHORT_STEPS)
LONG = LawLine(
    name="2500 steps", make=lambda size, batch: runs(size, batch=batch, steps=PAPER_STEPS), steps=PAPER_STEPS
)
AUGMENTED = LawLine(
    name="600 steps, 4 views shifted and mirrored",
    make=lambda size, batch: augmented_runs(size, batch=batch),
    steps=SHORT_STEPS,
    batches=(128, 256, 512, REFERENCE_BATCH),
)


def cheap_runs(size: Size, batch: int, *, data: str) -> list[Training]:
    """Runs of a small network, which take minutes on a CPU."""
    smaller, shorter = (_SMALLER, _SHORTER) if size.is_quick else (1, 1)
    return [
        training(
            data="digits" if size.is_quick else data,
            network=("small_cnn", {}) if size.is_quick else ("paper_cnn", {"activation": "tanh"}),
            method="dpsgd",
            settings={"learning_rate": 4.0, "clip_norm": 0.1, "momentum": 0.9},
            seed=seed,
            noise_multiplier=REFERENCE_NOISE,
            expected_batch_size=REFERENCE_BATCH / smaller,
            simulated_batch_size=None if batch == REFERENCE_BATCH else batch / smaller,
            steps=CHEAP_STEPS // shorter,
        )
        for seed in size.seed_range(SEEDS)
    ]


LAW_LINES = (
    replace(SHORT, name="CIFAR-10, WRN-16-4"),
    *(
        LawLine(
            name=f"{name}, paper CNN",
            make=partial(cheap_runs, data=data),
            steps=CHEAP_STEPS,
            records=60_000,
            batches=CHEAP_BATCHES,
        )
        for name, data in (("MNIST", "mnist"), ("FashionMNIST", "fashion-mnist"))
    ),
)


def accuracies(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Table:
    """A row for each batch."""
    rows: list[Row] = []
    for line in lines:
        for batch in line.batches:
            noise, reached = REFERENCE_NOISE * batch / REFERENCE_BATCH, line.reached(outcomes, size, batch)
            printed = PAPER_REFERENCE if line is LONG and batch == REFERENCE_BATCH else None
            rows.append((line.steps, batch, noise, _own_epsilon(line, batch, outcomes, size), reached, printed))
    return table(
        titled("Accuracy at one ratio of noise to batch, CIFAR-10", size),
        "steps [count] | batch [count] | noise multiplier [number 4] | ε of the run itself [epsilon] | "
        "accuracy [percent 1] | paper, %",
        rows,
        "Batches below 4096 are simulations and protect nobody. The paper prints no numbers for "
        "this figure; 74.0 ± 0.5 is from its Table 5.",
    )


def _own_epsilon(line: LawLine, batch: int, outcomes: Outcomes, size: Size) -> float | None:
    """The ε of a run itself; before there is one, only that of the reference matters."""
    if found := outcomes.get_all(line.make(size, batch)):
        return own_epsilon(found[0])
    is_reference = batch == REFERENCE_BATCH and not size.is_quick
    return epsilons(setting_of(batch, line.steps))[2] if is_reference else None


def own_epsilon(outcome: Outcome) -> float | None:
    """The ε of a run's own noise, of a simulation too. Older outcomes call either proven."""
    epsilon: float | None = outcome.get("epsilon_simulated", outcome["epsilon_proven"])
    return epsilon


# Accuracy is a straight line in each of these by the law and by the paper.
_IN_INVERSE, _IN_LOG2 = (lambda batch: 1 / batch), math.log2
_BY_BOTH = " | ".join(f"{law}: predicted [percent 1] | 95 % interval | inside" for law in ("a − b/B", "line in log2 B"))


def predictions(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Table:
    """The reference predicted from the small batches, beside its outcome."""
    return table(
        titled("The batch of 4096 predicted from batches up to 512", size),
        f"runs | runs up to 512 [count] | fitted law, % | p of the law [number 3] | outcome [percent 1] | {_BY_BOTH}",
        (_prediction_row(line, outcomes, size) for line in lines),
        "The interval covers chance only and assumes that the law holds. A small p means that the small batches "
        "themselves do not follow it.",
    )


def _prediction_row(line: LawLine, outcomes: Outcomes, size: Size) -> Row:
    reached = line.reached(outcomes, size, REFERENCE_BATCH)
    if (prediction := line.prediction(outcomes, size)) is None:
        return (line.name, None, None, None, reached, *[None] * 6)
    law, pairs = prediction.law, [(run.expected_batch_size, run.accuracy) for run in prediction.runs]
    sign = "−" if law.coefficient < 0 else "+"
    fitted = f"{100 * law.limit:.1f} {sign} {100 * abs(law.coefficient):,.0f}/B"
    return (line.name, len(pairs), fitted, law.bend_p_value, reached, *_by_both(pairs, REFERENCE_BATCH, reached))


def left_out(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Table:
    """Every batch predicted from all others of its line."""
    rows: list[Row] = []
    for line in lines:
        for batch in line.batches:
            reached = line.reached(outcomes, size, batch)
            others = line.pairs(outcomes, size, [other for other in line.batches if other != batch])
            rows.append((line.name, line.steps, batch, reached, *_by_both(others, batch, reached)))
    return table(
        titled("Each batch predicted from all others", size),
        f"runs | steps [count] | batch [count] | outcome [percent 1] | {_BY_BOTH}",
        rows,
        "The interval is that of the mean of as many runs as the outcome has.",
    )


def _by_both(runs: Sequence[tuple[float, float]], batch: int, reached: Statistic) -> Row:
    """What runs predict for a batch by both laws: the accuracy, the interval, and whether the outcome is inside."""
    cells: list[Cell] = []
    for x in (_IN_INVERSE, _IN_LOG2):
        if len({other for other, _ in runs}) < FEWEST_BATCHES:
            cells += (None, None, None)
            continue
        # ``fit_law`` is linear in the inverse of what it is given, so 1 / x makes it linear in x.
        law = fit_law([(1 / x(other), accuracy) for other, accuracy in runs])
        interval = law.interval(1 / x(batch), confidence=0.95, num_runs=max(1, len(reached.values)))
        ends = f"{100 * interval.lowest:.1f} to {100 * interval.highest:.1f}"
        is_inside = None if reached.mean is None else "yes" if interval.has(reached.mean) else "no"
        cells += (law.at(1 / x(batch)), ends, is_inside)
    return tuple(cells)


def law_chart(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Chart:
    """Every run a point, and the law of the small batches up to 4096."""
    return chart(
        x_title="expected batch size, at one ratio of noise to batch",
        y_title="test accuracy, %",
        x_format=",d",
        y_format="~g",
        point="batch %{x}: %{y:.1f} %",
        has_markers=True,
        lines=tuple(part for line in lines for part in _drawn(line, outcomes, size)),
        x_scale="log",
        x_ticks=tuple(map(float, LAW_BATCHES)),
    )


def _drawn(line: LawLine, outcomes: Outcomes, size: Size) -> Iterable[Line]:
    points = [(float(batch), 100 * y) for batch in line.batches for y in line.reached(outcomes, size, batch).values]
    if points:
        yield Line(name=line.name, x=[x for x, _ in points], y=[y for _, y in points], is_scattered=True)
    if prediction := line.prediction(outcomes, size):
        interval, along = prediction.interval(), [float(batch) for batch in line.batches]
        fitted = [100 * prediction.law.at(batch) for batch in along]
        yield Line(name=f"{line.name}: the law of batches up to 512", x=along, y=fitted, dash="dash")
        name = f"{line.name}: where one run of 4096 was predicted with 95 %"
        ends = [100 * interval.lowest, 100 * interval.highest]
        yield Line(name=name, x=[float(REFERENCE_BATCH)] * 2, y=ends, dash="dot")
