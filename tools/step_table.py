"""Writes the tables of docs/engine.md from the measured figures: ``python -m tools.step_table``.

Between ``<!-- FILE.json -->`` and ``<!-- end -->`` stands the table of ``benchmarks/results/FILE.json``, between
``<!-- machine FILE.json -->`` and ``<!-- end -->`` the sentence that says where it was measured.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "engine.md"
RESULTS = ROOT / "benchmarks" / "results"
MARKED = re.compile(r"<!-- (machine )?(\w+\.json) -->\n.*?<!-- end -->", re.DOTALL)
HEAD = "| network, batch | plain, ms | Lehr, ms | ratio | memory ratio | best Opacus mode, ms | times faster |"


def filled(page: str, *, results: Path = RESULTS) -> str:
    """The page with every table as the figures say."""

    def replaced(found: re.Match[str]) -> str:
        saved = json.loads((results / found[2]).read_text())
        inside = sentence(saved) if found[1] else table(saved["rows"])
        return f"<!-- {found[1] or ''}{found[2]} -->\n{inside}\n<!-- end -->"

    return MARKED.sub(replaced, page)


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each network and batch."""
    cases: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        cases.setdefault(_label(row), {})[row["who"]] = row
    lines = [_line(label, sides) for label, sides in cases.items()]
    return "\n".join([HEAD, "|" + "---|" * HEAD[1:].count("|"), *lines])


def sentence(saved: dict[str, Any]) -> str:
    """Where, with what and when."""
    versions = ", ".join(f"{name} {version}" for name, version in saved["versions"].items() if version)
    return f"{saved['machine']}; {versions}; commit {saved['commit'][:7]}; {saved['date']}."


def _label(row: dict[str, Any]) -> str:
    views = f", {row['views']} views" if row["views"] > 1 else ""
    return f"{row['network']}, {row['batch']}{views}"


def _line(label: str, sides: dict[str, dict[str, Any]]) -> str:
    plain, ours = sides["plain"], sides["lehr"]
    opacus = {who: side for who, side in sides.items() if who.startswith("opacus")}
    peer, faster = "–", "–"
    if opacus:
        who = min(opacus, key=lambda who: float(opacus[who]["ms"]))
        peer = f"{_ms(opacus[who])} ({who.removeprefix('opacus ')})"
        faster = f"{opacus[who]['ms'] / ours['ms']:.1f}"
    memory = ours["gib"] / plain["gib"]
    cells = (label, _ms(plain), _ms(ours), f"{ours['ratio']:.2f}", f"{memory:.2f}", peer, faster)
    return "| " + " | ".join(cells) + " |"


def _ms(side: dict[str, Any]) -> str:
    return f"{side['ms']:.2f}" if side["ms"] < 10 else f"{side['ms']:.1f}"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
