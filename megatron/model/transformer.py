"""A transformer layer: causal self-attention and an MLP around a residual stream.

Shapes: b sequences, s tokens, h hidden, n query heads, k key/value heads, d features of a head, f MLP
width, t slots of a cache. With model-parallel ranks, n, k and f are what one rank holds; with sequence
parallelism the hidden states between the parallel layers are those of a rank's own tokens. With context
parallelism they are those of its part of each sequence, and it attends to whole sequences with a part of
the heads.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from torch import Tensor, nn

from megatron.model import layout
from megatron.model.activations import get_activation
from megatron.model.attention_kernels import (
    Scores,
    alibi_slopes,
    attend_causally,
    attend_to_cache,
)
from megatron.model.kv_cache import KVCache
from megatron.model.norms import build_norm, build_query_key_norms
from megatron.model.parametrization import STANDARD, Parametrization
from megatron.model.positional_embeddings import Angles, RotaryTable
from megatron.model.relative_positions import RelativePositionBias
from megatron.model.segments import Segments, attend_within
from megatron.model.split_heads import Norms, split_heads
from megatron.mpu.context import to_own_tokens, to_whole_sequences
from megatron.mpu.groups import ParallelGroups
from megatron.mpu.layers import (
    ColumnParallelLinear,
    QueryKeyValueLinear,
    RowParallelLinear,
    divide,
)
from megatron.mpu.random import dropout_between_layers, own_draws
from megatron.neox_arguments.sections import ModelArgs


class SelfAttention(nn.Module):
    """Multi-head or grouped-query causal attention with optional rotary or relative positions."""

    def __init__(
        self,
        model: ModelArgs,
        number: int,
        *,
        groups: ParallelGroups,
        rotary: RotaryTable | None,
        relative: RelativePositionBias | None,
        parametrization: Parametrization = STANDARD,
    ) -> None:
        super().__init__()
        size = groups.get_model_parallel_world_size()
        self.number = number
        self.groups = groups
        self.heads = divide(model.num_attention_heads, size, "num_attention_heads")
        self.kv_heads = divide(model.kv_heads, size // groups.kv_replicas, "num_kv_heads")
        self.context_size = context = groups.get_context_parallel_world_size()
        assert self.heads % context == 0, f"{context} ranks cannot share {self.heads} heads evenly"
        # Those that this rank attends with: neighbours along the context axis may need the same one.
        self.attending = (self.heads // context, max(1, self.kv_heads // context))
        self.dropout = model.attention_dropout
        self.rotary = rotary
        self.scores = Scores(
            model.window_of(number), self._slopes(model), parametrization.score_scale
        )
        if relative is not None and number == 0:
            self.rpe = relative
        # All layers use what is a part of the first one, and has one name.
        self._relative = (relative,)
        self.query_key_value = _query_key_value(model, groups, model.qkv_has_bias)
        for name, norm in build_query_key_norms(model, groups=groups).items():
            self.add_module(name, norm)
        self.dense = RowParallelLinear(
            model.attention_width,
            model.hidden_size,
            groups=groups,
            bias=model.use_bias_in_attn_linear,
        )

    def forward(
        self,
        x: Tensor,
        cache: KVCache | None,
        positions: Tensor | None,
        segments: Segments | None,
    ) -> Tensor:
        """[b, s, h] -> [b, s, h]; see :meth:`GPT2Model.forward` for the others."""
        fused = self.query_key_value(x)
        if self.context_size > 1:
            parts = layout.by_context_rank(fused, self.heads, self.kv_heads, self.context_size)
            fused = to_whole_sequences(parts, self.groups)
        angles = self._angles(fused, positions)
        query, key, value = split_heads(fused, *self.attending, angles, self._norms())
        if cache is not None:
            assert positions is not None, "a cache needs to know the tokens' positions"
            key, value = cache.extend(self.number, key, value, positions)
        dropout = self.dropout if self.training else 0.0
        scores = self._scores(key.size(2))
        with own_draws(self.groups) if dropout else nullcontext():
            if cache is not None:
                assert positions is not None
                assert segments is None, "a cache holds one text a row"
                out = attend_to_cache(query, key, value, scores, positions)
            elif segments is None:
                out = attend_causally(query, key, value, scores, dropout=dropout)
            else:
                out = attend_within(segments, query, key, value, scores=scores, dropout=dropout)
        out = out.transpose(1, 2).flatten(2)
        if self.context_size > 1:
            out = to_own_tokens(out, self.groups)
        return self.dense(out)  # type: ignore[no-any-return]

    def _scores(self, keys: int) -> Scores:
        """What queries see of so many keys."""
        (relative,) = self._relative
        return self.scores if relative is None else replace(self.scores, by_distance=relative(keys))

    def _slopes(self, model: ModelArgs) -> tuple[float, ...] | None:
        """ALiBi's, of the heads that this rank attends with."""
        if model.pos_emb != "alibi":
            return None
        count = self.attending[0]
        first = self.groups.get_model_parallel_rank() * self.heads
        first += self.groups.get_context_parallel_rank() * count
        return tuple(alibi_slopes(model.num_attention_heads)[first : first + count])

    def _norms(self) -> Norms | None:
        """What normalises queries, and what keys."""
        children = dict(self.named_children())
        if "qk_layernorm" in children:
            return children["qk_layernorm"], children["qk_layernorm"]
        return (children["q_norm"], children["k_norm"]) if "q_norm" in children else None

    def _angles(self, fused: Tensor, positions: Tensor | None) -> Angles | None:
        if self.rotary is None:
            return None
        if positions is None:
            return self.rotary.first(fused.size(1), fused.device)
        return self.rotary.at(positions)


