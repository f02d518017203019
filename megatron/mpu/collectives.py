"""Collectives of the model-parallel group that gradients flow through.

Each pairs what happens on the way forward with what its gradient needs on the way back. With one
model-parallel rank they return their input and communicate nothing.

Between the parallel layers a rank holds hidden states either whole or, with sequence parallelism
(Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models, 2022), for its part
of the tokens. Shapes: b sequences, s tokens, h features; ``size`` model-parallel ranks, of which rank r
holds the r-th s / size tokens of each sequence.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from megatron.mpu.groups import ParallelGroups

# torch 2.13 renamed these and warns at each call of the old names.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def copy_to_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """Enter a parallel region: ``x`` itself forward, the sum of all ranks' gradients backward."""
    return _across_ranks(_Copy, x, groups)


def reduce_from_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """Leave a parallel region: the sum of all ranks' ``x`` forward, the gradient itself backward."""
    return _across_ranks(_Reduce, x, groups)


def gather_from_model_parallel(x: Tensor, groups: ParallelGroups) -> Tensor:
    """All ranks' ``x`` side by side: [..., n] -> [..., n * size]; backward, this rank's part."""
    return _across_ranks(_Gather, x, groups)


def _across_ranks(
    function: type[torch.autograd.Function], x: Tensor, groups: ParallelGroups
) -> Tensor:
    """``function`` of ``x``; nothing is to be done by a rank that shares no weight."""
    if groups.get_model_parallel_world_size() == 1:
        return x
    out: Tensor = function.apply(x, groups)  # type: ignore[no-untyped-call]
    return out


def leave_parallel_region(x: Tensor, groups: ParallelGroups) -> Tensor:
    """The sum of all ranks' ``x`` [b, s, h], for this rank's tokens only under sequence parallelism.

    Backward, the gradient itself, or all ranks' gradients joined along the sequence.
    """
    if not groups.sequence_parallel:
        return reduce_from_model_parallel(x, groups)
    out: Tensor = _ReduceScatter.apply(x, groups)  # type: ignore[no-untyped-call]
    return out


