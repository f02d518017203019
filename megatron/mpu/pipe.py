"""What travels between the stages of a pipeline outside DeepSpeed's engine: forward only, no gradients.

Every stage talks to its neighbours that have the same place on all other axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from megatron.mpu.groups import ParallelGroups


def send_to_next(x: Tensor, groups: ParallelGroups) -> None:
    """Hand ``x`` to the next stage, which calls :func:`receive_from_previous`."""
    dist.send(x.contiguous(), _neighbour(groups, 1), group=groups.get_pipe_parallel_group())


def receive_from_previous(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device, groups: ParallelGroups
) -> Tensor:
    """What the stage before this one sends, of a shape and type that both know."""
    x = torch.empty(tuple(shape), dtype=dtype, device=device)
    dist.recv(x, _neighbour(groups, -1), group=groups.get_pipe_parallel_group())
    return x


def handed_down(x: Tensor, groups: ParallelGroups) -> Tensor:
    """The first stage's ``x``, passed on from stage to stage; those of the others tell its shape only."""
    if groups.get_pipe_parallel_rank() > 0:
        x = receive_from_previous(x.shape, x.dtype, x.device, groups)
    if groups.get_pipe_parallel_rank() + 1 < groups.get_pipe_parallel_world_size():
        send_to_next(x, groups)
    return x


def of_last_stage(x: Tensor, groups: ParallelGroups) -> Tensor:
    """The last stage's ``x``, on all stages; those of the others tell its shape only and are overwritten."""
    last = groups.grid.rank(groups.place._replace(pipe=groups.grid.pipe - 1))
    x = x.contiguous()
    dist.broadcast(x, last, group=groups.get_pipe_parallel_group())
    return x


def _neighbour(groups: ParallelGroups, step: int) -> int:
    return groups.grid.rank(groups.place._replace(pipe=groups.place.pipe + step))
