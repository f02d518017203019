"""A real model that somebody trained: TinyStories in Llama's form, 260,000 parameters, from a GGUF file.

The file is no part of the project. It is looked for under ``shared/assets`` beside the project's folder, or
where ``STORIES_GGUF`` in the environment says.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import decoders, models, normalizers, processors
from torch import Tensor

FILE = Path(
    os.environ.get("STORIES_GGUF")
    or Path(__file__).resolve().parents[3] / "shared/assets/stories260k/stories260K.gguf"
)
# What it says when it begins with nothing and always takes the likeliest token.
BEGINNING = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One "
    "day, she saw a big, red ball."
)


def why_not() -> str | None:
    """Why the model cannot be read here; None if it can."""
    if not FILE.exists():
        return f"{FILE.name} is not there: put it at {FILE}, or set STORIES_GGUF"
    if importlib.util.find_spec("gguf") is None:
        return "the package gguf is not installed"
    return None


def write_hf_folder(folder: Path) -> None:
    """The model as transformers would save it: config, weights, tokenizer."""
    import gguf

    reader = gguf.GGUFReader(str(FILE))
    facts = {name: field.contents() for name, field in reader.fields.items()}
    weights = {tensor.name: torch.tensor(tensor.data) for tensor in reader.tensors}
    folder.mkdir()
    config = transformers.LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=round(facts["llama.attention.layer_norm_rms_epsilon"], 8),
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=facts["tokenizer.ggml.bos_token_id"],
        eos_token_id=facts["tokenizer.ggml.eos_token_id"],
        tie_word_embeddings=False,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    named = dict(_renamed(config, name, tensor) for name, tensor in weights.items())
    save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(facts), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def _renamed(config: Any, name: str, tensor: Tensor) -> tuple[str, Tensor]:
    module = name.removesuffix(".weight")
    if module in _ENDS:
        return f"{_ENDS[module]}.weight", tensor
    _, layer, module = module.split(".")
    if module in ("attn_q", "attn_k"):
        # Rows in the order in which features 2i and 2i + 1 turn together.
        width = config.hidden_size // config.num_attention_heads
        pairs = tensor.view(-1, width // 2, 2, config.hidden_size)
        tensor = pairs.transpose(1, 2).reshape(tensor.shape).contiguous()
    return f"model.layers.{layer}.{_NAMES[module]}.weight", tensor


def _tokenizer(facts: dict[str, Any]) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: whoever joins to the piece with the highest score is joined first."""
    pieces: list[str] = facts["tokenizer.ggml.tokens"]
    scores: list[float] = facts["tokenizer.ggml.scores"]
    ids = {piece: number for number, piece in enumerate(pieces)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces[259:], key=lambda piece: -scores[ids[piece]])
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    engine = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    engine.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    engine.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    engine.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    engine.add_special_tokens(["<unk>", "<s>", "</s>"])
    return engine
