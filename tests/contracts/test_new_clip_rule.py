"""The clip rule of CONTRIBUTING.md, two files and nothing else, is found, usable, tried and proven."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lehr.methods.by_name import named
from lehr.privacy.clipping import CLIP_RULES, NormClip, clip_rule
from tests.contracts import test_clip_rules as contract
from tools.proofs import problems

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


def shown(name: str) -> str:
    """The file of this name, from a fenced block of the page."""
    found = re.search(rf"^(`{{3,}})\w+ {re.escape(name)}\n(.*?)^\1$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return found[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path that holds the two files, with the module imported."""
    for name in ("smooth.py", "smooth.proof.md"):
        (tmp_path / name).write_text(shown(name), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("smooth")
    yield tmp_path
    del CLIP_RULES["smooth"], sys.modules["smooth"]


@pytest.fixture
def rule(folder: Path) -> NormClip:
    return clip_rule("smooth", 0.7)


def test_a_rule_is_found_and_can_be_chosen_by_its_name(rule: NormClip) -> None:
    assert named("dpsgd", clip="smooth", clip_norm=0.7).clipping == rule


@pytest.mark.parametrize("precision", contract.PRECISIONS)
def test_it_keeps_the_contract_of_all_rules(rule: NormClip, precision: str) -> None:
    contract.test_a_large_record_moves_the_sum_by_nearly_the_sensitivity(rule, precision)
    contract.test_the_sum_of_no_records_and_of_records_without_gradient_is_exactly_zero(rule, precision)
    contract.test_the_sum_states_the_sensitivity_of_its_rule(rule)
    grads_BP = 3 * torch.randn(5, contract.NUM_COORDINATES, generator=torch.Generator().manual_seed(1))
    whole = contract.clipped(rule, grads_BP, precision)
    for left_out in range(5):
        others = contract.clipped(rule, grads_BP[torch.arange(5) != left_out], precision)
        assert (whole - others).norm().item() <= rule.sensitivity * (1 + contract.ADDITION[precision])


def test_its_proof_quotes_its_source(folder: Path, rule: NormClip) -> None:
    assert problems(folder / "smooth.proof.md") == []
    (folder / "smooth.proof.md").write_text(shown("smooth.proof.md").replace("hypot", "add"), encoding="utf-8")
    assert problems(folder / "smooth.proof.md") != []
