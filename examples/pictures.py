"""How the examples draw: one style, and small SVG files that are the same every time."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

mpl.use("Agg")
mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lehr", "font.size": 9})


def save(figure: Figure, path: Path, *, decimals: int = 2) -> None:
    """Write a figure; few decimals of a point are enough to see, and six make the file twice as large."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    path.write_text(re.sub(rf"(\d\.\d{{{decimals}}})\d+", r"\1", path.read_text()))
