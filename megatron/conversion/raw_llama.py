"""What ``params.json`` and raw files say about a Llama or Mistral, in keys of ours, and where tensors lie.

Some facts are in no file, only in the code that goes with a release: how far positions go, and by how much
Llama 3.1 and 3.2 stretch their rotations (8; 32 for 3.2's two small models).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from megatron.conversion.families import Family
from megatron.conversion.fields import Inexpressible, Keys
from megatron.conversion.places import Alike, Gated, InterleavedProjections
from megatron.conversion.raw_folder import PARAMS_NAME, RawFolder
from megatron.conversion.rotary_fields import whole_base
from megatron.errors import CheckpointError

_LAYER = "layers.{}"

RAW_LLAMA = Family(
    "raw_llama",
    "Llama",
    {
        "word_embeddings": Alike("tok_embeddings"),
        "input_layernorm": Alike(f"{_LAYER}.attention_norm"),
        "attention.query_key_value": InterleavedProjections(
            f"{_LAYER}.attention.wq", f"{_LAYER}.attention.wk", f"{_LAYER}.attention.wv"
        ),
        "attention.dense": Alike(f"{_LAYER}.attention.wo"),
        "post_attention_layernorm": Alike(f"{_LAYER}.ffn_norm"),
        "mlp.linear1": Gated(f"{_LAYER}.feed_forward.w3", f"{_LAYER}.feed_forward.w1"),
        "mlp.linear2": Alike(f"{_LAYER}.feed_forward.w2"),
        "norm": Alike("norm"),
        "final_linear": Alike("output"),
    },
    fields=(),
    leftovers=("rope.freqs",),
)

# What is taken from the shapes of tensors, or is about running the model.
_ASIDE = frozenset(
    {"vocab_size", "multiple_of", "ffn_dim_multiplier", "hidden_dim", "max_batch_size"}
)
_READ = frozenset(
    {
        "dim",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "head_dim",
        "norm_eps",
        "rope_theta",
        "max_seq_len",
    }
    | {"use_scaled_rope", "rope_scaling_factor", "sliding_window"}
)
_ORIGINAL_POSITIONS = 8192
# Widest of the models whose rotations are stretched by 32.
_SMALL = 3072


def keys_of_params(params: Mapping[str, Any], tensors: RawFolder) -> Keys:
    """The architecture.

    Args:
        params: the content of ``params.json``; ``max_seq_len`` and ``rope_scaling_factor`` in it count
            where they are given.
        tensors: in the files.

    Raises:
        CheckpointError: we have no words for it.
    """
    for name in ("moe", "quantization_args", "lora_args", "vision_chunk_size"):
        if params.get(name):
            raise _refusal(name, params[name], "a plain Llama or Mistral")
    if params.get("rope_scaling_factor") and not params.get("use_scaled_rope"):
        raise _refusal(
            "rope_scaling_factor",
            params["rope_scaling_factor"],
            "use_scaled_rope: true in the file, without which no rotation is stretched",
        )
    heads = params["n_heads"]
    positions = _positions(params)
    keys: Keys = {
        "num_layers": params["n_layers"],
        "hidden_size": params["dim"],
        "num_attention_heads": heads,
        "num_kv_heads": params.get("n_kv_heads") or heads,
        "seq_length": min(2048, positions),
        "max_position_embeddings": positions,
        "norm": "rmsnorm",
        "rms_norm_epsilon": params.get("norm_eps", 1e-5),
        "pos_emb": "rotary",
        "rotary_emb_base": _base(params),
        "activation": "swiglu",
        # GPT-NeoX's rule takes two thirds of the number, for both halves of a gated MLP together.
        "intermediate_size": 3 * tensors.shape("layers.0.feed_forward.w1.weight")[0],
        "use_bias_in_attn_linear": False,
        "use_bias_in_mlp": False,
        "no_weight_tying": not _is_tied(tensors),
    }
    if params.get("head_dim"):
        keys["head_dim"] = params["head_dim"]
    if params.get("sliding_window"):
        keys["sliding_window_width"] = params["sliding_window"]
    if params.get("use_scaled_rope"):
        keys |= {
            "rotary_scaling": "llama3",
            "rotary_scaling_factor": stretching(params),
            "rotary_low_freq_factor": 1.0,
            "rotary_high_freq_factor": 4.0,
            "rotary_original_positions": _ORIGINAL_POSITIONS,
        }
    return keys


def _refusal(name: str, found: object, expected: str) -> CheckpointError:
    return CheckpointError(f"{PARAMS_NAME}: {name}\n  found: {found}\n  expected: {expected}")


def _base(params: Mapping[str, Any]) -> int:
    try:
        return whole_base(params.get("rope_theta", 10000))
    except Inexpressible as error:
        raise _refusal(error.where, error.found, error.expected) from error


def guesses(params: Mapping[str, Any]) -> list[str]:
    """What was decided by the code that goes with a release, for people."""
    found = []
    if not params.get("max_seq_len"):
        found.append(f"max_position_embeddings {_positions(params)} (--max_position_embeddings)")
    if params.get("use_scaled_rope") and not params.get("rope_scaling_factor"):
        found.append(f"rotary_scaling_factor {stretching(params):g} (--rope_scaling_factor)")
    lines = [f"no file says so, but the model's release has {fact}" for fact in found]
    unread = sorted(params.keys() - _READ - _ASIDE)
    return lines + [
        f"{PARAMS_NAME} says {name}: {params[name]!r}, which is not read" for name in unread
    ]


def stretching(params: Mapping[str, Any]) -> float:
    """The factor of Llama 3's scaled rotations."""
    return float(params.get("rope_scaling_factor") or (32 if params["dim"] <= _SMALL else 8))


def _positions(params: Mapping[str, Any]) -> int:
    """Positions that the model was made for: its releases differ in other numbers by which they are known."""
    if params.get("max_seq_len"):
        return int(params["max_seq_len"])
    if params.get("use_scaled_rope"):
        return 131072
    base = params.get("rope_theta", 10000)
    if base >= 1e6:
        return 16384  # Code Llama
    if base > 10000:
        return 8192  # Llama 3
    if params.get("sliding_window"):
        return 32768
    return 2048 if params.get("norm_eps", 1e-5) < 1e-5 else 4096  # the first Llama, the second


def _is_tied(tensors: RawFolder) -> bool:
    """Whether the head is the embedding: not there, or there a second time."""
    if "output.weight" not in tensors.names:
        return True
    return torch.equal(tensors.read("output.weight"), tensors.read("tok_embeddings.weight"))
