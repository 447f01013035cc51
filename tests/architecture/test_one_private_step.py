"""A step is charged in one place and released in one place: whoever trains is a client of ``PrivateRun``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "lehr"
# Attacks simulate single steps on records of their own; noise classes hand on to their parent.
SIMULATIONS = ("attacks/", "privacy/noise.py")
# What is released beside steps, with noise of its own purpose that is charged beside them.
SIDE_EVENTS = {"LossOracle.private_change", "NoisyScore.score", "fill_projection"}


def calls(attribute: str, *keywords: str, of: tuple[str, ...] = ()) -> Iterator[str]:
    """``file:function`` of every call of this method with these keywords, on something of one of these names."""
    for path in sorted(PACKAGE.rglob("*.py")):
        where = str(path.relative_to(PACKAGE))
        if not where.startswith(SIMULATIONS):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for inside, call, receiver in _calls(tree):
                is_named = not of or (receiver.attr if isinstance(receiver, ast.Attribute) else "") in of
                if call.func.attr == attribute and {*keywords} <= {one.arg for one in call.keywords} and is_named:  # type: ignore[attr-defined]
                    yield f"{where}:{inside}"


def _calls(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.Call, ast.expr]]:
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{inside}.{node.name}".strip(".")
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield inside, node, node.func.value
        yield from _calls(node, name)


def test_one_function_writes_charges_of_runs_to_a_ledger() -> None:
    assert list(calls("record", "note", "counts")) == ["run/replay.py:write_charge"]
    assert {found for found in calls("record") if not found.startswith("search/")} == {"run/replay.py:write_charge"}


def test_only_the_run_charges_a_step() -> None:
    charging = {found for found in calls("charge") if found.startswith(("run/", "training/", "integrations/"))}
    assert charging == {
        "run/private_run.py:PrivateRun.charge.pay",  # a step of the plan
        "run/private_run.py:PrivateRun._charge_open",  # a step without a plan
        "run/private_run.py:PrivateRun.steps",  # before the draw
        "run/private_run.py:PrivateStep.release",  # before the noise
    }


def test_only_the_step_turns_its_private_sum_into_a_released_one() -> None:
    found = list(calls("release", "noise_multiplier", "randomness"))
    steps = [place for place in found if place.partition(":")[2] not in SIDE_EVENTS]
    assert sorted(steps) == ["run/mechanism.py:Mechanism.release", "run/private_run.py:PrivateStep.release"]
    # The mechanism's own release is for attacks on single steps: no loop calls it.
    assert list(calls("release", "planned_step")) == []


def test_only_the_step_draws_records_for_training() -> None:
    assert set(calls("draw", of=("sampling", "mechanism", "planned_mechanism"))) == {
        "run/mechanism.py:Mechanism.draw",
        "run/private_run.py:PrivateRun.draw_indices",
    }
