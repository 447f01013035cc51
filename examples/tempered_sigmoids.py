"""The family of tempered sigmoids and what it becomes at its ends, as a picture.

    python -m examples.tempered_sigmoids --picture tempered_sigmoids.svg

It needs matplotlib.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from examples import pictures
from experiments.tempered_sigmoids import family
from lehr.networks import TemperedSigmoid

X = torch.linspace(-4, 4, 161, dtype=torch.float64)
FAMILY = family()
LINEAR = {f"T = {t:g}": TemperedSigmoid(4 / t, t, 2 / t) for t in (2, 1, 0.5, 0.1)}
STEPS = {f"T = {t:g}": TemperedSigmoid(2, t, 1) for t in (1, 2, 5, 50)}


def drawn() -> Figure:
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    family, linear, steps = figure.subplots(1, 3)
    _draw(family, FAMILY, "(scale, inverse temperature, offset)")
    _draw(linear, LINEAR, "(4/T, T, 2/T): a line, as T → 0", limit=X)
    _draw(steps, STEPS, "(2, T, 1): a step, as T → ∞", limit=torch.sign(X))
    return figure


def _draw(axes: Axes, curves: Mapping[str, TemperedSigmoid], title: str, limit: Tensor | None = None) -> None:
    for label, curve in curves.items():
        axes.plot(X.numpy(), curve(X).numpy(), label=label, linewidth=1.3)
    if limit is not None:
        axes.plot(X.numpy(), limit.numpy(), label="limit", color="black", linestyle=":", linewidth=1.3)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="lower right")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--picture", type=Path, default=Path("tempered_sigmoids.svg"), help="where it is written")
    given = parser.parse_args()
    pictures.save(drawn(), given.picture)
    print(
        f"{given.picture}: {len(FAMILY)} of the family, and {len(LINEAR)} and {len(STEPS)} on the way to its two ends"
    )


if __name__ == "__main__":
    main()
