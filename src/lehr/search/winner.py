"""The best trial as a configuration that ``lehr train`` takes: at its full batch, on the records of ``[data]``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lehr.configuration import TABLES, Configuration
from lehr.files import whole_file
from lehr.search import toml_text
from lehr.search.asked import Search
from lehr.search.dimension import Value

FILE = "winner.toml"


def winning(search: Search, parameters: Mapping[str, Value], *, settings_chosen_on: str) -> Configuration:
    """The run that the settings are for, which says on what kind of records they were chosen."""
    reference = search.reference(parameters)
    return replace(reference, privacy=_stated(reference.privacy, settings_chosen_on))


def write(path: Path, configuration: Configuration, *, about: str) -> None:
    """The configuration as TOML, under a few words about where it comes from."""
    tables = {table: getattr(configuration, table) for table in TABLES}
    whole_file.write(path, toml_text.comment(about) + "\n" + toml_text.written(tables), overwrite=True)


def _stated(privacy: Mapping[str, Any], settings_chosen_on: str) -> dict[str, Any]:
    if "stated" in privacy:
        return {**privacy, "stated": {**privacy["stated"], "settings_chosen_on": settings_chosen_on}}
    return {**privacy, "settings_chosen_on": settings_chosen_on}
