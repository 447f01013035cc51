from __future__ import annotations

import inspect
import pickle
import re

import pytest

from lehr import errors
from lehr.errors import AccountantFailed, InvalidValue, LehrError, NotPrivate, UnsupportedEvent

ERRORS = [thing for _, thing in inspect.getmembers(errors, inspect.isclass) if issubclass(thing, Exception)]
SAMPLES = [
    InvalidValue("clip_norm", allowed="a finite number > 0", given=-1),
    UnsupportedEvent(accountant="pld", event="an event", reason="a reason"),
    AccountantFailed(accountant="pld", reason="a reason"),
    NotPrivate(layer="stem.1 (BatchNorm2d)", reason="a reason", instead="a way out"),
    errors.BudgetExceeded("the budget of 'survey' would be passed"),
]


def drawn_tree(drawing: str) -> list[tuple[int, str]]:
    """Depth and name of each line of a drawn tree."""
    lines = re.findall(r"^([│├└─ ]*)([A-Z]\w+)(?:  .*)?$", drawing, flags=re.MULTILINE)
    return [(len(branch) // 4, name) for branch, name in lines]


def class_tree(root: type[LehrError], depth: int = 0) -> list[tuple[int, str]]:
    """Depth and name of a class and of all that derive from it, in the order of their definition."""
    below = (class_tree(child, depth + 1) for child in root.__subclasses__() if child.__module__ == errors.__name__)
    return [(depth, root.__name__), *(line for lines in below for line in lines)]


def test_the_tree_at_the_top_of_the_file_is_the_tree_of_the_classes() -> None:
    assert drawn_tree(inspect.getdoc(errors) or "") == class_tree(LehrError)


def test_a_tree_that_leaves_a_class_out_is_not_the_tree_of_the_classes() -> None:
    drawing = "\n".join(line for line in (inspect.getdoc(errors) or "").splitlines() if "DamagedFile" not in line)
    assert drawn_tree(drawing) != class_tree(LehrError)


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_derives_from_the_root_and_says_when_it_is_raised(error: type[Exception]) -> None:
    assert issubclass(error, LehrError)
    assert error.__doc__


def test_an_invalid_value_is_also_a_value_error() -> None:
    with pytest.raises(ValueError, match="clip_norm"):
        raise InvalidValue("clip_norm", allowed="a finite number > 0", given=-1)


def test_an_invalid_value_names_the_argument_what_is_allowed_and_what_was_given() -> None:
    error = InvalidValue("clip_norm", allowed="a finite number > 0", given="0.1")
    assert str(error) == "clip_norm must be a finite number > 0; given: '0.1'"
    assert (error.name, error.allowed, error.given) == ("clip_norm", "a finite number > 0", "0.1")


def test_an_unsupported_event_names_the_accountant_the_event_and_the_reason() -> None:
    error = UnsupportedEvent(accountant="pld", event="RepeatAndSelect(…)", reason="its loss distribution is not known")
    assert str(error) == "the accountant 'pld' cannot count RepeatAndSelect(…): its loss distribution is not known"
    assert (error.accountant, error.event) == ("pld", "RepeatAndSelect(…)")
    assert error.reason == "its loss distribution is not known"


def test_an_accountant_that_failed_is_named_with_its_reason() -> None:
    error = AccountantFailed(accountant="pld", reason="the grid would need 10^9 points")
    assert str(error) == "the accountant 'pld' gives no bound here: the grid would need 10^9 points"
    assert (error.accountant, error.reason) == ("pld", "the grid would need 10^9 points")


def test_a_layer_that_is_not_private_is_named_with_the_reason_and_the_way_out() -> None:
    error = NotPrivate(layer="stem.1 (BatchNorm2d)", reason="it mixes records", instead="group_norm_instead(model)")
    expected = "stem.1 (BatchNorm2d) cannot be trained privately: it mixes records. Instead: group_norm_instead(model)"
    assert str(error) == expected
    assert (error.layer, error.reason, error.instead) == (
        "stem.1 (BatchNorm2d)",
        "it mixes records",
        "group_norm_instead(model)",
    )


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_raised_in_another_process_arrives_whole(error: LehrError) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)
