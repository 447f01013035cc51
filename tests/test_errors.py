from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from lehr import errors
from lehr.errors import AccountantFailed, BudgetExceeded, InvalidValue, LehrError, NotPrivate, UnsupportedEvent

ERRORS = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)]
SAMPLES: dict[type[LehrError], dict[str, Any]] = {
    InvalidValue: {"name": "clip_norm", "allowed": "a finite number > 0", "given": -1},
    UnsupportedEvent: {"accountant": "pld", "event": "an event", "reason": "a reason"},
    AccountantFailed: {"accountant": "pld", "reason": "a reason"},
    NotPrivate: {"layer": "stem.1 (BatchNorm2d)", "reason": "it mixes records", "instead": "a way out"},
}


def drawn_tree(drawing: str) -> list[tuple[int, str]]:
    """Depth and name of each line of a drawn tree."""
    lines = re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?:  .*)?$", drawing, flags=re.MULTILINE)
    return [(len(branch) // 4, name) for branch, name in lines]


def class_tree(root: type[LehrError], depth: int = 0) -> list[tuple[int, str]]:
    """Depth and name of a class and of its subclasses, in the order of their definition."""
    below = (class_tree(child, depth + 1) for child in root.__subclasses__() if child.__module__ == errors.__name__)
    return [(depth, root.__name__), *(line for lines in below for line in lines)]


def test_the_tree_in_the_docstring_is_that_of_the_classes() -> None:
    drawing = inspect.getdoc(errors) or ""
    assert drawn_tree(drawing) == class_tree(LehrError)
    without = "\n".join(line for line in drawing.splitlines() if "DamagedFile" not in line)
    assert drawn_tree(without) != class_tree(LehrError)
    assert all(issubclass(error, LehrError) and error.__doc__ for error in ERRORS)
    assert issubclass(InvalidValue, ValueError)


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_error_has_its_values_and_shows_them(kind: type[LehrError]) -> None:
    error, given = kind(**SAMPLES[kind]), SAMPLES[kind]
    assert {name: getattr(error, name) for name in given} == given
    assert all(str(value) in str(error) for value in given.values())


@pytest.mark.parametrize("error", [*(kind(**given) for kind, given in SAMPLES.items()), BudgetExceeded("spent")])
def test_an_error_of_another_process_arrives_whole(error: LehrError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))
