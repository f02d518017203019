"""Llama as a plain computation on its published weights: what a converted model has to agree with.

Nothing here is shared with the model or the conversion. Rotations turn the pairs (2 i, 2 i + 1) of a head,
the order in which the published rows of queries and keys lie.

Shapes: b texts, s tokens, n query heads, k key/value heads, d features of a head, h of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Scaling:
    """How Llama 3.1 stretches its rotations for texts that are longer than those of its training.

    Attributes:
        factor: by which waves get longer that are longer than ``positions / low``.
        low, high: between ``positions / high`` and there, the factor comes in gradually.
        positions: tokens of the earlier training.
    """

    factor: float
    low: float = 1.0
    high: float = 4.0
    positions: int = 8192


@dataclass(frozen=True)
class RawModel:
    """A model in numbers: ``params.json``'s, and a place to read its weights from.

    Attributes:
        layers: of them.
        heads, kv_heads: of queries; of keys and values.
        epsilon: of the norms.
        base: of the rotations.
        scaling: of the rotations, if there is any.
        is_tied: the embedding is the output too.
    """

    layers: int
    heads: int
    kv_heads: int
    epsilon: float
    base: float
    scaling: Scaling | None
    is_tied: bool


@torch.no_grad()
def raw_logits(model: RawModel, weight: Callable[[str], Tensor], tokens: Tensor) -> Tensor:
    """Logits [b, s, v] of ``tokens`` [b, s], a layer in memory at a time.

    Args:
        weight: gives a tensor, by its published name, in the type to compute in.
    """
    x = weight("tok_embeddings.weight")[tokens]
    for number in range(model.layers):
        name = f"layers.{number}"
        normed = _norm(x, weight(f"{name}.attention_norm.weight"), model.epsilon)
        x = x + _attention(model, weight, f"{name}.attention", normed)
        normed = _norm(x, weight(f"{name}.ffn_norm.weight"), model.epsilon)
        gate = functional.silu(normed @ weight(f"{name}.feed_forward.w1.weight").T)
        value = normed @ weight(f"{name}.feed_forward.w3.weight").T
        x = x + (gate * value) @ weight(f"{name}.feed_forward.w2.weight").T
    x = _norm(x, weight("norm.weight"), model.epsilon)
    return x @ weight("tok_embeddings.weight" if model.is_tied else "output.weight").T


def _attention(model: RawModel, weight: Callable[[str], Tensor], name: str, x: Tensor) -> Tensor:
    batch, length, _ = x.shape
    query, key, value = (
        (x @ weight(f"{name}.w{kind}.weight").T).view(batch, length, heads, -1)
        for kind, heads in (("q", model.heads), ("k", model.kv_heads), ("v", model.kv_heads))
    )
    by_token = turns(model, length, query.size(-1))
    query, key = _turned(query, by_token), _turned(key, by_token)
    group = model.heads // model.kv_heads
    key, value = (each.repeat_interleave(group, dim=2) for each in (key, value))
    scores = torch.einsum("bqnd,bknd->bnqk", query, key) / math.sqrt(query.size(-1))
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    shares = scores.masked_fill(hidden, -math.inf).softmax(-1)
    seen = torch.einsum("bnqk,bknd->bqnd", shares, value).flatten(2)
    return seen @ weight(f"{name}.wo.weight").T


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    """``x`` [b, s, n, d], each pair of neighbours a complex number, times ``turns`` [s, d / 2]."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[:, None]).flatten(-2)


def turns(model: RawModel, length: int, width: int) -> Tensor:
    """How far each pair of features is turned at each token: [s, d / 2] numbers on the unit circle."""
    speeds = [_scaled(model.base ** (-pair / width), model.scaling) for pair in range(0, width, 2)]
    angles = torch.outer(torch.arange(length).double(), torch.tensor(speeds).double())
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


def _scaled(speed: float, scaling: Scaling | None) -> float:
    """Radians a token."""
    if scaling is None:
        return speed
    waves = (
        scaling.positions * speed / (2 * math.pi)
    )  # that fit into a text of the earlier training
    kept = min(1.0, max(0.0, (waves - scaling.low) / (scaling.high - scaling.low)))
    return kept * speed + (1 - kept) * speed / scaling.factor


def _norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + epsilon).rsqrt() * weight
