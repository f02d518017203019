"""The one file that knows how the model's tensors are named, ordered and split.

Layer list of a model with L transformer layers (the numbers are part of every parameter's name):

    0 embedding · 1 a function · 2 … L+1 transformer layers · L+2 a function · L+3 final norm · L+4 head

The two functions hold no parameters; they keep GPT-NeoX's numbers. Rows inside fused tensors:

- ``attention.query_key_value``: per head [q_h; k_h; v_h] when every head has its own key and value;
  with grouped heads (GQA) [all q; all k; all v] of the heads that a model-parallel rank holds.
  Where key/value heads are fewer than ranks, a rank has its query rows and its copy of key and value
  rows as two parameters, ``attention.query_key_value.{query,key_value}_{weight,bias}``.
- ``attention.qk_layernorm``: [heads, head width], the heads split over ranks like the queries;
  ``attention.q_norm`` and ``attention.k_norm``: [head width], the same on every rank.
- ``attention.rpe`` of the first transformer layer alone: [buckets, heads], the heads split over ranks.
- ``mlp.linear1`` of a gated MLP: [value; gate] of the units that a model-parallel rank holds.

A rank's part is therefore not always a contiguous slice of the whole tensor: :class:`Partition`
describes the pieces, :func:`take_shard` applies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from megatron.mpu.layers import divide
from megatron.neox_arguments.sections import ModelArgs

EMBEDDING = 0
SOFT_PROMPT = "soft_embedding_weight"  # vectors in front of each text, in the embedding
WORD_EMBEDDINGS = "sequential.0.word_embeddings.weight"
FIRST_BLOCK = 2


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
    query, shared = model.attention_width, model.kv_heads * model.head_width
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


def by_context_rank(fused: Tensor, heads: int, kv_heads: int, size: int) -> Tensor:
    """What each of ``size`` context-parallel ranks attends with, of a projection of all heads.

    Each gets n / size query heads and the key/value heads that they look at, in the order of
    :func:`head_views`. Where these are fewer than ranks, several get the same one.

    Args:
        fused: [b, s, (n + 2 k) d].
        heads: n, the query heads in it; a multiple of ``size``.
        kv_heads: k, the key/value heads in it; a multiple or a divisor of ``size``.

    Returns:
        [size, b, s, f], in the order of ranks.
    """
    batch, length, _ = fused.shape
    if heads == kv_heads:
        return fused.view(batch, length, size, -1).movedim(2, 0)
    query, *shared = torch.split(
        fused.view(batch, length, heads + 2 * kv_heads, -1), [heads, kv_heads, kv_heads], dim=2
    )
    if kv_heads < size:
        shared = [piece.repeat_interleave(size // kv_heads, dim=2) for piece in shared]
    pieces = (piece.reshape(batch, length, size, -1) for piece in (query, *shared))
    return torch.cat(list(pieces), dim=-1).movedim(2, 0)


def split_query_key_value(model: ModelArgs, fused: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of the whole ``query_key_value``, [(n + 2 k) d, ...], by what they make.

    Returns:
        Those of queries [n d, ...], of keys and of values [k d, ...], each head by head.
    """
    if uses_grouped_heads(model):
        query, key, value = torch.split(fused, list(query_key_value_rows(model)))
        return query, key, value
    by_head = fused.view(model.num_attention_heads, 3, model.head_width, *fused.shape[1:])
    query, key, value = (rows.flatten(0, 1) for rows in by_head.unbind(1))
    return query, key, value


