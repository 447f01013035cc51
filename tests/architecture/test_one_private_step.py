"""A step is charged in one place and released in one place: everything that trains uses ``PrivateRun``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "src" / "lehr"
# Attacks simulate single steps on records of their own; noise classes hand on to their parent.
SIMULATIONS = ("attacks/", "privacy/noise.py")
# Other releases, with noise of their own that is charged separately.
SIDE_EVENTS = {"LossOracle.private_change", "NoisyScore.score", "fill_projection"}


class Call(NamedTuple):
    """A method call: the file and function that it stands in, the object, the method, and the keywords."""

    place: str
    receiver: str
    method: str
    keywords: frozenset[str | None]


@cache
def all_calls() -> list[Call]:
    """Every method call in the package."""
    files = [path for path in sorted(PACKAGE.rglob("*.py")) if not _name(path).startswith(SIMULATIONS)]
    return [call for path in files for call in _calls(ast.parse(path.read_text(encoding="utf-8")), _name(path))]


def _name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def _calls(tree: ast.AST, file: str, inside: str = "") -> Iterator[Call]:
    for node in ast.iter_child_nodes(tree):
        name = f"{inside}.{node.name}".strip(".") if isinstance(node, ast.ClassDef | ast.FunctionDef) else inside
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keywords = frozenset(keyword.arg for keyword in node.keywords)
            yield Call(f"{file}:{inside}", getattr(node.func.value, "attr", ""), node.func.attr, keywords)
        yield from _calls(node, file, name)


def calls(method: str, *keywords: str, of: tuple[str, ...] = ()) -> list[str]:
    """``file:function`` of every call of this method with these keywords, on an attribute of one of these names."""
    found = [call for call in all_calls() if call.method == method and call.keywords >= {*keywords}]
    return [call.place for call in found if not of or call.receiver in of]


def test_one_function_writes_charges_of_runs_to_a_ledger() -> None:
    assert calls("record", "note", "counts") == ["run/replay.py:write_charge"]
    assert {place for place in calls("record") if not place.startswith("search/")} == {"run/replay.py:write_charge"}


def test_only_the_run_charges_a_step() -> None:
    charging = {place for place in calls("charge") if place.startswith(("run/", "training/", "integrations/"))}
    assert charging == {
        "run/private_run.py:PrivateRun.charge.pay",  # a step of the plan
        "run/private_run.py:PrivateRun._charge_unplanned.pay",  # a step without a plan
        "run/private_run.py:PrivateRun.steps",  # before the draw
        "run/private_run.py:PrivateStep.release",  # before the noise
    }


def test_only_the_step_turns_its_private_sum_into_a_released_one() -> None:
    places = calls("release", "noise_multiplier", "randomness")
    steps = [place for place in places if place.partition(":")[2] not in SIDE_EVENTS]
    assert sorted(steps) == ["run/mechanism.py:Mechanism.release", "run/private_run.py:PrivateStep.release"]
    # The mechanism's own release is for attacks on single steps: no loop calls it.
    assert calls("release", "planned_step") == []


def test_only_the_step_draws_records_for_training() -> None:
    assert set(calls("draw", of=("sampling", "mechanism", "planned_mechanism"))) == {
        "run/mechanism.py:Mechanism.draw",
        "run/private_run.py:PrivateRun.draw_indices",
    }
