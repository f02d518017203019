"""The one file that knows how the model's tensors are named, ordered and split.

Layer list of a model with L transformer layers (the numbers are part of every parameter's name):

    0 embedding · 1 a function · 2 … L+1 transformer layers · L+2 a function · L+3 final norm · L+4 head

The two functions hold no parameters; they keep GPT-NeoX's numbers. Rows inside fused tensors:

- ``attention.query_key_value``: per head [q_h; k_h; v_h] when every head has its own key and value;
  with grouped heads (GQA) [all q; all k; all v] of the heads that a model-parallel rank holds.
- ``mlp.linear1`` of a gated MLP: [value; gate] of the units that a model-parallel rank holds.

A rank's part is therefore not always a contiguous slice of the whole tensor: :class:`Partition`
describes the pieces, :func:`take_shard` and :func:`join_shards` apply it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron.mpu.layers import divide
from megatron.neox_arguments.sections import ModelArgs

EMBEDDING = 0
BEFORE_BLOCKS = 1
FIRST_BLOCK = 2


def after_blocks(num_layers: int) -> int:
    """Number of the function behind the transformer layers."""
    return num_layers + 2


def final_norm(num_layers: int) -> int:
    """Number of the final norm."""
    return num_layers + 3


def head(num_layers: int) -> int:
    """Number of the output head."""
    return num_layers + 4


def uses_grouped_heads(model: ModelArgs) -> bool:
    """Whether several query heads share a key/value head (which changes the order of QKV rows)."""
    return model.kv_heads != model.num_attention_heads


def query_key_value_rows(model: ModelArgs) -> tuple[int, ...]:
    """Rows of the pieces of the whole ``query_key_value`` that ranks share out separately."""
    query, shared = model.num_attention_heads * model.head_dim, model.kv_heads * model.head_dim
    return (query, shared, shared) if uses_grouped_heads(model) else (3 * query,)


def head_views(fused: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """A rank's projection [b, s, (n + 2 k) d] seen as queries [b, n, s, d], keys, values [b, k, s, d].

    Args:
        heads: n, the rank's query heads.
        kv_heads: k, the rank's key/value heads; equal to n unless heads are grouped.
    """
    if heads == kv_heads:
        query, key, value = fused.view(*fused.shape[:-1], heads, 3, -1).unbind(-2)
    else:
        by_head = fused.view(*fused.shape[:-1], heads + 2 * kv_heads, -1)
        query, key, value = torch.split(by_head, [heads, kv_heads, kv_heads], dim=-2)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def linear1_rows(model: ModelArgs) -> tuple[int, ...]:
    """Rows of the pieces of the whole ``mlp.linear1`` that ranks share out separately."""
    return (model.mlp_width,) * (2 if model.is_gated else 1)


@dataclass(frozen=True)
class Partition:
    """How ranks share a tensor: along ``dim``, each of ``pieces`` (rows) is cut into equal parts."""

    dim: int
    pieces: tuple[int, ...]


def partition(model: ModelArgs, name: str, shape: Sequence[int]) -> Partition | None:
    """How model-parallel ranks share a parameter.

    Args:
        name: the parameter's name inside its layer, such as ``attention.dense.weight``.
        shape: of the whole tensor.

    Returns:
        None for a parameter that every rank holds whole.
    """
    module, _, kind = name.rpartition(".")
    if module == "attention.query_key_value":
        return Partition(0, query_key_value_rows(model))
    if module == "mlp.linear1":
        return Partition(0, linear1_rows(model))
    if module in ("word_embeddings", "final_linear"):
        return Partition(0, (shape[0],))
    if module in ("attention.dense", "mlp.linear2") and kind == "weight":
        return Partition(1, (shape[1],))
    return None


def take_shard(whole: Tensor, split: Partition | None, rank: int, size: int) -> Tensor:
    """Model-parallel rank ``rank``'s part of ``whole``."""
    if split is None or size == 1:
        return whole
    assert whole.size(split.dim) == sum(split.pieces), (whole.shape, split)
    parts = []
    for piece in torch.split(whole, list(split.pieces), dim=split.dim):
        width = divide(piece.size(split.dim), size, "a dimension of a layer")
        parts.append(piece.narrow(split.dim, rank * width, width))
    return torch.cat(parts, dim=split.dim)


def join_shards(shards: Sequence[Tensor], split: Partition | None) -> Tensor:
    """The whole tensor from all ranks' parts, in rank order: the inverse of :func:`take_shard`."""
    if split is None or len(shards) == 1:
        return shards[0]
    widths = [piece // len(shards) for piece in split.pieces]
    by_rank = [torch.split(shard, widths, dim=split.dim) for shard in shards]
    return torch.cat(
        [part for piece in zip(*by_rank, strict=True) for part in piece], dim=split.dim
    )
