"""The commands and links of the README. Its Python examples run with all other examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lehr.cli.main import app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```console\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for command in commands:
        program, *words = shlex.split(command, comments=True)
        assert program == "lehr"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{command}: {result.output}"
    made = {file.name for file in tmp_path.iterdir()}
    assert {"plan.json", "clinic.budget", "digits.html", "digits-model"} <= made


def test_every_link_to_a_file_leads_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        prose = re.sub(r"^(```+).*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
        assert [link for link in links if not (page.parent / link).exists()] == [], page
