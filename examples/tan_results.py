"""The experiments of TAN on CIFAR-10, as tables and pictures.

    python examples/tan_results.py

reads what ``python -m benchmarks.tan`` kept in ``results/``, draws three pictures and writes the tables of
docs/tan_results.md, which explains them. It needs matplotlib.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
PAPER_REFERENCE = (74.0, 0.5)  # printed for batches of 4096, noise 3 and 2500 steps
COLOURS = {"after": "#e6550d", "before": "#3182bd", "vision_transformer": "#3182bd", "nf_resnet": "#e6550d"}
NAMES = {
    "after": "norm after the activation",
    "before": "norm before it",
    "vision_transformer": "vision transformer",
    "nf_resnet": "NF-ResNet",
}


def kept(name: str) -> dict[str, Any]:
    """The results of an experiment."""
    found: dict[str, Any] = json.loads((ROOT / f"results/tan_{name}_h200.json").read_text(encoding="utf-8"))
    return found


def rows_with(rows: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    """The rows that have these values."""
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def percent(row: dict[str, Any]) -> str:
    """Mean and standard deviation over the seeds."""
    spread = row["standard_deviation"]
    return f"{100 * row['mean_accuracy']:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def side_of(row: dict[str, Any]) -> str:
    """What tells two rows of one picture apart: the order of the layers, or the network."""
    name, arguments = row["network"]
    return str(arguments.get("order", name)) if name == "wide_resnet" else str(name)


# --- Tables ---------------------------------------------------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    """In markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def law_table(law: dict[str, Any]) -> str:
    """A row for each batch and number of steps."""
    rows = sorted(law["rows"], key=lambda row: (row["steps"], row["batch"]))
    return table(
        ["steps", "batch", "noise multiplier", "ε", "runs", "accuracy, %"],
        [
            [
                str(row["steps"]),
                str(row["batch"]),
                f"{row['noise_multiplier']:.4g}",
                f"{row['epsilon']:,.4g}",
                str(len(row["seeds"])),
                percent(row),
            ]
            for row in rows
        ],
    )


def prediction_table(law: dict[str, Any]) -> str:
    """What the small batches foretell for 4096, beside what came."""
    return table(
        ["steps", "runs up to 512", "a doubling changes", "predicted at 4096, %", "95 % interval", "outcome, %"],
        [
            [
                str(found["steps"]),
                str(found["num_runs_fitted"]),
                f"{100 * found['slope_for_a_doubling']:+.2f} points",
                f"{100 * found['predicted']:.1f}",
                "{:.1f} to {:.1f}".format(*(100 * end for end in found["interval"])),
                "not run" if found["outcome"] is None else f"{100 * found['outcome']:.1f}",
            ]
            for found in law["predictions"]
        ],
    )


def order_table(order: dict[str, Any]) -> str:
    """A row for each number of views."""
    views = sorted({row["views"] for row in order["rows"]})
    cells = {(row["views"], side_of(row)): percent(row) for row in order["rows"]}
    return table(
        ["views", "norm after the activation, %", "norm before it, %"],
        [[str(count), cells[count, "after"], cells[count, "before"]] for count in views],
    )


def vit_table(vit: dict[str, Any]) -> str:
    """A row for each network, and its views."""
    rows = sorted(vit["rows"], key=lambda row: (side_of(row), row["views"]))
    return table(
        ["network", "parameters", "learning rate", "views", "runs", "accuracy, %"],
        [
            [
                NAMES[side_of(row)],
                f"{row['parameters']:,}",
                f"{row['learning_rate']:g}",
                str(row["views"]),
                str(len(row["seeds"])),
                percent(row),
            ]
            for row in rows
        ],
    )


def rates_table(rates: dict[str, Any]) -> str:
    """One run at each learning rate."""
    rows = sorted(rates["rows"], key=lambda row: (row["network"][0], row["batch"], row["learning_rate"]))
    return table(
        ["network", "batch", "learning rate", "accuracy, %"],
        [[row["network"][0], str(row["batch"]), f"{row['learning_rate']:g}", percent(row)] for row in rows],
    )


TABLES = {
    "law": (law_table, "law"),
    "prediction": (prediction_table, "law"),
    "order": (order_table, "order"),
    "vit": (vit_table, "vit"),
    "rates": (rates_table, "rates"),
}


