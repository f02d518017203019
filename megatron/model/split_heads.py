"""From the fused projection to queries, keys and values, with rotary positions turned in on the way.

Shapes: b sequences, s tokens, n query heads, k key/value heads, d features of a head.

One autograd function instead of a chain of views, rotations and concatenations: it copies each number
once in each direction, keeps nothing but the angles for the backward pass, and hands the attention
kernel dense tensors. On a small model this is a tenth of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from megatron.model import layout
from megatron.model.positional_embeddings import Angles, turned

Heads = tuple[Tensor, Tensor, Tensor]
Norms = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


def split_heads(
    fused: Tensor, heads: int, kv_heads: int, angles: Angles | None, norms: Norms | None = None
) -> Heads:
    """Queries [b, n, s, d], keys and values [b, k, s, d].

    Args:
        fused: [b, s, (n + 2 k) d], rows as :func:`megatron.model.layout.head_views` describes them.
        heads: n.
        kv_heads: k.
        angles: of the tokens' positions, by which queries and keys are turned; None for none.
        norms: what normalises queries, and what keys, before they are turned.
    """
    if norms is not None:
        query, key, value = layout.head_views(fused, heads, kv_heads)
        query, key = norms[0](query), norms[1](key)
        return (query, key, value) if angles is None else (*_turn(query, key, angles), value)
    if angles is None:
        return layout.head_views(fused, heads, kv_heads)
    out: Heads = _SplitAndTurn.apply(fused, heads, kv_heads, *angles)  # type: ignore[no-untyped-call]
    return out


def _turn(query: Tensor, key: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    return _Turn.apply(query, *angles), _Turn.apply(key, *angles)  # type: ignore[no-untyped-call]


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turned(x, Angles(cos, sin))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return turned(grad, Angles(*ctx.saved_tensors).reversed()), None, None


class _SplitAndTurn(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, fused: Tensor, heads: int, kv_heads: int, cos: Tensor, sin: Tensor
    ) -> Heads:
        ctx.save_for_backward(cos, sin)
        ctx.heads, ctx.kv_heads, ctx.shape = heads, kv_heads, fused.shape
        query, key, value = layout.head_views(fused, heads, kv_heads)
        angles = Angles(cos, sin)
        # A copy of the values, so that the fused tensor is not kept alive by a view of a part of it.
        value = value.clone(memory_format=torch.contiguous_format)
        return turned(query, angles), turned(key, angles), value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None, None]:
        back = Angles(*ctx.saved_tensors).reversed()
        fused = grads[0].new_empty(ctx.shape)
        query, key, value = layout.head_views(fused, ctx.heads, ctx.kv_heads)
        query.copy_(turned(grads[0], back))
        key.copy_(turned(grads[1], back))
        value.copy_(grads[2])
        return fused, None, None, None, None
