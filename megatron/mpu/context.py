"""Context parallelism: ranks that share each sequence, and what travels around attention between them.

Between the attentions of a model a rank computes its part of the tokens; attention needs all of them,
but of each head by itself. So the ranks exchange: each sends every other the projections of its tokens
for the other's heads, attends with its own heads to the whole sequence, and sends the results back
(Jacobs et al., DeepSpeed Ulysses, 2023, arXiv:2309.14509). What an attention looks at, masks, positions,
documents, is that of one rank. In each direction a rank sends (size - 1) / size of what it holds, so
that the time of an exchange falls with the number of ranks.

Shapes: b sequences, s tokens of a whole sequence, f features; ``size`` ranks of a context group, of
which rank r holds the r-th s / size tokens of each sequence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron.mpu.groups import ParallelGroups


def to_whole_sequences(parts: Tensor, groups: ParallelGroups) -> Tensor:
    """This rank's features of all tokens: [size, b, s / size, f] -> [b, s, f].

    Args:
        parts: of this rank's tokens, the features that each rank needs, in the order of ranks.
        groups: the layout of ranks.
    """
    return _exchanged(parts, groups).transpose(0, 1).flatten(1, 2)


def to_own_tokens(x: Tensor, groups: ParallelGroups) -> Tensor:
    """All ranks' features of this rank's tokens: [b, s, f] -> [b, s / size, size f]."""
    batch, length, width = x.shape
    size = groups.get_context_parallel_world_size()
    parts = x.reshape(batch, size, length // size, width).transpose(0, 1)
    return _exchanged(parts, groups).movedim(0, 2).flatten(2)


def _exchanged(parts: Tensor, groups: ParallelGroups) -> Tensor:
    """Part r of each rank, in the order of ranks, on rank r: [size, ...] -> [size, ...]."""
    out: Tensor = _Exchange.apply(parts, groups.get_context_parallel_group())  # type: ignore[no-untyped-call]
    return out


class _Exchange(torch.autograd.Function):
    """An exchange is its own inverse and, being a permutation of all ranks' numbers, its own gradient."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_to_all(parts, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(grad, ctx.group), None


def _all_to_all(parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    parts = parts.contiguous()
    out = torch.empty_like(parts)
    dist.all_to_all_single(out, parts, group=group)
    return out
