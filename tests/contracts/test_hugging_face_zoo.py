"""Networks of transformers and peft in every engine: right for each record, or refused by name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from lehr.errors import InvalidValue
from lehr.gradients.ghost import GhostEngine
from lehr.interfaces import layer_rule
from tests.contracts.test_model_zoo import ENGINES, TARGETS, assert_right_or_refused, built, losses, norms_and_sums
from tests.gradients.one_by_one import OneByOneEngine

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


LANGUAGE_AND_VISION = ("bert", "gpt2", "llama", "mistral", "qwen2", "t5", "vit", "whisper")
ADAPTED = ("peft lora", "peft dora", "peft ia3", "peft prompt tuning")
# What bfloat16 may change of a batch's whole gradient: each of its numbers has eight bits.
BFLOAT16_MARGIN = 0.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gpt2", "llama", "peft lora") else pytest.param(name, marks=pytest.mark.slow)
        for name in LANGUAGE_AND_VISION + ADAPTED
    ],
)
def test_passes_precision_and_checkpoints_give_the_gradients_of_a_loop_over_records(name: str) -> None:
    model, inputs = built(EVERY[name])
    if name == "whisper":
        model.eval()  # in training, it tosses a coin for every layer, and only a loop over records runs it
    expected = norms_and_sums(OneByOneEngine(model, losses).gradients(inputs, TARGETS))
    assert_near(expected, engine_of(model, passes="two"), inputs, margin=1e-6)
    model.float()
    inputs = {key: value.float() if value.is_floating_point() else value for key, value in inputs.items()}
    for passes in ("one", "two"):
        half = engine_of(model, passes=passes, precision="bfloat16")
        if name == "t5":  # its biases of positions have no record axis: only a loop over records runs it
            with pytest.raises(InvalidValue, match="precision"):
                half.gradients(inputs, TARGETS)
            continue
        assert_near(expected, half, inputs, margin=BFLOAT16_MARGIN)
    checkpointed: Any = model
    checkpointed.gradient_checkpointing_enable()
    assert_near(expected, engine_of(model), inputs, margin=1e-4)


def test_causal_attention_without_padding_has_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Any] = []
    attention: Any = functional.scaled_dot_product_attention

    def noting(*args: Any, attn_mask: Any = None, **kwargs: Any) -> Any:
        masks.append(attn_mask)
        return attention(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", noting)
    model, inputs = built(EVERY["llama"])
    words = {"input_ids": inputs["input_ids"]}
    expected = norms_and_sums(OneByOneEngine(model, losses).gradients(words, TARGETS))
    engine = engine_of(model)
    assert_near(expected, engine, words, margin=1e-6)
    masks.clear()
    engine.gradients(words, TARGETS)
    assert masks
    assert all(mask is None for mask in masks)
    engine.gradients(inputs, TARGETS)
    assert masks[-1] is not None


@pytest.mark.parametrize("kind", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Phi3", "Mamba"])
def test_rms_norms_of_every_family_have_a_rule(kind: str) -> None:
    name = kind.lower()
    layers = import_module(f"transformers.models.{name}.modeling_{name}")
    assert layer_rule(getattr(layers, f"{kind}RMSNorm")(6)) is not None


def engine_of(model: nn.Module, **settings: Any) -> GhostEngine:
    return GhostEngine(model, losses, compiled=False, **settings)


def assert_near(expected: Any, engine: GhostEngine, inputs: Any, *, margin: float) -> None:
    found = norms_and_sums(engine.gradients(inputs, TARGETS))
    assert float((found[0] / expected[0] - 1).abs().max()) <= margin
    scale = float(torch.stack([value.norm() for value in expected[1].values()]).norm())
    for name, value in found[1].items():
        assert float((value - expected[1][name]).norm()) <= margin * scale, name
