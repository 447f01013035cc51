"""Moved to lehr.files.strict_json."""

from lehr.files.strict_json import *  # noqa: F403
