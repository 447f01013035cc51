"""A search on private records is refused where its price would not hold, and planned so that all of it fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr import accounting
from lehr.errors import InvalidValue
from lehr.events import Gaussian, Repeated, counted
from lehr.planning.search_cost import Composition, Paid, RepeatedSelection
from lehr.search.asked import Search
from lehr.search.paid import paid_search
from tests.search.paid_searches import SPACE, paid_in, search_in

SELECTION = RepeatedSelection(mean=3)
WAYS: tuple[Paid, ...] = (SELECTION, Composition(3))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("price", WAYS, ids=str)
def test_the_noise_is_the_least_with_which_the_whole_search_stays_within_epsilon(tmp_path: Path, price: Paid) -> None:
    paid = paid_in(tmp_path, price)
    assert 5.99 < paid.claim().epsilon <= 6
    assert paid.claim().epsilon > accounting.bound(paid.trial_event, delta=1e-3).epsilon
    assert paid.plan.steps == 4
    louder = paid_search(paid.search, price, epsilon=2.0)
    assert louder.plan.noise_multiplier > paid.plan.noise_multiplier


def test_noise_that_is_said_is_kept_and_its_price_follows(tmp_path: Path) -> None:
    search = search_in(tmp_path)
    said = {"noise_multiplier": 3.0, "steps": 4, "expected_batch_size": 8, "delta": 1e-3}
    search = replace(search, configuration=replace(search.configuration, privacy=said))
    paid = paid_search(search, SELECTION)
    assert paid.plan.noise_multiplier == 3.0
    assert paid.event == SELECTION.event(paid.plan.event)


def scored_on_held_out(search: Search) -> Search:
    data = {key: value for key, value in search.configuration.data.items() if key != "test_npz"}
    own = replace(search.configuration, data=data).with_words(training={"held_out_fraction": 0.25})
    return replace(search, configuration=own)


def test_noised_scores_are_part_of_every_trial(tmp_path: Path) -> None:
    paid = paid_search(scored_on_held_out(search_in(tmp_path)), SELECTION)
    assert counted(paid.trial_event)[Gaussian(20.0)] == 1
    assert paid.claim().epsilon <= 6


def test_every_trial_has_the_one_plan_whatever_its_settings(tmp_path: Path) -> None:
    paid = paid_in(tmp_path)
    drawn = [paid.search.space.drawn(generator()) for _ in range(3)]
    assert {paid.configuration(settings).method_and_plan()[1] for settings in drawn} == {paid.plan}
    paid.refuse_other_events(generator())


@pytest.mark.parametrize("dimension", ["privacy.steps", "batch_factor", "privacy.expected_batch_size"])
def test_settings_that_are_numbers_of_the_plan_are_refused(tmp_path: Path, dimension: str) -> None:
    with pytest.raises(InvalidValue, match="every trial does the same to the records"):
        paid_in(tmp_path, space={**SPACE, dimension: [4, 8]})


def test_settings_that_change_the_event_of_a_trial_in_another_way_are_refused(tmp_path: Path) -> None:
    search = scored_on_held_out(search_in(tmp_path, space={"training.held_out_noise_multiplier": [20.0, 9.0]}))
    paid = paid_search(search, SELECTION)
    with pytest.raises(InvalidValue, match="every trial does the same to the records"):
        paid.refuse_other_events(generator())


@pytest.mark.parametrize("price", WAYS, ids=str)
@pytest.mark.parametrize(
    "tables,says",
    [
        ({"privacy": {"simulated_batch_size": 2}}, "simulated_batch_size must be left out on private records"),
        ({"data": {"declared": "synthetic"}}, "pay must be left out on synthetic records"),
        ({"privacy": {"accounting": "published"}}, "accounting must be proven"),
        ({"privacy": {"noise_multiplier": 1.0}}, "noise_multiplier must be left out beside epsilon"),
    ],
)
def test_what_cannot_be_paid_for_is_refused_by_name(
    tmp_path: Path, price: Paid, tables: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidValue, match=says):
        paid_in(tmp_path, price, **tables)


@pytest.mark.parametrize(
    "changed,says",
    [
        ({"sampler": "tpe"}, "sampler must be random"),
        ({"pruner": "median"}, "pruner must be none"),
        ({"seed": 3}, "seed must be left out"),
    ],
)
def test_a_selection_is_of_independent_whole_trials_and_a_composition_of_any(
    tmp_path: Path, changed: dict[str, Any], says: str
) -> None:
    search = replace(search_in(tmp_path), **changed)
    with pytest.raises(InvalidValue, match=says):
        paid_search(search, SELECTION)
    paid_search(search, Composition(3))


def test_other_records_to_search_on_are_refused(tmp_path: Path) -> None:
    search = replace(search_in(tmp_path), data={"name": "digits"})
    with pytest.raises(InvalidValue, match=r"\[search.data\] must be left out"):
        paid_search(search, SELECTION)


def test_what_is_stated_is_passed_on_with_where_the_settings_come_from(tmp_path: Path) -> None:
    stated = {"settings_chosen_on": "public", "unit_of_privacy": "one patient"}
    how = paid_in(tmp_path, privacy={"stated": stated}).how()
    assert (how["stated"].settings_chosen_on, how["stated"].unit_of_privacy) == ("private", "one patient")
    assert paid_in(tmp_path).how()["settings_chosen_on"] == "private"


def test_a_trial_knows_what_all_trials_do(tmp_path: Path) -> None:
    paid = paid_in(tmp_path, Composition(3))
    assert paid.trial.event == paid.plan.event
    paid.trial.refuse_other(paid.plan.event)
    with pytest.raises(InvalidValue, match="what was fixed for every trial"):
        paid.trial.refuse_other(Repeated(paid.plan.step_event, 5))
