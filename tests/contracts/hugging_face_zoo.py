"""Networks of transformers and peft, built small from configurations, without any download."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
import transformers
from torch import Tensor, nn

from tests.contracts.zoo import RECORDS, WORDS, Network, masked_words, words

TEXT: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_labels": 5,
}
TEXT |= {"intermediate_size": 12, "max_position_embeddings": 16, "pad_token_id": 0}
VISION: dict[str, Any] = {
    "image_size": 8,
    "patch_size": 4,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
VISION |= {"intermediate_size": 12, "num_labels": 5}


def tiny(kind: str, task: str, **settings: Any) -> Callable[[], nn.Module]:
    """A network of this family for this task, such as ``ForSequenceClassification``, in evaluation mode."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**settings)
        network: nn.Module = getattr(transformers, f"{kind}{task}")(config).train()
        for layer in network.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        return network

    return build


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(RECORDS, 3, 8, 8).double()}


LOOP: frozenset[str] = frozenset(
    {"hooked"}
)  # branches on values, or tosses coins for all records: only a loop over records runs it
CLASSIFIES, SPEAKS, SEES = "ForSequenceClassification", "ForCausalLM", "ForImageClassification"
EVERY: dict[str, Network] = {
    "bert": Network(tiny("Bert", CLASSIFIES, **TEXT), masked_words),
    "distilbert": Network(
        tiny("DistilBert", CLASSIFIES, vocab_size=WORDS, dim=8, n_layers=1, n_heads=2, hidden_dim=12, num_labels=5),
        masked_words,
    ),
    "roberta": Network(tiny("Roberta", CLASSIFIES, **TEXT), masked_words),
    "albert": Network(tiny("Albert", CLASSIFIES, embedding_size=4, **TEXT), masked_words),
    "electra": Network(tiny("Electra", CLASSIFIES, embedding_size=4, **TEXT), masked_words),
    "deberta": Network(
        tiny("DebertaV2", CLASSIFIES, **TEXT, relative_attention=True, position_buckets=4, pos_att_type=["p2c", "c2p"]),
        masked_words,
    ),
    "gpt2": Network(
        tiny("GPT2", "LMHeadModel", vocab_size=WORDS, n_embd=8, n_layer=1, n_head=2, n_positions=16, use_cache=False),
        masked_words,
    ),
    "gpt neox": Network(tiny("GPTNeoX", SPEAKS, **TEXT, use_cache=False), masked_words),
    "opt": Network(
        tiny(
            "OPT",
            SPEAKS,
            vocab_size=WORDS,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=12,
            max_position_embeddings=16,
            word_embed_proj_dim=8,
            dropout=0.0,
            pad_token_id=0,
            use_cache=False,
        ),
        masked_words,
        LOOP,
    ),
    "bloom": Network(
        tiny("Bloom", SPEAKS, vocab_size=WORDS, hidden_size=8, n_layer=1, n_head=2, use_cache=False), masked_words
    ),
    "llama": Network(tiny("Llama", SPEAKS, **TEXT, use_cache=False), masked_words),
    "mistral": Network(tiny("Mistral", SPEAKS, **TEXT, num_key_value_heads=1, use_cache=False), masked_words),
    "gemma": Network(tiny("Gemma", SPEAKS, **TEXT, num_key_value_heads=1, head_dim=4, use_cache=False), masked_words),
    "qwen2": Network(tiny("Qwen2", SPEAKS, **TEXT, num_key_value_heads=1, use_cache=False), masked_words),
    "phi": Network(tiny("Phi", SPEAKS, **TEXT, use_cache=False), masked_words),
    "falcon": Network(
        tiny(
            "Falcon",
            SPEAKS,
            vocab_size=WORDS,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            use_cache=False,
        ),
        masked_words,
    ),
    "mixtral": Network(
        tiny(
            "Mixtral",
            SPEAKS,
            **TEXT,
            num_key_value_heads=1,
            num_local_experts=2,
            experts_implementation="eager",
            use_cache=False,
        ),
        masked_words,
        LOOP,
    ),
    "mamba": Network(
        tiny("Mamba", SPEAKS, vocab_size=WORDS, hidden_size=8, state_size=2, num_hidden_layers=1, use_cache=False),
        lambda: {"input_ids": words()},
    ),
    "t5": Network(
        tiny(
            "T5",
            "ForConditionalGeneration",
            vocab_size=WORDS,
            d_model=8,
            d_kv=4,
            d_ff=12,
            dropout_rate=0.0,
            num_layers=1,
            num_heads=2,
            use_cache=False,
        ),
        lambda: {**masked_words(), "decoder_input_ids": words()},
    ),
    "bart": Network(
        tiny(
            "Bart",
            "ForConditionalGeneration",
            vocab_size=WORDS,
            d_model=8,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=12,
            decoder_ffn_dim=12,
            dropout=0.0,
            max_position_embeddings=16,
            pad_token_id=0,
            use_cache=False,
        ),
        lambda: {**masked_words(), "decoder_input_ids": words()},
        LOOP,
    ),
    "xlnet": Network(
        tiny("XLNet", CLASSIFIES, vocab_size=WORDS, d_model=8, n_layer=1, n_head=2, d_inner=12, num_labels=5),
        masked_words,
    ),
    "vit": Network(tiny("ViT", SEES, **VISION), images),
    "deit": Network(tiny("DeiT", SEES, **VISION), images),
    "beit": Network(tiny("Beit", SEES, **VISION, layer_scale_init_value=0.1), images),
    "dinov2": Network(tiny("Dinov2", SEES, **VISION), images),
    "convnext": Network(
        tiny(
            "ConvNext", SEES, hidden_sizes=[4, 4], depths=[1, 1], num_stages=2, patch_size=2, image_size=8, num_labels=5
        ),
        images,
    ),
    "convnext v2": Network(
        tiny(
            "ConvNextV2",
            SEES,
            hidden_sizes=[4, 4],
            depths=[1, 1],
            num_stages=2,
            patch_size=2,
            image_size=8,
            num_labels=5,
        ),
        images,
    ),
    "swin": Network(
        tiny(
            "Swin",
            SEES,
            image_size=8,
            patch_size=2,
            embed_dim=4,
            depths=[1, 1],
            num_heads=[1, 1],
            window_size=2,
            drop_path_rate=0.0,
            num_labels=5,
        ),
        images,
    ),
    "clip vision": Network(
        tiny(
            "CLIPVision",
            "Model",
            image_size=8,
            patch_size=4,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
        ),
        images,
    ),
    "segformer": Network(
        tiny(
            "Segformer",
            SEES,
            num_encoder_blocks=1,
            depths=[1],
            sr_ratios=[2],
            hidden_sizes=[4],
            patch_sizes=[3],
            strides=[2],
            num_attention_heads=[1],
            mlp_ratios=[2],
            num_labels=5,
        ),
        images,
    ),
    "resnet": Network(
        tiny("ResNet", SEES, embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], layer_type="basic", num_labels=5),
        images,
        frozenset({"ghost", "materialised", "hooked"}),
    ),
    "wav2vec2": Network(
        tiny(
            "Wav2Vec2",
            CLASSIFIES,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=12,
            conv_dim=(4, 4),
            conv_kernel=(4, 2),
            conv_stride=(2, 2),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=2,
            num_conv_pos_embedding_groups=1,
            layerdrop=0.0,
            apply_spec_augment=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            classifier_proj_size=6,
            num_labels=5,
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
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
