"""Every example in a help text or on a page of docs/ is run as it stands."""

from __future__ import annotations

import doctest
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import chdir
from functools import cache
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from lehr.cli.main import COMMANDS, app
from lehr.training import earlier_fits

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(page.name for page in DOCS.glob("*.md") if "```console\n$ " in page.read_text(encoding="utf-8"))
GROUPS = {
    "budget": ("create", "show", "fits", "reserve", "spend", "settle"),
    "certificate": ("issue", "show", "check"),
    "prior": ("make", "show"),
    "recipe": ("list", "show"),
    "data": ("list", "get", "check"),
}
LEAVES = [(name,) for name in COMMANDS if name not in GROUPS] + [
    (group, name) for group in GROUPS for name in GROUPS[group]
]


def _run(line: str) -> tuple[int, str]:
    words = shlex.split(line)
    assert words[0] == "lehr"
    earlier_fits.forget()  # a command is a process of its own
    result = CliRunner().invoke(app, words[1:])
    return result.exit_code, result.output


def _joined(text: str) -> str:
    return re.sub(r"\\\n\s*", "", text)


def _console_examples(page: str) -> Iterator[tuple[str, str]]:
    """Each command of the console blocks of a page, and what it says is printed."""
    for block in re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL):
        for example in re.split(r"^\$ ", _joined(block), flags=re.MULTILINE)[1:]:
            command, _, output = example.partition("\n")
            yield command, output


def _differs(want: str, got: str) -> bool:
    lines = [line.rstrip() for line in got.splitlines()]
    return not doctest.OutputChecker().check_output(want.strip(), "\n".join(lines).strip(), doctest.ELLIPSIS)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture(scope="module")
def folder_after(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """A folder in which these commands were run. Examples begin alike, and what they share is run once."""

    @cache
    def after(lines: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("examples")
        if lines:
            shutil.copytree(after(lines[:-1]), folder, dirs_exist_ok=True)
            with chdir(folder):
                code, output = _run(lines[-1])
            assert code == 0, f"{lines[-1]}: {output}"
        return folder

    return after


def test_every_command_is_listed_here_and_in_the_documentation() -> None:
    page = (DOCS / "command_line.md").read_text(encoding="utf-8")
    assert all(f"`lehr {' '.join(command)}`" in page for command in LEAVES)
    overview = typer.main.get_command(app)
    for group, names in GROUPS.items():
        found = overview.get_command(None, group)  # type: ignore[attr-defined]
        assert set(found.commands) == set(names)


@pytest.mark.slow  # all of them together
@pytest.mark.parametrize("command", [(), *((group,) for group in GROUPS), *LEAVES], ids=" ".join)
def test_example_of_the_help_works(command: tuple[str, ...], folder_after: Callable[[tuple[str, ...]], Path]) -> None:
    _, shown = _run("lehr " + " ".join(command) + " --help")
    examples = re.findall(r"^ +(lehr .*)$", _joined(shown.partition("Example:")[2]), flags=re.MULTILINE)
    assert examples[-1].startswith("lehr " + " ".join(command))
    folder_after(tuple(examples))


@pytest.mark.slow  # all of them together
@pytest.mark.parametrize("page", PAGES)
def test_examples_of_a_page_print_what_it_says(page: str) -> None:
    examples = list(_console_examples((DOCS / page).read_text(encoding="utf-8")))
    assert examples
    code = 0
    for command, want in examples:
        if command == "echo $?":
            got = str(code)
        else:
            code, got = _run(command)
        assert not _differs(want, got), f"{command}\n--- the page says\n{want}\n--- it prints\n{got}"


def test_wrong_output_on_a_page_is_found() -> None:
    [(command, want)] = _console_examples("```console\n$ lehr --version\nlehr 99\n```")
    assert _differs(want, _run(command)[1])
