"""Folders as Llama was published, from models of transformers; every rule is here a second time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from tests.conversion.hf_models import config_of, make_model

BASE = 5000.0
NAMES = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}
ENDS = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
}


@dataclass(frozen=True)
class RawForm:
    """How a folder is written.

    Attributes:
        files: ranks that ran it.
        table_by_rows: the embedding's rows are shared, as in Llama 3; else its columns.
        dtype: of the weights.
        params: of ``params.json`` beside the sizes.
    """

    files: int = 1
    table_by_rows: bool = False
    dtype: torch.dtype = torch.float32
    params: tuple[tuple[str, Any], ...] = ()


def write_raw_llama(folder: Path, case: str, form: RawForm) -> nn.Module:
    """Write a model's files into ``folder``, and return it in fp32."""
    config: Any = config_of(case)
    config.rope_parameters = {"rope_type": "default", "rope_theta": BASE}
    model: nn.Module = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.load_state_dict(make_model(case).state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(form.dtype))
    whole = {_name(name): tensor.detach() for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        whole.pop("output.weight", None)
    folder.mkdir(parents=True)
    for rank in range(form.files):
        tensors = {
            name: _part(name, tensor, config, form, rank).to(form.dtype).clone()
            for name, tensor in whole.items()
        }
        torch.save(
            {**tensors, "rope.freqs": torch.ones(2)}, folder / f"consolidated.{rank:02d}.pth"
        )
    params = {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "multiple_of": 16,
        "norm_eps": config.rms_norm_eps,
        "vocab_size": -1,
        "rope_theta": BASE,
        **dict(form.params),
    }
    (folder / "params.json").write_text(json.dumps(params))
    return model


def _name(theirs: str) -> str:
    module, _, kind = theirs.rpartition(".")
    if module in ENDS:
        return f"{ENDS[module]}.{kind}"
    number, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"layers.{number}.{NAMES[inner]}.{kind}"


def _part(name: str, tensor: Tensor, config: Any, form: RawForm, rank: int) -> Tensor:
    module = name.split(".")[-2]
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    if module == "wq":
        tensor = _interleaved(tensor, heads)
    if module in ("wk", "wv"):
        tensor = _interleaved(tensor, shared) if module == "wk" else tensor
        parts = min(form.files, shared)
        return tensor.chunk(parts)[rank * parts // form.files]
    if tensor.dim() == 1:
        return tensor
    by_columns = module in ("wo", "w2") or (module == "tok_embeddings" and not form.table_by_rows)
    return tensor.chunk(form.files, dim=1 if by_columns else 0)[rank]


def _interleaved(rows: Tensor, heads: int) -> Tensor:
    """Row r of a half-split head goes to 2 r, that half a head further to 2 r + 1."""
    found = torch.empty_like(rows)
    width = rows.size(0) // heads
    for head in range(heads):
        for row in range(width // 2):
            start = head * width
            found[start + 2 * row] = rows[start + row]
            found[start + 2 * row + 1] = rows[start + width // 2 + row]
    return found