def shared_parameters(groups: ParallelGroups, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Parameters that all ranks hold whole, on their way to this rank's part of the sequence.

    Without sequence parallelism they are used as they are: every rank computes the same gradient.
    With it each rank sees the gradient of its own tokens, and one collective sums those of all
    ``parameters`` over the ranks, in fp32, so that the copies stay equal to the last bit. A bias that
    a module does not have is None, here and behind it.
    """
    if not groups.sequence_parallel:
        return parameters
    return _sum_gradients(parameters, groups.get_model_parallel_group())


def replicated_parameters(groups: ParallelGroups, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Key/value parameters, which several ranks hold where there are fewer heads than ranks.

    Each of these ranks computes the gradient from its own query heads; here they are summed.
    """
    if groups.kv_replicas == 1:
        return parameters
    return _sum_gradients(parameters, groups.get_kv_replica_group())


def shared_by_heads(groups: ParallelGroups, *parameters: Tensor | None) -> tuple[Any, ...]:
    """Parameters that all ranks hold whole and apply to their own heads: gradients are summed over ranks."""
    if groups.get_model_parallel_world_size() == 1:
        return parameters
    return _sum_gradients(parameters, groups.get_model_parallel_group())


def part_of_sequence(length: int, groups: ParallelGroups) -> slice:
    """The tokens, of a whole sequence of ``length``, that this rank holds between the parallel layers.

    Context-parallel ranks share the sequence, and with sequence parallelism the model-parallel ranks
    of each share its part.
    """
    size, number = groups.get_context_parallel_world_size(), groups.get_context_parallel_rank()
    if groups.sequence_parallel:
        shards = groups.get_model_parallel_world_size()
        size, number = size * shards, number * shards + groups.get_model_parallel_rank()
    assert length % size == 0, f"{size} ranks cannot share {length} tokens evenly"
    start = number * (length // size)
    return slice(start, start + length // size)


def own_part(x: Tensor, groups: ParallelGroups) -> Tensor:
    """This rank's part of what all model-parallel ranks hold: n numbers -> [ceil(n / size)], a copy.

    The last parts are filled up with zeros. No gradient flows.
    """
    size, rank = groups.get_model_parallel_world_size(), groups.get_model_parallel_rank()
    flat = x.detach().reshape(-1)
    length = -(-flat.numel() // size)
    own = flat[rank * length : (rank + 1) * length]
    return torch.nn.functional.pad(own, (0, length - own.numel())).clone()


def gather_parts(part: Tensor, shape: torch.Size, groups: ParallelGroups) -> Tensor:
    """What :func:`own_part` took ``part`` of: [ceil(n / size)] -> ``shape`` of n numbers."""
    whole = part.new_empty(groups.get_model_parallel_world_size() * part.numel())
    _all_gather(whole, part, group=groups.get_model_parallel_group())
    return whole[: shape.numel()].view(shape)


class PendingSequence:
    """All ranks' parts of a sequence, on their way here: [b, s / size, h] -> [b, s, h]."""

    def __init__(self, x: Tensor, groups: ParallelGroups) -> None:
        batch, part, width = x.shape
        size = groups.get_model_parallel_world_size()
        self._parts = x.new_empty(size, batch, part, width)
        self._work = _all_gather(
            self._parts.view(size * batch, part, width),
            x.contiguous(),
            group=groups.get_model_parallel_group(),
            async_op=True,
        )

    def wait(self) -> Tensor:
        """The joined sequences, once they are here."""
        self._work.wait()
        return self._parts.transpose(0, 1).flatten(1, 2)


class PendingSum:
    """The sum of all ranks' [b, s, h], on its way here; for this rank's tokens under sequence parallelism.

    Started, it travels while the caller computes something else. ``x`` is the caller's to give: it is
    overwritten.
    """

    def __init__(self, x: Tensor, groups: ParallelGroups) -> None:
        group = groups.get_model_parallel_group()
        if not groups.sequence_parallel:
            self._out = x.contiguous()
            self._work = dist.all_reduce(self._out, group=group, async_op=True)
            return
        parts = _parts_first(x, groups)
        self._out = x.new_empty(parts.shape[1:])
        # Kept, because the work reads it.
        self._parts = parts.flatten(0, 1)
        self._work = _reduce_scatter(self._out, self._parts, group=group, async_op=True)

    def wait(self) -> Tensor:
        """The sum, once it is here."""
        self._work.wait()
        return self._out


def _parts_first(x: Tensor, groups: ParallelGroups) -> Tensor:
    """[b, s, h] -> [size, b, s / size, h], which lies in memory as the ranks receive it."""
    batch, length, width = x.shape
    size = groups.get_model_parallel_world_size()
    assert length % size == 0, f"{size} ranks cannot share {length} tokens evenly"
    return x.reshape(batch, size, length // size, width).transpose(0, 1).contiguous()


def _all_reduce(x: Tensor, groups: ParallelGroups) -> Tensor:
    # A copy: the caller's tensor may be used elsewhere in the graph.
    x = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(x, group=groups.get_model_parallel_group())
    return x


def _sum_gradients(
    parameters: tuple[Tensor | None, ...], group: dist.ProcessGroup | None
) -> tuple[Any, ...]:
    """Those that are there go through one function, which sums their gradients; None stays None."""
    there = [parameter for parameter in parameters if parameter is not None]
    found = iter(_SumGradients.apply(group, *there))  # type: ignore[no-untyped-call]
    return tuple(None if parameter is None else next(found) for parameter in parameters)


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


class _ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: ParallelGroups) -> Tensor:
        ctx.groups = groups
        return PendingSum(x, groups).wait()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return PendingSequence(grad, ctx.groups).wait(), None


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup | None, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        flat = torch.cat([grad.flatten().float() for grad in grads])
        dist.all_reduce(flat, group=ctx.group)
        parts = torch.split(flat, [grad.numel() for grad in grads])
        summed = [
            part.view_as(grad).to(grad.dtype) for part, grad in zip(parts, grads, strict=True)
        ]
        return None, *summed


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
