"""What the source never contains. That this test can fail is shown in tests/tools/test_source_scan.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.source_scan import NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS, NO_TORCHVISION, Rule, findings

ROOT = Path(__file__).parents[2]
# Random numbers come from lehr.privacy.rng, which needs neither Python's nor numpy's. This file draws none: it seeds
# the generators that a model may use, and restores their states.
RESTORES_STATE = ROOT / "src" / "lehr" / "gradients" / "execution.py"


@pytest.mark.parametrize(
    "folder, rules",
    [
        ("src", [NO_TORCHVISION, NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS]),
        ("experiments", [NO_TORCHVISION, NO_CODE_FROM_DATA]),
        ("tools", [NO_TORCHVISION, NO_CODE_FROM_DATA]),
        ("tests", [NO_TORCHVISION]),
    ],
)
def test_nothing_forbidden_stands_in_the_source(folder: str, rules: list[Rule]) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert folder != "src" or RESTORES_STATE in files
    for file in files:
        applicable = [rule for rule in rules if rule is not NO_LOOSE_RANDOMNESS or file != RESTORES_STATE]
        assert findings(file, applicable) == []
