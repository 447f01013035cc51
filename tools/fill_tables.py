"""Writes the generated tables of docs/: ``python -m tools.fill_tables``.

A table stands between a mark and ``<!-- end -->``. The marks:

- ``<!-- python -m experiments PAPER NAME -->``: all tables of an experiment with their titles, drawn from
  experiments/results/papers; with ``table N`` after the name, the N-th alone and without its title
- ``<!-- line by line PAPER NAME -->``: a table or figure of a paper beside the kept results, with its command, its
  runs and a verdict for each row; ``<!-- plans on ImageNet -->``: TAN's plans, by number
- ``<!-- options -->``: the options of ``RunConfig``
- ``<!-- FILE.json -->``: the times of steps in benchmarks/results/FILE.json; ``<!-- machine FILE.json -->``: where
  they were measured
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from experiments import line_by_line
from experiments.experiment import Outcomes, Size, Table, find_experiment
from experiments.page import markdown
from experiments.store import Entry, ResultFile
from lehr.config import ALIASES, Option, options

ROOT = Path(__file__).resolve().parent.parent
DOCS, KEPT, MEASURED = ROOT / "docs", ROOT / "experiments" / "results" / "papers", ROOT / "benchmarks" / "results"
MARKED = re.compile(
    r"<!-- (?:python -m experiments (?P<paper>[\w-]+) (?P<name>[\w-]+)(?: table (?P<number>\d+))?"
    r"|line by line (?P<line_paper>[\w-]+) (?P<line_name>[\w-]+)|(?P<plans>plans on ImageNet)"
    r"|(?P<options>options)|(?P<machine>machine )?(?P<file>\w+\.json)) -->\n.*?<!-- end -->",
    re.DOTALL,
)
STEPS = "| network, batch | plain, ms | Lehr, ms | ratio | memory ratio | best Opacus mode, ms | times faster |"


def fill(page: str) -> str:
    """The page with every table as it should be."""

    def replacement(mark: re.Match[str]) -> str:
        head, _, _ = mark[0].partition("\n")
        if mark["paper"]:
            content = experiment_tables(mark["paper"], mark["name"], mark["number"])
        elif mark["line_paper"]:
            content = line_by_line.section(mark["line_paper"], mark["line_name"], _kept_entries())
        elif mark["plans"]:
            content = markdown(line_by_line.imagenet_plans(line_by_line.Kept(_kept_entries())))
        elif mark["options"]:
            content = options_table()
        else:
            measured = json.loads((MEASURED / mark["file"]).read_text(encoding="utf-8"))
            content = machine_sentence(measured) if mark["machine"] else steps_table(measured["rows"])
        return f"{head}\n{content}\n<!-- end -->"

    return MARKED.sub(replacement, page)


@cache
def _kept_entries() -> Mapping[str, Entry]:
    files = [ResultFile.read(path) for path in sorted(KEPT.glob("*.json"))]
    return {key: entry for file in files if not file.is_quick for key, entry in file.entries.items()}


@cache
def _kept_outcomes() -> Outcomes:
    return Outcomes({key: entry["result"] for key, entry in _kept_entries().items()})


@cache
def _report_tables(paper: str, name: str) -> tuple[Table, ...]:
    return find_experiment(paper, name).report(_kept_outcomes(), Size()).tables


def experiment_tables(paper: str, name: str, number: str | None = None) -> str:
    """The tables of an experiment, or one of them, counted from 1."""
    tables = _report_tables(paper, name)
    if number is None:
        return "\n\n".join(f"**{table.title}**\n\n{markdown(table)}" for table in tables)
    if not 1 <= int(number) <= len(tables):
        raise SystemExit(f"table must be from 1 to {len(tables)}; given: {number}")
    return markdown(tables[int(number) - 1])


def options_table() -> str:
    """One row for each field of the configuration: its option, its key in a file, its keyword in Python, its help."""

    def row(option: Option) -> str:
        names = [option.keyword, *(alias for alias, name in ALIASES.items() if name == option.keyword)]
        flags = option.flags or tuple("--" + name.replace("_", "-") for name in names)
        shown = ", ".join(f"`{flag}`" for flag in "/".join(flags).split("/")) if option.in_cli else ""
        keywords = ", ".join(f"`{name}`" for name in names)
        return f"| {shown} | `[{option.table}] {option.key}` | {keywords} | {option.help} |"

    return "\n".join(["| option | in a file | in Python | |", "|---|---|---|---|", *map(row, options().values())])


def steps_table(rows: list[dict[str, Any]]) -> str:
    """One line for each network and batch: plain SGD, Lehr, and the fastest mode of Opacus."""

    def milliseconds(side: dict[str, Any]) -> str:
        return f"{side['ms']:.2f}" if side["ms"] < 10 else f"{side['ms']:.1f}"

    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        views = f", {row['views']} views" if row["views"] > 1 else ""
        cases.setdefault(f"{row['network']}, {row['batch']}{views}", {})[row["who"]] = row
    lines = []
    for case, sides in cases.items():
        plain, ours = sides["plain"], sides["lehr"]
        ratios = f"{ours['ratio']:.2f} | {ours['gib'] / plain['gib']:.2f}"
        opacus = [side for who, side in sides.items() if who.startswith("opacus")]
        peer, faster = "–", "–"
        if opacus:
            best = min(opacus, key=lambda side: float(side["ms"]))
            peer = f"{milliseconds(best)} ({best['who'].removeprefix('opacus ')})"
            faster = f"{best['ms'] / ours['ms']:.1f}"
        lines.append(f"| {case} | {milliseconds(plain)} | {milliseconds(ours)} | {ratios} | {peer} | {faster} |")
    return "\n".join([STEPS, "|" + "---|" * STEPS[1:].count("|"), *lines])


def machine_sentence(measured: dict[str, Any]) -> str:
    """Where, with what and when."""
    versions = ", ".join(f"{name} {version}" for name, version in measured["versions"].items() if version)
    return f"{measured['machine']}; {versions}; commit {measured['commit'][:7]}; {measured['date']}."


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := fill(page)) != page:
            path.write_text(new, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: tables updated")


if __name__ == "__main__":
    main()
