"""Rotary position embeddings (Su et al., RoFormer, 2021), on the first part of each head.

Shapes: b sequences, s tokens, n heads, d features of a head, r rotated features (the first r of d).
Half-split form: feature i turns together with feature i + r/2, as in GPT-NeoX and Hugging Face.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of all positions, in fp32, shared by the layers of a model.

    Not a module: the tables are no parameters, are in no checkpoint, and stay fp32 in a half-precision
    model. They are made on the device where they are first asked for, and grow when needed.

    Args:
        width: r, even.
        base: the slowest feature turns by 1 / base^((r - 2) / r) radians a token.
        length: positions to make at first.
    """

    def __init__(self, width: int, base: float, length: int) -> None:
        assert width % 2 == 0, f"rotary width {width} is odd"
        self.width = width
        self._base = base
        self._length = length
        self._tables: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def first(self, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines of positions 0 ... count - 1: [count, 1, r/2] each."""
        cos, sin = self._up_to(count, device)
        return cos[:count, None], sin[:count, None]

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``positions`` [b, s], none beyond what was asked of `reserve`."""
        cos, sin = self._up_to(self._length, positions.device)
        return cos[positions].unsqueeze(-2), sin[positions].unsqueeze(-2)

    def reserve(self, length: int) -> None:
        """Make sure that positions below ``length`` can be asked for."""
        self._length = max(self._length, length)

    def _up_to(self, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
        table = self._tables.get(device)
        if table is None or table[0].size(0) < length:
            self.reserve(length)
            exponents = torch.arange(0, self.width, 2, device=device).float() / self.width
            frequencies = 1.0 / (self._base**exponents)
            positions = torch.arange(self._length, device=device).float()
            angles = torch.outer(positions, frequencies)
            table = self._tables[device] = (angles.cos(), angles.sin())
        return table


def rotate(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Turn the first r features of the first ``heads`` heads of ``x`` by their positions' angles.

    The rest (values, features that carry no position) is passed through, so that queries and keys
    can be turned inside the fused tensor, in one step.

    Args:
        x: [b, s, ..., n, d]; cos, sin: broadcastable to [b, s, ..., heads, r/2].

    Returns:
        A new tensor shaped as ``x``.
    """
    out: Tensor = _Rotate.apply(x, cos, sin, heads)  # type: ignore[no-untyped-call]
    return out


class _Rotate(torch.autograd.Function):
    """A rotation is undone by the opposite angle: nothing but the angles is kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.heads = heads
        return _rotated(x, cos, sin, heads)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        return _rotated(grad, cos, -sin, ctx.heads), None, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    half = cos.size(-1)
    out = x.clone(memory_format=torch.contiguous_format)
    turned = x[..., :heads, :]
    first, second = turned[..., :half], turned[..., half : 2 * half]
    # fp32 tables promote half-precision operands; the assignment rounds once.
    out[..., :heads, :half] = first * cos - second * sin
    out[..., :heads, half : 2 * half] = second * cos + first * sin
    return out
