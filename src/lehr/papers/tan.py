"""The tables of TAN, and all that can be run again of it. Sander, Stock & Sablayrolles (2023), "TAN Without a Burn:
Scaling Laws of DP-SGD".

ImageNet cannot be had here: what a setting costs is arithmetic and stands in every row; trainings are done at small
scale on CIFAR-10 where that makes sense, in tables of their own that say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job, Training
from lehr.papers.table import Cell, Column, Shown, Table, measured
from lehr.papers.tan_epsilons import IMAGENET, IMAGENET_DELTA, IMAGENET_NOISE, IMAGENET_STEPS, Setting, epsilons
from lehr.papers.tan_figures import FIGURES, NOT_RUN, PAPER
from lehr.papers.tan_law import setting_of
from lehr.papers.tan_runs import (
    PAPER_STEPS,
    RECORDS,
    REFERENCE_BATCH,
    SHORT_STEPS,
    by_seed,
    data_size,
    pipeline,
    same_eta,
    titled,
)

_IMAGENET_BATCH = 16_384
_PRINTED_EPSILON = Column(title="ε, paper", kind="number", digits=2)
_EPSILONS = (
    Column(title="ε by rdp-balle20", kind="epsilon", digits=3),
    Column(title="ε from η, an estimate", kind="number", digits=3),
    Column(title="ε proven (pld)", kind="epsilon", digits=3),
)
_NOT_HAD = "ImageNet cannot be had here. The paper counts by rdp-balle20; δ is 8·10⁻⁷ for 1,281,167 records."


def imagenet(*, batch: int, steps: int, records: int = IMAGENET, delta: float = IMAGENET_DELTA) -> Setting:
    """A setting of the paper on ImageNet, all at one noise multiplier."""
    return Setting(batch=batch, records=records, steps=steps, noise_multiplier=IMAGENET_NOISE, delta=delta)


def _three(setting: Setting | None) -> tuple[Cell, Cell, Cell]:
    """ε by three rules; nothing where the setting is not printed."""
    if setting is None:
        return (None, None, None)
    found = epsilons(setting)
    return (found.balle20, found.estimate, found.tight)


def _gain(outcomes: Outcomes, jobs: Sequence[Training], over: Sequence[Training]) -> float | None:
    """By how many points runs are better than others; nothing where either has none."""
    here, there = (measured([found["accuracy"] for found in outcomes.of_all([*some])]).mean for some in (jobs, over))
    return None if here is None or there is None else 100 * (here - there)


# --- Table 1: ImageNet at ε 8 ---------------------------------------------------------------------------------------

REFERENCE, BEST = imagenet(batch=_IMAGENET_BATCH, steps=IMAGENET_STEPS), imagenet(batch=32_768, steps=18_000)


def _table1(_: Outcomes, __: Size) -> Shown:
    table = Table(
        title="Table 1: top-1 accuracy on ImageNet, trained from scratch",
        columns=(
            Column(title="method"),
            _PRINTED_EPSILON,
            *_EPSILONS,
            Column(title="paper", kind="percent", digits=1),
            Column(title="ours"),
        ),
        rows=(
            ("Kurakin et al. (2022)", 13.2, *_three(None), 0.062, NOT_RUN),
            ("De et al. (2022), as they state", 8.0, *_three(None), 0.324, NOT_RUN),
            ("De et al. (2022), the paper's reproduction", 8.0, *_three(REFERENCE), 0.302, NOT_RUN),
            ("TAN", 8.0, *_three(BEST), 0.392, NOT_RUN),
        ),
        notes=(_NOT_HAD, "The settings of the first two are not printed there; the δ of the first is 10⁻⁶."),
    )
    return Shown(tables=(table,))


TABLE1 = Experiment(
    paper=PAPER,
    name="table1",
    title="ImageNet at ε 8",
    about=(
        "The paper's headline: 39.2 % top-1 on ImageNet at ε 8, by an NF-ResNet-50. ImageNet cannot be had here; what "
        "the settings cost is counted again by three rules."
    ),
    jobs=lambda size: [],
    shown=_table1,
)


# --- Table 2: settings found by simulation --------------------------------------------------------------------------

# Batch, and the gains of the learning rate, the decay, the views, and the vote over views in testing; then in total.
_PRINTED_GAINS = (
    (128, 1.0, 1.2, 3.0, 0.4, 5.6),
    (256, 0.8, 1.2, 3.0, 0.7, 5.7),
    (512, 1.2, 1.1, 2.8, 1.1, 6.2),
    (1024, 1.6, 1.2, 2.3, 0.8, 5.9),
    (_IMAGENET_BATCH, None, None, None, 0.8, 6.7),
)
_TABLE2_BATCHES = (128, 256, 512)


def _table2_points(size: Size, batch: int) -> tuple[list[Training], list[Training], list[Training]]:
    """As they are, with twice the learning rate, and with more and other views."""
    return (
        pipeline(size, batch=batch),
        pipeline(size, batch=batch, rate=8.0),
        pipeline(size, batch=batch, augmentation="ours", views=8),
    )


def _table2_jobs(size: Size) -> list[Job]:
    return [*by_seed([jobs for batch in reversed(_TABLE2_BATCHES) for jobs in _table2_points(size, batch)])]


def _table2(outcomes: Outcomes, size: Size) -> Shown:
    points = tuple(
        Column(title=title, kind="number", digits=1) for title in ("rate 8", "decay", "views", "vote", "all")
    )
    printed = Table(
        title="Table 2: gains in points on ImageNet, each over the one before, as printed",
        columns=(Column(title="batch", kind="count"), *points, Column(title="ours")),
        rows=tuple((*row, NOT_RUN) for row in _PRINTED_GAINS),
        notes=(_NOT_HAD,),
    )
    return Shown(tables=(printed, _small_table2(outcomes, size)))


def _small_table2(outcomes: Outcomes, size: Size) -> Table:
    rows = []
    for batch in _TABLE2_BATCHES:
        base, faster, more_views = _table2_points(size, batch)
        reached = measured([found["accuracy"] for found in outcomes.of_all([*base])])
        rows.append((batch, reached, _gain(outcomes, faster, base), _gain(outcomes, more_views, base)))
    return Table(
        title=titled("The same at small scale: WRN-16-4 on CIFAR-10, simulated, 600 steps", size),
        columns=(
            Column(title="batch", kind="count"),
            Column(title="rate 4, 4 views", kind="percent", digits=1),
            Column(title="rate 8: gain", kind="number", digits=1),
            Column(title="8 views of the paper's own augmentation: gain", kind="number", digits=1),
        ),
        rows=tuple(rows),
        notes=(
            "Both gains are over the first column. The decay of the average is not compared: with the warm-up, 0.999 "
            "and 0.99999 are the same average until step 8990. The vote in testing is not run.",
        ),
    )


TABLE2 = Experiment(
    paper=PAPER,
    name="table2",
    title="Settings that simulations find",
    about=(
        "The paper looks for settings on ImageNet by batches from 128 to 1024 and finds the same ones at each. Here "
        "two of its changes, the learning rate and the views, are tried on CIFAR-10 by three batches: the question is "
        "whether all batches answer alike."
    ),
    jobs=_table2_jobs,
    shown=_table2,
)


# --- Table 3: other steps at the same η, simulated ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _SameEta:
    """A row of Table 3, and the one on CIFAR-10 that corresponds to it."""

    steps: int
    batch: int
    rate: float
    gain: float | None
    small_steps: int
    small_batch: int
    small_rate: float

    @property
    def small_stands_for(self) -> int:
        return 16 * self.small_batch

    def runs(self, size: Size) -> list[Training]:
        return same_eta(
            size,
            steps=self.small_steps,
            stands_for=self.small_stands_for,
            batch=self.small_batch,
            rate=self.small_rate,
        )


_SAME_ETA = (
    _SameEta(steps=9000, batch=756, rate=64, gain=-6.22, small_steps=75, small_batch=724, small_rate=32.0),
    _SameEta(steps=18_000, batch=512, rate=32, gain=1.32, small_steps=150, small_batch=512, small_rate=16.0),
    _SameEta(steps=72_000, batch=256, rate=8, gain=None, small_steps=600, small_batch=256, small_rate=4.0),
    _SameEta(steps=288_000, batch=128, rate=2, gain=-1.88, small_steps=2400, small_batch=128, small_rate=1.0),
)
_SAME_ETA_REFERENCE = _SAME_ETA[2]
_SIMULATED_BY = 64  # times smaller batches, on ImageNet


def _table3_jobs(size: Size) -> list[Job]:
    return [*by_seed([row.runs(size) for row in _SAME_ETA])]


def _table3(outcomes: Outcomes, size: Size) -> Shown:
    printed = Table(
        title="Table 3: other steps at the same η on ImageNet, simulated by batches 64 times smaller",
        columns=(
            Column(title="steps", kind="count"),
            Column(title="batch", kind="count"),
            Column(title="stands for", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            *_EPSILONS,
            Column(title="paper: gain, points", kind="number", digits=2),
            Column(title="ours"),
        ),
        rows=tuple(_printed_same_eta(row) for row in _SAME_ETA),
        notes=(
            f"{_NOT_HAD} ε is that of the run that is stood for.",
            "A batch of 756 is printed for 9,000 steps; the η of the others asks for 724, whose ε by rdp-balle20 is "
            f"{epsilons(imagenet(batch=724 * _SIMULATED_BY, steps=9000)).balle20:.2f}.",
        ),
    )
    return Shown(tables=(printed, _small_table3(outcomes, size)))


def _printed_same_eta(row: _SameEta) -> tuple[Cell, ...]:
    stands_for = row.batch * _SIMULATED_BY
    costs = _three(imagenet(batch=stands_for, steps=row.steps))
    return (row.steps, row.batch, stands_for, row.rate, *costs, row.gain, NOT_RUN)


def _small_table3(outcomes: Outcomes, size: Size) -> Table:
    reference = _SAME_ETA_REFERENCE.runs(size)
    rows = []
    for row in _SAME_ETA:
        runs = row.runs(size)
        reached = measured([found["accuracy"] for found in outcomes.of_all([*runs])])
        gain = None if row is _SAME_ETA_REFERENCE else _gain(outcomes, runs, reference)
        whole = setting_of_whole(row)
        rows.append(
            (
                row.small_steps,
                row.small_batch,
                row.small_rate,
                None if size.is_quick else epsilons(whole).tight,
                reached,
                gain,
            ),
        )
    return Table(
        title=titled("The same at small scale: WRN-16-4 on CIFAR-10, simulated by batches 16 times smaller", size),
        columns=(
            Column(title="steps", kind="count"),
            Column(title="batch", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            Column(title="ε of what is simulated", kind="epsilon", digits=3),
            Column(title="accuracy", kind="percent", digits=1),
            Column(title="gain, points", kind="number", digits=2),
        ),
        rows=tuple(rows),
        notes=(
            "Noise multiplier 3 and δ 10⁻⁵ in all that is simulated; the learning rate goes with one over the steps.",
        ),
    )


def setting_of_whole(row: _SameEta) -> Setting:
    """What a row on CIFAR-10 stands for."""
    reference = setting_of(REFERENCE_BATCH, row.small_steps)
    return Setting(
        batch=row.small_stands_for,
        records=reference.records,
        steps=reference.steps,
        noise_multiplier=reference.noise_multiplier,
        delta=reference.delta,
    )


TABLE3 = Experiment(
    paper=PAPER,
    name="table3",
    title="Other steps at the same η, simulated",
    about=(
        "At one η the paper trades steps for batch, simulated by batches 64 times smaller on ImageNet, and finds a "
        "quarter of the steps best. Here the same factors are tried on CIFAR-10 around 600 steps of batches of 4096."
    ),
    jobs=_table3_jobs,
    shown=_table3,
)


# --- Table 4: the same at the full batch ----------------------------------------------------------------------------

_TABLE4 = ((_SAME_ETA[1], BEST, 8.00, 0.392), (_SAME_ETA[2], REFERENCE, 7.97, 0.361))


def _full_runs(size: Size, row: _SameEta) -> list[Training]:
    whole = row.small_stands_for
    return same_eta(size, steps=row.small_steps, stands_for=whole, batch=whole, rate=row.small_rate)


def _table4_jobs(size: Size) -> list[Job]:
    return [*by_seed([_full_runs(size, row) for row, *_ in _TABLE4])]


def _table4(outcomes: Outcomes, size: Size) -> Shown:
    printed = Table(
        title="Table 4: other steps at the same η on ImageNet, full batches",
        columns=(
            Column(title="steps", kind="count"),
            Column(title="batch", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            _PRINTED_EPSILON,
            *_EPSILONS,
            Column(title="paper", kind="percent", digits=1),
            Column(title="ours"),
        ),
        rows=tuple(
            (setting.steps, int(setting.batch), row.rate, epsilon, *_three(setting), accuracy, NOT_RUN)
            for row, setting, epsilon, accuracy in _TABLE4
        ),
        notes=(_NOT_HAD,),
    )
    small = Table(
        title=titled("The same at small scale: WRN-16-4 on CIFAR-10, full batches", size),
        columns=(
            Column(title="steps", kind="count"),
            Column(title="batch", kind="count"),
            Column(title="learning rate", kind="number", digits=0),
            *_EPSILONS,
            Column(title="accuracy", kind="percent", digits=1),
        ),
        rows=tuple(_small_full_row(outcomes, size, row) for row, *_ in _TABLE4),
    )
    return Shown(tables=(printed, small))


def _small_full_row(outcomes: Outcomes, size: Size, row: _SameEta) -> tuple[Cell, ...]:
    reached = measured([found["accuracy"] for found in outcomes.of_all([*_full_runs(size, row)])])
    costs = _three(None if size.is_quick else setting_of_whole(row))
    return (row.small_steps, row.small_stands_for, row.small_rate, *costs, reached)


TABLE4 = Experiment(
    paper=PAPER,
    name="table4",
    title="Other steps at the same η, full batches",
    about=(
        "What Table 3 found best is run once at the full batch on ImageNet, beside the reference: 39.2 against 36.1 %. "
        "What both cost is counted again; on CIFAR-10 the corresponding pair is trained at its full batch."
    ),
    jobs=_table4_jobs,
    shown=_table4,
)


# --- Table 5: more records ------------------------------------------------------------------------------------------

# Records, the printed ε, and the printed accuracy.
_MORE_DATA = (
    (5_000, 150.3, "59.9 ± 1"),
    (25_000, 13.7, "71.1 ± 0.4"),
    (40_000, 7.3, "72.9 ± 0.1"),
    (RECORDS, 7.1, "74.0 ± 0.5"),
)
_SIMULATED_BATCH = 512


def _full_data(size: Size, records: int) -> list[Training]:
    return data_size(size, records=records, batch=REFERENCE_BATCH, steps=PAPER_STEPS)


def _simulated_data(size: Size, records: int) -> list[Training]:
    return data_size(size, records=records, batch=_SIMULATED_BATCH, steps=SHORT_STEPS)


def _table5_jobs(size: Size) -> list[Job]:
    """The simulations first: they are a thirtieth of the work."""
    several = [records for records, *_ in _MORE_DATA]
    simulated = by_seed([_simulated_data(size, records) for records in several])
    return [*simulated, *by_seed([_full_data(size, records) for records in several])]


def _table5(outcomes: Outcomes, size: Size) -> Shown:
    table = Table(
        title=titled("Table 5: more records of CIFAR-10, batches of 4096 at noise multiplier 3", size),
        columns=(
            Column(title="records", kind="count"),
            _PRINTED_EPSILON,
            *_EPSILONS,
            Column(title="paper, %"),
            Column(title="ours, 2500 steps", kind="percent", digits=1),
            Column(title="simulated by 512, 600 steps", kind="percent", digits=1),
        ),
        rows=tuple(_table5_row(outcomes, size, *row) for row in _MORE_DATA),
        notes=(
            "ε is that of 2500 steps of batches of 4096 of so many records. δ is 10⁻⁵ for all of them, which gives the "
            "paper's 7.1, and larger in proportion for fewer. The text of the paper says one over the records; its ε "
            "of the smaller sets follows from neither.",
        ),
    )
    return Shown(tables=(table,))


def _table5_row(outcomes: Outcomes, size: Size, records: int, epsilon: float, accuracy: str) -> tuple[Cell, ...]:
    costs = _three(setting_of(REFERENCE_BATCH, PAPER_STEPS, records=records))
    ours = (
        measured([found["accuracy"] for found in outcomes.of_all([*runs(size, records)])])
        for runs in (_full_data, _simulated_data)
    )
    return (records, epsilon, *costs, accuracy, *ours)


TABLE5 = Experiment(
    paper=PAPER,
    name="table5",
    title="More records: better, and at a smaller ε",
    about=(
        "The paper trains a WRN-16-4 on 5,000 to 50,000 records of CIFAR-10 with the same batch, noise and steps. Here "
        "the same, and beside it simulations by batches of 512 over 600 steps."
    ),
    jobs=_table5_jobs,
    shown=_table5,
)


# --- Table 6: twice the records -------------------------------------------------------------------------------------

# Records, δ, printed ε, printed estimate, and the printed gains: real and simulated.
_TWICE = (
    (IMAGENET // 2, 16e-7, 17.98, 18.06, None, None),
    (IMAGENET, IMAGENET_DELTA, 8.00, 8.26, 1.3, 1.5),
)
_HALF = RECORDS // 2


def _twice_runs(size: Size, records: int, batch: int) -> list[Training]:
    return data_size(size, records=records, batch=batch, steps=SHORT_STEPS)


def _table6_jobs(size: Size) -> list[Job]:
    batches = (_SIMULATED_BATCH, REFERENCE_BATCH)
    return [*by_seed([_twice_runs(size, records, batch) for batch in batches for records in (_HALF, RECORDS)])]


def _table6(outcomes: Outcomes, size: Size) -> Shown:
    printed = Table(
        title="Table 6: twice the records of ImageNet, batches of 16,384 over 72,000 steps",
        columns=(
            Column(title="records", kind="count"),
            _PRINTED_EPSILON,
            Column(title="estimate, paper", kind="number", digits=2),
            *_EPSILONS,
            Column(title="paper: gain", kind="number", digits=1),
            Column(title="paper: simulated gain", kind="number", digits=1),
            Column(title="ours"),
        ),
        rows=tuple(
            (
                records,
                epsilon,
                estimate,
                *_three(imagenet(batch=_IMAGENET_BATCH, steps=IMAGENET_STEPS, records=records, delta=delta)),
                *gains,
                NOT_RUN,
            )
            for records, delta, epsilon, estimate, *gains in _TWICE
        ),
        notes=(
            f"{_NOT_HAD} The paper writes 1.2 and 0.6 million, and its ε is near that of 1,281,167 and half of them.",
        ),
    )
    return Shown(tables=(printed, _small_table6(outcomes, size)))


def _small_table6(outcomes: Outcomes, size: Size) -> Table:
    rows = []
    for records in (_HALF, RECORDS):
        by_batch = [
            measured([found["accuracy"] for found in outcomes.of_all([*_twice_runs(size, records, batch)])])
            for batch in (REFERENCE_BATCH, _SIMULATED_BATCH)
        ]
        setting = None if size.is_quick else setting_of(REFERENCE_BATCH, SHORT_STEPS, records=records)
        rows.append((records, *_three(setting), *by_batch))
    gains = [
        _gain(outcomes, _twice_runs(size, RECORDS, batch), _twice_runs(size, _HALF, batch))
        for batch in (REFERENCE_BATCH, _SIMULATED_BATCH)
    ]
    said = ["–" if gain is None else f"{gain:+.1f} points" for gain in gains]
    return Table(
        title=titled("The same at small scale: WRN-16-4 on CIFAR-10, batches of 4096 over 600 steps", size),
        columns=(
            Column(title="records", kind="count"),
            *_EPSILONS,
            Column(title="batch 4096", kind="percent", digits=1),
            Column(title="simulated by 512", kind="percent", digits=1),
        ),
        rows=tuple(rows),
        notes=(f"Twice the records gain: {said[0]} by batches of 4096, {said[1]} simulated by 512.",),
    )


TABLE6 = Experiment(
    paper=PAPER,
    name="table6",
    title="Twice the records: does a simulation see the gain?",
    about=(
        "The paper halves ImageNet and compares the gain of the other half by batches of 16,384 with the gain that "
        "batches of 256 show. Here the same with CIFAR-10, batches of 4096 and simulations by 512."
    ),
    jobs=_table6_jobs,
    shown=_table6,
)

EXPERIMENTS = (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, TABLE6, *FIGURES)
