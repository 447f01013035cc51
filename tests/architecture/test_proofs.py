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
    "accounting/balls_in_bins.py",
    "accounting/filter.py",
    "accounting/pld.py",
    "accounting/rdp.py",
    "run/loss_oracle.py",
    "auditing/bounds.py",
    "auditing/one_run.py",
    "auditing/thresholds.py",
    "integrations/external_loop.py",
    "integrations/opacus/optimizers.py",
    "data/private_pca.py",
    "data/split.py",
    "attacks/step_attack.py",
    "gradients/record_axis.py",
    "run/mechanism.py",
    "run/private_run.py",
    "privacy/clipping.py",
    "privacy/correlated.py",
    "privacy/noise.py",
    "planning/budget.py",
    "planning/search_cost.py",
    "privacy/rng.py",
    "privacy/rounded_normal.py",
    "privacy/sampling.py",
    "privacy/users.py",
    "run/evaluation.py",
)
PROOFS = sorted(PACKAGE.rglob("*.proof.md"))


def test_every_mechanism_has_its_proof_and_every_proof_its_mechanism() -> None:
    assert mechanisms_without_proof(MECHANISMS, package=PACKAGE) == []
    assert {str(proof.relative_to(PACKAGE)).replace(".proof.md", ".py") for proof in PROOFS} == set(MECHANISMS)


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.name)
def test_every_proof_quotes_the_current_source(proof: Path) -> None:
    assert problems(proof) == []


def test_accountants_name_a_proof_unless_they_are_estimates() -> None:
    for accountant in ACCOUNTANTS.values():
        assert (accountant.proof is None) == accountant.is_estimate
    proofs = [accountant.proof for accountant in ACCOUNTANTS.values()] + [RenyiFilter.proof]
    assert all((PACKAGE / proof).is_file() for proof in proofs if proof is not None)
