"""Figure 5 of ADADP (Xu et al. 2020): the rate, β, the noise and the lot size on MNIST, each at ε 0.5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from lehr.papers.adadp_runs import BATCH, PAPER, Setting, Way, adadp, on_digits, on_mnist, seeds_of
from lehr.papers.experiment import Experiment, Outcomes, Size
from lehr.papers.job import Job
from lehr.papers.table import Cell, Column, Measured, Shown, Table, measured
from lehr.reports.chart import Chart, Line

EPSILON, DELTA = 0.5, 1e-5
NOISE, COMPONENTS, RATE, BOUND_SCALE = 8.0, 16.0, 0.002, 1.2
# The paper prints the ends of the first and the best of the last two; the values between them are ours.
RATES = (0.0008, 0.001, 0.002, 0.003, 0.005)
BOUND_SCALES = (0.8, 1.0, 1.2, 1.5, 2.0)
NOISES = (4.0, 6.0, 7.0, 8.0, 10.0)
BATCHES = (400, 600, 800, 1_000, 1_200)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One value of what is swept."""

    swept: str
    value: float
    setting: Setting
    rate: float = RATE
    bound_scale: float = BOUND_SCALE
    steps: int

    def way(self, *, is_published: bool) -> Way | None:
        """The run's; the proven form has bounds of one norm and no β."""
        rate = {} if self.rate == RATE else {"learning_rate": self.rate}
        if is_published:
            scale = {} if self.bound_scale == BOUND_SCALE else {"bound_scale": self.bound_scale}
            return adadp(self.steps, is_published=True, **rate, **scale)
        return adadp(self.steps, is_published=False, **rate) if self.swept != "β" else None

    def jobs(self, seeds: Sequence[int], *, is_published: bool) -> list[Job]:
        """One for each seed."""
        way = self.way(is_published=is_published)
        return [] if way is None else [self.setting.job(way, seed) for seed in seeds]


@lru_cache(maxsize=2)
def points(is_quick: bool) -> tuple[Point, ...]:
    """All values. Each takes as many steps as ε allows by the paper's rule."""
    if is_quick:
        setting = on_digits(noise=NOISE, components=COMPONENTS, delta=DELTA)
        steps = setting.most_steps(EPSILON)
        return tuple(Point(swept="rate", value=rate, setting=setting, rate=rate, steps=steps) for rate in RATES[::2])
    usual = on_mnist(noise=NOISE, components=COMPONENTS, delta=DELTA)
    steps = usual.most_steps(EPSILON)
    noisy = [on_mnist(noise=noise, components=COMPONENTS, delta=DELTA) for noise in NOISES]
    lots = [on_mnist(noise=NOISE, components=COMPONENTS, delta=DELTA, batch=batch) for batch in BATCHES]
    return (
        *(Point(swept="rate", value=rate, setting=usual, rate=rate, steps=steps) for rate in RATES),
        *(Point(swept="β", value=scale, setting=usual, bound_scale=scale, steps=steps) for scale in BOUND_SCALES),
        *(Point(swept="σ*", value=one.noise_multiplier, setting=one, steps=one.most_steps(EPSILON)) for one in noisy),
        *(Point(swept="lot size", value=one.batch, setting=one, steps=one.most_steps(EPSILON)) for one in lots),
    )


def _figure5_jobs(size: Size) -> list[Job]:
    seeds = seeds_of(size, usual=1)
    every = points(size.is_quick)
    found = [
        job for is_published in (False, True) for each in every for job in each.jobs(seeds, is_published=is_published)
    ]
    return list({repr(job): job for job in found}.values())  # the usual values stand in every sweep


def _figure5(outcomes: Outcomes, size: Size) -> Shown:
    seeds, every = seeds_of(size, usual=1), points(size.is_quick)
    measured_at = {
        (each.swept, each.value, is_published): _accuracy(each, outcomes, seeds, is_published=is_published)
        for each in every
        for is_published in (True, False)
    }
    swept = dict.fromkeys(each.swept for each in every)
    charts = [_chart(place, name, every, measured_at) for place, name in enumerate(swept, start=1)]
    return Shown(tables=(_table(every, measured_at),), charts=tuple(chart for chart in charts if chart.lines))


_Found = dict[tuple[str, float, bool], Measured]


def _accuracy(point: Point, outcomes: Outcomes, seeds: Sequence[int], *, is_published: bool) -> Measured:
    return measured([run["accuracy"] for run in outcomes.of_all(point.jobs(seeds, is_published=is_published))])


def _table(every: Sequence[Point], found: _Found) -> Table:
    first = every[0].setting
    rows: list[tuple[Cell, ...]] = [
        (
            each.swept,
            each.value,
            each.steps,
            found[each.swept, each.value, True],
            "no β" if each.swept == "β" else found[each.swept, each.value, False],
        )
        for each in every
    ]
    return Table(
        title=f"Figure 5, {first.title}: accuracy at ε {EPSILON:g} by the paper's rule, δ {DELTA:g}",
        columns=(
            Column(title="what"),
            Column(title="value"),
            Column(title="steps", kind="count"),
            Column(title="ADADP, published", kind="percent"),
            Column(title="ADADP, proven", kind="percent"),
        ),
        rows=tuple(rows),
        notes=(
            f"Where not said otherwise: rate {RATE:g}, β {BOUND_SCALE:g}, σ* {NOISE:g}, lot size {first.batch}.",
            "In the paper every rate from 0.0008 to 0.005 is above 93 %, σ* 7 is best, and so is a lot size of 800.",
        ),
    )


def _chart(place: int, swept: str, every: Sequence[Point], found: _Found) -> Chart:
    values = [each.value for each in every if each.swept == swept]
    lines = []
    for is_published, name in ((True, "ADADP, published"), (False, "ADADP, proven")):
        curve = [(value, mean) for value in values if (mean := found[swept, value, is_published].mean) is not None]
        if curve:
            lines.append(Line(name=name, x=[value for value, _ in curve], y=[mean for _, mean in curve]))
    return Chart(
        element=f"figure5-{place}",
        x_title=swept,
        y_title="accuracy",
        x_format="",
        y_format=".0%",
        point="%{y:.2%}",
        has_markers=True,
        from_zero=False,
        lines=tuple(lines),
    )


FIGURE5 = Experiment(
    paper=PAPER,
    name="figure5",
    title="The rate, β, the noise and the lot size at ε 0.5",
    about=(
        "The paper changes one setting of ADADP at a time on MNIST, and trains for as long as ε 0.5 lasts by its rule, "
        f"which is 4,237 steps of {BATCH} records at σ* {NOISE:g}. The values between those that it prints are ours. "
        "Both forms are run; nothing is proven about the published one, and the proven one has no β. One seed each, "
        "unless more are asked for."
    ),
    jobs=_figure5_jobs,
    shown=_figure5,
)
