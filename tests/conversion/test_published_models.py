"""Configurations of models that many use, as they were published, and how many parameters these have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megatron.conversion.expressible import family_of
from megatron.conversion.foreign_config import keys_of, not_understood
from megatron.neox_arguments import NeoXArgs

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0",
    "vocab_size": 32000,
}
LLAMA_3_1_8B = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
QWEN_2_5_HALF_B = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 24,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN_3_0_6B = {
    "model_type": "qwen3",
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA_2B = {
    "model_type": "gemma",
    "head_dim": 256,
    "hidden_act": "gelu",
    "hidden_activation": None,
    "hidden_size": 2048,
    "intermediate_size": 16384,
    "max_position_embeddings": 8192,
    "num_attention_heads": 8,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "vocab_size": 256000,
}
PYTHIA_160M = {
    "model_type": "gpt_neox",
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "use_parallel_residual": True,
    "vocab_size": 50304,
}
NEOX_20B = {
    **PYTHIA_160M,
    "attention_probs_dropout_prob": 0,
    "hidden_act": "gelu_fast",
    "hidden_dropout_prob": 0,
    "hidden_size": 6144,
    "intermediate_size": 24576,
    "num_attention_heads": 64,
    "num_hidden_layers": 44,
    "vocab_size": 50432,
}

PUBLISHED = [
    ("Llama 2, 7B", LLAMA_2_7B, 6_738_415_616),
    ("Llama 3.1, 8B", LLAMA_3_1_8B, 8_030_261_248),
    ("Mistral, 7B", MISTRAL_7B, 7_241_732_096),
    ("Qwen 2.5, 0.5B", QWEN_2_5_HALF_B, 494_032_768),
    ("Qwen 3, 0.6B", QWEN_3_0_6B, 596_049_920),
    ("Gemma, 2B", GEMMA_2B, 2_506_172_416),
    ("Pythia, 160M", PYTHIA_160M, 162_322_944),
    ("GPT-NeoX, 20B", NEOX_20B, 20_554_567_680),
]


# Written in another way that says the same: the tanh form of gelu by one name, windows that are off.
OTHER_WORDS = {"hidden_act", "hidden_activation", "sliding_window"}


@pytest.mark.parametrize(
    ("config", "parameters"), [entry[1:] for entry in PUBLISHED], ids=[e[0] for e in PUBLISHED]
)
def test_a_published_model(config: dict[str, Any], parameters: int) -> None:
    family, keys = keys_of(config, Path("config.json"))
    assert family.name == config["model_type"]
    assert not_understood(family, config) == []
    model = NeoXArgs.from_dict(keys).model
    assert model.parameter_count(int(config["vocab_size"])) == parameters
    assert model.seq_length == 2048
    assert family_of(model) == family
    written = family.write(model)
    same = (written.keys() & config.keys()) - OTHER_WORDS
    assert {name: written[name] for name in same} == {name: config[name] for name in same}
