"""Heads of language models in tiles of the vocabulary: the gradients and losses of whole logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lehr.gradients import contributions
from lehr.gradients.contributions import TiledHead, head_tiles
from lehr.gradients.ghost import GhostEngine
from lehr.gradients.language_heads import IGNORED, TiledCrossEntropy, losses_of_tiled, with_tiled_head
from lehr.privacy.clipping import FlatClip

transformers = pytest.importorskip("transformers")
WORDS, RECORDS, LENGTH = 53, 5, 9


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contributions, "TILE_ROWS", 10)


def gpt2() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 12}
    others: dict[str, Any] = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(bos_token_id=1, eos_token_id=1, **sizes, **others))


def llama() -> Any:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": WORDS, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 12, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def frozen_llama() -> Any:
    model = llama()
    model.lm_head.requires_grad_(False)
    return model


def lora() -> Any:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(llama(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))


def a_batch() -> dict[str, Tensor]:
    """Labels of different lengths, words that occur twice, and a record without any label."""
    ids = torch.randint(0, WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(1))
    ids[1, 2:6] = ids[1, 1]
    labels = ids.clone()
    labels[0, 4:] = IGNORED
    labels[3] = IGNORED
    return {"input_ids": ids, "labels": labels}


def tiled(model: nn.Module) -> nn.Module:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    found = with_tiled_head(model, inner)
    assert found is not None
    assert [name for name, _ in found.named_parameters()] == [name for name, _ in model.named_parameters()]
    return found


def by_loop(model: Any, batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The gradient of each record, from the model's own loss."""
    found = []
    for row in range(RECORDS):
        model.zero_grad()
        if (batch["labels"][row, 1:] != IGNORED).any():
            model(**{name: value[row : row + 1] for name, value in batch.items()}).loss.backward()
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        found.append(
            {
                name: torch.zeros_like(value) if value.grad is None else value.grad.clone()
                for name, value in trained.items()
            }
        )
    return found


@pytest.mark.parametrize("make", [gpt2, llama, frozen_llama, lora])
@pytest.mark.parametrize(
    "passes, precision, is_checkpointed",
    [
        ("one", "as_model", False),
        ("two", "as_model", False),
        ("two", "as_model", True),
        ("one", "bfloat16", False),
        ("two", "bfloat16", True),
    ],
)
def test_gradients_equal_a_loop_over_records(
    make: Callable[[], Any], passes: str, precision: str, is_checkpointed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    model, batch = make(), a_batch()
    expected = by_loop(model, batch)
    if is_checkpointed:
        model.gradient_checkpointing_enable()
    engine = GhostEngine(tiled(model), losses_of_tiled, compiled=False, passes=passes, precision=precision)
    gradients = engine.gradients(batch, batch)
    assert not [record for record in caplog.records if record.name == "lehr" and record.levelname == "WARNING"]
    assert engine.is_in_two_passes == (passes == "two")
    relative = 1e-4 if precision == "as_model" else 5e-2
    norms = torch.stack([torch.cat([grad.flatten() for grad in own.values()]).norm() for own in expected])
    torch.testing.assert_close(gradients.norms(), norms, rtol=relative, atol=relative)
    for weights in (torch.eye(RECORDS)[1], torch.tensor([0.3, 0.1, 0.7, 0.2, 0.5])):
        found = gradients.weighted_sum(weights)
        for name, value in found.items():
            total = sum(weight * own[name] for weight, own in zip(weights, expected, strict=True))
            assert (value - total).norm() <= relative * max(float(total.norm()), 0.1), name


@pytest.mark.slow
def test_a_batch_is_clipped_in_one_compiled_step(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, clip = a_batch(), FlatClip(0.5)
    expected = GhostEngine(tiled(gpt2()), losses_of_tiled, compiled=False).private_sum(clip, batch, batch).values
    by_torch = torch.compile
    monkeypatch.setattr(torch, "compile", lambda step, **settings: by_torch(step, backend="eager", **settings))
    found = GhostEngine(tiled(gpt2()), losses_of_tiled).private_sum(clip, batch, batch).values
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_losses_are_those_of_whole_logits() -> None:
    batch = a_batch()
    for model in (gpt2(), frozen_llama()):
        one = {name: value[1:2] for name, value in batch.items()}
        torch.testing.assert_close(losses_of_tiled(tiled(model)(**one), one)[0], model(**one).loss)


def test_a_record_with_an_infinite_hidden_state_counts_as_zero() -> None:
    model, batch = llama(), a_batch()
    with torch.no_grad():
        model.model.embed_tokens.weight[batch["input_ids"][2, 0]] = torch.inf
    is_hit = (batch["input_ids"] == batch["input_ids"][2, 0]).any(1)
    gradients = GhostEngine(tiled(model), losses_of_tiled, compiled=False).gradients(batch, batch)
    assert gradients.norms()[is_hit].tolist() == [0.0] * int(is_hit.sum())
    assert all(value.isfinite().all() for value in gradients.weighted_sum(torch.ones(RECORDS)).values())


@pytest.mark.parametrize("length", [3, 40])  # norms from products of positions, and formed
def test_norms_and_sums_of_tiles_are_those_of_the_formed_gradient(length: int) -> None:
    made = torch.Generator().manual_seed(2)
    weight, inputs = torch.randn(WORDS, 4, generator=made), torch.randn(2, length, 4, generator=made)
    labels, scales = torch.randint(0, WORDS, (2, length), generator=made), torch.rand(2, length, generator=made)
    logits = inputs @ weight.T
    head = TiledHead(weight, inputs, labels, scales, logits.logsumexp(2))
    shares = logits.softmax(2) - nn.functional.one_hot(labels, WORDS)
    expected = torch.einsum("btv,bti->bvi", shares * scales.unsqueeze(2), inputs)
    torch.testing.assert_close(head.materialised(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.squared_norms(), expected.square().sum((1, 2)), rtol=1e-3, atol=1e-4)
    weights = torch.tensor([0.5, 2.0])
    total = head.weighted_sum(weights, torch.ones(2, dtype=torch.bool))
    torch.testing.assert_close(total.float(), torch.einsum("b,bvi->vi", weights, expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(head.taken(1, 2).materialised(), expected[1:], rtol=1e-4, atol=1e-5)


def test_tiles_cover_the_vocabulary_and_are_few() -> None:
    for vocabulary in (1, 10, 53, 160, 1000):
        tiles = head_tiles(vocabulary)
        assert [row for first, last in tiles for row in range(first, last)] == list(range(vocabulary))
        assert len(tiles) <= contributions.MOST_COMPILED_CHUNKS


def test_heads_that_are_not_plain_are_left_alone() -> None:
    model = llama()
    model.lm_head = nn.Linear(8, WORDS)
    assert with_tiled_head(model, model) is None
    assert with_tiled_head(model.model, model.model) is None
    assert not any(isinstance(layer, TiledCrossEntropy) for layer in model.modules())
