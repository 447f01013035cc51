"""The proof sits beside the code and quotes it. That these tests can fail is shown in tests/tools/test_proofs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.accounting import ACCOUNTANTS
from lehr.accounting.filter import RenyiFilter
from tools.proofs import mechanisms_without_proof, problems

PACKAGE = Path(__file__).parents[2] / "src" / "lehr"
# Every file whose code a guarantee rests on. Each needs its proof.
MECHANISMS = (
    "acceptance/annealed.py",
    "accounting/filter.py",
    "accounting/pld.py",
    "accounting/rdp.py",
    "run/loss_oracle.py",
    "auditing/bounds.py",
    "auditing/one_run.py",
    "auditing/thresholds.py",
    "integrations/external_loop.py",
    "integrations/opacus/clipping.py",
    "integrations/opacus/optimizers.py",
    "data/private_pca.py",
    "data/split.py",
    "attacks/step_attack.py",
    "gradients/record_axis.py",
    "run/mechanism.py",
    "run/private_run.py",
    "privacy/clipping.py",
    "privacy/noise.py",
    "planning/budget.py",
    "planning/search_cost.py",
    "privacy/rng.py",
    "privacy/sampling.py",
    "run/evaluation.py",
)
PROOFS = sorted(PACKAGE.rglob("*.proof.md"))


def test_every_mechanism_has_its_proof_beside_it() -> None:
    assert mechanisms_without_proof(MECHANISMS, package=PACKAGE) == []


def test_every_proof_belongs_to_a_mechanism() -> None:
    proven = {str(proof.relative_to(PACKAGE)).replace(".proof.md", ".py") for proof in PROOFS}
    assert proven == set(MECHANISMS)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.name)
def test_every_proof_quotes_the_source_as_it_is(proof: Path) -> None:
    assert problems(proof) == []


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_an_accountant_names_a_proof_that_exists_unless_it_is_an_estimate(name: str) -> None:
    accountant = ACCOUNTANTS[name]
    if accountant.is_estimate:
        assert accountant.proof is None
    else:
        assert accountant.proof is not None
        assert (PACKAGE / accountant.proof).is_file()


def test_the_filter_names_a_proof_that_exists() -> None:
    assert (PACKAGE / RenyiFilter.proof).is_file()
