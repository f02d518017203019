"""Collectives of the model-parallel group that gradients flow through.

Each pairs what happens on the way forward with what its gradient needs on the way back. With one
model-parallel rank they return their input and communicate nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron.mpu.groups import ParallelGroups


def copy_to_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """Enter a parallel region: ``x`` itself forward, the sum of all ranks' gradients backward."""
    if groups.get_model_parallel_world_size() == 1:
        return x
    out: Tensor = _Copy.apply(x, groups)  # type: ignore[no-untyped-call]
    return out


def reduce_from_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """Leave a parallel region: the sum of all ranks' ``x`` forward, the gradient itself backward."""
    if groups.get_model_parallel_world_size() == 1:
        return x
    out: Tensor = _Reduce.apply(x, groups)  # type: ignore[no-untyped-call]
    return out


def gather_from_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """All ranks' ``x`` side by side: [..., n] -> [..., n * size]; backward, this rank's part."""
    if groups.get_model_parallel_world_size() == 1:
        return x
    out: Tensor = _Gather.apply(x, groups)  # type: ignore[no-untyped-call]
    return out


def _all_reduce(x: Tensor, groups: ParallelGroups) -> Tensor:
    # A copy: the caller's tensor may be used elsewhere in the graph.
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=groups.get_model_parallel_group())
    return x


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: ParallelGroups) -> Tensor:
        ctx.groups = groups
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _all_reduce(grad, ctx.groups), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: ParallelGroups) -> Tensor:
        return _all_reduce(x, groups)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: ParallelGroups) -> Tensor:
        ctx.groups, ctx.width = groups, x.size(-1)
        parts = [torch.empty_like(x) for _ in range(groups.get_model_parallel_world_size())]
        dist.all_gather(parts, x.contiguous(), group=groups.get_model_parallel_group())
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        start = ctx.groups.get_model_parallel_rank() * ctx.width
        return grad.narrow(-1, start, ctx.width).contiguous(), None
