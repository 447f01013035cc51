"""Plants a bug into a copy of the package, and asks the tests that are said to catch it whether they do.

Python and torch are started once: every plant is tried in a fork of a process that has imported torch and nothing of
the package. The copy stays where it is, with one file changed for each plant, so that only that file is compiled anew.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any, NoReturn, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
SLOW_TO_IMPORT = ("torch", "torch._dynamo", "torch.func", "scipy.stats", "dp_accounting", "safetensors.torch")
MOST_SECONDS = 300  # of one try, on however busy a machine: a plant may make a loop endless
# A test notices a bug by what it asserts, or by a refusal of the package's own. Any other error is a plant that breaks
# the program, which nobody needs a test for.
_NOTICED = (AssertionError, pytest.fail.Exception)


class Rotten(Exception):
    """A plant that does not fit the package, or whose tests cannot be run."""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A bug: what is changed in which file of the package, what that breaks, and the tests that notice it."""

    name: str
    where: str  # a file, below the package
    edits: tuple[tuple[str, str], ...]  # text that occurs exactly once, and its replacement
    does: str
    breaks: str
    caught_by: tuple[str, ...]  # tests by file and name, below tests/

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> Self:
        """The bug of a table of planted_bugs.toml."""
        given, edits = dict(table), []
        for hunk in given.pop("diff").split("\n@@\n"):
            lines = [line or " " for line in hunk.split("\n")]
            old, new = ("".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +"))
            edits.append((old, new))
        return cls(edits=tuple(edits), caught_by=tuple(given.pop("caught_by")), **given)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which tests failed, without their parameters; ``trouble`` where this was no try at all."""

    failed: frozenset[str]
    passed: frozenset[str]
    trouble: str = ""


class Copy:
    """A copy of the package in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src" / "lehr", self.source / "lehr", ignore=ignored)

    @classmethod
    @contextmanager
    def made(cls) -> Iterator[Self]:
        """A copy for as long as it is needed."""
        with tempfile.TemporaryDirectory(prefix="lehr-planted-") as folder:
            yield cls(Path(folder).resolve())

    def tried(self, bug: Planted, tests: Sequence[str] | None = None) -> Verdict:
        """How the tests go with the bug in place: those that are said to catch it, where no others are named."""
        file = self.source / "lehr" / bug.where
        original = file.read_text(encoding="utf-8")
        try:
            self._write(file, edited(bug, original))
            return self.run(bug.caught_by if tests is None else tests)
        finally:
            self._write(file, original)

    def run(self, tests: Iterable[str], *, keeps_bytecode: bool = False) -> Verdict:
        """How these tests go with the package as it is here now, in a process of their own."""
        sys.stdout.flush()
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            os.close(reading)
            _run_in_child(self.source, sorted(set(tests)), writing, keeps_bytecode=keeps_bytecode)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as answer:
            told = answer.read()
        os.waitpid(process, 0)
        if not told:
            return Verdict(failed=frozenset(), passed=frozenset(), trouble="the process of the tests did not end")
        found = json.loads(told)
        return Verdict(
            failed=frozenset(found["failed"]), passed=frozenset(found["passed"]), trouble=str(found["trouble"])
        )

    @staticmethod
    def _write(file: Path, text: str) -> None:
        # Bytecode is known by size and second alone, and two plants may agree in both.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")


def edited(bug: Planted, text: str) -> str:
    """The text of a file with the bug in it."""
    for old, new in bug.edits:
        if text.count(old) != 1:
            raise Rotten(f"{bug.name}: {bug.where} has {text.count(old)} times, and not once:\n{old}")
        text = text.replace(old, new)
    try:
        compile(text, bug.where, "exec")
    except SyntaxError as error:
        raise Rotten(f"{bug.name}: {bug.where} is no Python any more: {error}") from error
    return text


def prepare() -> None:
    """Import what every try needs. The package itself must not have been imported: a fork would keep it."""
    if any(_is_of_the_package(name) for name in sys.modules):
        raise Rotten("the package has been imported into this process already; plants need one of their own")
    os.environ["OMP_NUM_THREADS"] = "1"  # threads do not survive a fork
    for name in SLOW_TO_IMPORT:
        importlib.import_module(name)
    gc.freeze()  # what stays for good need not be looked through in every fork


@dataclass(eq=False)  # pytest keeps its plugins in sets
class _Watching:
    """Notes how each test went. Once one of its cases has failed, the others of a test are left out."""

    failed: set[str] = field(default_factory=set)
    passed: set[str] = field(default_factory=set)
    troubles: list[str] = field(default_factory=list)

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if _test(item.nodeid) in self.failed:
            pytest.skip("it has failed already")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        outcome: Any = yield
        report: pytest.TestReport = outcome.get_result()
        if report.when == "call" and report.passed:
            self.passed.add(_test(item.nodeid))
        if report.failed and call.excinfo is not None:
            if report.when != "call" or not _is_noticed(call.excinfo.value):
                self.troubles.append(f"{item.nodeid}: {call.excinfo.exconly()}")
            else:
                self.failed.add(_test(item.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.troubles.append(f"{report.nodeid} cannot be collected: {report.longrepr}")

    def told(self, source: Path, code: int, *, said: str) -> dict[str, object]:
        troubles = [*self.troubles, *_from_elsewhere(source)]
        if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            troubles.append(f"pytest ended with {code}: {said[-2000:]}")
        return {
            "failed": sorted(self.failed),
            "passed": sorted(self.passed - self.failed),
            "trouble": "\n".join(troubles),
        }


def _is_noticed(error: BaseException) -> bool:
    refusals = ((kind.__module__, kind.__name__) for kind in type(error).__mro__)
    return isinstance(error, _NOTICED) or ("lehr.errors", "LehrError") in refusals


def _run_in_child(source: Path, tests: Sequence[str], writing: int, *, keeps_bytecode: bool) -> NoReturn:
    """Run the tests, tell how they went, and end this process without any of what its parent has to clean up."""
    try:
        signal.alarm(MOST_SECONDS)
        sys.dont_write_bytecode = not keeps_bytecode
        sys.path.insert(0, str(source))
        os.environ["PYTHONPATH"] = str(source)
        os.chdir(ROOT)
        said = source.parent / "said.txt"
        with said.open("w", encoding="utf-8") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        watching = _Watching()
        code = int(pytest.main(_arguments(source, tests), plugins=[watching]))
        told = watching.told(source, code, said=said.read_text(encoding="utf-8"))
        with os.fdopen(writing, "w", encoding="utf-8") as answer:
            json.dump(told, answer)
    finally:
        os._exit(0)


def _arguments(source: Path, tests: Sequence[str]) -> list[str]:
    return [
        "-q",
        *("-p", "no:cacheprovider", "-p", "no:xdist"),
        *("-p", "no:unraisableexception"),  # it collects garbage five times at every end
        f"--basetemp={source.parent / 'made'}",  # or the folders of earlier sessions are cleared away each time
        *("-o", f"pythonpath={source} ."),  # in place of that of the repository
        *(f"tests/{test}" for test in tests),
    ]


def _from_elsewhere(source: Path) -> Iterator[str]:
    """Which modules of the package did not come from the copy."""
    found = {name: module for name, module in sys.modules.items() if _is_of_the_package(name)}
    if not found:
        yield "no test has imported the package"
    for name, module in found.items():
        file = getattr(module, "__file__", None)
        if file is None or not Path(file).is_relative_to(source):
            yield f"{name} was imported from {file}, and not from the copy"


def _is_of_the_package(name: str) -> bool:
    return name == "lehr" or name.startswith("lehr.")


def _test(nodeid: str) -> str:
    """A test as it is named here: below tests/, without its parameters."""
    return nodeid.partition("[")[0].removeprefix("tests/")
