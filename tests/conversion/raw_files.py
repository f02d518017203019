"""Folders as Llama is handed out, written from models of transformers without the code that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.conversion.hf_models import VOCAB, save_tokenizer

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "rms_norm_eps": 1e-5,
}
_SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
# The model in words of transformers, and what params.json says beside the sizes.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "first": ("llama", {"num_key_value_heads": 4}, {}),
    "grouped": ("llama", {"num_key_value_heads": 2}, {"n_kv_heads": 2, "multiple_of": 16}),
    "scaled, tied": (
        "llama",
        {"num_key_value_heads": 1, "rope_parameters": _SCALED, "tie_word_embeddings": True},
        {"n_kv_heads": 1, "rope_theta": 500000.0, "use_scaled_rope": True},
    ),
    "windows": (
        "mistral",
        {"num_key_value_heads": 2, "sliding_window": 5, "head_dim": 6},
        {"n_kv_heads": 2, "sliding_window": 5, "head_dim": 6, "hidden_dim": 48},
    ),
}
_NAMES = {
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}


def write_raw(
    folder: Path, case: str, files: int, *, rows_of_embedding: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """Write ``params.json``, a tokenizer and ``files`` files; their model, and the parameters."""
    kind, changes, more = CASES[case]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**_SIZES, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    params = {"dim": 32, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "vocab_size": -1, **more}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params))
    save_tokenizer(folder)
    heads, width = config.num_key_value_heads, getattr(config, "head_dim", None) or 8
    for number in range(files):
        tensors = {"rope.freqs": torch.ones(4)}
        for name, tensor in model.state_dict().items():
            tensors |= _of_file(name, tensor, number, files, (heads, width), rows_of_embedding)
        if config.tie_word_embeddings:  # the head is there all the same, and has rows
            table = model.state_dict()["model.embed_tokens.weight"]
            tensors["output.weight"] = table.chunk(files)[number].clone()
        torch.save(tensors, folder / f"consolidated.{number:02d}.pth")
    return model, params


def _of_file(
    name: str,
    tensor: Tensor,
    number: int,
    files: int,
    heads_and_width: tuple[int, int],
    rows_of_embedding: bool,
) -> dict[str, Tensor]:
    heads, width = heads_and_width
    if name == "model.embed_tokens.weight":
        dim = 0 if rows_of_embedding else 1
        return {"tok_embeddings.weight": tensor.chunk(files, dim)[number].clone()}
    if name == "model.norm.weight":
        return {"norm.weight": tensor.clone()}
    if name == "lm_head.weight":
        return {"output.weight": tensor.chunk(files)[number].clone()}
    _, _, layer, rest = name.split(".", 3)
    raw = _NAMES[rest.removesuffix(".weight")]
    if raw.endswith("norm"):
        part = tensor
    elif raw in ("attention.wo", "feed_forward.w2"):
        part = tensor.chunk(files, 1)[number]
    else:
        rows = tensor
        if raw in ("attention.wq", "attention.wk"):
            halves = rows.view(-1, 2, width // 2, rows.size(1))
            rows = torch.stack((halves[:, 0], halves[:, 1]), 2).reshape(rows.shape)
        if raw in ("attention.wk", "attention.wv") and heads < files:
            part = rows.chunk(heads)[number * heads // files]
        else:
            part = rows.chunk(files)[number]
    return {f"layers.{layer}.{raw}.weight": part.clone()}
