"""The papers, line by line: every printed table and figure beside the kept results, for docs/papers.md.

``section`` draws one table or figure: its command, how many of its runs are kept, what the others would cost, and a
row for each number that the paper prints. Accuracies within one point of the paper come out; for others the row names
the measurement that explains the difference, or says that nothing does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments import adadp_accuracy, adadp_runs, sa_dpsgd, sa_dpsgd_runs, tan, tan_runs, tempered_sigmoids
from experiments import tempered_sigmoids_runs as tempered
from experiments.experiment import (
    Cell,
    Column,
    Job,
    Outcome,
    Outcomes,
    Row,
    Size,
    Statistic,
    Table,
    Training,
    find_experiment,
    key_of,
    statistic,
    table,
)
from experiments.page import cell_words, markdown
from experiments.store import Entry

FOUR = ("sa-dpsgd", "tempered-sigmoids", "adadp", "tan")
TOLERANCE = 0.01  # one point of accuracy
EPSILON_TOLERANCE = 0.1
UNEXPLAINED = "unexplained"
_SIZE = Size()
_COLUMNS = "what | paper | ours (runs) | verdict | published ε [number] | proven ε [epsilon] | GPU minutes [number 0]"


# --- Kept runs: their time, and what others would take --------------------------------------------------------------


@dataclass(frozen=True)
class Kept:
    """Kept results by key, with their jobs and machines."""

    entries: Mapping[str, Entry]

    @property
    def outcomes(self) -> Outcomes:
        return Outcomes({key: entry["result"] for key, entry in self.entries.items()})

    def found(self, jobs: Iterable[Job]) -> list[Outcome]:
        """The outcomes of those jobs that are kept."""
        return self.outcomes.get_all(jobs)

    def minutes(self, jobs: Iterable[Job]) -> float | None:
        """The minutes that the kept runs took on a GPU; None if there are none."""
        entries = [self.entries[key] for key in map(key_of, jobs) if key in self.entries]
        seconds = [entry["result"]["seconds"] for entry in entries if _has_time(entry)]
        return sum(seconds) / 60 if seconds else None

    def missing(self, jobs: Iterable[Job]) -> str:
        """How many jobs are not kept, and what they would cost; empty if all are kept."""
        seconds = [self._estimate(job) for job in jobs if key_of(job) not in self.entries]
        known = [each for each in seconds if each is not None]
        cost = [f"about {max(1, round(sum(known) / 60)):,} GPU minutes"] if known else []
        if len(known) < len(seconds):
            unknown = "no" if not known else f"{len(seconds) - len(known)} with no"
            cost.append(f"{unknown} kept run to estimate from")
        return f"{len(seconds)} run{'s' * (len(seconds) != 1)} missing ({', '.join(cost)})" if seconds else ""

    def _estimate(self, job: Job) -> float | None:
        """Seconds, from the kept run that is most like the job: same network, then data, method and batch."""
        if not isinstance(job, Training):
            return None
        shape = job.to_json()
        alike = [
            entry
            for entry in self.entries.values()
            if entry["job"].get("network", [None])[0] == shape["network"][0] and _has_time(entry)
        ]
        if not alike:
            return None

        def distance(entry: Entry) -> tuple[bool, bool, float]:
            other = entry["job"]
            ratio = _work(other) / _work(shape)
            return other["data"] != shape["data"], other["method"] != shape["method"], max(ratio, 1 / ratio)

        nearest = min(alike, key=distance)
        longer = max(1.0, _work(shape) / _work(nearest["job"]))  # a smaller batch may take as long
        return float(nearest["result"]["seconds"] * shape["steps"] / nearest["job"]["steps"] * longer)


def _has_time(entry: Entry) -> bool:
    return "seconds" in entry["result"] and "CPU" not in entry["machine"]


def _work(shape: Mapping[str, Any]) -> float:
    """The gradients of one step."""
    return float(shape.get("simulated_batch_size") or shape["expected_batch_size"]) * float(shape.get("views", 1))


# --- Rows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Line:
    """A number that a paper prints, the runs for it, and why ours may differ."""

    what: str
    printed: float | None
    jobs: Sequence[Job]
    published: Cell = None
    proven: Cell = None
    value: Callable[[Outcome], float | None] = lambda outcome: float(outcome["accuracy"])
    why: str = UNEXPLAINED

    def row(self, kept: Kept) -> Row:
        ours = statistic(map(self.value, kept.found(self.jobs)))
        verdicts = [difference(self.printed, ours, why=self.why)] if ours.values else ["not run"]
        missing = kept.missing(self.jobs)
        verdict = ": ".join([*verdicts, missing] if missing else verdicts)
        percent = partial(cell_words, column=Column(title="", kind="percent"))
        return (
            self.what,
            percent(self.printed),
            percent(ours),
            verdict,
            self.published,
            self.proven,
            kept.minutes(self.jobs),
        )


def difference(
    printed: float | None, ours: Statistic, *, why: str = UNEXPLAINED, tolerance: float = TOLERANCE, scale: float = 100
) -> str:
    """Whether a printed number comes out."""
    if printed is None or ours.mean is None:
        return "the paper prints no number"
    gap = ours.mean - printed
    words = f"{scale * gap:+.{1 if scale == 100 else 2}f}"
    if abs(gap) > tolerance:
        return f"does not ({words}): {why}"
    return f"comes out ({words})" if len(ours.values) > 1 else f"too few runs to say ({words})"


Section = Callable[[Kept], Iterable[Table]]


def section(paper: str, name: str, entries: Mapping[str, Entry]) -> str:
    """One table or figure as Markdown: its command, its runs, and its rows."""
    kept, jobs = Kept(entries), find_experiment(paper, name).jobs(_SIZE)
    on_gpu = " --device cuda" if any(map(_needs_gpu, jobs)) else ""
    parts = [f"`python -m experiments {paper} {name}{on_gpu}`"]
    if jobs:
        number, taken, missing = len(kept.found(jobs)), kept.minutes(jobs), kept.missing(jobs)
        words = f"{number} of {len(jobs)} run{'s' * (len(jobs) != 1)} kept"
        words += "" if taken is None else f" ({taken:,.0f} GPU minutes)"
        parts.append(words + (f"; {missing}." if missing else "."))
    else:
        parts.append("Arithmetic only; no run is needed.")
    if make := SECTIONS.get((paper, name)):
        parts += [f"{each.title}:\n\n{markdown(each)}" if each.title else markdown(each) for each in make(kept)]
    return "\n\n".join(parts)


def _needs_gpu(job: Job) -> bool:
    return isinstance(job, Training) or job.function.split(":")[0] not in ("toy_problems", "tan_runs")


def _accuracies(lines: Callable[[], Iterable[Line]], *notes: str) -> Section:
    return lambda kept: [table("", _COLUMNS, [line.row(kept) for line in lines()], *notes)]


# --- SA-DPSGD -------------------------------------------------------------------------------------------------------


def _sa_table1() -> Iterable[Line]:
    plain = f"{UNEXPLAINED}; the paper does not print its settings without privacy"
    for setting in sa_dpsgd_runs.PAPER:
        for scheme in sa_dpsgd_runs.SCHEMES[:4]:
            yield _sa_line(f"{setting.title}, {scheme.title}", setting, scheme, setting.printed[scheme.title])
        free = [each for each in sa_dpsgd.FREE_SETTINGS if setting is sa_dpsgd_runs.MNIST and each[3] is not None]
        for name, changed, scheme, printed in free:
            yield _sa_line(f"{setting.title}, SA-DPSGD, free: {name}", changed, scheme, printed)
        yield Line(
            what=f"{setting.title}, no privacy",
            printed=setting.printed[sa_dpsgd.PLAIN],
            jobs=sa_dpsgd_runs.plain_runs(setting, _SIZE),
            published="∞",
            proven="∞",
            why=plain,
        )


def _sa_line(what: str, setting: sa_dpsgd_runs.Setting, scheme: sa_dpsgd_runs.Scheme, printed: float) -> Line:
    return Line(
        what=what,
        printed=printed,
        jobs=sa_dpsgd_runs.runs_of(setting, scheme, _SIZE),
        published=setting.published_epsilon(setting.steps),
        proven=setting.proven_epsilon(setting.most_candidates if scheme.is_annealed else setting.steps),
        value=lambda outcome: sa_dpsgd.accuracy_at(outcome, setting.steps),
    )


def _sa_table3(kept: Kept) -> Iterable[Table]:
    rows: list[Row] = []
    shown = find_experiment("sa-dpsgd", "table3").report(kept.outcomes, _SIZE).tables
    for setting, drawn in zip(sa_dpsgd_runs.PAPER, shown, strict=True):
        for accuracy, scheme, printed, published, proven, reached, _ in drawn.rows:
            if printed is None:
                continue
            what = f"{setting.title}, {100 * float(str(accuracy)):.0f} %, {scheme}"
            last = setting.published_epsilon(setting.last_step)
            rows.append((what, printed, published, proven, _cost_verdict(printed, published, reached, last)))
    yield table(
        "",
        "what | paper, published ε [number] | ours, published ε [number] | ours, proven ε [epsilon] | verdict",
        rows,
        f"A published ε comes out within {EPSILON_TOLERANCE:g}, or within two standard deviations between runs. The "
        "proven ε of SA-DPSGD is that of the candidates drawn until then, known only afterwards: no guarantee. Runs "
        "are those of Table 1.",
    )


def _cost_verdict(printed: Cell, ours: Cell, reached: Cell, last: float) -> str:
    if not isinstance(ours, Statistic) or not ours.values:
        is_none = isinstance(reached, str) and reached.startswith("0 of")
        if isinstance(printed, str) and is_none:
            return "comes out: not reached here either"
        if isinstance(printed, float) and printed > last:
            return f"not run: runs end at {last:.2f}"
        return f"does not: {reached} runs reach it: {UNEXPLAINED}" if reached else "not run"
    if not isinstance(printed, float):
        return "does not: reached here"
    tolerance = max(EPSILON_TOLERANCE, 2 * (ours.spread or 0.0))
    return difference(printed, ours, tolerance=tolerance, scale=1)


# --- Tempered sigmoids ----------------------------------------------------------------------------------------------


def _tempered_table3() -> Iterable[Line]:
    own = "the paper prints no settings without privacy, and these are ours"
    diverged = f"{own}; one of the five runs diverged, to 11.35, and the others have 98.4 to 99.1"
    for setting in tempered.settings_of(_SIZE):
        seeds = range(setting.seeds)
        yield Line(
            what=f"{setting.title}, ReLU, not private",
            printed=setting.printed["plain"],
            jobs=[tempered.plain(setting, tempered.RELU, seed) for seed in seeds],
            published="∞",
            proven="∞",
            why=diverged if setting is tempered.MNIST else own,
        )
        for activation in tempered.ACTIVATIONS:
            yield Line(
                what=f"{setting.title}, {tempered.TITLES[activation]}",
                printed=setting.printed[activation],
                jobs=tempered.private_runs(setting, activation, _SIZE),
                published=setting.published_epsilon(setting.steps),
                proven=setting.proven_epsilon(setting.steps),
                why="ReLU has its own rate and clip norm here; at those of the tempered sigmoid, the search has the "
                "paper's number within half a point"
                if (setting, activation) == (tempered.FASHION, tempered.RELU)
                else UNEXPLAINED,
            )


def _tempered_table4() -> Iterable[Line]:
    setting = tempered.FASHION
    for optimizer, is_private, rate, printed in tempered_sigmoids.TABLE4:
        yield Line(
            what=f"{optimizer}, rate {rate:g}, {'private' if is_private else 'not private'}",
            printed=printed,
            jobs=tempered_sigmoids.table4_runs(setting, optimizer, rate, is_private=is_private, size=_SIZE),
            published=setting.published_epsilon(setting.steps) if is_private else "∞",
            proven=setting.proven_epsilon(setting.steps) if is_private else "∞",
        )


def _tempered_figure3() -> Iterable[Line]:
    for setting in tempered.settings_of(_SIZE):
        yield Line(
            what=f"{setting.title}, tanh, at the end",
            printed=tempered_sigmoids.PRINTED_TANH[setting.data],
            jobs=tempered.private_runs(setting, tempered.TANH, _SIZE),
            published=setting.published_epsilon(setting.steps),
            proven=setting.proven_epsilon(setting.steps),
        )


def _tempered_spread(kept: Kept) -> Iterable[Table]:
    rows: list[Row] = []
    [drawn] = find_experiment("tempered-sigmoids", "spread").report(kept.outcomes, _SIZE).tables
    for data, activation, printed, ours, _, _ in drawn.rows:
        if printed is not None:
            is_run = isinstance(ours, Statistic) and ours.values
            verdict = f"does not: {UNEXPLAINED}" if is_run else "not run"
            rows.append((f"{data}, {activation}", printed, ours, verdict))
    yield table(
        "",
        "standard deviation between classes | paper [number] | ours [number 3] | verdict",
        rows,
        "The paper names neither data set nor ε nor unit. Ours is in shares: 0.01 is one percentage point. The order "
        "comes out: ReLU's classes differ more than those of tanh.",
    )


# --- ADADP ----------------------------------------------------------------------------------------------------------

_DIRECTION = "the clip turns the gradient"
_DIRECTION_NOTE = (
    "*The clip turns the gradient*: clipped per coordinate as the paper says, the sum of a batch loses its direction, "
    "which was measured (`clip_direction_cpu.json`, [results](results.md#adadp-proven-and-published)). *Proven* has "
    "bounds from released sums, which is not the paper's method."
)


def _adadp_table1(name: str, shown: adadp_accuracy.AccuracyTable, kept: Kept) -> Iterable[Table]:
    rows: list[Row] = []
    published, proven, _ = find_experiment("adadp", name).report(kept.outcomes, _SIZE).tables
    ours, proven_of = {str(row[0]): row for row in published.rows}, {str(row[0]): row for row in proven.rows}
    dpsgd, *annealed = (variant.name for variant in shown.variants[:3])
    for method, names in (("DPSGD", [dpsgd]), ("ADADP", annealed)):
        for index, level in enumerate(shown.accuracies, start=1):
            printed = shown.printed[method][index - 1]
            for each in names:
                cell, lowest = ours[each][index], proven_of.get(each, (None,) * 9)[index]
                why = _why(each)
                if cell is None:
                    verdict = "not run"
                elif isinstance(cell, Statistic):
                    tolerance = max(EPSILON_TOLERANCE, 2 * (cell.spread or 0.0))
                    verdict = difference(printed, cell, tolerance=tolerance, scale=1, why=why)
                else:
                    last = float(str(cell).rsplit(" ", 1)[1])
                    verdict = f"not run: runs end at {last:g}" if last < printed else f"does not: {why}"
                rows.append((f"{level:.2f}, {each}", printed, cell, lowest, verdict))
    columns = "accuracy, method | paper, published ε [number] | ours, published ε [number] | ours, proven ε [epsilon]"
    yield table("", f"{columns} | verdict", rows, "δ is 10⁻⁴.", _DIRECTION_NOTE)


def _why(name: str) -> str:
    if name.startswith("ADADP, proven"):
        return "not the paper's method"
    return _DIRECTION if name.startswith("ADADP") else UNEXPLAINED


def _adadp_figure2(kept: Kept) -> Iterable[Table]:
    rows: list[Row] = []
    _, gains = find_experiment("adadp", "figure2").report(kept.outcomes, _SIZE).tables
    ours = {str(row[0]): row for row in gains.rows}
    settings = [
        adadp_runs.on_mnist(noise=noise, components=parts, delta=adadp_accuracy.CURVE_DELTA)
        for noise, parts in adadp_accuracy.NOISES
    ]
    for other, printed in adadp_accuracy.GAINS_ON_MNIST.items():
        for index, (setting, gain) in enumerate(zip(settings, printed, strict=True), start=1):
            published, proven = (
                setting.epsilon(adadp_accuracy.STEPS, accountant=each)
                for each in (adadp_runs.PUBLISHED, adadp_runs.PROVEN)
            )
            for form in ("published", "proven") if other != "AGD" else ("published",):
                cell = ours.get(f"ADADP, {form}, above {other}", (None,) * 4)[index]
                verdict = "not possible: AGD has no fixed number of steps"
                if isinstance(cell, Statistic):
                    is_slow = other == "DPOPT" and (cell.mean or 0.0) > gain
                    why = f"DPOPT is slow at the paper's rate, {UNEXPLAINED}" if is_slow else _why(f"ADADP, {form}")
                    verdict = difference(gain, cell, why=why)
                what = f"above {other}, σ* {setting.noise_multiplier:g}, ADADP {form}"
                rows.append((what, gain, cell, published, None if form == "published" else proven, verdict))
    yield table(
        "",
        "points that ADADP is above | paper [percent 1] | ours [percent] | published ε [number] | "
        "proven ε [epsilon] | verdict",
        rows,
        "Both at the paper's rates. The paper prints gains, not accuracies.",
        _DIRECTION_NOTE,
    )


def _adadp_figure3(_: Kept) -> Iterable[Table]:
    rows = [
        (f"above {other}, setting {index}", gain, None, "not run" if other != "AGD" else "not possible, as in Figure 2")
        for other, gains in adadp_accuracy.GAINS_ON_CIFAR.items()
        for index, gain in enumerate(gains, start=1)
    ]
    yield table(
        "",
        "points that ADADP is above | paper [percent 1] | ours [percent] | verdict",
        rows,
        "The paper prints one noise level for its three settings; the command runs that one.",
    )


def _adadp_table2(_: Kept) -> Iterable[Table]:
    from experiments.adadp import PRINTED_SECONDS

    rows: list[Row] = []
    for network, printed in PRINTED_SECONDS.items():
        for method, seconds in printed.items():
            rows.append((f"{network}, {method}", seconds, seconds / printed["DPSGD"], None, "not run"))
    yield table("", "a step | paper, s [number 1] | paper, × DPSGD [number 1] | ours | verdict", rows)


# --- TAN ------------------------------------------------------------------------------------------------------------


def _tan_table5() -> Iterable[Line]:
    for records, _, printed in tan.MORE_DATA:
        rdp, _, pld = tan_runs.epsilons(tan_runs.setting_of(4096, tan_runs.PAPER_STEPS, records=records))
        yield Line(
            what=f"{records:,} records",
            printed=float(printed.split()[0]) / 100,
            jobs=tan_runs.runs(_SIZE, records=records, batch=tan_runs.REFERENCE_BATCH, steps=tan_runs.PAPER_STEPS),
            published=rdp,
            proven=pld,
        )


# Multiplications of a forward pass: a WRN-16-4 on 32 × 32 pixels, and an NF-ResNet-50 on 224 × 224.
_WIDE_RESNET_WORK, _NF_RESNET_50_WORK = 0.39e9, 4.1e9


def imagenet_plans(kept: Kept) -> Table:
    """The paper's plans on ImageNet by number: ε by three rules, the gradients to compute, and their time."""
    runs = tan_runs.runs(_SIZE, batch=tan_runs.REFERENCE_BATCH)
    seconds = statistic(run["seconds"] for run in kept.found(runs)).mean
    rows: list[Row] = []
    for what, views, setting in tan.IMAGENET_PLANS:
        gradients, days = setting.batch * setting.steps * views, None
        if seconds is not None:
            a_gradient = seconds / (tan_runs.REFERENCE_BATCH * tan_runs.SHORT_STEPS)
            days = gradients * a_gradient * _NF_RESNET_50_WORK / _WIDE_RESNET_WORK / 86_400
        costs = tan_runs.epsilons(setting)
        rows.append((what, int(setting.batch), setting.steps, views, *costs, gradients / 1e9, days))
    return table(
        "",
        "plan | batch [count] | steps [count] | views [count] | ε by rdp-balle20 [epsilon 3] | "
        "ε from η, an estimate [number 3] | ε proven (pld) [epsilon 3] | gradients, 10⁹ [number 2] | "
        "days on one H200 [count]",
        rows,
        "Noise multiplier 2.5; 1,281,167 records at δ 8·10⁻⁷, half of them at 16·10⁻⁷. The days are rough: the time of "
        "a gradient in our runs of a WRN-16-4 on CIFAR-10 at batch 4096, times "
        f"{_NF_RESNET_50_WORK / _WIDE_RESNET_WORK:.0f}, the ratio of the multiplications of an NF-ResNet-50 on 224 × "
        "224 pixels to its own. Those runs shared the GPU with others. The paper says 4 days on 32 A100 for the "
        "reference.",
    )