def filled(page: str) -> str:
    """The page with its tables as the results have them."""
    for name, (draw, file) in TABLES.items():
        pattern = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        drawn = draw(kept(file)) + "\n"
        page = pattern.sub(lambda match, drawn=drawn: match[1] + drawn + match[2], page)  # type: ignore[misc]
    return page


# --- Pictures -------------------------------------------------------------------------------------------------------


def draw_law(law: dict[str, Any]) -> Figure:
    """Accuracy over the batch, every run a cross; the line of the small batches goes on to 4096."""
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for steps, colour in zip(sorted({row["steps"] for row in law["rows"]}), ("#3182bd", "#e6550d"), strict=False):
        rows = rows_with(law["rows"], steps=steps)
        points = [(row["batch"], 100 * one["accuracy"]) for row in rows for one in row["seeds"]]
        axes.plot(*zip(*points, strict=True), "x", color=colour, label=f"{steps} steps")
        for found in (found for found in law["predictions"] if found["steps"] == steps):
            _draw_prediction(axes, found, colour)
    mean, spread = PAPER_REFERENCE
    axes.axhspan(mean - spread, mean + spread, color="0.85", label="the paper at 4096, 2500 steps: 74.0 ± 0.5")
    axes.set_xscale("log", base=2)
    axes.set_xticks([64, 128, 256, 512, 1024, 2048, 4096], ["64", "128", "256", "512", "1024", "2048", "4096"])
    axes.set(xlabel="expected batch size, at one ratio of noise to batch", ylabel="test accuracy, %")
    axes.legend(frameon=False, fontsize=8)
    return figure


def _draw_prediction(axes: Axes, found: dict[str, Any], colour: str) -> None:
    at_reference, slope = 100 * found["predicted"], 100 * found["slope_for_a_doubling"]
    axes.plot([64, 4096], [at_reference - 6 * slope, at_reference], "--", color=colour, lw=1)
    lowest, highest = (100 * end for end in found["interval"])
    axes.errorbar(
        [4096 * 1.08],
        [at_reference],
        yerr=[[at_reference - lowest], [highest - at_reference]],
        fmt="s",
        ms=4,
        color=colour,
        capsize=3,
        label=f"predicted from batches up to 512, {found['steps']} steps",
    )


def draw_order(order: dict[str, Any]) -> Figure:
    """Accuracy over the number of views, for both orders."""
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for side in ("after", "before"):
        rows = [row for row in order["rows"] if side_of(row) == side]
        rows.sort(key=lambda row: row["views"])
        views = [row["views"] for row in rows]
        axes.plot(views, [100 * row["mean_accuracy"] for row in rows], "-", color=COLOURS[side], label=NAMES[side])
        for row in rows:
            axes.plot([row["views"]] * len(row["seeds"]), _accuracies(row), "x", color=COLOURS[side])
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16], ["1", "4", "16"])
    axes.set(xlabel="views of a record", ylabel="test accuracy, %")
    axes.legend(frameon=False, loc="center right")
    return figure


def draw_vit(vit: dict[str, Any]) -> Figure:
    """Accuracy over the steps; several views are a full line, one view a dotted one."""
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for row in sorted(vit["rows"], key=lambda row: (side_of(row), row["views"])):
        style, label = ("-" if row["views"] > 1 else ":"), f"{NAMES[side_of(row)]}, views {row['views']}"
        for index, one in enumerate(row["seeds"]):
            steps, accuracies = zip(*one["trajectory"], strict=True)
            heights = [100 * accuracy for accuracy in accuracies]
            axes.plot(steps, heights, style, color=COLOURS[side_of(row)], lw=1.2, label=None if index else label)
    axes.set(xlabel="step", ylabel="test accuracy, %")
    axes.legend(frameon=False, loc="lower right", fontsize=8)
    return figure


def _accuracies(row: dict[str, Any]) -> list[float]:
    return [100 * one["accuracy"] for one in row["seeds"]]


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    # Two decimals of a point are enough to see, and six make the file twice as large.
    path.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", path.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="where the page is and its pictures go")
    out: Path = parser.parse_args().out
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "lehr", "font.size": 9})
    for name, draw in (("law", draw_law), ("order", draw_order), ("vit", draw_vit)):
        _save(draw(kept(name)), out / f"pictures/tan_{name}.svg")
    page = (ROOT / "docs/tan_results.md").read_text(encoding="utf-8")
    (out / "tan_results.md").write_text(filled(page), encoding="utf-8")


if __name__ == "__main__":
    main()
