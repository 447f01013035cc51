"""What the README tells a newcomer to type. Its Python examples run with all other examples."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_run_one_after_another(tmp_path: Path) -> None:
    script = "\n".join(re.findall(r"^```console\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        ["sh", "-e", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    made = {file.name for file in tmp_path.iterdir()}
    assert {"plan.json", "clinic.budget", "certificate.json", "digits.html", "digits-model"} <= made


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page
