"""A search on private records before its first trial: its price, and one plan that all of its trials have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from lehr import accounting
from lehr.claims import Claim
from lehr.configuration import Configuration, statements
from lehr.errors import InvalidValue
from lehr.events import Event, counted
from lehr.planning.plan import Plan
from lehr.planning.search_cost import Paid, RepeatedSelection, Trial, plan_for, refuse_what_is_not_searched
from lehr.run_shape import PRIVATE
from lehr.search.asked import Search
from lehr.search.checking import refuse_what_cannot_be_tried
from lehr.search.defaults import usual_space
from lehr.search.names import NO_PRUNER
from lehr.search.space import Parameters, Space

RANDOM, BATCH_FACTOR = "random", "batch_factor"
LOOKS = 64  # draws of settings that are looked at before the first trial


@dataclass(frozen=True, kw_only=True)
class PaidSearch:
    """What is searched for, at which price, and the plan of every trial."""

    search: Search
    price: Paid
    plan: Plan
    trial_event: Event

    @property
    def trial(self) -> Trial:
        """What each run of it is told."""
        return Trial(price=self.price, event=self.trial_event)

    @property
    def event(self) -> Event:
        """What the whole search does to the records."""
        return self.price.event(self.trial_event)

    def claim(self) -> Claim:
        """What holds for the whole search."""
        return accounting.claim(self.event, delta=self.plan.delta, adjacency=self.plan.adjacency)

    def configuration(self, parameters: Parameters) -> Configuration:
        """The run of one trial."""
        return self.search.trial(parameters, plan=self.plan)

    def how(self) -> dict[str, Any]:
        """What every trial is trained with: that it is one, and what its certificate passes on."""
        stated = self.search.configuration.privacy.get("stated")
        if stated is None:
            return {"trial_of": self.trial, "settings_chosen_on": PRIVATE}
        return {"trial_of": self.trial, "stated": statements({**stated, "settings_chosen_on": PRIVATE})}

    def refuse_other_events(self, generator: torch.Generator) -> None:
        """Refuse a space in which settings change what a trial does to the records; some of it is looked at."""
        refuse_what_cannot_be_tried(self.search, plan=self.plan)
        for _ in range(LOOKS):
            parameters = self.search.space.drawn(generator)
            found = self.configuration(parameters).allowance().event
            if counted(found) != counted(self.trial_event):
                allowed = f"of settings with which every trial does the same to the records ({self.trial_event})"
                raise InvalidValue("[search.space]", allowed=allowed, given=f"{parameters}, which does {found}")


def paid_search(search: Search, price: Paid, *, epsilon: float | None = None) -> PaidSearch:
    """The search with the least noise at which all of it stays within ε, or with the noise that it says itself."""
    _refuse_unfit(search, price)
    if epsilon is not None:
        search = replace(search, configuration=search.configuration.with_words(privacy={"epsilon": epsilon}))
    said = search.configuration.privacy
    if "epsilon" in said and "noise_multiplier" in said:
        allowed = "left out beside epsilon: it is found so that the whole search stays within that"
        raise InvalidValue("noise_multiplier", allowed=allowed, given=said["noise_multiplier"])
    search = _without_batches(search)
    _refuse_numbers_of_the_plan(search)
    plan = search.plan
    refuse_what_is_not_searched(plan)
    if "epsilon" in said:
        beside = search.configuration.with_plan(plan).allowance().beside
        plan = plan_for(price, plan, epsilon=said["epsilon"], beside=beside)
    return PaidSearch(
        search=search, price=price, plan=plan, trial_event=search.configuration.with_plan(plan).allowance().event
    )


def _without_batches(search: Search) -> Search:
    """The usual settings without other batches, which cost something else; where a file names them it is refused."""
    configuration = search.configuration
    if search.space != usual_space(configuration, search.plan, searched_on=configuration.data):
        return search
    return replace(search, space=Space(tuple(d for d in search.space.dimensions if d.name != BATCH_FACTOR)))


def _refuse_unfit(search: Search, price: Paid) -> None:
    if search.data is not None:
        allowed = "left out where the search is paid for: it is made on the records of [data]"
        raise InvalidValue("[search.data]", allowed=allowed, given=dict(search.data))
    if search.declared != PRIVATE:
        allowed = f"left out on {search.declared} records: a search on them is free"
        raise InvalidValue("pay", allowed=allowed, given=price)
    said = search.configuration.privacy
    if "simulated_batch_size" in said:
        allowed = "left out on private records: a simulation has next to no noise, and would protect nobody"
        raise InvalidValue("simulated_batch_size", allowed=allowed, given=said["simulated_batch_size"])
    if said.get("accounting") == "published":
        allowed = "proven for a search on private records"
        raise InvalidValue("accounting", allowed=allowed, given="published")
    if isinstance(price, RepeatedSelection):
        _refuse_dependent_trials(search)


def _refuse_numbers_of_the_plan(search: Search) -> None:
    for dimension in search.space.dimensions:
        if dimension.name == BATCH_FACTOR or dimension.name.startswith("privacy."):
            allowed = "of settings with which every trial does the same to the records"
            raise InvalidValue("[search.space]", allowed=allowed, given=dimension.name)


def _refuse_dependent_trials(search: Search) -> None:
    """The theorem is about independent trials of which nobody knows the number, and each of them whole."""
    if search.sampler != RANDOM:
        allowed = "random: trials must not depend on one another where only the best of them is paid for"
        raise InvalidValue("sampler", allowed=allowed, given=search.sampler)
    if search.pruner != NO_PRUNER:
        allowed = "none: every trial is a full run where only the best of them is paid for"
        raise InvalidValue("pruner", allowed=allowed, given=search.pruner)
    if search.seed is not None:
        allowed = "left out: whoever could draw the settings again would see which trial has won"
        raise InvalidValue("seed", allowed=allowed, given=search.seed)
