"""How fast Lehr is, and its peers in the same run. Every benchmark prints a table; ``--save FILE`` also writes it."""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.store import machine


def parse_options(description: str | None, **options: dict[str, Any]) -> argparse.Namespace:
    """The options of a benchmark, and those that all have: --device, --save and --commit."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in options.items():
        parser.add_argument("--" + name.replace("_", "-"), **option)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="also write the figures to a JSON file")
    parser.add_argument("--commit", help="the commit to record, for a copy without git's history")
    return parser.parse_args()


def save(given: argparse.Namespace, **figures: Any) -> None:
    """Write the figures and the machine to the file of ``--save``, if there is one."""
    if given.save is not None:
        about = machine(given.device, commit=given.commit)
        try:
            about["versions"]["opacus"] = metadata.version("opacus")
        except metadata.PackageNotFoundError:
            about["versions"]["opacus"] = None
        given.save.write_text(json.dumps({**about, **figures}, indent=1) + "\n", encoding="utf-8")
