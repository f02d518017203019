"""Tiny models of transformers, one for each thing that conversions can get wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import models, pre_tokenizers, processors
from torch import Tensor, nn

VOCAB = 100

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GROUPED = {"num_key_value_heads": 4, "intermediate_size": 48}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_SHARE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}

CASES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt_neox parallel untied": (
        "gpt_neox",
        {"intermediate_size": 96, "rope_parameters": _SHARE},
    ),
    "gpt_neox sequential tied": (
        "gpt_neox",
        {
            "intermediate_size": 96,
            "use_parallel_residual": False,
            "tie_word_embeddings": True,
            "hidden_act": "gelu_new",
            "rope_parameters": {**_SHARE, "partial_rotary_factor": 1.0},
        },
    ),
    "gpt_neox sequential untied": (
        "gpt_neox",
        {
            "intermediate_size": 96,
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": _SHARE,
        },
    ),
    "gpt_neox parallel tied": (
        "gpt_neox",
        {"intermediate_size": 96, "tie_word_embeddings": True, "rope_parameters": _SHARE},
    ),
    "llama 8/4": ("llama", {**_GROUPED, "rope_parameters": _LLAMA3}),
    "llama 4/1": (
        "llama",
        {
            **_GROUPED,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "tie_word_embeddings": True,
        },
    ),
    "llama with biases": (
        "llama",
        {
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "mistral with window": ("mistral", {**_GROUPED, "sliding_window": 5, "head_dim": 6}),
    "qwen2 half with window": (
        "qwen2",
        {**_GROUPED, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {**_GROUPED, "head_dim": 12, "tie_word_embeddings": True}),
    "gemma": ("gemma", {**_GROUPED, "head_dim": 6, "pad_token_id": None}),
}


def config_of(case: str) -> transformers.PretrainedConfig:
    name, changes = CASES[case]
    return transformers.AutoConfig.for_model(name, **{**_SIZES, **changes})


def make_model(case: str) -> nn.Module:
    """Weights of a size that matters: biases are not zero, no norm is one."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config_of(case)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_model(case: str, folder: Path) -> Path:
    """The folder of a case's model and a tokenizer, as transformers saves them."""
    transformers.utils.logging.disable_progress_bar()
    make_model(case).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path) -> None:
    """Words for all ids: ``w0`` … ``w97``, and what begins and ends a text."""
    vocab = {"<s>": 0, "</s>": 1, **{f"w{number}": number + 2 for number in range(VOCAB - 2)}}
    engine = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    engine.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)]
    )
    engine.add_special_tokens(["<s>", "</s>"])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, however many files they are in."""
    return {
        name: tensor
        for path in sorted(folder.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }


def assert_same_tensors(one: Path, other: Path) -> None:
    """Equal to the last bit, with equal names."""
    ours, theirs = tensors_of(one), tensors_of(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
