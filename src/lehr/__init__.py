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
        files           files written whole and read strictly
        schedules       public functions of the step: of a learning rate, a clip norm, a noise
        run_shape       the files of a run, its public rows, and what callbacks are told
        interfaces      ● what the slots of a private step promise one another; the table of layer rules
        rng             ● the only maker of random numbers

    the flow
        data            ● readers, known data sets, splits by record, augmentation
        sampling        ● which records enter a step
        networks        ● the networks of the papers
        gradients       ● gradients, record by record: engines, layer rules, kernels
        clipping        ● clip rules that state their own sensitivity
        noise           ● the one way from a private sum to a released one
        update          ● any torch optimizer, averages of the weights
        acceptance      ● whether a candidate is taken, and what may be asked about it

    counting
        accounting      from events to ε: accountants, calibration, the filter for adaptive runs
        append_only     a file that can be added to and never changed
        ledger          what one run did, written before a released value is used
        planning        the public plan of a run, what its noise amounts to, what stands in for it; budgets; prices

    where they meet
        scoring         ● scores on public records, or with noise that is charged
        voting          ● several views of one record, and what most of them are taken for
        asking          ● what acceptance asks about a candidate, answered: public, or with charged noise
        mechanism       ● sampler, clip and noise as one object, and the event of a step
        checkpoint      ● everything that a run needs to go on, all or nothing
        attempts        ● which steps may be taken again for free, and which are charged
        run_folder      ● the folder of a run: key, ledger, metrics
        trainee         ● the model with its optimizer, averages and counts
        candidates      ● the weights along one released sum, and how far to go
        distributed     ● several processes, one run: who draws, who sums, who adds the noise
        sharded         ● each process holds a share of the weights, their sums, their noise and the optimizer
        loop            ● the one training loop

    fillings, and looking back
        methods         ● which filling each slot has
        auditing        from the scores of an attack to a lower bound on ε
        reports         certificates, pages and charts
        released_model  ● a released model, read and used
        release         ● from a run to what may be handed out

    doors
        training        ● ``lehr.fit``
        games           ● attacks on the real code, to be held against the claimed ε
        configuration   ● a run in words
        search          ● what is worth training, told from simulations, trials and what they cost
        papers          ● the tables and figures of four papers, run again
        compat          ● loops of other libraries made private: Opacus, Lightning, transformers, scikit-learn
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
    from lehr.planning.simulation import simulate
    from lehr.run_shape import Callback
    from lehr.training.ending import Run
    from lehr.training.fit import fit

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "Bound",
    "Budget",
    "Callback",
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
    "Run",
    "SampledWithoutReplacement",
    "__version__",
    "answers",
    "bound",
    "claim",
    "fit",
    "make_plan",
    "simulate",
]

_HOME = {
    "Adjacency": "lehr.events",
    "Bound": "lehr.accounting",
    "Budget": "lehr.planning.budget",
    "Callback": "lehr.run_shape",
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
    "Run": "lehr.training.ending",
    "SampledWithoutReplacement": "lehr.events",
    "answers": "lehr.accounting",
    "bound": "lehr.accounting",
    "claim": "lehr.accounting",
    "fit": "lehr.training.fit",
    "make_plan": "lehr.planning.plan",
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
