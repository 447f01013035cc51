"""Everything that a search names is tried before its first trial, so that none fails by a slip of the pen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lehr.configuration import FORMS, Configuration
from lehr.data.augmentation import Augmentation
from lehr.data.augmentation import named as augmentation_named
from lehr.errors import InvalidValue, LehrError
from lehr.networks.by_name import build
from lehr.planning.plan import Plan
from lehr.search.applying import why_not_scaled
from lehr.search.asked import Search
from lehr.search.dimension import Dimension, Value
from lehr.search.space import DECIDING, Parameters
from lehr.update import averaging


def refuse_what_cannot_be_tried(search: Search, *, plan: Plan | None = None) -> None:
    """An error that names the setting, where one of its values cannot be had. No record is read."""
    _refuse_nothing_to_score(search)
    _build(search.trial({}, plan=plan))  # what is wrong without any of them is not their fault
    if "batch_factor" in search.space:
        _refuse_unequal_steps(search)
    for dimension in search.space.dimensions:
        for value in dimension.tried:
            _try(search, dimension, value, plan)


def refuse_unfit_records(search: Search, *, data_dir: Path | None = None) -> None:
    """An error where all trials would fail for one reason: the records cannot be used, or no network takes them.

    The records are read, and networks are tried on zeros of their shape. Nothing is spent.
    """
    models = [search.trial({}).model]
    for dimension in search.space.dimensions:
        if dimension.name == "network" or dimension.name.startswith("model."):
            models += [search.trial(_beside_others(search, dimension, value)).model for value in dimension.tried]
    search.trial({}).refuse_unfit(models, data_dir=data_dir)


def _try(search: Search, dimension: Dimension, value: Value, plan: Plan | None) -> None:
    try:
        _build(search.trial(_beside_others(search, dimension, value), plan=plan))
    except LehrError as error:
        reason = f"{error.name} must be {error.allowed}" if isinstance(error, InvalidValue) else str(error)
        allowed = f"a value that a run can be made with ({reason})"
        raise InvalidValue(f"{dimension.name} of [search.space]", allowed=allowed, given=value) from error


def _beside_others(search: Search, dimension: Dimension, value: Value) -> Parameters:
    """The value, beside such choices of the others that it is asked for."""
    for parameters in _choices(search, dimension, value):
        if dimension.name in parameters:
            return parameters
    allowed = "left out where it is never asked for: momentum and dampening belong to sgd, views to an augmentation"
    raise InvalidValue(dimension.name, allowed=allowed, given=value)


def _choices(search: Search, dimension: Dimension, value: Value) -> Iterator[Parameters]:
    """The first choices of all the others, with every choice of those that decide what else is asked for."""
    deciding = [other for other in search.space.dimensions if other.name in DECIDING and other.name != dimension.name]
    for chosen in itertools.product(*(other.tried for other in deciding)):
        said = {dimension.name: value} | {other.name: one for other, one in zip(deciding, chosen, strict=True)}
        yield search.space.chosen(lambda other, said=said: said.get(other.name, other.tried[0]))  # type: ignore[misc]


def _build(configuration: Configuration) -> None:
    """Whatever can be made without records: the plan, the method, the network, augmentation and averaging."""
    configuration.method_and_plan()
    said = dict(configuration.model)
    if "network" in said:
        build(said.pop("network"), **said)
    augmentation = configuration.training.get("augmentation", "none")
    if isinstance(augmentation, str):
        augmentation_named(augmentation)
    else:
        Augmentation.from_json(augmentation)
    if "averaging" in configuration.training:
        averaging.from_json(configuration.training["averaging"])


def _refuse_nothing_to_score(search: Search) -> None:
    data = search.configuration.data if search.data is None else search.data
    is_known = not any(form in data for form in FORMS)
    has_test = any(f"test_{form}" in data for form in FORMS)
    if not (is_known or has_test or search.configuration.training.get("held_out_fraction")):
        allowed = "given for a search: test_npz or test_folder, or a held_out_fraction of the records themselves"
        raise InvalidValue("test records", allowed=allowed, given=None)


def _refuse_unequal_steps(search: Search) -> None:
    method, _ = replace(search.configuration, plan=search.plan).method_and_plan()
    if (allowed := why_not_scaled(search.plan, method)) is not None:
        allowed = f"left out of a configuration without {allowed}"
        raise InvalidValue("batch_factor of [search.space]", allowed=allowed, given=search.configuration.method)
