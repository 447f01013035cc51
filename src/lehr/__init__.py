"""Lehr: neural networks trained with differential privacy, with a guarantee that can be checked.

A private training run is a public plan plus one loop. What the run does to the records is stated as an *event*;
an *accountant* turns events into ε; a *ledger* and a *budget* remember what was spent; a *certificate* carries the
proven claim to whoever receives the model.

The map. A room imports only rooms above it; those marked ● load torch.

        errors          the exceptions, drawn as a tree
        validate        argument checks: an error has the name, what is allowed, what was given
        rounding        numbers for people; a rounded bound still holds
        files           files written atomically and read strictly
        config          ``RunConfig``, the configuration of a run
        interfaces      ● the protocols of samplers, clip rules, noise and the rest; the table of layer rules
        schedules       public functions of the step
        accounting      events, claims, the ledger, and the accountants that turn events into ε
        optim           ● optimizers and averages: post-processing
        privacy         ● random numbers, sampling, clipping, noise
        data            ● readers, built-in data sets, splits, augmentation
        networks        ● networks to choose from
        gradients       ● per-record gradients: engines, layer rules, kernels
        acceptance      ● whether a candidate update is accepted
        planning        the public plan, budgets, the total amount of noise, simulation
        run             ● one private run: the loop, its state, checkpoints, its folder, several processes
        methods         ● one file per method
        extend          ● the extension points in one place: protocols to implement
        auditing        from the scores of an attack to a lower bound on ε
        certificates    ● certificates, checking them, releasing a model
        reports         pages, charts, progress
        recipes         ● settings that decide accuracy, chosen from public numbers
        training        ● ``lehr.fit``
        attacks         ● attacks on the real code
        search          ● searching settings
        integrations    ● Opacus, Lightning, transformers, scikit-learn
        cli             the command ``lehr``
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lehr.accounting import Bound, EpsilonCurve, answers, bound, claim
    from lehr.accounting.claims import Claim
    from lehr.accounting.events import (
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
    from lehr.accounting.ledger import Ledger
    from lehr.certificates.certificate import Statements
    from lehr.config import RunConfig
    from lehr.data import DataSet, InMemory, Preparation
    from lehr.errors import (
        BadRecord,
        BudgetExceeded,
        InvalidValue,
        LehrError,
        MissingExtra,
        NotPrivate,
        StoreError,
        Unreachable,
    )
    from lehr.planning.budget import Budget
    from lehr.planning.plan import Plan, make_plan
    from lehr.planning.recommendation import recommend_plan
    from lehr.planning.simulation import simulate
    from lehr.run.mechanism import Method
    from lehr.run.shape import Callback
    from lehr.training.ending import Run
    from lehr.training.fit import fit

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "BadRecord",
    "Bound",
    "Budget",
    "BudgetExceeded",
    "Callback",
    "Claim",
    "Composed",
    "DataSet",
    "EpsilonCurve",
    "Event",
    "Gaussian",
    "InMemory",
    "InvalidValue",
    "Laplace",
    "Ledger",
    "LehrError",
    "Method",
    "MissingExtra",
    "NonPrivate",
    "NotPrivate",
    "Plan",
    "PoissonSampled",
    "Preparation",
    "RepeatAndSelect",
    "Repeated",
    "Run",
    "RunConfig",
    "SampledWithoutReplacement",
    "Statements",
    "StoreError",
    "Unreachable",
    "__version__",
    "answers",
    "bound",
    "claim",
    "fit",
    "make_plan",
    "recommend_plan",
    "simulate",
]

_HOME = {
    "Adjacency": "lehr.accounting.events",
    "BadRecord": "lehr.errors",
    "Bound": "lehr.accounting",
    "Budget": "lehr.planning.budget",
    "BudgetExceeded": "lehr.errors",
    "Callback": "lehr.run.shape",
    "Claim": "lehr.accounting.claims",
    "Composed": "lehr.accounting.events",
    "DataSet": "lehr.data",
    "EpsilonCurve": "lehr.accounting",
    "Event": "lehr.accounting.events",
    "Gaussian": "lehr.accounting.events",
    "InMemory": "lehr.data",
    "InvalidValue": "lehr.errors",
    "Laplace": "lehr.accounting.events",
    "Ledger": "lehr.accounting.ledger",
    "LehrError": "lehr.errors",
    "Method": "lehr.run.mechanism",
    "MissingExtra": "lehr.errors",
    "NonPrivate": "lehr.accounting.events",
    "NotPrivate": "lehr.errors",
    "Plan": "lehr.planning.plan",
    "PoissonSampled": "lehr.accounting.events",
    "Preparation": "lehr.data",
    "RepeatAndSelect": "lehr.accounting.events",
    "Repeated": "lehr.accounting.events",
    "Run": "lehr.training.ending",
    "RunConfig": "lehr.config",
    "SampledWithoutReplacement": "lehr.accounting.events",
    "Statements": "lehr.certificates.certificate",
    "StoreError": "lehr.errors",
    "Unreachable": "lehr.errors",
    "answers": "lehr.accounting",
    "bound": "lehr.accounting",
    "claim": "lehr.accounting",
    "fit": "lehr.training.fit",
    "make_plan": "lehr.planning.plan",
    "recommend_plan": "lehr.planning.recommendation",
    "simulate": "lehr.planning.simulation",
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
