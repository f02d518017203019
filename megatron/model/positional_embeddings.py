"""Positions: rotations of the first part of each head (Su et al., RoFormer, 2021), sines and cosines.

Shapes: b sequences, s tokens, n heads, d features of a head, r rotated features (the first r of d).
Half-split form: feature i turns together with feature i + r/2, as in GPT-NeoX and Hugging Face.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from megatron.neox_arguments.sections.positions import PositionArgs


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
        scaling: how the frequencies are changed for longer texts; None for not at all.
    """

    def __init__(
        self, width: int, base: float, length: int, scaling: PositionArgs | None = None
    ) -> None:
        assert width % 2 == 0, f"rotary width {width} is odd"
        self.width = width
        self._base = base
        self._scaling = scaling
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
                frequencies, factor = 1.0 / (self._base**exponents), 1.0
                if self._scaling is not None:
                    frequencies = scaled(frequencies, self._base, self._scaling)
                    factor = attention_factor(self._scaling)
                radians = torch.outer(positions, frequencies)
                table = Angles(radians.cos() * factor, radians.sin() * factor)
                self._tables[device] = table
        return table


def scaled(frequencies: Tensor, base: float, scaling: PositionArgs) -> Tensor:
    """Frequencies [r/2], in radians a token, for texts longer than those of the first training."""
    kind, factor = scaling.rotary_scaling, scaling.rotary_scaling_factor
    if kind == "none":
        return frequencies
    if kind == "linear":
        return frequencies / factor
    original = scaling.rotary_original_positions
    assert original is not None
    if kind == "llama3":
        low, high = scaling.rotary_low_freq_factor, scaling.rotary_high_freq_factor
        turns = original * frequencies / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    else:
        kept = _kept_by_yarn(len(frequencies), base, original, scaling).to(frequencies)
    return frequencies * kept + frequencies / factor * (1.0 - kept)


def _kept_by_yarn(pairs: int, base: float, original: int, scaling: PositionArgs) -> Tensor:
    """Share of each frequency that stays as it is (section 3.2 of YaRN): [r/2]."""

    def pair_of(turns: float) -> float:
        """The pair of features, as a fraction, that turns so often over the original positions."""
        return pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair_of(scaling.rotary_beta_fast)), 0)
    last = min(math.ceil(pair_of(scaling.rotary_beta_slow)), 2 * pairs - 1)
    width = (last - first) or 1e-3  # a step, where both are one pair
    return 1.0 - ((torch.arange(pairs).float() - first) / width).clamp(0.0, 1.0)


def attention_factor(scaling: PositionArgs) -> float:
    """YaRN's factor on queries and on keys (equation 22)."""
    if scaling.rotary_scaling != "yarn":
        return 1.0
    given = scaling.rotary_attention_factor
    return 0.1 * math.log(scaling.rotary_scaling_factor) + 1.0 if given is None else given


def sinusoids(positions: Tensor, width: int) -> Tensor:
    """Sines, then cosines (Vaswani et al., 2017, in GPT-NeoX's order): [...] -> [..., width] fp32."""
    exponents = torch.arange(0, width, 2, device=positions.device).float() / width
    radians = positions.unsqueeze(-1).float() / 10000.0**exponents
    return torch.cat((radians.sin(), radians.cos()), dim=-1)


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