def _tables(paper: str, name: str, kept: Kept) -> Sequence[Table]:
    """The tables of an experiment with their titles: the paper's, and ours at small scale."""
    return find_experiment(paper, name).report(kept.outcomes, _SIZE).tables


SECTIONS: Mapping[tuple[str, str], Section] = {
    ("sa-dpsgd", "table1"): _accuracies(
        _sa_table1,
        "The paper prints 88.50 (FashionMNIST) and 64.17 (CIFAR-10) for free settings that it does not print: not "
        "possible. SA-DPSGD is scored, as in the paper, on records that acceptance looked at, and keeps its momentum.",
    ),
    ("sa-dpsgd", "table3"): _sa_table3,
    ("tempered-sigmoids", "table3"): _accuracies(_tempered_table3),
    ("tempered-sigmoids", "table4"): _accuracies(_tempered_table4),
    ("tempered-sigmoids", "figure3"): _accuracies(_tempered_figure3),
    ("tempered-sigmoids", "spread"): _tempered_spread,
    ("adadp", "table1"): partial(_adadp_table1, "table1", adadp_accuracy.MNIST),
    ("adadp", "table1-cifar-10"): partial(_adadp_table1, "table1-cifar-10", adadp_accuracy.CIFAR_10),
    ("adadp", "table2"): _adadp_table2,
    ("adadp", "figure1"): partial(_tables, "adadp", "figure1"),
    ("adadp", "figure2"): _adadp_figure2,
    ("adadp", "figure3"): _adadp_figure3,
    ("tan", "table1"): partial(_tables, "tan", "table1"),
    ("tan", "table2"): partial(_tables, "tan", "table2"),
    ("tan", "table3"): partial(_tables, "tan", "table3"),
    ("tan", "table4"): partial(_tables, "tan", "table4"),
    ("tan", "table5"): _accuracies(_tan_table5),
    ("tan", "table6"): partial(_tables, "tan", "table6"),
    ("tan", "figure1"): partial(_tables, "tan", "figure1"),
    ("tan", "headline"): partial(_tables, "tan", "headline"),
    ("sa-dpsgd", "figure1"): partial(_tables, "sa-dpsgd", "figure1"),
}
