"""A claim, what an attack certifies against it, and what the same attack certifies against the library's own form."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from examples import pictures
from lehr.auditing import Floats, LowerBound, Scores, bounds

_BINS = 60


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One form of a mechanism: the ε it is counted as, the scores of an attack on it, and what they certify."""

    form: str
    counted: float
    scores: Scores
    certified: LowerBound

    @property
    def holds(self) -> bool:
        return self.certified.epsilon <= self.counted


def by_error_rates(form: str, scores: Scores, *, counted: float, delta: float) -> Outcome:
    """What the errors of the attack certify, with nothing assumed; its threshold is chosen on half of the scores."""
    found = bounds.clopper_pearson(scores, delta=delta)
    return Outcome(form=form, counted=counted, scores=scores, certified=found)


@dataclass(frozen=True, kw_only=True)
class Refutation:
    """The mistake and the library's own form under one attack. ``notes`` are further lines for the reader."""

    title: str
    score: str
    mistake: Outcome
    own: Outcome
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The lines that are printed, and stand on the page."""
        head = f"  {'':30} {'delta':>6} {'counted':>8} {'at least':>9}  by, with confidence"
        lines = [_line(outcome) for outcome in (self.mistake, self.own)]
        return "\n".join([self.title, head, *lines, *(f"  {note}" for note in self.notes)])

    def draw(self, path: Path) -> None:
        """The scores of the runs with the target record and of those without it, for both forms."""
        figure, grid = plt.subplots(1, 2, figsize=(9, 2.9), layout="constrained")
        for outcome, axes in zip((self.mistake, self.own), grid, strict=True):
            _histograms(outcome.scores, axes)
            axes.set(title=outcome.form, xlabel=self.score, ylabel="share of runs", yscale="log")
        grid[0].legend(frameon=False)
        pictures.save(figure, path)
        plt.close(figure)


def up(epsilon: float) -> str:
    """What is counted is never rounded down."""
    return f"{math.ceil(100 * epsilon) / 100:.2f}"


def down(epsilon: float) -> str:
    """What is certified is never rounded up."""
    return f"{math.floor(100 * epsilon) / 100:.2f}"


def main(refute: Callable[[], Refutation], *, picture: str) -> None:
    """Attack, print, and draw."""
    parser = argparse.ArgumentParser(description="Refute a claim, and try the same on the library's own form.")
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"), help="where the picture goes")
    out: Path = parser.parse_args().out
    refutation = refute()
    print(refutation.text())
    refutation.draw(out / picture)


def _line(outcome: Outcome) -> str:
    found = outcome.certified
    figures = f"{found.delta:>6g} {up(outcome.counted):>8} {down(found.epsilon):>9}"
    verdict = "holds" if outcome.holds else "REFUTED"
    return f"  {outcome.form:30} {figures}  {found.by}, {found.confidence:.0%}: {verdict}"


def _histograms(scores: Scores, axes: Axes) -> None:
    edges = _edges(np.concatenate([scores.members, scores.others]))
    for side, colour, label in (
        (scores.others, "#3182bd", "target missing"),
        (scores.members, "#e6550d", "target there"),
    ):
        shares = np.histogram(side, edges)[0] / len(side)
        axes.stairs(shares, edges, color=colour, label=label)


def _edges(values: Floats) -> Floats:
    """Of bins; those of counts hold as many whole numbers each, or the histogram would look like a comb."""
    if not np.array_equal(values, values.round()):
        return np.histogram_bin_edges(values, _BINS)
    width = math.ceil((np.ptp(values) + 1) / _BINS)
    return np.arange(values.min() - 0.5, values.max() + width, width)
