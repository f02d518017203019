"""What the tensors of a checkpoint say about its model, in words of the configuration."""

from __future__ import annotations

from collections.abc import Iterator

from megatron.checkpointing.universal import ParameterStore, split_name
from megatron.model import layout
from megatron.neox_arguments.sections import ModelArgs


def differences_in_shapes(store: ParameterStore, model: ModelArgs) -> list[str]:
    """Every key of the model that cannot be right, as ``key: what is there → what is here``."""
    return [f"{key}: {there} → {here}" for key, there, here in _seen(store, model) if there != here]


def _seen(store: ParameterStore, model: ModelArgs) -> Iterator[tuple[str, object, object]]:
    """(key, its value as the tensors show it, its value here)."""
    shapes, size = store.shapes, store.size
    blocks = {int(name.split(".")[1]) for name in shapes if ".attention." in name}
    yield "num_layers", len(blocks), model.num_layers
    table = shapes.get(f"sequential.{layout.EMBEDDING}.word_embeddings.weight")
    if table is not None:
        yield "hidden_size", table[1], model.hidden_size
    positions = shapes.get(f"sequential.{layout.EMBEDDING}.position_embeddings.weight")
    rows = positions[0] if positions is not None else 0
    yield "pos_emb: learned, max_position_embeddings", rows, model.learned_positions
    heads = [name for name in shapes if split_name(name)[1] == "final_linear.weight"]
    yield "no_weight_tying", bool(heads), model.no_weight_tying
    yield from _seen_in_block(
        {
            split_name(name)[1]: shape
            for name, shape in shapes.items()
            if name.startswith(f"sequential.{layout.FIRST_BLOCK}.")
        },
        size,
        model,
    )


def _seen_in_block(
    block: dict[str, tuple[int, ...]], size: int, model: ModelArgs
) -> Iterator[tuple[str, object, object]]:
    norm = {f"input_layernorm.{name}": name for name in ("scale", "weight", "g")}
    kinds = {"scale": "rmsnorm", "weight": "layernorm", "g": "scalenorm"}
    found = [kinds[kind] for name, kind in norm.items() if name in block]
    here = model.norm if model.norm in kinds.values() else "without weights"
    yield "norm", found[0] if found else "without weights", here
    fused = block.get("attention.query_key_value.weight")
    if fused is not None:
        rows = sum(layout.query_key_value_rows(model))
        yield "num_kv_heads, head_dim: rows of query_key_value", fused[0] * size, rows
    first = block.get("mlp.linear1.weight")
    if first is not None:
        rows = sum(layout.linear1_rows(model))
        yield "activation, intermediate_size: rows of linear1", first[0] * size, rows
    has = block.__contains__
    yield "use_bias_in_qkv", has("attention.query_key_value.bias"), model.qkv_has_bias
    yield "use_bias_in_attn_linear", has("attention.dense.bias"), model.use_bias_in_attn_linear
    yield "use_bias_in_mlp", has("mlp.linear2.bias"), model.use_bias_in_mlp
    if found:
        tied = not any(name.startswith("post_attention_layernorm.") for name in block)
        yield "gpt_j_tied", tied, model.gpt_j_tied
