from __future__ import annotations

from pathlib import Path

import pytest

from tools.source_scan import NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS, NO_TORCH, NO_TORCHVISION, Rule, findings


@pytest.mark.parametrize(
    "rule, line",
    [
        (NO_TORCHVISION, "import torchvision.transforms as T"),
        (NO_TORCHVISION, "from torchvision import datasets"),
        (NO_TORCHVISION, "import importlib; importlib.import_module('torchvision')"),
        (NO_TORCH, "import torch"),
        (NO_TORCH, "def inside():\n    from torch.nn import functional"),
        (NO_TORCH, "__import__('torch')"),
        (NO_CODE_FROM_DATA, "import pickle"),
        (NO_CODE_FROM_DATA, "from marshal import loads"),
        (NO_CODE_FROM_DATA, "eval('1')"),
        (NO_CODE_FROM_DATA, "exec('x = 1')"),
        (NO_LOOSE_RANDOMNESS, "import random"),
        (NO_LOOSE_RANDOMNESS, "from random import gauss"),
        (NO_LOOSE_RANDOMNESS, "from numpy import random as dice"),
        (NO_LOOSE_RANDOMNESS, "from numpy.random import default_rng"),
        (NO_LOOSE_RANDOMNESS, "import numpy as np\nnp.random.normal()"),
        (NO_LOOSE_RANDOMNESS, "import numpy\nrng = numpy.random.default_rng()"),
    ],
)
def test_what_a_rule_forbids_is_found_and_explained(tmp_path: Path, rule: Rule, line: str) -> None:
    file = tmp_path / "source.py"
    file.write_text(line)
    found = findings(file, [rule])
    assert found
    assert all(rule.reason in finding for finding in found)


@pytest.mark.parametrize(
    "line",
    [
        "# import torch, then eval('1')",
        "text = 'import random; import torchvision'",
        "import torchlike",
        "from . import random",
        "import secrets\nsecrets.token_bytes(32)",
        "model.eval()",
        "import numpy as np\nnp.sum([1.0])",
        "self.random.draw()",
    ],
)
def test_what_only_looks_forbidden_is_left_alone(tmp_path: Path, line: str) -> None:
    file = tmp_path / "source.py"
    file.write_text(line)
    assert findings(file, [NO_TORCHVISION, NO_TORCH, NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS]) == []


def test_a_finding_has_its_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text("x = 1\n\nimport pickle\n")
    assert findings(file, [NO_CODE_FROM_DATA]) == [f"{file}:3: uses pickle, but {NO_CODE_FROM_DATA.reason}"]
