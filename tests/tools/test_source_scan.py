from __future__ import annotations

from pathlib import Path

import pytest

from tools.source_scan import NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS, NO_TORCHVISION, Rule, findings


@pytest.mark.parametrize(
    "rule, line",
    [
        (NO_TORCHVISION, "import torchvision.transforms as T"),
        (NO_TORCHVISION, "from torchvision import datasets"),
        (NO_TORCHVISION, "def inside():\n    from torchvision.io import image"),
        (NO_TORCHVISION, "import importlib; importlib.import_module('torchvision')"),
        (NO_TORCHVISION, "__import__('torchvision')"),
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
def test_what_a_rule_forbids_is_found_with_its_line(tmp_path: Path, rule: Rule, line: str) -> None:
    file = tmp_path / "source.py"
    file.write_text(f"x = 1\n{line}")
    found = findings(file, [rule])
    assert found
    lines = {f"{file}:{number}:" for number in range(2, 3 + line.count("\n"))}
    assert all(finding.split(" ")[0] in lines and rule.reason in finding for finding in found)


def test_what_only_looks_forbidden_is_left_alone(tmp_path: Path) -> None:
    lines = (
        "# import torchvision, then eval('1')",
        "text = 'import random; import torchvision'",
        "import torchvisionlike",
        "from . import random",
        "import secrets\nsecrets.token_bytes(32)",
        "model.eval()",
        "import numpy as np\nnp.sum([1.0])",
        "self.random.draw()",
    )
    file = tmp_path / "source.py"
    file.write_text("\n".join(lines))
    assert findings(file, [NO_TORCHVISION, NO_CODE_FROM_DATA, NO_LOOSE_RANDOMNESS]) == []