def _query_key_value(model: ModelArgs, groups: ParallelGroups, bias: bool) -> nn.Module:
    rows = layout.query_key_value_rows(model)
    if groups.kv_replicas == 1:
        return ColumnParallelLinear(model.hidden_size, sum(rows), groups=groups, bias=bias)
    queries, *shared = rows
    return QueryKeyValueLinear(model.hidden_size, queries, sum(shared), groups=groups, bias=bias)


class MLP(nn.Module):
    """``linear2(act(linear1(x)))``, or ``linear2(act(gate) * value)`` for a gated activation."""

    def __init__(self, model: ModelArgs, *, groups: ParallelGroups) -> None:
        super().__init__()
        self.gated = model.is_gated
        self.activation = get_activation(model.activation, tanh_gelu=model.has_tanh_gelu)
        rows = sum(layout.linear1_rows(model))
        bias = model.use_bias_in_mlp
        self.linear1 = ColumnParallelLinear(model.hidden_size, rows, groups=groups, bias=bias)
        self.linear2 = RowParallelLinear(
            model.mlp_width, model.hidden_size, groups=groups, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, h] -> [b, s, h]."""
        hidden = self.linear1(x)
        if self.gated:
            value, gate = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * value
        else:
            hidden = self.activation(hidden)
        return self.linear2(hidden)  # type: ignore[no-any-return]


class TransformerLayer(nn.Module):
    """Attention and MLP, one after the other or side by side, each behind its norm.

    Sequential: ``x += attention(norm1(x)); x += mlp(norm2(x))``. With ``gpt_j_residual``:
    ``x + attention(norm1(x)) + mlp(norm2(x))``, and with ``gpt_j_tied`` too one norm for both.

    Args:
        model: the model's section of the configuration.
        number: counted from 0 over all transformer layers of the model.
        groups: the layout of ranks.
        rotary: the model's table of angles, or None.
        relative: the model's table of distances, or None; it becomes a part of layer 0.
        parametrization: what follows from the model's width.
    """

    def __init__(
        self,
        model: ModelArgs,
        number: int,
        *,
        groups: ParallelGroups,
        rotary: RotaryTable | None,
        relative: RelativePositionBias | None,
        parametrization: Parametrization = STANDARD,
    ) -> None:
        super().__init__()
        self.groups = groups
        self.parallel_residual = model.gpt_j_residual
        self.dropout = model.hidden_dropout
        self.input_layernorm = build_norm(model, groups=groups)
        self.attention = SelfAttention(
            model,
            number,
            groups=groups,
            rotary=rotary,
            relative=relative,
            parametrization=parametrization,
        )
        self.post_attention_layernorm = (
            None if model.gpt_j_tied else build_norm(model, groups=groups)
        )
        self.mlp = MLP(model, groups=groups)

    def forward(
        self,
        x: Tensor,
        cache: KVCache | None = None,
        positions: Tensor | None = None,
        segments: Segments | None = None,
    ) -> Tensor:
        """[b, s, h] -> [b, s, h]; see :meth:`GPT2Model.forward` for the others."""
        normed = self.input_layernorm(x)
        attended = self._drop(self.attention(normed, cache, positions, segments))
        if self.post_attention_layernorm is None:
            return x + attended + self._drop(self.mlp(normed))
        if self.parallel_residual:
            return x + attended + self._drop(self.mlp(self.post_attention_layernorm(x)))
        x = x + attended
        return x + self._drop(self.mlp(self.post_attention_layernorm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        if not (self.training and self.dropout):
            return x
        return dropout_between_layers(x, self.dropout, self.groups)
