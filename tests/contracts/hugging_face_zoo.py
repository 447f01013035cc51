"""Networks of transformers and peft, built small from configurations, without any download."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

from tests.contracts.zoo import ALL, RECORDS, Network, masked_words, words

TEXT = (
    "vocab_size=11 hidden_size=8 num_hidden_layers=1 num_attention_heads=2 num_labels=5 intermediate_size=12 "
    "max_position_embeddings=16 pad_token_id=0"
)
VISION = (
    "image_size=8 patch_size=4 hidden_size=8 num_hidden_layers=1 num_attention_heads=2 intermediate_size=12 "
    "num_labels=5"
)
CLASSIFIES, SPEAKS, SEES = "ForSequenceClassification", "ForCausalLM", "ForImageClassification"
# It branches on values, or tosses coins for all records: only a loop over records runs it.
LOOP = frozenset({"hooked"})


def tiny(kind: str, task: str, *settings: str) -> Callable[[], nn.Module]:
    """A network of this family for this task, with settings such as ``"num_labels=5 dropout=0.0"``, without dropout."""
    pairs = (setting.split("=") for setting in " ".join(settings).split())
    values = {name: ast.literal_eval(value) for name, value in pairs}

    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**values)
        network: nn.Module = getattr(transformers, f"{kind}{task}")(config).train()
        for layer in network.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return network

    return build


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(RECORDS, 3, 8, 8).double()}


def two_texts() -> dict[str, Tensor]:
    return {**masked_words(), "decoder_input_ids": words()}


def text(kind: str, task: str, *settings: str, refused_by: frozenset[str] = frozenset()) -> Network:
    return Network(tiny(kind, task, *settings), masked_words, refused_by)


def vision(kind: str, *settings: str, task: str = SEES, refused_by: frozenset[str] = frozenset()) -> Network:
    return Network(tiny(kind, task, *settings), images, refused_by)


_CONVNEXT = "hidden_sizes=[4,4] depths=[1,1] num_stages=2 patch_size=2 image_size=8 num_labels=5"
EVERY: dict[str, Network] = {
    "bert": text("Bert", CLASSIFIES, TEXT),
    "distilbert": text("DistilBert", CLASSIFIES, "vocab_size=11 dim=8 n_layers=1 n_heads=2 hidden_dim=12 num_labels=5"),
    "roberta": text("Roberta", CLASSIFIES, TEXT),
    "albert": text("Albert", CLASSIFIES, TEXT, "embedding_size=4"),
    "electra": text("Electra", CLASSIFIES, TEXT, "embedding_size=4"),
    "deberta": text(
        "DebertaV2", CLASSIFIES, TEXT, "relative_attention=True position_buckets=4 pos_att_type=['p2c','c2p']"
    ),
    "gpt2": text("GPT2", "LMHeadModel", "vocab_size=11 n_embd=8 n_layer=1 n_head=2 n_positions=16 use_cache=False"),
    "gpt neox": text("GPTNeoX", SPEAKS, TEXT, "use_cache=False"),
    "opt": text(
        "OPT",
        SPEAKS,
        "vocab_size=11 hidden_size=8 num_hidden_layers=1 num_attention_heads=2 ffn_dim=12 max_position_embeddings=16",
        "word_embed_proj_dim=8 dropout=0.0 pad_token_id=0 use_cache=False",
        refused_by=LOOP,
    ),
    "bloom": text("Bloom", SPEAKS, "vocab_size=11 hidden_size=8 n_layer=1 n_head=2 use_cache=False"),
    "llama": text("Llama", SPEAKS, TEXT, "use_cache=False"),
    "mistral": text("Mistral", SPEAKS, TEXT, "num_key_value_heads=1 use_cache=False"),
    "gemma": text("Gemma", SPEAKS, TEXT, "num_key_value_heads=1 head_dim=4 use_cache=False"),
    "qwen2": text("Qwen2", SPEAKS, TEXT, "num_key_value_heads=1 use_cache=False"),
    "phi": text("Phi", SPEAKS, TEXT, "use_cache=False"),
    "falcon": text(
        "Falcon", SPEAKS, "vocab_size=11 hidden_size=8 num_hidden_layers=1 num_attention_heads=2 use_cache=False"
    ),
    "mixtral": text(
        "Mixtral",
        SPEAKS,
        TEXT,
        "num_key_value_heads=1 num_local_experts=2 experts_implementation='eager' use_cache=False",
        refused_by=LOOP,
    ),
    "mamba": Network(
        tiny("Mamba", SPEAKS, "vocab_size=11 hidden_size=8 state_size=2 num_hidden_layers=1 use_cache=False"),
        lambda: {"input_ids": words()},
    ),
    "t5": Network(
        tiny(
            "T5",
            "ForConditionalGeneration",
            "vocab_size=11 d_model=8 d_kv=4 d_ff=12 dropout_rate=0.0 num_layers=1 num_heads=2 use_cache=False",
        ),
        two_texts,
    ),
    "bart": Network(
        tiny(
            "Bart",
            "ForConditionalGeneration",
            "vocab_size=11 d_model=8 encoder_layers=1 decoder_layers=1 encoder_attention_heads=2 dropout=0.0",
            "decoder_attention_heads=2 encoder_ffn_dim=12 decoder_ffn_dim=12 max_position_embeddings=16 pad_token_id=0",
            "use_cache=False",
        ),
        two_texts,
        LOOP,
    ),
    "whisper": Network(
        tiny(
            "Whisper",
            "ForConditionalGeneration",
            "vocab_size=11 d_model=8 encoder_layers=1 decoder_layers=1 encoder_attention_heads=2 num_mel_bins=5",
            "decoder_attention_heads=2 encoder_ffn_dim=12 decoder_ffn_dim=12 max_source_positions=4 dropout=0.0",
            "max_target_positions=8 pad_token_id=0 bos_token_id=1 eos_token_id=2 decoder_start_token_id=1",
            "use_cache=False",
        ),
        lambda: {"input_features": torch.randn(RECORDS, 5, 8).double(), "decoder_input_ids": words()},
    ),
    "xlnet": text("XLNet", CLASSIFIES, "vocab_size=11 d_model=8 n_layer=1 n_head=2 d_inner=12 num_labels=5"),
    "vit": vision("ViT", VISION),
    "deit": vision("DeiT", VISION),
    "beit": vision("Beit", VISION, "layer_scale_init_value=0.1"),
    "dinov2": vision("Dinov2", VISION),
    "convnext": vision("ConvNext", _CONVNEXT),
    "convnext v2": vision("ConvNextV2", _CONVNEXT),
    "swin": vision(
        "Swin",
        "image_size=8 patch_size=2 embed_dim=4 depths=[1,1] num_heads=[1,1] window_size=2 num_labels=5",
        "drop_path_rate=0.0",
    ),
    "clip vision": vision("CLIPVision", VISION, task="Model"),
    "segformer": vision(
        "Segformer",
        "num_encoder_blocks=1 depths=[1] sr_ratios=[2] hidden_sizes=[4] patch_sizes=[3] strides=[2] mlp_ratios=[2]",
        "num_attention_heads=[1] num_labels=5",
    ),
    "resnet": vision(
        "ResNet",
        "embedding_size=4 hidden_sizes=[4,4] depths=[1,1] layer_type='basic' num_labels=5",
        refused_by=frozenset(ALL),
    ),
    "wav2vec2": Network(
        tiny(
            "Wav2Vec2",
            CLASSIFIES,
            "hidden_size=8 num_hidden_layers=1 num_attention_heads=2 intermediate_size=12 conv_dim=(4,4) num_labels=5",
            "conv_kernel=(4,2) conv_stride=(2,2) num_feat_extract_layers=2 num_conv_pos_embeddings=2 layerdrop=0.0",
            "num_conv_pos_embedding_groups=1 apply_spec_augment=False hidden_dropout=0.0 attention_dropout=0.0",
            "activation_dropout=0.0 feat_proj_dropout=0.0 final_dropout=0.0 classifier_proj_size=6",
            "feat_extract_norm='layer' do_stable_layer_norm=True",
        ),
        lambda: {"input_values": torch.randn(RECORDS, 40).double()},
        LOOP,
    ),
}


def adapted(config: Callable[[], Any], kind: str = "bert") -> Callable[[], nn.Module]:
    """A network of the list above with an adapter of peft; adapters begin with zeros, which would hide gradients."""

    def build() -> nn.Module:
        network: nn.Module = peft.get_peft_model(EVERY[kind].build(), config())
        for parameter in network.parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter, std=0.3)
        return network

    return build


OF: dict[str, Any] = {"task_type": "SEQ_CLS"}
ADAPTERS: dict[str, Callable[[], Any]] = {
    "lora": lambda: peft.LoraConfig(**OF, r=2, target_modules=["query", "value"]),
    "lora of embeddings": lambda: peft.LoraConfig(**OF, r=2, target_modules=["word_embeddings", "query"]),
    "dora": lambda: peft.LoraConfig(**OF, r=2, target_modules=["query"], use_dora=True),
    "ia3": lambda: peft.IA3Config(
        **OF, target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"]
    ),
    "prompt tuning": lambda: peft.PromptTuningConfig(**OF, num_virtual_tokens=2),
    "prefix tuning": lambda: peft.PrefixTuningConfig(**OF, num_virtual_tokens=2),
    "p-tuning": lambda: peft.PromptEncoderConfig(**OF, num_virtual_tokens=2, encoder_hidden_size=4),
    "loha": lambda: peft.LoHaConfig(**OF, r=2, target_modules=["query"]),
    "adalora": lambda: peft.AdaLoraConfig(**OF, init_r=2, target_r=1, total_step=10, target_modules=["query"]),
    "vera": lambda: peft.VeraConfig(**OF, r=2, target_modules=["query"]),
    "layer norm tuning": lambda: peft.LNTuningConfig(**OF, target_modules=["LayerNorm"]),
}
EVERY |= {
    f"peft {name}": Network(adapted(config), masked_words, LOOP if name == "loha" else frozenset())
    for name, config in ADAPTERS.items()
}
