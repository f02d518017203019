"""Causal attention with a window, or with scores that depend on distance, in blocks of queries.

Shapes: b sequences, s tokens, t keys, n query heads, k key/value heads, d features of a head.

Plain attention is one call of the fused kernel. Where that kernel needs a mask or a bias, one block of
queries is taken at a time, with the keys that it can see: memory is that of a block, not s × s, and the
work of a window of w tokens is s × w. Blocks are made again in the backward pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from megatron.mpu.matmul import attend, needs_fp32_kernels

_BLOCK = 128


@dataclass(frozen=True)
class Scores:
    """What a layer's queries see, and what is added to their scores.

    Attributes:
        window: tokens back that a query sees, itself included; None for all.
        slopes: n, by how much the scores of each head fall with each token of distance; None for not.
        scale: what products of queries and keys are multiplied by; None: 1 / sqrt(d).
        by_distance: [n, D], what is added to each head's scores of keys 0 ... D - 1 tokens back; None for
            nothing. D is at least the number of keys. Gradients flow into it.
    """

    window: int | None = None
    slopes: tuple[float, ...] | None = None
    scale: float | None = None
    by_distance: Tensor | None = None

    @property
    def are_plain(self) -> bool:
        """Whether nothing is added to scores."""
        return self.slopes is None and self.by_distance is None

    def mask(self, queries: Tensor, keys: Tensor, like: Tensor) -> Tensor:
        """What the kernel gets: bool, or what is added to scores.

        Args:
            queries: [..., s] places.
            keys: [t] places.
            like: the queries, for the type.

        Returns:
            [b or 1, n or 1, s, t].
        """
        distance = queries.unsqueeze(-1) - keys
        distance = distance.view(-1, 1, *distance.shape[-2:])
        bias = None
        if self.by_distance is not None:
            bias = self.by_distance[:, distance.squeeze(1).clamp(min=0)].transpose(0, 1)
        return self._mask(distance, bias, like)

    def mask_of_block(
        self, start: int, queries: int, first: int, keys: int, like: Tensor
    ) -> Tensor:
        """:meth:`mask` of neighbouring queries from place ``start`` on, and keys from ``first`` on."""
        places = torch.arange(first, first + keys, device=like.device)
        distance = places[start - first :][:queries, None] - places
        bias = None
        if self.by_distance is not None:
            bias = _diagonals(self.by_distance, start - first, queries, keys).unsqueeze(0)
        return self._mask(distance.view(1, 1, queries, keys), bias, like)

    def _mask(self, distance: Tensor, bias: Tensor | None, like: Tensor) -> Tensor:
        seen = distance >= 0
        if self.window is not None:
            seen = seen & (distance < self.window)
        if self.slopes is not None:
            bias = distance * -torch.tensor(self.slopes, device=like.device).view(1, -1, 1, 1)
        if bias is None:
            return seen
        bias = bias.masked_fill(~seen, -math.inf)
        return bias.float() if needs_fp32_kernels(like) else bias.to(like.dtype)


def _diagonals(by_distance: Tensor, first: int, queries: int, keys: int) -> Tensor:
    """``by_distance`` [n, D] of each query's distance to each key: [n, s, t].

    Neighbouring queries have the same numbers, moved by one: a view of as many as there are distances,
    whose gradient is a sum along diagonals. What it says of keys ahead means nothing.

    Args:
        first: tokens from the first query back to the first key.
    """
    nearest = first - (keys - 1)
    found = by_distance[:, max(nearest, 0) : first + queries]
    return F.pad(found, (max(-nearest, 0), 0)).unfold(-1, keys, 1).flip(-1)


def alibi_slopes(heads: int) -> list[float]:
    """Slopes of all heads (Press et al., ALiBi, 2022): 2^(-8 i / n) for i = 1 ... n heads.

    Where n is no power of two: those of the next lower one, then every other one of twice as many.
    """
    lower = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / lower) for i in range(1, lower + 1)]
    between = [2.0 ** (-8.0 * i / (2 * lower)) for i in range(1, 2 * lower, 2)]
    return slopes + between[: heads - lower]


def attend_causally(
    query: Tensor, key: Tensor, value: Tensor, scores: Scores, *, dropout: float = 0.0
) -> Tensor:
    """Softmax attention of whole sequences to themselves: [b, n, s, d], [b, k, s, d] -> [b, n, s, d]."""
    length, window = query.size(2), scores.window
    if scores.are_plain and (window is None or window >= length):
        return attend(query, key, value, causal=True, dropout=dropout, scale=scores.scale)
    found = []
    for start, block in zip(
        range(0, length, _BLOCK), torch.split(query, _BLOCK, dim=2), strict=True
    ):
        first = 0 if window is None else max(0, start - window + 1)
        stop = start + block.size(2)
        seen = (x[:, :, first:stop] for x in (key, value))
        found.append(
            checkpoint(_block, block, *seen, start, first, scores, dropout, use_reentrant=False)
        )
    return torch.cat(found, dim=2)


def _block(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: int,
    first: int,
    scores: Scores,
    dropout: float,
) -> Tensor:
    """Queries from ``start`` on look at keys from ``first`` on."""
    mask = scores.mask_of_block(start, query.size(2), first, key.size(2), query)
    return attend(query, key, value, mask=mask, dropout=dropout, scale=scores.scale)


def attend_to_cache(
    query: Tensor, key: Tensor, value: Tensor, scores: Scores, positions: Tensor
) -> Tensor:
    """Queries [b, n, s, d] at ``positions`` [b, s] look at slots, [b, k, t, d]: [b, n, s, d]."""
    slots = torch.arange(key.size(2), device=query.device)
    mask = scores.mask(positions, slots, query)
    return attend(query, key, value, mask=mask, scale=scores.scale)
