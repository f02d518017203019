"""Rotary position embeddings (Su et al., RoFormer, 2021), on the first part of each head.

Shapes: b sequences, s tokens, n heads, d features of a head, r rotated features (the first r of d).
Half-split form: feature i turns together with feature i + r/2, as in GPT-NeoX and Hugging Face.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Angles(NamedTuple):
    """Cosines and sines of tokens' angles, fp32: [s, r/2] each, or [b, 1, s, r/2]."""

    cos: Tensor
    sin: Tensor

    def reversed(self) -> Angles:
        """The angles that turn back."""
        return Angles(self.cos, -self.sin)


class RotaryTable:
    """The angles of all positions, shared by the layers of a model.

    Not a module: the tables are no parameters, are in no checkpoint, and stay fp32 in a half-precision
    model. They are made on the device where they are first asked for.

    Args:
        width: r, even.
        base: feature pair i turns by base^(-2 i / r) radians a token.
        length: positions to make; more are made when a longer sequence comes.
    """

    def __init__(self, width: int, base: float, length: int) -> None:
        assert width % 2 == 0, f"rotary width {width} is odd"
        self.width = width
        self._base = base
        self._length = length
        self._tables: dict[torch.device, Angles] = {}

    def first(self, count: int, device: torch.device) -> Angles:
        """Angles of positions 0 ... count - 1, [count, r/2]."""
        self._length = max(self._length, count)
        cos, sin = self._table(device)
        return Angles(cos[:count], sin[:count])

    def at(self, positions: Tensor) -> Angles:
        """Angles of ``positions`` [b, s], each below the table's length: [b, 1, s, r/2]."""
        cos, sin = self._table(positions.device)
        return Angles(cos[positions].unsqueeze(1), sin[positions].unsqueeze(1))

    def _table(self, device: torch.device) -> Angles:
        table = self._tables.get(device)
        if table is None or table.cos.size(0) < self._length:
            # A table first asked for by generation must serve training afterwards, which keeps it
            # for the backward pass: inference tensors cannot be kept.
            with torch.inference_mode(False):
                exponents = torch.arange(0, self.width, 2, device=device).float() / self.width
                positions = torch.arange(self._length, device=device).float()
                radians = torch.outer(positions, 1.0 / (self._base**exponents))
                table = self._tables[device] = Angles(radians.cos(), radians.sin())
        return table


def turned(x: Tensor, angles: Angles) -> Tensor:
    """``x`` [b, n, s, d] with the first r features of each head turned; a new tensor, same type.

    Computed in fp32 and rounded once. Gradients do not flow through it: a rotation's gradient is the
    rotation back, which :mod:`megatron.model.split_heads` applies.
    """
    cos, sin = angles
    half = cos.size(-1)
    wide = x.to(cos.dtype)
    first, second, rest = torch.split(wide, [half, half, x.size(-1) - 2 * half], dim=-1)
    out = torch.empty(x.shape, dtype=cos.dtype, device=x.device)
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half : 2 * half]).addcmul_(first, sin)
    out[..., 2 * half :] = rest
    return out.to(x.dtype)
