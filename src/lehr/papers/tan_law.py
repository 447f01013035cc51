"""Accuracy against the batch at one ratio of noise to batch: what small batches say of the large one, and what came.

Figures 1 and 4 of TAN (Sander, Stock & Sablayrolles 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.papers.experiment import Outcome, Outcomes, Size
from lehr.papers.job import Training
from lehr.papers.table import Cell, Column, Measured, Table, measured
from lehr.papers.tan_epsilons import Setting, epsilons
from lehr.papers.tan_runs import (
    LARGEST_FITTED,
    LAW_BATCHES,
    PAPER_STEPS,
    RECORDS,
    REFERENCE_BATCH,
    REFERENCE_NOISE,
    SHORT_STEPS,
    delta_of,
    law,
    pipeline,
    titled,
)
from lehr.reports.chart import Chart, Line

if TYPE_CHECKING:
    from lehr.planning.extrapolation import Prediction

FEWEST_BATCHES = 3  # fewer show no line and no bend
PAPER_REFERENCE = "74.0 ± 0.5"  # Table 5, for batches of 4096 over 2500 steps


@dataclass(frozen=True, kw_only=True)
class LawLine:
    """Runs that differ in their batch alone."""

    name: str
    steps: int
    batches: tuple[int, ...]
    runs: Callable[[Size, int], list[Training]]

    def reached(self, outcomes: Outcomes, size: Size, batch: int) -> Measured:
        """The accuracies at a batch."""
        return measured([outcome["accuracy"] for outcome in outcomes.of_all([*self.runs(size, batch)])])

    def jobs(self, size: Size) -> list[list[Training]]:
        """The jobs of each batch."""
        return [self.runs(size, batch) for batch in self.batches]

    def prediction(self, outcomes: Outcomes, size: Size) -> Prediction | None:
        """What the batches up to 512 say of the reference; nothing where there are too few of them."""
        from lehr.planning.extrapolation import Prediction, SimulatedRun

        found = {batch: self.reached(outcomes, size, batch).values for batch in self.batches if batch <= LARGEST_FITTED}
        if sum(bool(accuracies) for accuracies in found.values()) < FEWEST_BATCHES:
            return None
        runs = [
            SimulatedRun(expected_batch_size=batch, accuracy=accuracy, seed=seed)
            for batch, accuracies in found.items()
            for seed, accuracy in enumerate(accuracies)
        ]
        return Prediction(reference=setting_of(REFERENCE_BATCH, self.steps).plan(), runs=tuple(runs))


def setting_of(batch: int, steps: int, *, records: int = RECORDS) -> Setting:
    """What a run of the reference, or one that simulates it, would cost."""
    return Setting(
        batch=batch,
        records=records,
        steps=steps,
        noise_multiplier=REFERENCE_NOISE * batch / REFERENCE_BATCH,
        delta=delta_of(records),
    )


SHORT = LawLine(
    name="600 steps",
    steps=SHORT_STEPS,
    batches=LAW_BATCHES,
    runs=lambda size, batch: law(size, steps=SHORT_STEPS, batch=batch),
)
LONG = LawLine(
    name="2500 steps",
    steps=PAPER_STEPS,
    batches=LAW_BATCHES,
    runs=lambda size, batch: law(size, steps=PAPER_STEPS, batch=batch),
)
AUGMENTED = LawLine(
    name="600 steps, 4 views shifted and mirrored",
    steps=SHORT_STEPS,
    batches=(128, 256, 512, REFERENCE_BATCH),
    runs=lambda size, batch: pipeline(size, batch=batch),
)


def accuracies(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Table:
    """A row for each batch."""
    return Table(
        title=titled("Accuracy at one ratio of noise to batch, CIFAR-10", size),
        columns=(
            Column(title="steps", kind="count"),
            Column(title="batch", kind="count"),
            Column(title="noise multiplier", kind="number", digits=4),
            Column(title="ε of the run itself", kind="epsilon", digits=2),
            Column(title="accuracy", kind="percent", digits=1),
            Column(title="paper, %"),
        ),
        rows=tuple(_row(line, batch, outcomes, size) for line in lines for batch in line.batches),
        notes=(
            "Batches below 4096 are simulations and protect nobody: their ε says so. The paper prints no numbers for "
            "its picture; 74.0 ± 0.5 is from its Table 5.",
        ),
    )


def _row(line: LawLine, batch: int, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    is_printed = line is LONG and batch == REFERENCE_BATCH
    return (
        line.steps,
        batch,
        REFERENCE_NOISE * batch / REFERENCE_BATCH,
        _own_epsilon(line, batch, outcomes, size),
        line.reached(outcomes, size, batch),
        PAPER_REFERENCE if is_printed else None,
    )


def _own_epsilon(line: LawLine, batch: int, outcomes: Outcomes, size: Size) -> float | None:
    """As the run says; only that of the reference matters before there is one."""
    if found := outcomes.of_all([*line.runs(size, batch)]):
        return own_epsilon(found[0])
    is_reference = batch == REFERENCE_BATCH and not size.is_quick
    return epsilons(setting_of(batch, line.steps)).tight if is_reference else None


def own_epsilon(outcome: Outcome) -> float | None:
    """What the noise of a run itself is worth, of a simulation too. Older outcomes call either proven."""
    epsilon: float | None = outcome.get("epsilon_simulated", outcome["epsilon_proven"])
    return epsilon


def predictions(lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> Table:
    """What the small batches foretell for the reference, beside what came; only for lines that have enough of them."""
    return Table(
        title=titled("The batch of 4096 foretold from batches up to 512, CIFAR-10", size),
        columns=(
            Column(title="runs"),
            Column(title="runs up to 512", kind="count"),
            Column(title="a doubling changes"),
            Column(title="predicted at 4096", kind="percent", digits=1),
            Column(title="95 % interval"),
            Column(title="p of no bend", kind="number", digits=3),
            Column(title="outcome", kind="percent", digits=1),
            Column(title="inside"),
        ),
        rows=tuple(_prediction_row(line, outcomes, size) for line in lines),
        notes=(
            "The interval allows for chance alone: it takes for granted that the line goes on. A small p says that the "
            "small batches themselves already bend away from a line.",
        ),
    )


def _prediction_row(line: LawLine, outcomes: Outcomes, size: Size) -> tuple[Cell, ...]:
    reached = line.reached(outcomes, size, REFERENCE_BATCH)
    if (prediction := line.prediction(outcomes, size)) is None:
        return (line.name, None, None, None, None, None, reached, None)
    interval = prediction.interval(num_runs=max(1, len(reached.values)))
    return (
        line.name,
        len(prediction.runs),
        f"{100 * prediction.law.slope:+.2f} points",
        prediction.accuracy,
        f"{100 * interval.lowest:.1f} to {100 * interval.highest:.1f}",
        prediction.law.bend_p_value,
        reached,
        None if reached.mean is None else "yes" if interval.has(reached.mean) else "no",
    )


def chart(element: str, lines: Sequence[LawLine], outcomes: Outcomes, size: Size) -> tuple[Chart, ...]:
    """Every run a point, the line of the small batches going on to 4096; nothing where no run was made."""
    drawn = tuple(part for line in lines for part in _drawn(line, outcomes, size))
    if not drawn:
        return ()
    return (
        Chart(
            element=element,
            x_title="expected batch size, at one ratio of noise to batch",
            y_title="test accuracy, %",
            x_format=",d",
            y_format="~g",
            point="batch %{x}: %{y:.1f} %",
            has_markers=True,
            from_zero=False,
            lines=drawn,
            x_scale="log",
            x_ticks=tuple(float(batch) for batch in LAW_BATCHES),
        ),
    )


def _drawn(line: LawLine, outcomes: Outcomes, size: Size) -> list[Line]:
    points = [(batch, value) for batch in line.batches for value in line.reached(outcomes, size, batch).values]
    if not points:
        return []
    found = [
        Line(
            name=line.name,
            x=[float(batch) for batch, _ in points],
            y=[100 * value for _, value in points],
            is_scattered=True,
        )
    ]
    if prediction := line.prediction(outcomes, size):
        interval = prediction.interval()
        ends = [float(line.batches[0]), float(REFERENCE_BATCH)]
        found.append(
            Line(
                name=f"{line.name}: the line through batches up to 512",
                x=ends,
                y=[100 * prediction.law.at(batch) for batch in ends],
                dash="dash",
            )
        )
        found.append(
            Line(
                name=f"{line.name}: where one run of 4096 was foretold with 95 %",
                x=[ends[1]] * 2,
                y=[100 * interval.lowest, 100 * interval.highest],
                dash="dot",
            )
        )
    return found
