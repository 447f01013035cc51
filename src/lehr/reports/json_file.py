"""Moved to lehr.files.json_file."""

from lehr.files.json_file import *  # noqa: F403
