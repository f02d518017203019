"""The logits of raw Llama files, computed from them as they lie there: what an import is compared with.

Every file computes its part, as the rank did that it was written by, and the parts are summed or put side by
side; rotations turn neighbouring numbers of a head, as complex ones. So nothing that an import does, putting
files together and bringing rows into another order, is done here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from megatron.neox_arguments.sections import ModelArgs


@dataclass(frozen=True)
class RawModel:
    """Attributes: the ``files``' tensors, the ``model`` that they are of, the ``dtype`` to round to."""

    files: Sequence[Mapping[str, Any]]
    model: ModelArgs
    dtype: torch.dtype

    @torch.no_grad()
    def logits(self, tokens: Tensor) -> Tensor:
        """Logits [b, s, v] of ``tokens`` [b, s] in fp32, with one layer in memory at a time."""
        x = self._embedded(tokens)
        turns = _turns(self.model, tokens.size(1))
        for number in range(self.model.num_layers):
            layer = f"layers.{number}"
            h = self._normed(x, f"{layer}.attention_norm.weight")
            x = x + sum(self._attention(file, layer, h, turns) for file in self.files)
            h = self._normed(x, f"{layer}.ffn_norm.weight")
            x = x + sum(self._feed_forward(file, f"{layer}.feed_forward", h) for file in self.files)
        x = self._normed(x, "norm.weight")
        head = "output.weight" if "output.weight" in self.files[0] else "tok_embeddings.weight"
        if head == "tok_embeddings.weight" and self._has_columns():
            table = torch.cat([self._weight(file, head) for file in self.files], 1)
            return x @ table.T
        return torch.cat([x @ self._weight(file, head).T for file in self.files], -1)

    def _weight(self, file: Mapping[str, Any], name: str) -> Tensor:
        weight: Tensor = file[name].to(self.dtype).float()
        return weight

    def _has_columns(self) -> bool:
        columns: int = self.files[0]["tok_embeddings.weight"].size(1)
        return columns < self.model.hidden_size

    def _embedded(self, tokens: Tensor) -> Tensor:
        tables = [self._weight(file, "tok_embeddings.weight") for file in self.files]
        if self._has_columns():
            return torch.cat([table[tokens] for table in tables], -1)
        rows = tables[0].size(0)
        x = torch.zeros(*tokens.shape, self.model.hidden_size)
        for number, table in enumerate(tables):
            here = tokens // rows == number
            x[here] = table[tokens[here] - number * rows]
        return x

    def _normed(self, x: Tensor, name: str) -> Tensor:
        size = x.pow(2).mean(-1, keepdim=True) + self.model.rms_norm_epsilon
        return x * size.rsqrt() * self._weight(self.files[0], name)

    def _attention(self, file: Mapping[str, Any], layer: str, h: Tensor, turns: Tensor) -> Tensor:
        batch, length, _ = h.shape
        width = self.model.head_width

        def heads(name: str) -> Tensor:
            rows = self._weight(file, f"{layer}.attention.{name}.weight")
            return (h @ rows.T).view(batch, length, -1, width).transpose(1, 2)

        query, key, value = (heads(name) for name in ("wq", "wk", "wv"))
        each = query.size(1) // key.size(1)
        key, value = (part.repeat_interleave(each, 1) for part in (_turned(key, turns), value))
        scores = _turned(query, turns) @ key.transpose(2, 3) / math.sqrt(width)
        back = torch.arange(length)[:, None] - torch.arange(length)
        window = self.model.sliding_window_width or length
        scores = scores.masked_fill((back < 0) | (back >= window), -math.inf)
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        return mixed @ self._weight(file, f"{layer}.attention.wo.weight").T

    def _feed_forward(self, file: Mapping[str, Any], name: str, h: Tensor) -> Tensor:
        gate, down, value = (self._weight(file, f"{name}.w{n}.weight") for n in (1, 2, 3))
        return (F.silu(h @ gate.T) * (h @ value.T)) @ down.T


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """``x`` [b, heads, s, d], each two neighbours turned as one complex number by ``turns`` [s, d/2]."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def _turns(model: ModelArgs, length: int) -> Tensor:
    """Complex numbers [s, d/2] of length 1."""
    frequencies = [
        _slowed(model, model.rotary_emb_base ** (-pair / model.head_width))
        for pair in range(0, model.head_width, 2)
    ]
    angles = torch.outer(torch.arange(length), torch.tensor(frequencies, dtype=torch.float64))
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def _slowed(model: ModelArgs, frequency: float) -> float:
    """Llama 3.1's rule: slow pairs are slowed by the factor, fast ones kept, those between in between."""
    if model.rotary_scaling != "llama3":
        return frequency
    assert model.rotary_original_positions is not None  # of this kind of scaling
    turns = model.rotary_original_positions * frequency / (2 * math.pi)
    low, high = model.rotary_low_freq_factor, model.rotary_high_freq_factor
    kept = min(1.0, max(0.0, (turns - low) / (high - low)))
    return kept * frequency + (1 - kept) * frequency / model.rotary_scaling_factor
