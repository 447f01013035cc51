"""On which terms a search may look at its records: freely where nobody needs protection, and otherwise for a price."""

from __future__ import annotations

from dataclasses import dataclass

from lehr.errors import InvalidValue
from lehr.planning.plan import Plan
from lehr.run_shape import PRIVATE, PUBLIC
from lehr.search.asked import Search


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a search has to keep to, and what may be said of its winner.

    ``num_trials`` is the number of trials where it was fixed beforehand. With a ``plan`` every trial runs at that one,
    whatever its settings. A study shows and keeps all of its trials: terms under which they must stay secret are not
    for a study.
    """

    words: str
    settings_chosen_on: str = PUBLIC
    num_trials: int | None = None
    plan: Plan | None = None
    may_prune: bool = True


def free_terms(search: Search) -> Terms:
    """The terms on records that are declared to need no protection; of others, an error that names the ways."""
    if search.declared == PRIVATE:
        allowed = (
            "public or synthetic for a search that is free, in [data] or in [search.data], whose records are then "
            "searched on; on private records the search must be paid for (--pay selection, or --pay composition)"
        )
        raise InvalidValue("declared", allowed=allowed, given=PRIVATE)
    return Terms(words=f"free: the records that are searched on are declared {search.declared}")
