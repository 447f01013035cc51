"""A certificate with every field filled by hand, well formed and not meant to be true."""

from __future__ import annotations

import pytest

from lehr.accounting.claims import IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, TRUE_RECORD_COUNT, Claim, Premise, Standing
from lehr.accounting.events import Adjacency, Composed, Gaussian, PoissonSampled, Repeated
from lehr.certificates.certificate import (
    AuditResult,
    Certificate,
    ExPost,
    PaidFor,
    SharedBudget,
    Statements,
)

STEP = PoissonSampled(512 / 60_000, Gaussian(1.23))
RUN = Repeated(STEP, 4698)
ADD = Adjacency.ADD_OR_REMOVE_ONE
PROVEN = Claim(
    epsilon=2.5,
    delta=1e-5,
    adjacency=ADD,
    accountant="pld",
    theorem="a theorem",
    premises=(IDEAL_ARITHMETIC, IDEAL_RANDOMNESS, Premise("each gradient is clipped", Standing.MET, "by the code")),
    proof="accounting/pld.proof.md",
)
PUBLISHED = Claim(
    epsilon=1.0,
    delta=1e-5,
    adjacency=ADD,
    accountant="rdp-mironov17",
    theorem="a paper's Theorem 1",
    premises=(Premise("rejected steps cost nothing", Standing.BROKEN, "the choice looks at the records"),),
    proof=None,
)


@pytest.fixture
def filled() -> Certificate:
    return filled_certificate()


def filled_certificate() -> Certificate:
    return Certificate(
        issued_on="2026-01-31",
        library_version="0.1.0",
        epsilon=2.5,
        delta=1e-5,
        adjacency=ADD,
        event=Composed((RUN, Gaussian(4.0))),
        accountant="pld",
        theorem="a theorem",
        premises=PROVEN.premises,
        proof="accounting/pld.proof.md",
        proof_sha256="ab" * 32,
        accounting_version="lehr 0.1.0",
        ex_post=ExPost(event=Repeated(STEP, 100), epsilon=0.5),
        published_claims=(PUBLISHED,),
        settings_cost=Gaussian(4.0),
        budget=SharedBudget(
            dataset="MNIST, training half",
            run="first",
            epsilon=3.0,
            delta=1e-5,
            adjacency=ADD,
            spent_epsilon=2.75,
            mode="filter",
            orders=(8.0, 9.5),
            reserved=RUN,
            paid_for=(PaidFor(run="first", event=RUN), PaidFor(run="search", event=Gaussian(4.0))),
        ),
        assumptions=(IDEAL_ARITHMETIC.statement, IDEAL_RANDOMNESS.statement, TRUE_RECORD_COUNT.statement),
        audit=AuditResult(method="canaries in one run", epsilon_lower_bound=1.2, confidence=0.95),
        stated=Statements(
            settings_chosen_on="private",
            unit_of_privacy="one image",
            records_per_person=2,
            records=60_000,
            treated_as_public=("the number of records", "the labels' names"),
            raw_data_seen_by="the hospital",
            data_collection="with consent",
        ),
    )
