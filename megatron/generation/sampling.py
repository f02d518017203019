"""From logits to the next token. Shapes: b sequences, v vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """[b, v] with all but the ``k`` largest of each row at -inf; ties of the k-th stay too."""
    if not 0 < k < logits.size(-1):
        return logits
    smallest = logits.topk(k, dim=-1).values[:, -1:]
    return logits.masked_fill(logits < smallest, -torch.inf)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    """[b, v] with all but the nucleus at -inf (Holtzman et al., 2020).

    The nucleus is the smallest set of the likeliest tokens whose probabilities sum to at least
    ``p``; the likeliest one always belongs to it. Equally likely tokens are taken by ascending id.
    """
    if not 0.0 < p < 1.0:
        return logits
    ordered, ids = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.double().softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    outside = (before >= p).scatter(-1, ids, before >= p)
    return logits.masked_fill(outside, -torch.inf)


def draw(logits: Tensor, uniform: Tensor) -> Tensor:
    """One id a row from ``softmax(logits)``, by inversion of its distribution function.

    Args:
        logits: [b, v]; -inf is never drawn.
        uniform: [b] fp64 in [0, 1): the same number draws the same id on any device.

    Returns:
        [b] int64.
    """
    cumulative = logits.double().softmax(-1).cumsum(-1)
    total = cumulative[:, -1:]
    ids = torch.searchsorted(cumulative, uniform.unsqueeze(-1) * total, right=True)
    # Rounding may push the product up to the total itself: then the last id that can be drawn.
    last = (cumulative < total).sum(-1, keepdim=True)
    return torch.minimum(ids, last).squeeze(-1)


def next_tokens(
    logits: Tensor, uniform: Tensor, *, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """The next token of each row.

    Args:
        logits: [b, v], tokens that must not be drawn at -inf.
        uniform: [b] fp64 in [0, 1), not used by greedy choice.
        temperature: 0 takes the likeliest token (of equal ones the first); else logits are divided by it.
        top_k: draw from this many of the likeliest tokens; 0 from all.
        top_p: then draw from the nucleus of this probability; 0 from all.

    Returns:
        [b] int64.
    """
    if temperature == 0.0:
        return logits.argmax(-1)
    # From the largest down, in fp64: a tiny temperature must not make it infinity less infinity.
    wide = logits.double()
    scaled = (wide - wide.amax(-1, keepdim=True)) / temperature
    return draw(keep_top_p(keep_top_k(scaled, top_k), top_p), uniform)
