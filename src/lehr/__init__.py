"""Lehr: neural networks trained with differential privacy, with a guarantee that can be checked.

A private training run is a public plan plus one loop. What the run does to the records is stated as an *event*;
an *accountant* turns events into ε; a *ledger* and a *budget* remember what was spent; a *certificate* carries the
proven claim to whoever receives the model.

The map, in reading order. A module imports only what stands above it; only those marked ● load torch.

    words
        errors          the exception tree, drawn at the top
        validate        checks for arguments: the message has the name, what is allowed, what was given
        events          what was done to the private records, as data
        claims          an (ε, δ), the theorem it rests on, and how each premise stands
        interfaces      ● what the slots of a private step promise one another; the table of layer rules

    the flow
        networks        ● the networks of the papers
        gradients       ● gradients, record by record: engines, layer rules, kernels
        clipping        ● clip rules that state their own sensitivity

    counting
        accounting      from events to ε: accountants, calibration, the filter for adaptive runs
        append_only     a file that can be added to and never changed
        ledger          what one run did, written before a released value is used
        planning        the public plan of a run; the budget of a data set across runs

    looking back
        reports         certificates and charts

    doors
        cli             the command ``lehr``

``import lehr`` itself loads almost nothing: each public name is fetched from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.accounting import Bound, EpsilonCurve, answers, bound, claim
    from lehr.claims import Claim
    from lehr.errors import LehrError
    from lehr.events import (
        Adjacency,
        Composed,
        Event,
        Gaussian,
        Laplace,
        NonPrivate,
        PoissonSampled,
        RepeatAndSelect,
        Repeated,
        SampledWithoutReplacement,
    )
    from lehr.ledger import Ledger
    from lehr.planning.budget import Budget
    from lehr.planning.plan import Plan, make_plan

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "Bound",
    "Budget",
    "Claim",
    "Composed",
    "EpsilonCurve",
    "Event",
    "Gaussian",
    "Laplace",
    "Ledger",
    "LehrError",
    "NonPrivate",
    "Plan",
    "PoissonSampled",
    "RepeatAndSelect",
    "Repeated",
    "SampledWithoutReplacement",
    "__version__",
    "answers",
    "bound",
    "claim",
    "make_plan",
]

_HOME = {
    "Adjacency": "lehr.events",
    "Bound": "lehr.accounting",
    "Budget": "lehr.planning.budget",
    "Claim": "lehr.claims",
    "Composed": "lehr.events",
    "EpsilonCurve": "lehr.accounting",
    "Event": "lehr.events",
    "Gaussian": "lehr.events",
    "Laplace": "lehr.events",
    "Ledger": "lehr.ledger",
    "LehrError": "lehr.errors",
    "NonPrivate": "lehr.events",
    "Plan": "lehr.planning.plan",
    "PoissonSampled": "lehr.events",
    "RepeatAndSelect": "lehr.events",
    "Repeated": "lehr.events",
    "SampledWithoutReplacement": "lehr.events",
    "answers": "lehr.accounting",
    "bound": "lehr.accounting",
    "claim": "lehr.accounting",
    "make_plan": "lehr.planning.plan",
}


if not TYPE_CHECKING:  # a type checker that saw this would believe in every misspelt name

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'lehr' has no attribute {name!r}")
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
