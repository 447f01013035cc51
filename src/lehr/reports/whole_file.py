"""Moved to lehr.files.whole_file."""

from lehr.files.whole_file import *  # noqa: F403