def join_query_key_value(model: ModelArgs, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The whole ``query_key_value``: the inverse of :func:`split_query_key_value`."""
    if uses_grouped_heads(model):
        return torch.cat((query, key, value))
    heads = (model.num_attention_heads, model.head_width)
    by_head = [rows.view(*heads, *rows.shape[1:]) for rows in (query, key, value)]
    return torch.stack(by_head, dim=1).flatten(0, 2)


def split_gated(model: ModelArgs, fused: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the whole ``linear1`` of a gated MLP: those of the value, those of the gate."""
    value, gate = torch.split(fused, list(linear1_rows(model)))
    return value, gate


def join_gated(value: Tensor, gate: Tensor) -> Tensor:
    """The whole ``linear1`` of a gated MLP: the inverse of :func:`split_gated`."""
    return torch.cat((value, gate))


def linear1_rows(model: ModelArgs) -> tuple[int, ...]:
    """Rows of the pieces of the whole ``mlp.linear1`` that ranks share out separately."""
    return (model.mlp_width,) * (2 if model.is_gated else 1)


@dataclass(frozen=True)
class Partition:
    """How ranks share a tensor.

    Attributes:
        dim: the dimension that is cut.
        pieces: rows along it, each cut into equal parts.
        first: row of the whole tensor at which the pieces begin. Where ranks hold the rows of one
            whole tensor as two parameters, both describe a part of it.
        most_parts: into how many parts a piece can be cut. More ranks than that hold copies:
            neighbours the same one.
    """

    dim: int
    pieces: tuple[int, ...]
    first: int = 0
    most_parts: int | None = None

    def parts(self, size: int) -> int:
        """Different parts that ``size`` ranks hold."""
        return size if self.most_parts is None else min(size, self.most_parts)

    def indices(self, rank: int, size: int) -> list[tuple[int, int]]:
        """(start, length) of the runs along ``dim`` of the whole tensor that ``rank`` holds, in order."""
        parts, start, found = self.parts(size), self.first, []
        for piece in self.pieces:
            width = divide(piece, parts, "a dimension of a layer")
            found.append((start + rank // (size // parts) * width, width))
            start += piece
        return found


# The tensors with one row for each id; the rows behind the tokenizer's vocabulary are padding.
_VOCABULARY = ("word_embeddings", "final_linear")

_NORMS = ("norm", "q_norm", "k_norm", "qk_layernorm", "input_layernorm", "post_attention_layernorm")


def is_norm(name: str) -> bool:
    """Whether a parameter, by its name in the model or in its layer, is one of a norm."""
    return name.rpartition(".")[0].rpartition(".")[2] in _NORMS


def decays(name: str, shape: Sequence[int]) -> bool:
    """Whether weight decay pulls at a parameter: at matrices, but for the one that is a norm's."""
    return len(shape) >= 2 and not is_norm(name)


# Where groups of parameters differ in more than decay, an optimizer's group has their names under this key.
PARAMETER_NAMES: Final = "parameter_names"

# The layers that lead from one width to another, both of which grow with the model.
_BETWEEN_WIDTHS = ("attention.query_key_value", "attention.dense", "mlp.linear1", "mlp.linear2")


def is_between_widths(name: str) -> bool:
    """Whether a tensor, by its name in the whole model, is a matrix both sides of which are widths."""
    module, _, kind = name.rpartition(".")
    return kind == "weight" and module.endswith(_BETWEEN_WIDTHS)


# Parameters that together are one tensor of the whole model: :class:`QueryKeyValueLinear`.
_QUERY, _KEY_VALUE = "query_", "key_value_"


def whole_name(name: str) -> str:
    """The name, in the whole model, of the tensor that a rank's parameter ``name`` is part of."""
    module, _, kind = name.rpartition(".")
    kind = kind.removeprefix(_KEY_VALUE).removeprefix(_QUERY)
    return f"{module}.{kind}" if module else kind


def names_of_rank(model: ModelArgs, name: str, size: int) -> tuple[str, ...]:
    """Under which names one of ``size`` model-parallel ranks holds its part of the whole tensor ``name``.

    Args:
        name: the name in the whole model, inside its layer.
    """
    module, _, kind = name.rpartition(".")
    is_query_key_value = module == "attention.query_key_value" and uses_grouped_heads(model)
    if is_query_key_value and model.kv_heads % size:
        return f"{module}.{_QUERY}{kind}", f"{module}.{_KEY_VALUE}{kind}"
    return (name,)


def has_vocabulary_rows(name: str) -> bool:
    """Whether a parameter, by its name inside its layer, has one row for each id."""
    return name.rpartition(".")[0] in _VOCABULARY


def partition(model: ModelArgs, name: str, shape: Sequence[int]) -> Partition | None:
    """How model-parallel ranks share a parameter.

    Args:
        name: the parameter's name inside its layer, such as ``attention.dense.weight``.
        shape: of the whole tensor; only where ranks share it evenly does it matter.

    Returns:
        None for a parameter that every rank holds whole.
    """
    module, _, kind = name.rpartition(".")
    if module == "attention.query_key_value":
        rows = query_key_value_rows(model)
        if kind.startswith(_KEY_VALUE):
            return Partition(0, rows[1:], first=rows[0], most_parts=model.kv_heads)
        return Partition(0, rows[:1] if kind.startswith(_QUERY) else rows)
    if module == "mlp.linear1":
        return Partition(0, linear1_rows(model))
    if module in (*_VOCABULARY, "attention.qk_layernorm"):
        return Partition(0, (shape[0],))
    if module in ("attention.dense", "mlp.linear2", "attention.rpe") and kind == "weight":
        return Partition(1, (shape[1],))
    return None


def take_shard(whole: Tensor, split: Partition | None, rank: int, size: int) -> Tensor:
    """Model-parallel rank ``rank``'s part of ``whole``."""
    if split is None:
        return whole
    assert whole.size(split.dim) >= split.first + sum(split.pieces), (whole.shape, split)
    runs = split.indices(rank, size)
    return torch.cat([whole.narrow(split.dim, *run) for run in runs], dim=split.dim)
