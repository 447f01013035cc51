"""Which rule a run is planned by: what is proven, or what the method's paper says."""

from __future__ import annotations

from lehr import validate
from lehr.claims import PublishedRule

ACCOUNTINGS = ("proven", "published")

# For methods whose paper counts soundly, if not tightly: all that was done, by Rényi divergences.
MOMENTS = PublishedRule(paper="Mironov (2017)", theorem="Rényi divergences of all steps, converted by Proposition 3")


def an_accounting(**named: object) -> str:
    """A checked word."""
    return validate.one_of(ACCOUNTINGS, **named)
