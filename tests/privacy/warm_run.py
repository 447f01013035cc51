"""Imported by the server that forks runs: everything that is slow the first time has happened before a fork."""

from __future__ import annotations

import tempfile

from tests.privacy.test_killed_runs import train

with tempfile.TemporaryDirectory() as folder:
    train(f"{folder}/run", resume=False, steps=2)
