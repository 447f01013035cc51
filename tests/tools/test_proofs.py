from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.proofs import mechanisms_without_proof, problems, quotes, source_of

SOURCE = """
from functools import cached_property

LARGEST: int = 3
ORDERS = (
    2.0,
    3.0,
)


class Clip:
    def norm(self) -> float:
        return 1.0

    @property
    def sensitivity(self) -> float:
        return 1.0

    @cached_property
    def kept(self) -> float:
        return 2.0

    @classmethod
    def choose(cls) -> "Clip":
        return cls()
"""
QUOTED_NORM = "def norm(self) -> float:\n    return 1.0\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with one mechanism."""
    folder = tmp_path / "quoted_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "clip.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("quoted_package")]:
        del sys.modules[name]


def write_proof(package: Path, text: str) -> Path:
    proof = package / "clip.proof.md"
    proof.write_text(text)
    return proof


def quoting(name: str, source: str) -> str:
    return f"# Claim\n\n```python {name}\n{source}```\n\nQ.E.D.\n"


def test_only_fences_that_name_an_object_are_quotes() -> None:
    text = "```python\nx = 1\n```\n\n```python a.b:C.d\ny = 2\n```\n\n```text\nz\n```\n"
    assert quotes(text) == [("a.b:C.d", "y = 2\n")]


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "name, source",
    [
        ("Clip.norm", QUOTED_NORM),
        ("Clip.sensitivity", "@property\ndef sensitivity(self) -> float:\n    return 1.0\n"),
        ("Clip.kept", "@cached_property\ndef kept(self) -> float:\n    return 2.0\n"),
        ("Clip.choose", '@classmethod\ndef choose(cls) -> "Clip":\n    return cls()\n'),
        ("Clip", SOURCE[SOURCE.index("class Clip") :]),
        ("LARGEST", "LARGEST: int = 3\n"),
        ("ORDERS", "ORDERS = (\n    2.0,\n    3.0,\n)\n"),
    ],
)
def test_source_is_found_for_every_kind_of_object(name: str, source: str) -> None:
    assert source_of(f"quoted_package.clip:{name}") == source


def test_a_proof_fails_when_the_source_has_changed(package: Path) -> None:
    proof = write_proof(package, quoting("quoted_package.clip:Clip.norm", QUOTED_NORM))
    assert problems(proof) == []
    write_proof(package, quoting("quoted_package.clip:Clip.norm", QUOTED_NORM.replace("1.0", "0.5")))
    [problem] = problems(proof)
    assert "quoted_package.clip:Clip.norm is not as quoted" in problem
    assert "return 1.0" in problem


@pytest.mark.parametrize(
    "name", ["quoted_package.clip:Clip.gone", "quoted_package.gone:Clip", "quoted_package.clip:GONE"]
)
def test_a_proof_fails_when_its_object_is_gone(package: Path, name: str) -> None:
    [problem] = problems(write_proof(package, quoting(name, QUOTED_NORM)))
    assert f"{name} cannot be found" in problem


def test_a_proof_fails_when_it_quotes_nothing(package: Path) -> None:
    assert len(problems(write_proof(package, "# Claim\n\nClearly true.\n"))) == 1


def test_a_mechanism_and_its_proof_stand_together(package: Path) -> None:
    assert mechanisms_without_proof(["clip.py"], package=package) == ["clip.py"]
    write_proof(package, "")
    assert mechanisms_without_proof(["clip.py"], package=package) == []
    (package / "gone.proof.md").write_text("")
    assert mechanisms_without_proof(["gone.py"], package=package) == ["gone.py"]
