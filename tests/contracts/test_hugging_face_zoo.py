"""Networks of transformers and peft in every engine: right for each record, or refused by name."""

from __future__ import annotations

import pytest

from tests.contracts.test_model_zoo import ENGINES, assert_right_or_refused

pytest.importorskip("transformers")
pytest.importorskip("peft")
from tests.contracts.hugging_face_zoo import EVERY

FAST = ("bert", "gpt2", "t5", "vit", "convnext", "swin", "peft lora", "peft ia3", "peft prompt tuning")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in EVERY]
)
def test_a_network_is_differentiated_record_by_record_or_refused_by_name(name: str, engine: str) -> None:
    assert_right_or_refused(engine, EVERY[name])
